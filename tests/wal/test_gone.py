"""Whole slots that are gone: what a checkpoint knows of them is missing by name, and nothing that was recycled is."""

from collections.abc import Callable, Iterable
from itertools import chain

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES
from tests.wal.rig import SLOT, Disk, Opened, Position, found, missing, read, seen


def three_slots() -> tuple[Opened, list[list[Position]]]:
    """Flushed and checkpointed; nothing is settled."""
    opened = Opened()
    slots = [opened.fill_slot(), opened.fill_slot(), opened.append(b"in the open one" * 9, b"and another")]
    opened.checkpoint()
    return opened, slots


def look(disk: Disk) -> tuple[list[Position], list[Position]]:
    """What comes, and what is said to be missing."""
    with Opened(disk) as opened:
        came = [position for position, _ in found(opened.read())]
        return came, missing(opened.ring)


def joined(slots: Iterable[list[Position]]) -> list[Position]:
    return list(chain.from_iterable(slots))


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_slots_that_were_cut_off_are_missing_by_name(left: int) -> None:
    opened, slots = three_slots()
    disk = opened.disk.after_death()
    disk.ring.cut(left * SLOT)
    assert look(disk) == (joined(slots[:left]), joined(slots[left:]))


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_slot_of_zeros_is_missing_by_name_though_nothing_was_ever_settled(gone: int) -> None:
    opened, slots = three_slots()
    disk = opened.disk.after_death()
    disk.ring.damage(gone * SLOT, bytes(SLOT))
    assert look(disk) == (joined([slot for slot in slots if slot is not slots[gone]]), slots[gone])


@pytest.mark.parametrize("left", [0, 2])
def test_it_is_still_known_after_openings_that_read_nothing(left: int) -> None:
    """A checkpoint of an epoch without a frame says what it was told of the epochs before."""
    opened, slots = three_slots()
    for _ in range(2):
        opened = opened.dies()
        opened.checkpoint()
    disk = opened.disk.after_death()
    disk.ring.cut(left * SLOT)
    assert look(disk) == (joined(slots[:left]), joined(slots[left:]))


def test_it_is_known_when_records_of_the_next_epoch_stand_in_the_place_of_all_that_is_gone() -> None:
    opened, slots = three_slots()
    disk = opened.disk.after_death()
    disk.ring.cut(0)
    following = Opened(disk)
    new = following.append(b"new")
    assert [position for position, _ in found(following.read())] == new
    assert missing(following.ring) == joined(slots)


def test_the_lost_end_of_a_slot_is_missed_by_every_opening() -> None:
    opened, slots = three_slots()
    disk = opened.disk.after_death()
    first, second = slots[2]
    disk.ring.damage(2 * SLOT + fmt.frame_end(fmt.FIRST_FRAME, len(opened.accepted[first])), bytes(400))
    for _ in range(3):
        with Opened(disk) as following:
            assert [position for position, _ in found(following.read())] == [*slots[0], *slots[1], first]
            assert missing(following.ring) == [second]
            following.append(b"new")  # from here on the checkpoint tells of another epoch
            following.settle(following.read())
            following.checkpoint()
            disk = following.disk.after_death()


def test_the_lost_end_of_a_slot_is_no_longer_than_what_fits_whatever_is_gone_behind_it() -> None:
    """Else its seal would say what none can."""
    opened = Opened()
    slots = [opened.fill_slot(b""), opened.fill_slot(b"")]
    opened.checkpoint()
    disk = opened.disk.after_death()
    disk.ring.cut(SLOT)
    rotten = fmt.FIRST_FRAME + 3 * fmt.FRAME_BYTES
    disk.ring.damage(rotten, bytes(SLOT - fmt.RESERVED - rotten))
    for end in (0, SLOT - fmt.RESERVED):
        disk.ring.damage(end + fmt.SEAL_OFFSET, bytes(fmt.SEAL.size))
    for _ in range(2):
        with Opened(disk) as following:
            assert [position for position, _ in found(following.read())] == slots[0][:3]
            assert missing(following.ring) == joined(slots)[3:]
            (slot,) = following.ring.live
            assert slot.last_sequence == (SLOT - fmt.RESERVED - fmt.FIRST_FRAME) // fmt.FRAME_BYTES
            disk = following.disk.after_death()


@pytest.mark.parametrize("copy", [0, 1])
def test_what_was_settled_and_recycled_is_not_missed_when_a_copy_of_the_checkpoint_is_damaged(copy: int) -> None:
    """The older copy does not know of the newer one's recycling."""
    opened, slots = three_slots()
    opened.settle(opened.read()[: len(slots[0])])
    assert opened.checkpoint() == 1
    slots += [opened.fill_slot(), opened.append(b"f" * 500)]
    assert opened.ring.live[-1].index == 0  # its next life
    disk = opened.disk.after_death()
    disk.checkpoint.damage(copy * COPY_BYTES + 40, b"\xee\xee")
    assert look(disk) == (joined(slots[1:]), [])


def test_the_retry_ring_misses_what_is_gone_from_it() -> None:
    opened = Opened()
    retry = opened.directory.retry
    for number in range(60):
        retry.append(b"%d" % number * 200, None)
    opened.checkpoint()
    last = retry.live[-1]
    disk = opened.disk.after_death()
    disk.retry.cut(last.file_offset)
    with Opened(disk) as following:
        reader = type(following.reader)(following.directory.retry, bytes)
        assert len(read(reader)) == last.header.first_sequence - 1
        assert missing(following.directory.retry) == [(1, n) for n in range(last.header.first_sequence, 61)]


EMPTY = {
    "cut off": lambda disk: disk.ring.cut(0),
    "zeros": lambda disk: disk.ring.damage(0, bytes(disk.ring.size())),
}


@pytest.mark.parametrize("emptied", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("starts", [1, 3])
def test_what_an_opening_found_is_missed_though_no_checkpoint_followed(
    starts: int, emptied: Callable[[Disk], None]
) -> None:
    """Each start is killed before its first checkpoint, and the first record of the slot it left open is known."""
    opened = Opened()
    accepted = [*opened.fill_slot(), *opened.append(b"in the open one", b"and another")]
    for _ in range(starts):
        opened = opened.dies()
        accepted += opened.append(b"of this start", b"and one more")
    opened = opened.dies()
    disk = opened.disk.after_death()
    emptied(disk)
    known = [(1, sequence) for epoch, sequence in accepted if epoch == 1][:-1] + [(n + 2, 1) for n in range(starts)]
    assert sorted(seen(disk)) == known
    for _ in range(2):
        following = Opened(disk)
        assert following.read() == []
        assert sorted(missing(following.ring)) == known
        disk = following.disk.after_death()


def test_what_was_read_is_missed_to_the_last_record_once_a_checkpoint_was_made() -> None:
    opened = Opened()
    accepted = opened.append(b"one", b"two", b"three")
    opened = opened.dies()
    opened.read()
    opened.checkpoint()
    disk = opened.disk.after_power_cut(1)
    disk.ring.cut(0)
    assert sorted(seen(disk)) == accepted
    assert look(disk) == ([], accepted)


def test_a_frame_that_was_being_stored_at_the_death_is_not_missed() -> None:
    """Nobody was told that it is accepted."""
    opened = Opened()
    (place,) = opened.append(b"half of it reached the ring")
    disk = opened.disk.after_death()
    disk.ring.damage(fmt.FIRST_FRAME + fmt.FRAME_BYTES + 9, bytes(9))
    assert place == (1, 1)
    for emptied in (False, False, True):
        following = Opened(disk.after_death())
        assert following.directory.checkpoint.main.seen == ()
        disk = following.disk.after_death()
        if emptied:
            disk.ring.cut(0)
        assert look(disk.after_death()) == ([], [])


def test_what_a_power_cut_may_have_taken_is_not_missed() -> None:
    """An opening flushes nothing of the rings."""
    opened = Opened()
    opened.append(b"no flush has covered it")
    for seed in range(8):
        disk = opened.dies().disk.after_power_cut(seed)
        assert look(disk)[1] == []


def test_what_is_settled_and_recycled_since_an_opening_found_it_is_not_missed() -> None:
    opened = Opened()
    opened.append(b"one", b"two")
    opened = opened.dies()
    opened.settle(opened.read())
    opened.checkpoint()
    assert look(opened.disk.after_death()) == ([], [])
    assert opened.directory.checkpoint.main.seen == ()
