"""Wrong input is answered with one clear error that says what to do, and accepted records do not suffer."""

import asyncio
import datetime as dt
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiorecover import (
    ConfigError,
    EncodeError,
    RecordTooLargeError,
    RecoverableProducer,
    RecoverError,
    WalFormatError,
)
from aiorecover.ring import inspect
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def accepting(wal: Path, **options: Any) -> AsyncIterator[RecoverableProducer]:
    """A producer without a broker, and accepted records; in the end they are in the ring, and nothing else is."""
    async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, stop_timeout_ms=0, **options) as producer:
        for number in range(3):
            await producer.publish("good", b"before %d" % number)
        yield producer
        for number in range(2):
            await producer.publish("good", b"after %d" % number)
        figures = producer.statistics()
        assert (figures.accepted, figures.pending, figures.dead_letters) == (5, 5, 0)
    left = [record.record.value for record in inspect.waiting(wal / "0")]
    assert left == [*(b"before %d" % number for number in range(3)), *(b"after %d" % number for number in range(2))]
    assert await left_in(wal, **options) == 5


async def left_in(wal: Path, **options: Any) -> int:
    """How many records the next start finds."""
    async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, stop_timeout_ms=0, **options) as producer:
        while producer.statistics().recovering:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        assert producer.statistics().damaged == 0
        return producer.statistics().recovered


@contextmanager
def refused(kind: type[RecoverError], told: str) -> Iterator[None]:
    """One error of the tree, in one line, in our own words, that says what to do."""
    with pytest.raises(RecoverError) as caught:
        yield
    text = str(caught.value)
    assert type(caught.value) is kind, text
    assert told in text
    assert len(text.splitlines()) == 1
    assert text[0].islower() or text.startswith(("Kafka", "[Errno", "/")), text


# --- records

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
TOO_DEEP: list[Any] = []
for _ in range(100_000):
    TOO_DEEP = [TOO_DEEP]


class Text(str):
    __slots__ = ()


class Frozen(msgspec.Struct, frozen=True):
    number: int = 1


def released() -> memoryview:
    view = memoryview(bytearray(b"gone"))
    view.release()
    return view


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no value at all": ({"value": ...}, "pass it, or None for a tombstone"),
    "neither key nor value": ({"value": None}, "needs a key or a value"),
    "a value that has no JSON form": ({"value": object()}, "pass bytes, str or plain data"),
    "an endless value": ({"value": ENDLESS}, "pass bytes, str or plain data"),
    "a value of too many levels": ({"value": TOO_DEEP}, "pass bytes, str or plain data"),
    "surrogates in the value": ({"value": "\ud800"}, "pass bytes, or clean the text"),
    "a released memoryview as value": ({"value": released()}, "publish before releasing the memoryview"),
    "an int as key": ({"key": 5}, "pass str(key), or set key_serializer"),
    "a dict as key": ({"key": {"id": 1}}, "pass str(key), or set key_serializer"),
    "surrogates in the key": ({"key": "\ud800"}, "clean the text"),
    "a released memoryview as key": ({"key": released()}, "publish before releasing the memoryview"),
    "a dict as headers": ({"headers": {"a": b"1"}}, "use list(headers.items())"),
    "a str as headers": ({"headers": "ab"}, "must be a list of (str, bytes) tuples"),
    "a generator as headers": ({"headers": (pair for pair in [("a", b"1")])}, "use list(headers)"),
    "headers of one part": ({"headers": [("a",)]}, "is not a pair"),
    "a str for a header": ({"headers": ["ab"]}, "is not a pair"),
    "a good and a bad header": ({"headers": [("a", b"1"), ("b", "2")]}, "use value.encode()"),
    "an int for a header": ({"headers": [("a", 1)]}, "must be bytes or None"),
    "a header's name as bytes": ({"headers": [(b"a", b"1")]}, "decode it first"),
    "surrogates in a header's name": ({"headers": [("\ud800", b"1")]}, "clean the text"),
    "a released memoryview as header": ({"headers": [("a", released())]}, "publish before releasing the memoryview"),
    "our own header's name": ({"headers": [("aiorecover-id", b"x")]}, "leave it out when forwarding"),
    "a negative partition": ({"partition": -1}, "must be an int from 0 to 2147483647"),
    "a bool as partition": ({"partition": True}, "pass int(partition), or None"),
    "a str as partition": ({"partition": "0"}, "pass int(partition), or None"),
    "a partition above 31 bits": ({"partition": 2**31}, "must be an int from 0 to 2147483647"),
    "a negative timestamp": ({"timestamp_ms": -1}, "not negative"),
    "seconds as timestamp": ({"timestamp_ms": 1_700_000_000.5}, "pass int(seconds * 1000)"),
    "a datetime as timestamp": ({"timestamp_ms": dt.datetime.now(dt.UTC)}, "pass int(seconds * 1000)"),
    "microseconds as timestamp": ({"timestamp_ms": 1_700_000_000_000_000}, "looks like microseconds"),
    "nanoseconds as timestamp": ({"timestamp_ms": 1_700_000_000_000_000_000}, "looks like nanoseconds"),
    "an empty topic": ({"topic": ""}, "use 1 to 249 of the characters"),
    "a topic with a line end": ({"topic": "a\n"}, "use 1 to 249 of the characters"),
    "a topic of surrogates": ({"topic": "\ud800"}, "use 1 to 249 of the characters"),
    "a topic that is two dots": ({"topic": ".."}, "neither '.' nor '..'"),
    "a topic too long": ({"topic": "x" * 250}, "use 1 to 249 of the characters"),
    "None as topic": ({"topic": None}, "a topic must be a plain str"),
    "an unhashable topic": ({"topic": ["t"]}, "a topic must be a plain str"),
    "a subclass of str as topic": ({"topic": Text("t")}, "pass str(topic)"),
    "a context of an unknown kind": ({"context": object()}, "the context must be plain data"),
    "an endless context": ({"context": ENDLESS}, "the context must be plain data"),
    "a context that cannot be read back": ({"context": msgspec.Raw(b"\xc1")}, "the context must be plain data"),
    "a struct as the key of a context": ({"context": {Frozen(): 1}}, "the context must be plain data"),
    "a large context": ({"context": b"x" * 65536}, "the context is too large: store it elsewhere"),
    "a source of two parts": ({"source": ("t", 0)}, "must be a tuple (topic, partition, offset)"),
    "a source's topic as bytes": ({"source": (b"t", 0, 1)}, "must be a tuple (topic, partition, offset)"),
    "a source's offset with none after it": ({"source": ("t", 0, 2**63 - 1)}, "as the consumer gave them"),
    "a source's topic of surrogates": ({"source": ("\ud800", 0, 1)}, "use 1 to 249 of the characters"),
}


async def try_badly(producer: RecoverableProducer, name: str) -> None:
    """Publish a bad record in each way that there is."""
    given: dict[str, Any] = {"topic": "good", "value": b"bad", **BAD[name][0]}
    positional = [one for one in (given.pop("topic"), given.pop("value")) if one is not ...]
    with refused(EncodeError, BAD[name][1]):
        await producer.publish(*positional, **given)
    with refused(EncodeError, BAD[name][1]):
        producer.publish_nowait(*positional, **given)
    with refused(EncodeError, BAD[name][1]):
        await asyncio.wrap_future(producer.publish_threadsafe(*positional, **given))


async def test_a_bad_record_is_refused_in_plain_words_and_nothing_else_happens(tmp_path: Path) -> None:
    async with accepting(tmp_path) as producer:
        for name in BAD:
            await try_badly(producer, name)


async def test_the_contents_of_a_refused_record_stay_out_of_the_error(tmp_path: Path) -> None:
    """Errors end in logs; headers and values carry credentials."""
    bad: list[dict[str, Any]] = [
        {"value": {"password": object(), "token": "hunter2"}},
        {"key": {"token": "hunter2"}},
        {"headers": {"authorization": b"hunter2"}},
        {"headers": [("authorization", "hunter2")]},
        {"context": {"token": "hunter2", "other": object()}},
    ]
    async with accepting(tmp_path) as producer:
        for one in bad:
            with pytest.raises(EncodeError) as caught:
                await producer.publish("good", **{"value": b"v", **one})
            assert "hunter2" not in str(caught.value)


async def test_a_record_above_the_largest_is_refused_and_the_largest_fits(tmp_path: Path) -> None:
    too_large: list[dict[str, Any]] = [
        {"value": b"x" * 16384},
        {"value": b"x" * 8192, "key": b"k" * 8192},
        {"value": b"x", "key": "\u00e4" * 8192},
        {"value": b"x", "key": bytearray(16384)},
        {"value": b"x", "headers": [("h" * 8192, bytearray(8192))]},
    ]
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=NOWHERE, max_request_size=16384, stop_timeout_ms=0
    ) as producer:
        for one in too_large:
            with refused(RecordTooLargeError, "raise it (and Kafka's limit), or publish less at once topic='t' bytes="):
                await producer.publish("t", **one)
        await producer.publish("t", b"x" * 16_000, key="k" * 200)
    largest = 62 << 20
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=NOWHERE, max_request_size=63 << 20, stop_timeout_ms=0
    ) as producer:
        await producer.publish("t", bytes(largest))
        with refused(RecordTooLargeError, "max_request_size=66060288"):
            await producer.publish("t", bytes(63 << 20))
        assert producer.statistics().accepted == 1
    assert await left_in(tmp_path) == 2


async def test_a_serializer_that_fails_or_returns_nonsense_refuses_that_record_only(tmp_path: Path) -> None:
    answers: dict[bytes, Callable[[], Any]] = {b"raise": lambda: 1 // 0, b"str": lambda: "text", b"null": lambda: None}

    def serialize(value: bytes) -> Any:
        return answers.get(value, lambda: value)()

    async with accepting(tmp_path, value_serializer=serialize, key_serializer=lambda key: None) as producer:
        with refused(EncodeError, "value_serializer failed: mend it, or pass a value it takes"):
            await producer.publish("good", b"raise")
        with refused(EncodeError, "value_serializer must return bytes or None, and not be async"):
            await producer.publish("good", b"str")
        for key in (None, b"k"):
            with refused(EncodeError, "needs a key or a value"):
                await producer.publish("good", b"null", key=key)


async def test_a_partition_that_does_not_exist_is_refused_once_the_topic_is_known(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await (await producer.publish(name, b"0")).delivered(timeout_ms=20_000)
        with refused(EncodeError, f"choose one of the topic's topic={name} partition=6 partitions=6"):
            await producer.publish(name, b"bad", partition=6)
        await producer.publish(name, b"5", partition=5)
    assert {record.value for record in await read_topic(kafka.bootstrap_servers, name)} == {b"0", b"5"}


# --- options and time limits


async def test_a_bad_option_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    """Each of them: tests/test_config.py."""
    with refused(ConfigError, "did you mean linger_ms? option=linger"):
        RecoverableProducer(tmp_path / "never", bootstrap_servers=NOWHERE, linger=5)  # type: ignore[call-arg]
    with refused(ConfigError, "bootstrap_servers must be"):
        RecoverableProducer(tmp_path / "never", bootstrap_servers="http://localhost:9092")
    assert list(tmp_path.iterdir()) == []


async def test_a_wrong_time_limit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    no_limits: list[Any] = ["x", b"1", True, -1, float("nan"), float("inf"), [1], 10**400]
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE)
    await producer.start()
    receipt = await producer.publish("good", b"0")
    for limit in no_limits:
        for call in (producer.flush, producer.stop, receipt.delivered):
            with refused(ConfigError, "timeout_ms must be"):
                await call(timeout_ms=limit)
    await producer.publish("good", b"1")
    assert await producer.stop(timeout_ms=0) == 2
    for limit in no_limits:
        with refused(ConfigError, "timeout_ms must be"):
            await producer.stop(timeout_ms=limit)


# --- directories


async def test_a_ring_of_another_program_is_refused_and_stays(tmp_path: Path) -> None:
    """Other foreign, damaged and older directories: tests/ring/test_directory.py."""
    ring, content = tmp_path / "0" / "ring", b"precious, and no ring\n" * 10_000
    ring.parent.mkdir()
    ring.write_bytes(content)
    before = set(threading.enumerate())
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0)
    with refused(WalFormatError, "belongs to another program: choose another wal_dir"):
        await producer.start()
    assert producer.state == "created"
    assert [one for one in set(threading.enumerate()) - before if not one.name.startswith("asyncio")] == []
    assert ring.read_bytes() == content
