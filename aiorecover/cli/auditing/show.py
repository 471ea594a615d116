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
    from aiorecover.cli.endings import Output

__all__ = ["count_of", "show"]

_COUNTS = {
    "expected": "expected",
    "found": "found",
    "missing": "missing",
    "repeated": "repeated",
    "out_of_order": "disorder",
}


def show(console: Output, found: dict[str, Any]) -> None:
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
        console.say("there is more; these are the worst (--limit shows more)")
    disorder = "order unknown" if totals["out_of_order"] is None else f"{totals['out_of_order']:,} out of order"
    verdict = (
        f"{totals['records']:,} records, {totals['without_id']:,} without an id: {totals['found']:,} of "
        f"{totals['expected']:,} found, {totals['missing']:,} missing, {totals['repeated']:,} repeated, {disorder}"
    )
    missing = totals["missing"] - totals["behind_open_transaction"]
    wrong = lost(found["manifests"]["totals"]) if "manifests" in found else missing
    console.say(verdict, "red" if wrong else "green")
    if said := without_id(totals):
        console.say(said)
    if "manifests" in found:
        _show_verdicts(console, found["manifests"])
    if said := conflicts(totals):
        console.say(said, "red")
    for said in (*held_up(totals), *not_known(totals)):
        console.say(said, "yellow")
    if "compared" in found:
        _show_compared(console, found["compared"])


def _more_of_what_is_printed(found: dict[str, Any]) -> bool:
    """Whether the limit has cut a list that is printed: with manifests, verdicts are, and not the missing ranges."""
    unprinted = {"missing"} if "manifests" in found else set[str]()
    return bool(set(found["more"]) - unprinted)


def count_of(one: dict[str, Any]) -> int:
    """Records of a range; of what is repeated, the repeats."""
    count: int = one.get("repeated", one["count"])
    return count


def _show_judged(console: Output, judged: dict[str, Any]) -> None:
    for one in judged["ranges"]:
        said = " ".join(filter(None, [one["verdict"].replace("_", " "), one["why"], "tail" if one["tail"] else ""]))
        line = f"{said}: {one['producer_id']}/{one['epoch']} sequences={one['first']}-{one['last']} {one['count']:,}"
        style = "red" if one["verdict"] in WRONG else None
        console.say(line, style)


def _show_verdicts(console: Output, judged: dict[str, Any]) -> None:
    said = ", ".join(f"{count:,} {verdict.replace('_', ' ')}" for verdict, count in judged["totals"].items())
    unreadable = f"; {judged['unreadable']:,} records are no manifests" if judged["unreadable"] else ""
    style = "red" if lost(judged["totals"]) else "green"
    console.say(f"of the missing: {said}{unreadable}", style)
    if hint := not_landed(judged["totals"]):
        console.say(hint)


def _show_compared(console: Output, compared: dict[str, Any]) -> None:
    totals = compared["totals"]
    _print_ranges(console, "absent from the table", compared["absent"], "red")
    verdict = (
        f"table: {totals['absent']:,} of {totals['in_topics']:,} records absent, {totals['only_in_table']:,} only in "
        f"the table, without an id {totals['without_id_in_topics']:,} in the topics and "
        f"{totals['without_id_in_table']:,} in the table"
    )
    console.say(verdict, "red" if totals["absent"] else "green")
    if hint := fewer_without_id(totals):
        console.say(hint, "yellow")


def _print_ranges(console: Output, what: str, ranges: list[dict[str, Any]], style: str | None = None) -> None:
    for one in ranges:
        line = f"{what}: {one['producer_id']}/{one['epoch']} sequences={one['first']}-{one['last']} {count_of(one):,}"
        console.say(line, style)


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
