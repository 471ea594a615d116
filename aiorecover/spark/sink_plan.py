"""What the sink was told: options and columns, checked on the driver before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiokafka.helpers import create_ssl_context
from pyspark.sql.types import BinaryType, IntegerType, StringType, TimestampType

from aiorecover.checks import DURATION_MAX_MS
from aiorecover.config import KNOWN_OPTIONS, MIB, Config
from aiorecover.errors import ConfigError, EncodeError
from aiorecover.serialization import check_topic
from aiorecover.spark.handed_over import HEADERS, are_headers
from aiorecover.spark.options import NUMBER, number, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import DataType, StructType

__all__ = ["Plan", "plan"]

_PREFIX = "producer."
_OURS = ("bootstrap_servers", "topic", "manifest_topic", "wal_dir", "job_id", "timeout_ms", "max_dead_letters")
_SPARKS_SERVERS = "kafka.bootstrap.servers"  # so that what stands there for format("kafka") may stay
_SPARKS = ("checkpointlocation", "queryname")  # of a stream
_UNITS = {"_ms": "milliseconds", "_bytes": "bytes", "_size": "bytes"}  # of the producer's options, by their names

_TIMEOUT_MS = 600_000
_MAX_DEAD_LETTERS = 1_000
_MOST_DEAD_LETTERS = 10_000  # of one attempt: as JSON they are to fit a record of the manifest topic, 256 KiB
_WAL_MAX_BYTES = 256 * MIB  # for each task that runs; a full ring makes Spark wait

# The sink decides these, and why.
_DECIDED = {
    "guarantee": "the manifest tells which attempt counts",
    "on_full": "a full ring makes the task wait, up to timeout_ms",
    "full_timeout_ms": "set timeout_ms instead",
    "instance": "each attempt has a directory of its own",
    "adoption_grace_ms": "what an attempt leaves is not for others to deliver",
    "ssl_context": "name files instead: producer.ssl_cafile, producer.ssl_certfile, producer.ssl_keyfile",
    "on_delivery": "it is a function",
    "key_serializer": "it is a function: make the column key what you want",
    "value_serializer": "it is a function: make the column value what you want",
    "partitioner": "it is a function: make the column partition what you want",
}
_SSL_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
_TEXTS = (StringType(), BinaryType())


@dataclass(frozen=True)
class Plan:
    """The sink's options, as they travel to the tasks."""

    bootstrap_servers: str
    topic: str | None
    """Where rows go whose column ``topic`` is not asked."""
    manifest_topic: str
    wal_dir: str | None
    """Where attempts make their directories; None: where temporary files are."""
    job_id: str | None
    timeout_ms: int
    max_dead_letters: int
    columns: tuple[str, ...]
    """The data frame's, lower-cased, in its order."""
    producer: Mapping[str, Any] = field(repr=False)  # holds passwords
    ssl_files: Mapping[str, str] = field(repr=False)

    def options(self) -> dict[str, Any]:
        """What an attempt's producer is told, besides where it writes; files are read where this is called."""
        told = {"fsync": "never", "wal_max_bytes": _WAL_MAX_BYTES, **self.producer}
        told |= {"on_full": "wait", "full_timeout_ms": self.timeout_ms, "adoption_grace_ms": None}
        if self.ssl_files:
            told["ssl_context"] = create_ssl_context(
                cafile=self.ssl_files.get("ssl_cafile"),
                certfile=self.ssl_files.get("ssl_certfile"),
                keyfile=self.ssl_files.get("ssl_keyfile"),
                password=self.ssl_files.get("ssl_password"),
            )
        return told

    def config(self) -> Config:
        """The same, checked."""
        return Config.from_options(self.wal_dir or "wal", self.bootstrap_servers, self.options())


def plan(options: Mapping[str, str], schema: StructType) -> Plan:
    """Check what the sink was told.

    Raises:
        ConfigError: an option or a column is missing or wrong; the message says which, and what to do.

    """
    _refuse_strangers(options)
    servers = options.get("bootstrap_servers") or options.get(_SPARKS_SERVERS)
    if not servers:
        raise ConfigError('name Kafka\'s servers: .option("bootstrap_servers", "host:port,host:port")')
    manifest_topic = _topic(options, "manifest_topic")
    if manifest_topic is None:
        raise ConfigError(
            'name a topic for the manifests: .option("manifest_topic", ...); without them nothing tells the rows of '
            'failed attempts from the others, and Spark\'s own format("kafka") does that'
        )
    topic = _topic(options, "topic")
    if topic == manifest_topic:
        raise ConfigError(f"manifests need a topic of their own: name another manifest_topic {manifest_topic=}")
    given = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    made = Plan(
        bootstrap_servers=servers,
        topic=topic,
        manifest_topic=manifest_topic,
        wal_dir=_text(options, "wal_dir", "a directory on every executor"),
        job_id=_text(options, "job_id", "the job, by a name of which there is one"),
        timeout_ms=number(options, "timeout_ms", _TIMEOUT_MS, "milliseconds", 1, DURATION_MAX_MS),
        max_dead_letters=number(options, "max_dead_letters", _MAX_DEAD_LETTERS, "records", 0, _MOST_DEAD_LETTERS),
        columns=_columns(schema, topic),
        producer=_producer_options(given),
        ssl_files={name: value for name, value in given.items() if name in _SSL_FILES},
    )
    try:
        made.config()
    except OSError as error:
        raise ConfigError(f"a file of the producer.ssl options cannot be read: {error}") from None
    return made


def _refuse_strangers(options: Mapping[str, str]) -> None:
    """What is misspelt, or meant for another sink, would be passed over in silence."""
    if "path" in options:
        raise ConfigError(f"records go to topics, not to a path: call save() or start() without one {options['path']=}")
    for name in options:
        if name.startswith("kafka.") and name != _SPARKS_SERVERS:
            raise ConfigError(
                f"this is an option of Spark's own sink: give the producer's as {_PREFIX}..., for example "
                f"{_PREFIX}security_protocol option={name}"
            )
    refuse_unknown(options, _OURS, (*_SPARKS, _SPARKS_SERVERS), {_PREFIX: KNOWN_OPTIONS})


def _topic(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name)
    try:
        return None if value is None else check_topic(value)
    except EncodeError as error:
        raise ConfigError(f"{name} must be a topic's name: {error}") from None


def _text(options: Mapping[str, str], name: str, what: str) -> str | None:
    """An empty one would be taken for none, which nobody means who gives one."""
    value = options.get(name)
    if value is not None and not value.strip():
        raise ConfigError(f"{name} names {what}, and this is empty: name it, or leave the option out {name}={value!r}")
    return value


def _producer_options(given: Mapping[str, str]) -> dict[str, Any]:
    for name, why in _DECIDED.items():
        if name in given:
            raise ConfigError(f"this option cannot be set here, {why} option={_PREFIX}{name}")
    return {name: _value(name, text) for name, text in given.items() if name not in _SSL_FILES}


def _value(name: str, text: str) -> object:
    """Options of Spark are texts; the names of the producer's tell which are numbers, it says of which range."""
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    if unit is not None:
        if NUMBER.fullmatch(text) is None:
            raise ConfigError(f"{_PREFIX}{name} must be an int of {unit} {_PREFIX}{name}={text!r:.100}")
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text) if name == "recovery_check" else text


def _columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    types = {one.name.lower(): one.dataType for one in schema.fields}
    if "value" not in types:
        raise ConfigError(
            f'a record needs a column value: .select(to_json(struct("*")).alias("value")) {schema.names=}'
        )
    if topic is None and "topic" not in types:
        raise ConfigError(f'name the topic: .option("topic", ...), or a column topic {schema.names=}')
    wanted: dict[str, tuple[tuple[DataType, ...], str]] = {
        "topic": ((StringType(),), "string"),
        "key": (_TEXTS, "string or binary"),
        "value": (_TEXTS, "string or binary"),
        "partition": ((IntegerType(),), "int"),
        "timestamp": ((TimestampType(),), "timestamp"),
    }
    for name, (accepted, what) in wanted.items():
        if name in types and types[name] not in accepted:
            raise ConfigError(f"the column {name} must be {what}: cast it type={types[name].simpleString()}")
    if "headers" in types and not are_headers(types["headers"]):
        raise ConfigError(f"the column headers must be {HEADERS}: cast it type={types['headers'].simpleString()}")
    return tuple(one.name.lower() for one in schema.fields)
