"""Why Kafka will never take a record, and how that stands in the dead ring. Pure.

A frame there: the moved prefix of `wal` (the original position, the partition), then a MessagePack array

    [record, error, message, persisted, attempts, first_ms, last_ms, owed]

``record`` are the original payload's bytes as they were, also where they cannot be decoded. All the rest together fits
the bytes that every slot of the main ring keeps unused (`wal.ring.MARGIN`), so a record that fitted there fits here.
"""

from typing import Literal

import msgspec

Persistence = Literal["not", "possibly", "persisted"]

ERROR_MAX = 100  # characters of an error's class: aiokafka's longest has 37
EXPIRED = "DeliveryTimeout"  # in the place of an error's class: the record was too old, and Kafka said nothing of it
UNDECODABLE = "Undecodable"  # the frame holds, and is no record
MESSAGE_MAX = 640  # bytes of its text: with everything else 864 of the margin's 1024


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why, how often and when. ``first_ms`` and ``last_ms``: milliseconds since 1970 of the first and last attempt."""

    error: str
    message: str
    persisted: Persistence = "not"
    attempts: int = 0
    first_ms: int = 0
    last_ms: int = 0

    @property
    def event(self) -> str:
        """What has happened, for messages."""
        return _EVENTS.get(self.error, "kafka refused the record for good")

    def __str__(self) -> str:
        return f"{self.error}: {self.message}" if self.message else self.error


_EVENTS = {
    EXPIRED: "the record was not delivered in time",
    UNDECODABLE: "the record cannot be decoded",
}


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter's payload behind the moved prefix.

    Warning: do not add, remove or reorder fields without a new format version.
    """

    record: bytes
    error: str
    message: str
    persisted: Persistence
    attempts: int
    first_ms: int
    last_ms: int
    owed: bool
    """It has still to be published to the dead-letter topic."""

    @property
    def refusal(self) -> Refusal:
        """Why it is here."""
        return Refusal(
            error=self.error,
            message=self.message,
            persisted=self.persisted,
            attempts=self.attempts,
            first_ms=self.first_ms,
            last_ms=self.last_ms,
        )


def letter_of(record: bytes, refusal: Refusal, *, owed: bool) -> Letter:
    """A refused record as the dead ring keeps it; what is too long of the error's text is cut off."""
    return Letter(
        record=record,
        error=refusal.error[:ERROR_MAX],
        message=_cut(refusal.message, MESSAGE_MAX),
        persisted=refusal.persisted,
        attempts=refusal.attempts,
        first_ms=refusal.first_ms,
        last_ms=refusal.last_ms,
        owed=owed,
    )


encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Letter)


def decode(payload: bytes | memoryview) -> Letter:
    """The letter of a frame's payload, without the moved prefix.

    Raises:
        ValueError: it is none.

    """
    try:
        return _decoder.decode(payload)
    except RecursionError as error:  # what stands behind the last field may have any number of levels
        message = f"a letter has too many levels bytes={len(payload)}"
        raise ValueError(message) from error


def _cut(text: str, most: int) -> str:
    """``text`` as at most so many bytes of UTF-8, never half a character; what cannot be encoded is escaped."""
    encoded = text.encode("utf-8", "backslashreplace")
    return encoded[:most].decode("utf-8", "ignore")


def is_owed(letter: bytes) -> bool:
    """Whether a letter has to be published to the dead-letter topic yet; what is no letter is not."""
    try:
        return decode(letter).owed
    except ValueError:
        return False
