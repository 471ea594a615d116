"""Where the copy of a record is found in the retry ring, whatever else stands there."""

import pytest

from aiorecover.wal import copies
from aiorecover.wal import format as fmt
from tests.wal.test_stream import Life, positions, read, settle

SLOTS = 20


@pytest.fixture
def life() -> Life:
    """So much was moved that the retry ring has several slots."""
    made = Life(slots=SLOTS)
    for _ in range(SLOTS - 2):
        made.move()
    assert len(made.directory.retry.live) > 2
    return made


def gives_what_waits(life: Life, waiting: list[int]) -> None:
    """Whoever goes back to a record, or to where nothing waits any more, reads all from there on, once."""
    for start in (0, waiting[0] - 1, *waiting[::5]):
        other = life.first.back_to(start)
        assert positions(read(other, most=len(waiting))) == [position for position in waiting if position >= start]
        assert read(other, most=1) == []
        other.close()


def test_slots_in_which_nothing_waits_are_passed(life: Life) -> None:
    """Their settled copies are still there, and the next process finds nothing in them."""
    first = [one for one in life.left if one[2] < life.directory.retry.live[1].marks[0][0]]
    settle(first)
    following = life.dies()
    assert not following.directory.retry.live[0].marks
    gives_what_waits(following, life.waiting[len(first) :])


def test_copies_that_a_rewriting_has_made_do_not_count_before_its_checkpoint(life: Life) -> None:
    """They stand in slots of their own, in the same order as those that do count."""
    rewriting = life.copy_anew()
    assert rewriting.count
    gives_what_waits(life, life.waiting)


def test_what_a_reader_keeps_of_a_rewritten_ring_is_where_nobody_begins(life: Life) -> None:
    stands = life.first.back_to(0)
    read(stands, most=1)
    in_flight = read(life.first.back_to(0), limit=3, most=3)
    rewriting = life.copy_anew()
    settle(in_flight)
    life.make_anew(rewriting)
    assert any(slot.moved for slot in life.directory.retry.live)
    for start in (0, *life.waiting):
        stand = copies.stand_before(life.directory.retry, start, None)
        assert stand is not None
        assert not stand[0].moved
    gives_what_waits(life, life.waiting[3:])


def test_pages_that_were_looked_at_count_as_memory_only_until_the_next_look(life: Life) -> None:
    """Who asks for many records has the whole retry ring at hand."""
    oldest = life.directory.retry.live[0]
    while oldest.warm:
        life.directory.give_back_memory()
    _, place, position, _ = life.left[0]
    assert not life.directory.is_settled(position & fmt.SEQUENCE_MASK, place)
    assert oldest.warm
