"""A producer accepts the same with the writer in C, whose `Acceptor` comes first, as with the one in Python."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorecover import ClosedError, RecoverableProducer, RecoverError
from aiorecover.acceptor import TURN_CALLS, Acceptor
from aiorecover.ring import inspect, writer
from tests.support.published import NOWHERE

pytestmark = pytest.mark.skipif(
    bool(os.environ.get("AIORECOVER_PURE_PYTHON")), reason="the writer in C is turned off, so there is one alone"
)

NOW_NS = 1_800_000_000_000_000_000
BOTH = 2  # writers
SIZE_MOST = 2000  # bytes of a record


def serialized(value: Any) -> bytes | None:
    """A serializer with answers of every kind."""
    if value == "none":
        return None
    if value == "text":
        return "no bytes"  # type: ignore[return-value]
    return b"<%s>" % repr(value).encode()


BYTES = st.binary(max_size=9)
NEAR = st.integers(SIZE_MOST - 140, SIZE_MOST + 10).map(bytes)  # of the limit
VALUES = (
    BYTES | NEAR | st.none() | st.text(max_size=5) | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    | st.sampled_from(["none", "text", "\ud800", object(), bytearray(b"value"), memoryview(b"value"), 1.5])
)  # fmt: skip
KEYS = (
    st.none() | BYTES | st.text(max_size=5) | st.sampled_from([5, bytearray(b"key"), "\ud800", bytes(500), "ä" * 400])
)
FIELDS = st.fixed_dictionaries(
    {"value": VALUES},
    optional={
        "key": KEYS,
        "partition": st.none() | st.integers(-1, 2) | st.just("one"),
        "timestamp_ms": st.none() | st.integers(0, 1 << 42) | st.sampled_from([-1, 1.5]),
        "headers": st.none() | st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=2) | st.just("none"),
        "source": st.none() | st.just(("topic", 0, 5)),
        "context": st.none() | st.just({"order": 5}) | st.just(object()),
    },
)
USUAL = st.fixed_dictionaries({"value": BYTES | st.just({"id": 1})}, optional={"key": BYTES | st.text(max_size=3)})
OPTIONS = st.fixed_dictionaries(
    {"max_request_size": st.just(SIZE_MOST)},
    optional={"value_serializer": st.just(serialized), "key_serializer": st.just(serialized)},
)


@settings(max_examples=60)
@given(OPTIONS, st.lists(USUAL | FIELDS, max_size=40))
def test_both_writers_accept_the_same_records_and_refuse_the_others_alike(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], published: list[dict[str, Any]]
) -> None:
    _compare(tmp_path_factory, options, published)


def test_both_writers_have_the_same_limit(tmp_path_factory: pytest.TempPathFactory) -> None:
    keys: list[dict[str, Any]] = [{}, {"key": b"key"}, {"key": "ä" * 60}, {"key": "🙂" * 30}]
    published = [{"value": bytes(size), **key} for size in range(SIZE_MOST - 250, SIZE_MOST + 5) for key in keys]
    _compare(tmp_path_factory, {"max_request_size": SIZE_MOST}, published)


def _compare(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], published: list[dict[str, Any]]
) -> None:
    made = {}
    for make in (writer.PythonWriter, writer.Writer):
        path = tmp_path_factory.mktemp("wal")
        with patch("aiorecover.runtime.Writer", make), patch("time.time_ns", lambda: NOW_NS):
            outcomes = asyncio.run(_published(path, options, published))
        records = [
            (one.timestamp_ms, one.record.key, one.record.value, one.record.headers[:-1], one.note)  # without the id
            for one in inspect.waiting(path / "0")
        ]
        made[make] = outcomes, records
    assert len(made) == BOTH
    assert made[writer.PythonWriter] == made[writer.Writer]


async def _published(path: Path, options: dict[str, Any], published: list[dict[str, Any]]) -> list[object]:
    """Publish to a producer without Kafka; the place of each record, or what was raised."""
    outcomes: list[object] = []
    async with RecoverableProducer(path, bootstrap_servers=NOWHERE, stop_timeout_ms=0, **options) as producer:
        for fields in published:
            try:
                receipt = await producer.publish("topic", **fields)
                outcomes.append((receipt.sequence, receipt.topic))
            except Exception as error:  # noqa: BLE001 - compared
                outcomes.append((type(error), str(error)))
    return outcomes


@pytest.mark.asyncio
async def test_a_serializer_is_called_once_for_each_record_also_where_it_makes_a_tombstone(tmp_path: Path) -> None:
    values: list[object] = []
    options: dict[str, Any] = {"value_serializer": values.append, "stop_timeout_ms": 0}
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, **options) as producer:
        await producer.publish("topic", 1, key="key")
        await producer.publish("topic", 2, key="key")
    assert values == [1, 2]


@pytest.mark.asyncio
async def test_each_record_is_refused_in_another_thread_and_after_the_stop(tmp_path: Path) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0)
    async with producer:
        for _ in range(3):
            producer.publish_nowait("topic", b"value")
            with pytest.raises(RecoverError, match="use publish_threadsafe"):
                await asyncio.to_thread(producer.publish_nowait, "topic", b"value")
        accepted = producer.statistics().accepted
    with pytest.raises(ClosedError):
        producer.publish_nowait("topic", b"value")
    assert accepted == 3


def test_usual_records_meet_no_python_of_ours_but_each_of_a_turn_does(tmp_path: Path) -> None:
    """Else this module would compare the Python code with itself."""
    seen: list[Any] = []

    async def publish() -> None:
        async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
            for _ in range(2 * TURN_CALLS):
                await producer.publish("topic", b"value", key=b"key")

    def profiler(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code is Acceptor.store.__code__:
            seen.append(frame.f_locals["now"])

    sys.setprofile(profiler)
    try:
        asyncio.run(publish())
    finally:
        sys.setprofile(None)
    assert len(seen) == 2
