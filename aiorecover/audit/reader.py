"""Topics as they stand at one moment, read with aiokafka: committed records, and those an open transaction holds up."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka
from aiokafka.client import AIOKafkaClient
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.metadata import MetadataRequest

from aiorecover.errors import ConfigError, EncodeError
from aiorecover.serialization import check_topic

__all__ = ["Topics", "checked_options", "opened"]

_TEXTS = (
    *("security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password", "client_id"),
    *("sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
)
_NUMBERS = ("request_timeout_ms",)
_FILES = {"ssl_cafile": "cafile", "ssl_certfile": "certfile", "ssl_keyfile": "keyfile", "ssl_password": "password"}
_FETCH_BYTES = 8 << 20  # of a partition; of all together `_FETCHES_MOST`
_FETCHES_MOST = 64 << 20
_FETCH_WAIT_MS = 50
_POLL_MS = 500
_SILENT_S = 60.0  # without a record: Kafka is down, or a partition has no leader
_TRIES, _PAUSE_S = 5, 0.5  # a new topic is not known to every broker at once
_SLICE = 2_000  # records that are yielded at a time

Records = Sequence[Any]


class Topics:
    """Partitions, from their beginnings to the ends that they had when this was made."""

    def __init__(
        self,
        committed: AIOKafkaConsumer,
        every: AIOKafkaConsumer,
        begins: Mapping[TopicPartition, int],
        stable: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        self._committed, self._every = committed, every
        self._begins, self._stable, self._ends = begins, stable, ends

    @property
    def held_offsets(self) -> int:
        """The number of offsets after the first record of a transaction that is still open."""
        return sum(end - self._stable[partition] for partition, end in self._ends.items())

    def committed(self) -> AsyncIterator[tuple[TopicPartition, Records]]:
        """Yield the records that a consumer with ``read_committed`` gets; may be asked for again."""
        return _read(self._committed, self._begins, self._stable)

    def held(self) -> AsyncIterator[tuple[TopicPartition, Records]]:
        """Yield the records that are held up by an open transaction, whatever becomes of them."""
        return _read(self._every, self._stable, self._ends)


def checked_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of aiokafka's clients, parsed from texts.

    Raises:
        ConfigError: one is unknown, or wrong.

    """
    known = [*_TEXTS, *_NUMBERS, *_FILES]
    for name, value in options.items():
        if name.lower().startswith("kafka."):
            raise ConfigError(
                "this is an option of Spark's Kafka source: give --engine spark, or name aiokafka's "
                f"option={name} known={', '.join(known)}"
            )
        if name not in known:
            raise ConfigError(
                f"Kafka's clients have no such option: check its name option={name} known={', '.join(known)}"
            )
        if name in _NUMBERS and not value.isdecimal():
            raise ConfigError(f"this option is a whole number: option={name} {value=}")
    parsed: dict[str, Any] = {name: int(value) if name in _NUMBERS else value for name, value in options.items()}
    files = {_FILES[name]: parsed.pop(name) for name in list(parsed) if name in _FILES}
    if files or "SSL" in parsed.get("security_protocol", ""):
        try:
            parsed["ssl_context"] = create_ssl_context(**files)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the certificates cannot be read: {error} files={files}") from None
    return parsed


@asynccontextmanager
async def opened(bootstrap_servers: str, topics: Sequence[str], options: Mapping[str, Any]) -> AsyncIterator[Topics]:
    """Ask where the topics begin and end, and yield what reads them.

    Raises:
        ConfigError: a topic does not exist, Kafka cannot be reached, does not let this client read, or deletes
            records before they are read.

    """
    for name in topics:
        try:
            check_topic(name)
        except EncodeError as error:
            raise ConfigError(f"name each topic by itself: {error}") from None
    if not bootstrap_servers or not topics:
        raise ConfigError("name Kafka's servers and the topics: --bootstrap-servers host:port,... and --topic")
    try:
        partitions = await _partitions(bootstrap_servers, topics, options)
        committed = _consumer(bootstrap_servers, options, "read_committed")
        every = _consumer(bootstrap_servers, options, "read_uncommitted")
        try:
            await committed.start()
            await every.start()
            begins = await committed.beginning_offsets(partitions)
            stable = await committed.end_offsets(partitions)
            ends = await every.end_offsets(partitions)
            yield Topics(committed, every, begins, stable, {one: max(ends[one], stable[one]) for one in ends})
        finally:
            await committed.stop()
            await every.stop()
    except kafka.OffsetOutOfRangeError as error:
        raise ConfigError(
            f"records that were to be read are not in Kafka any more: start the audit again error={error}"
        ) from None
    except kafka.TopicAuthorizationFailedError as error:
        raise ConfigError(
            f"Kafka does not let this client read the topics: grant it Read and Describe topics={','.join(topics)} "
            f"error={error!r}"
        ) from None
    except (kafka.KafkaError, TimeoutError, OSError) as error:
        raise _unreached(bootstrap_servers, error) from None


def _unreached(bootstrap_servers: str, error: BaseException) -> ConfigError:
    return ConfigError(
        "Kafka cannot be reached, or does not answer: check the servers, the network and the security options "
        f"{bootstrap_servers=} error={error!r}"
    )


def _consumer(bootstrap_servers: str, options: Mapping[str, Any], isolation_level: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level=isolation_level,
        max_partition_fetch_bytes=_FETCH_BYTES,
        fetch_max_bytes=_FETCHES_MOST,
        fetch_max_wait_ms=_FETCH_WAIT_MS,
        **options,
    )


async def _partitions(
    bootstrap_servers: str, topics: Sequence[str], options: Mapping[str, Any]
) -> list[TopicPartition]:
    client = AIOKafkaClient(bootstrap_servers=bootstrap_servers, **options)
    try:
        await client.bootstrap()
        for _ in range(_TRIES):
            question = MetadataRequest(list(topics), allow_auto_topic_creation=False)  # asking makes no topic
            answer = (await client.send(client.get_random_node(), question)).to_object()
            found = {one["topic"]: one for one in answer["topics"]}
            refused = [
                name for name, one in found.items() if one["error_code"] == kafka.TopicAuthorizationFailedError.errno
            ]
            if refused:
                raise kafka.TopicAuthorizationFailedError(*refused)
            absent = [name for name in topics if name not in found or not found[name]["partitions"]]
            if not absent:
                return [TopicPartition(name, one["partition"]) for name in topics for one in found[name]["partitions"]]
            await asyncio.sleep(_PAUSE_S)
    finally:
        await client.close()
    raise ConfigError(f"a topic does not exist: check the names of the topics absent={absent}")


async def _read(
    consumer: AIOKafkaConsumer, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> AsyncIterator[tuple[TopicPartition, Records]]:
    left = {partition for partition, end in ends.items() if begins[partition] < end}
    consumer.assign(list(left))
    for partition in left:
        consumer.seek(partition, begins[partition])
    loop = asyncio.get_running_loop()
    heard = loop.time()
    while left:
        came = await consumer.getmany(*left, timeout_ms=_POLL_MS, max_records=_SLICE)
        for partition, records in came.items():
            end = ends[partition]
            yield partition, records if records[-1].offset < end else [one for one in records if one.offset < end]
        done = {partition for partition in left if await consumer.position(partition) >= ends[partition]}
        if done:
            consumer.pause(*done)
            left -= done
        if came or done:
            heard = loop.time()
        elif loop.time() - heard > _SILENT_S:
            raise TimeoutError(f"nothing came for {_SILENT_S:.0f} s partitions={sorted(left)[:5]}")
