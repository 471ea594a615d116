"""The more lanes have something, the longer each of them lingers."""

from math import inf

import pytest

from aiorecover.delivery.lane import Lane
from aiorecover.delivery.lingering import AT_ONCE, EACH, LONGEST, TURN, Lingering

LINGER = 0.005
SECONDS = 5.0


def lanes(count: int) -> list[Lane]:
    return [Lane("t", number) for number in range(count)]


def handed_over(lingering: Lingering, now: float, *, busy: bool = True) -> list[Lane]:
    found = lingering.oldest(now, busy=busy)
    assert len(found) <= AT_ONCE
    for lane in found:
        lingering.discard(lane)
    return found


def test_a_few_are_handed_over_together_when_the_first_of_them_has_lingered() -> None:
    lingering, few = Lingering(LINGER), lanes(6)
    assert lingering.due == inf
    for number, lane in enumerate(few):
        lingering.add(lane, 10.0 + number / 1000)
    assert lingering.due == 10.0 + LINGER
    assert handed_over(lingering, 10.0 + LINGER) == few
    assert lingering.due == inf


@pytest.mark.parametrize("linger", [0.0, LINGER, 0.05])
def test_a_few_that_always_have_something_linger_no_longer_than_was_asked_for(linger: float) -> None:
    lingering, few = Lingering(linger), lanes(6)
    now = 10.0
    for _ in range(1000):
        for lane in few:
            lingering.add(lane, now)
        assert lingering.due == now + linger
        now = lingering.due + len(few) * EACH
        assert handed_over(lingering, now) == few


def test_of_many_the_oldest_go_first_and_no_more_at_once_than_a_turn_of_the_loop_can_bear() -> None:
    lingering, many = Lingering(LINGER), lanes(1000)
    for lane in many:
        lingering.add(lane, 10.0)
    first = handed_over(lingering, 10.0 + LINGER)
    assert first == many[:AT_ONCE]
    assert lingering.due == 10.0 + LINGER + TURN
    second = handed_over(lingering, lingering.due)
    assert second == many[AT_ONCE : AT_ONCE + len(second)]
    assert 0 < len(second) <= TURN / EACH


def test_a_thousand_that_always_have_something_take_turns_and_leave_most_of_the_time_to_their_records() -> None:
    lingering, many = Lingering(LINGER), lanes(1000)
    for lane in many:
        lingering.add(lane, 10.0)
    now, since, waited, count = 10.0, dict.fromkeys(many, 10.0), [], 0
    while now < 10.0 + SECONDS:
        now = lingering.due
        for lane in handed_over(lingering, now):
            waited.append(now - since[lane])
            lingering.add(lane, now)
            since[lane] = now
            count += 1
    assert count == pytest.approx(AT_ONCE + SECONDS / EACH, rel=0.02)
    assert max(waited) == pytest.approx(len(many) * EACH, rel=0.05)


def test_none_lingers_longer_than_the_longest_however_many_there_are() -> None:
    lingering = Lingering(LINGER)
    for lane in lanes(10_000):
        lingering.add(lane, 10.0)
    now = 10.0
    while lingering.due < inf:
        now = lingering.due
        handed_over(lingering, now)
    assert now <= 10.0 + LONGEST + TURN


def test_what_comes_alone_behind_a_thousand_does_not_wait_for_their_time() -> None:
    lingering = Lingering(LINGER)
    for lane in lanes(1000):
        lingering.add(lane, 10.0)
    while lingering.due < inf:
        now = lingering.due
        handed_over(lingering, now)
    alone = Lane("t", 1000)
    lingering.add(alone, now)
    assert lingering.due == now + LINGER
    assert handed_over(lingering, lingering.due) == [alone]


def test_once_all_is_read_a_thousand_are_handed_over_turn_by_turn_and_what_comes_meanwhile_lingers() -> None:
    lingering, many, late = Lingering(LINGER), lanes(1000), Lane("u", 0)
    for lane in many:
        lingering.add(lane, 10.0)
    found, turns, now = list[Lane](), 0, 10.0 + LINGER
    while len(found) < len(many):
        assert lingering.due <= now
        at_once = handed_over(lingering, now, busy=False)
        assert 0 < len(at_once) <= AT_ONCE
        found, turns, now = found + at_once, turns + 1, now + 0.001
        if turns == 1:
            lingering.add(late, now)
            came = now
    assert found == many
    assert turns == -(-len(many) // AT_ONCE)
    assert came + LINGER <= lingering.due <= now + LINGER
    assert handed_over(lingering, lingering.due, busy=False) == [late]


def test_a_hundred_that_always_have_something_while_all_is_read_linger_as_long_as_was_asked_for() -> None:
    lingering, many = Lingering(LINGER), lanes(100)
    now, count = 10.0, 0
    for lane in many:
        lingering.add(lane, now)
    while now < 10.0 + SECONDS:
        now = max(now + 0.001, lingering.due)
        for lane in handed_over(lingering, now, busy=False):
            lingering.add(lane, now)
            count += 1
    assert count <= 1.5 * len(many) * SECONDS / LINGER  # the rhythm is that of the oldest of them


@pytest.mark.parametrize("busy", [False, True])
def test_a_linger_of_seconds_is_over_turn_by_turn_too(*, busy: bool) -> None:
    lingering, many = Lingering(2.0), lanes(1000)
    for number, lane in enumerate(many):
        lingering.add(lane, 10.0 + number / 1000)
    assert lingering.due == 12.0
    assert handed_over(lingering, 12.0, busy=busy) == many[:AT_ONCE]
    assert handed_over(lingering, lingering.due, busy=busy)[0] is many[AT_ONCE]


def test_one_that_cannot_be_handed_over_holds_up_none_of_the_others() -> None:
    lingering, stuck, many = Lingering(LINGER), Lane("t", 0), lanes(200)
    for lane in [stuck, *many]:
        lingering.add(lane, 10.0)
    now, found = 10.0, set[Lane]()
    for _ in range(1 + -(-len(many) // AT_ONCE)):
        now = max(now + LINGER, lingering.due)
        for lane in lingering.oldest(now, busy=False):
            if lane is stuck:
                lingering.add(stuck, now)  # as `Batches.close` does, and raises
                break
            lingering.discard(lane)
            found.add(lane)
    assert found == set(many)


def test_what_could_not_be_handed_over_is_tried_again() -> None:
    lingering, lane = Lingering(LINGER), Lane("t", 0)
    lingering.add(lane, 10.0)
    assert lingering.oldest(10.0 + LINGER, busy=True) == [lane]
    assert 10.0 + LINGER < lingering.due <= 10.0 + 2 * LINGER + TURN
    assert lingering.oldest(lingering.due, busy=True) == [lane]
