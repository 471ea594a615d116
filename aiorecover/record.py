"""The payload of a frame: one record as a MessagePack array, and its id on the wire."""

from collections.abc import Sequence
from typing import Any

import msgspec

from aiorecover.errors import EncodeError

RECORD_ID_HEADER = "aiorecover-id"

Header = tuple[str, bytes | None]
Record = tuple[
    str,  # topic
    bytes | None,  # key; null and empty stay different
    bytes | None,  # value; null is a tombstone
    int | None,  # partition, None: the partitioner's choice
    int,  # timestamp, ms since 1970
    list[Header] | None,
    Any,  # context: the publisher's own data, given back in the delivery report
    Any,  # source: (topic, partition, offset) of the consumed record it was made from
]
"""Warning: do not add, remove or reorder fields without a new format version."""

_ENDINGS = [b"%03d" % number for number in range(1000)]  # of a sequence's digits

TOPIC, KEY, VALUE, PARTITION, TIMESTAMP, HEADERS, CONTEXT, SOURCE = range(8)

encode = msgspec.msgpack.Encoder().encode
UNENCODABLE = (
    msgspec.MsgspecError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
)  # what `encode` raises itself
_decoder = msgspec.msgpack.Decoder(Record)


def decode(payload: bytes | memoryview) -> Record:
    """The record of a frame.

    Raises:
        ValueError: the payload is no record; its checksum held, so it was written that way.

    """
    record: Record = _decoder.decode(payload)
    return record


def record_id(producer_id: str, epoch: int, sequence: int) -> str:
    """The id of a record as text: ``producer id/epoch/sequence``."""
    return f"{producer_id}/{epoch}/{sequence}"


def record_ids(prefix: bytes, sequences: Sequence[int]) -> list[bytes]:
    """The ids of records on the wire; in a run without gaps each number is put together from two parts.

    Measured: 60 ns a record less than formatting each as a whole.
    """
    first, count = sequences[0], len(sequences)
    if first < len(_ENDINGS) or sequences[-1] - first != count - 1:
        return [b"%b%d" % (prefix, sequence) for sequence in sequences]
    thousands, ending = divmod(first, len(_ENDINGS))
    ids: list[bytes] = []
    while len(ids) < count:
        head = b"%b%d" % (prefix, thousands)
        ids += [head + end for end in _ENDINGS[ending : ending + count - len(ids)]]
        thousands, ending = thousands + 1, 0
    return ids


def wire_bytes(key: bytes | None, value: bytes | None, headers: Sequence[Header] | None) -> int:
    """An upper bound for the bytes of one record alone in a Kafka batch, its id header included.

    61 bytes batch header, 5-byte bounds for each varint; the id is at most 13 + 1 + 7 + 1 + 13 characters.
    """
    total = 61 + 5 * 6 + len(RECORD_ID_HEADER) + 35 + 10
    total += len(key or b"") + len(value or b"")
    for name, content in headers or ():
        total += len(name.encode()) + len(content or b"") + 10
    return total


def check_source(source: object) -> tuple[str, int, int]:
    """Where a record was made from: (topic, partition, offset).

    Raises:
        EncodeError: anything else.

    """
    if isinstance(source, tuple) and len(source) == 3:  # noqa: PLR2004 - topic, partition, offset
        topic, partition, offset = source
        numbers = type(partition) is int and type(offset) is int and 0 <= partition < 1 << 31
        numbers = numbers and 0 <= offset < (1 << 63) - 1  # the one behind it is what a checkpoint remembers
        if type(topic) is str and topic.isascii() and numbers:
            return topic, partition, offset
    message = "source must be a tuple (topic, partition, offset) of str, int, int, as the consumer gave them"
    raise EncodeError(f"{message} source={source!r:.200}")


def check_context(payload: bytes) -> None:
    """Whether the record, with its context, can be read back: not everything that can be encoded can be.

    Raises:
        EncodeError: msgspec.Raw with anything in it, a Struct as the key of a dict, or too many levels.

    """
    try:
        _decoder.decode(payload)
    except (ValueError, RecursionError) as error:  # msgspec's DecodeError is a ValueError
        message = "the record cannot be stored: its context could not be read back, pass plain data"
        raise EncodeError(f"{message} error={error}") from error
