"""Records of a batch in new ones, built from their frames: the bytes of a batch never change."""

import asyncio
from collections.abc import Iterable

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.frames import id_at, record_at
from aiorecover.record import RECORD_ID_HEADER
from aiorecover.wal.slot import Slot

STEP = 512  # records built into a part between two turns of the loop: under 2 ms of work
PART_BYTES = 1 << 30  # no limit: all of a part's records stood in one batch before


async def part_of(batch: LaneBatch, frames: Iterable[tuple[Slot, int]], codec: int) -> LaneBatch:
    """A batch of those ``frames`` of ``batch``, in their order; without an identity."""
    part = LaneBatch(PART_BYTES, codec)
    part.earlier = batch.earlier + batch.attempts
    part.first_ms = batch.first_ms
    part.doubtful = batch.maybe_there
    for number, (slot, place) in enumerate(frames, start=1):
        _add(part, slot, place)
        if number % STEP == 0:
            await asyncio.sleep(0)
    part.finish()
    return part


def unmapped(slot: Slot) -> ValueError:
    """A frame of the batch cannot be looked at any more."""
    return ValueError(f"a batch stands in an earlier life of a slot ordinal={slot.header.ordinal}")


def _add(part: LaneBatch, slot: Slot, place: int) -> None:
    record = record_at(slot, place)
    if record is None:
        raise unmapped(slot)
    _, key, value, _, timestamp_ms, headers, _, _ = record
    identity = id_at(slot, place).encode()
    part.add(part.count, timestamp_ms, key, value, [*(headers or ()), (RECORD_ID_HEADER, identity)])
    part.count += 1
    if slot is not part.slot:
        part.start_group(slot)
    part.places.append(place)
