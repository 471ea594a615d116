"""Keys, values and the other arguments of `publish`: checked, and encoded for a Kafka record (headers: `ring.records`).

Every function here is pure, and raises only ``EncodeError``. An encoder is chosen once, when the producer starts:

    value   bytes-like as it is · str as UTF-8 · None as null · anything else as JSON, or a serializer
    key     bytes-like as it is · str as UTF-8 · None as null, or a serializer

Bytes-like values are copied: the caller may reuse its buffer as soon as `publish` returns. A serializer never gets
None: that is Kafka's null (a tombstone in a compacted topic), or a key that was left out.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from aiorecover.errors import EncodeError

BytesLike: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Encoder: TypeAlias = Callable[[str, object, Headers | None], bytes | None]


class SerializerObject(Protocol):
    """A serializer that depends on the topic (a schema registry's subject, say)."""

    def serialize(self, topic: str, value: Any, headers: Headers | None, /) -> BytesLike | None:
        """Return the bytes of ``value``, or None for Kafka's null. It runs on the event loop and must not block."""


Serializer: TypeAlias = Callable[[Any], BytesLike | None] | SerializerObject

_BYTES_LIKE = (bytes, bytearray, memoryview)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # 249: with "-" and the partition it is a broker's folder name
ERROR_MOST = 200  # characters of a foreign error: one may quote deeply nested data
_PAIR = 2  # a header: name and value
_PARTITION_MAX = 2**31 - 1  # int32 on the wire
_OFFSET_MAX = 2**63 - 2  # int64 on the wire, and the offset after it has to exist, too
_LENGTHS = 5  # bytes of the length of a header's name, or value, at the most
_LEVELS = 8  # of nested data that an error names
_NUMBERS = ("b", "i", "u", "f")  # kinds of numpy's types that are bool, int or float
YEAR_10000_MS = 253_402_300_800_000  # a timestamp beyond it is in micro- or nanoseconds, and Spark never gets past it


def encode_value(topic: str, value: object, headers: Headers | None = None) -> bytes | None:  # noqa: ARG001
    """Return the bytes of a value without a serializer; ``headers`` is there for the signature that encoders share.

    JSON is msgspec's: dataclasses, Structs, dict, list, int, datetime, UUID, Decimal (as text) and Enum natively,
    pydantic models through ``model_dump(mode="json", by_alias=True)``, numpy's numbers as the number; NaN and
    infinity become null, bytes inside JSON become base64.

    Raises:
        EncodeError: the value, or something inside it, has no JSON form (the error names the field); or a str holds
            lone surrogates.

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
            f"topic={topic!r} type={kind.__qualname__}{_field_at_fault(value)} error={error!s:.{ERROR_MOST}}",
        ) from error


def encode_key(topic: str, key: object, headers: Headers | None = None) -> bytes | None:  # noqa: ARG001
    """Return the bytes of a key without a serializer; ``headers`` is there for the signature that encoders share.

    Raises:
        EncodeError: the key is not bytes-like, str or None. How another type is spelled as bytes would decide its
            partition, so it is not guessed.

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
    """Return the encoder of values: ``encode_value``, or one that calls ``serializer``.

    The encoder takes (topic, value, checked headers or None) and raises ``EncodeError``.
    """
    return encode_value if serializer is None else _serializing(serializer, "value")


def key_encoder(serializer: Serializer | None) -> Encoder:
    """Return the encoder of keys: ``encode_key``, or one that calls ``serializer``.

    The encoder takes (topic, key, checked headers or None) and raises ``EncodeError``.
    """
    return encode_key if serializer is None else _serializing(serializer, "key")


def check_topic(topic: object) -> str:
    """Return a topic's name as a plain ``str``; call it once a topic.

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
    """Return a partition's number, 0 to 2^31 - 1, or None; whether the topic has it is not looked at.

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


def check_timestamp(timestamp_ms: object) -> int:
    """Return a timestamp in milliseconds since 1970, up to the year 9999.

    Raises:
        EncodeError: anything else, another unit above all.

    """
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool) or timestamp_ms < 0:
        raise EncodeError(
            "timestamp_ms must be an int of milliseconds since 1970, not negative: pass int(seconds * 1000) "
            f"type={type(timestamp_ms).__qualname__} timestamp_ms={timestamp_ms!r:.50}"
        )
    if timestamp_ms >= YEAR_10000_MS:
        unit = "microseconds" if timestamp_ms < YEAR_10000_MS * 1000 else "nanoseconds"
        raise EncodeError(f"timestamp_ms looks like {unit}: pass milliseconds since 1970 timestamp_ms={timestamp_ms}")
    return int(timestamp_ms)


def check_source(source: object) -> tuple[str, int, int]:
    """Return topic, partition and offset of a consumed record.

    Raises:
        EncodeError: anything else.

    """
    if isinstance(source, tuple) and len(source) == 3:  # noqa: PLR2004 - as the message says
        topic, partition, offset = source
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in (partition, offset))
        if isinstance(topic, str) and whole and 0 <= partition <= _PARTITION_MAX and 0 <= offset <= _OFFSET_MAX:
            return check_topic(topic), int(partition), int(offset)
    raise EncodeError(
        f"a source must be a tuple (topic, partition, offset), as the consumer gave them source={source!r:.100}"
    )


def size_of(key: bytes | str | None, data: bytes | None, headers: object) -> int:
    """Return the bytes of a record's key, value and headers; what is no header counts 0, and is refused later."""
    size = len(data) if data is not None else 0
    if key is not None:
        size += len(key) if isinstance(key, bytes) or key.isascii() else len(key.encode(errors="surrogatepass"))
    if isinstance(headers, Sequence):
        for header in headers:
            if isinstance(header, (tuple, list)) and len(header) == _PAIR:
                size += sum(_length(part) + _LENGTHS for part in header)
    return size


def _length(part: object) -> int:
    try:
        return len(part) if isinstance(part, (str, *_BYTES_LIKE)) else 0
    except ValueError:  # a memoryview that was released
        return 0


def _utf8(topic: str, text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EncodeError(
            f"the {what} holds lone surrogates, which UTF-8 does not have: pass bytes, or clean the text "
            f"at={error.start} topic={topic!r}",
        ) from error


def _copied(topic: str, data: BytesLike, what: str) -> bytes:
    try:
        return bytes(data)
    except ValueError as error:  # a memoryview that was released
        raise EncodeError(
            f"the {what} cannot be read: publish before releasing the memoryview error={error} topic={topic!r}",
        ) from error


def _foreign(value: Any) -> object:
    """Return plain data for what msgspec does not know: pydantic models, numpy's numbers, subclasses of plain types.

    numpy's float64 and str_ are such subclasses. True, False and None come here only as keys of a dict, and get the
    names that JSON has for them.
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json", by_alias=True)  # the names that FastAPI answers with
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if getattr(value, "shape", None) == () and getattr(getattr(value, "dtype", None), "kind", None) in _NUMBERS:
        number: object = value.item()
        return number
    raise TypeError(f"no JSON form for type {type(value).__qualname__}")


# An Encoder keeps no state between calls, and making one costs more than encoding a small record.
_encode_json = msgspec.json.Encoder(enc_hook=_foreign).encode


def _field_at_fault(value: object, levels: int = _LEVELS) -> str:
    """Return " field=…" with where in plain data the first part without a JSON form is; its contents stay out."""
    path = ""
    for _ in range(levels):
        parts: Any = value.items() if isinstance(value, dict) else ()
        if isinstance(value, (list, tuple)):
            parts = enumerate(value)
        for name, part in parts:
            if not _has_json({name: part} if isinstance(value, dict) else part):
                path += f"[{name}]" if isinstance(value, (list, tuple)) else f".{name!s:.50}"
                value = part
                break
        else:
            break
    return f" field={path.removeprefix('.')}" if path else ""


def _has_json(value: object) -> bool:
    try:
        _encode_json(value)
    except Exception:  # noqa: BLE001 - whatever it is
        return False
    return True


def _serializing(serializer: Serializer, what: str) -> Encoder:
    """Return an encoder that calls the user's serializer, and checks what that returns."""
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
