"""Whether a turn of an adopter was cut off, by what was left unread when it began, at half time and at its end."""

import pytest

from aiorecover.headway import Headway

MANY = 10_000_000


def cut_off(*unread: int, settled: int) -> bool:
    headway = Headway(unread[0])
    for count in unread[1:-1]:
        headway.half_over(count)
    return headway.cut_off(unread[-1], settled)


@pytest.mark.parametrize("settled", [0, 1, 200_000])
def test_who_reads_past_what_does_not_get_through_until_the_end_was_cut_off(settled: int) -> None:
    assert cut_off(MANY, MANY - 1_000_000, MANY - 2_000_000, settled=settled)


def test_who_was_held_up_at_first_and_read_then_was_cut_off() -> None:
    assert cut_off(MANY, MANY, MANY - 2_000_000, settled=0)


def test_who_came_to_the_end_was_not() -> None:
    assert not cut_off(MANY, MANY // 2, 0, settled=0)


def test_who_is_slower_on_a_busy_machine_was_cut_off_all_the_same() -> None:
    assert cut_off(MANY, MANY - 1_500_000, MANY - 2_000_000, settled=0)


@pytest.mark.parametrize("settled", [250_000, 2_000_000])
def test_who_delivered_some_of_what_it_read_was_not_for_the_next_one_comes_as_much_further(settled: int) -> None:
    assert not cut_off(MANY, MANY - 1_000_000, MANY - 2_000_000, settled=settled)


@pytest.mark.parametrize("ahead", [0, 100_000])
def test_who_stands_still_was_not_for_nothing_comes_of_more_time(ahead: int) -> None:
    assert not cut_off(MANY, MANY - ahead, MANY - ahead, settled=0)


@pytest.mark.parametrize("taken", [10, 10_000, 14_000, 15_000, 34_000, 99_000, 101_000, 1_000_000])
def test_who_reads_ahead_of_a_kafka_that_takes_less_was_not_however_much_it_takes(taken: int) -> None:
    ahead = 100_000  # read at once, and then as much as is taken
    assert not cut_off(MANY, MANY - ahead - taken // 2, MANY - ahead - taken, settled=taken)


def test_a_turn_that_ended_by_itself_in_its_first_half_was_not_cut_off() -> None:
    assert not cut_off(MANY, MANY - 1_000_000, settled=0)


@pytest.mark.parametrize("unread", [0, MANY // 4])
def test_who_was_finding_something_out_was_cut_off_unless_it_ended_in_its_first_half(unread: int) -> None:
    headway = Headway(MANY)
    assert not headway.cut_off(unread, 1, checking=True)
    headway.half_over(MANY // 2)
    assert headway.cut_off(unread, MANY, checking=True)
    assert not headway.cut_off(unread, MANY)
