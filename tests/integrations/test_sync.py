"""The producer as plain calls: from threads, in scripts that end as they like, in forked children."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from aiorecover import (
    ClosedError,
    ConfigError,
    DeliveryPendingError,
    DeliveryReport,
    EncodeError,
    PermanentDeliveryError,
    RecoverError,
)
from aiorecover.integrations.prometheus import watch
from aiorecover.sync import RecoverableProducer
from aiorecover.testing import ApiKey, MockCluster
from tests.support import admin
from tests.support.oracle import Consumed, read_topic
from tests.test_readme import run

TOPIC = "orders"
RECORD_LIST_TOO_LARGE = 18
ENDS_S = 30

FORKING = """\
import os, sys
from aiorecover import ClosedError
from aiorecover.sync import RecoverableProducer

servers, wal = sys.argv[1:]
producer = RecoverableProducer(wal, bootstrap_servers=servers)
producer.start()
first = producer.publish("orders", b"parent")

if os.fork() == 0:
    try:
        for refused in (lambda: producer.publish("orders", b"no"), producer.flush, producer.statistics):
            try:
                refused()
            except ClosedError:
                continue
            os._exit(2)
        assert producer.stop() == 0
        with producer:
            producer.publish("orders", b"child").delivered(timeout_ms=20_000)
        os._exit(0)
    finally:
        os._exit(3)

assert os.wait()[1] == 0
producer.publish("orders", b"parent").delivered(timeout_ms=20_000)
first.delivered(timeout_ms=20_000)
assert producer.stop() == 0
"""

LEAVING = """\
import sys
from aiorecover.sync import RecoverableProducer

servers, wal = sys.argv[1:]
producer = RecoverableProducer(wal, bootstrap_servers=servers)
producer.start()
for number in range(100):
    producer.publish("orders", b"%d" % number)
"""


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=1)
        yield cluster


def found(cluster: MockCluster) -> list[Consumed]:
    return admin.run(read_topic(cluster.bootstrap_servers, TOPIC))


def ran(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    # From 3.12 on a fork beside threads warns.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)


def test_many_threads_publish_through_an_outage_and_each_keeps_its_order(cluster: MockCluster, tmp_path: Path) -> None:
    cluster.broker_down()

    def work(name: int) -> list[str]:
        receipts = [producer.publish(TOPIC, b"%d" % number, key=b"%d" % name) for number in range(200)]
        if name == 0:
            cluster.broker_up()
        assert receipts[-1].delivered(timeout_ms=20_000).record_id == receipts[-1].record_id
        return [receipt.record_id for receipt in receipts]

    with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
        with ThreadPoolExecutor(4) as threads:
            accepted = list(threads.map(work, range(4)))
        producer.flush(timeout_ms=20_000)
        assert (producer.state, producer.statistics().delivered) == ("connected", 800)
    assert producer.state == "stopped"
    records = found(cluster)
    assert [[one.record_id for one in records if one.key == b"%d" % name] for name in range(4)] == accepted
    with producer:  # a life after this one
        producer.publish(TOPIC, b"again")
    assert found(cluster)[-1].value == b"again"


def test_a_call_that_a_producer_cannot_answer_is_an_error_and_no_hang(cluster: MockCluster, tmp_path: Path) -> None:
    told: list[BaseException] = []

    def on_delivery(report: DeliveryReport) -> None:
        for call in (lambda: producer.publish(TOPIC, b"more"), producer.flush, producer.stop):
            try:
                call()
            except RecoverError as error:
                told.append(error)

    producer = RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers, on_delivery=on_delivery)
    with pytest.raises(ClosedError, match=r"use 'with', or call start\(\)"):
        producer.publish(TOPIC, b"early")
    with producer:
        with pytest.raises(EncodeError):
            producer.publish(TOPIC, object())
        with pytest.raises(ConfigError):
            producer.stop(-1)
        receipt = producer.publish(TOPIC, b"one")
        receipt.delivered(timeout_ms=20_000)
        cluster.broker_down()
        late = producer.publish(TOPIC, b"two")
        with pytest.raises(DeliveryPendingError):
            late.delivered(timeout_ms=10)

        def wait() -> None:
            with pytest.raises(ClosedError) as caught:
                late.delivered()
            told.append(caught.value)

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert producer.stop(timeout_ms=0) == 1
        waiting.join(ENDS_S)
        assert not waiting.is_alive()
    with pytest.raises(ClosedError):
        receipt.delivered()
    with pytest.raises(ClosedError):  # asked in the moment in which the thread ended
        receipt._running.wait(Future[None]())
    assert [type(error) for error in told] == [RecoverError] * 3 + [ClosedError]
    with pytest.raises(ConfigError):
        RecoverableProducer(tmp_path, bootstrap_servers="a", linger_ms="soon")  # type: ignore[arg-type]


def test_dead_letters_are_listed_exported_requeued_and_purged(cluster: MockCluster, tmp_path: Path) -> None:
    with RecoverableProducer(tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers) as producer:
        for value in (b"one", b"two"):
            cluster.push_partition_errors(TOPIC, 0, ApiKey.PRODUCE, RECORD_LIST_TOO_LARGE)
            with pytest.raises(PermanentDeliveryError):
                producer.publish(TOPIC, value).delivered(timeout_ms=20_000)
        one, two = producer.dead_letters.list()
        assert (one.value, two.value) == (b"one", b"two")
        assert producer.dead_letters.export(tmp_path / "dead.jsonl") == 2
        assert producer.dead_letters.purge(one.record_id) == 1
        assert producer.dead_letters.requeue() == 1
        producer.flush(timeout_ms=20_000)
        assert list(producer.dead_letters.list()) == []
    assert [record.value for record in found(cluster)] == [b"two"]


def test_sources_are_remembered_from_life_to_life(cluster: MockCluster, tmp_path: Path) -> None:
    for life in range(3):
        with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            assert list(producer.source_positions().values()) == ([life] if life else [])
            producer.publish(TOPIC, b"made", source=("raw", 0, life))


def test_its_metrics_are_those_of_the_life_that_runs(cluster: MockCluster, tmp_path: Path) -> None:
    registry, producer = CollectorRegistry(), RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers)
    watch(producer, registry)

    def accepted() -> float | None:
        path = {"wal_path": str(producer.wal_path)}
        return registry.get_sample_value("aiorecover_records_accepted_total", path)

    for records in (1, 2):
        assert accepted() is None
        with producer:
            for _ in range(records):
                producer.publish(TOPIC, b"v")
            assert accepted() == records


def test_a_script_that_ends_without_stop_ends_at_once_and_loses_nothing(cluster: MockCluster, tmp_path: Path) -> None:
    cluster.broker_down()
    ended = ran(LEAVING, cluster.bootstrap_servers, tmp_path)
    assert ended.returncode == 0
    assert ended.stderr.startswith("kafka_unreachable ")
    assert ended.stderr.count("\n") == 1
    cluster.broker_up()
    with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers):
        pass
    assert [record.value for record in found(cluster)] == [b"%d" % number for number in range(100)]


def test_a_forked_child_has_no_producer_until_it_starts_one(cluster: MockCluster, tmp_path: Path) -> None:
    ended = ran(FORKING, cluster.bootstrap_servers, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(str(record.value) for record in found(cluster)) == ["b'child'", "b'parent'", "b'parent'"]


def test_the_script_of_the_page_delivers(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run("integrations.md:0", cluster)
    assert capsys.readouterr().out == "in Kafka 0 0\n"


def test_without_uvloop_it_is_the_loop_of_python(cluster: MockCluster, tmp_path: Path) -> None:
    hidden: Any = "import sys; sys.modules['uvloop'] = None\n"
    ended = ran(hidden + LEAVING + "print(producer._running.loop)", cluster.bootstrap_servers, tmp_path)
    assert "_UnixSelectorEventLoop" in ended.stdout
