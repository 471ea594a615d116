"""Look at the instances of a ``wal_dir`` for ``aiorecover status`` and ``verify``: what waits, what is damaged.

Nothing is locked and nothing is changed, so it may look at a directory whose owner works.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
from rich.filesize import pick_unit_and_suffix
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from aiorecover.cli.records import NAMES, text_of
from aiorecover.errors import ConfigError, WalError
from aiorecover.ring.damage import kept_aside
from aiorecover.ring.directory import OURS, RING, instances
from aiorecover.ring.files import Files
from aiorecover.ring.inspect import check, look, read_checkpoint, unreadable_heads
from aiorecover.ring.lane import DEAD

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

    from aiorecover.cli.endings import Output
    from aiorecover.ring.directory import Instance
    from aiorecover.ring.inspect import DirectoryView, LaneView

__all__ = [
    "Name",
    "inspect",
    "instances_at",
    "is_whole",
    "show",
    "show_checked",
    "size_of",
    "troubles",
    "unreadable",
    "verified",
]

BLOCK = 512  # bytes that st_blocks counts
SHORTEST = 12  # of a name in a table, where there is no room for all of it
UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"]


def instances_at(path: pathlib.Path) -> list[Instance]:
    """Return the instances in ``path``, or the one that it is.

    Raises:
        ConfigError: nothing of aiorecover is there.
        WalIOError: the path cannot be read.

    """
    path = path.absolute()
    if not path.is_dir():
        what = "this is a file" if path.exists() else "there is no such directory"
        raise ConfigError(f"{what}: name a wal_dir or an instance in it path={path}")
    found = instances(path)
    if not found and any((path / name).is_file() for name in OURS):
        found = [one for one in instances(path.parent) if one.path == path]
    if not found:
        message = "nothing of aiorecover is here that this user may read: name a wal_dir or an instance in it"
        raise ConfigError(f"{message} path={path}")
    return found


def inspect(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return everything about the instances in ``path``; an error of one of them stands in its ``error``.

    Raises:
        ConfigError, WalIOError: as `instances_at`.

    """
    return [_about(one) for one in instances_at(path)]


def _about(instance: Instance) -> dict[str, Any]:
    path, locked, pid, noted = instance
    about: dict[str, Any] = {"path": str(path), "locked": locked, "pid": pid, "error": None}
    about["noted"] = msgspec.to_builtins(noted)
    try:
        about |= _contents(look(instance.path))
    except WalError as error:
        about["error"] = str(error)
    return about


def _contents(view: DirectoryView) -> dict[str, Any]:
    stored = view.checkpoint
    lanes = [lane for lane in view.lanes if lane.records]
    return {
        "producer_id": stored and stored.producer_id,
        "epoch": stored and stored.epoch,
        "destination": stored and {"name": stored.name, "cluster_id": stored.cluster_id, "guarantee": stored.guarantee},
        "newest_sequence": view.newest,
        "waiting": view.records,
        "dead_letters": sum(lane.records for lane in lanes if lane.partition == DEAD),
        "unreadable": view.unreadable,
        "kept_aside": view.kept_aside,
        "bytes_allocated": os.stat(view.path / RING).st_blocks * BLOCK,
        "lanes": [_lane(lane) for lane in lanes],
    }


def _lane(lane: LaneView) -> dict[str, Any]:
    age = None if lane.oldest_at is None else max(0, int(time.time()) - lane.oldest_at)
    return {
        "topic": lane.topic,
        "partition": NAMES.get(lane.partition, lane.partition),
        "batches": lane.batches,
        "records": lane.records,
        "bytes": lane.size,
        "oldest_age_seconds": age,
    }


def unreadable(found: list[dict[str, Any]]) -> bool:
    """Whether anything is damaged or cannot be read."""
    return any(one["error"] or one["unreadable"] or one["kept_aside"] for one in found)


def show(console: Output, found: list[dict[str, Any]]) -> None:
    """Print of each instance its owner, its lanes as a table, and what is wrong."""
    for number, one in enumerate(found):
        owner = f"in use by pid {one['pid']}" if one["locked"] else "not in use"
        console.say(f"{one['path']}: {owner}" if not number else f"\n{one['path']}: {owner}", style="bold")
        if one["error"]:
            console.say(one["error"], style="red")
            continue
        for line in _summary(one):
            console.say(line)
        for trouble in troubles(one):
            console.say(f"trouble: {text_of(trouble.encode(), len(trouble))}", style="yellow")
        if one["lanes"]:
            console.print(_table(one["lanes"]))
        if one["unreadable"]:
            message = "batches or heads of segments are damaged: the next start names what it can of them, and delivers"
            console.say(f"{message} the others unreadable={one['unreadable']}", style="red")
        if one["kept_aside"]:
            console.say(kept_aside_as(one["kept_aside"]), style="red")


def kept_aside_as(count: int) -> str:
    """Say how many damaged batches are kept, and where."""
    return f"damaged batches in damaged/, whose records the log has named: {count:,}"


def troubles(one: dict[str, Any]) -> list[str]:
    """Return what holds an instance's records up, as its owner says it."""
    return [] if one["noted"] is None else list(one["noted"]["troubles"])


def _summary(one: dict[str, Any]) -> Iterator[str]:
    if one["destination"] is not None:
        name, cluster_id, guarantee = one["destination"].values()
        yield f"producer {one['producer_id']}, epoch {one['epoch']}, {guarantee}"
        named = f", name {text_of(name.encode())}" if name else ""
        yield f"to {f'kafka cluster {text_of(cluster_id.encode())}' if cluster_id else 'no cluster reached yet'}{named}"
    letters = f", dead letters: {one['dead_letters']:,}" if one["dead_letters"] else ""
    yield f"waiting records: {one['waiting']:,}{letters}, on disk: {size_of(one['bytes_allocated'])}"


def _table(lanes: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    table.add_column("topic")
    for title in ("partition", "batches", "records", "size", "oldest"):
        table.add_column(title, justify="right", no_wrap=True)
    for lane in lanes:
        counts = (f"{lane[name]:,}" for name in ("batches", "records"))
        age = f"{lane['oldest_age_seconds']:,} s"
        table.add_row(Name(lane["topic"]), str(lane["partition"]), *counts, size_of(lane["bytes"]), age)
    return table


class Name:
    """The cell of a table that loses the middle of its name where the table is too wide, so that no other one does."""

    def __init__(self, name: str) -> None:
        self._text = text_of(name.encode())

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        """Return the width that is needed, and the one that is wanted."""
        wanted = min(len(self._text), options.max_width)
        return Measurement(min(wanted, SHORTEST), wanted)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Return as much of both ends as there is room for."""
        shown, room = self._text, options.max_width
        if len(shown) > room:
            half = room // 2
            shown = f"{shown[: room - half - 1]}…{shown[len(shown) - half :]}"
        yield Text(shown)


def size_of(count: int) -> str:
    """Return a number of bytes for people."""
    unit, suffix = pick_unit_and_suffix(count, UNITS, 1024)
    return f"{count} {suffix}" if unit == 1 else f"{count / unit:.1f} {suffix}"


def verified(path: pathlib.Path) -> dict[str, Any]:
    """Return how much waits in a directory, and what is damaged there; an error stands in ``error``."""
    found: dict[str, Any] = {"path": str(path), "error": None, "batches": 0, "records": 0, "bytes": 0, "damaged": []}
    try:
        stored = read_checkpoint(path)
        name = "?" if stored is None else stored.producer_id
        found["unreadable_segments"] = unreadable_heads(path)
        found["kept_aside"] = kept_aside(path, Files())
        for head, batch, whole in check(path):
            if whole:
                found["batches"] += 1
                found["records"] += batch.count
                found["bytes"] += batch.end - batch.at
            else:
                found["damaged"].append(
                    {
                        "topic": head.topic,
                        "partition": NAMES.get(head.partition, head.partition),
                        "first": f"{name}/{batch.head.epoch}/{batch.head.first}",
                        "last": f"{name}/{batch.head.epoch}/{batch.head.first + batch.head.span}",
                    }
                )
    except WalError as error:
        found["error"] = str(error)
    return found


def is_whole(found: dict[str, Any]) -> bool:
    """Whether nothing in the directory is damaged, and all of it could be read."""
    return not (found["error"] or found["damaged"] or found["unreadable_segments"] or found["kept_aside"])


def show_checked(console: Output, found: list[dict[str, Any]]) -> None:
    """Print a line for each directory, and one for each batch that is damaged."""
    for one in found:
        if one["error"]:
            console.say(f"{one['path']}: {one['error']}", style="red")
            continue
        whole = f"records={one['records']} batches={one['batches']}, {size_of(one['bytes'])}"
        console.say(f"{one['path']}: whole: {whole}")
        if one["unreadable_segments"]:
            message = "segments that cannot be read at all, 64 KiB or 1 MiB of records each"
            console.say(f"    damaged: {message}: {one['unreadable_segments']}", style="red")
        for batch in one["damaged"]:
            where = f"topic={batch['topic']} partition={batch['partition']}"
            console.say(f"    damaged: first={batch['first']} last={batch['last']} {where}", style="red")
        if one["kept_aside"]:
            console.say(f"    {kept_aside_as(one['kept_aside'])}", style="red")
