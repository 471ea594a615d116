"""The page of an audit: a picture of completeness over time, and tables; it loads nothing from elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2

from aiorecover.cli.auditing.sentences import (
    conflicts,
    fewer_without_id,
    held_up,
    is_whole,
    not_known,
    not_landed,
    sequences,
    time_of,
    without_id,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["page"]

_WIDTH, _HEIGHT = 960, 240  # of the picture, in its own units: it is as wide as the window
_LEAST = 5  # a piece that lacks one record of a million must be seen, too
_EPOCH = ["producer_id", "epoch", "sequences", "expected", "found", "missing", "repeated", "out_of_order"]
_JUDGED = ["producer_id", "epoch", "first", "last", "count", "verdict", "why"]
_RANGE = ["producer_id", "epoch", "first", "last", "count"]
_REPEATED = [*_RANGE, "repeated"]


def page(found: dict[str, Any], asked: Mapping[str, str]) -> str:
    """Return the HTML; ``found`` is what the audit says as JSON, with its ``timeline``; ``asked``: of what, and how."""
    loader = jinja2.PackageLoader("aiorecover.cli", "auditing")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"words": _words, "cell": _cell, "time": time_of, "sentence": _sentence}
    totals = found["totals"]
    said = [without_id(totals), conflicts(totals), *held_up(totals), *not_known(totals)]
    return environment.get_template("page.html.j2").render(
        asked=asked,
        whole=is_whole(found),
        totals=totals,
        absent=found["compared"]["totals"]["absent"] if "compared" in found else 0,
        said=list(filter(None, said)),
        picture=_picture(found["timeline"]),
        tables=list(_tables(found)),
    )


def _tables(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Yield title, sentences, columns and rows of each table; empty ones but for the first two are left out."""
    epochs = [{**epoch, "sequences": _sequences(epoch)} for epoch in found["epochs"]]
    tables: list[tuple[str, list[str], list[str], list[dict[str, Any]]]] = [
        ("Producers and epochs that lack most", [], _EPOCH, epochs),
        ("Missing sequences, the longest ranges", [], _RANGE, found["missing"]),
    ]
    more = [
        ("Sequences repeated, the ranges with most repeats", _REPEATED, found["repeated"]),
        ("Ids of several different records, the longest ranges", _RANGE, found["conflicts"]),
        ("Sequences out of order, the longest ranges", _RANGE, found["out_of_order"]),
    ]
    tables += [(title, [], columns, rows) for title, columns, rows in more if rows]
    if judged := found.get("manifests"):
        counts = ", ".join(f"{count:,} {_words(verdict)}" for verdict, count in judged["totals"].items())
        rows = [{**row, "why": row["why"] or ""} for row in judged["ranges"]]
        title = "What producers tell of those that are missing"
        tables.append((title, [counts, not_landed(judged["totals"])], _JUDGED, rows))
    if compared := found.get("compared"):
        said = [_compared(compared["totals"]), fewer_without_id(compared["totals"])]
        tables.append(("In the topics, not in the table", said, _RANGE, compared["absent"]))
    return [
        {"title": title, "said": list(filter(None, said)), "columns": columns, "rows": rows}
        for title, said, columns, rows in tables
    ]


def _compared(totals: dict[str, Any]) -> str:
    return (
        f"{totals['absent']:,} of {totals['in_topics']:,} absent from the table, "
        f"{totals['only_in_table']:,} only in the table; without an id: {totals['without_id_in_topics']:,} in the "
        f"topics, {totals['without_id_in_table']:,} in the table"
    )


def _picture(timeline: dict[str, Any]) -> dict[str, Any]:
    """Return what the template draws."""
    moments = [one for one in timeline["moments"] if one["start_s"] is not None]
    nowhere = sum(one["missing"] for one in timeline["moments"] if one["start_s"] is None)
    if not moments:
        return {"bars": [], "nowhere": nowhere}
    width_s, first = timeline["width_s"], moments[0]["start_s"]
    columns = (moments[-1]["start_s"] - first) // width_s + 1
    most = max(one["found"] + one["missing"] for one in moments)
    return {
        "bars": [_bar(one, (one["start_s"] - first) // width_s, columns, most, width_s) for one in moments],
        "nowhere": nowhere,
        "begin": first,
        "end": first + columns * width_s,
        "most": most,
        "span": _span(width_s),
        "width": _WIDTH,
        "height": _HEIGHT,
    }


def _bar(one: dict[str, Any], column: int, columns: int, most: int, width_s: int) -> dict[str, Any]:
    """Found above missing; of what is missing so much at least that it is seen."""
    step, count = _WIDTH / columns, one["found"] + one["missing"]
    height = max(count / most * _HEIGHT, _LEAST if one["missing"] else 1)
    red = max(height * one["missing"] / count, _LEAST) if one["missing"] else 0
    when = f"{time_of(one['start_s'])} to {time_of(one['start_s'] + width_s)}"
    pieces = [("found", _HEIGHT - height, max(height - red, 0))]
    if one["missing"]:
        pieces.append(("missing", _HEIGHT - red, red))
    return {
        "title": f"{when}: {one['found']:,} found, {one['missing']:,} missing ({_percent(one['found'] / count)})",
        "x": column * step,
        "width": max(step - 0.5, 0.5),
        "pieces": [{"kind": kind, "y": y, "height": tall} for kind, y, tall in pieces],
    }


def _percent(share: float) -> str:
    """Never 100 % where anything is missing."""
    return "100 %" if share == 1 else f"{min(share * 100, 99.9999):.4f} %"


def _span(width_s: int) -> str:
    for unit, seconds in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if width_s % seconds == 0:
            return f"{width_s // seconds} {unit}" if width_s > seconds else f"1 {unit[:-1]}"
    return f"{width_s} s"


def _sequences(epoch: dict[str, Any]) -> str:
    return sequences(epoch) if epoch["first"] is None else f"{epoch['first']:,}-{epoch['last']:,}"


def _sentence(said: str) -> str:
    return said[:1].upper() + said[1:]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "?" if value is None else str(value)
