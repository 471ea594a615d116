"""The id of a record, read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover import record_id_of
from aiorecover.record_id import EPOCH_MAX, SEQUENCE_MAX, parse_record_id

PRODUCER = "abcdefghij234"


@given(epoch=st.integers(1, EPOCH_MAX), sequence=st.integers(1, SEQUENCE_MAX))
def test_every_id_is_read_back(epoch: int, sequence: int) -> None:
    text = f"{PRODUCER}/{epoch}/{sequence}"
    assert parse_record_id(text) == (PRODUCER, epoch, sequence)
    assert record_id_of([("trace", b"x"), ("aiorecover-id", text.encode())]) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", f"{PRODUCER}/1", f"{PRODUCER}/1/1/1", f"{PRODUCER}/0/1", f"{PRODUCER}/1/0", f"{PRODUCER}/01/1"),
        *(f"{PRODUCER}/1/01", f"{PRODUCER}/1/1\n", f"{PRODUCER}/1/\u0661", f"{PRODUCER.upper()}/1/1"),
        *(f"{PRODUCER[1:]}/1/1", f"{PRODUCER}/{EPOCH_MAX + 1}/1", f"{PRODUCER}/1/{SEQUENCE_MAX + 1}"),
    ],
)
def test_a_header_without_a_record_id_gives_none(text: str) -> None:
    assert parse_record_id(text) is None
    assert record_id_of([("aiorecover-id", text.encode())]) is None


def test_the_last_of_several_headers_counts() -> None:
    one, two = (f"{PRODUCER}/1/{sequence}".encode() for sequence in (7, 8))
    headers = [("aiorecover-id", one), ("trace", b"x"), ("aiorecover-id", two), ("other", None)]
    assert record_id_of(headers) == f"{PRODUCER}/1/8"


@pytest.mark.parametrize(
    "headers", [None, (), [("trace", b"x")], [("aiorecover-id", None)], [("aiorecover-id", b"\xff")]]
)
def test_a_record_without_an_id_has_none(headers: list[tuple[str, bytes | None]] | None) -> None:
    assert record_id_of(headers) is None
