"""Another cluster answers: nothing is sent to it, the cause is named, and what was accepted waits for the right one."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from aiorecover import RecoverableProducer
from aiorecover.testing import MockClusterProcess
from tests.support.eventually import until
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.published import WITHIN_MS, named

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

TOPIC = "t"


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
    servers = ",".join(cluster.bootstrap_servers for cluster in clusters)
    options = {"retry_backoff_ms": 20, "stop_timeout_ms": 500, **options}
    async with RecoverableProducer(wal, bootstrap_servers=servers, **options) as producer:
        yield producer


async def publish(producer: RecoverableProducer, count: int = 100) -> list[Accepted]:
    accepted = []
    for number in range(count):
        key, value = b"k%d" % (number % 7), b"%d-%d" % (producer.epoch, number)
        receipt = await producer.publish(TOPIC, value, key=key)
        accepted.append(Accepted(receipt.record_id, key, value))
    return accepted


async def refused(producer: RecoverableProducer, cause: str = "kafka is another cluster") -> None:
    await until(lambda: producer.state == "connecting")
    await named(producer, cause)


async def all_arrived(cluster: MockClusterProcess, accepted: list[Accepted]) -> None:
    found = judge(accepted, await read_topic(cluster.bootstrap_servers, TOPIC), whole_lanes=True)
    assert found.ok, str(found)
    assert (found.delivered, found.repeated) == (len(accepted), 0)


async def none_arrived(cluster: MockClusterProcess) -> None:
    assert await read_topic(cluster.bootstrap_servers, TOPIC) == []


async def learn(wal: Path, cluster: MockClusterProcess) -> list[Accepted]:
    """A first life, whose cluster the directory remembers from then on."""
    async with producing(wal, cluster) as producer:
        accepted = await publish(producer)
        await producer.flush(WITHIN_MS)
        return accepted


async def test_another_cluster_gets_nothing_and_the_right_one_everything(
    ours: MockClusterProcess, theirs: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accepted = await learn(tmp_path, ours)
    async with producing(tmp_path, theirs) as producer:
        accepted += await publish(producer)
        await refused(producer)
        await asyncio.sleep(1.2)  # some rounds of attempts
        counts = producer.statistics()
        assert (counts.pending, counts.delivered) == (100, 0)
        lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert "start with the option cluster_id=" in lines[0]
    await none_arrived(theirs)
    async with producing(tmp_path, ours) as producer:
        await producer.flush(WITHIN_MS)
    await all_arrived(ours, accepted)


async def test_delivery_goes_on_by_itself_when_the_right_cluster_is_back(
    ours: MockClusterProcess, theirs: MockClusterProcess, tmp_path: Path
) -> None:
    """Both have a broker 1, and another one answers for it while the right one is away."""
    accepted = await learn(tmp_path, ours)
    async with producing(tmp_path, ours, theirs) as producer:
        await producer.partitions_for(TOPIC)
        for _ in range(2):
            await ours.broker_down()
            accepted += await publish(producer)
            await refused(producer)
            accepted += await publish(producer)
            await ours.broker_up()
            await producer.flush(WITHIN_MS)
            assert producer.state == "connected"
    await none_arrived(theirs)
    await all_arrived(ours, accepted)


async def test_a_cluster_that_was_replaced_on_purpose_is_named_and_gets_what_waits(
    ours: MockClusterProcess, theirs: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await learn(tmp_path, ours)
    async with producing(tmp_path, theirs) as producer:
        accepted = await publish(producer)
        await refused(producer)
    named = caplog.text.partition("cluster_id='")[2].partition("'")[0]
    async with producing(tmp_path, theirs, cluster_id=named) as producer:
        await producer.flush(WITHIN_MS)
        assert producer.statistics().cluster_id == named
    async with producing(tmp_path, theirs) as producer:  # the option is not needed any more
        accepted += await publish(producer)
        await producer.flush(WITHIN_MS)
    await all_arrived(theirs, accepted)


async def test_the_named_cluster_is_the_only_one_also_for_a_new_directory(
    ours: MockClusterProcess, tmp_path: Path
) -> None:
    async with producing(tmp_path, ours, cluster_id="another") as producer:
        await producer.publish(TOPIC, b"v", key=b"k")
        await refused(producer, "not the cluster that the option cluster_id names")
        assert producer.statistics().cluster_id is None
    await none_arrived(ours)
