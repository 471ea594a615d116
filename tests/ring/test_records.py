"""Kafka's record format, held to aiokafka's own builder and readers; no damage gets past our strict readers."""

import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka
from aiokafka.record import default_records
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c, decode_varint_py
from hypothesis import example, given
from hypothesis import strategies as st

from aiorecover.ring import records
from aiorecover.ring.records import DIGITS, NULL, VARINT, DamagedRecordError, Record, varint

Headers = list[tuple[str, bytes | None]]
Row = tuple[int, bytes | None, bytes | None, Headers]  # timestamp delta, key, value, headers

PRODUCER = "abcdefghij234"
PREFIX = records.id_prefix(PRODUCER, 7, 1)
BASE = 1_700_000_000_000
KNOWN_HASHES = {  # Kafka's UtilsTest.testMurmur2
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

EDGES = [63, 64, 8191, 8192, 16383, 16384, 70_000]  # where a length's varint, or the way to it, changes
INT64 = st.integers(-(2**63), 2**63 - 1)
DELTAS = st.integers(-70, 70) | st.sampled_from([*EDGES, -64, -65, -8192, -8193]) | st.integers(-(2**40), 2**40)
CONTENTS = st.none() | st.binary(max_size=70) | st.sampled_from(EDGES).map(bytes)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda name: name != "aiorecover-id")
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=70)), max_size=3)
ROWS = st.lists(st.tuples(DELTAS, CONTENTS, CONTENTS, HEADERS), min_size=1, max_size=6)
IDENTITIES = st.none() | st.tuples(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))


def section(headers: Headers, number: int = 0) -> bytes:
    return records.encode_headers(headers, PREFIX) + DIGITS[number]


def with_id(headers: Headers, number: int) -> Headers:
    return [*headers, ("aiorecover-id", b"%b/7/%d" % (PRODUCER.encode(), 1000 + number))]


def encoded(rows: list[Row]) -> bytes:
    return b"".join(
        records.encode(index, delta, key, value, section(headers, index % 1000))
        for index, (delta, key, value, headers) in enumerate(rows)
    )


def batch_of(rows: list[Row], identity: tuple[int, int, int] | None = None, attributes: int = 0) -> bytes:
    """Head, with its CRC-32C, and records."""
    data = encoded(rows)
    latest = BASE + max(delta for delta, *_ in rows)
    head = records.batch_head(len(data), len(rows), BASE, latest, identity, attributes)
    covered = head[records.ATTRIBUTES_AT :] + data
    return head[: records.CRC_AT] + struct.pack(">I", calc_crc32c(covered)) + covered


def encoded_again(record: Record) -> bytes:
    """Encode a decoded record again, with any headers."""
    parts = [varint(len(record.headers))]
    for name, value in record.headers:
        parts += [varint(len(name.encode())), name.encode()]
        parts += [NULL] if value is None else [varint(len(value)), value]
    return records.encode(record.index, record.timestamp_delta, record.key, record.value, b"".join(parts))


# Lengths, deltas and indexes of one and two bytes, deltas of three, null and empty, names that are not ASCII.
SMALL: Row = (1, b"k", b"", [("", b"")])
SAMPLE_ROWS: list[Row] = [
    (0, b"key", b"value", []),
    (100, None, None, [("first", b"1"), ("näme", None)]),
    (20_000, b"", b"v" * 100, []),
    *[SMALL] * 70,
]
SAMPLE = encoded(SAMPLE_ROWS)
ENDS = [span[-1] for span in records.walk(SAMPLE)]


def test_a_record_has_the_bytes_that_were_written_out_by_hand() -> None:
    by_hand = bytes.fromhex(
        "5c"  # 46 bytes follow; zigzag makes 92 of it
        "00"  # attributes
        "c8 01"  # timestamp delta 100: zigzag 200, the low seven bits first
        "06"  # index 3
        "02 6b"  # key "k"
        "01"  # value null: -1
        "04"  # two headers
        "02 61 01"  # "a": null
        "1a 61696f7265636f7665722d6964"  # "aiorecover-id"
        "28 6162636465666768696a323334 2f 37 2f 31303432",  # 20 bytes: abcdefghij234/7/1042
    )
    assert records.encode(3, 100, b"k", None, section([("a", None)], 42)) == by_hand
    assert records.decode(by_hand, 0) == (Record(3, 100, b"k", None, with_id([("a", None)], 42)), len(by_hand))
    assert records.id_of(by_hand, len(by_hand)) == (PRODUCER, 7, 1042)


@pytest.mark.parametrize(
    "read",
    [lambda batch: MemoryRecords(batch).next_batch(), default_records._DefaultRecordBatchPy],
    ids=["as installed", "pure Python"],
)
@given(rows=ROWS, identity=IDENTITIES, transactional=st.booleans())
def test_aiokafka_reads_what_we_wrote(
    read: Callable[[bytes], Any],
    rows: list[Row],
    identity: tuple[int, int, int] | None,
    transactional: bool,
) -> None:
    batch = read(batch_of(rows, identity, attributes=transactional << 4))

    assert batch.validate_crc()
    assert (batch.base_offset, batch.magic, batch.next_offset) == (0, 2, len(rows))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (identity or (-1, -1, -1))
    assert (batch.compression_type, batch.is_transactional, batch.is_control_batch) == (0, transactional, False)
    read_back = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    assert read_back == [
        (index, BASE + delta, key, value, with_id(headers, index))
        for index, (delta, key, value, headers) in enumerate(rows)
    ]


@given(rows=ROWS, identity=IDENTITIES, own=st.booleans())
def test_a_batch_of_aiokafka_is_read_and_has_the_bytes_that_we_write(
    rows: list[Row],
    identity: tuple[int, int, int] | None,
    own: bool,
) -> None:
    rows[0] = (0, *rows[0][1:])  # aiokafka's base timestamp is the first record's
    expected = [
        Record(index, delta, key, value, with_id(headers, index) if own else headers)
        for index, (delta, key, value, headers) in enumerate(rows)
    ]
    builder = DefaultRecordBatchBuilder(2, 0, 0, *(identity or (-1, -1, -1)), 1 << 30)
    for record in expected:
        builder.append(record.index, BASE + record.timestamp_delta, record.key, record.value, record.headers)
    batch = bytes(builder.build())

    start = records.BATCH_HEAD_SIZE
    records.check(batch, start)
    spans = list(records.walk(batch, start))
    assert [records.decode(batch, span[0]) for span in spans] == list(
        zip(expected, [span[-1] for span in spans], strict=True),
    )
    assert [records.key_of(batch, span) for span in spans] == [record.key for record in expected]
    assert [records.timestamp_delta(batch, span) for span in spans] == [record.timestamp_delta for record in expected]
    assert records.count(batch, start) == len(rows)
    if own:
        assert batch == batch_of(rows, identity)


@given(st.tuples(DELTAS, CONTENTS, CONTENTS, HEADERS), st.integers(0, 999), st.integers(0, 2**31 - 1), INT64)
def test_a_moved_record_is_the_one_that_encode_writes_there(row: Row, index: int, to: int, new_delta: int) -> None:
    delta, key, value, headers = row
    record = records.encode(index, delta, key, value, section(headers, index))
    there = records.encode(to, new_delta, key, value, section(headers, index))

    assert records.moved(record, to, new_delta) == there
    assert records.moved(there, index, delta) == record


def test_only_one_whole_record_is_moved() -> None:
    record = SAMPLE[: ENDS[0]]
    no_fields = bytes.fromhex("06 00 00 00")
    for wrong in (*(record[:cut] for cut in range(len(record))), record + b"\0", no_fields):
        with pytest.raises(DamagedRecordError):
            records.moved(wrong, 0, 0)


IDS = st.tuples(st.integers(1, 2**32 - 1), st.integers(1, (2**64 - 1) // 1000 - 1), st.integers(0, 999))
LIKE_AN_ID = st.lists(
    st.sampled_from([b"/", b"\x1a", b"aiorecover-id", b"\x28", PREFIX + b"042", PREFIX[1:], b"zzzzzzzzzzzzz/1/1000"]),
    max_size=4,
).map(b"".join)


@example((1, 1, 0), b"", b"", [("", b"aiorecover-id")])  # the id's name twice in a row
@given(IDS, LIKE_AN_ID, LIKE_AN_ID, st.lists(st.tuples(LIKE_AN_ID.map(bytes.decode), LIKE_AN_ID), max_size=2))
def test_the_id_is_the_last_header_whatever_the_rest_looks_like(
    numbers: tuple[int, int, int],
    key: bytes,
    value: bytes,
    headers: Headers,
) -> None:
    epoch, thousands, digits = numbers
    headers = [(f"x{name}", content) for name, content in headers]
    prefix = records.id_prefix(PRODUCER, epoch, thousands)
    record = records.encode(0, 0, key, value, records.encode_headers(headers, prefix) + DIGITS[digits])
    data = record + SAMPLE

    assert records.id_of(data, len(record)) == (PRODUCER, epoch, thousands * 1000 + digits)
    sequence = b"%d" % (thousands * 1000 + digits)
    assert records.decode(data, 0)[0].headers[-1][1] == b"%b/%d/%b" % (PRODUCER.encode(), epoch, sequence)


@pytest.mark.parametrize(
    "last",
    [
        ("name", b"abcdefghij234/7/1042"),
        ("aiorecover-id", None),
        ("aiorecover-id", b"abcdefghij234/7/042"),
        ("x", PREFIX),
        ("aiorecover-id", b"abcdefghij234/7/1042/"),
        ("name", b"p" * 56 + b"/7/1042"),
    ],
)
def test_a_record_without_an_id_has_none(last: tuple[str, bytes | None]) -> None:
    record = encoded_again(Record(0, 0, None, None, [last]))
    with pytest.raises(DamagedRecordError, match="no record id"):
        records.id_of(record, len(record))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_within_a_segment_is_walked_past_each_length_of_an_index(kind: type[Any]) -> None:
    rows: list[Row] = [(index, b"%d" % index, None, []) for index in range(17_000)]
    whole = encoded(rows)
    data = kind(b"\xff" * 100 + whole + b"\xff" * 100)
    spans = list(records.walk(data, 100, 100 + len(whole)))

    assert len(spans) == records.count(data, 100, 100 + len(whole)) == len(rows)
    assert all(before[-1] == after[0] for before, after in pairwise(spans))
    for index in (0, 63, 64, 8191, 8192, 16_383, 16_384, 16_999):
        span = spans[index]
        assert (records.key_of(data, span), records.timestamp_delta(data, span)) == (b"%d" % index, index)
        assert records.decode(data, span[0])[0].index == index
        assert records.id_of(data, span[-1]) == (PRODUCER, 7, 1000 + index % 1000)


def test_a_batch_that_is_cut_anywhere_gives_the_records_before_the_cut() -> None:
    for cut in range(len(SAMPLE)):
        whole = [end for end in ENDS if end <= cut]
        for data in (SAMPLE[:cut], SAMPLE):  # the file is cut, or only the word that says where records end
            walker = records.walk(data, 0, cut)
            assert [next(walker)[-1] for _ in whole] == whole
            with pytest.raises(StopIteration if cut in {0, *whole} else DamagedRecordError):
                next(walker)
        with pytest.raises(DamagedRecordError, match="outside of the data"):
            records.count(SAMPLE[:cut], 0, len(SAMPLE))


def assert_whole_or_damaged(data: bytes) -> None:
    """Every reader raises `DamagedRecordError` or gives records that, encoded again, are these bytes."""
    with suppress(DamagedRecordError):
        spans = []
        for span in records.walk(data):
            spans.append(span)
            for read in (records.key_of, records.timestamp_delta):
                with suppress(DamagedRecordError):
                    read(data, span)
            with suppress(DamagedRecordError):
                records.id_of(data, span[-1])
            with suppress(DamagedRecordError):
                assert records.decode(records.moved(data[span[0] : span[-1]], 5, 6), 0)[0].index == 5
        assert [0, *(span[-1] for span in spans)] == [*(span[0] for span in spans), len(data)]
        records.check(data)
        decoded = [records.decode(data, span[0]) for span in spans]
        assert [end for _, end in decoded] == [span[-1] for span in spans]
        assert [record.index for record, _ in decoded] == list(range(len(spans)))
        assert b"".join(encoded_again(record) for record, _ in decoded) == data
    with suppress(DamagedRecordError):
        record, end = records.decode(data, 0)
        assert encoded_again(record) == data[:end]
    with suppress(DamagedRecordError):
        records.moved(data, 0, 0)


@given(rows=ROWS, draw=st.data())
def test_flipped_bits_are_damage_or_leave_whole_records(rows: list[Row], draw: st.DataObject) -> None:
    data = bytearray(encoded(rows))
    edges = [place for span in records.walk(data) for place in span]  # most bits of a batch are in its contents
    places = st.integers(0, len(data) - 1) | st.sampled_from(edges).map(lambda place: min(place, len(data) - 1))
    for place, mask in draw.draw(st.lists(st.tuples(places, st.integers(1, 255)), min_size=1, max_size=3)):
        data[place] ^= mask
    assert_whole_or_damaged(bytes(data[: draw.draw(st.sampled_from([len(data), *edges]))]))


def test_each_bit_of_a_batch_that_flips_is_damage_or_leaves_whole_records() -> None:
    data = bytearray(encoded(SAMPLE_ROWS[:5]))
    for place in range(len(data)):
        for bit in range(8):
            data[place] ^= 1 << bit
            assert_whole_or_damaged(bytes(data))
            data[place] ^= 1 << bit


@given(st.binary(max_size=60) | st.lists(st.sampled_from([b"\0", b"\1", b"\x0e", b"\x80", b"\xff"])).map(b"".join))
@example(bytes(64))
@example(b"\xff" * 64)
def test_any_bytes_are_damage_or_whole_records(data: bytes) -> None:
    assert_whole_or_damaged(data)


BODY = "00 00 00 01 01 02 00 00"  # key and value null; one header, name and value empty


@pytest.mark.parametrize(
    ("length", "body"),
    [
        pytest.param("90 00", BODY, id="length longer than it need be"),
        pytest.param("11", BODY, id="length -9"),
        pytest.param("0e", BODY, id="length too small"),
        pytest.param("12", BODY, id="length crosses the end"),
        pytest.param("", "01 00 00 01 01 02 00 00", id="attributes"),
        pytest.param("", "00 80 00 00 01 01 02 00 00", id="delta longer than it need be"),
        pytest.param("", "00 ff ff ff ff ff ff ff ff ff 02 00 01 01 02 00 00", id="delta above 64 bits"),
        pytest.param("", "00 ff ff ff ff ff ff ff ff ff ff 01 00 01 01 02 00 00", id="delta of eleven bytes"),
        pytest.param("", "00 00 02 01 01 02 00 00", id="first index 1"),
        pytest.param("", "00 00 01 01 01 02 00 00", id="index -1"),
        pytest.param("", "00 00 00 03 01 02 00 00", id="length of the key -2"),
        pytest.param("", "00 00 00 01 20 02 00 00", id="value crosses the end"),
        pytest.param("", "00 00 00 01 01 01", id="-1 headers"),
        pytest.param("", "00 00 00 01 01 02 01 00", id="name of a header null"),
        pytest.param("", "00 00 00 01 01 02 02 ff 00", id="name of a header no UTF-8"),
        pytest.param("", "00 00 00 01 01 00 00 00", id="bytes after the headers"),
    ],
)
def test_bytes_that_encode_never_writes_are_damage(length: str, body: str) -> None:
    content = bytes.fromhex(body)
    with pytest.raises(DamagedRecordError, match="at="):
        records.check(bytes.fromhex(length) + content if length else varint(len(content)) + content)


def test_bytes_that_encode_writes_are_no_damage() -> None:
    records.check(bytes.fromhex(f"10 {BODY}"))
    records.check(b"")


def test_an_id_whose_length_is_damaged_is_none() -> None:
    record = bytearray(records.encode(0, 0, None, None, section([])))
    record[-21] += 2
    with pytest.raises(DamagedRecordError, match="no record id"):
        records.id_of(record, len(record))


def test_reading_without_check_finds_the_same_damage() -> None:
    for index in (-1, 2**31):
        with pytest.raises(DamagedRecordError, match="its index cannot be"):
            records.decode(records.encode(index, 0, None, None, b"\0"), 0)
    with pytest.raises(DamagedRecordError, match="cannot be"):
        records.count(bytes.fromhex("06 00 00 00"))  # neither key nor value
    crossing = bytes.fromhex("10 00 00 00 20 01 02 00 00") + bytes(20)  # a key of 16 bytes
    with pytest.raises(DamagedRecordError, match="a length cannot be"):
        records.key_of(crossing, next(records.walk(crossing)))


@given(INT64)
def test_a_varint_is_kafkas(number: int) -> None:
    data = varint(number)
    assert records.read_varint(data, 0) == decode_varint_py(bytearray(data)) == (number, len(data))
    assert records.read_varint(b"\xff" + data, 1) == (number, len(data) + 1)


def test_a_varint_is_read_for_ten_bytes_at_most() -> None:
    with pytest.raises(DamagedRecordError, match="a number cannot be at=9"):
        records.read_varint(b"\xff" * 1000, 0)


def test_the_table_of_varints_is_what_varint_gives() -> None:
    assert [records.read_varint(data, 0) for data in VARINT] == [(n, len(varint(n))) for n in range(records.TABLE)]
    assert records.read_varint(NULL, 0) == (-1, 1)


@given(st.binary(max_size=40) | st.binary(min_size=240, max_size=270))
def test_murmur2_is_kafkas(key: bytes) -> None:
    assert records.murmur2(key) == murmur2_of_aiokafka(key) & 0x7FFFFFFF


def test_murmur2_gives_the_hashes_of_kafkas_own_test() -> None:
    assert {key: records.murmur2(key) for key in KNOWN_HASHES} == {
        key: known & 0x7FFFFFFF for key, known in KNOWN_HASHES.items()
    }


def test_the_fields_of_a_batch_head_are_where_their_names_say() -> None:
    head = records.batch_head(1000, 5, BASE, BASE + 9, (11, 12, 13), attributes=0x10)
    fields = {
        records.BASE_OFFSET_AT: ("q", 0),
        records.LENGTH_AT: ("i", 1049),
        records.LEADER_EPOCH_AT: ("i", -1),
        records.MAGIC_AT: ("b", 2),
        records.CRC_AT: ("I", 0),
        records.ATTRIBUTES_AT: ("h", 0x10),
        records.LAST_OFFSET_AT: ("i", 4),
        records.BASE_TIMESTAMP_AT: ("q", BASE),
        records.LATEST_TIMESTAMP_AT: ("q", BASE + 9),
        records.IDENTITY_AT: ("q", 11),
        records.COUNT_AT: ("i", 5),
    }
    found = {at: (code, struct.unpack_from(f">{code}", head, at)[0]) for at, (code, _) in fields.items()}
    assert found == fields
    assert struct.unpack_from(">qhi", head, records.IDENTITY_AT) == (11, 12, 13)
    assert len(head) == records.BATCH_HEAD_SIZE == 61


def test_headers_may_be_any_sequence_and_hold_any_buffer() -> None:
    plain = section([("a", b"1"), ("b", None)])
    assert records.encode_headers((["a", bytearray(b"1")], ("b", None)), PREFIX) + DIGITS[0] == plain
    assert records.encode_headers([("a", memoryview(b"1")), ("b", None)], PREFIX) + DIGITS[0] == plain
    assert records.encode_headers([], PREFIX) == PREFIX
