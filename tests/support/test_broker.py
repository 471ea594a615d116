"""The cluster that everything else is proved against: it must be real, and really survive."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.support import jars
from tests.support.broker import (
    BrokerUnavailableError,
    Cluster,
    ExternalKafka,
    KafkaCluster,
    TopicFactory,
    choose_cluster,
)
from tests.support.oracle import read_topic
from tests.support.ports import ReservedPorts
from tests.support.settings import properties_text

REPOSITORY = Path(__file__).parents[2]


async def send(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True)
    await producer.start()
    try:
        await asyncio.gather(*[await producer.send(topic, value, key=value[-1:]) for value in values])
    finally:
        await producer.stop()


async def read(cluster: Cluster, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in await read_topic(cluster.bootstrap_servers, topic))


def numbered(prefix: str, count: int = 200) -> list[bytes]:
    return sorted(f"{prefix}-{number}".encode() for number in range(count))


@pytest.mark.asyncio
async def test_kill_9_keeps_what_was_acknowledged(kafka: Cluster, topic: TopicFactory) -> None:
    name = topic(kafka)
    await send(kafka, name, numbered("before"))
    node = kafka.nodes[0]
    pid = node.pid
    node.kill()
    assert not node.alive
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(ConnectionRefusedError):
        connect(node.address)
    node.start()
    kafka.wait_ready()
    assert await read(kafka, name) == numbered("before")
    await send(kafka, name, numbered("behind"))
    assert await read(kafka, name) == sorted([*numbered("before"), *numbered("behind")])


@pytest.mark.asyncio
async def test_a_paused_node_takes_connections_and_answers_later(kafka: Cluster, topic: TopicFactory) -> None:
    name = topic(kafka)
    node = kafka.nodes[0]
    await send(kafka, name, numbered("before"))
    node.pause()
    assert node.alive
    assert Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    connect(node.address)
    sending = asyncio.create_task(send(kafka, name, numbered("while")))
    await asyncio.sleep(1)
    assert not sending.done()
    node.resume()
    await sending
    assert await read(kafka, name) == sorted([*numbered("before"), *numbered("while")])


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_heal_undoes_what_a_test_did(kafka: Cluster, topic: TopicFactory, fault: str) -> None:
    node = kafka.nodes[0]
    address = kafka.bootstrap_servers
    getattr(node, fault)()
    kafka.heal()
    assert node.alive
    assert not node.paused
    assert kafka.bootstrap_servers == address
    topic(kafka)


def test_a_broker_that_cannot_start_shows_its_log() -> None:
    with pytest.raises(BrokerUnavailableError) as refused:
        KafkaCluster(1, {"num.partitions": "many"}).start()
    assert "num.partitions" in "".join(refused.value.__notes__)


def test_brokers_are_gone_when_the_process_that_started_them_is_killed() -> None:
    program = (
        "from tests.support.broker import KafkaCluster\n"
        "cluster = KafkaCluster()\n"
        "cluster.start()\n"
        "print(cluster.nodes[0].pid, cluster.nodes[0].log_path.parents[1], flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        pid, directory = tests.stdout.readline().split()
        assert Path(f"/proc/{pid}").exists()
        tests.kill()
    give_up_at = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() or Path(directory).exists():
        assert time.monotonic() < give_up_at, "the broker or its files outlive the tests"
        time.sleep(0.1)


def test_ports_are_given_out_once_and_lie_below_those_of_outgoing_connections() -> None:
    one, other = ReservedPorts(50), ReservedPorts(50)
    try:
        assert len({*one.numbers, *other.numbers}) == 100
        with socket.socket() as outgoing:
            outgoing.bind(("127.0.0.1", 0))
            assert max(*one.numbers, *other.numbers) < outgoing.getsockname()[1]
    finally:
        one.release()
        other.release()


def test_a_cluster_named_in_the_environment_is_used_and_never_stopped(
    kafka: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIORECOVER_TEST_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    with choose_cluster() as cluster:
        assert isinstance(cluster, ExternalKafka)
        assert not cluster.can_kill
        with pytest.raises(BrokerUnavailableError, match="cannot be killed"):
            assert cluster.nodes
    kafka.wait_ready()
    with pytest.raises(BrokerUnavailableError, match="takes no settings"):
        choose_cluster(1, {"message.max.bytes": "2000"})


def test_without_java_and_docker_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIORECOVER_TEST_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    jars.find_java.cache_clear()
    with pytest.raises(BrokerUnavailableError, match="openjdk-17-jre-headless"):
        choose_cluster()
    jars.find_java.cache_clear()


def test_backslashes_and_line_ends_survive_in_properties() -> None:
    assert properties_text({"a": "1", "b": "2"}, {"b": "x\\y\nz"}) == "a=1\nb=x\\\\y\\nz\n"


def connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=2).close()
