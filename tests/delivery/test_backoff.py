"""Pauses that grow, within bounds, each a little off."""

from aiorecover.delivery.backoff import JITTER, Backoff


def lowest(low: float, _: float) -> float:
    return low


def highest(_: float, high: float) -> float:
    return high


def even(low: float, high: float) -> float:
    return (low + high) / 2


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(0.1, 0.5, even)
    assert [round(backoff.next(), 6) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert round(backoff.next(), 6) == 0.1


def test_chance_moves_a_pause_within_the_jitter_and_never_adds_up() -> None:
    for spread, factor in ((lowest, 1 - JITTER), (highest, 1 + JITTER)):
        backoff = Backoff(1.0, 4.0, spread)
        assert [round(backoff.next() / factor, 6) for _ in range(4)] == [1.0, 2.0, 4.0, 4.0]


def test_a_first_pause_above_the_longest_is_cut() -> None:
    assert Backoff(60.0, 0.5, even).next() == 0.5
