import pytest

from benchmarks.figures import Spread, histogram, quantile, quantiles, ratios


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 1), (0.5, 50), (0.501, 51), (0.99, 99), (0.999, 100), (1.0, 100)],
)
def test_a_quantile_is_the_least_value_that_its_share_does_not_exceed(share: float, expected: int) -> None:
    assert quantile(range(1, 101), share) == expected


def test_a_histogram_has_twenty_bins_for_each_power_of_ten_and_counts_every_value() -> None:
    assert histogram([0, 1, 999, 1000, 1001, 1_000_000]) == [(0, 2), (59, 1), (60, 2), (120, 1)]


def test_the_only_value_is_every_quantile() -> None:
    assert quantiles([7]) == {"p50": 7, "p99": 7, "p99.9": 7, "max": 7}


def test_quantiles_do_not_depend_on_the_order_of_the_values() -> None:
    assert quantiles([3, 1, 2]) == quantiles([1, 2, 3]) == {"p50": 2, "p99": 3, "p99.9": 3, "max": 3}


def test_a_spread_shows_the_median_with_the_least_and_the_greatest() -> None:
    assert Spread((3000.0, 1000.0, 2000.0)).text() == "2,000 (1,000 to 3,000)"
    assert Spread((3000.0,)).text() == "3,000"


def test_ratios_are_of_the_pair_of_each_round() -> None:
    dear, cheap = [{"cpu_us": 4.0}, {"cpu_us": 3.0}], [{"cpu_us": 2.0}, {"cpu_us": 1.0}]
    assert ratios(dear, cheap, "cpu_us") == Spread((2.0, 3.0))
