"""The output of the demonstration: a line for each event, the figures each second, and the verdict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorecover.cli.demo.verdict import Outcome
    from aiorecover.cli.endings import Output

__all__ = ["View", "show_verdict"]

FIGURES_S = 1.0

_REPEATED = (
    "Repeated: what was on its way at an outage or a kill is sent again as the very same batch. Kafka recognises it "
    "and appends it once; the embedded broker, a mock, does not. With --bootstrap-servers and a Kafka of yours it must "
    "be 0."
)


class View:
    """Lines with their time since the beginning."""

    def __init__(self, console: Output) -> None:
        self._console = console
        self._began = self._next_figures = time.monotonic()

    def event(self, text: str, style: str | None = None) -> None:
        """Print something that happened just now."""
        line = f"{time.monotonic() - self._began:5.1f} s  {text}"
        self._console.say(line, style)

    def tick(self, accepted: int, waiting: Callable[[], int]) -> None:
        """Print the figures where a second has passed since the last ones."""
        now = time.monotonic()
        if now >= self._next_figures:
            self._next_figures = now + FIGURES_S
            self.event(f"    accepted {accepted:,}, in the ring {waiting():,}", "dim")


def show_verdict(console: Output, outcome: Outcome) -> None:
    """Print the counts as a table, then what they mean in plain sentences."""
    verdict = outcome.verdict
    title = "counted in Kafka by record id"
    table = Table(title=f"{title}, committed ones" if outcome.exactly_once else title, title_justify="left")
    table.add_column("what")
    table.add_column("records", justify="right")
    table.add_column("meaning")
    _row(table, "accepted", verdict.accepted, "publish returned, the publisher said so")
    _row(table, "delivered", verdict.delivered, "accepted and found in Kafka")
    _row(table, "missing", verdict.missing, "accepted and not in Kafka", bad=True)
    _row(table, "out of order", verdict.out_of_order, "first seen after a later one of its key", bad=True)
    _row(table, "repeated", verdict.repeated, "appended more than once", bad=verdict.recognises_repeats)
    _row(table, "accepted without word", verdict.without_word, "in Kafka; killed before it could say so")
    _row(table, "recovered", outcome.recovered, "left undelivered by a killed publisher")
    console.print(table)
    *more, last = _sentences(outcome)
    for line in more:
        console.say(line)
    console.say(last, "bold green" if verdict.good else "bold red")


def _row(table: Table, name: str, count: int, meaning: str, *, bad: bool = False) -> None:
    table.add_row(name, f"{count:,}", meaning, style="bold red" if bad and count else None)


def _sentences(outcome: Outcome) -> list[str]:
    verdict = outcome.verdict
    lines = list(verdict.examples)
    if verdict.repeated and not verdict.recognises_repeats:
        lines.append(_REPEATED)
    if verdict.good:
        there = "is committed in Kafka, once and in order" if outcome.exactly_once else "is in Kafka, in order"
        lines.append(f"Every accepted record {there}. ({outcome.seconds:.0f} s)")
    else:
        lines.append(f"FAILED; the write-ahead log and the publisher's log are kept: {outcome.kept}")
    return lines
