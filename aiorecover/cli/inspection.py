"""What ``aiorecover inspect`` shows: the instances of a ``wal_dir``, what waits in their lanes, and records.

Nothing is locked and nothing is changed, so it may look at a directory whose owner works.
"""

from __future__ import annotations

import base64
import os
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.filesize import pick_unit_and_suffix
from rich.table import Table

from aiorecover.errors import WalError, WalFormatError
from aiorecover.record_id import RECORD_ID_HEADER
from aiorecover.ring.directory import OURS, RING, instances
from aiorecover.ring.inspect import look, waiting
from aiorecover.ring.lane import DEAD, UNASSIGNED

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from rich.console import Console

    from aiorecover.ring.directory import Instance
    from aiorecover.ring.inspect import DirectoryView, LaneView, StoredRecord

__all__ = ["as_json", "inspect", "show", "unreadable"]

BLOCK = 512  # bytes that st_blocks counts
BYTES_SHOWN = 200  # of a key, a value or a header: a line of a terminal or two
NAMES = {UNASSIGNED: "unassigned", DEAD: "dead letters"}
UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"]
_NO_UTF8 = 0xDC00  # where "surrogateescape" puts a byte that is not UTF-8


def inspect(path: pathlib.Path, count: int) -> list[dict[str, Any]]:
    """Return everything about the instances in ``path``, or about the one that it is.

    ``count``: so many waiting records of each, and as many dead letters. Keys, values and headers are bytes here; see
    `as_json`. An error of one instance stands in its ``error``.

    Raises:
        WalFormatError: nothing of aiorecover is there.
        WalIOError: the path cannot be read.

    """
    path = path.absolute()
    if not path.is_dir():
        what = "this is a file" if path.exists() else "there is no such directory"
        raise WalFormatError(f"{what}: name a wal_dir or an instance in it path={path}")
    found = instances(path)
    if not found and any((path / name).is_file() for name in OURS):
        found = [one for one in instances(path.parent) if one.path == path]
    if not found:
        message = "nothing of aiorecover is here that this user may read: name a wal_dir or an instance in it"
        raise WalFormatError(f"{message} path={path}")
    return [_about(one, count) for one in found]


def _about(instance: Instance, count: int) -> dict[str, Any]:
    about: dict[str, Any] = {"path": str(instance.path), "locked": instance.locked, "pid": instance.pid, "error": None}
    try:
        view = look(instance.path)
        about |= _contents(view)
        about["records"] = [
            _record(one) for dead in (False, True) for one in islice(waiting(instance.path, dead=dead), count)
        ]
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
        "waiting": view.records,
        "dead_letters": sum(lane.records for lane in lanes if lane.partition == DEAD),
        "unreadable": view.unreadable,
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


def _record(stored: StoredRecord) -> dict[str, Any]:
    record, note = stored.record, stored.note
    about = {
        "id": stored.record_id,
        "topic": stored.topic,
        "partition": NAMES.get(stored.partition, stored.partition),
        "timestamp_ms": stored.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": [{"name": name, "value": value} for name, value in record.headers if name != RECORD_ID_HEADER],
        "source": note and note.source,
    }
    if stored.partition == DEAD and note is not None:
        where = -1 if note.partition is None else note.partition
        about |= {"topic": note.topic, "partition": NAMES.get(where, where), "dead_letter": note.error}
    return about


def as_json(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what `inspect` found, with keys, values and headers as text, or where they are none as ``…_base64``."""
    return [one | {"records": [_without_bytes(record) for record in one.get("records", ())]} for one in found]


def _without_bytes(about: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in about.items():
        if isinstance(value, bytes):
            try:
                plain[name] = value.decode()
            except UnicodeDecodeError:
                plain[f"{name}_base64"] = base64.b64encode(value).decode()
        else:
            plain[name] = [_without_bytes(header) for header in value] if name == "headers" else value
    return plain


def unreadable(found: list[dict[str, Any]]) -> bool:
    """Whether anything is damaged or cannot be read."""
    return any(one["error"] or one["unreadable"] for one in found)


def show(console: Console, found: list[dict[str, Any]]) -> None:
    """Print of each instance its owner, its lanes as a table, what is wrong, and the records."""
    for number, one in enumerate(found):
        owner = f"in use by pid {one['pid']}" if one["locked"] else "not in use"
        _print(console, f"{one['path']}: {owner}" if not number else f"\n{one['path']}: {owner}", style="bold")
        if one["error"]:
            _print(console, one["error"], style="red")
            continue
        for line in _summary(one):
            _print(console, line)
        if one["lanes"]:
            console.print(_table(one["lanes"]))
        if one["unreadable"]:
            message = "batches or heads of segments are damaged: the next start names their records and delivers the"
            _print(console, f"{message} others unreadable={one['unreadable']}", style="red")
        for record in one["records"]:
            for line in _lines(record):
                _print(console, line)


def _print(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, markup=False, soft_wrap=True, style=style)


def _summary(one: dict[str, Any]) -> Iterator[str]:
    if one["destination"] is not None:
        name, cluster_id, guarantee = one["destination"].values()
        yield f"producer {one['producer_id']}, epoch {one['epoch']}, {guarantee}"
        named = f", name {_text(name.encode())}" if name else ""
        yield f"to {f'kafka cluster {_text(cluster_id.encode())}' if cluster_id else 'no cluster reached yet'}{named}"
    letters = f", {one['dead_letters']:,} dead letters" if one["dead_letters"] else ""
    yield f"{one['waiting']:,} records wait{letters}, {_size(one['bytes_allocated'])} on disk"


def _table(lanes: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    table.add_column("topic", overflow="fold")
    for title in ("partition", "batches", "records", "size", "oldest"):
        table.add_column(title, justify="right", no_wrap=True)
    for lane in lanes:
        counts = (f"{lane[name]:,}" for name in ("batches", "records"))
        age = f"{lane['oldest_age_seconds']:,} s"
        table.add_row(_text(lane["topic"].encode()), str(lane["partition"]), *counts, _size(lane["bytes"]), age)
    return table


def _size(count: int) -> str:
    unit, suffix = pick_unit_and_suffix(count, UNITS, 1024)
    return f"{count} {suffix}" if unit == 1 else f"{count / unit:.1f} {suffix}"


def _lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield what a record is, and below it what may be long."""
    fields = [f"{name}={record[name]}" for name in ("topic", "partition", "timestamp_ms")]
    yield " ".join([record["id"], *fields, f"key={_text(record['key'])}"])
    yield f"    value={_text(record['value'])}"
    yield from (f"    {one['name']}={_text(one['value'])}" for one in record["headers"])
    if "dead_letter" in record:
        yield f"    dead letter: {record['dead_letter']}"


def _text(data: bytes | None) -> str:
    """Return readable text with nothing in it that a terminal would obey: that, and what is not UTF-8, as escapes."""
    if data is None:
        return "None"
    text = data[:BYTES_SHOWN].decode("utf-8", "surrogateescape")
    return "".join(map(_shown, text)) + ("…" if len(data) > BYTES_SHOWN else "")


def _shown(char: str) -> str:
    code = ord(char)
    if _NO_UTF8 <= code < _NO_UTF8 + 256:
        return f"\\x{code - _NO_UTF8:02x}"
    return char if char.isprintable() and char != "\\" else char.encode("unicode_escape").decode()
