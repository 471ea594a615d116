"""Every option of a producer, checked where it is given: no file, no network, no event loop.

``Config.from_options`` is the one way from what a user wrote to what the rest of the package reads. It refuses options
that it does not know, and options that contradict each other.
"""

import difflib
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypedDict

from aiokafka.abc import AbstractTokenProvider

from aiorecover.checks import (
    Check,
    absolute,
    compression,
    credential,
    folder,
    function,
    must_be,
    one_of,
    serializer,
    servers,
    text,
    topic,
    whole,
)
from aiorecover.errors import ConfigError
from aiorecover.receipt import DeliveryReport
from aiorecover.serialization import Serializer

__all__ = ["Config", "Options"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

WAL_BYTES_MIN: Final = 8 * MIB  # some lanes, and room to rewrite
LARGEST_RECORDS: Final = 4  # that the ring has to hold: a quarter of it is for dead letters, which may be as large
RECORD_BYTES_MAX: Final = 63 * MIB  # a record stands in one region of the ring, of 64 MiB
BATCH_SIZE: Final = 256 * KIB  # larger ones gain nothing measurable; brokers take 1,048,588 by default
REQUEST_SIZE: Final = MIB  # aiokafka's default, just below the brokers' default limit
INT32_MAX: Final = 2**31 - 1  # request_timeout_ms travels to the broker as an int32

_NONE_MATTERS = ("connections_max_idle_ms",)  # None: connections stay; of all others None is aiokafka's default
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


class Options(TypedDict, total=False):
    """The keyword arguments of a producer beside ``wal_dir`` and ``bootstrap_servers``; `Config` describes them."""

    name: str | None
    cluster_id: str | None
    instance: str | None
    guarantee: Literal["at_least_once", "exactly_once"]
    fsync: Literal["never", "interval", "always"]
    fsync_interval_ms: int
    checkpoint_interval_ms: int
    wal_max_bytes: int
    wal_min_free_bytes: int | None
    on_full: Literal["raise", "wait"]
    full_timeout_ms: int
    max_batch_size: int
    max_request_size: int
    linger_ms: int
    delivery_timeout_ms: int | None
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    request_timeout_ms: int
    stop_timeout_ms: int
    on_permanent_error: Literal["dead_letter", "halt"]
    dead_letter_topic: str | None
    on_delivery: Callable[[DeliveryReport], Awaitable[None] | None] | None
    recovery_check: bool
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    partitioner: Callable[..., int] | None
    adoption_grace_ms: int | None
    audit_topic: str | None
    # As aiokafka's producer takes them, with its defaults.
    client_id: str | None
    compression_type: Literal["gzip", "snappy", "lz4", "zstd"] | None
    connections_max_idle_ms: int | None
    metadata_max_age_ms: int
    transaction_timeout_ms: int
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    ssl_context: ssl.SSLContext | None
    sasl_mechanism: Literal["PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_kerberos_service_name: str | None
    sasl_kerberos_domain_name: str | None
    sasl_oauth_token_provider: AbstractTokenProvider | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Checked options; make it with ``from_options``. Durations are ms, sizes are bytes.

    These sentences are the table in docs/options.md (``python -m tests.support.options`` writes it).

    Attributes:
        wal_dir: directory of the write-ahead log: on a disk that outlives the process, its user's own, no link.
        files: what a ``wal_dir`` brings of its own (`aiorecover.testing.MemoryDisk`); None: the system's.
        bootstrap_servers: Kafka, as "host:port,host:port" or a list; 9092 where no port is named.
        client: options for aiokafka that are no attribute here (security, compression, metadata).
        name: a name of the destination. The directory remembers the first name that it is opened with, and refuses a
            start under another one, or under none.
        cluster_id: Kafka's id of the cluster to deliver to; also says that a cluster was replaced on purpose. None: the
            one that the directory remembers, or else the first one reached.
        instance: the folder in ``wal_dir`` to take, and to wait for: 1 to 64 of the characters a-z A-Z 0-9 . _ - and no
            leading dot; None: the first number that is free.
        guarantee: "at_least_once", which repeats nothing when a process dies; or "exactly_once", in transactions, which
            repeats nothing after a power cut either, for consumers with ``isolation_level="read_committed"``. A
            partition that does not get through holds up the others.
        fsync: what a power cut may take. "never": what the kernel had not written; "interval": at most what came after
            the last flush began; "always": nothing, since ``publish`` waits for the disk.
        fsync_interval_ms: pause between two flushes under ``fsync="interval"``.
        checkpoint_interval_ms: how often manifests are published to ``audit_topic``, where there is news.
        wal_max_bytes: the most that the ring takes; 8 MiB and four times ``max_request_size`` at least. It counts for
            each folder in ``wal_dir``: four workers may take four times as much. Dead letters take a quarter of it.
        wal_min_free_bytes: what the ring leaves free on the volume. None: a twentieth of the volume, at most 1 GiB.
            Only rewriting takes from it, a segment or two for each partition that it writes to.
        on_full: "raise" ``WalFullError`` at once, or "wait" in line for room.
        full_timeout_ms: how long ``on_full="wait"`` waits for room, and ``instance`` for its folder.
        max_batch_size: records of one partition that travel together, before compression; at most
            ``max_request_size``, which is also its default where that is less.
        max_request_size: the largest record, as Kafka counts it; 63 MiB at most.
        linger_ms: how long a batch that is not full waits for more records; longer, up to 150 ms, where
            many partitions of a broker have some.
        delivery_timeout_ms: a batch whose oldest record was accepted longer ago than this, and could not be delivered,
            becomes dead letters; an attempt that is under way is waited for first. None: never. At least ``linger_ms``
            plus ``request_timeout_ms``.
        retry_backoff_ms: first pause before what failed is tried again; it doubles.
        retry_backoff_max_ms: longest pause; five seconds at least where a right or a topic's setting has to be mended.
        request_timeout_ms: for one request, as aiokafka's; ``send_and_wait`` and ``partitions_for`` wait so long, too.
        stop_timeout_ms: how long ``stop()`` and the end of ``async with`` take at most; a disk that hangs adds up to
            6 s.
        on_permanent_error: what becomes of a record that Kafka refuses for good. "dead_letter": it is kept in the ring,
            and its partition goes on; "halt": its partition stands still until the next start.
        dead_letter_topic: where dead letters are published, besides being kept. A copy that is refused there becomes a
            dead letter of that topic, beside the record's own.
        on_delivery: function or coroutine function, called with the ``DeliveryReport`` of every record before it counts
            as delivered: in order for each partition. A plain function holds up the loop, a coroutine the next requests
            to the same broker, and is cancelled after 30 s. Its errors are counted (``callback_errors``) and logged.
        recovery_check: after a power cut, look in Kafka for what was in flight, so that it does not come twice; needs
            the right to Read the topics, and holds up a partition for a minute at most. Under "exactly_once" nothing
            is looked for.
        key_serializer: callable(key), or an object with serialize(topic, key, headers).
        value_serializer: callable(value), or an object with serialize(topic, value, headers).
        partitioner: callable(key, all_partitions, available), as in aiokafka; None: Kafka's murmur2, and for records
            without a key one partition after the other. ``publish`` raises its errors; where a topic's partitions are
            not known yet, the topic waits until it succeeds (``assigning_waits``).
        adoption_grace_ms: another folder of ``wal_dir`` in which records wait for the same cluster and ``name``, and
            which no process has had for so long (less than 500 counts as 500), is delivered by this one, with its
            options; None adopts none.
        audit_topic: where manifests are published, as often as checkpoints are made: what was accepted and settled, and
            which ids are dead letters, so that ``aiorecover audit --manifests`` can tell what is missing from what is
            lost. Best compacted. Trouble with it is a warning, and holds up no record.

    """

    wal_dir: Path
    files: Any  # an aiorecover.ring.files.Files, of which this layer knows nothing
    bootstrap_servers: tuple[str, ...]
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)  # holds passwords
    name: str | None = None
    cluster_id: str | None = None
    instance: str | None = None
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"
    fsync: Literal["never", "interval", "always"] = "interval"
    fsync_interval_ms: int = 1000  # a second of records at stake in a power cut, one sync a second
    checkpoint_interval_ms: int = 5000  # an audit takes what is newer as not reported yet
    wal_max_bytes: int = 20 * GIB  # 18 minutes of an outage at 100,000 records/s of 200 bytes
    wal_min_free_bytes: int | None = None  # logs and other processes on the disk go on
    on_full: Literal["raise", "wait"] = "raise"
    full_timeout_ms: int = 30_000  # a web request has usually given up by then
    max_batch_size: int = BATCH_SIZE
    max_request_size: int = REQUEST_SIZE
    linger_ms: int = 5  # about one round trip to the broker: below it, waiting costs nothing
    delivery_timeout_ms: int | None = None
    retry_backoff_ms: int = 100  # aiokafka's default
    retry_backoff_max_ms: int = 1000  # delivery goes on within a second
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
        client = {name: check(name, options[name]) for name, check in _CLIENT_CHECKS.items() if name in options}
        client = {name: value for name, value in client.items() if value is not None or name in _NONE_MATTERS}
        _check_security(client)
        config = cls(
            wal_dir=absolute(wal_dir),
            files=getattr(wal_dir, "files", None),
            bootstrap_servers=servers(bootstrap_servers),
            client=MappingProxyType(client),
            **_with_derived(own),
        )
        for refusal in _conflicts(config):
            raise ConfigError(refusal)
        return config


# Every option of ours; a range leaves out the values that cannot work, not those that are unwise.
_CHECKS: Mapping[str, Check] = {
    "name": text,
    "cluster_id": text,
    "instance": folder,
    "guarantee": one_of("at_least_once", "exactly_once"),
    "fsync": one_of("never", "interval", "always"),
    "fsync_interval_ms": whole(1),
    "checkpoint_interval_ms": whole(1),
    "wal_max_bytes": whole(WAL_BYTES_MIN, 2**63 - 1),  # what a file offset can be
    "wal_min_free_bytes": whole(0, 2**63 - 1, optional=True),
    "on_full": one_of("raise", "wait"),
    "full_timeout_ms": whole(1),
    "max_batch_size": whole(1, RECORD_BYTES_MAX),
    "max_request_size": whole(1, RECORD_BYTES_MAX),
    "linger_ms": whole(0),
    "delivery_timeout_ms": whole(1, optional=True),
    "retry_backoff_ms": whole(1),
    "retry_backoff_max_ms": whole(1),
    "request_timeout_ms": whole(1, INT32_MAX),
    "stop_timeout_ms": whole(0),
    "on_permanent_error": one_of("dead_letter", "halt"),
    "dead_letter_topic": topic,
    "on_delivery": function,
    "recovery_check": must_be("True or False", lambda value: isinstance(value, bool)),
    "key_serializer": serializer,
    "value_serializer": serializer,
    "partitioner": function,
    "adoption_grace_ms": whole(0, optional=True),
    "audit_topic": topic,
}

# The options that are passed through, where aiokafka would find a mistake at the start only, or never.
_CLIENT_CHECKS: Mapping[str, Check] = {
    "client_id": text,
    "compression_type": compression,
    "connections_max_idle_ms": whole(1, optional=True),
    "metadata_max_age_ms": whole(1),
    "security_protocol": one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": one_of("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    "sasl_plain_username": credential("a str", str),
    "sasl_plain_password": credential("a str", str),
    "sasl_kerberos_service_name": credential("a str", str),
    "sasl_kerberos_domain_name": credential("a str", str),
    "sasl_oauth_token_provider": credential("an aiokafka.abc.AbstractTokenProvider", AbstractTokenProvider),
    "ssl_context": must_be("an ssl.SSLContext, or None", lambda value: isinstance(value, ssl.SSLContext | None)),
    "transaction_timeout_ms": whole(1, INT32_MAX),
}

KNOWN_OPTIONS = sorted({*Options.__annotations__, *(name for name, _, _ in _FORCED)})
ALIKE = 0.7  # a name less like an option is no misspelling of it
_DEFAULTS = {one.name: one.default for one in fields(Config)}


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in KNOWN_OPTIONS:
            near = difflib.get_close_matches(name, KNOWN_OPTIONS, n=1, cutoff=ALIKE)
            remedy = f"did you mean {near[0]}?" if near else "leave it out"
            raise ConfigError(f"unknown option: {remedy} option={name}")


def _refuse_forced(options: Mapping[str, Any]) -> None:
    for name, harmless, remedy in _FORCED:
        if name in options and options[name] not in harmless:
            raise ConfigError(f"{name} cannot be set: {remedy} {name}={options[name]!r:.100}")


def _with_derived(own: dict[str, Any]) -> dict[str, Any]:
    """Add the options that were left out and follow from others."""
    own.setdefault("max_batch_size", min(BATCH_SIZE, own.get("max_request_size", REQUEST_SIZE)))
    first_pause = own.get("retry_backoff_ms", _DEFAULTS["retry_backoff_ms"])
    own.setdefault("retry_backoff_max_ms", max(first_pause, _DEFAULTS["retry_backoff_max_ms"]))
    return own


def _conflicts(config: Config) -> Iterator[str]:
    """Say which options, each right by itself, are wrong together."""
    yield from _size_conflicts(config)
    if config.retry_backoff_max_ms < config.retry_backoff_ms:
        yield (
            "retry_backoff_max_ms must not be below retry_backoff_ms: raise it "
            f"retry_backoff_max_ms={config.retry_backoff_max_ms} retry_backoff_ms={config.retry_backoff_ms}"
        )
    used = config.on_full == "wait" or config.instance is not None or config.adoption_grace_ms is not None
    if not used and config.full_timeout_ms != _DEFAULTS["full_timeout_ms"]:  # the default is harmless
        yield (
            'full_timeout_ms has no effect: set on_full="wait", instance or adoption_grace_ms, or leave it out '
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
    request, batch, ring = config.max_request_size, config.max_batch_size, config.wal_max_bytes
    if ring < LARGEST_RECORDS * request:
        yield (
            f"wal_max_bytes must be {LARGEST_RECORDS} times max_request_size at least: raise it to "
            f"{LARGEST_RECORDS * request}, or lower max_request_size wal_max_bytes={ring} max_request_size={request}"
        )
    if batch > request:
        yield (
            "max_batch_size must not be above max_request_size: lower it, or raise max_request_size "
            f"max_batch_size={batch} max_request_size={request}"
        )


def _check_security(client: Mapping[str, Any]) -> None:
    """Refuse here, where the options are written, the combinations that aiokafka would refuse at the start."""
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
        return  # the protocol was named: credentials left over from another environment are harmless
    needed: tuple[tuple[str, str], ...] = (("sasl_plain_username", "str"), ("sasl_plain_password", "str"))
    if mechanism == "OAUTHBEARER":
        needed = (("sasl_oauth_token_provider", "AbstractTokenProvider"),)
    elif mechanism == "GSSAPI":
        needed = ()
    for name, kind in needed:
        if client.get(name) is None:
            raise ConfigError(f"{name} is missing: pass a {kind} sasl_mechanism={mechanism!r}")


def _refuse_unused_login(client: Mapping[str, Any], mechanism: str) -> None:
    """Refuse a login without a ``security_protocol``: aiokafka would ignore it, and send in the clear."""
    given = [name for name in _LOGIN if client.get(name) is not None]
    if mechanism != "PLAIN":  # aiokafka's default means nothing, also where it is given
        given.append("sasl_mechanism")
    if given:
        message = (
            'is not used without SASL: set security_protocol="SASL_SSL" with an ssl_context, or "SASL_PLAINTEXT", '
            'which is not encrypted, or "PLAINTEXT" to go without a login'
        )
        raise ConfigError(f"{given[0]} {message} sasl_mechanism={mechanism!r}")
