"""Records of a batch in new ones, built from its own bytes: these never change, whatever becomes of the frames."""

import asyncio
from collections.abc import Iterable, Iterator

from aiorecover.delivery.batch import Held, LaneBatch
from aiorecover.delivery.frames import frames_of
from aiorecover.wal.slot import Slot

STEP = 512  # records built into a part between two turns of the loop: under 2 ms of work
PART_BYTES = 1 << 30  # no limit: all of a part's records stood in one batch before

Piece = tuple[Slot, int, Held]
"""A record of a batch: its frame's slot and place, and what is sent of it."""


def pieces_of(batch: LaneBatch) -> Iterator[Piece]:
    """All that ``batch`` holds, in order."""
    for (slot, place), record in zip(frames_of(batch), batch.records(), strict=True):
        yield slot, place, record


async def part_of(batch: LaneBatch, pieces: Iterable[Piece], codec: int) -> LaneBatch:
    """A batch of those ``pieces`` of ``batch``, in their order; without an identity."""
    part = LaneBatch(PART_BYTES, codec, transactional=batch.transactional)
    part.earlier = batch.earlier + batch.attempts
    part.first_ms = batch.first_ms
    part.doubtful = batch.maybe_there
    for number, piece in enumerate(pieces, start=1):
        _add(part, *piece)
        if number % STEP == 0:
            await asyncio.sleep(0)
    part.finish()
    return part


async def sizes_of(batch: LaneBatch) -> list[int]:
    """The bytes of its records, about."""
    sizes = []
    for number, record in enumerate(batch.records(), start=1):
        sizes.append(record.bytes)
        if number % STEP == 0:
            await asyncio.sleep(0)
    return sizes


def unmapped(slot: Slot) -> ValueError:
    """A frame of the batch cannot be looked at any more."""
    return ValueError(f"a batch stands in an earlier life of a slot ordinal={slot.header.ordinal}")


def _add(part: LaneBatch, slot: Slot, place: int, record: Held) -> None:
    part.add(part.count, record.timestamp_ms, record.key, record.value, record.headers)
    part.count += 1
    if slot is not part.slot:
        part.start_group(slot)
    part.places.append(place)
