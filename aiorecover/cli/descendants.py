"""Processes that this one has started, and those that they have."""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal

__all__ = ["descendants", "send"]


def descendants() -> set[int]:
    """The numbers of those that are alive, as proc(5) has them; none where there is no /proc."""
    parents = dict(filter(None, map(_alive, pathlib.Path("/proc").glob("[0-9]*/stat"))))
    found, ancestors = set[int](), {os.getpid()}
    while ancestors:
        ancestors = {pid for pid, parent in parents.items() if parent in ancestors}
        found |= ancestors
    return found


def send(number: signal.Signals, pids: set[int]) -> None:
    """Send it to each that is there; ``pids`` must be fresh, as a number is given to another one some time."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _alive(stat: pathlib.Path) -> tuple[int, int] | None:
    """A process and its parent; None for one that is gone, or has ended and is not waited for yet."""
    try:
        text = stat.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]  # before it is the name, with anything in it
    return None if state in "ZX" else (int(stat.parent.name), int(parent))
