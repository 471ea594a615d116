"""From what the user passes to the bytes of a Kafka record.

Every function here is pure, raises only ``EncodeError`` and stores nothing. An encoder is chosen once, when
the producer is built, so that a publish pays for its own rule alone:

    value   bytes-like as it is · str as UTF-8 · None as null · anything else as JSON, or a serializer
    key     bytes-like as it is · str as UTF-8 · None as null, or a serializer

Bytes-like values are copied: the caller may reuse its buffer as soon as the publish returns. None never
reaches a serializer: it is Kafka's null (a tombstone in a compacted topic), and a key left out is not a key
to serialize.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from aiorecover.errors import EncodeError
from aiorecover.record import RECORD_ID_HEADER, Header

__all__ = [
    "BytesLike",
    "Encoder",
    "Headers",
    "Serializer",
    "SerializerObject",
    "check_headers",
    "check_partition",
    "check_timestamp_ms",
    "check_topic",
    "encode_key",
    "encode_value",
    "key_encoder",
    "value_encoder",
]

BytesLike: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Sequence[Header]
Encoder: TypeAlias = Callable[[str, object, Headers | None], bytes | None]


class SerializerObject(Protocol):
    """A serializer that wants to know where its value goes (a schema registry's subject, say)."""

    def serialize(self, topic: str, value: Any, headers: Headers | None, /) -> BytesLike | None:
        """The bytes of ``value``, or None for Kafka's null. Must not block: it runs on the event loop."""


Serializer: TypeAlias = Callable[[Any], BytesLike | None] | SerializerObject

_BYTES_LIKE = (bytes, bytearray, memoryview)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # 249: with "-" and the partition it is a broker's folder name
ERROR_MOST = 200  # characters of another's error: one that tells of itself, level for level, would fill the memory
_PAIR = 2  # a header: name and value
_PARTITION_MAX = 2**31 - 1  # int32 on the wire
_TIMESTAMP_MAX = 2**63 - 1  # int64 on the wire


def encode_value(topic: str, value: object, headers: Headers | None = None) -> bytes | None:  # noqa: ARG001
    """The bytes of a value without a serializer; ``headers`` is there for the signature that encoders share.

    JSON is msgspec's: dataclasses, Structs, dict, list, int, datetime, UUID, Decimal and Enum natively,
    pydantic models through ``model_dump(mode="json")``; NaN and infinity become null, bytes inside JSON
    become base64.

    Raises:
        EncodeError: the value, or something inside it, has no JSON form; or a str holds lone surrogates.

    """
    kind = type(value)
    if kind is bytes or value is None:
        return value  # type: ignore[return-value]  # bytes cannot change, so they need no copy
    if kind is not dict:
        if isinstance(value, str):
            return _utf8(topic, value, "value")
        if isinstance(value, _BYTES_LIKE):
            return _copied(topic, value, "value")
    try:
        return _encode_json(value)
    except Exception as error:
        raise EncodeError(
            "the value has no JSON form: pass bytes, str or plain data (dict, list, dataclass, Struct, "
            "pydantic model), or set value_serializer "
            f"topic={topic!r} type={kind.__qualname__} error={error}",
        ) from error


def encode_key(topic: str, key: object, headers: Headers | None = None) -> bytes | None:  # noqa: ARG001
    """The bytes of a key without a serializer; ``headers`` is there for the signature that encoders share.

    Raises:
        EncodeError: the key is not bytes-like, str or None: what a number or a dict looks like as bytes
            decides its partition, so that is not guessed.

    """
    if type(key) is bytes or key is None:
        return key
    if isinstance(key, str):
        return _utf8(topic, key, "key")
    if isinstance(key, _BYTES_LIKE):
        return _copied(topic, key, "key")
    raise EncodeError(
        "a key must be bytes, str or None: pass str(key), or set key_serializer "
        f"topic={topic!r} type={type(key).__qualname__}",
    )


def value_encoder(serializer: Serializer | None) -> Encoder:
    """The encoder of values: ``encode_value``, or one that calls ``serializer``.

    The encoder takes (topic, value, checked headers or None) and raises ``EncodeError``.
    """
    return encode_value if serializer is None else _serializing(serializer, "value")


def key_encoder(serializer: Serializer | None) -> Encoder:
    """The encoder of keys: ``encode_key``, or one that calls ``serializer``.

    The encoder takes (topic, key, checked headers or None) and raises ``EncodeError``.
    """
    return encode_key if serializer is None else _serializing(serializer, "key")


def check_topic(topic: object) -> str:
    """The topic as a plain ``str``; ask once per topic and keep the answer.

    Raises:
        EncodeError: not a str, or a name that Kafka refuses.

    """
    if not isinstance(topic, str):
        raise EncodeError(f"a topic must be a str type={type(topic).__qualname__} topic={topic!r}")
    if _TOPIC.fullmatch(topic) is None or topic in {".", ".."}:
        raise EncodeError(
            "Kafka refuses this topic name: use 1 to 249 of the characters a-z A-Z 0-9 . _ - and neither "
            f"'.' nor '..' length={len(topic)} topic={topic[:300]!r}",
        )
    return str.__str__(topic)


def check_partition(partition: object) -> int | None:
    """A partition number, 0 to 2^31 - 1, or None; whether the topic has it is known later.

    Raises:
        EncodeError: anything else.

    """
    if partition is None:
        return None
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= _PARTITION_MAX:
        raise EncodeError(
            "a partition must be an int from 0 to 2147483647: pass int(partition), or None "
            f"type={type(partition).__qualname__} partition={partition!r}",
        )
    return int(partition)


def check_timestamp_ms(timestamp_ms: object) -> int | None:
    """A timestamp in milliseconds since 1970 UTC, not below 0, or None for now.

    Raises:
        EncodeError: anything else, a float of seconds or a datetime for example.

    """
    if timestamp_ms is None:
        return None
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or not 0 <= timestamp_ms <= _TIMESTAMP_MAX:
        raise EncodeError(
            "timestamp_ms must be an int of milliseconds since 1970, not negative: pass int(seconds * 1000) "
            f"type={type(timestamp_ms).__qualname__} timestamp_ms={timestamp_ms!r}",
        )
    return int(timestamp_ms)


def check_headers(headers: object) -> list[Header]:
    """Headers as a fresh list of (str, bytes or None); None means no headers.

    Raises:
        EncodeError: not a list or tuple of (str, bytes-like or None) pairs, the reserved name
            ``aiorecover-id``, or lone surrogates in a name.

    """
    if headers is None:
        return []
    if not isinstance(headers, (list, tuple)):
        raise _wrong_headers(headers)
    return [header if _is_plain(header) else _checked_header(header) for header in headers]


def _is_plain(header: Any) -> bool:
    """Already as we would make it, which most headers are; everything else is looked at closely."""
    return (
        type(header) is tuple
        and len(header) == _PAIR
        and type(header[1]) is bytes
        and type(header[0]) is str
        and header[0].isascii()
        and header[0] != RECORD_ID_HEADER
    )


def _wrong_headers(headers: object) -> EncodeError:
    remedy = "use list(headers.items())" if hasattr(headers, "items") else "use list(headers)"
    return EncodeError(
        f"headers must be a list of (str, bytes) tuples: {remedy} type={type(headers).__qualname__}",
    )


def _checked_header(header: object) -> Header:
    if not isinstance(header, (tuple, list)) or len(header) != _PAIR:
        raise EncodeError(
            "headers must be a list of (str, bytes) tuples: this one is not a pair "
            f"type={type(header).__qualname__}",  # contents stay out of errors: headers carry credentials
        )
    name, value = header
    if not isinstance(name, str):
        raise EncodeError(
            f"the name of a header must be a str: decode it first type={type(name).__qualname__}",
        )
    if name == RECORD_ID_HEADER:  # recovery and readers find a record by it
        raise EncodeError(f"this header is set by aiorecover itself: use another name name={name!r}")
    if not name.isascii():
        _utf8(None, name, "name of a header")
    if type(value) is bytes or value is None:
        return str.__str__(name), value
    if isinstance(value, _BYTES_LIKE):
        return str.__str__(name), _copied(None, value, "value of a header")
    raise EncodeError(
        "the value of a header must be bytes or None: use value.encode() "
        f"type={type(value).__qualname__} name={name!r:.200}",
    )


def _utf8(topic: str | None, text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(
            f"the {what} holds lone surrogates, which UTF-8 does not have: pass bytes, or clean the text "
            f"at={error.start}{_at(topic)}",
        ) from error


def _copied(topic: str | None, data: BytesLike, what: str) -> bytes:
    try:
        return bytes(data)
    except ValueError as error:  # a memoryview that was released
        raise EncodeError(
            f"the {what} cannot be read: publish before releasing the memoryview error={error}{_at(topic)}",
        ) from error


def _at(topic: str | None) -> str:
    return "" if topic is None else f" topic={topic!r}"


def _foreign(value: Any) -> object:
    """What msgspec does not know: pydantic models, told by their method; subclasses of str, int, float.

    numpy's float64 and str_ are such subclasses; the standard json module takes them, so they are taken here.
    """
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"no JSON form for type {type(value).__qualname__}")


# One for all: an Encoder keeps no state between calls, and making one costs more than a small record does.
_encode_json = msgspec.json.Encoder(enc_hook=_foreign).encode


def _serializing(serializer: Serializer, what: str) -> Encoder:
    """An encoder that calls the user's serializer and trusts nothing that comes back."""
    option = f"{what}_serializer"
    serialize = getattr(serializer, "serialize", None)
    if callable(serialize):
        call: Callable[[str, object, Headers | None], object] = serialize
    elif callable(serializer):
        plain = serializer

        def call(_topic: str, value: object, _headers: Headers | None) -> object:
            return plain(value)
    else:
        raise EncodeError(
            f"{option} must be callable, or have serialize(topic, value, headers) type={type(serializer).__qualname__}",
        )

    def encode(topic: str, value: object, headers: Headers | None = None) -> bytes | None:
        if value is None:
            return None
        try:
            data = call(topic, value, headers)
        except Exception as error:
            raise EncodeError(
                f"{option} failed: mend it, or pass a {what} it takes "
                f"topic={topic!r} type={type(value).__qualname__} error={error!r:.{ERROR_MOST}}",
            ) from error
        if type(data) is bytes or data is None:
            return data
        if isinstance(data, _BYTES_LIKE):
            return _copied(topic, data, f"result of {option}")
        raise EncodeError(
            f"{option} must return bytes or None, and not be async topic={topic!r} type={type(data).__qualname__}",
        )

    return encode
