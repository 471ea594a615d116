"""Notes: data of a record that do not go to Kafka. They grow from the segment's end towards the records.

A note is its payload (msgpack), then 16 bytes: the record's sequence, its index in the batch, the payload's length.
Notes are read from the highest place downwards, in the order in which they were written.
"""

import struct
from collections.abc import Iterator

import msgspec

from aiorecover.ring.checksum import crc32

_TRAILER = struct.Struct("<QII")
TRAILER_SIZE = _TRAILER.size


class DamagedNoteError(ValueError):
    """The bytes are no whole notes."""


class Note(msgspec.Struct, array_like=True, omit_defaults=True):
    """One record's note.

    ``context``: the caller's, the msgpack of it. ``source``: topic, partition and offset that it was made from (R16).
    ``topic``, ``partition``, ``error``: of a dead letter, where it was to go and why it did not.
    """

    context: bytes | None = None
    source: tuple[str, int, int] | None = None
    topic: str | None = None
    partition: int | None = None
    error: str | None = None


_decoder = msgspec.msgpack.Decoder(Note)
encode_payload = msgspec.msgpack.Encoder().encode


def pack_note(payload: bytes, sequence: int, index: int) -> bytes:
    """Return the bytes of the note of the record with this sequence, the batch's ``index``."""
    return payload + _TRAILER.pack(sequence, index, len(payload))


def note_starts(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each note in ``data``, in order of writing: from the end downwards.

    Raises:
        DamagedNoteError: a length crosses the start of ``data``.

    """
    end = len(data)
    while end:
        start = end - TRAILER_SIZE
        if start >= 0:
            start -= _TRAILER.unpack_from(data, start)[2]
        if start < 0:
            raise DamagedNoteError(f"a note crosses the start of the notes bytes={len(data)}")
        yield start, end
        end = start


def notes_crc(data: bytes, crc: int) -> int:
    """Return the checksum of notes in order of writing, carried on from ``crc``.

    Raises:
        DamagedNoteError: ``data`` is no whole notes.

    """
    for start, end in note_starts(data):
        crc = crc32(data[start:end], crc)
    return crc


def read_notes(data: bytes) -> Iterator[tuple[int, int, Note]]:
    """Yield (sequence of the record, its index, note), in order of writing.

    Raises:
        DamagedNoteError: the bytes are no whole notes.

    """
    for start, end in note_starts(data):
        sequence, index, _ = _TRAILER.unpack_from(data, end - TRAILER_SIZE)
        try:
            yield sequence, index, _decoder.decode(data[start : end - TRAILER_SIZE])
        except msgspec.DecodeError as error:
            raise DamagedNoteError(f"a note is no msgpack error={error}") from error


def notes_by_index(data: bytes) -> dict[int, Note]:
    """Return the notes of a batch by their records' indexes; none where the bytes are no whole notes."""
    try:
        return {index: note for _, index, note in read_notes(data)}
    except DamagedNoteError:
        return {}
