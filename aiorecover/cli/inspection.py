"""What ``aiorecover inspect`` shows: instances, slots and counts, and records if they are asked for.

A terminal of 80 columns holds every table, whatever the counts: a line that is not one is left to the terminal to wrap,
so that it can be copied and searched for.
"""

from __future__ import annotations

import base64
import errno
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from rich.filesize import pick_unit_and_suffix
from rich.table import Table

from aiorecover import record as records
from aiorecover.delivery import refusal
from aiorecover.errors import WalError, WalFormatError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import CHECKPOINT_LOST
from aiorecover.wal.instances import instances
from aiorecover.wal.losses import in_words, named
from aiorecover.wal.view import WALKS, open_view

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from aiorecover.wal.checkpoint import Destination
    from aiorecover.wal.instances import Instance
    from aiorecover.wal.losses import Damage
    from aiorecover.wal.view import FrameView, View

__all__ = ["as_json", "damaged", "inspect", "show"]

T = TypeVar("T")

RINGS = ("ring", "retry", "dead")
_ASCII = 128
_NO_UTF8 = 0xDC00  # where "surrogateescape" puts a byte that is not UTF-8
_BYTES_SHOWN = 200  # of a key, a value or a header: a line of a terminal or two
_COLUMNS = {
    "waiting": "waiting",
    "settled": "settled",
    "missing": "missing",
    "slots": "slots",
    "bytes_used": "used",
    "bytes_allocated": "on disk",
}
_UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"]


def inspect(path: pathlib.Path, count: int) -> list[dict[str, Any]]:
    """Everything about the instances below ``path``, or about the one that it is, with up to ``count`` records each.

    Keys, values and contents of headers are bytes here; see `as_json`.

    Raises:
        WalError: there is none, or the path cannot be read. What is wrong with one of several stands in its ``error``.

    """
    try:
        found = instances(path)
    except WalIOError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
            raise
        what = "this is a file" if error.errno == errno.ENOTDIR and path.exists() else "there is no such directory"
        raise WalFormatError(f"{what}: name a wal_dir or an instance in it path={path}") from None
    if not found:
        raise WalFormatError(f"nothing of aiorecover is here: name a wal_dir or an instance in it path={path}")
    return [_instance(one, count) for one in found]


def _instance(instance: Instance, count: int) -> dict[str, Any]:
    about: dict[str, Any] = {
        "path": str(instance.path),
        "state": instance.state,
        "pid": instance.pid,
        "error": None,
        "begun": False,
        "checkpoint_lost": False,
        "destination": None,
        "oldest_waiting": None,
        "rings": [],
        "records": [],
    }
    errors = [] if instance.error is None else [instance.error]
    oldest: list[FrameView] = []
    for name in RINGS:
        try:
            with open_view(instance.path, name) as view:
                if name == RINGS[0]:
                    errors = [*_next_start(view), *errors]
                oldest += _look(view, about, count)
        except WalError as error:
            errors.append(str(error))
    about["error"] = next(iter(errors), None)  # the others come of the same
    if oldest:
        about["oldest_waiting"] = _id_of(min(oldest, key=lambda frame: frame.position))
    return about


def _next_start(view: View) -> list[str]:
    """Why the next start would be refused, or what it would say of records that nothing names."""
    try:
        return view.doubts(RINGS)
    except WalError as error:
        return [str(error)]


def _look(view: View, about: dict[str, Any], count: int) -> list[FrameView]:
    """Add what one ring tells; the oldest record in it that is to be delivered, if any."""
    about["producer_id"] = about.get("producer_id") or view.producer_id
    if view.checkpoint is not None:
        about["destination"] = _destination(view.checkpoint.destination)
    ring, slots = _ring(view), view.slots()
    about["begun"] |= view.checkpoint is not None or bool(slots)
    waiting = _surely(view, lambda: list(islice(view.frames(), max(1, count))))
    about["checkpoint_lost"] |= view.checkpoint is None and any(slot.state == "live" for slot in slots)
    if view.ring == RINGS[0] or ring["missing"] or any(slot.state != "blank" for slot in slots):
        about["rings"].append(ring)
        about["records"] += [_record(view.ring, frame) for frame in waiting[:count]]
    return waiting[:1] if view.ring != RINGS[2] else []


def _surely(view: View, walk: Callable[[], T]) -> T:
    """What a walk finds; it is walked again where records may have been rewritten meanwhile."""
    for _ in range(WALKS):
        found = walk()
        if not view.unsure:
            break
    return found


def _ring(view: View) -> dict[str, Any]:
    summary = asdict(_surely(view, view.summary))
    return {"ring": view.ring, **summary, "damage": [_damage(view.ring, damage) for damage in view.missing]}


def _damage(ring: str, damage: Damage) -> dict[str, Any]:
    where = {"slot": damage.slot, "file_offset": damage.file_offset}
    if ring == RINGS[0]:
        return {"epoch": damage.epoch, "first": damage.first, "last": damage.last, **where}
    return {**named(ring, damage), **where}


def _id_of(frame: FrameView) -> str:
    return records.record_id(frame.producer_id, frame.epoch, frame.sequence)


def _record(ring: str, frame: FrameView) -> dict[str, Any]:
    about = {
        "ring": ring,
        "id": _id_of(frame),
        "slot": frame.slot,
        "file_offset": frame.file_offset,
    }
    try:
        payload: bytes = frame.payload
        if ring == RINGS[2]:
            letter = refusal.decode(payload)
            about |= {"error": str(letter.refusal), "attempts": letter.attempts, "refused_ms": letter.last_ms}
            payload = letter.record
        topic, key, value, partition, timestamp_ms, headers, _, source = records.decode(payload)
    except (ValueError, RecursionError) as error:
        return about | {"undecodable": str(error)}
    return about | {
        "topic": topic,
        "partition": partition if frame.partition is None else frame.partition,
        "key": key,
        "value": value,
        "timestamp_ms": timestamp_ms,
        "headers": [{"name": name, "value": content} for name, content in headers or ()],
        "source": source,
    }


def _text(data: bytes | None) -> str | None:
    """Readable, and nothing in it that a terminal would obey: that, what is not UTF-8, and backslashes, as escapes."""
    if data is None:
        return None
    text = data[:_BYTES_SHOWN].decode("utf-8", "surrogateescape")
    return "".join(map(_shown, text)) + ("…" if len(data) > _BYTES_SHOWN else "")


def _shown(char: str) -> str:
    code = ord(char)
    if _NO_UTF8 <= code < _NO_UTF8 + 256:
        return f"\\x{code - _NO_UTF8:02x}"
    if char.isprintable() and char != "\\":
        return char
    return char.encode("unicode_escape").decode() if code < _ASCII or code > 255 else f"\\u{code:04x}"  # noqa: PLR2004


def as_json(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `inspect` found, with whole keys, values and headers: as text, or where they are none as ``…_base64``."""
    return [one | {"records": [_without_bytes(record) for record in one["records"]]} for one in found]


def _without_bytes(about: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in about.items():
        if isinstance(value, bytes):
            try:
                plain[name] = value.decode()
            except UnicodeDecodeError:
                plain[f"{name}_base64"] = base64.b64encode(value).decode()
        elif name == "headers":
            plain[name] = [_without_bytes(header) for header in value]
        else:
            plain[name] = value
    return plain


def damaged(found: list[dict[str, Any]]) -> bool:
    """Whether anything is missing, damaged or unreadable."""
    rings = [ring for one in found for ring in one["rings"]]
    return any(one["error"] or one["checkpoint_lost"] for one in found) or any(_is_damaged(ring) for ring in rings)


def show(console: Console, found: list[dict[str, Any]]) -> None:
    """Print of each instance who has it, its rings as a table, what is wrong in plain sentences, and the records."""
    for number, one in enumerate(found):
        if number:
            console.print()
        _print(console, _heading(one), style="bold")
        for line in _about(one):
            _print(console, line)
        if one["rings"]:
            console.print(_table(one["rings"]))
        for line in _wrong(one):
            _print(console, line, style="red")
        for record in one["records"]:
            for line in _lines(record):
                _print(console, line)


def _print(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, markup=False, soft_wrap=True, style=style)


def _heading(one: dict[str, Any]) -> str:
    users = {"free": "not in use", "unknown": "the system does not say who uses it"}
    user = f"in use by pid {one['pid']}" if one["pid"] is not None else users.get(one["state"], one["state"])
    producer = f", producer {one['producer_id']}" if one.get("producer_id") else ""
    return f"{one['path']}: {user}{producer}"


def _destination(destination: Destination) -> dict[str, Any]:
    about = msgspec.structs.asdict(destination)
    guarantee = "at_least_once" if about.pop("transactional") is None else "exactly_once"
    return {**about, "guarantee": guarantee}


def _about(one: dict[str, Any]) -> Iterator[str]:
    """Where its records go, and how far they have got."""
    if not one["begun"] and not one["error"]:
        yield "not begun: nothing is in it, no start has got as far as a checkpoint"
    destination = one.get("destination")
    if destination is not None:
        name = f"name {_text(destination['name'].encode())}, " if destination["name"] is not None else ""
        looked = f", looked for one at {', '.join(destination['servers'])}" if destination["servers"] else ""
        cluster = f"kafka cluster {_text(destination['cluster_id'].encode())}" if destination["cluster_id"] else ""
        once = ", exactly once" if destination["guarantee"] == "exactly_once" else ""
        yield f"{name}{cluster or f'no kafka cluster reached yet{looked}'}{once}"
    if one.get("oldest_waiting") is not None:
        yield f"the oldest record that waits: {one['oldest_waiting']}"


def _table(rings: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    table.add_column("ring", no_wrap=True)
    for title in _COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for ring in rings:
        cells = (_size(ring[name]) if name.startswith("bytes") else f"{ring[name]:,}" for name in _COLUMNS)
        table.add_row(ring["ring"], *cells, style="red" if _is_damaged(ring) else None)
    return table


def _size(count: int) -> str:
    unit, suffix = pick_unit_and_suffix(count, _UNITS, 1024)
    return f"{count} {suffix}" if unit == 1 else f"{count / unit:.1f} {suffix}"


def _is_damaged(ring: dict[str, Any]) -> bool:
    return bool(ring["missing"] or ring["damaged_slots"])


def _wrong(one: dict[str, Any]) -> Iterator[str]:
    if one["error"]:
        yield one["error"]
    if one["checkpoint_lost"] and not one["error"]:
        yield CHECKPOINT_LOST
    for ring in one["rings"]:
        if ring["suspect_up_to"] and not one["checkpoint_lost"]:
            yield _suspicion(ring)
        if ring["ring"] == RINGS[1] and ring["recycled"]:
            yield "retry: its owner recycled slots at each look, and what was rewritten may not be counted: look again"
        yield from (_missing(ring, damage) for damage in ring["damage"])
        if ring["damaged_slots"]:
            yield (
                f"{ring['ring']}: of some slots nothing can be read; they are left as they are, and the next start "
                f"says which records that takes away, if any damaged_slots={ring['damaged_slots']}"
            )


def _suspicion(ring: dict[str, Any]) -> str:
    return (
        f"{ring['ring']}: after a power cut, a failed flush or damage to the checkpoint, settled records may be "
        f"waiting in truth: the next start finds out up_to_epoch={fmt.parts(ring['suspect_up_to'])[0]}"
    )


def _missing(ring: dict[str, Any], damage: dict[str, Any]) -> str:
    shown = dict(damage)
    if ring["ring"] == RINGS[0]:
        shown = {"epoch": damage["epoch"], "sequences": f"{shown.pop('first')}-{shown.pop('last')}", **shown}
    rest = "others are left" if ring["ring"] == RINGS[2] else "others are delivered"
    return f"{ring['ring']}: damage took away records; the {rest} {in_words(shown)}"


def _lines(record: dict[str, Any]) -> Iterator[str]:
    """What a record is, and below it what may be long."""
    start = f"{record['ring']}: {record['id']}"
    if "undecodable" in record:
        yield f"{start} undecodable: {record['undecodable']}"
        return
    shown = record | {name: _text(record[name]) for name in ("key", "value")}
    fields = (name for name in ("topic", "partition", "key", "timestamp_ms") if shown[name] is not None)
    yield " ".join([start, *(f"{name}={shown[name]}" for name in fields)])
    yield from (f"    {name}={shown[name]}" for name in ("value", "error") if name in shown)
