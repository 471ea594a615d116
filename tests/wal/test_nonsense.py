"""A checksum that holds over what makes no sense, and whole slots that are gone: refused or reported, never a crash."""

import dataclasses
from typing import Any

import pytest

from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import (
    COPY_BYTES,
    Checkpoint,
    CheckpointFile,
    Destination,
    RingState,
    Transactional,
    pack,
    unpack,
)
from aiorecover.wal.lanes import ENTRY_BYTES, SECTOR, BlockFound, pack_entry
from aiorecover.wal.recovery import classify
from aiorecover.wal.sources import Sources
from aiorecover.wal.suffix import Suspicion
from tests.wal.rig import SLOT, Opened, found, missing

HEADER = fmt.SlotHeader(SLOT, producer_id=7, ordinal=1, epoch=1, salt=0xABCD_0001, first_sequence=1, created_ms=0)
SEAL = fmt.Seal(count=2, tail=fmt.FIRST_FRAME + 400, last_sequence=2)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"slot_bytes": 0},
        {"slot_bytes": SLOT + 1},
        {"slot_bytes": 1 << 31},
        {"ordinal": 0},
        {"ordinal": (1 << 64) - 1},
        {"epoch": 0},
        {"epoch": fmt.EPOCH_MAX + 1},
        {"salt": 0},
        {"salt": fmt.MASK32},
        {"first_sequence": 0},
        {"first_sequence": fmt.SEQUENCE_MASK + 1},
    ],
    ids=str,
)
def test_a_slot_whose_header_cannot_be_is_damaged(nonsense: dict[str, int]) -> None:
    packed = fmt.pack_slot_header(dataclasses.replace(HEADER, **nonsense)).ljust(fmt.RESERVED, b"\0")
    assert classify(3, packed, packed).state == "damaged"


@pytest.mark.parametrize(
    "nonsense",
    [
        {"tail": SLOT - fmt.RESERVED + 4},
        {"tail": 0xFFFF_FFFC},
        {"tail": fmt.FIRST_FRAME - 4},
        {"tail": SEAL.tail + 1},
        {"count": 3},
        {"last_sequence": fmt.SEQUENCE_MASK + 1},
        {"last_sequence": 21},
    ],
    ids=str,
)
def test_a_seal_that_does_not_fit_its_slot_is_none(nonsense: dict[str, int]) -> None:
    def reserved(seal: fmt.Seal) -> bytes:
        return (fmt.pack_slot_header(HEADER) + fmt.pack_seal(seal, HEADER.salt)).ljust(fmt.RESERVED, b"\0")

    bad, good = reserved(dataclasses.replace(SEAL, **nonsense)), reserved(SEAL)
    assert classify(0, bad, bad).seal is None
    assert classify(0, bad, good).seal == classify(0, good, bad).seal == SEAL


NOT_KNOWN = (
    Transactional(number=-1),
    Transactional(read_in=3),
    Transactional(line=(("an opening", 1),)),
    Transactional(others=(("copy/2", -1),)),
)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"producer_id": -1},
        {"epoch": 0, "main": RingState()},
        {"epoch": fmt.EPOCH_MAX + 1},
        {"main": RingState(watermark=-1)},
        {"main": RingState(watermark=fmt.position(3, 0))},
        {"retry": RingState(flushed=fmt.position(3, 0))},
        {"main": RingState(earlier=(1, fmt.position(3, 0)))},
        {"retry": RingState(earlier=(-1,))},
        {"dead": RingState(next_ordinal=0)},
        {"dead": RingState(next_ordinal=1 << 63)},
        {"suspect": Suspicion(fmt.position(3, 0), 1, 1)},
        {"suspect": Suspicion(1, generation=3, since=1)},
        {"main": RingState(seen=(fmt.position(3, 0),))},
        {"openings": ((0, 1),)},
        {"openings": ((1, -1),)},
        {"openings": ((1, fmt.NONCE_MASK + 1),)},
        {"openings": ((2, 1),)},
        {"sources": {"orders": {0: 0}}},
        {"sources": {"orders": {-1: 1}}},
        {"sources": {"orders": {0: 1 << 63}}},
        *({"destination": Destination(transactional=known)} for known in NOT_KNOWN),
        {"moved": -1},
        {"moved": fmt.position(3, 0)},
    ],
    ids=str,
)
def test_a_checkpoint_that_cannot_be_is_damaged(nonsense: dict[str, Any]) -> None:
    content = {"producer_id": 7, "epoch": 2, "main": RingState(fmt.position(2, 9)), "slot_bytes": SLOT}
    assert unpack(pack(Checkpoint(**content), 1)).state == "valid"  # type: ignore[arg-type]
    assert unpack(pack(Checkpoint(**content | nonsense), 1)).state == "damaged"  # type: ignore[arg-type]


def test_a_checkpoint_that_cannot_be_takes_the_place_of_none_that_can() -> None:
    opened = Opened()
    opened.append(b"here")
    opened.checkpoint()
    before = opened.disk.checkpoint.live()
    opened.directory.sources = Sources({"orders": {0: 1 << 63}})
    with pytest.raises(WalCorruptError, match="was not written: stop and start again"):
        opened.checkpoint()
    with pytest.raises(WalCorruptError):
        opened.append(b"f" * SLOT)
    after = opened.disk.checkpoint.live()
    kept = [copy for copy in (0, COPY_BYTES) if before[copy : copy + COPY_BYTES] == after[copy : copy + COPY_BYTES]]
    assert len(kept) == 1, "in the place of the other one is word of it"
    following = opened.dies()
    assert following.ring.epoch == opened.ring.epoch + 1
    assert found(following.read()) == list(opened.accepted.items())


@pytest.mark.parametrize("generation", [0, 1 << 63, (1 << 64) - 1])
def test_a_generation_that_cannot_be_is_damaged(generation: int) -> None:
    opened = Opened()
    opened.append(b"here")
    content, disk = opened.directory.checkpoint, opened.disk.after_death()
    disk.checkpoint.damage(generation % 2 * COPY_BYTES, pack(content, generation))
    disk.lanes.damage(SECTOR + generation % 2 * ENTRY_BYTES, pack_entry(b"body", 1, generation))
    assert unpack(pack(content, generation)).state == "damaged"
    following = Opened(disk)
    assert following.directory.lanes.found == [BlockFound(0, (), damaged=True, known=False, epoch=0)]
    following.directory.lanes.store(0, b"next")
    assert found(following.read()) == list(opened.accepted.items())


def test_files_with_slots_of_two_sizes_are_refused() -> None:
    opened = Opened()
    opened.append(b"here")
    disk = opened.disk.after_death()
    content = opened.directory.checkpoint
    other = Checkpoint(producer_id=content.producer_id, epoch=content.epoch, slot_bytes=2 * SLOT)
    CheckpointFile(disk.checkpoint).write_both(other)
    disk.ring.allocate(0, 2 * SLOT)
    with pytest.raises(
        WalCorruptError, match=rf"slots of several sizes: restore .* slot_bytes=\[{SLOT}, {2 * SLOT}\] path=/$"
    ):
        disk.open()


@pytest.mark.parametrize("gone", [0, 2, 3])  # 1 is the end of its epoch: nothing tells that it was there
def test_the_records_of_a_whole_slot_that_is_gone_are_missing_at_the_start_of_an_epoch_too(gone: int) -> None:
    opened = Opened()
    recycled = opened.fill_slot()
    slots = [opened.fill_slot(), opened.fill_slot()]
    opened.settle(opened.read()[: len(recycled)])
    assert opened.checkpoint() == 1  # from here on the watermark tells what was recycled
    opened = opened.dies()
    slots += [opened.fill_slot(), opened.fill_slot(), opened.fill_slot()]
    opened.disk.ring.damage(opened.ring.live[gone].file_offset, bytes(SLOT))
    following = opened.dies()
    came = [position for position, _ in found(following.read())]
    assert missing(following.ring) == slots[gone]
    assert came == [position for slot in slots if slot != slots[gone] for position in slot]


def test_a_forged_header_far_ahead_in_the_epoch_is_damage_and_no_crash() -> None:
    """What it says is missing does not fit the slot before it, whose end a crash left open."""
    opened = Opened()
    opened.append(b"here")
    life = opened.ring.live[0].header
    disk = opened.disk.after_death()
    far = dataclasses.replace(
        life, ordinal=life.ordinal + 5, salt=life.salt ^ 0x1234_0000, first_sequence=50_042_685_120
    )
    disk.ring.allocate(0, 2 * SLOT)
    disk.ring.damage(SLOT, fmt.pack_slot_header(far))
    disk.ring.damage(2 * SLOT - fmt.RESERVED, fmt.pack_slot_header(far))
    with Opened(disk) as following:
        assert [record for _, record in found(following.read())] == [b"here"]
        assert following.ring.losses.missing == 50_042_685_120 - 2
