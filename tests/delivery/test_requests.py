"""What is changed in aiokafka's requests, and the private parts of it that this rests on."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
)
from aiokafka.producer.message_accumulator import MessageAccumulator
from aiokafka.producer.sender import Sender, SendProduceReqHandler
from aiokafka.structs import TopicPartition

from aiorecover.delivery import requests as requests_module
from aiorecover.delivery import suspicion as suspicion_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.outcomes import SilentError
from aiorecover.delivery.requests import CONNECTIONS, TICK, Requests, _Request
from aiorecover.delivery.suspicion import CROWDED
from aiorecover.testing import ApiKey, MockCluster

pytestmark = pytest.mark.asyncio

HELD = (0, 600_000)  # an answer that never comes
HANG = 20  # seconds: what takes longer hangs


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    """The even partitions are led by broker 1, the odd ones by broker 2."""
    with MockCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=24)
        for partition in range(24):
            cluster.set_leader("t", partition, 1 + partition % 2)
        yield cluster


@asynccontextmanager
async def started(
    mock: MockCluster,
    *,
    alone: bool = False,
    longest: float = 40.0,
    silent: set[Hashable] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[AIOKafkaProducer, Requests]]:
    producer = AIOKafkaProducer(
        bootstrap_servers=mock.bootstrap_servers, enable_idempotence=True, acks="all", retry_backoff_ms=20, **options
    )
    requests = Requests(producer, longest=longest, alone=alone, silent=silent)
    await producer.start()
    await producer.client.set_topics({"t"})
    try:
        async with asyncio.timeout(HANG):
            yield producer, requests
    finally:
        mock.round_trip_ms(0)
        async with asyncio.timeout(HANG):
            await producer.stop()


def batch() -> LaneBatch:
    made = LaneBatch(1 << 16, 0)
    assert made.add(0, 1, None, b"v", []) is not None
    made.count = 1
    made.identify(1, 0, 0)
    made.finish()
    return made


async def send(producer: AIOKafkaProducer, partition: int, of: LaneBatch | None = None) -> Any:
    return await producer._message_accumulator.add_batch(of or batch(), TopicPartition("t", partition), 5)


async def test_an_error_goes_to_the_lane_at_once_and_the_broker_is_free(mock: MockCluster) -> None:
    async with started(mock) as (producer, _):
        for error in (NotEnoughReplicasError, NotLeaderForPartitionError, MessageSizeTooLargeError):
            mock.push_partition_errors("t", 0, ApiKey.PRODUCE, error.errno)
            refused, neighbour = await send(producer, 0), await send(producer, 2)
            with pytest.raises(error):
                await refused
            assert (await neighbour).offset >= 0
        assert not producer._sender._in_flight
        assert not producer._sender._muted_partitions
        assert not producer._message_accumulator._pending_batches


async def test_a_batch_without_a_leader_fails_at_once_and_the_next_one_is_sent(mock: MockCluster) -> None:
    async with started(mock) as (producer, _):
        mock.set_leader("t", 0, None)
        await producer.client.force_metadata_update()
        leaderless = await send(producer, 0)
        with pytest.raises(LeaderNotAvailableError):
            await leaderless
        assert (await (await send(producer, 2))).offset == 0
        mock.set_leader("t", 0, 1)
        for _ in range(2):  # the failed batch had it asked for, too: what is on its way may still know no leader
            await producer.client.force_metadata_update()
        assert (await (await send(producer, 0))).offset == 0


async def test_what_could_not_be_added_to_the_transaction_is_not_sent(mock: MockCluster) -> None:
    """A broker that does not look would append it, outside of the transaction, and nobody would abort it."""
    async with started(mock, transactional_id="a") as (producer, _):
        await producer.begin_transaction()
        mock.track_requests()
        mock.push_errors(ApiKey.ADD_PARTITIONS_TO_TXN, TopicAuthorizationFailedError.errno)
        for sent in [await send(producer, 0), await send(producer, 1)]:
            with pytest.raises(TopicAuthorizationFailedError):
                await sent
        assert ApiKey.PRODUCE not in [request.api_key for request in mock.requests()]
        assert not producer._message_accumulator._batches
        await producer.abort_transaction()


async def test_a_silent_request_is_given_up_and_its_connection_cut_while_others_are_answered(
    mock: MockCluster,
) -> None:
    async with started(mock) as (producer, _):
        mock.push_broker_errors(1, ApiKey.PRODUCE, HELD)
        silent = batch()
        sent = await send(producer, 0, silent)
        others = 0
        while not sent.done():
            await (await send(producer, 1))
            others += 1
            await asyncio.sleep(0.01)
        with pytest.raises(SilentError):
            sent.result()
        assert silent.silences == 1
        assert others > 10
        connection = producer.client._conns.get((1, ConnectionGroup.DEFAULT))
        assert connection is None or not connection._requests, "the broker still works at the old request there"
        assert (await (await send(producer, 0, silent))).offset >= 0


async def test_where_nobody_is_answered_patience_is_longer(mock: MockCluster) -> None:
    clock = asyncio.get_running_loop().time
    async with started(mock) as (producer, requests):
        mock.round_trip_ms(600_000)
        sent = await send(producer, 0)
        await asyncio.sleep(0)
        (request,) = requests._under_way or [None]
        began = clock()
        while request is None:
            await asyncio.sleep(0.01)
            (request,) = requests._under_way or [None]
        assert requests._patience_with(request) == 3.0
        requests._answers += 1
        assert requests._patience_with(request) == 1.0
        with pytest.raises(SilentError):
            await sent
        assert clock() - began < HANG


async def test_answers_to_two_requests_at_the_same_time_are_both_counted(mock: MockCluster) -> None:
    async with started(mock) as (producer, requests):
        for broker in (1, 2):
            mock.push_broker_errors(broker, ApiKey.PRODUCE, (0, 200))
        sent = [await send(producer, partition) for partition in (0, 1)]
        while len(requests._under_way) < 2:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        await asyncio.gather(*sent)
        assert requests._answers == 2


async def test_ticks_that_come_late_do_not_count_as_silence(mock: MockCluster) -> None:
    async with started(mock) as (producer, requests):
        request = _Request(producer._sender, {TopicPartition("t", 0): _message()}, 1, 0)
        requests._under_way[request] = None
        now = asyncio.get_running_loop().time()
        for due, ticks in ((now, 1), (now - TICK * 2, 1), (now - 60, 1), (now, 2)):
            requests._tick(due)
            assert requests._timer is not None
            requests._timer.cancel()
            assert request.ticks == ticks
        del requests._under_way[request]


class Line:
    """Stands for what the kernel counts, on every connection at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moves = True
        self._looks = 0
        monkeypatch.setattr(requests_module, "bytes_taken", self._count)
        monkeypatch.setattr(requests_module, "TICK", 0.01)
        monkeypatch.setattr(requests_module, "SILENCE", 0.1)
        for name in ("SILENCE", "SILENCE_OF_ALL"):
            monkeypatch.setattr(suspicion_module, name, 0.1)

    def _count(self, _: Any) -> int:
        self._looks += self.moves
        return self._looks // 4  # not in each look


async def test_a_request_whose_bytes_move_is_not_given_up_and_one_that_stands_still_is(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by aiokafka either, whose limit is for all of its time."""
    line = Line(monkeypatch)
    async with started(mock, longest=0.3, request_timeout_ms=300) as (producer, requests):
        mock.push_broker_errors(1, ApiKey.PRODUCE, HELD)
        sent = await send(producer, 0)
        await asyncio.sleep(1.0)
        assert not sent.done()
        assert [request.moving for request in requests._under_way] == [True]
        line.moves = False
        with pytest.raises(SilentError):
            await sent


async def test_bytes_that_move_at_the_beginning_only_are_those_that_a_frozen_broker_s_machine_takes(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, moving = Line(monkeypatch), 0
    async with started(mock) as (producer, requests):
        mock.push_broker_errors(1, ApiKey.PRODUCE, HELD)
        sent = await send(producer, 0)
        await asyncio.sleep(0.05)
        line.moves = False
        while not sent.done():
            moving += sum(request.moving for request in requests._under_way)
            await asyncio.sleep(0.005)
        with pytest.raises(SilentError):
            sent.result()
    assert moving == 0


@pytest.mark.parametrize("moves", [True, False])
async def test_a_connection_is_not_cut_for_metadata_that_waits_behind_a_request_whose_bytes_move(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    async with started(mock) as (producer, requests):
        await (await send(producer, 0))
        mock.round_trip_ms(600_000)
        sent = await send(producer, 0)
        connection = producer.client._conns[1, ConnectionGroup.DEFAULT]
        while not connection._requests:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        monkeypatch.setattr(_Request, "moving", moves)
        monkeypatch.setattr(producer.client.cluster, "brokers", lambda: {producer.client.cluster.broker_metadata(1)})
        requests._metadata_limit = 0.2
        assert await producer.client.force_metadata_update() is False
        assert connection.connected() is moves
        mock.round_trip_ms(0)
        connection.close()
        with pytest.raises(KafkaError):
            await sent


def _message() -> Any:
    class Message:
        _builder = batch()

    return Message()


async def test_suspects_are_sent_alone_and_do_not_wait_for_each_other(mock: MockCluster) -> None:
    async with started(mock, alone=True) as (producer, _):
        mock.push_broker_errors(1, ApiKey.PRODUCE, HELD)
        stuck = await send(producer, 0)
        await asyncio.sleep(0.05)
        for partition in (2, 4, 6):  # of the same broker
            assert (await (await send(producer, partition))).offset >= 0
        assert not stuck.done()
        with pytest.raises(SilentError):
            await stuck


async def test_more_suspects_than_connections_take_turns(mock: MockCluster) -> None:
    async with started(mock, alone=True) as (producer, requests):
        mock.push_broker_errors(1, ApiKey.PRODUCE, *[HELD] * CONNECTIONS)
        sent = [await send(producer, 2 * number) for number in range(CONNECTIONS + 2)]
        await asyncio.sleep(0.3)
        assert len(requests._under_way) == CONNECTIONS
        assert requests._waiting[1] == 2
        request = next(iter(requests._under_way))
        request.silences = 4
        assert requests._patience_with(request) == CROWDED
        requests._waiting[1] = 0
        assert requests._patience_with(request) == 16.0
        requests._waiting[1] = 2
        request.silences = 0
        found = await asyncio.gather(*sent, return_exceptions=True)
        assert sum(isinstance(one, SilentError) for one in found) == CONNECTIONS
        assert requests._waiting[1] == 0
        assert requests._free[1].qsize() == CONNECTIONS
        groups = {group for node, group in producer.client._conns if node == 1}
        assert len(groups - {ConnectionGroup.DEFAULT}) <= CONNECTIONS


async def test_connecting_to_one_broker_does_not_wait_for_another(mock: MockCluster) -> None:
    async with started(mock) as (producer, requests):
        for connection in list(producer.client._conns.values()):
            connection.close()
        mock.round_trip_ms(600_000, 1)  # it accepts connections, and says nothing
        frozen = asyncio.create_task(producer.client.ready(1))
        await asyncio.sleep(0.05)
        assert await producer.client.ready(2)
        assert not frozen.done()
        mock.round_trip_ms(0, 1)
        frozen.cancel()
        await asyncio.gather(frozen, return_exceptions=True)
        assert not requests._locks[1, ConnectionGroup.DEFAULT].locked()


async def test_metadata_is_asked_elsewhere_when_a_broker_does_not_answer(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiorecover.delivery.requests.METADATA_LIMIT", 0.2)
    async with started(mock) as (producer, requests):
        requests._metadata_limit = 0.2
        mock.round_trip_ms(600_000)
        assert await producer.client.force_metadata_update() is False
        assert requests._metadata_limit == 0.4
        assert len(requests._silent) == 1
        mock.round_trip_ms(0)
        assert not any(
            answer.cancelled()
            for connection in producer.client._conns.values()
            if connection.connected()
            for *_, answer in connection._requests
        ), "a connection whose request was abandoned is used on"
        while not await producer.client.force_metadata_update():  # noqa: ASYNC110 - until it is answered again
            await asyncio.sleep(0.01)
        assert requests._metadata_limit == 0.2


async def test_metadata_is_not_asked_from_a_broker_that_was_silent_while_others_answer(mock: MockCluster) -> None:
    silent: set[Hashable] = set()
    async with started(mock, silent=silent) as (producer, requests):
        requests._metadata_limit = 2.0 * HANG  # asked, it would hang
        mock.round_trip_ms(600_000, 1)
        sent = await send(producer, 0)
        while not silent:
            await (await send(producer, 1))
        assert silent == {1}
        assert not sent.done(), "it is a suspect already"
        for _ in range(10):
            assert await producer.client.force_metadata_update()
        mock.round_trip_ms(0, 1)
        await asyncio.wait({sent})
        await (await send(producer, 0))
        assert silent == set()


async def test_a_broker_that_did_not_answer_for_metadata_is_not_asked_again_at_once() -> None:
    with MockCluster(brokers=3) as mock:
        mock.create_topic("t")
        async with started(mock) as (producer, requests):
            mock.round_trip_ms(600_000, 3)
            for _ in range(8):
                requests._silent |= {1, 2}
                requests._silent.discard(3)
                requests._metadata_limit = 0.2
                assert await producer.client.force_metadata_update()


async def test_metadata_is_asked_from_a_silent_broker_where_no_other_answers(mock: MockCluster) -> None:
    async with started(mock, silent={1}) as (producer, _):
        mock.broker_down(2)
        for connection in list(producer.client._conns.values()):
            connection.close()
        assert await producer.client.force_metadata_update()
    silent: set[Hashable] = {1, 2}
    async with started(mock, silent=silent) as (producer, _):
        assert await producer.client.force_metadata_update()
    assert len(silent) == 1, "the one that is left answers"


async def test_what_an_answer_begins_connects_to_a_broker_that_was_not_asked_for_it(mock: MockCluster) -> None:
    """A task that a listener makes has the listener's context: a lane's, and of the session that the lane begins."""
    async with started(mock, silent={1}) as (producer, _):
        begun: list[asyncio.Task[bool]] = []
        producer.client.cluster.add_listener(lambda _: begun.append(asyncio.create_task(producer.client.ready(1))))
        assert await producer.client.force_metadata_update()
        assert begun
        assert all(await asyncio.gather(*begun))


async def test_asking_that_a_loop_leaves_in_the_middle_ends_without_a_complaint(mock: MockCluster) -> None:
    """Who ends it then, the garbage collector, has another context."""
    async with started(mock) as (producer, requests):
        mock.round_trip_ms(600_000)
        asking = requests._updated(producer.client.cluster, {"t"})
        copy_context().run(asking.send, None)
        asking.close()


# --- the private parts


async def test_the_sender_calls_its_method_with_a_broker_and_its_batches(mock: MockCluster) -> None:
    calls: list[tuple[Any, ...]] = []
    async with started(mock) as (producer, _):
        sender: Any = producer._sender
        original = sender._send_produce_req

        async def noting(*arguments: Any) -> None:
            node_id, batches = arguments
            calls.append((node_id, set(batches)))
            assert node_id in sender._in_flight, "a broker is busy in another place now"
            assert set(batches) <= sender._muted_partitions, "partitions are muted in another place now"
            await original(*arguments)

        sender._send_produce_req = noting
        await (await send(producer, 3))
    assert calls == [(2, {TopicPartition("t", 3)})]


async def test_the_parts_that_are_replaced_are_there_with_the_arguments_that_we_take() -> None:
    def arguments(method: Any) -> list[str]:
        return list(inspect.signature(method).parameters)[1:]

    assert arguments(MessageAccumulator.drain_by_nodes) == ["ignore_nodes", "muted_partitions"]
    assert arguments(Sender._send_produce_req) == ["node_id", "batches"]
    assert arguments(SendProduceReqHandler._can_retry) == ["error", "batch"]
    assert arguments(SendProduceReqHandler.__init__) == ["sender", "batches"]
    assert arguments(AIOKafkaClient._get_conn) == ["node_id", "group", "no_hint"]
    assert arguments(AIOKafkaClient._metadata_update) == ["cluster_metadata", "topics"]
    assert arguments(AIOKafkaClient.send) == ["node_id", "request", "group"]
    lock: Any = vars(AIOKafkaClient)["_get_conn_lock"]
    source = inspect.getsource(lock.fget)
    assert "_get_conn_lock_value is None" in source, "the lock over all connections is made elsewhere"


async def test_a_producer_that_has_a_producer_id_asks_for_none(mock: MockCluster) -> None:
    mock.track_requests()
    producer = AIOKafkaProducer(bootstrap_servers=mock.bootstrap_servers, enable_idempotence=True)
    producer._txn_manager.set_pid_and_epoch(0, 0)
    await producer.start()
    await producer.stop()
    assert ApiKey.INIT_PRODUCER_ID not in {request.api_key for request in mock.requests()}
