"""What a flush waits for, and what it does not."""

from dataclasses import dataclass

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.flush import Flush
from aiorecover.delivery.lane import Lane


@dataclass
class Counted:
    added: int = 0
    settled: int = 0


def lane_with(closed: int, *, opened: int = 0) -> Lane:
    lane = Lane("t", 0)
    lane.closed = closed
    lane.open = LaneBatch(1 << 20, 0)
    lane.open.count = opened
    return lane


def test_nothing_is_known_before_all_of_it_was_dispatched() -> None:
    flush = Flush(10)
    flush.look(10, [lane_with(3)])
    assert not flush.dispatched
    assert flush.unsettled() is None


def test_what_a_lane_held_then_is_waited_for_and_nothing_behind_it() -> None:
    flush, lane = Flush(10), lane_with(3, opened=2)
    flush.look(11, [lane])
    lane.closed += 100
    flush.look(12, [lane])
    lane.settled = 4
    assert flush.unsettled() is lane
    lane.settled = 5
    assert flush.unsettled() is None


def test_so_is_what_was_becoming_a_dead_letter() -> None:
    first, second = Counted(added=7, settled=5), Counted()
    flush = Flush(10, lambda: [first, second])
    flush.look(11, [])
    assert (flush.dispatched, flush.buried) == (True, False)
    first.added, second.added = 50, 50
    flush.look(12, [])
    first.settled = 6
    assert not flush.buried
    first.settled = 7
    assert flush.buried


def test_halted_lanes_are_left_where_that_is_asked() -> None:
    halted, other = lane_with(3), lane_with(1)
    halted.halt("poison", "mend it")
    flush, strict = Flush(10, leaves_halted=True), Flush(10)
    for one in (flush, strict):
        one.look(11, [halted, other])
    assert (flush.unsettled(), strict.unsettled()) == (other, halted)
    other.settled = 1
    assert (flush.unsettled(), strict.unsettled()) == (None, halted)
