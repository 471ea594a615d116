"""A batch tells what it was filled with, whatever has become of the frames."""

import pytest

from aiorecover.delivery.batch import CODECS, Held, LaneBatch
from aiorecover.record import RECORD_ID_HEADER, Header
from aiorecover.wal import format as fmt

PRODUCER_ID = 2**63 + 12_345
OWNER = fmt.producer_text(PRODUCER_ID)

PLAIN: list[tuple[int, bytes | None, bytes | None, list[Header]]] = [
    (0, b"key", b"value", [("a", b"1"), ("b", None)]),
    (2**63 - 1, None, b"", []),
    (1, b"", None, [(RECORD_ID_HEADER, b"of the record that it was made from")]),
    (1_700_000_000_000, b"k" * 100, b"v" * 5000, [("ä", b"")]),
]


def filled(codec: int) -> tuple[LaneBatch, list[Held]]:
    batch, held = LaneBatch(1 << 16, codec), []
    for number, (timestamp_ms, key, value, headers) in enumerate(PLAIN):
        wire = [*headers, (RECORD_ID_HEADER, b"%b/%d/%d" % (OWNER.encode(), 7, 2**39 + number))]
        assert batch.add(number, timestamp_ms, key, value, wire) is not None
        batch.count += 1
        held.append(Held(fmt.position(7, 2**39 + number), fmt.nonce_of(PRODUCER_ID), timestamp_ms, key, value, wire))
    batch.finish()
    return batch, held


@pytest.mark.parametrize("codec", CODECS.values(), ids=map(str, CODECS))
def test_a_batch_reads_back_what_it_was_filled_with_before_and_after_it_is_sent(codec: int) -> None:
    batch, held = filled(codec)
    assert list(batch.records()) == held
    batch.identify(1, 2, 3)
    sent = bytes(batch._build())
    assert list(batch.records()) == held
    assert bytes(batch._build()) == sent


def test_reading_a_batch_is_no_request_with_it() -> None:
    batch, _ = filled(0)
    assert next(batch.records()).position == fmt.position(7, 2**39)
    assert (batch.requests, batch.possibly) == (0, False)


def test_a_batch_that_was_found_in_kafka_holds_no_record() -> None:
    batch = LaneBatch(1 << 16, 0)
    batch.found_at, batch.count = 5, 1
    batch.finish()
    assert list(batch.records()) == []
