"""What an audit found as a page of its own: a picture of completeness over time, and the tables; nothing is loaded."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import Any

__all__ = [
    "WRONG",
    "conflicts",
    "fewer_without_id",
    "held_up",
    "lost",
    "not_known",
    "not_landed",
    "page",
    "sequences",
    "without_id",
]

_WIDTH, _HEIGHT = 960, 240  # of the picture, in its own units: it is as wide as the window
_LEAST = 3  # a piece that lacks one record of a million must be seen, too
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2024 }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 2rem }
svg { width: 100%; height: auto; display: block } .found { fill: #2f9e63 } .missing { fill: #d6322f }
.whole { color: #1c7a48 } .lacking { color: #b3201d } text { font-size: 13px; fill: #5c646c }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } .note { color: #5c646c }
td, th { padding: .2rem .9rem .2rem 0; text-align: right } td:first-child, th:first-child { text-align: left }
th { font-weight: 500; color: #5c646c }
""".strip()
WRONG = "not_in_table", "lost", "untold"
"""Verdicts of what should be there as far as is told, and of what nothing is told of."""
_EPOCH = ["producer_id", "epoch", "sequences", "expected", "found", "missing", "repeated", "out_of_order"]
_JUDGED = ["producer_id", "epoch", "first", "last", "count", "verdict", "why"]
_RANGE = ["producer_id", "epoch", "first", "last", "count"]
_REPEATED = [*_RANGE, "repeated"]


def page(found: dict[str, Any]) -> str:
    """The page's HTML; ``found`` is what the audit says as JSON, with its ``timeline``."""
    totals, compared, judged = found["totals"], found.get("compared"), found.get("manifests")
    verdicts = judged["totals"] if judged else {}
    wrong = lost(verdicts) if judged else totals["missing"] - totals["behind_open_transaction"]
    missing = wrong + totals["conflicts"] + (compared["totals"]["absent"] if compared else 0)
    parts = [
        f'<h1 class="{"lacking" if missing else "whole"}">{escape(_headline(totals))}</h1>',
        f"<p>{escape(_rest(totals))}</p>",
        *(f"<p>{escape(said)}</p>" for said in _said(totals) if said),
        "<h2>Completeness over time</h2>",
        _picture(found["timeline"]),
        "<h2>Producers and epochs that lack most</h2>",
        _table(_EPOCH, [{**epoch, "sequences": sequences(epoch)} for epoch in found["epochs"]]),
        "<h2>Missing sequences, the longest ranges</h2>",
        _table(_RANGE, found["missing"]),
    ]
    if found["repeated"]:
        parts += ["<h2>Sequences repeated, the ranges with most repeats</h2>", _table(_REPEATED, found["repeated"])]
    if found["conflicts"]:
        parts += ["<h2>Ids of several different records, the longest ranges</h2>", _table(_RANGE, found["conflicts"])]
    if found["out_of_order"]:
        parts += ["<h2>Sequences out of order, the longest ranges</h2>", _table(_RANGE, found["out_of_order"])]
    if judged:
        parts += [
            "<h2>What producers tell of those that are missing</h2>",
            f"<p>{escape(_judged(verdicts))}</p>",
            *([f"<p>{escape(said)}</p>"] if (said := not_landed(verdicts)) else []),
            _table(_JUDGED, [{**row, "why": row["why"] or ""} for row in judged["ranges"]]),
        ]
    if compared:
        parts += [
            "<h2>In the topics, not in the table</h2>",
            f"<p>{escape(_compared(compared['totals']))}</p>",
            *([f"<p>{escape(said)}</p>"] if (said := fewer_without_id(compared["totals"])) else []),
            _table(_RANGE, compared["absent"]),
        ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>aiorecover audit</title>\n'
        f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def _said(totals: dict[str, Any]) -> list[str]:
    return [without_id(totals), conflicts(totals), *held_up(totals), *not_known(totals)]


def _headline(totals: dict[str, Any]) -> str:
    return f"{totals['found']:,} of {totals['expected']:,} records found, {totals['missing']:,} missing"


def _rest(totals: dict[str, Any]) -> str:
    disorder = "order unknown" if totals["out_of_order"] is None else f"{totals['out_of_order']:,} out of order"
    return (
        f"{totals['epochs']:,} epochs of producers, {totals['repeated']:,} repeated, {disorder}, "
        f"{totals['without_id']:,} records without an id"
    )


def sequences(epoch: dict[str, Any]) -> str:
    """The first one and the last that were found."""
    return "none found" if epoch["first"] is None else f"{epoch['first']}-{epoch['last']}"


def not_known(totals: dict[str, Any]) -> list[str]:
    """What no manifest tells, whatever was found; nothing where all is told, or nobody has asked."""
    return [said for said in (_open(totals), _untold(totals)) if said]


def _open(totals: dict[str, Any]) -> str:
    count = totals.get("open_epochs", 0)
    if not count:
        return ""
    since_ms = totals["open_told_ms"]
    told = f"{totals['open_oldest']}, told last at {'?' if since_ms is None else _time(since_ms // 1000)} UTC"
    if count == 1:
        return (
            f"1 epoch is open, {told}: what it accepted since is not known here; look at its directory with "
            "aiorecover status"
        )
    return (
        f"{count:,} epochs are open, the oldest, {told}: what they accepted since is not known here; look at their "
        "directories with aiorecover status"
    )


def _untold(totals: dict[str, Any]) -> str:
    count = totals.get("untold_epochs", 0)
    if not count:
        return ""
    which, who = ("1 epoch was", "it") if count == 1 else (f"{count:,} epochs were", "they")
    return (
        f"{which} found that no manifest tells of: what {who} accepted behind the last record found is not known here; "
        "give the producers audit_topic"
    )


def conflicts(totals: dict[str, Any]) -> str:
    """What is to be thought of ids that several different records have; nothing where there are none."""
    if not totals["conflicts"]:
        return ""
    return (
        f"{totals['conflicts']:,} ids stand on several records that differ in topic, key, value or headers: somebody "
        "forwards records with all their headers; leave out aiorecover-id there"
    )


def held_up(totals: dict[str, Any]) -> list[str]:
    """What an open transaction holds up; nothing where there is none."""
    if not totals["held_offsets"]:
        return []
    held, behind = totals["held_offsets"], totals["behind_open_transaction"]
    said = (
        f"{held:,} offsets are held up by an open transaction, {behind:,} of the missing records among them: they are "
        "in Kafka, and readers get them once it ends; kafka-transactions.sh find-hanging finds one that does not"
    )
    return [said]


def lost(verdicts: dict[str, int]) -> int:
    """How many have one of these verdicts."""
    return sum(verdicts.get(verdict, 0) for verdict in WRONG)


def without_id(totals: dict[str, Any]) -> str:
    """What is to be thought of records without an id, and where they are to be seen; nothing where there are none."""
    if not totals["without_id"]:
        return ""
    return (
        "without an id: somebody else writes to these topics, or the header aiorecover-id is none of ours (land puts "
        "these into quarantine); no other count has them, parse_record_id(df).where('sequence is null') shows them"
    )


def not_landed(verdicts: dict[str, Any]) -> str:
    """What to do about that of which a table alone does not tell whether it is lost; nothing where there is none."""
    if not verdicts.get("not_in_table"):
        return ""
    return (
        "not in the table: these were in Kafka; name their topics, too (--topic), to see whether they are still to be "
        "landed, or lost"
    )


def fewer_without_id(compared: dict[str, Any]) -> str:
    """What it may mean that the table has fewer records without an id than the topics; nothing where it has not."""
    count = compared["without_id_absent"]
    if not count:
        return ""
    return (
        f"without an id: the table has {count:,} fewer than the topics; they may be still to be landed, in the "
        "quarantine of land (an aiorecover-id that is none), or lost: which they are, nothing tells"
    )


def _words(name: str) -> str:
    return name.replace("_", " ")


def _judged(totals: dict[str, Any]) -> str:
    return ", ".join(f"{count:,} {_words(verdict)}" for verdict, count in totals.items())


def _compared(totals: dict[str, Any]) -> str:
    return (
        f"{totals['absent']:,} of {totals['in_topics']:,} absent from the table, "
        f"{totals['only_in_table']:,} only in the table; without an id: {totals['without_id_in_topics']:,} in the "
        f"topics, {totals['without_id_in_table']:,} in the table"
    )


def _picture(timeline: dict[str, Any]) -> str:
    moments = [one for one in timeline["moments"] if one["start_s"] is not None]
    nowhere = sum(one["missing"] for one in timeline["moments"] if one["start_s"] is None)
    note = f'<p class="note">{nowhere:,} missing of which nothing tells the time.</p>' if nowhere else ""
    if not moments:
        return f'<p class="note">No record has a timestamp.</p>{note}'
    width_s, first = timeline["width_s"], moments[0]["start_s"]
    columns = (moments[-1]["start_s"] - first) // width_s + 1
    most = max(one["found"] + one["missing"] for one in moments)
    bars = [_bar(one, (one["start_s"] - first) // width_s, columns, most, width_s) for one in moments]
    end = first + columns * width_s
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 24}" role="img" aria-label="found and missing records over time">\n'
        + "\n".join(bars)
        + f'\n<text x="0" y="{_HEIGHT + 18}">{_time(first)}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 18}" text-anchor="end">{_time(end)} UTC</text>\n</svg>\n'
        f'<p class="note">Each bar {_span(width_s)}, the highest {most:,} records; red: missing, counted where the '
        f"last record before them stands.</p>{note}"
    )


def _bar(one: dict[str, Any], column: int, columns: int, most: int, width_s: int) -> str:
    """Found above missing; of what is missing so much at least that it is seen."""
    step = _WIDTH / columns
    height = max((one["found"] + one["missing"]) / most * _HEIGHT, _LEAST if one["missing"] else 1)
    red = max(height * one["missing"] / (one["found"] + one["missing"]), _LEAST) if one["missing"] else 0
    share = one["found"] / (one["found"] + one["missing"])
    when = f"{_time(one['start_s'])} to {_time(one['start_s'] + width_s)}"
    told = f"{when}: {one['found']:,} found, {one['missing']:,} missing ({_percent(share)})"
    where = f'x="{column * step:.2f}" width="{max(step - 0.5, 0.5):.2f}"'
    pieces = [f'<rect class="found" {where} y="{_HEIGHT - height:.2f}" height="{max(height - red, 0):.2f}"/>']
    if one["missing"]:
        pieces.append(f'<rect class="missing" {where} y="{_HEIGHT - red:.2f}" height="{red:.2f}"/>')
    return f"<g><title>{told}</title>{''.join(pieces)}</g>"


def _percent(share: float) -> str:
    """Never 100 % where anything is missing."""
    return "100 %" if share == 1 else f"{min(share * 100, 99.9999):.4f} %"


def _time(second: int) -> str:
    try:
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a producer may stamp what it likes, microseconds for milliseconds
        return f"{second:,} s since 1970"


def _span(width_s: int) -> str:
    for unit, seconds in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if width_s % seconds == 0:
            return f"{width_s // seconds} {unit}" if width_s > seconds else f"1 {unit[:-1]}"
    return f"{width_s} s"


def _table(columns: list[str], rows: list[dict[str, Any]]) -> str:
    if not rows:
        return '<p class="note">None.</p>'
    head = "".join(f"<th>{_words(name)}</th>" for name in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in columns) + "</tr>" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "?" if value is None else escape(str(value))
