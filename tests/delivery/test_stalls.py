"""When a lane is passed over, and when it is gone back for."""

import itertools

from aiorecover.delivery import stalls as module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import MAX_READY, Lane
from aiorecover.delivery.stalls import Stalls

LONG = module.STALLED_AFTER + 1.0


def stalls() -> Stalls:
    return Stalls(lambda low, high: (low + high) / 2)


def lane(partition: int = 0, *, blocked: bool = True) -> Lane:
    made = Lane("t", partition)
    made.ready.extend(LaneBatch(1024, 0) for _ in range(MAX_READY if blocked else 0))
    return made


def pass_over(*lanes: Lane) -> None:
    for one in lanes:
        one.stalled = True


def test_a_lane_that_is_only_busy_is_never_passed_over() -> None:
    held, busy = stalls(), lane()
    held.through(lane(1), 100.0)
    assert held.choose(1000.0, full=False) == held.choose(1000.0, full=True) == []
    held.failed(busy, 10.0)
    held.through(busy, 10.5)
    assert held.choose(1000.0, full=False) == []


def test_a_lane_that_fails_is_given_a_second() -> None:
    held, failing = stalls(), lane()
    held.failed(failing, 10.0)
    held.failed(failing, 10.9)
    assert held.choose(10.0 + module.STALLED_AFTER - 0.01, full=False) == []
    assert held.choose(10.0 + module.STALLED_AFTER, full=False) == [failing]


def test_a_lane_that_fails_and_has_room_is_in_nobody_s_way_unless_all_are_full_together() -> None:
    held, failing = stalls(), lane(blocked=False)
    held.failed(failing, 10.0)
    assert held.choose(10.0 + LONG, full=False) == []
    assert held.choose(10.0 + LONG, full=True) == [failing]


def test_a_session_that_was_lost_is_not_the_lane_s_fault() -> None:
    held, failing = stalls(), lane()
    held.failed(failing, 10.0)
    held.unknown(failing)
    assert not failing.failing
    held.failed(failing, 11.0)
    assert held.choose(11.5, full=False) == []


def test_what_failed_before_the_session_that_is_connected_does_not_count() -> None:
    held, lanes = stalls(), [lane(0), lane(1)]
    for one in lanes:
        held.failed(one, 10.0)
    held.begin_anew()
    held.through(lanes[0], 100.0)
    assert not any(one.failing for one in lanes)
    assert held.choose(100.0, full=True) == []


def test_what_is_passed_over_or_halted_is_not_chosen_again() -> None:
    held, stalled, halted = stalls(), lane(0), lane(1)
    for one in (stalled, halted):
        held.failed(one, 10.0)
    pass_over(stalled)
    halted.halted = "refused"
    held.through(lane(2), 20.0)
    assert held.choose(21.0, full=True) == []


def test_where_others_get_through_all_that_fail_are_passed_over() -> None:
    held, lanes = stalls(), [lane(number) for number in range(5)]
    for one in lanes:
        held.failed(one, 10.0)
    held.through(lane(9), 10.0 + module.OTHERS_AFTER)
    assert held.choose(10.0 + LONG, full=False) == lanes


def test_where_nobody_gets_through_lanes_are_passed_over_one_by_one_and_ever_later() -> None:
    held, lanes = stalls(), [lane(number) for number in range(200)]
    for one in lanes:
        held.failed(one, 10.0)
    held.through(lane(999), 10.1)  # was under way when it began
    chosen = []
    for tenth in range(36_000):
        now = 10.0 + tenth / 10
        more = held.choose(now, full=False)
        assert len(more) <= 1
        pass_over(*more)
        chosen += [now] * len(more)
    pauses = [later - earlier for earlier, later in itertools.pairwise(chosen)]
    assert pauses[:4] == sorted(pauses[:4])
    assert max(pauses) <= module.LONGEST_TRIAL + 0.2
    assert 60 <= len(chosen) <= 70


def test_the_first_that_gets_through_after_a_trial_frees_all_others() -> None:
    held, lanes = stalls(), [lane(number) for number in range(5)]
    for one in lanes:
        held.failed(one, 10.0)
    pass_over(*held.choose(10.0 + LONG, full=False))
    assert held.choose(10.1 + LONG, full=False) == []
    held.through(lane(9), 10.2 + LONG)
    assert held.choose(10.3 + LONG, full=False) == lanes[1:]


def test_a_lane_is_gone_back_for_at_once_the_first_time_and_later_each_time_that_it_stalls_again() -> None:
    held, flapping = stalls(), lane()
    assert held.rest(flapping, 10.0) == 0.0
    now, rests = 10.0, []
    for _ in range(8):
        held.returned(flapping, now)
        now += 1.0
        rests.append(held.rest(flapping, now))
    assert rests[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(rests) == module.LONGEST_REST
    held.returned(flapping, now)
    assert held.rest(flapping, now + module.STEADY) == 0.0
    held.returned(flapping, now + module.STEADY)
    assert held.rest(flapping, now + module.STEADY + 1) == module.FIRST_REST
