"""How a refusal stands in the dead ring: whole, bounded, and readable whatever the error said."""

import pytest
from aiokafka import errors as kafka

from aiorecover.delivery.outcomes import OUTCOMES
from aiorecover.delivery.refusal import ERROR_MAX, MESSAGE_MAX, Letter, Refusal, decode, encode, letter_of
from aiorecover.wal import format as fmt
from aiorecover.wal.moved import MOVED_BYTES
from aiorecover.wal.ring import MARGIN

LARGEST = Refusal(
    error="E" * 1000,
    message="\U0001f600" * 10_000,
    persisted="persisted",
    attempts=2**63,
    first_ms=2**63,
    last_ms=2**63,
)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 1 << 20])
def test_whatever_is_told_of_a_record_it_fits_where_the_record_came_from(size: int) -> None:
    record = bytes(size)
    gained = MOVED_BYTES + len(encode(letter_of(record, LARGEST, owed=True))) - size
    assert gained + fmt.WORD <= MARGIN


def test_a_letter_is_read_back_as_it_was_written() -> None:
    refusal = Refusal(error="A", message="b", persisted="possibly", attempts=3, first_ms=4, last_ms=5)
    letter = decode(encode(letter_of(b"\xc1 no record", refusal, owed=True)))
    assert letter.record == b"\xc1 no record"
    assert letter.owed
    assert letter.refusal == refusal


def test_its_fields_stand_in_this_order_for_ever() -> None:
    refusal = Refusal(error="E", message="m", persisted="not", attempts=1, first_ms=2, last_ms=3)
    assert encode(letter_of(b"r", refusal, owed=False)).hex() == "98c40172a145a16da36e6f74010203c2"


@pytest.mark.parametrize("text", ["\U0001f600" * 1000, "ä" * 1000, "\ud800 half a pair", "x" * 5000, ""])
def test_a_text_is_cut_between_characters(text: str) -> None:
    letter = letter_of(b"", Refusal(error="E", message=text), owed=False)
    assert len(letter.message.encode()) <= MESSAGE_MAX
    assert decode(encode(letter)) == letter


def test_every_error_of_the_table_has_room_for_its_name() -> None:
    assert max(len(kind.__name__) for kind in OUTCOMES) <= ERROR_MAX
    assert letter_of(b"", Refusal(error=kafka.InvalidTimestampError.__name__, message=""), owed=False).error


TOO_DEEP = b"\x99" + encode(letter_of(b"r", Refusal(error="E", message=""), owed=True))[1:] + b"\x91" * 3_000 + b"\xc0"


@pytest.mark.parametrize("payload", [b"", b"\xc1", encode([b"r", "E"]), encode({"record": b"r"}), TOO_DEEP])
def test_what_is_no_letter_is_a_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(payload)


def test_a_refusal_reads_as_its_class_and_its_text() -> None:
    assert str(Refusal(error="E", message="why")) == "E: why"
    assert str(Refusal(error="E", message="")) == "E"
    assert Letter(b"", "E", "why", "not", 1, 2, 3, owed=False).refusal.message == "why"
