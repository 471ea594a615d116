"""``aiorecover top``: what happens in a ``wal_dir``, look by look, seen from outside."""

from __future__ import annotations

import pathlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from aiorecover.cli.inspection import Name, inspect, instances_at, size_of, troubles
from aiorecover.cli.records import NAMES, about, stored, text_of
from aiorecover.ring.lane import DEAD

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Watch", "screen"]

Rates = tuple[float, float] | None

HISTORY: Final = 60  # looks that the sparkline shows
BARS: Final = "▁▂▃▄▅▆▇█"
OLD_S: Final = 10  # of a record that waits: then its partition may be in trouble
LANES: Final = 12
QUIET_S: Final = 2.5  # after which an owner that notes nothing does nothing
TROUBLES: Final = 3  # of each owner, the worst ones
LETTERS: Final = 3  # the newest ones


class Watch:
    """Looks at a directory again and again, and tells what has changed."""

    def __init__(self, path: pathlib.Path) -> None:
        """Nothing is looked at yet."""
        self._path = path
        self._noted: dict[tuple[str, int | None], tuple[dict[str, Any], Rates]] = {}  # by each owner, the newest
        self._waiting: deque[int] = deque(maxlen=HISTORY)
        self._letters: tuple[int, list[str]] = (0, [])

    def look(self) -> dict[str, Any]:
        """Return what is there now, rates since the last look with it.

        Raises:
            ConfigError: nothing of aiorecover is there.
            WalIOError: the path cannot be read.

        """
        found = inspect(self._path)
        rates = [rates for one in found if (rates := self._rates(one)) is not None]
        self._waiting.append(sum(one.get("waiting", 0) for one in found))
        lanes = [lane | {"instance": one["path"]} for one in found for lane in one.get("lanes", ())]
        lanes = [lane for lane in lanes if lane["partition"] != NAMES[DEAD]]
        ages = [lane["oldest_age_seconds"] for lane in lanes]
        return {
            "at": time.time(),
            "waiting": self._waiting[-1],
            "accepted_per_second": sum(accepted for accepted, _ in rates) if rates else None,
            "delivered_per_second": sum(delivered for _, delivered in rates) if rates else None,
            "oldest_age_seconds": max((age for age in ages if age is not None), default=None),
            "history": list(self._waiting),
            "newest_dead_letters": self._newest_letters(sum(one.get("dead_letters", 0) for one in found)),
            "instances": found,
            "lanes": sorted(lanes, key=lambda lane: -(lane["oldest_age_seconds"] or 0)),
        }

    def _rates(self, one: dict[str, Any]) -> Rates:
        """Return the records accepted and delivered a second, between its owner's last two notes; None: not known yet.

        Without an owner nothing is accepted or delivered.
        """
        noted: dict[str, Any] | None = one["noted"]
        key = one["path"], one["pid"]
        if noted is None:
            return None if one["locked"] else (0.0, 0.0)
        before, rates = self._noted.get(key, (noted, None))
        if (passed := noted["at"] - before["at"]) > 0:
            accepted, delivered = (noted[what] - before[what] for what in ("accepted", "delivered"))
            rates = accepted / passed, delivered / passed
        elif time.time() - noted["at"] > QUIET_S:
            rates = (0.0, 0.0)
        self._noted[key] = noted, rates
        return rates

    def _newest_letters(self, count: int) -> list[str]:
        if count != self._letters[0]:
            paths = [one.path for one in instances_at(self._path)]
            newest = deque((record for _, record in stored(paths, dead=True)), LETTERS)
            described = [about(record) for record in newest]
            self._letters = (count, [f"{one['id']} {one['topic']}: {one.get('dead_letter')}" for one in described])
        return self._letters[1]


def screen(seen: dict[str, Any], path: pathlib.Path, height: int) -> RenderableType:
    """Return a look as what a terminal of so many lines shows."""
    totals = Table.grid(padding=(0, 3, 0, 0))
    age = seen["oldest_age_seconds"]
    totals.add_row(
        Text(f"{seen['waiting']:,} wait", style="bold"),
        *(f"{what} {_rate(seen[f'{what}_per_second'])}" for what in ("accepted", "delivered")),
        Text("nothing waits" if age is None else f"oldest {age:,} s", style="yellow" if (age or 0) > OLD_S else ""),
    )
    where = Text(f"{path}  {time.strftime('%H:%M:%S', time.localtime(seen['at']))}", style="dim")
    parts: list[RenderableType] = [where, totals, Text(_sparkline(seen["history"])), Text(), _instances(seen)]
    below = [*_troubles(seen["instances"]), *_letters(seen["newest_dead_letters"])]
    if seen["lanes"]:
        room = max(3, height - len(seen["instances"]) - len(below) - 9)
        parts += [Text(), _lanes(seen["lanes"], min(LANES, room), several=len(seen["instances"]) > 1)]
    return Group(*parts, *below)


def _rate(a_second: float | None) -> str:
    return "…" if a_second is None else f"{a_second:,.0f}/s"


def _troubles(instances: list[dict[str, Any]]) -> list[Text]:
    """Return what holds records up, as their owners say it."""
    lines = [(pathlib.Path(one["path"]).name, trouble) for one in instances for trouble in troubles(one)[:TROUBLES]]
    heading = [Text("what holds records up", style="dim")] if lines else []
    return heading + [
        Text(text_of(f"{name}: {line}".encode(), len(line) * 4), style="yellow", overflow="fold")
        for name, line in lines
    ]


def _letters(newest: list[str]) -> list[Text]:
    heading = [Text("newest dead letters", style="dim")] if newest else []
    return heading + [Text(text_of(line.encode()), style="red", no_wrap=True) for line in newest]


def _sparkline(history: list[int]) -> str:
    most = max(history)
    return "".join(BARS[count * (len(BARS) - 1) // most] if most else BARS[0] for count in history)


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        names = title in {"topic", "directory"}
        table.add_column(title, justify="left" if names else "right", no_wrap=not names)
    return table


def _instances(seen: dict[str, Any]) -> Table:
    table = _table("directory", "owner", "waiting", "dead letters", "on disk", "trouble")
    for one in seen["instances"]:
        owner = f"pid {one['pid']}" if one["locked"] else "none"
        name = Name(pathlib.Path(one["path"]).name)
        if one["error"] is not None:
            table.add_row(name, owner, "", "", "", Text("unreadable", style="red"))
            continue
        trouble = Text(f"{one['unreadable']} damaged", style="red") if one["unreadable"] else Text("")
        counts = (f"{one['waiting']:,}", f"{one['dead_letters']:,}", size_of(one["bytes_allocated"]))
        table.add_row(name, owner, *counts, trouble)
    return table


def _lanes(lanes: list[dict[str, Any]], most: int, *, several: bool) -> Table:
    table = _table("topic", "partition", "records", "size", "oldest", *(["directory"] if several else []))
    for lane in lanes[:most]:
        old = lane["oldest_age_seconds"] or 0
        age = Text(f"{old:,} s", style="yellow" if old > OLD_S else "")
        where = [Name(pathlib.Path(lane["instance"]).name)] if several else []
        counts = str(lane["partition"]), f"{lane['records']:,}", size_of(lane["bytes"])
        table.add_row(Name(lane["topic"]), *counts, age, *where)
    if len(lanes) > most:
        table.add_row(Text(f"and {len(lanes) - most:,} more", style="dim"))
    return table
