"""An AIOKafkaProducer is closed whatever state it is in; and the private parts of aiokafka that this rests on."""

import asyncio
import importlib
import logging
import pkgutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import TopicPartition

from aiorecover.delivery.hard_close import Holdings, SessionLostError, close_bootstrap, close_hard
from aiorecover.testing import ApiKey, MockCluster
from tests.support.census import Census
from tests.support.silence import complaints

HELD = (0, 600_000)  # an answer that never comes
NOT_LEADER = 6  # aiokafka asks for metadata and tries again by itself


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        yield cluster


@asynccontextmanager
async def started(mock: MockCluster, **options: Any) -> AsyncIterator[tuple[AIOKafkaProducer, Holdings]]:
    """An idempotent producer, which nobody stops."""
    options = {"request_timeout_ms": 2000, "retry_backoff_ms": 20, **options}
    producer = AIOKafkaProducer(
        bootstrap_servers=mock.bootstrap_servers, enable_idempotence=True, acks="all", **options
    )
    holdings = Holdings(producer)
    await producer.start()
    await producer.client.add_topic("t")
    yield producer, holdings


@pytest.fixture(autouse=True)
def _silent_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert complaints(caplog) == []


async def assert_closes(producer: AIOKafkaProducer, holdings: Holdings, tasks: set[asyncio.Task[Any]]) -> None:
    async with asyncio.timeout(20):
        await close_hard(producer, holdings)
    assert {task for task in asyncio.all_tasks() if not task.done()} == tasks
    assert not any(connection.connected() for connection in producer.client._conns.values())
    assert holdings.tasks == set()


@pytest.mark.asyncio
async def test_a_producer_at_rest_is_closed(tmp_path: Path, mock: MockCluster) -> None:
    tasks = Census(tmp_path).tasks
    async with started(mock) as (producer, holdings):
        await assert_closes(producer, holdings, tasks)
        await assert_closes(producer, holdings, tasks)  # and once more


@pytest.mark.asyncio
async def test_requests_in_flight_are_noted_and_ended_and_their_batches_fail(tmp_path: Path, mock: MockCluster) -> None:
    tasks = Census(tmp_path).tasks
    async with started(mock) as (producer, holdings):
        mock.push_broker_errors(1, ApiKey.PRODUCE, HELD)
        future = await producer.send("t", b"v", partition=0)
        async with asyncio.timeout(20):
            while not holdings.tasks:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        await assert_closes(producer, holdings, tasks)
        with pytest.raises(SessionLostError):
            await future


@pytest.mark.asyncio
async def test_a_batch_that_waits_to_be_sent_again_fails_without_an_error_in_the_loop(
    tmp_path: Path, mock: MockCluster
) -> None:
    """Aiokafka's callback removes it from a set that it is no longer in."""
    tasks = Census(tmp_path).tasks
    async with started(mock) as (producer, holdings):
        mock.set_leader("t", 0, None)  # told with the metadata that follows the error
        mock.push_errors(ApiKey.PRODUCE, NOT_LEADER)
        future = await producer.send("t", b"v", partition=0)
        accumulator = producer._message_accumulator
        place = TopicPartition("t", 0)
        async with asyncio.timeout(20):
            while not any(batch.retry_count for batch in accumulator._batches.get(place, ())):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not accumulator._pending_batches, "it is still in there: nothing has to be put back any more"
        await assert_closes(producer, holdings, tasks)
        with pytest.raises(SessionLostError):
            await future


@pytest.mark.asyncio
@pytest.mark.parametrize("failed", ["sender", "metadata"])
async def test_a_producer_whose_task_has_failed_is_closed_and_so_are_its_connections(
    tmp_path: Path, mock: MockCluster, failed: str
) -> None:
    """Aiokafka's own client raises the metadata task's error instead of closing."""

    async def fail(*_: Any) -> Any:
        raise AssertionError("a defect of aiokafka")

    tasks = Census(tmp_path).tasks
    async with started(mock) as (producer, holdings):
        task: Any = producer._sender.sender_task if failed == "sender" else producer.client._sync_task
        if failed == "sender":
            holdings._send = fail
            future = await producer.send("t", b"v", partition=0)
            await asyncio.wait({task})
        else:
            producer.client._metadata_update = fail  # type: ignore[method-assign]
            producer.client.force_metadata_update()
            await asyncio.wait({task})
        await assert_closes(producer, holdings, tasks)
        if failed == "sender":
            with pytest.raises(SessionLostError):
                await future


@pytest.mark.asyncio
@pytest.mark.parametrize("turns", [0, 1, 2])  # 0: before its task begins
async def test_closing_that_is_cancelled_has_ended_everything_all_the_same(
    tmp_path: Path, mock: MockCluster, turns: int
) -> None:
    tasks = Census(tmp_path).tasks
    async with started(mock) as (producer, holdings):
        mock.push_broker_errors(1, ApiKey.PRODUCE, HELD)
        future = await producer.send("t", b"v", partition=0)
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(close_hard(producer, holdings))
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        with pytest.raises(SessionLostError):
            await future
        async with asyncio.timeout(20):
            while {task for task in asyncio.all_tasks() if not task.done()} != tasks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not any(connection.connected() for connection in producer.client._conns.values())
        assert producer._closed  # its finaliser has no complaint


# --- private parts of aiokafka


@pytest.mark.asyncio
async def test_the_connection_of_a_bootstrap_that_hangs_is_found_in_its_frame_and_closed(mock: MockCluster) -> None:
    assert "bootstrap_conn" in AIOKafkaClient.bootstrap.__code__.co_varnames, "the variable has another name"
    mock.push_broker_errors(1, ApiKey.METADATA, HELD)
    producer = AIOKafkaProducer(bootstrap_servers=mock.bootstrap_servers)
    starting = asyncio.create_task(producer.start())
    await asyncio.sleep(0.3)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await starting
    close_bootstrap(raised.value)
    await close_hard(producer, Holdings(producer))
    # And the fixture looks for the complaint of a connection that is collected and was not closed.


@pytest.mark.asyncio
async def test_the_metadata_task_is_there_after_start(mock: MockCluster) -> None:
    async with started(mock) as (producer, holdings):
        assert isinstance(producer.client._sync_task, asyncio.Task), "the end of its metadata task goes unnoticed"
        assert any(connection.connected() for connection in producer.client._conns.values()), "not to be told any more"
        await close_hard(producer, holdings)


def test_every_logger_of_aiokafka_is_called_after_it() -> None:
    """Those are the ones that `chatter` holds back."""
    found = set()
    for module in pkgutil.walk_packages(aiokafka.__path__, "aiokafka."):
        logger = getattr(importlib.import_module(module.name), "log", None)
        if isinstance(logger, logging.Logger):
            found.add(logger.name)
    assert {"aiokafka", "aiokafka.conn", "aiokafka.cluster", "aiokafka.producer.sender"} <= found
    assert all(name.split(".")[0] == "aiokafka" for name in found)
