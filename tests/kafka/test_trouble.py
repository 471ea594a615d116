"""Trouble beside delivery: a callback, a topic, a stop, a coordinator; the rest goes on, and nothing is lost by it."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaTimeoutError

from aiorecover import DeliveryPendingError, DeliveryReport, RecoverableProducer, WalFullError
from aiorecover.kafka.client import Client, Metadata, TopicMetadata
from aiorecover.kafka.delivery import Delivery
from aiorecover.kafka.offset_fetch import StableOffsetFetch
from aiorecover.kafka.transactions import AbortedError, TransactionTask
from aiorecover.ring.ring import Ring
from aiorecover.testing import DISCONNECT, ApiKey, MockCluster
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

WITHIN_MS = 20_000
FORBIDDEN = 29  # TOPIC_AUTHORIZATION_FAILED
CONCURRENT_TRANSACTIONS = 51
UNKNOWN_TOPIC, NOT_LEADER = 3, 6


async def test_a_callback_that_raises_a_cancellation_of_its_own_is_counted_and_delivery_goes_on(tmp_path: Path) -> None:
    theirs = asyncio.get_running_loop().create_future()
    theirs.cancel()

    def on_delivery(_: DeliveryReport) -> None:
        theirs.result()

    with MockCluster() as cluster:
        options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "on_delivery": on_delivery}
        async with RecoverableProducer(tmp_path, **options) as producer:
            for _ in range(3):
                await (await producer.publish("orders", b"v")).delivered(WITHIN_MS)
            found = producer.statistics()
            assert (found.delivered, found.callback_errors, producer.state) == (3, 3, "connected")


async def test_a_topic_that_is_forbidden_does_not_hold_up_the_quiet_ones_of_its_broker(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        for topic in ("good", "bad"):
            cluster.create_topic(topic, partitions=1)
        async with RecoverableProducer(
            tmp_path, bootstrap_servers=cluster.bootstrap_servers, stop_timeout_ms=0
        ) as producer:
            await (await producer.publish("good", b"v")).delivered(WITHIN_MS)
            cluster.push_partition_errors("bad", 0, 0, *[FORBIDDEN] * 200)
            await producer.publish("bad", b"v")
            await until(lambda: producer.statistics().errors > 0)
            before = producer.statistics().errors
            for _ in range(10):
                await (await producer.publish("good", b"v")).delivered(WITHIN_MS)
            assert producer.statistics().errors - before <= 2, "each waited until the bad one was tried again"


@pytest.mark.parametrize(("misses", "times"), [(3, 1), (4, 2)])
async def test_the_usual_errors_of_a_new_topic_are_no_warning_unless_they_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, misses: int, times: int
) -> None:
    refresh, unknown = Client.refresh, [TopicMetadata(UNKNOWN_TOPIC, {})] * misses

    async def late(client: Client, topics: Iterable[str], *, create: bool) -> Metadata:
        """Answer as a cluster that makes the topic only now."""
        answer = await refresh(client, topics, create=create)
        if unknown and "new" in answer.topics:
            answer.topics["new"] = unknown.pop()
        return answer

    monkeypatch.setattr(Client, "refresh", late)
    with MockCluster(brokers=1) as cluster:
        cluster.create_topic("new")
        cluster.push_partition_errors("new", 0, ApiKey.PRODUCE, *[NOT_LEADER] * times)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            await (await producer.publish("new", b"v")).delivered(WITHIN_MS)
            assert (unknown, producer.statistics().errors) == ([], times)
    warned = [line.getMessage().partition(" ")[0] for line in caplog.records if line.levelno == logging.WARNING]
    assert warned == ([] if times == 1 else ["topic_unavailable", "delivery_failed"])


async def test_a_partition_without_a_leader_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("t")
        cluster.set_leader("t", 0, None)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            receipt = await producer.publish("t", b"v", partition=0)
            await until(lambda: "delivery_failed the partition has no leader: its records wait lane=t/0" in caplog.text)
            assert producer.statistics().lanes_in_trouble == 1
            with pytest.raises(DeliveryPendingError, match="the partition has no leader lane=t/0"):
                await receipt.delivered(timeout_ms=0)
            cluster.set_leader("t", 0, 1)
            await receipt.delivered(WITHIN_MS)
            assert producer.statistics().lanes_in_trouble == 0


async def test_a_producer_without_records_notices_that_kafka_is_back(tmp_path: Path) -> None:
    options: dict[str, Any] = {"metadata_max_age_ms": 200, "request_timeout_ms": 200}
    with MockCluster() as cluster:
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
            await until(lambda: producer.state == "connected")
            cluster.broker_down()
            with pytest.raises(KafkaTimeoutError):
                await producer.partitions_for("t")
            assert producer.state == "connecting"
            await asyncio.sleep(0.5)  # no topic is asked for any more
            cluster.broker_up()
            await until(lambda: producer.state == "connected")


async def test_a_stop_waits_for_the_thread_that_writes_to_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, ended = threading.Event(), threading.Event()
    prepare = Delivery._prepare_all

    def slowly(delivery: Delivery, some: Any) -> Any:
        entered.set()
        ended.wait(0.5)  # nobody sets it: the codec takes its time
        found = prepare(delivery, some)
        ended.set()
        return found

    monkeypatch.setattr(Delivery, "_prepare_all", slowly)
    with MockCluster() as cluster:
        producer = RecoverableProducer(
            tmp_path, bootstrap_servers=cluster.bootstrap_servers, compression_type="gzip", linger_ms=0
        )
        await producer.start()
        await producer.publish("orders", b"v")
        await asyncio.to_thread(entered.wait, WITHIN_MS / 1000)
        assert await producer.stop(timeout_ms=0) == 1
        assert ended.is_set()
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as again:
            await again.flush(WITHIN_MS)
            assert again.wal_path == producer.wal_path
            assert again.statistics().delivered == 1


async def test_no_transaction_begins_before_kafka_has_said_the_last_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction with a number below that one would be taken for a committed one, or be sent twice."""
    asked: list[str] = []
    ask = TransactionTask._ask

    async def ask_in_vain(task: TransactionTask, kind: Any, request: Any, codes_of: Any) -> Any:
        asked.append(type(request).__name__)
        if isinstance(request, StableOffsetFetch):
            raise AbortedError("the coordinator is silent")
        return await ask(task, kind, request, codes_of)

    monkeypatch.setattr(TransactionTask, "_ask", ask_in_vain)
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "guarantee": "exactly_once"}
        async with RecoverableProducer(tmp_path, stop_timeout_ms=0, **options) as producer:
            await producer.publish("orders", b"v")
            await until(lambda: len(asked) >= 6)
    assert set(asked) == {"InitProducerIdRequest", "StableOffsetFetch"}


async def test_no_room_to_write_down_the_cluster_holds_up_delivery_until_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up in an outage, so the first contact may find it full."""
    remember, attempts = Ring.remember_cluster, 0

    def remember_later(ring: Ring, cluster_id: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise WalFullError("no room")
        remember(ring, cluster_id)

    monkeypatch.setattr(Ring, "remember_cluster", remember_later)
    with MockCluster() as cluster:
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            receipt = await producer.publish("orders", b"v")
            await receipt.delivered(WITHIN_MS)
    assert attempts == 3


async def test_a_broker_that_gives_no_producer_id_is_named(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        cluster.push_errors(ApiKey.INIT_PRODUCER_ID, *[DISCONNECT] * 100)
        options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "stop_timeout_ms": 0}
        async with RecoverableProducer(tmp_path, **options) as producer:
            await producer.publish("orders", b"v")
            with pytest.raises(DeliveryPendingError, match="no broker answers the request for a producer id"):
                await producer.flush(500)


async def test_a_coordinator_that_is_not_ready_in_time_says_why() -> None:
    async def coordinator(*_: object) -> int:
        return 1

    async def ask(*_: object) -> object:
        return SimpleNamespace(error_code=CONCURRENT_TRANSACTIONS)

    client = SimpleNamespace(cause=None, coordinator=coordinator, ask=ask)
    delivery: Any = SimpleNamespace(now=time.monotonic, client=client)
    task = TransactionTask(delivery, "aiorecover-1", timeout_ms=100)
    with pytest.raises(AbortedError, match="another transaction is being finished"):
        await task._ask(CoordinationType.TRANSACTION, None, lambda answer: [answer.error_code])
