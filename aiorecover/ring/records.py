"""Kafka's record format v2: encode, walk, decode. Pure: bytes in, values out.

A batch is Kafka's head (61 bytes, `BATCH_HEAD`, big-endian) and its records:

    ┌────────┬────────────┬─────────────────┬──────────────┬─────┬───────┬─────────────────────┐
    │ length │ attributes │ timestamp delta │ offset delta │ key │ value │ headers             │
    │ varint │ one byte 0 │ varint, ms      │ varint       │ field each  │ count, (name, value)│
    └────────┴────────────┴─────────────────┴──────────────┴─────┴───────┴─────────────────────┘
    start    body                    time end      offset end                             end

A varint is zigzag, 7 bits a byte, the low ones first. A field is a varint length and that many bytes; the length -1 is
null. The offset delta is the record's index in its batch. The last header is the record id, as text:

    aiorecover-id: producer/epoch/sequence

Readers are strict, since these records are our own: they refuse what `encode` does not write, a varint that is longer
than it need be for example. They never raise anything but `DamagedRecordError`, whatever the bytes.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from itertools import count as count_from
from typing import TypeAlias

import msgspec

from aiorecover.errors import EncodeError

Buffer: TypeAlias = bytes | bytearray | memoryview
Span: TypeAlias = tuple[int, int, int, int, int]
"""Places of a record: start, body (the attributes byte), end of timestamp delta, end of offset delta, end."""

BATCH_HEAD = struct.Struct(">qiibIhiqqqhii")
BATCH_HEAD_SIZE = BATCH_HEAD.size  # 61
BASE_OFFSET_AT = 0  # int64: 0, the broker gives the offset
LENGTH_AT = 8  # int32: bytes of the batch after this field
LEADER_EPOCH_AT = 12  # int32: -1, the broker's to set
MAGIC_AT = 16  # int8: 2, the version of the format
CRC_AT = 17  # uint32: CRC-32C of everything after this field
ATTRIBUTES_AT = 21  # int16: bits 0-2 compression, 4 transactional; here begins what the CRC covers
LAST_OFFSET_AT = 23  # int32: index of the last record
BASE_TIMESTAMP_AT = 27  # int64, ms since 1970: records count from it
LATEST_TIMESTAMP_AT = 35  # int64, ms since 1970: the highest of the records
IDENTITY_AT = 43  # Kafka producer id int64, producer epoch int16, base sequence int32; -1 each: none
COUNT_AT = 57  # int32: number of records

ID_NAME = b"aiorecover-id"
TABLE = 16384  # numbers below it have their varint in `VARINT`
DIGITS = [b"%03d" % number for number in range(1000)]  # the last three of a sequence

_FIELDS_LEAST = 3  # bytes: key, value and number of headers
_PAIR = 2
_INT32_MAX = (1 << 31) - 1
_SEVEN_BITS = 127  # a byte of a varint above it says that another one follows
_VARINT_BITS = 64


class DamagedRecordError(ValueError):
    """The bytes are no whole records."""


class Record(msgspec.Struct, frozen=True):
    """A decoded record: index in its batch, ms since the batch's base timestamp, and the fields (None: null)."""

    index: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def varint(number: int) -> bytes:
    """Return a signed 64-bit number as a zigzag varint of 1 to 10 bytes; `VARINT` has the small ones ready."""
    number = number << 1 if number >= 0 else ~(number << 1)
    encoded = bytearray()
    while number > _SEVEN_BITS:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


VARINT = [varint(number) for number in range(TABLE)]
NULL = varint(-1)

_ID_FIELD = VARINT[len(ID_NAME)] + ID_NAME
_ID_MOST = 64  # bytes: name, length and text of an id with the longest producer id (16 characters) and numbers
_ID_TEXT = re.compile(rb"([!-.0-~]+)/([1-9][0-9]{0,9})/([1-9][0-9]{0,19})")

# What the two bytes of a length add up from; anything else (negative, longer) falls far below 0.
_ELSE = -1 << 62
_LOW = [_ELSE if byte & 1 else (byte & 127) >> 1 for byte in range(256)]
_HIGH = [byte << 6 if 0 < byte <= _SEVEN_BITS else _ELSE for byte in range(256)]

_WORDS = [struct.Struct(f"<{words}I").unpack_from for words in range(64)]


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Return the number at ``at`` and the place after it.

    Raises:
        DamagedRecordError: the data ends within it, or it is above 64 bits or longer than it need be.

    """
    try:
        byte = data[at]
        if byte <= _SEVEN_BITS:
            return (byte >> 1) ^ -(byte & 1), at + 1
        number, shift = byte & 127, 7
        while byte > _SEVEN_BITS and shift < _VARINT_BITS:
            at += 1
            byte = data[at]
            number |= (byte & 127) << shift
            shift += 7
    except IndexError:
        raise _damaged("the data ends within a number", at) from None
    if not 0 < byte <= _SEVEN_BITS or number >> _VARINT_BITS:
        raise _damaged("a number cannot be", at)
    return (number >> 1) ^ -(number & 1), at + 1


def id_prefix(producer_id: str, epoch: int, thousands: int, digits: int = 3) -> bytes:
    """Return the header section of a record without other headers, except for the last digits of its sequence.

    The sequence is ``thousands * 1000 + n``; `DIGITS` [n] completes the section. Below 1,000 it is n alone, of so many
    ``digits``, without zeros before it. A producer id is at most 16 characters of printable ASCII without a slash.
    """
    text = f"{producer_id}/{epoch}/{thousands or ''}".encode()
    return VARINT[1] + _ID_FIELD + varint(len(text) + digits) + text


def encode_headers(headers: object, id_prefix: bytes) -> bytes:
    """Return the header section of a record with these headers, the id last; `DIGITS` completes it as in `id_prefix`.

    Raises:
        EncodeError: not a sequence of (str, bytes-like or None) pairs, or one of them has the name of the id header.

    """
    if not isinstance(headers, Sequence) or isinstance(headers, (str, bytes, bytearray, memoryview)):
        remedy = "use list(headers.items())" if hasattr(headers, "items") else "use list(headers)"
        raise EncodeError(f"headers must be a list of (str, bytes) tuples: {remedy} type={_kind(headers)}")
    pairs = list(headers)
    parts = [varint(len(pairs) + 1)]
    for position, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != _PAIR:
            raise EncodeError(
                "headers must be a list of (str, bytes) tuples: this one is not a pair "
                f"position={position} type={_kind(pair)}",  # contents stay out of errors: headers carry credentials
            )
        name, value = pair
        parts.append(_field(_header_name(name, position)))
        parts.append(_field(value if type(value) is bytes or value is None else _header_value(value, name)))
    parts.append(id_prefix[1:])  # without its count
    return b"".join(parts)


def encode(index: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: bytes) -> bytes:
    """Return a whole record, its length in front; ``headers`` is its header section, digits and all."""
    return _sized(b"".join((b"\0", varint(timestamp_delta), varint(index), _field(key), _field(value), headers)))


def decode(data: Buffer, at: int) -> tuple[Record, int]:
    """Return the record that starts at ``at`` and the place after it.

    Raises:
        DamagedRecordError: there is no whole record.

    """
    size, body = read_varint(data, at)
    end = body + size
    if size <= _FIELDS_LEAST or end > len(data) or data[body]:
        raise _damaged("no record can begin like this", at)
    delta, time_end = read_varint(data, body + 1)
    index, offset_end = read_varint(data, time_end)
    if not 0 <= index <= _INT32_MAX:
        raise _damaged("its index cannot be", at)
    return Record(index, delta, *_read_fields(data, offset_end, end)), end


def walk(data: Buffer, start: int = 0, end: int | None = None, first: int = 0) -> Iterator[Span]:
    """Yield the places of each record between ``start`` and ``end`` (default: the end of the data).

    Lengths, attributes, timestamp deltas and indexes (``first`` and on) are looked at; `check` looks at the rest too.

    Raises:
        DamagedRecordError: one of them cannot be, or a record crosses ``end``; what came before it was yielded.

    """
    end = len(data) if end is None else end
    if not 0 <= start <= end <= len(data):
        raise _damaged(f"the records lie outside of the data start={start} end={end} bytes={len(data)}", start)
    at = start
    try:
        for index in chain(VARINT, map(varint, count_from(TABLE))) if not first else map(varint, count_from(first)):
            if at == end:
                return
            low = data[at]
            body = at + 1
            stop = body + _LOW[low]
            if low > _SEVEN_BITS:  # more than one byte, mostly two
                stop += 1 + _HIGH[data[body]]
                body += 1
                if stop < 0:
                    size, body = read_varint(data, at)
                    stop = body + size
            if data[body + 1] <= _SEVEN_BITS:
                time_end = body + 2
            elif 0 < data[body + 2] <= _SEVEN_BITS:
                time_end = body + 3
            else:
                time_end = read_varint(data, body + 1)[1]
            offset_end = time_end + len(index)
            if data[body] or data[time_end:offset_end] != index or not offset_end + _FIELDS_LEAST <= stop <= end:
                raise _damaged("a length, the attributes or the index cannot be", at)
            yield at, body, time_end, offset_end, stop
            at = stop
    except IndexError:
        raise _damaged("the data ends within a record", at) from None


def count(data: Buffer, start: int = 0, end: int | None = None) -> int:
    """Return how many records there are; raises as `walk` does."""
    return sum(1 for _ in walk(data, start, end))


def check(data: Buffer, start: int = 0, end: int | None = None, first: int = 0) -> int:
    """Look at every length and name of every record and return how many there are; slower than `walk`.

    Raises:
        DamagedRecordError: there is anything but whole records; `decode` then reads every one of them.

    """
    number = 0
    for _, _, _, offset_end, stop in walk(data, start, end, first):
        _read_fields(data, offset_end, stop)
        number += 1
    return number


def key_of(data: Buffer, span: Span) -> bytes | None:
    """Return the key of a record; None: null.

    Raises:
        DamagedRecordError: its length cannot be.

    """
    return _read_field(data, span[3], span[4])[0]


def timestamp_delta(data: Buffer, span: Span) -> int:
    """Return the record's timestamp, in ms since the base timestamp of its batch."""
    return read_varint(data, span[1] + 1)[0]


def id_of(data: Buffer, span_end: int) -> tuple[str, int, int]:
    """Return producer, epoch and sequence of the record that ends at ``span_end``.

    Raises:
        DamagedRecordError: its last header is no record id.

    """
    tail = bytes(data[max(0, span_end - _ID_MOST) : span_end])
    # User data may hold this too, but before the id's own: its control character cannot be in the text of an id.
    _, name, content = tail.rpartition(_ID_FIELD)
    text = _ID_TEXT.fullmatch(content, 1)
    if not name or text is None or content[:1] != VARINT[len(content) - 1]:
        raise _damaged("its last header is no record id", span_end)
    return text[1].decode(), int(text[2]), int(text[3])


def moved(record: bytes, index: int, timestamp_delta: int) -> bytes:
    """Return a whole record laid out for another place: new index, new timestamp delta in ms, the rest as it is.

    Raises:
        DamagedRecordError: ``record`` is not one whole record.

    """
    size, body = read_varint(record, 0)
    _, time_end = read_varint(record, body + 1)
    _, offset_end = read_varint(record, time_end)
    if body + size != len(record) or offset_end + _FIELDS_LEAST > len(record):
        raise _damaged("not one whole record", 0)
    place = varint(timestamp_delta) + varint(index)
    return _sized(b"".join((record[body : body + 1], place, record[offset_end:])))


def batch_head(
    records_bytes_length: int,
    count: int,
    base_timestamp: int,
    latest_timestamp: int,
    identity: tuple[int, int, int] | None,
    attributes: int = 0,
) -> bytes:
    """Return Kafka's head of a batch, its CRC 0: that is made when a request is built.

    Timestamps are ms since 1970. ``identity``: Kafka producer id, producer epoch, base sequence; None: not sent yet.
    """
    length = records_bytes_length + BATCH_HEAD_SIZE - LEADER_EPOCH_AT
    times = base_timestamp, latest_timestamp
    return BATCH_HEAD.pack(0, length, -1, 2, 0, attributes, count - 1, *times, *(identity or (-1, -1, -1)), count)


def murmur2(data: bytes) -> int:
    """Return Kafka's hash of a key, made positive (31 bits): modulo the number of partitions it is the partition."""
    words = len(data) >> 2
    unpack = _WORDS[words] if words < len(_WORDS) else struct.Struct(f"<{words}I").unpack_from
    mixed = 0x9747B28C ^ len(data)
    for word in unpack(data):
        product = word * 0x5BD1E995 & 0xFFFFFFFF
        mixed = (mixed * 0x5BD1E995 ^ (product ^ product >> 24) * 0x5BD1E995) & 0xFFFFFFFF
    if len(data) & 3:
        mixed = (mixed ^ int.from_bytes(data[words << 2 :], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return (mixed ^ mixed >> 15) & 0x7FFFFFFF


def _sized(body: bytes) -> bytes:
    size = len(body)
    return (VARINT[size] if size < TABLE else varint(size)) + body


def _field(content: bytes | None) -> bytes:
    return NULL if content is None else _sized(content)


def _read_field(data: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    size, start = read_varint(data, at)
    stop = start if size == -1 else start + size
    if not start <= stop <= end:
        raise _damaged("a length cannot be", at)
    return None if size == -1 else bytes(data[start:stop]), stop


def _read_fields(data: Buffer, at: int, end: int) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Key, value and headers, which must end at ``end``."""
    key, at = _read_field(data, at, end)
    value, at = _read_field(data, at, end)
    headers: list[tuple[str, bytes | None]] = []
    left, at = read_varint(data, at)
    while left > 0:  # each takes bytes: a number that cannot be ends at `end`
        name, value_at = _read_field(data, at, end)
        content, at = _read_field(data, value_at, end)
        if name is None:
            raise _damaged("a header has no name", value_at)
        try:
            headers.append((name.decode(), content))
        except UnicodeDecodeError:
            raise _damaged("the name of a header is no UTF-8", value_at) from None
        left -= 1
    if left < 0 or at != end:
        raise _damaged("its headers do not end where it does", at)
    return key, value, headers


def _header_name(name: object, position: int) -> bytes:
    if not isinstance(name, str):
        raise EncodeError(f"the name of a header must be a str: decode it first position={position} type={_kind(name)}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise EncodeError(
            f"the name of a header holds lone surrogates, which UTF-8 does not have: clean the text name={name!r:.200}",
        ) from None
    if encoded == ID_NAME:  # recovery and readers find a record by it
        raise EncodeError("the header aiorecover-id is set by aiorecover itself: leave it out when forwarding")
    return encoded


def _header_value(value: object, name: str) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise EncodeError(
            f"the value of a header must be bytes or None: use value.encode() name={name!r:.200} type={_kind(value)}",
        )
    try:
        return bytes(value)
    except ValueError as error:
        raise EncodeError(
            "the value of a header cannot be read: publish before releasing the memoryview "
            f"name={name!r:.200} error={error}",
        ) from error


def _kind(value: object) -> str:
    return type(value).__qualname__


def _damaged(what: str, at: int) -> DamagedRecordError:
    return DamagedRecordError(f"a record is damaged: {what} at={at}")
