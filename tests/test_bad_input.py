"""Everything that is given wrong is answered with one clear error, and nothing that was accepted suffers from it."""

import asyncio
import contextlib
import datetime as dt
import errno
import functools
import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiorecover import (
    ClosedError,
    ConfigError,
    DeliveryPendingError,
    EncodeError,
    RecordTooLargeError,
    RecoverableProducer,
    RecoverError,
    WalCorruptError,
    WalFormatError,
    WalIOError,
    WalLockedError,
)
from aiorecover import record as rec
from aiorecover.cli.inspection import inspect
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, judge, read_topic

NOWHERE = "127.0.0.1:1"  # no broker listens there
SMALL: dict[str, Any] = {"slot_bytes": 65536, "max_request_size": 16384, "max_batch_size": 16384}


def kept(wal: Path, instance: str = "0") -> list[Any]:
    """The values of the records that wait in a directory, in order."""
    (home,) = (one for one in inspect(wal, 10_000) if Path(one["path"]).name == instance)
    return [record["value"] for record in home["records"] if record["ring"] == "ring"]


@asynccontextmanager
async def accepting(wal: Path, *, topic: str = "good", **options: Any) -> AsyncIterator[RecoverableProducer]:
    """A producer without a broker, and accepted records; in the end they are in the ring, and nothing else is."""
    options = {"stop_timeout_ms": 0, **options}
    async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **options) as producer:
        for number in range(3):
            await producer.publish(topic, b"before %d" % number)
        yield producer
        for number in range(2):
            await producer.publish(topic, b"after %d" % number)
        figures = producer.statistics()
        assert (figures.accepted, figures.pending, figures.missing) == (5, 5, 0)
    assert kept(wal, options.get("instance", "0")) == [b"before 0", b"before 1", b"before 2", b"after 0", b"after 1"]


@asynccontextmanager
async def producing(wal: Path, cluster: Cluster, **options: Any) -> AsyncIterator[RecoverableProducer]:
    async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
        yield producer


async def values_in(cluster: Cluster, topic: str) -> list[bytes | None]:
    return [record.value for record in await read_topic(cluster.bootstrap_servers, topic)]


@contextmanager
def refused(kind: type[RecoverError], told: str) -> Iterator[None]:
    """One error of the tree, in one line, in our own words, that says what to do."""
    with pytest.raises(RecoverError) as caught:
        yield
    text = str(caught.value)
    assert type(caught.value) is kind, text
    assert told in text
    assert len(text.splitlines()) == 1
    assert text[0].islower() or text.startswith(("Kafka", "[Errno")), text


# --- records that cannot become Kafka records

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
TOO_DEEP: list[Any] = []
for _ in range(100_000):
    TOO_DEEP = [TOO_DEEP]


class Text(str):
    __slots__ = ()


class Frozen(msgspec.Struct, frozen=True):
    number: int = 1


class Nowhere(dt.tzinfo):
    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        raise LookupError("the table of time zones is missing")

    dst = utcoffset

    def tzname(self, moment: dt.datetime | None) -> str:
        raise LookupError("the table of time zones is missing")


SOMETIME = dt.datetime(2026, 1, 1, tzinfo=Nowhere())


def released() -> memoryview:
    view = memoryview(bytearray(b"gone"))
    view.release()
    return view


BAD: dict[str, tuple[dict[str, Any], str]] = {
    # values
    "no value at all": ({"value": ...}, "pass it, or None for a tombstone"),
    "neither key nor value": ({"value": None}, "needs a key or a value"),
    "a value that has no JSON form": ({"value": object()}, "pass bytes, str or plain data"),
    "a set of objects as value": ({"value": {object()}}, "pass bytes, str or plain data"),
    "a function as value": ({"value": print}, "pass bytes, str or plain data"),
    "an endless value": ({"value": ENDLESS}, "pass bytes, str or plain data"),
    "a value of too many levels": ({"value": TOO_DEEP}, "pass bytes, str or plain data"),
    "a value that raises when it is looked at": ({"value": SOMETIME}, "pass bytes, str or plain data"),
    "surrogates in the value": ({"value": "\ud800"}, "pass bytes, or clean the text"),
    "surrogates inside the value": ({"value": {"a": "\udfff"}}, "pass bytes, str or plain data"),
    "a released memoryview as value": ({"value": released()}, "publish before releasing the memoryview"),
    # keys
    "an int as key": ({"key": 5}, "pass str(key), or set key_serializer"),
    "a dict as key": ({"key": {"id": 1}}, "pass str(key), or set key_serializer"),
    "an object as key": ({"key": object()}, "pass str(key), or set key_serializer"),
    "surrogates in the key": ({"key": "\ud800"}, "pass bytes, or clean the text"),
    "a released memoryview as key": ({"key": released()}, "publish before releasing the memoryview"),
    # headers
    "a dict as headers": ({"headers": {"a": b"1"}}, "use list(headers.items())"),
    "a str as headers": ({"headers": "ab"}, "must be a list of (str, bytes) tuples"),
    "a generator as headers": ({"headers": (pair for pair in [("a", b"1")])}, "use list(headers)"),
    "an int as headers": ({"headers": 5}, "must be a list of (str, bytes) tuples"),
    "headers of one part": ({"headers": [("a",)]}, "is not a pair"),
    "headers of three parts": ({"headers": [("a", b"1", b"2")]}, "is not a pair"),
    "a str for a header": ({"headers": ["ab"]}, "is not a pair"),
    "None for a header": ({"headers": [None]}, "is not a pair"),
    "a header's value as str": ({"headers": [("a", "1")]}, "use value.encode()"),
    "a header's value as int": ({"headers": [("a", 1)]}, "must be bytes or None"),
    "a header's name as bytes": ({"headers": [(b"a", b"1")]}, "decode it first"),
    "surrogates in a header's name": ({"headers": [("\ud800", b"1")]}, "clean the text"),
    "our own header's name": ({"headers": [("aiorecover-id", b"x")]}, "use another name"),
    "a good and a bad header": ({"headers": [("a", b"1"), ("b", "2")]}, "use value.encode()"),
    # partitions
    "a negative partition": ({"partition": -1}, "must be an int from 0 to 2147483647"),
    "a bool as partition": ({"partition": True}, "pass int(partition), or None"),
    "a str as partition": ({"partition": "0"}, "pass int(partition), or None"),
    "a float as partition": ({"partition": 0.0}, "pass int(partition), or None"),
    "a partition above 31 bits": ({"partition": 2**31}, "must be an int from 0 to 2147483647"),
    # timestamps
    "a negative timestamp": ({"timestamp_ms": -1}, "not negative"),
    "a bool as timestamp": ({"timestamp_ms": True}, "pass int(seconds * 1000)"),
    "seconds as timestamp": ({"timestamp_ms": 1_700_000_000.5}, "pass int(seconds * 1000)"),
    "a datetime as timestamp": ({"timestamp_ms": dt.datetime.now(dt.UTC)}, "pass int(seconds * 1000)"),
    "a str as timestamp": ({"timestamp_ms": "now"}, "pass int(seconds * 1000)"),
    "a timestamp above 63 bits": ({"timestamp_ms": 2**63}, "must be an int of milliseconds since 1970"),
    # topics
    "an empty topic": ({"topic": ""}, "use 1 to 249 of the characters"),
    "a topic with a blank": ({"topic": "a b"}, "use 1 to 249 of the characters"),
    "a topic with a slash": ({"topic": "a/b"}, "use 1 to 249 of the characters"),
    "a topic with an umlaut": ({"topic": "\u00e4"}, "use 1 to 249 of the characters"),
    "a topic with a line end": ({"topic": "a\n"}, "use 1 to 249 of the characters"),
    "a topic of surrogates": ({"topic": "\ud800"}, "use 1 to 249 of the characters"),
    "a topic that is a dot": ({"topic": "."}, "neither '.' nor '..'"),
    "a topic that is two dots": ({"topic": ".."}, "neither '.' nor '..'"),
    "a topic too long": ({"topic": "x" * 250}, "use 1 to 249 of the characters"),
    "None as topic": ({"topic": None}, "a topic must be a str"),
    "bytes as topic": ({"topic": b"t"}, "a topic must be a str"),
    "an int as topic": ({"topic": 5}, "a topic must be a str"),
    "an unhashable topic": ({"topic": ["t"]}, "a topic must be a str"),
    "a subclass of str as topic": ({"topic": Text("t")}, "pass str(topic)"),
    # contexts
    "a context of an unknown kind": ({"context": object()}, "context must be plain data"),
    "a context above 64 bits": ({"context": 2**64}, "context must be plain data"),
    "a context below 64 bits": ({"context": {"n": -(2**63) - 1}}, "context must be plain data"),
    "an endless context": ({"context": ENDLESS}, "context must be plain data"),
    "a context of too many levels": ({"context": TOO_DEEP}, "context must be plain data"),
    "surrogates in the context": ({"context": {"\ud800": 1}}, "context must be plain data"),
    "a context that raises when it is looked at": ({"context": [SOMETIME]}, "context must be plain data"),
    "a context that cannot be read back": ({"context": msgspec.Raw(b"\xc1")}, "pass plain data"),
    "a context that is cut off": ({"context": msgspec.Raw(b"\x92")}, "pass plain data"),
    "a struct as the key of a context": ({"context": {Frozen(): 1}}, "pass plain data"),
    # sources
    "a source of two parts": ({"source": ("t", 0)}, "must be a tuple (topic, partition, offset)"),
    "a list as source": ({"source": ["t", 0, 1]}, "must be a tuple (topic, partition, offset)"),
    "a str as source": ({"source": "t"}, "must be a tuple (topic, partition, offset)"),
    "a source's topic as bytes": ({"source": (b"t", 0, 1)}, "must be a tuple (topic, partition, offset)"),
    "a source's partition as bool": ({"source": ("t", True, 1)}, "must be a tuple (topic, partition, offset)"),
    "a source's offset as str": ({"source": ("t", 0, "1")}, "must be a tuple (topic, partition, offset)"),
    "a source's offset negative": ({"source": ("t", 0, -1)}, "as the consumer gave them"),
    "a source's offset too large": ({"source": ("t", 0, 2**63)}, "as the consumer gave them"),
    "a source's offset with none behind it": ({"source": ("t", 0, 2**63 - 1)}, "as the consumer gave them"),
    "a source's topic of surrogates": ({"source": ("\ud800", 0, 1)}, "as the consumer gave them"),
}


def arguments_of(name: str) -> tuple[list[Any], dict[str, Any]]:
    given = {"topic": "good", "value": b"bad", **BAD[name][0]}
    positional = [given.pop("topic"), given.pop("value")]
    return [one for one in positional if one is not ...], given


async def try_badly(producer: RecoverableProducer, name: str) -> None:
    """Publish a bad record in each way that there is."""
    positional, named = arguments_of(name)
    told = BAD[name][1]
    with refused(EncodeError, told):
        await producer.publish(*positional, **named)
    with refused(EncodeError, told):
        producer.publish_nowait(*positional, **named)
    with refused(EncodeError, told):
        await asyncio.wrap_future(producer.publish_threadsafe(*positional, **named))
    if not {"context", "source"} & named.keys() and len(positional) == 2:
        with refused(EncodeError, told):
            await producer.send(*positional, **named)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", BAD, ids=[name.replace(" ", "-") for name in BAD])
async def test_a_bad_record_is_refused_in_plain_words_and_nothing_else_happens(tmp_path: Path, name: str) -> None:
    async with accepting(tmp_path) as producer:
        await try_badly(producer, name)


@pytest.mark.asyncio
async def test_what_a_signal_handler_raises_while_a_record_is_encoded_is_no_fault_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a soft time limit does. What a context raises when it is looked at cannot be told apart from it."""

    class SoftTimeLimitError(Exception):
        pass

    def interrupted(_: object) -> bytes:
        raise SoftTimeLimitError("over")

    async with accepting(tmp_path) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(rec, "encode", interrupted)
            with pytest.raises(SoftTimeLimitError):
                producer.publish_nowait("good", b"interrupted")
            with pytest.raises(SoftTimeLimitError):
                await producer.publish("good", b"interrupted")
            with refused(EncodeError, "context must be plain data"):
                producer.publish_nowait("good", b"interrupted", context=1)


@pytest.mark.asyncio
async def test_good_records_between_all_the_bad_ones_are_delivered_and_no_others(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    good = topic(kafka, partitions=1)
    expected = []
    async with producing(tmp_path, kafka) as producer:
        for name in BAD:
            await try_badly(producer, name)
            expected.append(name.encode())
            await producer.publish(good, expected[-1], key=b"k", context=name)
        await producer.flush(timeout_ms=20_000)
        figures = producer.statistics()
        assert (figures.accepted, figures.delivered, figures.pending) == (len(BAD), len(BAD), 0)
    assert await values_in(kafka, good) == expected


@pytest.mark.asyncio
async def test_the_contents_of_a_refused_record_stay_out_of_the_error(tmp_path: Path) -> None:
    """Errors end in logs; headers and values carry credentials."""
    async with accepting(tmp_path) as producer:
        for bad in (
            {"value": {"password": object(), "token": "hunter2"}},
            {"key": {"token": "hunter2"}},
            {"headers": {"authorization": b"hunter2"}},
            {"headers": [("authorization", "hunter2")]},
        ):
            with pytest.raises(EncodeError) as caught:
                await producer.publish("good", **{"value": b"v", **bad})  # type: ignore[arg-type]
            assert "hunter2" not in str(caught.value)


@pytest.mark.asyncio
async def test_records_too_large_for_kafka_or_for_a_slot_are_refused_and_the_largest_fits(tmp_path: Path) -> None:
    async with accepting(tmp_path, **SMALL) as producer:
        with refused(RecordTooLargeError, "raise max_request_size (and Kafka's limit)"):
            await producer.publish("good", b"x" * 16384)
        with refused(RecordTooLargeError, "raise max_request_size"):
            await producer.publish("good", b"x" * 8192, key=b"k" * 8192)
        with refused(RecordTooLargeError, "raise max_request_size"):
            await producer.publish("good", b"x", headers=[("h" * 8192, b"x" * 8192)])
        with refused(RecordTooLargeError, "raise slot_bytes for a new directory"):
            await producer.publish("good", b"x", context=b"x" * 65536)  # kept beside the record, and not sent


@pytest.mark.asyncio
async def test_where_the_slots_bound_the_size_of_a_record_they_are_named_and_no_option_that_nobody_set(
    tmp_path: Path,
) -> None:
    async with accepting(tmp_path, slot_bytes=65536) as producer:
        remedy = "the record is too large for a slot: make it smaller, or raise slot_bytes for a new directory"
        with refused(RecordTooLargeError, f"{remedy} bytes="):
            await producer.publish("good", b"x" * 65000)
        with refused(RecordTooLargeError, " most=64512 slot_bytes=65536"):
            await producer.publish("good", b"x" * 65000)


@pytest.mark.asyncio
async def test_a_directory_made_with_smaller_slots_says_what_does_not_fit(tmp_path: Path) -> None:
    async with accepting(tmp_path, **SMALL):
        pass
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
        with refused(RecordTooLargeError, "raise slot_bytes for a new directory"):
            await producer.publish("good", b"x" * 100_000)
        await producer.publish("good", b"small")
    assert kept(tmp_path)[-1] == b"small"
    assert len(kept(tmp_path)) == 6


# --- what is changed behind our back


@pytest.mark.asyncio
async def test_what_the_publisher_changes_afterwards_does_not_reach_kafka(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    value, key, header = bytearray(b"value"), bytearray(b"key"), bytearray(b"header")
    pair: list[Any] = ["name", header]
    headers: list[Any] = [pair, ("plain", b"1")]
    context = {"list": [1]}
    async with producing(tmp_path, kafka, linger_ms=100) as producer:
        receipt = await producer.publish(name, value, key=key, headers=headers, context=context)  # type: ignore[arg-type]
        value[:], key[:], header[:] = b"other", b"KEY", b"HEADER"
        pair[0] = "renamed"
        headers.clear()
        context["list"].append(2)
        report = await receipt.delivered(timeout_ms=20_000)
    (found,) = await read_topic(kafka.bootstrap_servers, name)
    assert (found.key, found.value) == (b"key", b"value")
    assert found.headers[:2] == (("name", b"header"), ("plain", b"1"))
    assert report.context == {"list": [1]}


# --- options

BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"linger": 5}, "did you mean linger_ms? option=linger"),
    ({"max_batch_bytes": 5}, "did you mean max_batch_size?"),
    ({"value_serialiser": str}, "did you mean value_serializer?"),
    ({"retries": 3}, "unknown option"),
    ({"acks": 1}, "leave it out acks=1"),
    ({"acks": 0}, "leave it out acks=0"),
    ({"acks": "1"}, "leave it out acks='1'"),
    ({"enable_idempotence": False}, "leave it out enable_idempotence=False"),
    ({"transactional_id": "me"}, 'set guarantee="exactly_once" and leave it out'),
    ({"loop": object()}, "leave it out loop="),
    ({"guarantee": "at_most_once"}, 'must be one of "at_least_once"'),
    ({"fsync": "sometimes"}, 'must be one of "never", "interval", "always"'),
    ({"on_full": "drop"}, 'must be one of "raise", "wait"'),
    ({"on_delivery": "print"}, "on_delivery must be callable"),
    ({"partitioner": 3}, "partitioner must be callable"),
    ({"value_serializer": 3}, "must be callable, have serialize"),
    ({"linger_ms": "5"}, "linger_ms must be an int"),
    ({"linger_ms": True}, "linger_ms must be an int"),
    ({"slot_bytes": 100_000}, "must be a power of two"),
    ({"wal_max_bytes": 1}, "raise it to"),
    ({"max_request_size": 1 << 25}, "lower it to"),
    ({"max_batch_size": 2 << 20}, "lower it, or raise max_request_size"),
    ({"retry_backoff_max_ms": 1}, "raise it"),
    ({"full_timeout_ms": 1, "adoption_grace_ms": None}, 'set on_full="wait"'),
    ({"instance": "../up"}, "a folder's name"),
    ({"compression_type": "zip"}, "compression_type must be one of"),
    ({"security_protocol": "SSL"}, "pass an ssl.SSLContext"),
    ({"dead_letter_topic": "d", "on_permanent_error": "halt"}, "leave one of them out"),
    ({"dead_letter_topic": "d", "audit_topic": "d"}, "name another topic"),
    ({"audit_topic": "not a topic"}, "must be a topic's name"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "told"), BAD_OPTIONS, ids=[f"{next(iter(one))}-{number}" for number, (one, _) in enumerate(BAD_OPTIONS)]
)
async def test_a_bad_option_is_refused_before_anything_is_touched(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    async with accepting(tmp_path):
        with refused(ConfigError, told):
            RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, **options)
        with refused(ConfigError, told):
            RecoverableProducer(tmp_path / "never", bootstrap_servers=NOWHERE, **options)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("servers", ["", [], None, 9092, "http://localhost:9092", "localhost:99999", ["a", 5]])
def test_bad_servers_are_refused_by_their_option_s_name(tmp_path: Path, servers: Any) -> None:
    with refused(ConfigError, "bootstrap_servers must be"):
        RecoverableProducer(tmp_path, bootstrap_servers=servers)


# --- serializers


@pytest.mark.asyncio
async def test_a_value_serializer_that_fails_or_returns_nonsense_refuses_that_record_only(tmp_path: Path) -> None:
    def tells_much() -> None:
        raise ValueError("x" * 100_000)

    answers: dict[bytes, Callable[[], Any]] = {
        b"raise": lambda: 1 // 0,
        b"long": tells_much,
        b"str": lambda: "text",
        b"int": lambda: 5,
        b"null": lambda: None,
    }

    def serialize(value: bytes) -> Any:
        return answers.get(value, lambda: value)()

    async with accepting(tmp_path, value_serializer=serialize) as producer:
        with refused(EncodeError, "value_serializer failed: mend it, or pass a value it takes"):
            await producer.publish("good", b"raise")
        with pytest.raises(EncodeError, match="error=ValueError") as raised:
            await producer.publish("good", b"long")
        assert len(str(raised.value)) < 400, "one that tells of itself, again and again, must end"
        for name in (b"str", b"int"):
            with refused(EncodeError, "value_serializer must return bytes or None"):
                await producer.publish("good", name)
        with refused(EncodeError, "needs a key or a value"):
            await producer.publish("good", b"null")


@pytest.mark.asyncio
async def test_an_async_serializer_that_hides_is_refused_when_it_is_used(tmp_path: Path) -> None:
    class Later:
        """What an async function returns, without Python's complaint that nobody awaits it."""

        def __await__(self) -> Iterator[None]:
            yield

    async with accepting(tmp_path, value_serializer=lambda value: Later() if value == b"later" else value) as producer:
        with refused(EncodeError, "must return bytes or None, and not be async"):
            await producer.publish("good", b"later")


@pytest.mark.asyncio
async def test_a_key_serializer_that_makes_nothing_of_the_key_does_not_make_an_empty_record(tmp_path: Path) -> None:
    async with accepting(tmp_path, key_serializer=lambda key: None) as producer:
        with refused(EncodeError, "needs a key or a value"):
            await producer.publish("good", None, key="k")
        with refused(EncodeError, "needs a key or a value"):
            await producer.publish("good", None, key=b"k")


# --- partitions


@pytest.mark.asyncio
async def test_a_partition_that_does_not_exist_is_refused_once_the_topic_is_known(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka) as producer:
        await (await producer.publish(name, b"0")).delivered(timeout_ms=20_000)
        for number in (6, 2**31 - 1):
            with refused(EncodeError, f"choose one of the topic's topic={name} partition={number} partitions=6"):
                await producer.publish(name, b"bad", partition=number)
        await producer.publish(name, b"5", partition=5)
    assert sorted(value or b"" for value in await values_in(kafka, name)) == [b"0", b"5"]


@pytest.mark.asyncio
async def test_a_partition_that_does_not_exist_of_a_topic_not_known_yet_waits_and_is_told_of(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(kafka)
    async with producing(tmp_path, kafka, stop_timeout_ms=1000) as producer:
        waiting = producer.publish_nowait(name, b"waits", partition=6)  # nothing is known of the topic yet
        others = [producer.publish_nowait(name, b"%d" % number, key=b"%d" % number) for number in range(20)]
        for receipt in others:
            await receipt.delivered(timeout_ms=20_000)
        with pytest.raises(DeliveryPendingError):
            await waiting.delivered(timeout_ms=50)
        assert "partition does not exist: its records wait in the ring. add partitions to the topic, or" in caplog.text
        assert f"as dead letters topic={name} partition=6" in caplog.text
        assert await producer.stop() == 1
    assert len(await values_in(kafka, name)) == 20
    assert kept(tmp_path) == [b"waits"]


# --- a partitioner that fails


@pytest.mark.asyncio
async def test_a_failing_partitioner_stops_its_topic_and_no_other_and_the_next_start_delivers_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def poor(key: bytes | None, every: list[int], available: list[int]) -> int:
        return (key or b"").index(b"k") + 1  # ValueError for a key without a k

    first, other = topic(kafka, partitions=3), topic(kafka, partitions=3)
    accepted: dict[str, list[Accepted]] = {first: [], other: []}

    async def publish(producer: RecoverableProducer, name: str, key: bytes, value: bytes) -> None:
        receipt = await producer.publish(name, value, key=key)
        accepted[name].append(Accepted(receipt.record_id, key, value))

    async with producing(tmp_path, kafka, partitioner=poor, stop_timeout_ms=1000) as producer:
        for number in range(300):
            await publish(producer, first, b"k" if number != 100 else b"bad", b"%d" % number)
            await publish(producer, other, b"k", b"%d" % number)
        async with asyncio.timeout(20):
            while producer.statistics().delivered < 400:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        figures = producer.statistics()
        assert (figures.delivered, figures.pending) == (400, 200)
        await publish(producer, other, b"k", b"on and on")
        assert await producer.stop() == 200
    (failure,) = [record for record in caplog.records if "the partitioner failed" in record.getMessage()]
    assert failure.getMessage().endswith(f"the topic's records wait in the ring, and it is asked again topic={first}")
    assert failure.exc_info is not None
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    async with producing(tmp_path, kafka, partitioner=lambda key, every, available: 1) as producer:
        await producer.flush(timeout_ms=20_000)
    for name, records in accepted.items():
        verdict = judge(records, await read_topic(kafka.bootstrap_servers, name), whole_lanes=True)
        assert verdict.ok, str(verdict)
        assert verdict.repeated == 0


@pytest.mark.asyncio
async def test_a_partitioner_that_recovers_goes_on_by_itself_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    broken = True

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        if broken:
            raise LookupError("the table of tenants is not loaded yet")
        return 2

    name = topic(kafka, partitions=3)
    accepted = []
    async with producing(tmp_path, kafka, partitioner=partitioner) as producer:
        for number in range(1000):
            key, value = b"%d" % (number % 3) if number % 5 else None, b"%d" % number
            receipt = await producer.publish(name, value, key=key)
            accepted.append(Accepted(receipt.record_id, key, value))
        await asyncio.sleep(1)
        assert producer.statistics().delivered == 0
        broken = False
        await producer.flush(timeout_ms=30_000)
    verdict = judge(accepted, await read_topic(kafka.bootstrap_servers, name))
    assert verdict.ok, str(verdict)
    assert verdict.repeated == 0


# --- at the wrong time


@pytest.mark.asyncio
async def test_publishing_before_start_after_stop_and_during_stop_is_refused_and_nothing_is_stored(
    tmp_path: Path,
) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)

    async def refuse(told: str) -> None:
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: producer.publish("good", b"bad"),
            lambda: producer.send("good", b"bad"),
            lambda: producer.send_and_wait("good", b"bad"),
            producer.flush,
            lambda: producer.partitions_for("good"),
        ]
        for call in calls:
            with refused(ClosedError, told):
                await call()
        with refused(ClosedError, told):
            producer.publish_nowait("good", b"bad")
        with refused(ClosedError, told):
            producer.publish_threadsafe("good", b"bad")

    await refuse("use 'async with' or await start()")
    await producer.start()
    for number in range(3):
        await producer.publish("good", b"%d" % number)
    stopping = asyncio.create_task(producer.stop(timeout_ms=600))
    while producer.state != "stopping":  # noqa: ASYNC110 - seen from outside
        await asyncio.sleep(0)
    while not stopping.done():
        await refuse("make a new one")
        await asyncio.sleep(0.05)
    assert await stopping == 3
    await refuse("make a new one")
    with refused(ClosedError, "make a new one"):
        await producer.start()
    assert kept(tmp_path) == [b"0", b"1", b"2"]


NO_TIME_LIMITS: list[Any] = ["x", b"1", True, -1, float("nan"), float("inf"), [1], 10**400]


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", NO_TIME_LIMITS, ids=lambda limit: repr(limit)[:12])
async def test_what_is_no_time_limit_is_refused_and_changes_nothing(tmp_path: Path, limit: Any) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)
    await producer.start()
    receipt = await producer.publish("good", b"0")
    for call in (producer.flush, producer.stop, receipt.delivered):
        with refused(ConfigError, "timeout_ms must be"):
            await call(timeout_ms=limit)
    await producer.publish("good", b"1")
    assert await producer.stop(timeout_ms=0) == 2
    with refused(ConfigError, "timeout_ms must be"):
        await producer.stop(timeout_ms=limit)
    assert kept(tmp_path) == [b"0", b"1"]


@pytest.mark.asyncio
async def test_publish_nowait_is_refused_where_it_would_have_to_wait_for_the_disk(tmp_path: Path) -> None:
    async with accepting(tmp_path, fsync="always") as producer:
        with refused(ConfigError, 'await publish, or choose fsync="interval"'):
            producer.publish_nowait("good", b"bad")


@pytest.mark.asyncio
async def test_publishing_from_other_threads_and_loops_by_mistake_spoils_nothing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """`publish_threadsafe` is the way; but whoever forgets it must not break what others were told is safe.

    They are refused where a turn of the loop begins; what slips through in between is a record like any other.
    """
    name = topic(kafka)
    accepted: list[Accepted] = []
    foreign: list[str] = []
    lanes = range(4)

    async with producing(tmp_path, kafka, **SMALL, checkpoint_interval_ms=50) as producer:

        def from_a_thread(lane: int) -> None:
            for number in range(2000):
                key, value = b"thread %d" % lane, b"%d" % number * 10
                try:
                    accepted.append(Accepted(producer.publish_nowait(name, value, key=key).record_id, key, value))
                except RecoverError as error:
                    foreign.append(str(error))

        async def from_a_loop(lane: int) -> None:
            for number in range(2000):
                key, value = b"loop %d" % lane, b"%d" % number * 10
                try:
                    receipt = await producer.publish(name, value, key=key)
                    accepted.append(Accepted(receipt.record_id, key, value))
                except RecoverError as error:
                    foreign.append(str(error))

        threads = [threading.Thread(target=from_a_thread, args=(lane,)) for lane in lanes]
        threads += [threading.Thread(target=lambda lane=lane: asyncio.run(from_a_loop(lane))) for lane in lanes]
        for thread in threads:
            thread.start()
        await from_a_loop(99)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await producer.flush(timeout_ms=60_000)
        figures = producer.statistics()
        assert (figures.accepted, figures.delivered, figures.pending, figures.missing) == (
            len(accepted),
            len(accepted),
            0,
            0,
        )
    assert len(accepted) + len(foreign) == 18_000
    assert sum(record.key == b"loop 99" for record in accepted) == 2000  # the producer's own loop is never refused
    assert foreign
    assert all("publish_threadsafe" in told for told in foreign)
    by_id = sorted(accepted, key=lambda record: int(record.record_id.rpartition("/")[2]))
    verdict = judge(by_id, await read_topic(kafka.bootstrap_servers, name))
    assert verdict.ok, str(verdict)
    assert (verdict.accepted, verdict.repeated, verdict.foreign) == (len(accepted), 0, [])


# --- directories


def contents(path: Path) -> dict[str, str]:
    """A fingerprint of every file below a path."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "lock"  # it holds the process id of whoever asked last
    }


async def refused_to_start(wal: Path, kind: type[RecoverError], told: str, **options: Any) -> None:
    before = set(threading.enumerate())
    producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, stop_timeout_ms=0, **options)
    with refused(kind, told):
        await producer.start()
    assert producer.state == "created"
    with refused(ClosedError, "not started"):
        producer.publish_nowait("good", b"bad")
    for thread in set(threading.enumerate()) - before:
        thread.join(2)
        assert not thread.is_alive(), "a thread is left behind"


@pytest.mark.asyncio
async def test_a_wal_dir_that_is_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"somebody's")
    await refused_to_start(file, WalFormatError, "wal_dir is not a directory: choose another path")
    await refused_to_start(file / "wal", WalIOError, "cannot use the directory")
    assert file.read_bytes() == b"somebody's"


@pytest.mark.asyncio
async def test_a_wal_dir_that_is_a_symlink_is_refused_and_its_records_are_safe(tmp_path: Path) -> None:
    async with accepting(tmp_path / "real"):
        pass
    link, nowhere, inside = tmp_path / "link", tmp_path / "nowhere", tmp_path / "inside"
    link.symlink_to(tmp_path / "real")
    nowhere.symlink_to(tmp_path / "missing")
    for path in (link, nowhere):
        await refused_to_start(path, WalFormatError, "is a symbolic link: name the directory itself")
    inside.mkdir()
    (inside / "0").symlink_to(tmp_path / "real" / "0")
    await refused_to_start(inside, WalFormatError, "is a symbolic link: name the directory itself")
    assert not (tmp_path / "missing").exists()
    assert len(kept(tmp_path / "real")) == 5


@pytest.mark.asyncio
async def test_a_file_of_the_directory_that_is_a_symlink_is_refused(tmp_path: Path) -> None:
    async with accepting(tmp_path / "wal"):
        pass
    ring = tmp_path / "wal" / "0" / "ring"
    ring.rename(tmp_path / "elsewhere")
    ring.symlink_to(tmp_path / "elsewhere")
    await refused_to_start(tmp_path / "wal", WalIOError, "cannot open the file")
    ring.unlink()
    (tmp_path / "elsewhere").rename(ring)
    assert len(kept(tmp_path / "wal")) == 5


def as_somebody_else(attempt: Callable[[], Any]) -> Any:
    """The result of a call made by another user where we are root, by ourselves where we are not."""
    results, answer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(answer, json.dumps(attempt()).encode())
            code = 0
        os._exit(code)
    os.close(answer)
    with os.fdopen(results, "rb") as stream:
        told = stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(told)


def start_error(wal: Path) -> list[Any]:
    """What the start of a producer raises: class, errno, text."""

    async def attempt() -> list[Any]:
        producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, stop_timeout_ms=0)
        try:
            await producer.start()
        except RecoverError as error:
            return [type(error).__name__, getattr(error, "errno", None), str(error)]
        return [await producer.stop()]

    return asyncio.run(attempt())


def test_a_wal_dir_that_may_not_be_written_is_refused_with_the_system_s_reason() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "wal").mkdir()
        (place / "wal").chmod(0o555)
        place.chmod(0o555)
        try:
            for wal in (place / "wal", place / "new", place / "new" / "deep"):
                kind, number, text = as_somebody_else(functools.partial(start_error, wal))
                if wal.name == "wal" and os.geteuid() == 0:
                    assert (kind, number) == ("WalFormatError", None)
                    assert "wal_dir belongs to another user" in text
                else:
                    assert (kind, number) == ("WalIOError", errno.EACCES)
                    assert "cannot use the directory" in text
                    assert str(wal) in text
        finally:
            place.chmod(0o755)
        assert [path.name for path in place.iterdir()] == ["wal"]


@pytest.mark.asyncio
async def test_a_wal_dir_of_another_user_is_refused_and_its_records_are_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with accepting(tmp_path):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4711)
        await refused_to_start(tmp_path, WalFormatError, "belongs to another user")
    assert len(kept(tmp_path)) == 5


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["file", "directory"])
async def test_a_wal_dir_with_files_of_another_program_is_refused_and_nothing_is_touched(
    tmp_path: Path, what: str
) -> None:
    async with accepting(tmp_path):
        pass
    foreign = tmp_path / "other"
    if what == "directory":
        foreign.mkdir()
        (foreign / "data.db").write_bytes(b"precious")
    else:
        foreign.write_bytes(b"precious")
    culprit = foreign / "data.db" if what == "directory" else foreign
    remedy = "choose another wal_dir, or if it is ours move the file away"
    before = contents(tmp_path)
    await refused_to_start(tmp_path, WalFormatError, f"of another program: {remedy} path={culprit}")
    assert contents(tmp_path) == before
    foreign.rename(tmp_path.parent / f"{tmp_path.name}-foreign")
    assert len(kept(tmp_path)) == 5


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [10, 200_000, 1 << 25])
@pytest.mark.parametrize("names", [("ring",), ("checkpoint",), ("ring", "checkpoint")], ids=",".join)
async def test_files_of_another_program_under_our_names_are_never_written_over(
    tmp_path: Path, names: tuple[str, ...], size: int
) -> None:
    (tmp_path / "0").mkdir()
    foreign = b"precious, and no ring\n" * (size // 20 + 1)
    for name in names:
        (tmp_path / "0" / name).write_bytes(foreign[:size])
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0)
    with contextlib.suppress(WalFormatError, WalCorruptError):
        await producer.start()
        for _ in range(3):
            await producer.publish("good", b"v")
        await producer.stop()
    for name in names:
        assert (tmp_path / "0" / name).read_bytes()[:size] == foreign[:size], f"{name} was written over"


# --- files of a version that comes later


# --- two of one name


@pytest.mark.asyncio
async def test_a_second_producer_of_the_same_instance_waits_and_is_told_who_has_it(tmp_path: Path) -> None:
    async with accepting(tmp_path / "wal", instance="orders") as first:
        began = asyncio.get_running_loop().time()
        await refused_to_start(
            tmp_path / "wal",
            WalLockedError,
            "this very process holds the instance directory: await stop() of the earlier producer, start the process "
            f"anew, or choose another instance path={tmp_path}/wal/orders pid={os.getpid()}",
            instance="orders",
            full_timeout_ms=300,
        )
        assert 0.3 <= asyncio.get_running_loop().time() - began < 5
        assert first.state == "connecting"


# --- a full disk

FULL = """
import asyncio, json, os, resource, sys
from pathlib import Path
from aiorecover import RecoverableProducer, WalFullError

place, file_limit, servers, topic = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
options = {"slot_bytes": 65536, "wal_min_free_bytes": 0, "max_request_size": 16384, "max_batch_size": 16384,
           "checkpoint_interval_ms": 100}

def fill():
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return
    with open(place / "filler", "wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass

def make_room():
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
    else:
        os.remove(place / "filler")

async def refusal(attempt):
    try:
        await attempt()
    except WalFullError as error:
        return str(error)
    return ""

async def main():
    told = {}
    fill()
    producer = RecoverableProducer(place / "wal", bootstrap_servers="127.0.0.1:1", **options)
    told["start"] = await refusal(producer.start)
    make_room()
    await producer.start()
    stored = 0
    async def one(producer):
        nonlocal stored
        await producer.publish(topic, b"%06d" % stored + b"x" * 1000)
        stored += 1
    while not (text := await refusal(lambda: one(producer))):
        pass
    told["publish"] = [text, await refusal(lambda: one(producer)), await refusal(lambda: one(producer))]
    told["full"] = stored
    told["left"] = await producer.stop(timeout_ms=300)
    producer = RecoverableProducer(place / "wal", bootstrap_servers=servers, on_full="wait", **options)
    await producer.start()
    for _ in range(500):
        await one(producer)
    await producer.flush(timeout_ms=30_000)
    told["stored"], told["last"] = stored, await producer.stop()
    print(json.dumps(told))

asyncio.run(main())
"""


def small_disk(place: Path) -> list[str]:
    """The command under which ``place`` is a disk of 1 MB of its own; empty where that takes rights we do not have."""
    command = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', str(place)]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0:
            return command
    return []


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["a small disk", "a limit for files"])
async def test_a_full_disk_refuses_each_record_plainly_and_keeps_and_delivers_what_it_took(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, kind: str
) -> None:
    """Where a disk cannot be made, both cases run under a limit for the size of files, which everybody may set."""
    name = topic(kafka, partitions=1)
    disk = small_disk(tmp_path) if kind == "a small disk" else []
    limit = 0 if disk else 5 * 65536
    arguments = [str(tmp_path), str(limit), kafka.bootstrap_servers, name]
    child = await asyncio.create_subprocess_exec(
        *disk, sys.executable, "-c", FULL, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 0, errors.decode()
    told = json.loads(output)
    remedy = "free (disk )?space" if disk else "raise the limit for the size of a file"
    assert re.search(f"^no room to .*: {remedy}", told["start"]), told["start"]
    assert len(set(told["publish"])) == 1
    assert re.search(remedy, told["publish"][0]), told["publish"][0]
    assert told["full"] > 200
    assert told["left"] == told["full"]
    assert (told["stored"], told["last"]) == (told["full"] + 500, 0)
    values = [int((value or b"")[:6]) for value in await values_in(kafka, name)]
    assert values == list(range(told["stored"]))
