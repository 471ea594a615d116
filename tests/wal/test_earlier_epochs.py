"""Several starts in an outage: of each it is known how far it was flushed, so whole slots that are gone are named."""

from itertools import combinations

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.ends import ENDS_MOST
from aiorecover.wal.gaps import last_flushed
from tests.wal.rig import SLOT, Disk, Opened, Position, found, missing, seen

RECORD = b"r" * 5000  # three fill a slot


def lives(*records: int, ended: bool = True, disk: Disk | None = None) -> tuple[Disk, list[Position]]:
    """So many records in each life, which a checkpoint knows; and where they stand."""
    disk, accepted = disk or Disk(), []
    for count in records:
        opened = Opened(disk)
        accepted += opened.append(*[RECORD] * count)
        opened.checkpoint()
        if ended:
            opened.directory.write_checkpoint(opened.directory.next_checkpoint(closed=True))
        disk = opened.disk.after_death()
    return disk, accepted


@pytest.mark.parametrize("ended", [True, False], ids=["ended well", "killed"])
@pytest.mark.parametrize("bad", [bytes(SLOT), b"\x5a" * SLOT], ids=["zeros", "nonsense"])
def test_of_whichever_slots_are_gone_each_record_is_named(bad: bytes, *, ended: bool) -> None:
    """All pairs of the six slots of three lives, and what stands between them."""
    for first, last in combinations(range(6), 2):
        disk, accepted = lives(5, 6, 4, ended=ended)
        for slot in range(first, last):
            disk.ring.damage(slot * SLOT, bad)
        expected = seen(disk)
        with Opened(disk) as opened:
            there = [position for position, _ in found(opened.read())]
            gone = sorted(set(accepted) - set(there))
            assert sorted(missing(opened.ring)) == gone
            assert sorted(expected) == gone
        assert len(gone) >= 2


def test_the_tail_of_an_earlier_life_that_was_left_open_is_missed() -> None:
    """Nobody has read it since, so it has no seal, and the slots of the next life do not tell where it ended."""
    disk, accepted = lives(2, 3, 3, ended=False)
    disk.ring.damage(fmt.FIRST_FRAME + fmt.frame_end(0, len(RECORD)), bytes(6000))
    assert seen(disk) == {(1, 2)}
    with Opened(disk) as opened:
        assert [position for position, _ in found(opened.read())] == accepted[:1] + accepted[2:]
        assert missing(opened.ring) == [(1, 2)]


def test_what_was_settled_and_recycled_is_not_missed() -> None:
    disk, accepted = lives(7)
    with Opened(disk) as opened:
        opened.settle(opened.read())
        opened.checkpoint()
        opened.append(RECORD)
        opened.checkpoint()
        assert opened.directory.checkpoint.main.earlier == ()
        left = opened.disk.after_death()
    with Opened(left) as opened:
        assert [position for position, _ in found(opened.read())] == [(2, 1)]
        assert missing(opened.ring) == []
    assert len(accepted) == 7


def test_a_checkpoint_that_was_captured_before_another_takes_nothing_back_of_an_earlier_epoch() -> None:
    disk, _ = lives(3)
    with Opened(disk) as opened:
        early = opened.directory.next_checkpoint()
        opened.append(RECORD)
        opened.checkpoint()
        ends = opened.directory.checkpoint.main.ends
        assert ends == (fmt.position(1, 3), fmt.position(2, 1))
        opened.directory.write_checkpoint(early)
        assert opened.directory.checkpoint.main.ends == ends
        left = opened.disk.after_death()
    left.ring.damage(0, bytes(SLOT))
    assert seen(left) == {(1, 1), (1, 2), (1, 3)}
    with Opened(left) as opened:
        opened.read()
        assert missing(opened.ring) == [(1, 1), (1, 2), (1, 3)]


def test_of_so_many_starts_the_newest_are_remembered_and_a_start_without_records_is_none() -> None:
    disk, _ = lives(*[1] * 4, 0, *[1] * ENDS_MOST, disk=Disk(max_slots=2 * ENDS_MOST))
    with Opened(disk) as opened:
        opened.append(RECORD)
        captured = opened.directory.next_checkpoint()
    epochs = [fmt.parts(end) for end in captured.main.earlier]
    assert epochs == [(epoch, 1) for epoch in range(6, 6 + ENDS_MOST)]
    assert captured.main.flushed == fmt.position(6 + ENDS_MOST, 1)


def test_the_end_of_an_epoch_is_told_or_zero() -> None:
    ends = (fmt.position(2, 7), fmt.position(5, 1))
    assert [last_flushed(ends, epoch) for epoch in range(7)] == [0, 0, 7, 0, 0, 1, 0]
