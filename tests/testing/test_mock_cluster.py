"""The mock cluster against plain aiokafka: what the other tests and the demonstration lean on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    TopicAuthorizationFailedError,
)

from aiorecover.testing import DISCONNECT, ApiKey, MockCluster, MockClusterProcess
from aiorecover.testing.mock_cluster_process import child_environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytest.importorskip("confluent_kafka")

FORKS = "ignore:This process:DeprecationWarning"  # from 3.12 on a fork beside threads warns
# Enough for a retry or two; a test that hangs should fail soon.
REQUEST_TIMEOUT_MS = 2_000


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(brokers=3) as running:
        yield running


@contextlib.asynccontextmanager
async def started_producer(bootstrap_servers: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        enable_idempotence=True,
        acks="all",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        retry_backoff_ms=20,
        metadata_max_age_ms=500,
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def connect(bootstrap_servers: str) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers)
    try:
        await consumer.start()
    finally:
        await consumer.stop()


async def consume(bootstrap_servers: str, topic: str, partitions: int) -> dict[int, list[bytes | None]]:
    """Read a topic from its beginning to its present end: partition to values."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers)
    await consumer.start()
    try:
        assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(assigned)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(assigned)
        values: dict[int, list[bytes | None]] = {partition: [] for partition in range(partitions)}
        async with asyncio.timeout(10):
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                    values[tp.partition] += [record.value for record in records]
        return values
    finally:
        await consumer.stop()


@pytest.mark.asyncio
async def test_a_record_sent_while_the_brokers_are_down_arrives_when_they_are_up(
    cluster: MockCluster,
) -> None:
    cluster.create_topic("orders", partitions=1, replication=3)
    servers = cluster.bootstrap_servers
    async with started_producer(servers) as producer:
        await producer.send_and_wait("orders", b"before", partition=0)
        cluster.broker_down()
        with pytest.raises(KafkaConnectionError):
            await connect(servers)
        waiting = await producer.send("orders", b"during", partition=0)
        await asyncio.sleep(0.3)
        assert not waiting.done()
        cluster.broker_up()
        assert (await asyncio.wait_for(waiting, 5)).offset == 1
    assert cluster.bootstrap_servers == servers
    assert await consume(servers, "orders", 1) == {0: [b"before", b"during"]}


@pytest.mark.asyncio
async def test_one_broker_down_leaves_the_partitions_of_the_others_working(cluster: MockCluster) -> None:
    cluster.create_topic("orders", partitions=2, replication=1)
    cluster.set_leader("orders", 0, 1)
    cluster.set_leader("orders", 1, 2)
    async with started_producer(cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"warm", partition=0)
        cluster.broker_down(2)
        stuck = await producer.send("orders", b"stuck", partition=1)
        await asyncio.wait_for(producer.send_and_wait("orders", b"fine", partition=0), 5)
        assert not stuck.done()
        cluster.broker_up(2)
        await asyncio.wait_for(stuck, 5)


@pytest.mark.asyncio
async def test_a_leaderless_partition_takes_nothing_until_it_has_a_leader(cluster: MockCluster) -> None:
    cluster.create_topic("orders", partitions=2, replication=3)
    cluster.set_leader("orders", 1, None)
    async with started_producer(cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"with a leader", partition=0)
        waiting = await producer.send("orders", b"without", partition=1)
        await asyncio.sleep(0.3)
        assert not waiting.done()
        cluster.set_leader("orders", 1, 2)
        await asyncio.wait_for(waiting, 5)
    assert await consume(cluster.bootstrap_servers, "orders", 2) == {0: [b"with a leader"], 1: [b"without"]}


@pytest.mark.asyncio
async def test_a_retriable_error_and_a_cut_connection_are_retried_by_aiokafka(cluster: MockCluster) -> None:
    cluster.create_topic("orders", partitions=1, replication=3)
    async with started_producer(cluster.bootstrap_servers) as producer:
        cluster.track_requests()
        cluster.push_errors(ApiKey.PRODUCE, NotLeaderForPartitionError.errno, DISCONNECT)
        await asyncio.wait_for(producer.send_and_wait("orders", b"third try", partition=0), 5)
        tries = [request for request in cluster.requests() if request.api_key == ApiKey.PRODUCE]
        assert len(tries) == 3
    assert await consume(cluster.bootstrap_servers, "orders", 1) == {0: [b"third try"]}


@pytest.mark.asyncio
async def test_an_error_for_one_partition_leaves_the_other_alone(cluster: MockCluster) -> None:
    cluster.create_topic("orders", partitions=2)
    cluster.push_partition_errors("orders", 1, ApiKey.PRODUCE, MessageSizeTooLargeError.errno)
    async with started_producer(cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"taken", partition=0)
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait("orders", b"refused", partition=1)
    assert await consume(cluster.bootstrap_servers, "orders", 2) == {0: [b"taken"], 1: []}


def test_more_errors_than_one_call_takes_are_refused_with_their_limit(cluster: MockCluster) -> None:
    cluster.create_topic("orders")
    with pytest.raises(ValueError, match=r"1019 errors at most in one call: call it again for the others; given=3000"):
        cluster.push_partition_errors("orders", 0, ApiKey.PRODUCE, *[19] * 3000)
    with pytest.raises(ValueError, match=r"510 errors at most in one call: call it again for the others; given=511"):
        cluster.push_broker_errors(1, ApiKey.PRODUCE, *[(19, 0)] * 511)
    cluster.push_partition_errors("orders", 0, ApiKey.PRODUCE, *[19] * 1019)
    cluster.push_broker_errors(1, ApiKey.PRODUCE, *[(19, 0)] * 510)


@pytest.mark.asyncio
async def test_an_error_for_one_broker_is_held_back_as_long_as_asked(cluster: MockCluster) -> None:
    cluster.create_topic("orders", partitions=2)
    cluster.set_leader("orders", 0, 1)
    cluster.set_leader("orders", 1, 2)
    cluster.push_broker_errors(2, ApiKey.PRODUCE, (MessageSizeTooLargeError.errno, 300))
    async with started_producer(cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"taken", partition=0)
        began = time.monotonic()
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait("orders", b"refused", partition=1)
        assert time.monotonic() - began >= 0.29


@pytest.mark.asyncio
async def test_a_topic_error_is_what_its_metadata_says(cluster: MockCluster) -> None:
    cluster.topic_error("secret", TopicAuthorizationFailedError.errno)
    async with started_producer(cluster.bootstrap_servers) as producer:
        with pytest.raises((TopicAuthorizationFailedError, KafkaTimeoutError)):
            await producer.send_and_wait("secret", b"value", partition=0)
        cluster.topic_error("secret", 0)
        await asyncio.wait_for(producer.send_and_wait("secret", b"value", partition=0), 5)


@pytest.mark.asyncio
async def test_a_round_trip_takes_as_long_as_asked(cluster: MockCluster) -> None:
    cluster.create_topic("orders", partitions=1)
    async with started_producer(cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"warm", partition=0)
        cluster.round_trip_ms(200)
        began = time.monotonic()
        await producer.send_and_wait("orders", b"slow", partition=0)
        assert 0.19 <= time.monotonic() - began < 1.5
        cluster.round_trip_ms(0)


@pytest.mark.asyncio
async def test_requests_are_noted_with_broker_kind_and_time(cluster: MockCluster) -> None:
    cluster.create_topic("orders", partitions=1)
    cluster.set_leader("orders", 0, 3)
    with pytest.raises(RuntimeError, match="track_requests"):
        cluster.requests()
    cluster.track_requests()
    assert cluster.requests() == []
    async with started_producer(cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"value", partition=0)
    seen = cluster.requests(clear=True)
    assert [request.broker_id for request in seen if request.api_key == ApiKey.PRODUCE] == [3]
    assert sorted(request.timestamp_us for request in seen) == [request.timestamp_us for request in seen]
    assert cluster.requests() == []


def test_a_refusal_is_one_clear_error(cluster: MockCluster) -> None:
    cluster.create_topic("orders")
    with pytest.raises(RuntimeError, match=r"could not create topic 'orders'.*TOPIC_ALREADY_EXISTS code=36"):
        cluster.create_topic("orders")
    with pytest.raises(RuntimeError, match="UNKNOWN_TOPIC_OR_PART"):
        cluster.set_leader("orders", 7, 1)


def test_closing_twice_is_fine_and_a_closed_cluster_says_so() -> None:
    cluster = MockCluster()
    cluster.close()
    cluster.close()
    assert cluster.closed
    for call in (cluster.broker_down, cluster.requests, lambda: cluster.create_topic("orders")):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_without_confluent_kafka_the_error_names_the_remedy() -> None:
    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from aiorecover.testing import MockCluster\n"
        "try: MockCluster()\n"
        "except ImportError as error: print(error)\n"
    )
    assert "pip install 'aiorecover[demo]'" in run_python(code).stdout


def test_a_forked_child_leaves_its_parents_cluster_alone() -> None:
    done = run_python(
        "import os, socket, sys\n"
        "from aiorecover.testing import MockCluster\n"
        "cluster = MockCluster()\n"
        "pid = os.fork()\n"
        "if pid == 0: cluster.close(); sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "host, port = cluster.bootstrap_servers.split(':')\n"
        "socket.create_connection((host, int(port)), 1).close()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.asyncio
async def test_the_process_variant_serves_and_goes_down_and_up() -> None:
    async with MockClusterProcess(brokers=2) as cluster:
        await cluster.create_topic("orders", partitions=2, replication=2)
        async with started_producer(cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("orders", b"before", partition=1)
            await cluster.broker_down()
            waiting = await producer.send("orders", b"during", partition=1)
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await cluster.broker_up()
            await asyncio.wait_for(waiting, 5)
        assert await consume(cluster.bootstrap_servers, "orders", 2) == {0: [], 1: [b"before", b"during"]}
        pid = cluster.pid
        assert pid is not None
        assert is_alive(pid)
    assert not is_alive(pid)
    await cluster.close()


@pytest.mark.asyncio
async def test_the_process_variant_passes_faults_on() -> None:
    async with MockClusterProcess() as cluster:
        await cluster.create_topic("orders")
        async with started_producer(cluster.bootstrap_servers) as producer:
            await cluster.push_errors(ApiKey.PRODUCE, MessageSizeTooLargeError.errno)
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait("orders", b"refused", partition=0)
            await cluster.push_errors(ApiKey.PRODUCE, MessageSizeTooLargeError.errno)
            await cluster.clear_errors(ApiKey.PRODUCE)
            await cluster.set_leader("orders", 0, None)
            waiting = await producer.send("orders", b"taken", partition=0)
            await asyncio.sleep(0.2)
            await cluster.set_leader("orders", 0, 1)
            await asyncio.wait_for(waiting, 5)


@pytest.mark.asyncio
async def test_a_process_variant_that_was_killed_says_so() -> None:
    async with MockClusterProcess() as cluster:
        assert cluster.pid is not None
        os.kill(cluster.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="has ended"):
            await cluster.broker_down()
    with pytest.raises(RuntimeError, match="not started"):
        await cluster.broker_down()


def test_the_process_variant_dies_when_its_parent_is_killed() -> None:
    code = (
        "import asyncio\n"
        "from aiorecover.testing import MockClusterProcess\n"
        "async def main():\n"
        "    async with MockClusterProcess() as cluster:\n"
        "        print(cluster.pid, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with start_python(code) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert is_alive(child_pid)
        parent.kill()
    wait_until_dead(child_pid)


def start_python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=child_environment())


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", FORKS, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=child_environment(),
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed child that its parent has not waited for is a zombie, not alive.
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def wait_until_dead(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline, f"still alive; pid={pid}"
        time.sleep(0.02)
