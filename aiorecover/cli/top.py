"""``aiorecover top``: what happens in a ``wal_dir``, look by look, seen from outside."""

from __future__ import annotations

import pathlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from aiorecover.cli.inspection import inspect, instances_at, size_of
from aiorecover.cli.records import NAMES, about, stored, text_of
from aiorecover.ring.lane import DEAD

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Watch", "screen"]

HISTORY: Final = 60  # looks that the sparkline shows
BARS: Final = "▁▂▃▄▅▆▇█"
OLD_S: Final = 10  # of a record that waits: then its partition may be in trouble
LANES: Final = 12
LETTERS: Final = 3  # the newest ones


class Watch:
    """Looks at a directory again and again, and tells what has changed."""

    def __init__(self, path: pathlib.Path) -> None:
        """Nothing is looked at yet."""
        self._path = path
        self._before: dict[str, tuple[float, int, int, int]] = {}  # when, epoch, newest sequence, waiting
        self._waiting: deque[int] = deque(maxlen=HISTORY)
        self._letters: tuple[int, list[str]] = (0, [])

    def look(self) -> dict[str, Any]:
        """Return what is there now, rates since the last look with it.

        Raises:
            WalFormatError: nothing of aiorecover is there.
            WalIOError: the path cannot be read.

        """
        found = inspect(self._path)
        rates = [self._rates(one) for one in found if one["error"] is None]
        self._waiting.append(sum(one.get("waiting", 0) for one in found))
        lanes = [lane | {"instance": one["path"]} for one in found for lane in one.get("lanes", ())]
        lanes = [lane for lane in lanes if lane["partition"] != NAMES[DEAD]]
        ages = [lane["oldest_age_seconds"] for lane in lanes]
        return {
            "at": time.time(),
            "waiting": self._waiting[-1],
            "accepted_per_second": sum(accepted for accepted, _ in rates),
            "delivered_per_second": sum(delivered for _, delivered in rates),
            "oldest_age_seconds": max((age for age in ages if age is not None), default=None),
            "history": list(self._waiting),
            "last_errors": self._last_errors(sum(one.get("dead_letters", 0) for one in found)),
            "instances": found,
            "lanes": sorted(lanes, key=lambda lane: -(lane["oldest_age_seconds"] or 0)),
        }

    def _rates(self, one: dict[str, Any]) -> tuple[float, float]:
        """Return the records accepted and delivered a second; their ids are counted by, so no owner has to say it."""
        now, epoch, waiting = time.monotonic(), one["epoch"] or 0, one["waiting"]
        then, old_epoch, old_newest, old_waiting = self._before.get(
            one["path"], (now, epoch, one["newest_sequence"], 0)
        )
        newest = max(one["newest_sequence"], old_newest if epoch == old_epoch else 0)  # a segment may be given back
        self._before[one["path"]] = (now, epoch, newest, waiting)
        if now == then or epoch != old_epoch:
            return 0.0, 0.0
        accepted = newest - old_newest
        return accepted / (now - then), max(0.0, (accepted - waiting + old_waiting) / (now - then))

    def _last_errors(self, count: int) -> list[str]:
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
        f"accepted {seen['accepted_per_second']:,.0f}/s",
        f"delivered {seen['delivered_per_second']:,.0f}/s",
        Text("nothing waits" if age is None else f"oldest {age:,} s", style="yellow" if (age or 0) > OLD_S else ""),
    )
    where = Text(f"{path}  {time.strftime('%H:%M:%S', time.localtime(seen['at']))}", style="dim")
    parts: list[RenderableType] = [where, totals, Text(_sparkline(seen["history"])), Text(), _instances(seen)]
    room = max(3, height - len(seen["instances"]) - len(seen["last_errors"]) - 9)
    if seen["lanes"]:
        parts += [Text(), _lanes(seen["lanes"], min(LANES, room))]
    parts += [Text(text_of(line.encode()), style="red", no_wrap=True) for line in seen["last_errors"]]
    return Group(*parts)


def _sparkline(history: list[int]) -> str:
    most = max(history)
    return "".join(BARS[count * (len(BARS) - 1) // most] if most else BARS[0] for count in history)


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(titles[0], overflow="fold")
    for title in titles[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _instances(seen: dict[str, Any]) -> Table:
    table = _table("directory", "owner", "waiting", "dead letters", "on disk", "trouble")
    for one in seen["instances"]:
        owner = f"pid {one['pid']}" if one["locked"] else "none"
        name = pathlib.Path(one["path"]).name
        if one["error"] is not None:
            table.add_row(name, owner, "", "", "", Text("unreadable", style="red"))
            continue
        trouble = Text(f"{one['unreadable']} damaged", style="red") if one["unreadable"] else Text("")
        counts = (f"{one['waiting']:,}", f"{one['dead_letters']:,}", size_of(one["bytes_allocated"]))
        table.add_row(name, owner, *counts, trouble)
    return table


def _lanes(lanes: list[dict[str, Any]], most: int) -> Table:
    table = _table("topic", "partition", "records", "size", "oldest")
    for lane in lanes[:most]:
        old = lane["oldest_age_seconds"] or 0
        age = Text(f"{old:,} s", style="yellow" if old > OLD_S else "")
        counts = (f"{lane['records']:,}", size_of(lane["bytes"]))
        table.add_row(text_of(lane["topic"].encode()), str(lane["partition"]), *counts, age)
    if len(lanes) > most:
        table.add_row(Text(f"and {len(lanes) - most:,} more", style="dim"), "", "", "", "")
    return table
