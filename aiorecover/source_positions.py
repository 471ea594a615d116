"""Where to go on reading what records are made from: what the checkpoint does not know yet, found in the ring.

Looked for at an opening, before anything is published or recycled, in the directories that remember it at all: as much
as was stored behind the newest checkpoint, five seconds of it (`wal.sources`).
"""

from typing import Any

from aiorecover import record as rec
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.moved import RING
from aiorecover.wal.sources import Sources
from aiorecover.wal.view import View
from aiorecover.wal.walk import SlotView


def read_on(directory: Directory) -> None:
    """Have a directory that was just opened know of everything that is in its ring.

    Raises:
        WalIOError: the operating system refused.

    """
    if directory.sources is None:
        return
    files, path, known = directory.file_system, directory.path, directory.ring.flushed
    with View(path, RING, lambda name: files.open_foreign(path / name), files.boot_id()) as view:
        behind = [slot for slot in view.slots() if _may_hold_more(slot, known)]
        for frame in view.frames(behind, settled=True):
            if frame.position > known:
                _note(directory.sources, frame.payload)


def _may_hold_more(slot: SlotView, known: int) -> bool:
    if slot.header is None:
        return False
    return slot.seal is None or fmt.position(slot.header.epoch, slot.seal.last_sequence) > known


def _note(sources: Sources, payload: bytes) -> None:
    try:
        source: Any = rec.decode(payload)[rec.SOURCE]
    except (ValueError, RecursionError):  # no record: the dispatcher tells of it
        return
    if source is not None:
        sources.note(*source)
