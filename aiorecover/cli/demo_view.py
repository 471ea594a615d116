"""What the demonstration shows: a live table on a terminal, plain lines elsewhere, and the verdict."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from aiorecover.cli.demo import Outcome

__all__ = ["Progress", "View", "choose_view", "show_verdict"]

_REFRESH_PER_SECOND = 10
_PLAIN_SECONDS = 1.0
_EVENTS_SHOWN = 16

_REPEATED = (
    "Repeated: what was on its way at an outage or a kill is sent again as the very same batch. Kafka recognises it "
    "and appends it once; the embedded broker, a mock, does not. With --bootstrap-servers and a Kafka of yours it must "
    "be 0."
)


@dataclass(slots=True)
class Progress:
    """The figures of the moment; ``broker_up`` is None for a broker that is not ours to switch."""

    accepted: int = 0
    delivered: int = 0
    pending: int = 0
    broker_up: bool | None = True
    child_pid: int | None = None


class View(Protocol):
    """Where the demonstration tells what happens."""

    progress: Progress

    def event(self, text: str) -> None:
        """Tell something that happened just now."""

    def tick(self) -> None:
        """Show the figures again; called some times a second."""


@contextlib.contextmanager
def choose_view(console: Console, records: int) -> Iterator[View]:
    """Give a live view on a terminal, a plain one in a pipe or a log."""
    if not console.is_terminal:
        yield _PlainView(console, records)
        return
    view = _LiveView(records)
    with Live(get_renderable=view.render, console=console, refresh_per_second=_REFRESH_PER_SECOND, transient=False):
        yield view


class _PlainView:
    def __init__(self, console: Console, records: int) -> None:
        self.progress = Progress()
        self._console = console
        self._records = records
        self._began = time.monotonic()
        self._next_line = self._began

    def event(self, text: str) -> None:
        self._line(text)

    def tick(self) -> None:
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _PLAIN_SECONDS
            figures = (f"{name} {value}" for name, value in _figures(self.progress, self._records))
            self._line("    " + ", ".join(figures))

    def _line(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        self._console.print(f"{seconds:5.1f} s  {text}", markup=False, soft_wrap=True)


class _LiveView:
    def __init__(self, records: int) -> None:
        self.progress = Progress()
        self._records = records
        self._began = time.monotonic()
        self._events: list[Text] = []

    def event(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        self._events.append(Text.assemble((f"{seconds:5.1f} s  ", "dim"), text))

    def tick(self) -> None:
        """Do nothing: a thread of rich's draws the view."""

    def render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, value in _figures(self.progress, self._records):
            style = "bold red" if value in {"DOWN", "killed"} else "bold"
            table.add_row(Text(name, style="cyan"), Text(value, style=style))
        return Group(table, Text(), *self._events[-_EVENTS_SHOWN:])


def _figures(progress: Progress, records: int) -> list[tuple[str, str]]:
    broker = {None: "not ours", True: "up", False: "DOWN"}[progress.broker_up]
    child = "killed" if progress.child_pid is None else f"pid {progress.child_pid}"
    return [
        ("accepted", f"{progress.accepted:,} of {records:,}"),
        ("delivered", f"{progress.delivered:,}"),
        ("in the ring", f"{progress.pending:,}"),
        ("broker", broker),
        ("publisher", child),
    ]


def show_verdict(console: Console, outcome: Outcome) -> None:
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
    _row(table, "out of order", verdict.out_of_order, "first seen behind a later one of its key", bad=True)
    _row(table, "altered", verdict.altered, "not what was published under this id", bad=True)
    _row(table, "repeated", verdict.repeated, "appended more than once", bad=verdict.recognises_repeats)
    _row(table, "accepted without word", verdict.without_word, "in Kafka; killed before it could say so")
    _row(table, "recovered", outcome.recovered, "left undelivered by a killed publisher")
    console.print(table)
    for line in _sentences(outcome):
        console.print(line, markup=False, soft_wrap=True)


def _row(table: Table, name: str, count: int, meaning: str, *, bad: bool = False) -> None:
    table.add_row(name, f"{count:,}", meaning, style="bold red" if bad and count else None)


def _sentences(outcome: Outcome) -> list[str]:
    verdict = outcome.verdict
    lines = [f"{example}" for example in verdict.examples]
    if verdict.cut_off:
        lines.append(f"{verdict.cut_off} partitions had records deleted by the broker: this proves nothing.")
    if verdict.repeated and not verdict.recognises_repeats:
        lines.append(_REPEATED)
    if verdict.good:
        there = "is committed in Kafka, once and in order" if outcome.exactly_once else "is in Kafka, in order"
        lines.append(f"Every accepted record {there}. ({outcome.seconds:.0f} s)")
    else:
        lines.append(f"FAILED; the write-ahead log and the publisher's log are kept: {outcome.kept}")
    return lines
