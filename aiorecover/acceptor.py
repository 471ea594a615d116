"""The acceptor: what a caller passes to `publish`, checked, encoded and stored.

`Acceptor.store` is the whole of it. Where the module in C was built, its own `Acceptor` comes first, takes the usual
records, and leaves the others to `store` (`ring.writer.accepting`).
"""

from collections.abc import Callable
from threading import get_ident
from typing import Any

import msgspec

from aiorecover.config import Config
from aiorecover.errors import EncodeError, RecordTooLargeError, RecoverError
from aiorecover.receipt import Receipt
from aiorecover.ring.notes import Note, encode_payload
from aiorecover.ring.ring import Ring
from aiorecover.ring.writer import Writer, accepting
from aiorecover.serialization import (
    ERROR_MOST,
    Headers,
    check_source,
    check_timestamp,
    key_encoder,
    size_of,
    value_encoder,
)

TURN_CALLS = 256  # records between two turns that `publish` gives the loop at the latest: measured to cost nothing
UTF8_MOST = 4  # bytes of a character; a key whose length is surely no matter is not measured
RECORD_OVERHEAD = 128  # bytes that a record has at the most beside key, value and the caller's headers
CONTEXT_MOST = 64 << 10  # bytes of a context: it is no second value

MISSING: Any = object()
"""The value of a caller that passed none."""


class Acceptor:
    """Accept the records of a running producer, in the thread that makes this.

    Attributes:
        takes_sources: `source_positions` was awaited: a ``source`` may be given.

    """

    def __init__(self, config: Config, ring: Ring, writer: Writer, end_turn: Callable[[], None]) -> None:
        """``end_turn`` is called with each record whose sequence is a multiple of `TURN_CALLS`."""
        self._ring, self._writer, self._end_turn = ring, writer, end_turn
        self._encode_key = key_encoder(config.key_serializer)
        self._encode_value = value_encoder(config.value_serializer)
        self._plain_keys = config.key_serializer is None  # bytes and text go as they are
        self._plain_values = config.value_serializer is None
        self._request_size = config.max_request_size
        self._fits = config.max_request_size - RECORD_OVERHEAD
        self._thread = get_ident()  # another one would tear a batch
        self.takes_sources = False
        writer.make_receipts(Receipt)

    def function(self) -> Callable[..., Receipt]:
        """Return `store`, or the twin in C, which calls it for what is rare."""
        plain = self._plain_values, self._plain_keys
        return accepting(self._writer, self._wire_value, self.store, self._fits, *plain, TURN_CALLS)

    def store(
        self,
        topic: str,
        value: object,
        key: bytes | str | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        context: object,
        source: Any,
        now: int,
    ) -> Receipt:
        """Store a record; ``now``: Unix time in nanoseconds. `RecoverableProducer.publish` has the rest.

        Raises:
            EncodeError, RecordTooLargeError, WalFullError, WalIOError, RecoverError: as `publish`; nothing was stored.

        """
        if get_ident() != self._thread:
            raise RecoverError("publish belongs to the loop's thread: use publish_threadsafe from others")
        kind = type(key)
        if key is not None and not (self._plain_keys and (kind is bytes or kind is str)):
            key = self._encode_key(topic, key, headers)
        data: Any = value
        if type(value) is not bytes or not self._plain_values:
            data = self._wire_value(topic, value, headers, key)
        if headers is not None or data is None or len(data) + (0 if key is None else UTF8_MOST * len(key)) > self._fits:
            self._refuse_too_large(topic, key, data, headers)
        timestamp_ms = now // 1_000_000 if timestamp_ms is None else check_timestamp(timestamp_ms)
        if context is None and source is None:
            receipt: Receipt = self._writer.append(topic, key, data, timestamp_ms, headers, partition)
        else:
            receipt = self._store_with_note(topic, key, data, timestamp_ms, headers, partition, context, source)
        if receipt.sequence % TURN_CALLS == 0:
            self._end_turn()
        return receipt

    def _wire_value(self, topic: str, value: object, headers: Any, key: object) -> bytes | None:
        if value is MISSING:
            raise EncodeError(f"the value is missing: pass it, or None for a tombstone topic={topic!r}")
        data = self._encode_value(topic, value, headers)
        if data is None and key is None:
            message = "a record needs a key or a value: a tombstone without a key deletes nothing"
            raise EncodeError(f"{message} topic={topic!r}")
        return data

    def _refuse_too_large(self, topic: str, key: bytes | str | None, data: bytes | None, headers: object) -> None:
        size = size_of(key, data, headers)
        if size > self._fits:
            raise RecordTooLargeError(
                "the record is above max_request_size: raise it (and Kafka's limit), or publish less at once "
                f"topic={topic!r} bytes={size} max_request_size={self._request_size}"
            )

    def _store_with_note(
        self,
        topic: str,
        key: Any,
        data: Any,
        timestamp_ms: int,
        headers: Any,
        partition: int | None,
        context: Any,
        source: Any,
    ) -> Receipt:
        if source is not None:
            source = check_source(source)
            if not self.takes_sources:
                message = "await source_positions() before the first publish with a source"
                raise RecoverError(f"{message}: it says where to go on reading")
        try:
            raw = None if context is None else encode_payload(context)
            context = None if raw is None else msgspec.msgpack.decode(raw)
            note = encode_payload(Note(raw, source))
        except Exception as error:
            message = "the context must be plain data that msgspec can encode, and read back"
            raise EncodeError(f"{message} type={type(context).__qualname__} error={error!s:.{ERROR_MOST}}") from error
        if len(note) > CONTEXT_MOST:
            raise EncodeError(f"the context is too large: store it elsewhere bytes={len(note)} most={CONTEXT_MOST}")
        receipt: Receipt = self._writer.append(topic, key, data, timestamp_ms, headers, partition, note)
        if source is not None:
            self._ring.note_source(source, receipt.sequence, receipt._batch.segment)  # noqa: SLF001
        if raw is None:
            return receipt
        return Receipt(receipt.sequence, receipt._index, receipt._batch, context)  # noqa: SLF001
