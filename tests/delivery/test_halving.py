"""Where a refused batch is cut: every part has a record, none is lost, and the one at fault is soon alone."""

import math

import pytest

from aiorecover.delivery.halving import cut


def sends(sizes: list[int], poison: int) -> int:
    """How many sends find the record at ``poison``, whose size alone is above the limit."""
    if len(sizes) == 1:
        return 1
    total, start = 1, 0
    for length in cut(sizes, too_large=True):
        inside = start <= poison < start + length
        total += sends(sizes[start : start + length], poison - start) if inside else 1
        start += length
    return total


@pytest.mark.parametrize("too_large", [False, True])
@pytest.mark.parametrize(
    "sizes", [[1, 1], [0, 0, 0], [1, 100], [100, 1], [1, 100, 1], [5, 5, 5, 5, 5], [0, 9]], ids=str
)
def test_the_parts_are_all_of_it_and_none_is_empty_or_the_whole(sizes: list[int], *, too_large: bool) -> None:
    parts = cut(sizes, too_large=too_large)
    assert sum(parts) == len(sizes)
    assert min(parts) > 0
    assert len(parts) > 1


def test_the_smaller_half_goes_first() -> None:
    assert cut([1] * 5, too_large=False) == [2, 3]
    assert cut([1] * 8, too_large=False) == [4, 4]


def test_a_record_that_makes_up_most_of_it_is_taken_out_at_once() -> None:
    assert cut([10] * 40 + [1000] + [10] * 20, too_large=True) == [40, 1, 20]
    assert cut([1000, 10, 10], too_large=True) == [1, 2]
    assert cut([10, 10, 1000], too_large=True) == [2, 1]


def test_what_is_too_large_is_cut_by_bytes() -> None:
    assert cut([300, 200, 100, 100, 100, 200], too_large=True) == [2, 4]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 9, 17, 33, 100, 129, 1025])
def test_one_large_record_among_small_ones_costs_at_most_two_log_n_and_two_sends(count: int) -> None:
    for large in (200, 1000, 60_000):
        for poison in range(0, count, max(1, count // 50)):
            sizes = [large if number == poison else 100 for number in range(count)]
            assert sends(sizes, poison) <= 2 * math.log2(count) + 2, (large, poison)
