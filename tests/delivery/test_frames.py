"""What is told of a frame: of a copy in the retry ring, what its record was accepted with."""

import pytest

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.frames import name_at, named_of, nonce_at, position_at
from aiorecover.record import RECORD_ID_HEADER
from aiorecover.wal import format as fmt
from aiorecover.wal.moving import Move
from aiorecover.wal.reading import Reader
from aiorecover.wal.run import Entry
from tests.wal.rig import Opened, read


def ids_of(entries: list[Entry]) -> list[str]:
    named = [name_at(slot, place, position_at(slot, place)) for slot, place, _, _ in entries]
    return [one.record_id for one in named if one is not None]


def move_all(opened: Opened) -> None:
    directory = opened.directory
    move = Move(opened.ring, directory.retry, opened.ring.live[0])
    directory.copies_from = move.copies_from
    while not move.step():
        pass
    captured = move.captured(directory)
    directory.write_checkpoint(captured)
    move.finish()
    directory.copies_from = None
    directory.recycle(captured)


def test_a_copy_has_the_id_of_its_record_whichever_opening_moved_it() -> None:
    with Opened() as first:
        first.append(b"one", b"two")
        first.ring.leave()
        accepted = ids_of(first.read())
    assert accepted == [f"{first.directory.producer_id}/1/{number}" for number in (1, 2)]
    with first.dies() as second:
        assert ids_of(second.read()) == accepted
        move_all(second)
    with second.dies() as third:
        entries = read(Reader(third.directory.retry, bytes))
        assert ids_of(entries) == accepted
        slot, place, _, _ = entries[0]
        assert slot.header.epoch == 2
        assert nonce_at(slot, place) != fmt.nonce_of(slot.header.producer_id)


def test_a_batch_knows_the_id_of_a_copy_that_has_rotted() -> None:
    with Opened() as first:
        first.append(b"one")
        first.ring.leave()
        (accepted,) = ids_of(first.read())
    with first.dies() as second:
        move_all(second)
        slot, place, _, _ = read(Reader(second.directory.retry, bytes))[0]
        batch = LaneBatch(1 << 10, 0)
        batch.add(0, 0, None, b"one", [(RECORD_ID_HEADER, accepted.encode())])
        batch.count = 1
        batch.start_group(slot).append(place)
        batch.finish()
        assert slot.map is not None
        start = (place - fmt.SETTLE_WORD) * fmt.WORD + fmt.FRAME_BYTES
        slot.map[start : start + 4] = b"rot!"
        assert (position_at(slot, place), nonce_at(slot, place)) == (0, None)
        assert [named.record_id for named in named_of(batch)] == [accepted]


@pytest.mark.parametrize("byte", range(1, 8))  # a change of the lowest one may be a sequence of the slot
def test_a_sequence_that_has_rotted_says_nothing_of_the_record_and_the_batch_does(byte: int) -> None:
    with Opened() as opened:
        opened.append(b"one", b"two")
        (slot, place, *_), _ = opened.read()
        assert slot.map is not None
        slot.map[(place - fmt.SETTLE_WORD) * fmt.WORD + 8 + byte] ^= 0x80
        assert position_at(slot, place) == 0
        batch = LaneBatch(1 << 10, 0)
        batch.add(0, 0, None, b"one", [(RECORD_ID_HEADER, f"{opened.directory.producer_id}/1/1".encode())])
        batch.count = 1
        batch.start_group(slot).append(place)
        batch.finish()
        assert [named.position for named in named_of(batch)] == [fmt.position(1, 1)]
