"""Print what an audit found: the worst epochs and ranges, and the totals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from aiorecover.cli.auditing.sentences import (
    WRONG,
    conflicts,
    fewer_without_id,
    held_up,
    lost,
    not_known,
    not_landed,
    sequences,
    without_id,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["count_of", "show"]

_COUNTS = {
    "expected": "expected",
    "found": "found",
    "missing": "missing",
    "repeated": "repeated",
    "out_of_order": "disorder",
}


def show(console: Console, found: dict[str, Any]) -> None:
    """Print the epochs as a table of at most 80 columns, the missing ranges as lines, and the totals."""
    totals, epochs = found["totals"], found["epochs"]
    if epochs:
        console.print(_table(epochs))
    if "manifests" in found:
        _show_judged(console, found["manifests"])
    else:
        _print_ranges(console, "missing", found["missing"], "red")
    _print_ranges(console, "repeated", found["repeated"])
    _print_ranges(console, "out of order", found["out_of_order"])
    _print_ranges(console, "conflict", found["conflicts"], "red")
    if _more_of_what_is_printed(found):
        console.print("there is more; these are the worst (--limit shows more)", markup=False, soft_wrap=True)
    disorder = "order unknown" if totals["out_of_order"] is None else f"{totals['out_of_order']:,} out of order"
    verdict = (
        f"{totals['records']:,} records, {totals['without_id']:,} without an id: {totals['found']:,} of "
        f"{totals['expected']:,} found, {totals['missing']:,} missing, {totals['repeated']:,} repeated, {disorder}"
    )
    missing = totals["missing"] - totals["behind_open_transaction"]
    wrong = lost(found["manifests"]["totals"]) if "manifests" in found else missing
    console.print(verdict, style="red" if wrong else "green", markup=False, soft_wrap=True)
    if said := without_id(totals):
        console.print(said, markup=False, soft_wrap=True)
    if "manifests" in found:
        _show_verdicts(console, found["manifests"])
    if said := conflicts(totals):
        console.print(said, style="red", markup=False, soft_wrap=True)
    for said in (*held_up(totals), *not_known(totals)):
        console.print(said, style="yellow", markup=False, soft_wrap=True)
    if "compared" in found:
        _show_compared(console, found["compared"])


def _more_of_what_is_printed(found: dict[str, Any]) -> bool:
    """Where producers have told, what they say of the missing ranges is printed, and not these."""
    unprinted = {"missing"} if "manifests" in found else set[str]()
    return bool(set(found["more"]) - unprinted)


def count_of(one: dict[str, Any]) -> int:
    """Records of a range; of what is repeated, the repeats."""
    count: int = one.get("repeated", one["count"])
    return count


def _show_judged(console: Console, judged: dict[str, Any]) -> None:
    for one in judged["ranges"]:
        said = " ".join(filter(None, [one["verdict"].replace("_", " "), one["why"], "tail" if one["tail"] else ""]))
        line = f"{said}: {one['producer_id']}/{one['epoch']} sequences={one['first']}-{one['last']} {one['count']:,}"
        style = "red" if one["verdict"] in WRONG else None
        console.print(line, style=style, markup=False, soft_wrap=True)


def _show_verdicts(console: Console, judged: dict[str, Any]) -> None:
    said = ", ".join(f"{count:,} {verdict.replace('_', ' ')}" for verdict, count in judged["totals"].items())
    unreadable = f"; {judged['unreadable']:,} records are no manifests" if judged["unreadable"] else ""
    style = "red" if lost(judged["totals"]) else "green"
    console.print(f"of the missing: {said}{unreadable}", style=style, markup=False, soft_wrap=True)
    if hint := not_landed(judged["totals"]):
        console.print(hint, markup=False, soft_wrap=True)


def _show_compared(console: Console, compared: dict[str, Any]) -> None:
    totals = compared["totals"]
    _print_ranges(console, "absent from the table", compared["absent"], "red")
    verdict = (
        f"table: {totals['absent']:,} of {totals['in_topics']:,} records absent, {totals['only_in_table']:,} only in "
        f"the table, without an id {totals['without_id_in_topics']:,} in the topics and "
        f"{totals['without_id_in_table']:,} in the table"
    )
    console.print(verdict, style="red" if totals["absent"] else "green", markup=False, soft_wrap=True)
    if hint := fewer_without_id(totals):
        console.print(hint, style="yellow", markup=False, soft_wrap=True)


def _print_ranges(console: Console, what: str, ranges: list[dict[str, Any]], style: str | None = None) -> None:
    for one in ranges:
        line = f"{what}: {one['producer_id']}/{one['epoch']} sequences={one['first']}-{one['last']} {count_of(one):,}"
        console.print(line, style=style, markup=False, soft_wrap=True)


def _table(epochs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    # Two lines, as one of 80 columns has no room beside the counts; what is longer still is folded, and never cut.
    table.add_column("producer/epoch\nsequences", overflow="fold")
    for title in _COUNTS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for one in epochs:
        counts = ("?" if one[name] is None else f"{one[name]:,}" for name in _COUNTS)
        named = f"{one['producer_id']}/{one['epoch']}\n{sequences(one)}"
        table.add_row(named, *counts, style="red" if one["missing"] else None)
    return table
