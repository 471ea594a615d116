"""Every option of a producer, checked where it is given: no file, no network, no event loop.

``Config.from_options`` is the one way from what a user wrote to what the rest of the package reads. It
refuses what it does not know and what cannot be meant together; an option left out follows from those given
(``max_batch_size`` from ``max_request_size``, which follows from ``slot_bytes``).
"""

import difflib
import inspect
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from aiokafka import AIOKafkaProducer, codec
from aiokafka.abc import AbstractTokenProvider

from aiorecover.errors import ConfigError, EncodeError
from aiorecover.receipt import DeliveryReport
from aiorecover.serialization import Serializer, check_topic

__all__ = ["Config"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

SLOT_BYTES_MIN: Final = 16 * KIB  # four pages: tests fill and recycle such slots quickly
SLOT_BYTES_MAX: Final = GIB  # a slot is mapped and recycled whole: above this, recycling stands still
SLOTS_MIN: Final = 6  # one written, one read, one waiting for its checkpoint, one ready; one for each other ring
SLOT_OVERHEAD: Final = KIB  # 256 at a slot's ends, 20 before a frame, a topic of up to 249: rounded up
BATCH_SIZE: Final = 512 * KIB  # larger ones gain nothing measurable; brokers take 1,048,588 by default
REQUEST_SIZE: Final = MIB  # aiokafka's default, just below the brokers' default limit
PORT: Final = 9092  # Kafka's, where a server is named without one
PORT_MAX: Final = 65_535  # a port is 16 bits
INT32_MAX: Final = 2**31 - 1  # request_timeout_ms travels to the broker as an int32
DURATION_MAX_MS: Final = 100 * 365 * 86_400_000  # a century: the clocks of threads overflow at 292 years

_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:/\[\],@\ud800-\udfff]+)(?::(?P<port>[0-9]{1,5}))?")
_INSTANCE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")  # one plain folder name, never hidden or ".."
_NAME_MAX = 249  # as long as a topic's: the name stands in every checkpoint, whose place is fixed
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # what Python makes of bytes that are no text: nobody can store it

_CODECS: Mapping[str, Callable[[], bool]] = {
    "gzip": codec.has_gzip,
    "snappy": codec.has_snappy,
    "lz4": codec.has_lz4,
    "zstd": codec.has_zstd,
}
_CONTEXT = (ssl.SSLContext, type(None))
_TLS = ("SSL", "SASL_SSL")
_SASL = ("SASL_PLAINTEXT", "SASL_SSL")
_LOGIN = ("sasl_plain_username", "sasl_plain_password", "sasl_oauth_token_provider")  # of no use without SASL

# Options of aiokafka that this package decides: option, values that change nothing, what to do instead.
_FORCED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("acks", ("all", -1), 'only acks="all" keeps what was acknowledged: leave it out'),
    ("enable_idempotence", (True,), "order and recovery rest on idempotence: leave it out"),
    ("transactional_id", (None,), 'the library names its transactions: set guarantee="exactly_once" and leave it out'),
    ("loop", (None,), "the producer takes the loop that start() runs in: leave it out"),
    ("api_version", (None,), "versions are negotiated with the broker: leave it out"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Checked options; make it with ``from_options``. Durations are ms, sizes are bytes.

    What stands here of an option is what the README says (``python -m tests.support.options`` writes it there).

    Attributes:
        wal_dir: directory of the write-ahead log: on a disk that outlives the process, its user's own, no link.
        file_system: what a ``wal_dir`` brings of its own (`aiorecover.testing.MemoryDisk`); None: the system's.
        bootstrap_servers: Kafka, as "host:port,host:port" or a list; 9092 where no port is named.
        client: options for aiokafka that are no attribute here (security, compression, metadata).
        name: a name of the destination. The directory remembers the first one that it is opened with, also where it was
            opened without one before: under another one, or none, it is refused from then on.
        cluster_id: Kafka's id of the cluster to deliver to, also where a directory remembers another one because the
            cluster was replaced; what tells no id is refused then. None: the one that the directory remembers, or else
            the first one reached.
        instance: the folder in ``wal_dir`` to take, and to wait for: 1 to 64 of the characters a-z A-Z 0-9 . _ - and no
            leading dot; None: the first number that is free.
        guarantee: "at_least_once", which repeats nothing when a process dies; or "exactly_once": in transactions, so
            neither does a power cut, a lost answer or a restored directory, for who reads with
            ``isolation_level="read_committed"``. All partitions wait for the one that does not get through.
        fsync: what a power cut may take. "never": what the kernel had not written; "interval": at most what came after
            the last flush began; "always": nothing, ``publish`` waits for the disk.
        fsync_interval_ms: pause between two flushes under ``fsync="interval"``.
        checkpoint_interval_ms: how often the state of the directory is written; a restart reads what came since.
        wal_max_bytes: the ring, the retry ring and the dead ring together grow up to here: of each folder in
            ``wal_dir``, so several workers take as much each. At least six times ``slot_bytes``. The retry ring gets at
            most half of it (what is moved there, a third: there has to be room to rewrite it), the dead ring a quarter.
        wal_min_free_bytes: what the rings leave free on the disk for others; only a slot each for the retry and the
            dead ring is taken from that, too, if it has to be.
        on_full: "raise" ``WalFullError`` at once, or "wait" in line for room.
        full_timeout_ms: how long ``on_full="wait"`` waits for room, and ``instance`` for its folder, which an adopter
            lets go of within a third of this (10 s at most; more is said under Several workers).
        slot_bytes: the ring is freed and grows by slots of this size, a power of two from 16 KiB to 1 GiB; a directory
            keeps its own.
        max_batch_size: records of one partition that travel together, before compression; at most
            ``max_request_size``, and lowered to that where it is left out.
        max_request_size: the largest record, as Kafka counts it; it must fit a slot, and is lowered to what fits where
            it is left out.
        linger_ms: how long a batch that is not full waits for more records; longer, up to half a second, while more is
            published than is read of it and hundreds of partitions have some.
        delivery_timeout_ms: a record that could not be delivered within this time since it was accepted becomes a dead
            letter, an eighth of it and a second later at most; what is being sent, only when that attempt has ended
            (``request_timeout_ms``) and the pause behind it. None: never. At least ``linger_ms`` and
            ``request_timeout_ms``.
        retry_backoff_ms: first pause before what failed is tried again; it doubles.
        retry_backoff_max_ms: longest pause.
        request_timeout_ms: aiokafka's, for one request, counted from when its bytes moved last; ``send_and_wait`` and
            ``partitions_for`` wait so long, too.
        stop_timeout_ms: how long ``stop()`` and the end of ``async with`` take at most.
        on_permanent_error: what becomes of a record that Kafka refuses for good. "dead_letter": the dead ring keeps it;
            "halt": its partition stands still.
        dead_letter_topic: where dead letters are published, besides being kept in the dead ring. One whose copy does
            not fit a slot with its extra headers stays there alone, with an ERROR in the log.
        on_delivery: called with the ``DeliveryReport`` of every record, plain or async, before it counts as delivered:
            one after the other in each partition, whose next batch waits. A plain one holds up the loop, an awaited one
            is cancelled after 30 s: so is a ``publish`` in it that waits for room in a full ring, which its own record
            may take; ``publish_nowait`` waits for nothing. What it raises is counted (``callback_errors``) and logged,
            once a minute at most.
        recovery_check: after a power cut, look in Kafka for what was in flight, so that it does not come twice; needs
            permission to Read the topics, and holds delivery for 10 s at most. Under "exactly_once" nothing is looked
            for.
        key_serializer: callable(key), or an object with serialize(topic, key, headers).
        value_serializer: callable(value), or an object with serialize(topic, value, headers).
        partitioner: callable(key, all_partitions, available), as in aiokafka; None: Kafka's murmur2. Asked once for a
            record, or for a batch of records without a key; while it fails, or names no partition of the topic, the
            topic waits.
        adoption_grace_ms: another folder of ``wal_dir`` in which records wait for the same cluster and ``name``, and
            which no process has had for so long (less than 500 counts as 500), is delivered by this one, with its
            options; None adopts none.
        audit_topic: where manifests are published, as often as checkpoints are made: what was accepted and settled, and
            which ids are dead letters, so that ``aiorecover audit --manifests`` can tell what is missing from what is
            lost. Best compacted. What is wrong with it is a warning, and holds up no record.

    """

    wal_dir: Path
    file_system: Any  # a wal.storage.FileSystem, of which this layer knows nothing
    bootstrap_servers: tuple[str, ...]
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)  # holds passwords
    name: str | None = None
    cluster_id: str | None = None
    instance: str | None = None
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"
    fsync: Literal["never", "interval", "always"] = "interval"
    fsync_interval_ms: int = 1000  # a second of records at stake in a power cut, one sync a second
    checkpoint_interval_ms: int = 5000  # slots wait this long at most to be recycled
    wal_max_bytes: int = 20 * GIB  # 18 minutes of an outage at 100,000 records/s of 200 bytes
    wal_min_free_bytes: int = GIB  # logs and other processes on the disk go on
    on_full: Literal["raise", "wait"] = "raise"
    full_timeout_ms: int = 30_000  # a web request has usually given up by then
    slot_bytes: int = 16 * MIB  # a second of records at 80,000/s: recycled often, mapped seldom
    max_batch_size: int = BATCH_SIZE
    max_request_size: int = REQUEST_SIZE
    linger_ms: int = 5  # about one round trip to the broker: below it, waiting costs nothing
    delivery_timeout_ms: int | None = None
    retry_backoff_ms: int = 100  # aiokafka's default
    retry_backoff_max_ms: int = 10_000  # a stalled lane notices its recovery within this
    request_timeout_ms: int = 40_000  # aiokafka's default: above the broker's own 30 s
    stop_timeout_ms: int = 10_000  # a third of what Kubernetes grants before it kills
    on_permanent_error: Literal["dead_letter", "halt"] = "dead_letter"
    dead_letter_topic: str | None = None
    on_delivery: Callable[[DeliveryReport], Awaitable[None] | None] | None = None
    recovery_check: bool = True
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    partitioner: Callable[..., int] | None = None
    adoption_grace_ms: int | None = 60_000  # a process that is restarted is back by then
    audit_topic: str | None = None

    @property
    def bounded_by_slots(self) -> bool:
        """Whether ``max_request_size`` is as large as the slots allow: larger records need larger slots first."""
        return self.max_request_size == self.slot_bytes - SLOT_OVERHEAD

    @classmethod
    def from_options(cls, wal_dir: object, bootstrap_servers: object, options: Mapping[str, Any]) -> "Config":
        """Check everything a user gave: ``options`` are ours and aiokafka's keyword arguments together.

        Raises:
            ConfigError: an option is unknown, of the wrong type, out of range, in conflict with another one,
                or not available in this version; the message names it and says what to do.

        """
        _refuse_unknown(options)
        _refuse_forced(options)
        own = {name: check(name, options[name]) for name, check in _CHECKS.items() if name in options}
        client = {name: options[name] for name in sorted(_CLIENT_OPTIONS & options.keys())}
        for name in _CLIENT_CHECKS.keys() & client.keys():
            _CLIENT_CHECKS[name](name, client[name])
        _check_security(client)
        config = cls(
            wal_dir=_absolute(wal_dir),
            file_system=getattr(wal_dir, "file_system", None),
            bootstrap_servers=_servers(bootstrap_servers),
            client=MappingProxyType(client),
            **_with_derived(own),
        )
        for refusal in _conflicts(config):
            raise ConfigError(refusal)
        return config


_Check = Callable[[str, object], object]


def _whole(minimum: int, maximum: int = DURATION_MAX_MS, *, optional: bool = False) -> _Check:
    def check(name: str, value: object) -> object:
        if value is None and optional:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{name} must be an int{' or None' if optional else ''} {_shown(name, value)}")
        if not minimum <= value <= maximum:
            raise ConfigError(f"{name} must be from {minimum} to {maximum} {name}={value}")
        return int(value)

    return check


def _must_be(what: str, accepts: Callable[[Any], bool]) -> _Check:
    def check(name: str, value: object) -> object:
        if accepts(value):
            return value
        raise ConfigError(f"{name} must be {what} {_shown(name, value)}")

    return check


def _credential(what: str, kind: type) -> _Check:
    """Of a type, or None; what was given stays out of the text, for it may be a secret."""

    def check(name: str, value: object) -> object:
        if value is None or isinstance(value, kind):
            return value
        raise ConfigError(f"{name} must be {what}, or None type={type(value).__qualname__}")

    return check


def _one_of(*choices: str) -> _Check:
    what = ", ".join(f'"{choice}"' for choice in choices)
    return _must_be(f"one of {what}", lambda value: isinstance(value, str) and value in choices)


_text = _must_be(
    f"a str of 1 to {_NAME_MAX} characters, or None",
    lambda value: (
        value is None or (isinstance(value, str) and 0 < len(value) <= _NAME_MAX and _SURROGATE.search(value) is None)
    ),
)
_folder = _must_be(
    "a folder's name of 1 to 64 of the characters a-z A-Z 0-9 . _ - without a leading dot, or None",
    lambda value: value is None or (isinstance(value, str) and _INSTANCE.fullmatch(value) is not None),
)
_function = _must_be("callable, or None", lambda value: value is None or callable(value))


def _topic(name: str, value: object) -> object:
    try:
        return None if value is None else check_topic(value)
    except EncodeError as error:
        raise ConfigError(f"{name} must be a topic's name, or None error={error}") from None


def _serializer(name: str, value: object) -> object:
    serialize = getattr(value, "serialize", value)
    if value is not None and not callable(serialize):
        raise ConfigError(
            f"{name} must be callable, have serialize(topic, value, headers), or be None "
            f"type={type(value).__qualname__}",
        )
    if inspect.iscoroutinefunction(serialize):
        raise ConfigError(f"{name} must not be async: nothing awaits it type={type(value).__qualname__}")
    return value


def _compression(name: str, value: object) -> object:
    if value is None:
        return None
    codec_name = str(_one_of(*_CODECS)(name, value))
    if not _CODECS[codec_name]():
        raise ConfigError(f"{name} needs a library that is missing: pip install cramjam {name}={value!r}")
    return value


# Every option of ours; the ranges leave out what cannot work, not what is unwise.
_CHECKS: Mapping[str, _Check] = {
    "name": _text,
    "cluster_id": _text,
    "instance": _folder,
    "guarantee": _one_of("at_least_once", "exactly_once"),
    "fsync": _one_of("never", "interval", "always"),
    "fsync_interval_ms": _whole(1),
    "checkpoint_interval_ms": _whole(1),
    "wal_max_bytes": _whole(1, 2**63 - 1),  # what a file offset can be
    "wal_min_free_bytes": _whole(0, 2**63 - 1),
    "on_full": _one_of("raise", "wait"),
    "full_timeout_ms": _whole(1),
    "slot_bytes": _whole(SLOT_BYTES_MIN, SLOT_BYTES_MAX),
    "max_batch_size": _whole(1, SLOT_BYTES_MAX),
    "max_request_size": _whole(1, SLOT_BYTES_MAX),
    "linger_ms": _whole(0),
    "delivery_timeout_ms": _whole(1, optional=True),
    "retry_backoff_ms": _whole(1),
    "retry_backoff_max_ms": _whole(1),
    "request_timeout_ms": _whole(1, INT32_MAX),
    "stop_timeout_ms": _whole(0),
    "on_permanent_error": _one_of("dead_letter", "halt"),
    "dead_letter_topic": _topic,
    "on_delivery": _function,
    "recovery_check": _must_be("True or False", lambda value: isinstance(value, bool)),
    "key_serializer": _serializer,
    "value_serializer": _serializer,
    "partitioner": _function,
    "adoption_grace_ms": _whole(0, optional=True),
    "audit_topic": _topic,
}

# Of what is passed through, only what aiokafka would find out at start or not at all.
_CLIENT_CHECKS: Mapping[str, _Check] = {
    "client_id": _text,
    "compression_type": _compression,
    "connections_max_idle_ms": _whole(1, optional=True),
    "metadata_max_age_ms": _whole(1),
    "security_protocol": _one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": _one_of("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    "sasl_plain_username": _credential("a str", str),
    "sasl_plain_password": _credential("a str", str),
    "sasl_kerberos_service_name": _credential("a str", str),
    "sasl_kerberos_domain_name": _credential("a str", str),
    "sasl_oauth_token_provider": _credential("an aiokafka.abc.AbstractTokenProvider", AbstractTokenProvider),
    "ssl_context": _must_be("an ssl.SSLContext, or None", lambda value: isinstance(value, _CONTEXT)),
    "transaction_timeout_ms": _whole(1, INT32_MAX),
}

_AIOKAFKA = inspect.signature(AIOKafkaProducer.__init__).parameters.keys() - {"self", "bootstrap_servers"}
_CLIENT_OPTIONS = _AIOKAFKA - _CHECKS.keys() - {name for name, _, _ in _FORCED}
KNOWN_OPTIONS = sorted(_AIOKAFKA | _CHECKS.keys())
_DEFAULTS = {one.name: one.default for one in fields(Config)}


def _shown(name: str, value: object) -> str:
    return f"type={type(value).__qualname__} {name}={value!r:.100}"


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in KNOWN_OPTIONS:
            near = difflib.get_close_matches(name, KNOWN_OPTIONS, n=1)
            remedy = f"did you mean {near[0]}?" if near else "leave it out"
            raise ConfigError(f"unknown option: {remedy} option={name}")


def _refuse_forced(options: Mapping[str, Any]) -> None:
    for name, harmless, remedy in _FORCED:
        if name in options and options[name] not in harmless:
            raise ConfigError(f"{name} cannot be set: {remedy} {name}={options[name]!r:.100}")


def _with_derived(own: dict[str, Any]) -> dict[str, Any]:
    """Options left out that follow from those given."""
    slot_bytes = own.get("slot_bytes", _DEFAULTS["slot_bytes"])
    request = own.setdefault("max_request_size", min(REQUEST_SIZE, slot_bytes - SLOT_OVERHEAD))
    own.setdefault("max_batch_size", min(BATCH_SIZE, request))
    first_pause = own.get("retry_backoff_ms", _DEFAULTS["retry_backoff_ms"])
    own.setdefault("retry_backoff_max_ms", max(first_pause, _DEFAULTS["retry_backoff_max_ms"]))
    return own


def _conflicts(config: Config) -> Iterator[str]:
    """What is wrong with options that are right each by itself."""
    yield from _size_conflicts(config)
    if config.retry_backoff_max_ms < config.retry_backoff_ms:
        yield (
            "retry_backoff_max_ms must not be below retry_backoff_ms: raise it "
            f"retry_backoff_max_ms={config.retry_backoff_max_ms} retry_backoff_ms={config.retry_backoff_ms}"
        )
    # The default said aloud is harmless (settings objects pass everything); another value expects an effect.
    # An adopter keeps a directory for a part of it: whoever shares a wal_dir says the same, waiting or not.
    used = config.on_full == "wait" or config.instance is not None or config.adoption_grace_ms is not None
    if not used and config.full_timeout_ms != _DEFAULTS["full_timeout_ms"]:
        yield (
            'full_timeout_ms has no effect: set on_full="wait" or instance, or leave adoption_grace_ms=None out '
            f"full_timeout_ms={config.full_timeout_ms}"
        )
    if config.dead_letter_topic is not None and config.on_permanent_error == "halt":
        yield (
            'dead_letter_topic gets nothing under on_permanent_error="halt": leave one of them out '
            f"dead_letter_topic={config.dead_letter_topic!r}"
        )
    if config.audit_topic is not None and config.audit_topic == config.dead_letter_topic:
        yield (
            "audit_topic must not be dead_letter_topic, whose records are audited, too: name another topic "
            f"audit_topic={config.audit_topic!r}"
        )
    yield from _timeout_conflicts(config)


def _timeout_conflicts(config: Config) -> Iterator[str]:
    limit, least = config.delivery_timeout_ms, config.linger_ms + config.request_timeout_ms
    if limit is None:
        return
    if limit < least:  # Kafka's own rule: the answer to the first attempt must have time to come
        yield (
            f"delivery_timeout_ms must not be below linger_ms + request_timeout_ms: raise it to {least}, or lower them "
            f"delivery_timeout_ms={limit} linger_ms={config.linger_ms} request_timeout_ms={config.request_timeout_ms}"
        )
    if config.on_permanent_error == "halt":
        yield (
            'delivery_timeout_ms makes dead letters, and on_permanent_error="halt" wants none: leave one of them out '
            f"delivery_timeout_ms={limit}"
        )


def _size_conflicts(config: Config) -> Iterator[str]:
    slot, request, batch = config.slot_bytes, config.max_request_size, config.max_batch_size
    if slot & (slot - 1):
        yield f"slot_bytes must be a power of two: use 16777216 for example slot_bytes={slot}"
    if config.wal_max_bytes < SLOTS_MIN * slot:
        yield (
            f"wal_max_bytes must hold {SLOTS_MIN} slots: raise it to {SLOTS_MIN * slot}, or lower slot_bytes "
            f"wal_max_bytes={config.wal_max_bytes} slot_bytes={slot}"
        )
    if request > slot - SLOT_OVERHEAD:
        yield (
            f"max_request_size does not fit a slot: lower it to {slot - SLOT_OVERHEAD}, or raise slot_bytes "
            f"max_request_size={request} slot_bytes={slot}"
        )
    if batch > request:
        yield (
            "max_batch_size must not be above max_request_size: lower it, or raise max_request_size "
            f"max_batch_size={batch} max_request_size={request}"
        )


def _check_security(client: Mapping[str, Any]) -> None:
    """The combinations that aiokafka refuses when it is built: told here, where the options are written."""
    protocol = client.get("security_protocol", "PLAINTEXT")
    context = client.get("ssl_context")
    if protocol in _TLS and context is None:
        raise ConfigError(f"ssl_context is missing: pass an ssl.SSLContext security_protocol={protocol!r}")
    if protocol not in _TLS and context is not None:  # aiokafka would ignore it and send in the clear
        raise ConfigError(f"ssl_context is not used: use SSL or SASL_SSL security_protocol={protocol!r}")
    mechanism = client.get("sasl_mechanism", "PLAIN")
    if "security_protocol" not in client:
        _refuse_unused_login(client, mechanism)
    if protocol not in _SASL:
        return  # said aloud: credentials left over from another environment are harmless
    needed: tuple[tuple[str, str], ...] = (("sasl_plain_username", "str"), ("sasl_plain_password", "str"))
    if mechanism == "OAUTHBEARER":
        needed = (("sasl_oauth_token_provider", "AbstractTokenProvider"),)
    elif mechanism == "GSSAPI":
        needed = ()
    for name, kind in needed:
        if client.get(name) is None:
            raise ConfigError(f"{name} is missing: pass a {kind} sasl_mechanism={mechanism!r}")


def _refuse_unused_login(client: Mapping[str, Any], mechanism: str) -> None:
    """Without a word on the protocol aiokafka logs in nowhere, and sends in the clear."""
    given = [name for name in _LOGIN if client.get(name) is not None]
    if mechanism != "PLAIN":  # aiokafka's default, so said aloud it means nothing
        given.append("sasl_mechanism")
    if given:
        message = (
            'is not used without SASL: set security_protocol="SASL_SSL" with an ssl_context, or "SASL_PLAINTEXT", '
            'which is not encrypted, or "PLAINTEXT" to go without a login'
        )
        raise ConfigError(f"{given[0]} {message} sasl_mechanism={mechanism!r}")


def _absolute(wal_dir: object) -> Path:
    path = os.fspath(wal_dir) if isinstance(wal_dir, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ConfigError(f"wal_dir must name a directory: pass a str or a Path {_shown('wal_dir', wal_dir)}")
    if path.startswith("~"):
        raise ConfigError(f"wal_dir is not expanded: pass Path(...).expanduser() wal_dir={path!r}")
    try:
        os.fsencode(path)  # surrogates may stand for bytes of a name, as in what listdir gives
    except UnicodeEncodeError:
        raise ConfigError(f"wal_dir cannot be a name of a file: clean the text wal_dir={path!r}") from None
    return Path(os.path.abspath(path))  # noqa: PTH100  # resolve() would ask the disk


def _servers(servers: object) -> tuple[str, ...]:
    if isinstance(servers, str):
        servers = servers.split(",")
    if not isinstance(servers, (list, tuple)) or not servers:
        raise ConfigError(
            'bootstrap_servers must be "host:port", or a list of them, and not empty '
            f"{_shown('bootstrap_servers', servers)}",
        )
    return tuple(_server(server) for server in servers)


def _server(server: object) -> str:
    match = _SERVER.fullmatch(server.strip()) if isinstance(server, str) else None
    port = int(match["port"] or PORT) if match else 0
    if match is None or not 1 <= port <= PORT_MAX:
        raise ConfigError(
            'bootstrap_servers must be "host:port" each: no scheme, IPv6 in brackets, port 1 to 65535 '
            f"server={str(server).rpartition('@')[2]!r:.100}",  # what stands before an @ may be a password
        )
    return f"{match['host']}:{port}"
