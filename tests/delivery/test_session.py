"""The session against a mock cluster and a real broker: whatever happens to Kafka, it comes back, or ends in time."""

import asyncio
import gc
import itertools
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, NotEnoughReplicasError

from aiorecover.config import Config
from aiorecover.delivery import requests as requests_module
from aiorecover.delivery import session as module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.outcomes import Persisted, Verdict, outcome_of
from aiorecover.delivery.session import Session, SessionLostError
from aiorecover.errors import ClosedError
from aiorecover.testing import ApiKey, MockCluster
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

NOWHERE = "127.0.0.1:1"  # no broker listens there
QUICK = {"retry_backoff_ms": 20, "metadata_max_age_ms": 500}


class Told:
    """What a session tells its owner."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.metadata = 0

    def on_metadata(self) -> None:
        self.metadata += 1


class Noting(Session):
    """Notes its states."""

    def __init__(self, config: Config, told: Told) -> None:
        super().__init__(config, told.on_metadata)
        self._told = told

    def _set_state(self, state: str, reason: str = "") -> None:
        super()._set_state(state, reason)
        if self._told.states[-1:] != [state]:
            self._told.states.append(state)


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("t", partitions=2)
        yield cluster


def made(servers: str, told: Told | None = None, **options: Any) -> Session:
    told = told or Told()
    config = Config.from_options(Path("unused"), servers, {**QUICK, **options})
    return Noting(config, told)


@asynccontextmanager
async def running(servers: str, told: Told | None = None, **options: Any) -> AsyncIterator[Session]:
    session = made(servers, told, **options)
    session.start()
    try:
        yield session
    finally:
        async with asyncio.timeout(10):
            await session.close()


def batch_of(*values: bytes) -> LaneBatch:
    batch = LaneBatch(1 << 16, 0)
    for value in values:
        assert batch.add(batch.count, 1, None, value, []) is not None
        batch.count += 1
    return batch


async def identified(session: Session, *values: bytes, sequence: int = 0) -> LaneBatch:
    """A batch that is ready to be sent, under an identity of this session."""
    identity = await session.identity()
    batch = batch_of(*values)
    batch.identify(identity.producer_id, identity.epoch, sequence)
    batch.finish()
    return batch


async def until_sent(session: Session, batch: LaneBatch, topic: str, limit: float = 20) -> int:
    """Send the same batch until it is through, as a lane does; its offset."""
    async with asyncio.timeout(limit):
        while True:
            try:
                return (await session.send(batch, topic, 0)).offset
            except KafkaError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.02)


async def until_rebuilt(session: Session, times: int = 1) -> None:
    async with asyncio.timeout(10):
        while session.rebuilds < times:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)


def clock() -> float:
    return asyncio.get_running_loop().time()


# --- the plain course of things


async def test_a_session_connects_gives_an_identity_sends_and_closes(mock: MockCluster) -> None:
    told = Told()
    session = made(mock.bootstrap_servers, told)
    assert (session.state, session.rebuilds) == ("connecting", -1)
    session.start()
    identity = await session.identity()
    assert identity.producer_id >= 0
    batch = await identified(session, b"a", b"b")
    metadata = await session.send(batch, "t", 1)
    assert (metadata.topic, metadata.partition, metadata.offset) == ("t", 1, 0)
    assert (session.state, session.rebuilds) == ("connected", 0)
    await session.close()
    assert told.states == ["connected", "closed"]


async def test_nothing_is_known_of_partitions_without_a_connection() -> None:
    session = made(NOWHERE)
    assert session.partitions("t") == session.available("t") == frozenset()
    await session.close()  # never started
    assert session.state == "closed"


async def test_wanted_topics_are_known_after_each_connection_without_being_asked_for(mock: MockCluster) -> None:
    told = Told()
    session = made(mock.bootstrap_servers, told)
    session.want("t")
    session.start()
    await session.identity()
    assert session.partitions("t") == {0, 1}
    assert told.metadata > 0
    session.give_up("a test")
    await until_rebuilt(session)
    assert session.partitions("t") == {0, 1}
    await session.close()


async def test_a_topic_that_comes_later_is_discovered_and_told_of(mock: MockCluster) -> None:
    told = Told()
    async with running(mock.bootstrap_servers, told) as session:
        await session.identity()
        mock.topic_error("later", 3)  # does not exist
        session.want("later")
        await session.discover()
        assert session.partitions("later") == frozenset()
        mock.topic_error("later", 0)
        before = told.metadata
        await session.discover()
        assert session.partitions("later") == {0, 1, 2, 3}
        assert told.metadata > before


async def test_a_partition_without_a_leader_exists_and_is_not_available(mock: MockCluster) -> None:
    mock.set_leader("t", 1, None)
    async with running(mock.bootstrap_servers) as session:
        session.want("t")
        await session.discover()
        assert session.partitions("t") == {0, 1}
        assert session.available("t") == {0}


async def test_what_kafka_answers_reaches_the_lane_and_the_session_lives_on(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as session:
        batch = await identified(session, b"v")
        mock.push_errors(ApiKey.PRODUCE, MessageSizeTooLargeError.errno)
        with pytest.raises(MessageSizeTooLargeError):
            await session.send(batch, "t", 0)
        mock.push_errors(ApiKey.PRODUCE, NotEnoughReplicasError.errno)
        with pytest.raises(NotEnoughReplicasError):  # aiokafka tries again by itself no more
            await session.send(batch, "t", 0)
        assert (await session.send(batch, "t", 0)).offset == 0
        assert session.rebuilds == 0


async def test_a_code_that_aiokafka_does_not_know_keeps_its_number(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as session:
        batch = await identified(session, b"v")
        mock.push_errors(ApiKey.PRODUCE, 87)
        with pytest.raises(KafkaError, match="87") as caught:
            await session.send(batch, "t", 0)
        assert outcome_of(caught.value).verdict is Verdict.PERMANENT


async def test_a_batch_of_a_lost_session_is_possibly_persisted_and_asks_for_a_new_session() -> None:
    found = outcome_of(SessionLostError())
    assert (found.verdict, found.persisted) == (Verdict.SESSION_FATAL, Persisted.POSSIBLY)


# --- no broker


async def test_starting_needs_no_broker_and_sending_begins_once_there_is_one(mock: MockCluster) -> None:
    mock.broker_down()
    async with running(mock.bootstrap_servers) as session:
        waiting = asyncio.create_task(identified(session, b"v"))
        await asyncio.sleep(1.5)
        assert (session.state, waiting.done()) == ("connecting", False)
        mock.broker_up()
        back = clock()
        assert (await session.send(await asyncio.wait_for(waiting, 5), "t", 0)).offset == 0
        assert clock() - back < 1.5


async def test_one_dead_server_in_the_list_does_not_matter(mock: MockCluster) -> None:
    async with running(f"{NOWHERE},{mock.bootstrap_servers}") as session:
        assert (await session.send(await identified(session, b"v"), "t", 0)).offset == 0


async def test_refused_connections_are_told_of_once_and_closing_takes_no_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "aiorecover.session")
    before = asyncio.all_tasks()
    session = made(NOWHERE)
    session.start()
    await asyncio.sleep(1)
    asked = clock()
    await session.close()
    assert clock() - asked < 1
    (record,) = [record for record in caplog.records if record.name == "aiorecover.session"]
    assert "kafka cannot be reached, trying on" in record.getMessage()
    assert NOWHERE in record.getMessage()
    assert asyncio.all_tasks() == before


async def test_each_kind_of_trouble_is_told_of_once_by_the_error_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "aiorecover.session")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        session = made(f"{NOWHERE},{host}:{port}")
        session.start()
        await asyncio.sleep(2)  # several rounds
        await session.close()
    told = [record.getMessage() for record in caplog.records if record.name == "aiorecover.session"]
    causes = sorted(line.partition("error=")[2].partition("(")[0] for line in told)
    assert causes == ["ConnectionRefusedError", "KafkaConnectionError"], told


async def test_whoever_waits_for_a_connection_is_told_of_the_close() -> None:
    session = made(NOWHERE)
    session.start()
    batch = batch_of(b"v")
    batch.finish()
    waiting = [
        asyncio.create_task(session.identity()),
        asyncio.create_task(session.send(batch, "t", 0)),
        asyncio.create_task(session.discover()),
    ]
    await asyncio.sleep(0.05)
    await session.close()
    for task in waiting:
        with pytest.raises(ClosedError):
            await asyncio.wait_for(task, 1)
    with pytest.raises(ClosedError):
        await session.identity()


@pytest.mark.parametrize("where", ["constructor", "start"])
async def test_an_error_that_nobody_thought_of_while_connecting_is_told_and_tried_again(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """A token provider that raises, a library that is missing: a session must not die of it in silence."""
    caplog.set_level(logging.WARNING, "aiorecover.session")
    tries = 0

    def fail(at: str) -> None:
        nonlocal tries
        if where == at:
            tries += 1
            if tries <= 3:
                raise ValueError("no token")

    class Failing(AIOKafkaProducer):  # type: ignore[misc, unused-ignore]
        def __init__(self, **options: Any) -> None:
            fail("constructor")
            super().__init__(**options)  # type: ignore[no-untyped-call]

        async def start(self) -> None:
            fail("start")
            await super().start()  # type: ignore[no-untyped-call]

    monkeypatch.setattr(module, "AIOKafkaProducer", Failing)
    async with running(mock.bootstrap_servers) as session:
        await asyncio.wait_for(session.identity(), 5)
        assert tries == 4
        told = [record.getMessage() for record in caplog.records if record.name == "aiorecover.session"]
        assert len(told) == 1
        assert "ValueError('no token')" in told[0]


# --- sessions that die


async def test_a_sender_cancelled_from_outside_ends_in_a_new_session_and_the_same_batch_goes_through(
    mock: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(mock.bootstrap_servers) as session:
        first, second = await identified(session, b"1"), await identified(session, b"2", sequence=1)
        assert (await session.send(first, "t", 0)).offset == 0
        assert session._producer is not None
        session._producer._sender.sender_task.cancel()
        with pytest.raises(SessionLostError):
            await asyncio.wait_for(session.send(second, "t", 0), 5)
        assert await until_sent(session, second, "t") == 1
        assert session.rebuilds == 1
        assert "state=connecting" in caplog.text
        assert 'reason="aiokafka\'s sender ended"' in caplog.text


async def test_every_task_of_aiokafka_cancelled_from_outside_is_survived(mock: MockCluster) -> None:
    """What a shutdown hook does that cancels all tasks: `for task in asyncio.all_tasks(): task.cancel()`."""
    ours = asyncio.all_tasks()
    async with running(mock.bootstrap_servers) as session:
        batch = await identified(session, b"v")
        for task in asyncio.all_tasks() - ours:
            if task.get_name() != "aiorecover-session":
                task.cancel()
        await until_rebuilt(session)
        assert await until_sent(session, batch, "t") == 0


async def test_a_session_given_up_is_replaced_and_the_reason_is_told_once(
    mock: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    async with running(mock.bootstrap_servers, told) as session:
        batch = await identified(session, b"v")
        for _ in range(3):
            session.give_up("it cannot count")
        await until_rebuilt(session)
        assert (await session.send(batch, "t", 0)).offset == 0
    assert told.states == ["connected", "connecting", "connected", "closed"]
    assert caplog.text.count("reason='it cannot count'") == 1


async def test_a_new_session_has_another_producer_id_and_sends_batches_of_the_old_one(
    kafka: Cluster, topic: TopicFactory
) -> None:
    name = topic(kafka, partitions=1)
    async with running(kafka.bootstrap_servers) as session:
        before = await session.identity()
        first, second = await identified(session, b"1"), await identified(session, b"2", sequence=1)
        assert (await session.send(first, name, 0)).offset == 0
        session.give_up("a test")
        await until_rebuilt(session)
        assert (await session.identity()).producer_id != before.producer_id
        assert (await session.send(first, name, 0)).offset == 0  # recognised, though the session is another one
        assert (await session.send(second, name, 0)).offset == 1
    assert [record.value for record in await read_topic(kafka.bootstrap_servers, name)] == [b"1", b"2"]


async def test_a_sender_that_ends_late_does_not_harm_the_session_that_came_after_it(mock: MockCluster) -> None:
    async with running(mock.bootstrap_servers) as session:
        await session.identity()
        old = session._producer
        assert old is not None
        session.give_up("a test")
        await until_rebuilt(session)
        session._ended(old, "its sender ended")
        await asyncio.sleep(0.1)
        assert (session.rebuilds, session.state) == (1, "connected")


async def test_silence_with_a_batch_in_flight_ends_in_a_new_session(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WATCH_INTERVAL", 0.02)
    async with running(mock.bootstrap_servers, request_timeout_ms=500) as session:
        batch = await identified(session, b"v")
        mock.push_broker_errors(1, ApiKey.PRODUCE, *[(0, 600_000)] * 2)  # these answers are held back, no others
        sending = asyncio.create_task(until_sent(session, batch, "t"))
        await until_rebuilt(session)
        assert await sending >= 0
        assert await until_sent(session, batch, "t") >= 0
    assert "reason='no answer for 0.5 s'" in caplog.text


async def test_on_a_slow_line_a_session_lasts_as_long_as_bytes_move(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCH_INTERVAL", 0.02)
    monkeypatch.setattr(requests_module, "SILENCE", 0.1)
    monkeypatch.setattr(requests_module, "TICK", 0.02)
    counted = itertools.count()
    monkeypatch.setattr(requests_module, "bytes_taken", lambda _: next(counted))
    async with running(mock.bootstrap_servers, request_timeout_ms=500) as session:
        batch = await identified(session, b"v")
        mock.push_broker_errors(1, ApiKey.PRODUCE, (0, 1_500))
        assert (await session.send(batch, "t", 0)).offset >= 0
        assert session.rebuilds == 0


@pytest.mark.parametrize("answer", [(0, 600_000), (NotEnoughReplicasError.errno, 300)], ids=["none", "an error"])
async def test_what_comes_of_a_batch_that_nobody_waits_for_any_more_is_no_complaint_of_the_loop(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: tuple[int, int]
) -> None:
    """As where the time of a manifest is over: its request goes on, and ends with an error that nobody asks for."""
    monkeypatch.setattr(requests_module, "SILENCE", 0.3)
    monkeypatch.setattr(requests_module, "TICK", 0.05)
    async with running(mock.bootstrap_servers) as session:
        batch = await identified(session, b"v")
        mock.push_broker_errors(1, ApiKey.PRODUCE, answer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.send(batch, "t", 0)
        again = await identified(session, b"v")  # once it is through, the request before it has ended
        assert await until_sent(session, again, "t") >= 0
        gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_silence_without_a_batch_in_flight_is_no_reason_to_worry(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCH_INTERVAL", 0.02)
    async with running(mock.bootstrap_servers) as session:
        session._patience = 0.1
        await session.send(await identified(session, b"v"), "t", 0)
        await asyncio.sleep(0.5)
        assert session.rebuilds == 0


async def test_a_topic_that_is_only_sent_to_is_followed_by_each_session(mock: MockCluster) -> None:
    mock.create_topic("other", partitions=1)
    async with running(mock.bootstrap_servers) as session:
        batch = await identified(session, b"v")
        for number in range(2):
            await until_sent(session, batch, "t")
            session.want("other")
            assert session._producer is not None
            await session._producer.client.force_metadata_update()
            assert session.partitions("t") == {0, 1}
            session.give_up("a test")
            await until_rebuilt(session, number + 1)


# --- a broker that dies or stands still


@pytest.mark.timeout(180)
async def test_a_killed_broker_costs_nothing_but_time(kafka: Cluster, topic: TopicFactory) -> None:
    name = topic(kafka, partitions=1)
    async with running(kafka.bootstrap_servers) as session:
        assert await until_sent(session, await identified(session, b"0"), name) == 0
        batch = await identified(session, b"1", sequence=1)
        kafka.nodes[0].kill()
        sending = asyncio.create_task(until_sent(session, batch, name, limit=90))
        await asyncio.sleep(1)
        assert not sending.done()
        await asyncio.to_thread(kafka.heal)
        assert await sending == 1
        assert await until_sent(session, batch, name) == 1  # appended once
    assert [record.value for record in await read_topic(kafka.bootstrap_servers, name)] == [b"0", b"1"]


@pytest.mark.parametrize("in_flight", [0, 1, 6])
async def test_closing_is_bounded_while_the_broker_is_frozen(
    kafka: Cluster, topic: TopicFactory, in_flight: int
) -> None:
    name = topic(kafka)
    before = asyncio.all_tasks()
    session = made(kafka.bootstrap_servers)
    session.want(name)
    session.start()
    batches = [await identified(session, b"v", sequence=number) for number in range(in_flight)]
    await session.discover()
    kafka.nodes[0].pause()
    sending = [asyncio.create_task(session.send(batch, name, number)) for number, batch in enumerate(batches)]
    await asyncio.sleep(0.3)
    asked = clock()
    await session.close()
    assert clock() - asked < 5
    for task in sending:
        with pytest.raises(SessionLostError):
            await asyncio.wait_for(task, 1)
    assert asyncio.all_tasks() == before


async def test_closing_is_bounded_while_connecting_to_a_frozen_broker(kafka: Cluster) -> None:
    kafka.nodes[0].pause()
    before = asyncio.all_tasks()
    session = made(kafka.bootstrap_servers)
    session.start()
    await asyncio.sleep(0.5)
    assert session.state == "connecting"
    asked = clock()
    await session.close()
    assert clock() - asked < 5
    assert asyncio.all_tasks() == before


@pytest.mark.timeout(180)
async def test_a_frozen_broker_that_thaws_has_the_batch_once(kafka: Cluster, topic: TopicFactory) -> None:
    """The request lies in the frozen broker's socket while a new session sends the same batch: it is recognised."""
    name = topic(kafka, partitions=1)
    async with running(kafka.bootstrap_servers, request_timeout_ms=1000) as session:
        session.want(name)
        batch = await identified(session, b"v")
        await session.discover()
        kafka.nodes[0].pause()
        sending = asyncio.create_task(until_sent(session, batch, name, limit=60))
        await asyncio.sleep(3)  # the session has been given up by now
        assert session.state == "connecting"
        kafka.nodes[0].resume()
        assert await sending == 0
        assert session.rebuilds >= 1
    assert [record.value for record in await read_topic(kafka.bootstrap_servers, name)] == [b"v"]


async def test_closing_twice_changes_nothing(mock: MockCluster) -> None:
    told = Told()
    session = made(mock.bootstrap_servers, told)
    session.start()
    await session.identity()
    await session.close()
    await session.close()
    assert told.states == ["connected", "closed"]
