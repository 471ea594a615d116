"""Two sessions: a lane that does not get through leaves its neighbours alone; mock cluster, and three real nodes."""

import asyncio
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, NotEnoughReplicasError

from aiorecover import RecoverableProducer
from aiorecover.config import Config
from aiorecover.delivery import requests as requests_module
from aiorecover.delivery import sessions as module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import EPOCH_LIMIT, Identity, Lane
from aiorecover.delivery.sessions import GivenUpError, Sessions
from aiorecover.errors import ClosedError
from aiorecover.testing import ApiKey, MockCluster
from tests.support.broker import Cluster, TopicFactory
from tests.support.census import Census
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

HELD = (0, 600_000)  # an answer that never comes
QUICK = {"retry_backoff_ms": 20, "metadata_max_age_ms": 300}
HANG = 30  # seconds: what takes longer hangs
CONNECTED_WITHIN = 5.0  # seconds, one of them until the broker is known to be silent


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    """Partition 0 is led by broker 1, and 1 by broker 2; 2 and 3 by broker 1 too."""
    with MockCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=4)
        for partition, leader in enumerate((1, 2, 1, 1)):
            cluster.set_leader("t", partition, leader)
        yield cluster


@asynccontextmanager
async def running(
    servers: str, failed: Callable[[Lane, float | None], None] = lambda *_: None, **options: Any
) -> AsyncIterator[Sessions]:
    sessions = Sessions(Config.from_options(Path("unused"), servers, {**QUICK, **options}), lambda: None, failed)
    sessions.healthy.want("t")
    sessions.start()
    try:
        async with asyncio.timeout(HANG):
            yield sessions
    finally:
        async with asyncio.timeout(10):
            await sessions.close()


async def batch_for(sessions: Sessions, lane: Lane, value: bytes = b"v") -> LaneBatch:
    batch = LaneBatch(1 << 16, 0)
    assert batch.add(0, 1, None, value, []) is not None
    batch.count = 1
    lane.identify(batch, await sessions.identity(lane))
    batch.finish()
    return batch


async def send(sessions: Sessions, lane: Lane, value: bytes = b"v") -> int:
    return (await sessions.send(lane, await batch_for(sessions, lane, value))).offset


class Neighbour:
    """A lane that goes on and on."""

    def __init__(self, sessions: Sessions, lane: Lane) -> None:
        self.acknowledged = 0
        self._task = asyncio.create_task(self._go_on(sessions, lane))

    async def _go_on(self, sessions: Sessions, lane: Lane) -> None:
        while True:
            await send(sessions, lane)
            self.acknowledged += 1
            await asyncio.sleep(0.01)

    async def goes_on(self, times: int = 20) -> None:
        """Return when so many more were acknowledged."""
        target = self.acknowledged + times
        while self.acknowledged < target:
            assert not self._task.done()
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def neighbour(sessions: Sessions, lane: Lane) -> AsyncIterator[Neighbour]:
    found = Neighbour(sessions, lane)
    try:
        await found.goes_on(1)
        yield found
    finally:
        await found.end()


async def until_moved(sessions: Sessions, lanes: int = 1) -> None:
    while sessions.lanes_suspect != lanes:  # noqa: ASYNC110 - seen from outside
        await asyncio.sleep(0.01)


async def test_as_long_as_all_is_well_there_is_one_session(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as sessions:
        for number in range(5):
            assert await send(sessions, Lane("t", 0)) == number
        assert sessions.lanes_suspect == 0
        assert sessions._second is None
        assert not sessions._suspicions


async def test_a_silent_lane_moves_while_its_neighbour_goes_on_and_comes_back_when_acknowledged(
    mock: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiorecover.delivery")
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)) as other:
        silent = Lane("t", 1)
        mock.push_broker_errors(2, ApiKey.PRODUCE, HELD, HELD)
        sending = asyncio.create_task(send(sessions, silent))
        await until_moved(sessions)
        assert not sending.done()
        await other.goes_on()
        assert await sending >= 0
        assert sessions.lanes_suspect == 0
        second = sessions._second
        assert await send(sessions, silent) >= 0
        assert sessions._second is second is not None  # it waits for the next one
    moved = [record.getMessage() for record in caplog.records if "session apart" in record.getMessage()]
    assert len(moved) == 1
    assert re.search(r"lanes=1 lanes_suspect=[01] topic=t partition=1 error=SilentError\(", moved[0])


async def test_a_lane_that_shares_the_silent_request_gets_through_by_itself(mock: MockCluster) -> None:
    """The request of broker 1 with both lanes is silent; in the second session each has one of its own."""
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 1)):
        lanes = [Lane("t", 0), Lane("t", 2), Lane("t", 3)]
        # The first request of broker 1 carries the first lane, the second one those that came meanwhile.
        mock.push_broker_errors(1, ApiKey.PRODUCE, HELD, HELD, HELD)
        sending = [asyncio.create_task(send(sessions, lane)) for lane in lanes]
        done, waiting = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        assert done
        assert waiting, "a lane whose answer is still held back got through"
        for task in sending:
            assert await task >= 0
        assert sessions.lanes_suspect == 0


async def test_the_second_session_does_not_begin_with_the_frozen_broker(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata, asked there, would keep all suspects waiting."""
    monkeypatch.setattr(requests_module, "METADATA_LIMIT", 60.0)
    monkeypatch.setattr(random, "shuffle", lambda brokers: brokers.sort(key=str, reverse=True))  # the frozen one first
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)):
        mock.round_trip_ms(600_000, 2)
        sending = asyncio.create_task(_until_sent(sessions, Lane("t", 1)))
        try:
            async with asyncio.timeout(CONNECTED_WITHIN):
                while sessions._second is None or sessions._second.number is None:  # noqa: ASYNC110 - seen from outside
                    await asyncio.sleep(0.01)
        finally:
            mock.round_trip_ms(0, 2)
            await sending


async def test_a_lane_that_is_refused_costs_its_neighbours_nothing_and_moves_after_a_second(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)) as other:
        refused = Lane("t", 2)  # of the same broker
        mock.push_partition_errors("t", 2, ApiKey.PRODUCE, *[NotEnoughReplicasError.errno] * 12)
        sending = asyncio.create_task(send(sessions, refused))
        await other.goes_on()
        assert sessions.lanes_suspect == 0, "a lane moves before its second is over"
        await until_moved(sessions)
        await other.goes_on()
        assert await sending == 0
        assert sessions.lanes_suspect == 0


async def test_a_lane_without_a_leader_leaves_its_neighbours_alone_and_goes_on_when_there_is_one(
    mock: MockCluster,
) -> None:
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)) as other:
        lane = Lane("t", 2)
        assert await send(sessions, lane) == 0
        mock.set_leader("t", 2, None)
        await sessions.healthy.discover()
        sending = asyncio.create_task(send(sessions, lane))
        await until_moved(sessions)
        await other.goes_on()
        assert not sending.done()
        mock.set_leader("t", 2, 2)
        assert await sending == 1


async def test_a_lane_that_is_refused_or_silent_is_told_with_the_time_of_each_attempt(mock: MockCluster) -> None:
    told: list[tuple[Lane, float | None]] = []
    async with running(mock.bootstrap_servers, lambda *told_of: told.append(told_of)) as sessions:
        lane, began = Lane("t", 2), time.monotonic()
        mock.push_partition_errors("t", 2, ApiKey.PRODUCE, *[NotEnoughReplicasError.errno] * 3)
        await send(sessions, lane)
        assert [who for who, _ in told] == [lane] * 3
        times = [when or 0.0 for _, when in told]
        assert began <= times[0] < times[1] < times[2] <= time.monotonic()


async def test_a_lane_that_has_used_up_its_producer_id_s_epochs_gets_another_one(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as sessions:
        lane = Lane("t", 0)
        assert await send(sessions, lane) == 0
        assert lane.identity is not None
        first = lane.identity.producer_id
        lane.identity = Identity(first, EPOCH_LIMIT - 1)
        assert (await sessions.identity(Lane("t", 1))).producer_id == first
        fresh = await sessions.identity(lane)
        assert fresh.producer_id != first
        lane.begin_anew()
        assert await sessions.identity(lane) == fresh
        assert sessions.healthy.rebuilds == 1
        assert await send(sessions, lane) == 1


async def test_a_session_that_is_lost_is_no_lane_s_fault(mock: MockCluster) -> None:
    told: list[tuple[Lane, float | None]] = []
    async with running(mock.bootstrap_servers, lambda *told_of: told.append(told_of)) as sessions:
        lane = Lane("t", 0)
        await send(sessions, lane)
        first = sessions.healthy.number
        mock.push_broker_errors(1, ApiKey.PRODUCE, HELD)
        sending = asyncio.create_task(_until_sent(sessions, lane))
        await asyncio.sleep(0.2)  # a request takes milliseconds, and a second without an answer
        assert not told
        sessions.give_up(lane, "asked for here")
        await sending
        assert told == [(lane, None)]
        assert first is not None
        assert sessions.healthy.number == first + 1


async def test_where_nobody_gets_through_no_lane_moves(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as sessions:
        lanes = [Lane("t", 0), Lane("t", 1)]
        for lane in lanes:
            await send(sessions, lane)
        mock.broker_down()
        sending = [asyncio.create_task(_until_sent(sessions, lane)) for lane in lanes]
        await asyncio.sleep(1.5)  # a suspect would have moved by now
        assert sessions.lanes_suspect == 0
        assert not any(suspicion.suspect for suspicion in sessions._suspicions.values())
        mock.broker_up()
        for task in sending:
            assert await task == 1
        assert sessions._second is None


async def _until_sent(sessions: Sessions, lane: Lane) -> int:
    batch = await batch_for(sessions, lane)
    while True:
        try:
            return (await sessions.send(lane, batch)).offset
        except KafkaError:
            await asyncio.sleep(0.02)


def second_leads_nowhere(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = sessions._begin_second

    def begin_nowhere() -> Any:
        monkeypatch.setattr(sessions, "_config", Config.from_options(Path("unused"), "127.0.0.1:1", QUICK))
        monkeypatch.setattr(sessions.healthy, "connected_brokers", list)
        return begin()

    monkeypatch.setattr(sessions, "_begin_second", begin_nowhere)


async def test_a_suspect_that_is_not_to_be_sent_any_more_does_not_wait_for_the_second_session(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_PATIENCE", 60.0)
    monkeypatch.setattr(module, "CONNECT_LOOK", 0.05)
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)):
        second_leads_nowhere(sessions, monkeypatch)
        mock.push_broker_errors(2, ApiKey.PRODUCE, HELD)
        lane = Lane("t", 1)
        batch = await batch_for(sessions, lane)
        with pytest.raises(GivenUpError):
            async with asyncio.timeout(20):
                await sessions.send(lane, batch, lambda: sessions._second is not None)


async def test_while_the_second_session_does_not_connect_a_suspect_is_sent_through_the_first(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_PATIENCE", 0.05)
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)):
        second_leads_nowhere(sessions, monkeypatch)
        mock.push_broker_errors(2, ApiKey.PRODUCE, HELD)
        assert await send(sessions, Lane("t", 1)) >= 0
        assert sessions.lanes_suspect == 0


async def test_what_needs_a_decision_reaches_the_lane_from_either_session(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)):
        lane = Lane("t", 1)
        batch = await batch_for(sessions, lane)
        mock.push_broker_errors(2, ApiKey.PRODUCE, (MessageSizeTooLargeError.errno, 0))
        with pytest.raises(MessageSizeTooLargeError):
            await sessions.send(lane, batch)
        assert not batch.possibly
        mock.push_broker_errors(2, ApiKey.PRODUCE, HELD, (MessageSizeTooLargeError.errno, 0))
        with pytest.raises(MessageSizeTooLargeError):
            await sessions.send(lane, batch)
        assert sessions.lanes_suspect == 1
        assert batch.possibly, "its sequence would be given back while a copy of it may be on its way"


async def test_the_second_session_ends_when_it_is_idle_and_leaves_nothing(
    tmp_path: Path, mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_LIMIT", 0.1)
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)):
        before = Census(tmp_path).tasks
        mock.push_broker_errors(2, ApiKey.PRODUCE, HELD)
        assert await send(sessions, Lane("t", 1)) >= 0
        while sessions._second is not None or sessions._closers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        names = {task.get_name() for task in asyncio.all_tasks() - before if not task.done()}
        assert not {name for name in names if "suspect" in name}
        mock.push_broker_errors(2, ApiKey.PRODUCE, HELD)  # and it can be made again
        assert await send(sessions, Lane("t", 1)) >= 0


async def test_a_suspect_that_got_through_and_has_nothing_more_to_send_does_not_keep_the_second_session(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is suspect for the second time within a minute, so one acknowledgement is not enough."""
    monkeypatch.setattr(module, "IDLE_LIMIT", 0.2)
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)):
        quiet = Lane("t", 1)
        for _ in range(2):
            mock.push_broker_errors(2, ApiKey.PRODUCE, HELD)
            assert await send(sessions, quiet) >= 0
        assert sessions.lanes_suspect == 1
        while sessions._second is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert sessions.lanes_suspect == 0
        assert await send(sessions, quiet) >= 0


async def test_closing_ends_a_suspect_that_waits(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as sessions, neighbour(sessions, Lane("t", 0)):
        mock.push_broker_errors(2, ApiKey.PRODUCE, *[HELD] * 20)
        sending = asyncio.create_task(send(sessions, Lane("t", 1)))
        await until_moved(sessions)
        await sessions.close()
        with pytest.raises((ClosedError, KafkaError)):
            await _retried(sessions, sending)


async def _retried(sessions: Sessions, sending: "asyncio.Task[int]") -> None:
    """As a lane does: after `SessionLostError` it tries again."""
    try:
        await sending
    except KafkaError:
        await send(sessions, Lane("t", 1))


# --- on real nodes


@pytest.mark.timeout(180)
async def test_a_frozen_broker_reorders_nothing_and_repeats_nothing_while_the_neighbours_go_on(
    tmp_path: Path, kafka3: Cluster, topic: TopicFactory
) -> None:
    """Copies of what was in flight lie in the frozen broker's sockets; it reads them when it wakes."""
    name = topic(kafka3, partitions=6)
    written: dict[int, int] = dict.fromkeys(range(6), 0)
    suspects = 0

    async def publish(producer: RecoverableProducer, rounds: int) -> None:
        nonlocal suspects
        for _ in range(rounds):
            for partition, number in written.items():
                await producer.publish(name, b"%d" % number, partition=partition)
                written[partition] = number + 1
            suspects = max(suspects, producer.statistics().lanes_suspect)
            await asyncio.sleep(0.01)

    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka3.bootstrap_servers, linger_ms=1) as producer:
        await publish(producer, 50)
        for node in (0, 1):
            kafka3.nodes[node].pause()
            await publish(producer, 300)
            kafka3.nodes[node].resume()
            await publish(producer, 100)
            await producer.flush(timeout_ms=60_000)
        assert producer.statistics().delivered == sum(written.values())
        assert producer.statistics().lanes_halted == 0
    found: dict[int, list[bytes | None]] = {partition: [] for partition in written}
    for record in await read_topic(kafka3.bootstrap_servers, name):
        found[record.partition].append(record.value)
    for partition, count in written.items():
        assert found[partition] == [b"%d" % number for number in range(count)]
    assert suspects > 0, "no lane became a suspect: this test shows nothing"


async def test_what_is_begun_beside_them_is_closed_with_them_and_nothing_is_begun_later(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as sessions:
        other = sessions.beside("something")
        other.start()
        assert await other.connected_within(HANG)
    assert other.state == "closed"
    with pytest.raises(ClosedError):
        sessions.beside("something")
