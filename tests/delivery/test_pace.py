"""When a transaction ends."""

import pytest

from aiorecover.delivery.pace import LONGEST, SHORTEST, Pace

A_BIT = 0.001


def test_the_first_one_ends_as_soon_as_there_is_nothing_more() -> None:
    assert Pace().is_over(5.0, 5.0, idle=True, urgent=False)


def test_where_nothing_more_comes_it_ends_so_long_after_the_last_one_however_short_it_was() -> None:
    pace = Pace()
    pace.ended(5.0, more=False)
    assert not pace.is_over(5.0 + SHORTEST - A_BIT, 5.0, idle=True, urgent=False)
    assert pace.is_over(5.0 + SHORTEST + A_BIT, 5.0 + SHORTEST, idle=True, urgent=False)


def test_where_more_comes_it_is_filled_for_as_long_as_its_interval() -> None:
    pace = Pace()
    assert not pace.is_over(5.0 + SHORTEST - A_BIT, 5.0, idle=False, urgent=False)
    assert pace.is_over(5.0 + SHORTEST + A_BIT, 5.0, idle=False, urgent=False)


@pytest.mark.parametrize("idle", [True, False])
def test_where_somebody_waits_it_ends_at_once(*, idle: bool) -> None:
    pace = Pace()
    pace.ended(5.0, more=True)
    assert pace.is_over(5.0, 5.0, idle=idle, urgent=True)


def test_as_long_as_more_is_to_be_read_they_grow_up_to_the_longest_and_are_short_again_behind_it() -> None:
    pace = Pace()
    intervals = []
    for number in range(6):
        intervals.append(pace.interval)
        pace.ended(float(number), more=True)
    assert intervals == [SHORTEST, 2 * SHORTEST, 4 * SHORTEST, LONGEST, LONGEST, LONGEST]
    pace.ended(9.0, more=False)
    assert pace.interval == SHORTEST
    assert pace.longest == LONGEST
