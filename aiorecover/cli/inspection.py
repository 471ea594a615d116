"""What ``aiorecover inspect`` shows: instances, slots and counts, and records if they are asked for."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.table import Table

from aiorecover import record as records
from aiorecover.delivery import refusal
from aiorecover.errors import WalError, WalFormatError
from aiorecover.wal import format as fmt
from aiorecover.wal.view import instances, open_view

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

    from aiorecover.wal.view import FrameView, Instance, View

__all__ = ["damaged", "inspect", "show"]

RINGS = ("ring", "retry", "dead")
_BYTES_SHOWN = 200  # of a key, a value or a header: a line of a terminal or two
_COLUMNS = ("waiting", "settled", "damaged", "slots", "recycled", "bytes_used", "bytes_allocated")


def inspect(path: pathlib.Path, count: int) -> list[dict[str, Any]]:
    """Everything about the instances below ``path``, or about the one that it is, with up to ``count`` records each.

    Raises:
        WalError: there is none, or the path cannot be read. What is wrong with one of several stands in its ``error``.

    """
    found = instances(path)
    if not found:
        raise WalFormatError(f"nothing of aiorecover is here: name a wal_dir or an instance in it path={path}")
    return [_instance(one, count) for one in found]


def _instance(instance: Instance, count: int) -> dict[str, Any]:
    about: dict[str, Any] = {
        "path": str(instance.path),
        "state": instance.state,
        "pid": instance.pid,
        "error": instance.error,
        "rings": [],
        "records": [],
    }
    try:
        for name in RINGS:
            with open_view(instance.path, name) as view:
                about["producer_id"] = view.producer_id
                if name == RINGS[0] or any(slot.state != "blank" for slot in view.slots()):
                    about["rings"].append(_ring(view))
                    about["records"] += [_record(view, frame) for frame in islice(view.frames(), count)]
    except WalError as error:
        about["error"] = str(error)
    return about


def _ring(view: View) -> dict[str, Any]:
    summary = asdict(view.summary())
    return {"ring": view.ring, **summary, "missing": [asdict(damage) for damage in view.missing]}


def _record(view: View, frame: FrameView) -> dict[str, Any]:
    about = {
        "ring": view.ring,
        "id": records.record_id(str(view.producer_id), frame.epoch, frame.sequence),
        "slot": frame.slot,
        "file_offset": frame.file_offset,
    }
    try:
        payload: bytes = frame.payload
        if view.ring == RINGS[2]:
            letter = refusal.decode(payload)
            about |= {"error": str(letter.refusal), "attempts": letter.attempts, "refused_ms": letter.last_ms}
            payload = letter.record
        topic, key, value, partition, timestamp_ms, headers, _, source = records.decode(payload)
    except (ValueError, RecursionError) as error:
        return about | {"undecodable": str(error)}
    return about | {
        "topic": topic,
        "partition": partition if frame.partition is None else frame.partition,
        "key": _text(key),
        "value": _text(value),
        "timestamp_ms": timestamp_ms,
        "headers": [[name, _text(content)] for name, content in headers or ()],
        "source": source,
    }


def _text(data: bytes | None) -> str | None:
    """Readable, and nothing in it that a terminal would obey; what is not UTF-8 as escapes."""
    if data is None:
        return None
    text = data[:_BYTES_SHOWN].decode("utf-8", "backslashreplace")
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown + ("…" if len(data) > _BYTES_SHOWN else "")


def damaged(found: list[dict[str, Any]]) -> bool:
    """Whether anything is missing, damaged or unreadable."""
    rings = [ring for one in found for ring in one["rings"]]
    return any(one["error"] for one in found) or any(ring["damaged"] or ring["damaged_slots"] for ring in rings)


def show(console: Console, found: list[dict[str, Any]]) -> None:
    """Print the instances as a table, then what is wrong, then the records."""
    table = Table()
    for name in ("instance", "held by", "ring"):
        table.add_column(name)
    for name in _COLUMNS:
        table.add_column(name.replace("_", " "), justify="right")
    for one in found:
        held = f"pid {one['pid']}" if one["pid"] is not None else one["state"]
        for ring in one["rings"]:
            bad = "bold red" if ring["damaged"] or ring["damaged_slots"] else None
            table.add_row(one["path"], held, ring["ring"], *(f"{ring[name]:,}" for name in _COLUMNS), style=bad)
    console.print(table)
    for one in found:
        lines = [f"{one['path']}: {one['error']}"] if one["error"] else []
        lines += [_suspicion(one, ring) for ring in one["rings"] if ring["suspect_up_to"]]
        lines += [_damage(one["path"], ring) for ring in one["rings"] if ring["damaged"] or ring["damaged_slots"]]
        lines += [_line(record) for record in one["records"]]
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)


def _suspicion(one: dict[str, Any], ring: dict[str, Any]) -> str:
    position = ring["suspect_up_to"]
    epoch, sequence = fmt.parts(position)
    up_to = f"epoch={epoch} sequence={sequence}"
    return f"{one['path']}: settle words up to {up_to} may be wrong after a power cut ring={ring['ring']}"


def _damage(path: str, ring: dict[str, Any]) -> str:
    missing = " ".join(
        f"epoch={one['epoch']} sequences={one['first']}-{one['last']} slot={one['slot']} "
        f"file_offset={one['file_offset']}"
        for one in ring["missing"]
    )
    return f"{path}: damaged ring={ring['ring']} damaged_slots={ring['damaged_slots']} {missing}".rstrip()


def _line(record: dict[str, Any]) -> str:
    if "undecodable" in record:
        return f"{record['id']} undecodable: {record['undecodable']}"
    fields = [name for name in ("topic", "partition", "key", "timestamp_ms", "value", "error") if name in record]
    return " ".join([record["id"], *(f"{name}={record[name]}" for name in fields)])
