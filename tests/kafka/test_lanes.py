"""The table of a lane's states, enumerated."""

import itertools

import pytest

from aiorecover.kafka.lanes import TRANSITIONS, WAITING, DeliveryLane, Event, LaneState

CONTENTS = (Event.EMPTY, Event.NEXT_OPEN, Event.NEXT_SEALED)


def _lane(state: LaneState) -> DeliveryLane:
    lane = DeliveryLane.__new__(DeliveryLane)
    lane.state = state
    return lane


def test_a_lane_follows_the_table_and_nothing_else() -> None:
    for state, event in itertools.product(LaneState, Event):
        lane = _lane(state)
        if (state, event) in TRANSITIONS:
            lane.step(event)
            assert lane.state is TRANSITIONS[state, event]
        else:
            with pytest.raises(KeyError):
                lane.step(event)
            assert lane.state is state


def test_every_state_is_reached_from_idle_and_all_but_halted_are_left() -> None:
    reached, news = {LaneState.IDLE}, [LaneState.IDLE]
    while news:
        state = news.pop()
        for (before, _), after in TRANSITIONS.items():
            if before is state and after not in reached:
                reached.add(after)
                news.append(after)
    assert reached == set(LaneState)
    for state in set(LaneState) - {LaneState.HALTED}:
        assert any(before is state and after is not state for (before, _), after in TRANSITIONS.items()), state
    assert {after for (before, _), after in TRANSITIONS.items() if before is LaneState.HALTED} == {LaneState.HALTED}


def test_records_may_come_in_every_state_and_never_end_one_that_waits_for_an_answer() -> None:
    for state in LaneState:
        for event in (Event.FILLED, Event.FULL):
            after = TRANSITIONS[state, event]
            if state not in (LaneState.IDLE, LaneState.FILLING, LaneState.SEALED):
                assert after is state


def test_only_a_sealed_lane_is_sent_and_only_a_sent_or_held_one_fails() -> None:
    assert [state for state in LaneState if (state, Event.SENT) in TRANSITIONS] == [LaneState.SEALED]
    assert {state for state in LaneState if (state, Event.FAILED) in TRANSITIONS} == {
        LaneState.IN_FLIGHT,
        LaneState.HELD,
    }


def test_contents_decide_where_a_free_lane_goes() -> None:
    for state in set(LaneState) - {LaneState.HALTED}:
        assert [TRANSITIONS[state, event] for event in CONTENTS] == [
            LaneState.IDLE,
            LaneState.FILLING,
            LaneState.SEALED,
        ]
    assert frozenset({LaneState.FILLING, LaneState.SEALED, LaneState.BACKING_OFF}) == WAITING
