"""The checks of options and time limits: each returns the value as it is kept, or raises `ConfigError`."""

import inspect
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aiokafka import codec

from aiorecover.errors import ConfigError, EncodeError
from aiorecover.serialization import check_topic

PORT: Final = 9092  # Kafka's, where a server is named without one
PORT_MAX: Final = 65_535  # a port is 16 bits
DURATION_MAX_MS: Final = 100 * 365 * 86_400_000  # a century: the clocks of threads overflow at 292 years
TIME_LIMIT_MAX_MS: Final = 10**12  # 30 years: what is longer is a mistake, of the unit perhaps

_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/\[\],@\ud800-\udfff]+)(?::(?P<port>[0-9]{1,5}))?")
_INSTANCE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")  # one plain folder name, never hidden or ".."
_NAME_MAX = 249  # as long as a topic's
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # Python reads bytes that are no text as these: UTF-8 has none

_CODECS: Mapping[str, Callable[[], bool]] = {
    "gzip": codec.has_gzip,
    "snappy": codec.has_snappy,
    "lz4": codec.has_lz4,
    "zstd": codec.has_zstd,
}

Check = Callable[[str, object], object]
"""Given an option's name and value, return the value as it is kept."""


def shown(name: str, value: object) -> str:
    """Return an option's type and value for an error, cut off at 100 characters."""
    return f"type={type(value).__qualname__} {name}={value!r:.100}"


def whole(minimum: int, maximum: int = DURATION_MAX_MS, *, optional: bool = False) -> Check:
    """Return the check of a whole number; ``optional``: None is one, too."""

    def check(name: str, value: object) -> object:
        if value is None and optional:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{name} must be an int{' or None' if optional else ''} {shown(name, value)}")
        if not minimum <= value <= maximum:
            raise ConfigError(f"{name} must be from {minimum} to {maximum} {name}={value}")
        return int(value)

    return check


def must_be(what: str, accepts: Callable[[Any], bool]) -> Check:
    """Return the check of what ``accepts`` says; ``what``: the same in words."""

    def check(name: str, value: object) -> object:
        if accepts(value):
            return value
        raise ConfigError(f"{name} must be {what} {shown(name, value)}")

    return check


def credential(what: str, kind: type) -> Check:
    """Return the check of a type, or None; the value stays out of the error, since it may be a secret."""

    def check(name: str, value: object) -> object:
        if value is None or isinstance(value, kind):
            return value
        raise ConfigError(f"{name} must be {what}, or None type={type(value).__qualname__}")

    return check


def one_of(*choices: str) -> Check:
    """Return the check of one of these words."""
    what = ", ".join(f'"{choice}"' for choice in choices)
    return must_be(f"one of {what}", lambda value: isinstance(value, str) and value in choices)


text = must_be(
    f"a str of 1 to {_NAME_MAX} characters, or None",
    lambda value: (
        value is None or (isinstance(value, str) and 0 < len(value) <= _NAME_MAX and _SURROGATE.search(value) is None)
    ),
)
folder = must_be(
    "a folder's name of 1 to 64 of the characters a-z A-Z 0-9 . _ - without a leading dot, or None",
    lambda value: value is None or (isinstance(value, str) and _INSTANCE.fullmatch(value) is not None),
)
function = must_be("callable, or None", lambda value: value is None or callable(value))


def topic(name: str, value: object) -> object:
    """Check a topic's name, or None."""
    try:
        return None if value is None else check_topic(value)
    except EncodeError as error:
        raise ConfigError(f"{name} must be a topic's name, or None error={error}") from None


def serializer(name: str, value: object) -> object:
    """Check a serializer: a function, or an object with a method ``serialize``."""
    serialize = getattr(value, "serialize", value)
    if value is not None and not callable(serialize):
        raise ConfigError(
            f"{name} must be callable, have serialize(topic, value, headers), or be None "
            f"type={type(value).__qualname__}",
        )
    if inspect.iscoroutinefunction(serialize):
        raise ConfigError(f"{name} must not be async: nothing awaits it type={type(value).__qualname__}")
    return value


def compression(name: str, value: object) -> object:
    """Check a codec, and that its library is there."""
    if value is None:
        return None
    codec_name = str(one_of(*_CODECS)(name, value))
    if not _CODECS[codec_name]():
        raise ConfigError(f"{name} needs a library that is missing: pip install cramjam {name}={value!r}")
    return value


def absolute(wal_dir: object) -> Path:
    """Return the path of ``wal_dir``, absolute; asks no disk."""
    path = os.fspath(wal_dir) if isinstance(wal_dir, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ConfigError(f"wal_dir must name a directory: pass a str or a Path {shown('wal_dir', wal_dir)}")
    if path.startswith("~"):
        raise ConfigError(f"wal_dir is not expanded: pass Path(...).expanduser() wal_dir={path!r}")
    try:
        os.fsencode(path)  # surrogates may stand for bytes of a name, as in what listdir gives
    except UnicodeEncodeError:
        raise ConfigError(f"wal_dir cannot be a name of a file: clean the text wal_dir={path!r}") from None
    return Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would ask the disk


def servers(given: object) -> tuple[str, ...]:
    """Return ``bootstrap_servers`` as "host:port" each."""
    if isinstance(given, str):
        given = given.split(",")
    if not isinstance(given, (list, tuple)) or not given:
        raise ConfigError(
            'bootstrap_servers must be "host:port", or a list of them, and not empty '
            f"{shown('bootstrap_servers', given)}",
        )
    return tuple(_server(server) for server in given)


def seconds_of(timeout_ms: object) -> float | None:
    """Return a call's time limit in seconds; None: there is none.

    Raises:
        ConfigError: it is no number of milliseconds.

    """
    if timeout_ms is None:
        return None
    if not isinstance(timeout_ms, int | float) or isinstance(timeout_ms, bool):
        raise ConfigError(f"timeout_ms must be a number of milliseconds, or None {shown('timeout_ms', timeout_ms)}")
    if not 0 <= timeout_ms <= TIME_LIMIT_MAX_MS:  # nor NaN
        raise ConfigError(
            f"timeout_ms must be from 0 to {TIME_LIMIT_MAX_MS} milliseconds, or None timeout_ms={timeout_ms!r:.100}"
        )
    return timeout_ms / 1000


def _server(server: object) -> str:
    match = _SERVER.fullmatch(server.strip()) if isinstance(server, str) else None
    port = int(match["port"] or PORT) if match else 0
    if match is None or not 1 <= port <= PORT_MAX:
        raise ConfigError(
            'bootstrap_servers must be "host:port" each: no scheme, IPv6 in brackets, port 1 to 65535 '
            f"server={str(server).rpartition('@')[2]!r:.100}",  # what stands before an @ may be a password
        )
    return f"{match['host']}:{port}"
