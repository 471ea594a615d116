"""What ``aiorecover verify`` finds: which batches are not what was stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorecover.cli.inspection import print_line, size_of
from aiorecover.cli.records import NAMES
from aiorecover.errors import WalError
from aiorecover.ring.inspect import check, read_checkpoint, unreadable_heads

if TYPE_CHECKING:
    import pathlib

    from rich.console import Console

__all__ = ["is_whole", "show_checked", "verified"]


def verified(path: pathlib.Path) -> dict[str, Any]:
    """Return how much waits in a directory, and what of it is damaged; an error stands in ``error``."""
    found: dict[str, Any] = {"path": str(path), "error": None, "batches": 0, "records": 0, "bytes": 0, "damaged": []}
    try:
        stored = read_checkpoint(path)
        name = "?" if stored is None else stored.producer_id
        found["unreadable_segments"] = unreadable_heads(path)
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
    return not (found["error"] or found["damaged"] or found["unreadable_segments"])


def show_checked(console: Console, found: list[dict[str, Any]]) -> None:
    """Print a line for each directory, and one for each batch that is damaged."""
    for one in found:
        if one["error"]:
            print_line(console, f"{one['path']}: {one['error']}", style="red")
            continue
        whole = f"{one['records']:,} records in {one['batches']:,} batches are whole, {size_of(one['bytes'])}"
        print_line(console, f"{one['path']}: {whole}")
        if one["unreadable_segments"]:
            message = "segments cannot be read at all, 64 KiB or 1 MiB of records each"
            print_line(console, f"    damaged: {one['unreadable_segments']} {message}", style="red")
        for batch in one["damaged"]:
            where = f"topic={batch['topic']} partition={batch['partition']}"
            print_line(console, f"    damaged: first={batch['first']} last={batch['last']} {where}", style="red")
