"""What the looks at a backlog tell: how long the rest takes, and a line in the log now and then."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorecover.delivery.backlog import LARGE, LINE_EVERY, SMALL, STILL, WINDOW, Backlog, Look


def looks(backlog: Backlog, count: int, *, left: int, done: int, accepted: int = 0, start: int = 0) -> list[str]:
    """So many seconds in which ``done`` records are delivered each, and ``accepted`` come; the lines."""
    lines = []
    for second in range(start, start + count):
        passed = second - start
        line = backlog.look(Look(second, accepted * second, left + passed * (accepted - done), done * second))
        lines += [line] if line is not None else []
    return lines


def test_nothing_is_known_before_the_second_look_and_nothing_left_takes_no_time() -> None:
    backlog = Backlog()
    assert backlog.seconds_left(10) is None
    looks(backlog, 1, left=1000, done=0)
    assert backlog.per_second is None
    assert backlog.seconds_left(10) is None
    assert backlog.seconds_left(0) == 0.0


@pytest.mark.parametrize("accepted", [0, 100, 500])
def test_the_rest_is_estimated_from_what_was_delivered_whatever_is_published_meanwhile(accepted: int) -> None:
    backlog = Backlog()
    looks(backlog, 10, left=100_000, done=500, accepted=accepted)
    assert backlog.per_second == 500
    assert backlog.seconds_left(20_000) == 40.0


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    backlog = Backlog()
    looks(backlog, 100, left=1_000_000, done=5000)
    looks(backlog, WINDOW + 1, left=500_000, done=100, start=100)
    assert backlog.per_second == 100


def test_where_nothing_flows_nothing_is_promised() -> None:
    backlog = Backlog()
    looks(backlog, 20, left=100_000, done=500)
    looks(backlog, STILL + 1, left=90_500, done=0, start=20)
    assert backlog.seconds_left(90_000) is None
    looks(backlog, 3, left=90_500, done=1000, start=30)
    assert backlog.per_second == 1000, "the outage does not count"


def test_what_waits_while_others_flow_past_it_is_promised_nothing_until_it_gets_through() -> None:
    backlog = Backlog()
    for second in range(40):  # 30 records stay, a thousand others are published and delivered each second
        backlog.look(Look(second, 1000 * second, 30, min(second, 20)))
        assert backlog.seconds_left(30) == (None if second == 0 or second >= 20 + STILL else 0.0)
    backlog.look(Look(40, 40_000, 30, 21))
    assert backlog.seconds_left(30) == 0.0
    assert backlog.seconds_left(0) == 0.0


def test_a_backlog_whose_oldest_does_not_get_through_is_told_without_a_time() -> None:
    backlog = Backlog()
    lines = [backlog.look(Look(second, 0, 10 * LARGE - 1000 * second, 7)) for second in range(100)]
    assert any(line is not None and line.endswith("seconds_left=unknown") for line in lines)


def test_a_large_backlog_is_told_when_it_is_found_then_each_minute_and_at_its_end() -> None:
    backlog = Backlog()
    lines = looks(backlog, 201, left=10 * LARGE, done=LARGE // 20)
    assert lines[0] == f"a backlog is to be delivered records_left={10 * LARGE}"
    rest = 10 * LARGE - LARGE // 20
    assert (
        lines[1] == f"delivering a backlog records_left={rest} records_per_second=5000 seconds_left={rest / 5000:.0f}"
    )
    assert len(lines) == 2 + int(200 // LINE_EVERY) + 1
    assert lines[-1].startswith("the backlog is delivered records_left=")
    assert int(lines[-1].rpartition("=")[2]) < SMALL


def test_an_outage_is_not_told_and_what_it_left_is() -> None:
    backlog = Backlog()
    assert looks(backlog, 1000, left=0, done=0, accepted=1000) == []
    assert looks(backlog, 5, left=1_000_000, done=1000, start=1000)[0].startswith("delivering a backlog records_left=")


def test_what_is_small_is_not_told() -> None:
    assert looks(Backlog(), 1000, left=LARGE - 1, done=10) == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 1_000_000), st.integers(0, 1_000_000)), max_size=200))
def test_no_course_of_counts_is_told_more_than_twice_a_minute_or_promises_a_time_in_the_past(
    seen: list[tuple[int, int, int]],
) -> None:
    backlog, now, accepted, lines = Backlog(), 0, 0, 0
    for seconds, more, left in seen:
        now, accepted = now + seconds, accepted + more
        line = backlog.look(Look(now, accepted, left, now))
        lines += line is not None and "delivering" in line
        rest = backlog.seconds_left(left)
        assert rest is None or rest >= 0
    assert lines <= now / LINE_EVERY + 1
