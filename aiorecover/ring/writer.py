"""The writer: look a lane up, encode a record, store it, commit it. The hot path.

    length │ 0 │ time │ index │ key │ value │ headers of the caller … │ aiorecover-id: producer/epoch/sequence
    └ varint       └ less the batch's base time       └ the last three digits come from a table, the rest is kept

One slice store, then one store of the batch's commit word: from there on the record is accepted (R5).

`aiorecover/_speedups.c` is the twin in C: where it was built, `Writer` and `append_raw` are its own, and `accepting`
puts its `Acceptor` before that of the producer.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from aiorecover.ring.lane import VARINT_MOST, Cursor, note_room
from aiorecover.ring.records import DIGITS, NULL, TABLE, VARINT, encode_headers, id_prefix, moved, varint
from aiorecover.ring.segments import Batch
from aiorecover.ring.tail import twin

FIRST_SEQUENCE = 1  # of an epoch
THOUSAND = 1000
SHORT = [b"%d" % number for number in range(THOUSAND)]  # sequences below it, and `DIGITS` ends the others

Target = tuple[Cursor, bytes]  # where a record goes, and its key as Kafka writes it

_join = b"".join


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where an accepted record lies: its sequence, its batch and its index there."""

    sequence: int
    index: int
    batch: Any


class Writer:
    """Store records; see `append`.

    Attributes:
        lanes: ``lanes[topic][key]``, or ``[(key, partition)]`` where the caller names one; `find` fills it.

    """

    __slots__ = (
        "_digits", "_end", "_low", "_make_receipt", "_prefix", "_thousands", "epoch", "find", "lanes", "producer_id",
    )  # fmt: skip

    def __init__(
        self,
        producer_id: str,
        epoch: int,
        find: Callable[[str, Any, int | None], Target],
        make_receipt: Callable[[int, int, Batch], Any] = Receipt,
        /,
    ) -> None:
        """``find(topic, key, partition)`` returns where a record goes, and may put it into ``lanes``."""
        self.producer_id, self.epoch = producer_id, epoch
        self.lanes: dict[str, dict[Any, Target]] = {}
        self.find = find
        self._make_receipt = make_receipt
        self._thousands, self._digits = 0, SHORT
        self._low = self._end = FIRST_SEQUENCE  # `_end`: where another prefix begins
        self._prefix = b""

    def make_receipts(self, make_receipt: Callable[[int, int, Batch], Any], /) -> None:
        """Have `append` return what ``make_receipt(sequence, index, batch)`` returns."""
        self._make_receipt = make_receipt

    def next_sequence(self) -> int:
        """Return the sequence of the record that is stored next."""
        return self._thousands * THOUSAND + self._low

    def append(
        self,
        topic: str,
        key: Any,
        value: bytes | None,
        timestamp_ms: int,
        headers: Any = None,
        partition: int | None = None,
        note: bytes | None = None,
        /,
    ) -> Any:
        """Store one record and return its receipt; what can fail comes before anything is stored.

        ``value``: bytes, None is null. ``note``: the payload of its note (`notes.Note`).

        Raises:
            EncodeError: a header cannot become one of Kafka's.
            RecordTooLargeError: it does not fit a segment.
            WalFullError: there is no room.

        """
        try:
            cursor, key_part = self.lanes[topic][key if partition is None else (key, partition)]
        except (KeyError, TypeError):
            cursor, key_part = self.find(topic, key, partition)
        if value is None:
            value, size = b"", NULL
        else:
            length = len(value)
            size = VARINT[length] if length < TABLE else varint(length)
        low = self._low
        if low == self._end:
            low = self._next_prefix(low)
        ids = self._prefix if headers is None else encode_headers(headers, self._prefix)
        while True:
            if timestamp_ms != cursor.stamp:
                cursor.set_time(timestamp_ms)
            index = cursor.index
            if index == TABLE:  # more records a batch are worth no longer table
                cursor.make_room(0)
                continue
            record = _join((cursor.prefix, VARINT[index], key_part, size, value, ids, self._digits[low]))
            length = len(record)
            record = (VARINT[length] if length < TABLE else varint(length)) + record
            start = cursor.position
            end = start + len(record)
            if note is None:
                if end <= cursor.limit:
                    break
                cursor.make_room(len(record) + VARINT_MOST)
            else:
                if end + note_room(note) <= cursor.limit:
                    cursor.add_note(note, self._thousands * THOUSAND + low)
                    break
                cursor.make_room(len(record) + VARINT_MOST + note_room(note))
        cursor.data[start:end] = record
        cursor.words[cursor.commit] = end + cursor.bias  # from here on it is accepted
        cursor.position = end
        cursor.index = index + 1
        self._low = low + 1
        return self._make_receipt(self._thousands * THOUSAND + low, index, cursor.batch)  # type: ignore[arg-type]

    def _next_prefix(self, low: int) -> int:
        """Begin the sequences of two digits, of three, or the next thousand."""
        if low == THOUSAND:
            self._thousands, self._digits, low = self._thousands + 1, DIGITS, 0
        digits = 3 if self._thousands else len(SHORT[low])
        self._low, self._end = low, 10**digits
        self._prefix = id_prefix(self.producer_id, self.epoch, self._thousands, digits)
        return low


def append_raw(cursor: Cursor, record: bytes, delta: int, note: bytes | None = None, sequence: int = 0, /) -> None:
    """Store a whole record of another batch as the next one of the cursor's, whose base time is the same (R8).

    The caller has opened the batch with room for all of them. ``delta``: the record's timestamp, in ms since the base.
    ``note``: its payload, with the record's ``sequence``.
    """
    assert cursor.batch is not None
    data = moved(record, cursor.index, delta)
    start = cursor.position
    end = start + len(data)
    if end + note_room(note) > cursor.limit:
        raise ValueError(f"the batch was opened too small bytes={len(data)}")
    if note is not None:
        cursor.add_note(note, sequence)
    cursor.data[start:end] = data
    cursor.words[cursor.commit] = end + cursor.bias
    cursor.position = end
    cursor.index += 1
    cursor.latest = max(cursor.latest, cursor.base + delta)


def accepting(
    writer: Any,
    encode: Callable[..., bytes | None],
    otherwise: Callable[..., Any],
    fits: int,
    plain_values: bool,  # noqa: FBT001 - given once
    plain_keys: bool,  # noqa: FBT001
    turn: int,
) -> Callable[..., Any]:
    """Return what accepts records in this thread: ``otherwise``, or its twin in C, which leaves to it what is rare.

    Usual is: topic, value and key alone, the key as it is (``plain_keys``), the value of bytes as it is
    (``plain_values``) or as ``encode(topic, value, None, key)`` makes it, both together not above ``fits`` bytes, and a
    sequence that is no multiple of ``turn``.
    """
    if twin is None or type(writer) is not twin.Writer:
        return otherwise
    made: Callable[..., Any] = twin.Acceptor(writer, encode, otherwise, fits, plain_values, plain_keys, turn)
    return made


PythonWriter, append_raw_in_python = Writer, append_raw
LANGUAGE = "Python" if twin is None else "C"  # of the writer that runs
if twin is not None:
    Writer, append_raw = twin.Writer, twin.append_raw  # type: ignore[misc]
