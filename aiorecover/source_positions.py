"""Where to go on reading what records are made from: what the checkpoint does not know yet, found in the ring.

Looked for at an opening, before anything is published or recycled, in the directories that remember it at all: as much
as was stored behind the newest checkpoint, five seconds of it (`wal.sources`).

Of that a power cut may have taken a page in the middle. Nobody knows what the records in it were made from, so of an
epoch only what stands before its first hole counts: the rest is made again, though some of it may be there. An id that
no record was stored under is taken for such a hole, too.
"""

from typing import Any

from aiorecover import record as rec
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.moved import RING
from aiorecover.wal.sources import Sources
from aiorecover.wal.view import view_of
from aiorecover.wal.walk import SlotView


def read_on(directory: Directory) -> None:
    """Have a directory that was just opened know of everything that is in its ring.

    Raises:
        WalIOError: the operating system refused.

    """
    if directory.sources is None:
        return
    known = directory.ring.flushed
    with view_of(directory, RING) as view:
        behind = [slot for slot in view.slots() if _may_hold_more(slot, known)]
        follows = known + 1
        for frame in view.frames(behind, settled=True):
            if frame.position <= known:
                continue
            epoch = fmt.parts(frame.position)[0]
            if epoch != fmt.parts(follows)[0]:
                follows = fmt.position(epoch, 1)
            if frame.position == follows:
                _note(directory.sources, frame.payload)
                follows += 1


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
