"""What goes wrong behind a producer's back is seen in its state and mended: sessions, and our own tasks."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover import supervised as supervised_module
from aiorecover.delivery import chatter, cluster_guard
from aiorecover.delivery import sender as sender_module
from aiorecover.delivery import session as session_module
from aiorecover.delivery.hard_close import close_hard
from aiorecover.delivery.session import Session
from aiorecover.testing import ApiKey, MockCluster
from tests.delivery.test_session import NOWHERE, identified, made, running, until_rebuilt, until_sent
from tests.support.census import Census
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

TOPIC = "t"
AWAY = 1.5  # seconds: several attempts to connect fail
RESUMED = 5.0  # seconds at most, on a busy machine, too; the promise is one, and `make prove WHAT=outages` measures it
LONG_MS = 60_000
HANG = 20  # seconds: what takes longer hangs


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=1)
        yield cluster


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "WATCH_INTERVAL", 0.02)
    monkeypatch.setattr(session_module, "UNREACHABLE_LIMIT", 0.3)


@asynccontextmanager
async def started(path: Path, mock: MockCluster, **options: Any) -> AsyncIterator[RecoverableProducer]:
    options = {"retry_backoff_ms": 20, "linger_ms": 0, **options}
    async with RecoverableProducer(path, bootstrap_servers=mock.bootstrap_servers, **options) as producer:
        await producer.partitions_for(TOPIC)
        yield producer


async def values_in(mock: MockCluster) -> list[bytes | None]:
    return [record.value for record in await read_topic(mock.bootstrap_servers, TOPIC)]


async def until_state(producer: RecoverableProducer, state: str) -> None:
    async with asyncio.timeout(HANG):
        while producer.state != state:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)


# -- what Kafka says --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [45, 47, 49, 59, 90], ids=["out of order", "epoch", "mapping", "unknown", "fenced"])
@pytest.mark.parametrize("times", [1, 4])
async def test_a_producer_that_kafka_no_longer_follows_goes_on(
    tmp_path: Path, mock: MockCluster, code: int, times: int
) -> None:
    async with started(tmp_path, mock) as producer:
        await producer.publish(TOPIC, b"before")
        await producer.flush(HANG * 1000)
        mock.push_errors(ApiKey.PRODUCE, *[code] * times)
        for number in range(3):
            await producer.publish(TOPIC, b"%d" % number)
        await producer.flush(HANG * 1000)
        assert producer.state == "connected"
        counts = producer.statistics()
        assert (counts.delivered, counts.pending, counts.lanes_halted) == (4, 0, 0)
    assert await values_in(mock) == [b"before", b"0", b"1", b"2"]


# -- the brokers ------------------------------------------------------------------------------------------------------


async def test_the_session_is_back_as_soon_as_the_brokers_are_whatever_pauses_are_asked_for(
    tmp_path: Path, mock: MockCluster
) -> None:
    """And what nobody has tried to send goes; a batch that has failed has its own pause."""
    options = {"retry_backoff_ms": LONG_MS, "retry_backoff_max_ms": LONG_MS}
    async with started(tmp_path, mock, **options) as producer:
        await producer.publish(TOPIC, b"before")
        await producer.flush(HANG * 1000)
        mock.broker_down()
        for number in range(20):
            await producer.publish(TOPIC, b"%d" % number)
        await until_state(producer, "connecting")
        await asyncio.sleep(AWAY)
        mock.broker_up()
        began = asyncio.get_running_loop().time()
        await producer.flush(HANG * 1000)
        assert asyncio.get_running_loop().time() - began < RESUMED
    assert await values_in(mock) == [b"before", *(b"%d" % number for number in range(20))]


async def test_when_all_known_brokers_are_gone_the_bootstrap_list_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Aiokafka asks known brokers only, for ever."""
    monkeypatch.setattr(random, "shuffle", lambda servers: None)  # the first cluster first
    monkeypatch.setattr(cluster_guard, "_cluster_id", lambda _: "one")  # both stand for brokers of one cluster
    with MockCluster() as first, MockCluster() as second:
        async with running(f"{first.bootstrap_servers},{second.bootstrap_servers}") as session:
            await session.identity()
            first.close()
            await until_rebuilt(session)
            assert session.state == "connected"
            assert session._producer is not None
            known = {f"{broker.host}:{broker.port}" for broker in session._producer.client.cluster.brokers()}
            assert known == {second.bootstrap_servers}
    assert "reason='no broker that it knows can be reached'" in caplog.text


async def test_idle_connections_that_are_closed_are_no_reason_to_worry(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers, connections_max_idle_ms=100) as session:
        await session.identity()
        await asyncio.sleep(1.5)
        assert (session.state, session.rebuilds) == ("connected", 0)


async def test_a_loop_that_stood_still_is_no_reason_to_worry(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as session:
        await session.identity()
        end = asyncio.get_running_loop().time() + 0.6
        while asyncio.get_running_loop().time() < end:
            pass
        await asyncio.sleep(0.1)
        assert (session.state, session.rebuilds) == ("connected", 0)


async def test_a_metadata_task_that_ends_is_noticed_before_anybody_asks_for_metadata(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as session:
        await session.identity()
        assert session._producer is not None
        task: Any = session._producer.client._sync_task
        task.cancel()
        await until_rebuilt(session)


async def test_a_cancelled_sender_that_waits_for_an_answer_is_noticed_before_the_answer_is_late(
    mock: MockCluster,
) -> None:
    async with running(mock.bootstrap_servers) as session:
        batch = await identified(session, b"v")
        mock.push_broker_errors(1, ApiKey.PRODUCE, (0, 600_000))
        sending = asyncio.create_task(until_sent(session, batch, TOPIC))
        await asyncio.sleep(0.1)
        assert session._producer is not None
        sender: Any = session._producer._sender.sender_task
        sender.cancel()
        await until_rebuilt(session)
        await sending


async def test_metadata_that_never_comes_ends_in_a_new_session(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_module, "METADATA_LIMIT", 0.2)
    async with running(mock.bootstrap_servers) as session:
        await session.identity()
        mock.push_broker_errors(1, ApiKey.METADATA, (0, 600_000))  # this answer is held back, no other
        session.want(TOPIC)
        with pytest.raises(session_module.SessionLostError):
            await session.discover()
        await until_rebuilt(session)
        assert session.partitions(TOPIC) == {0}
    assert "reason='no metadata within" in caplog.text


async def test_metadata_that_waits_behind_what_moves_on_a_slow_line_ends_no_session(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "METADATA_LIMIT", 0.2)
    async with running(mock.bootstrap_servers) as session:
        await session.identity()
        mock.push_broker_errors(1, ApiKey.METADATA, (0, 600_000))
        session.want(TOPIC)
        session._on_moving()
        with pytest.raises(session_module.SessionLostError):
            await session.discover()
        assert session._end is not None
        assert not session._end.done()


async def test_who_asks_for_metadata_is_told_at_once_that_the_session_ended(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as session:
        await session.identity()
        mock.push_broker_errors(1, ApiKey.METADATA, (0, 600_000))
        session.want("another")
        asking = asyncio.create_task(session.discover())
        await asyncio.sleep(0.1)
        session.give_up("a test")
        async with asyncio.timeout(5):
            with pytest.raises(session_module.SessionLostError):
                await asking


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID])
async def test_a_broker_that_stops_answering_while_we_connect_leaves_nothing(
    tmp_path: Path, mock: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, api_key: int
) -> None:
    """Each step of connecting may be the one that hangs; the connection of each is closed."""
    monkeypatch.setattr(session_module, "CONNECT_LIMIT", 0.2)
    mock.push_broker_errors(1, api_key, (0, 600_000))
    async with running(mock.bootstrap_servers) as session:
        async with asyncio.timeout(HANG):
            await session.identity()
        assert session.rebuilds == 0
    gc.collect()  # a connection that nobody closed says so now
    assert "Unclosed" not in caplog.text


async def test_a_session_that_does_not_last_is_replaced_after_a_growing_pause(mock: MockCluster) -> None:
    asked: list[str] = []

    class Noting:
        def next(self) -> float:
            asked.append("next")
            return 0.0

        def reset(self) -> None:
            asked.append("reset")

    async with running(mock.bootstrap_servers) as session:
        session._rebuilding = Noting()  # type: ignore[assignment]
        await session.identity()
        for number in range(3):
            session.give_up("a test")
            await until_rebuilt(session, number + 1)
        assert asked == ["next"] * 3
        session._since -= session_module.STEADY  # it lasted
        session.give_up("a test")
        await until_rebuilt(session, 4)
        assert asked[3:] == ["reset"]


@pytest.mark.parametrize("turns", range(12))
async def test_a_close_while_a_lost_session_is_being_closed_leaves_nothing(
    tmp_path: Path, mock: MockCluster, turns: int
) -> None:
    before = Census(tmp_path)
    session = made(mock.bootstrap_servers)
    session.start()
    await session.identity()
    session.give_up("a test")
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(HANG):
        await session.close()
    assert {task for task in asyncio.all_tasks() if not task.done()} == before.tasks


async def closed_while_a_session_is_being_closed(mock: MockCluster) -> bool:
    """Whether everything has ended then, also what obeys only the second cancellation, as aiokafka's sender may."""
    waits = [asyncio.Event(), asyncio.Event()]

    async def stubborn() -> None:
        for event in waits:
            with suppress(asyncio.CancelledError):
                await event.wait()

    session = made(mock.bootstrap_servers)
    session.start()
    await session.identity()
    assert session._holdings is not None
    task = asyncio.create_task(stubborn())
    session._holdings.tasks.add(task)
    session.give_up("a test")
    async with asyncio.timeout(HANG):
        while not task.cancelling():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0)
        await session.close()
    ended = task.done()
    task.cancel()
    return ended


async def test_a_close_while_a_lost_session_is_being_closed_ends_what_waits_when_it_is_cancelled(
    mock: MockCluster,
) -> None:
    assert await closed_while_a_session_is_being_closed(mock)


async def test_without_a_task_of_its_own_the_closing_of_a_lost_session_would_be_cut_off(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closed_in_ours(self: Session) -> None:
        self._connected.clear()
        producer, self._producer = self._producer, None
        assert producer is not None
        assert self._holdings is not None
        await close_hard(producer, self._holdings)

    monkeypatch.setattr(Session, "_drop", closed_in_ours)
    assert not await closed_while_a_session_is_being_closed(mock)


async def test_a_close_that_is_cancelled_and_called_again_leaves_nothing(tmp_path: Path, mock: MockCluster) -> None:
    for turns in range(8):
        before = Census(tmp_path)
        session = made(mock.bootstrap_servers)
        session.start()
        await session.identity()
        closing = asyncio.create_task(session.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        async with asyncio.timeout(HANG):
            await session.close()
        assert session.state == "closed"
        assert {task for task in asyncio.all_tasks() if not task.done()} == before.tasks
        assert session._chatter not in chatter._TALKING


# -- our own tasks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dispatcher", "discovery", "checkpoint", "spare", "fsync", "session"])
async def test_a_task_of_ours_that_somebody_cancels_shows_in_the_state_and_is_begun_again(
    tmp_path: Path, mock: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(supervised_module, "RESTART_PAUSE", 0.1)
    async with started(tmp_path, mock) as producer:
        for number in range(3):
            (task,) = tasks_named(f"aiorecover-{name}")
            task.cancel()
            await asyncio.wait({task})
            await asyncio.sleep(0)
            assert producer.state == "interrupted"
            await producer.publish(TOPIC, b"%d" % number)
            await until_state(producer, "connected")
            await producer.flush(HANG * 1000)
            assert producer.statistics().pending == 0
        assert producer.statistics().rebuilds == 0
    assert caplog.text.count(f"the {name} task was cancelled from outside") == 3
    assert await values_in(mock) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_lane_whose_task_somebody_cancels_goes_on_in_order(
    tmp_path: Path, mock: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begun: bool
) -> None:
    """Cancelled before its first step, a task never runs at all: what it would have cleared up stays as it is."""
    monkeypatch.setattr(sender_module, "RESTART_PAUSE", 0.1)
    async with started(tmp_path, mock) as producer:
        mock.round_trip_ms(50)
        await producer.publish(TOPIC, b"0")
        async with asyncio.timeout(HANG):
            while not (tasks := tasks_named("aiorecover-lane-")):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0)
        if begun:
            await asyncio.sleep(0.02)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)
        assert producer.state == "interrupted"
        assert producer.statistics().in_flight == 0
        await producer.publish(TOPIC, b"1")
        await producer.flush(HANG * 1000)
        assert producer.state == "connected"
        counts = producer.statistics()
        assert (counts.delivered, counts.pending, counts.in_flight) == (2, 0, 0)
    assert "a lane's task was cancelled from outside" in caplog.text
    found = await values_in(mock)  # the mock appends a repeat, which a broker recognises
    assert list(dict.fromkeys(found)) == [b"0", b"1"]


def tasks_named(start: str) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(start)]


async def test_a_stop_while_a_task_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    before = Census(tmp_path)
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=200)
    await producer.start()
    await producer.publish(TOPIC, b"v")
    for task in asyncio.all_tasks() - before.tasks:
        task.cancel()
    await asyncio.sleep(0.01)
    assert producer.state == "interrupted"
    assert await producer.stop() == 1
    assert before.left_since() == []


async def test_publishers_that_wait_for_the_disk_are_told_when_their_flush_is_cancelled_before_it_begins(
    tmp_path: Path, mock: MockCluster
) -> None:
    async with started(tmp_path, mock, fsync="always") as producer:
        waiting = asyncio.create_task(producer.publish(TOPIC, b"stored"))
        async with asyncio.timeout(HANG):
            while not (found := tasks_named("aiorecover-group-commit")):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0)
            found[0].cancel()
            with pytest.raises(Exception, match="the record is stored, but may not be durable"):
                await waiting
            await producer.publish(TOPIC, b"afterwards")
        await producer.flush(HANG * 1000)
    assert await values_in(mock) == [b"stored", b"afterwards"]
