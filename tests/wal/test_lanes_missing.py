"""A file of the lanes that lost a part of itself: how many blocks are missing, and what is never missed wrongly."""

from collections.abc import Callable

import pytest

from aiorecover.wal.lanes import (
    BLOCK_BYTES,
    ENTRY_BYTES,
    FIRST_BLOCKS,
    SECTOR,
    Header,
    Lanes,
    pack_header,
    unpack_header,
)
from tests.wal.memory import FaultyFile, broken, no_room

PRODUCER = 7
BLOCKS = 6


def opened(file: FaultyFile, epoch: int = 2, boot: str = "boot") -> Lanes:
    return Lanes(file, PRODUCER, epoch, boot)


def begun() -> tuple[FaultyFile, Lanes]:
    file = FaultyFile("lanes")
    lanes = opened(file, epoch=1)
    lanes.grow()
    return file, lanes


def stored(times: int = 2) -> FaultyFile:
    """In six of eight blocks."""
    file, lanes = begun()
    for block in range(BLOCKS):
        for number in range(times):
            lanes.store(block, b"%d of %d" % (number, block))
    return file


def counted(file: FaultyFile) -> int:
    header = unpack_header(file.read(0, SECTOR))
    assert header is not None
    return header.standing


def by_an_older_version(file: FaultyFile) -> None:
    """It counted nothing."""
    file.damage(0, pack_header(Header(PRODUCER, 1, *file.identity(), "boot")))


# -- blocks that are gone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", range(BLOCKS + 1))
@pytest.mark.parametrize("rest", [0, ENTRY_BYTES])
def test_what_a_file_that_was_cut_off_has_lost_is_counted(left: int, rest: int) -> None:
    file = stored()
    file.cut(SECTOR + left * BLOCK_BYTES + rest)
    assert opened(file).missing == BLOCKS - left


@pytest.mark.parametrize(("first", "last"), [(0, BLOCKS), (0, 1), (2, 4), (5, FIRST_BLOCKS), (BLOCKS, FIRST_BLOCKS)])
def test_what_a_file_that_was_zeroed_in_part_has_lost_is_counted(first: int, last: int) -> None:
    file = stored()
    file.damage(SECTOR + first * BLOCK_BYTES, bytes((last - first) * BLOCK_BYTES))
    assert opened(file).missing == max(0, min(last, BLOCKS) - first)


@pytest.mark.parametrize("boot", ["another", ""])
def test_nothing_is_missing_by_the_count_of_another_boot(boot: str) -> None:
    """A power cut takes what was not flushed."""
    file = stored()
    file.cut(SECTOR + BLOCK_BYTES)
    assert opened(file, boot=boot).missing == 0


def test_nothing_is_missing_in_a_file_that_was_not_counted_and_from_then_on_it_is() -> None:
    file = stored()
    by_an_older_version(file)
    lanes = opened(file)
    assert (lanes.missing, [found.known for found in lanes.found]) == (0, [True] * BLOCKS)
    lanes.count_anew()
    file.cut(SECTOR + 2 * BLOCK_BYTES)
    assert opened(file, epoch=3).missing == BLOCKS - 2


def test_what_was_told_is_not_missing_once_more_and_what_was_not_is() -> None:
    file = stored()
    file.cut(SECTOR + 2 * BLOCK_BYTES)
    assert opened(file).missing == BLOCKS - 2
    lanes = opened(file)
    assert lanes.missing == BLOCKS - 2
    lanes.count_anew()
    assert lanes.missing == BLOCKS - 2
    assert opened(file).missing == 0


def test_what_an_opening_clears_is_not_missing_and_what_it_has_not_told_of_by_then_is() -> None:
    file = stored()
    file.damage(SECTOR, bytes(BLOCK_BYTES))
    lanes = opened(file)
    for found in lanes.found:
        lanes.clear(found.block)
        assert opened(file.after_death()).missing == 1
    lanes.store(5, b"set aside")
    assert opened(file.after_death()).missing == 1
    lanes.count_anew()
    assert lanes.missing == 1
    assert opened(file).missing == 0


def test_where_what_was_counted_is_found_the_count_is_not_written_again() -> None:
    file = stored()
    lanes = opened(file)
    file.before["write"] = broken
    lanes.count_anew()


# -- the count, whenever the process dies ------------------------------------------------------------------------------


def every_death(file: FaultyFile) -> list[FaultyFile]:
    """What a process leaves that is killed before or behind each write from now on."""
    left: list[FaultyFile] = []
    for when in (file.before, file.after):
        when["write"] = lambda: left.append(file.after_death())
    return left


def test_wherever_the_process_dies_nothing_is_missing_and_in_the_end_all_that_stands_is_counted() -> None:
    file, lanes = begun()
    left = every_death(file)
    steps: list[tuple[Callable[[int], None], int, int]] = [
        (lambda block: lanes.store(block, b"first"), 0, 1),
        (lambda block: lanes.store(block, b"first" * 2000), 1, 2),
        (lambda block: lanes.store(block, b"second" * 2000), 1, 2),
        (lanes.clear, 0, 1),
        (lanes.clear, 1, 0),
        (lanes.clear, 1, 0),
        (lambda block: lanes.store(block, b"third"), 1, 1),
    ]
    for step, block, standing in steps:
        step(block)
        assert counted(file) == standing
    assert len(left) > 2 * len(steps)
    assert [opened(dead).missing for dead in left] == [0] * len(left)


def test_a_death_behind_the_last_step_and_a_part_that_is_gone_are_told_apart() -> None:
    file, lanes = begun()
    lanes.store(0, b"one")
    lanes.store(1, b"two")
    lanes.clear(0)
    dead = file.after_death()
    assert opened(dead).missing == 0
    dead.cut(SECTOR + BLOCK_BYTES)
    assert opened(dead).missing == 1


def test_the_header_is_written_only_where_a_block_comes_to_hold_something_or_nothing() -> None:
    file, lanes = begun()
    writes = 0

    def count() -> None:
        nonlocal writes
        writes += 1

    file.before["write"] = count
    for _ in range(100):
        lanes.store(0, b"one")
    assert writes == 101


@pytest.mark.parametrize("fails", [broken, no_room])
def test_a_count_that_cannot_be_written_hinders_no_entry_and_the_next_one_is_right(fails: Callable[[], None]) -> None:
    file, lanes = begun()
    file.after["write"] = lambda: file.before.update(write=fails)  # the entry comes through, the header does not
    lanes.store(0, b"one")
    file.after.clear()
    file.before.clear()
    assert counted(file) == 0
    lanes.store(1, b"two")
    assert counted(file) == 2
    file.before["write"] = lambda: _once(file, fails)  # the header does not, the zeros do
    lanes.clear(0)
    assert [found.bodies for found in opened(file).found] == [(b"two",)]


def _once(file: FaultyFile, fails: Callable[[], None]) -> None:
    del file.before["write"]
    fails()


def late() -> tuple[FaultyFile, Lanes]:
    """With blocks, and without room for the header so far."""
    file = FaultyFile("lanes")
    file.before["write"] = no_room
    lanes = opened(file, epoch=1)
    lanes.grow()
    del file.before["write"]
    return file, lanes


def test_a_header_that_comes_late_counts_what_stands_from_the_next_entry_on() -> None:
    file, lanes = late()
    for block in range(BLOCKS):
        lanes.store(block, b"one")
    lanes.clear(0)
    assert unpack_header(file.read(0, SECTOR)) is None
    lanes.grow()
    assert counted(file) == 0
    lanes.store(1, b"two")
    assert counted(file) == BLOCKS - 1


def test_a_block_that_is_cleared_while_a_header_comes_late_is_not_missing() -> None:
    """The keeper's thread writes it, and the loop clears: it must not count what was just wiped."""
    file, lanes = late()
    lanes.store(0, b"one")

    def meanwhile() -> None:
        del file.before["write"]
        lanes.clear(0)

    file.before["write"] = meanwhile
    lanes.grow()
    following = opened(file)
    assert (following.found, following.missing) == ([], 0)


# -- one of two copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "copy"), [(2, 1), (3, 0), (3, 1), (4, 0), (4, 1)])
def test_a_block_of_which_a_copy_was_zeroed_is_damaged(times: int, copy: int) -> None:
    """The older one would pass for the newest; as the first of all that were stored it does."""
    file = stored(times)
    file.damage(SECTOR + BLOCK_BYTES + copy * ENTRY_BYTES, bytes(ENTRY_BYTES))
    lanes = opened(file)
    assert [found.damaged for found in lanes.found] == [block == 1 for block in range(BLOCKS)]
    assert lanes.missing == 0


def test_a_block_that_was_stored_into_once_since_it_was_blank_is_whole() -> None:
    """Whatever stood there before it was cleared, in this opening or an earlier one."""
    file, lanes = begun()
    for number in range(5):
        lanes.store(0, b"%d" % number)
    lanes.clear(0)
    lanes.store(0, b"cleared")
    lanes = opened(file)
    lanes.store(3, b"blank when it was opened")
    assert [(found.bodies, found.damaged) for found in opened(file).found] == [
        ((b"cleared",), False),
        ((b"blank when it was opened",), False),
    ]


def test_what_is_stored_into_a_cleared_block_is_newer_than_what_stood_there() -> None:
    """Should a power cut bring that back: nothing of it was flushed."""
    file, lanes = begun()
    for number in range(4):
        lanes.store(0, b"%d" % number)
    before = file.read(SECTOR, ENTRY_BYTES)
    lanes.clear(0)
    lanes.store(0, b"new")
    file.damage(SECTOR, before)
    (found,) = opened(file).found
    assert found.bodies == (b"new", b"3")


def test_a_single_copy_by_a_version_that_did_not_count_is_whole() -> None:
    """It went on with the generations of what it cleared."""
    file = stored(2)
    file.damage(SECTOR + ENTRY_BYTES, bytes(ENTRY_BYTES))
    by_an_older_version(file)
    assert not any(found.damaged for found in opened(file).found)
