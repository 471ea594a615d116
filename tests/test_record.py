"""Record ids on the wire: put together in bulk, and the same as one by one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.record import record_id, record_ids


def one_by_one(sequences: Sequence[int]) -> list[bytes]:
    return [record_id("p", 7, sequence).encode() for sequence in sequences]


@given(first=st.integers(1, 5000) | st.integers(1, 1 << 40), count=st.integers(1, 2500))
def test_the_ids_of_a_run_are_those_of_its_records(first: int, count: int) -> None:
    run = range(first, first + count)
    assert record_ids(b"p/7/", run) == one_by_one(run)
    assert record_ids(b"p/7/", list(run)) == one_by_one(run)


@given(sequences=st.lists(st.integers(1, 1 << 40), min_size=1, unique=True).map(sorted))
def test_the_ids_of_a_run_with_gaps_are_those_of_its_records(sequences: list[int]) -> None:
    assert record_ids(b"p/7/", sequences) == one_by_one(sequences)


@pytest.mark.parametrize("first", [1, 998, 999, 1000, 1998, 999_998])
def test_nothing_is_lost_where_the_thousands_change(first: int) -> None:
    run = range(first, first + 3)
    assert record_ids(b"p/7/", run) == one_by_one(run)
