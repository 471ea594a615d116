"""The bytes of a record in the ring; and record ids on the wire: put together in bulk, and the same as one by one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover import record as rec
from aiorecover.record import record_id, record_ids

# Topic, key, value, partition, timestamp, headers, context, source: in this order for ever.
GOLDEN = bytes.fromhex("98 a174 c4016b c40176 03 cf0000018bcfe56800 92 92a168c401ff 92a16ec0 81a16101 93a26f72 04 05")
GOLDEN_LEAST = bytes.fromhex("98 a174 c400 c0 c0 cf0000018bcfe56800 c0 c0 c0")
STAMPED = 1_700_000_000_000


def test_each_field_is_read_back_from_its_place() -> None:
    record = rec.decode(GOLDEN)
    assert rec.decode(GOLDEN_LEAST) == ("t", b"", None, None, STAMPED, None, None, None)
    assert (record[rec.TOPIC], record[rec.KEY], record[rec.VALUE]) == ("t", b"k", b"v")
    assert (record[rec.PARTITION], record[rec.TIMESTAMP]) == (3, STAMPED)
    assert (record[rec.HEADERS], record[rec.CONTEXT]) == ([("h", b"\xff"), ("n", None)], {"a": 1})
    assert record[rec.SOURCE] == ["or", 4, 5]


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
