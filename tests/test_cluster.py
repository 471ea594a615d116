"""Another cluster answers: nothing is sent to it, everybody is told, and what was accepted waits for the right one."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.errors import KafkaConnectionError

from aiorecover import DeliveryPendingError, RecoverableProducer, WalDestinationError
from aiorecover.cli.inspection import inspect
from aiorecover.testing import MockClusterProcess
from tests.support.eventually import until
from tests.support.oracle import Accepted, Verdict, judge, read_topic

pytestmark = pytest.mark.asyncio

NOWHERE = "127.0.0.1:1"  # no broker listens there
TOPIC = "t"
QUICK: dict[str, Any] = {"slot_bytes": 1 << 16, "wal_min_free_bytes": 0, "retry_backoff_ms": 20}


@pytest_asyncio.fixture
async def ours() -> AsyncIterator[MockClusterProcess]:
    async with MockClusterProcess() as cluster:
        await cluster.create_topic(TOPIC, partitions=3)
        yield cluster


@pytest_asyncio.fixture
async def theirs() -> AsyncIterator[MockClusterProcess]:
    async with MockClusterProcess() as cluster:
        await cluster.create_topic(TOPIC, partitions=3)
        yield cluster


@asynccontextmanager
async def producing(wal: Path, *clusters: MockClusterProcess, **options: Any) -> AsyncIterator[RecoverableProducer]:
    servers = ",".join(cluster.bootstrap_servers for cluster in clusters) or NOWHERE
    async with RecoverableProducer(wal, bootstrap_servers=servers, **{**QUICK, **options}) as producer:
        yield producer


async def publish(producer: RecoverableProducer, count: int = 100) -> list[Accepted]:
    accepted = []
    for number in range(count):
        key, value = b"k%d" % (number % 7), b"%d-%d" % (producer.epoch, number)
        receipt = await producer.publish(TOPIC, value, key=key)
        accepted.append(Accepted(receipt.record_id, key, value))
    return accepted


async def verdict(cluster: MockClusterProcess, accepted: list[Accepted]) -> Verdict:
    return judge(accepted, await read_topic(cluster.bootstrap_servers, TOPIC), whole_lanes=True)


async def records_in(cluster: MockClusterProcess) -> int:
    return len(await read_topic(cluster.bootstrap_servers, TOPIC))


async def refused(producer: RecoverableProducer) -> None:
    await until(lambda: producer.state == "wrong_cluster")


def destination(wal: Path, instance: str = "0") -> dict[str, Any]:
    """What a directory remembers, looked at from outside."""
    (one,) = inspect(wal / instance, 0)
    found: dict[str, Any] = one["destination"]
    return found


def stored(wal: Path, instance: str = "0") -> str | None:
    """The id that it remembers."""
    known: str | None = destination(wal, instance)["cluster_id"]
    return known


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def learn(wal: Path, cluster: MockClusterProcess) -> list[Accepted]:
    """A first life, whose cluster the directory remembers from then on."""
    async with producing(wal, cluster) as producer:
        accepted = await publish(producer)
        await producer.flush(timeout_ms=20_000)
        return accepted


async def test_another_cluster_gets_nothing_and_the_right_one_everything(
    ours: MockClusterProcess, theirs: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accepted = await learn(tmp_path, ours)
    before = stored(tmp_path)
    async with producing(tmp_path, theirs) as producer:
        accepted += await publish(producer)
        await refused(producer)
        await asyncio.sleep(1.2)  # some rounds of attempts
        counts = producer.statistics()
        assert (counts.state, counts.pending, counts.delivered) == ("wrong_cluster", 100, 0)
        assert counts.cluster_id == before
        assert counts.wrong_cluster_id not in {None, before}
        assert len(errors(caplog)) == 1
        assert f"start with the option cluster_id={counts.wrong_cluster_id!r}" in errors(caplog)[0]
        accepted += await publish(producer)
        assert await producer.stop(timeout_ms=10_000) == 200
    assert await records_in(theirs) == 0
    assert stored(tmp_path) == before
    async with producing(tmp_path, ours) as producer:
        await producer.flush(timeout_ms=20_000)
    found = await verdict(ours, accepted)
    assert found.ok, str(found)
    assert (found.delivered, found.repeated) == (300, 0)


async def test_who_waits_is_told_at_once_that_kafka_is_another_cluster_and_what_to_do(
    ours: MockClusterProcess, theirs: MockClusterProcess, tmp_path: Path
) -> None:
    await learn(tmp_path, ours)
    async with producing(tmp_path, theirs) as producer:
        receipt = await producer.publish(TOPIC, b"v", key=b"k")
        waits: list[Callable[[], Any]] = [
            producer.flush,
            receipt.delivered,
            lambda: producer.send_and_wait(TOPIC, b"w", key=b"k"),
        ]
        for _ in range(2):  # before it is known, and after
            for wait in waits:
                with pytest.raises(DeliveryPendingError, match="start with the option cluster_id=") as raised:
                    async with asyncio.timeout(20):
                        await wait()
                assert isinstance(raised.value.__cause__, WalDestinationError)
        await producer.stop(timeout_ms=0)


async def test_who_asks_for_partitions_is_told_so_too(
    ours: MockClusterProcess, theirs: MockClusterProcess, tmp_path: Path
) -> None:
    await learn(tmp_path, ours)
    async with producing(tmp_path, theirs, request_timeout_ms=40_000) as producer:
        for _ in range(2):  # before it is known, and after
            with pytest.raises(KafkaConnectionError, match="start with the option cluster_id="):
                async with asyncio.timeout(20):
                    await producer.partitions_for(TOPIC)
    async with producing(tmp_path, ours) as producer:
        assert await producer.partitions_for(TOPIC) == {0, 1, 2}


async def test_delivery_goes_on_by_itself_when_the_right_cluster_is_back(
    ours: MockClusterProcess, theirs: MockClusterProcess, tmp_path: Path
) -> None:
    accepted = await learn(tmp_path, ours)
    await ours.broker_down()
    async with producing(tmp_path, ours, theirs) as producer:
        for _ in range(2):
            await refused(producer)
            accepted += await publish(producer)
            await ours.broker_up()
            await producer_flushed(producer)
            receipt = await producer.publish(TOPIC, b"at once", key=b"k")
            await receipt.delivered(timeout_ms=20_000)
            accepted.append(Accepted(receipt.record_id, b"k", b"at once"))
            assert producer.state == "connected"
            assert producer.statistics().wrong_cluster_id is None
            await ours.broker_down()
        await ours.broker_up()
    found = await verdict(ours, accepted)
    assert found.ok, str(found)
    assert found.delivered == 302
    assert await records_in(theirs) == 0


async def producer_flushed(producer: RecoverableProducer) -> None:
    """Everything is delivered; for as long as the wrong cluster answers `flush` says so."""
    await until(lambda: producer.statistics().pending == 0)
    await producer.flush(timeout_ms=20_000)


async def test_a_cluster_that_was_replaced_on_purpose_is_named_and_gets_what_waits(
    ours: MockClusterProcess, theirs: MockClusterProcess, tmp_path: Path
) -> None:
    await learn(tmp_path, ours)
    async with producing(tmp_path, theirs) as producer:
        accepted = await publish(producer)
        await refused(producer)
        named = producer.statistics().wrong_cluster_id
        await producer.stop(timeout_ms=0)
    async with producing(tmp_path, theirs, cluster_id=named) as producer:
        await producer.flush(timeout_ms=20_000)
        assert stored(tmp_path) == named
    async with producing(tmp_path, theirs) as producer:  # the option is not needed any more
        accepted += await publish(producer)
        await producer.flush(timeout_ms=20_000)
    found = await verdict(theirs, accepted)
    assert found.ok, str(found)
    assert (found.delivered, found.repeated, found.foreign) == (200, 0, [])


async def test_the_named_cluster_is_the_only_one_also_for_a_new_directory(
    ours: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with producing(tmp_path, ours, cluster_id="another") as producer:
        await producer.publish(TOPIC, b"v", key=b"k")
        await refused(producer)
        await producer.stop(timeout_ms=0)
    assert await records_in(ours) == 0
    assert stored(tmp_path) is None
    assert "not the cluster that the option cluster_id names" in errors(caplog)[0]


async def test_a_cluster_that_tells_no_id_is_not_compared(
    ours: MockClusterProcess,
    theirs: MockClusterProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aiorecover")
    await learn(tmp_path, ours)
    monkeypatch.setattr("aiorecover.delivery.cluster_guard._cluster_id", lambda _: None)
    async with producing(tmp_path, theirs) as producer:
        accepted = await publish(producer)
        await producer.flush(timeout_ms=20_000)
    assert (await verdict(theirs, accepted)).ok
    assert sum("tells no cluster id" in record.getMessage() for record in caplog.records) == 1


async def test_a_cluster_that_tells_no_id_gets_nothing_where_one_is_named(
    ours: MockClusterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aiorecover.delivery.cluster_guard._cluster_id", lambda _: None)
    async with producing(tmp_path, ours, cluster_id="named") as producer:
        await producer.publish(TOPIC, b"v", key=b"k")
        await refused(producer)
        await asyncio.sleep(1.2)  # some rounds of attempts
        assert producer.statistics().wrong_cluster_id == ""
        with pytest.raises(DeliveryPendingError, match="leave out the option given='named'"):
            await producer.flush(timeout_ms=10_000)
        assert len(errors(caplog)) == 1
        await producer.stop(timeout_ms=0)
    assert await records_in(ours) == 0
