"""A slow line to the brokers: what is under way on it is not cut for being slow, and everything arrives.

The backlog of twelve partitions goes in requests that take four times as long as anybody waits for an answer, and
eight of their batches side by side twice as long as a suspect has while others wait: 512 KiB each, over 4 Mbit/s. Here
everything is some times as quick.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover import RecoverableProducer
from aiorecover.delivery import requests as requests_module
from aiorecover.delivery import suspicion as suspicion_module
from tests.support.broker import Cluster, KafkaCluster, TopicFactory
from tests.support.detour import Detour, Uplink
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

BATCH_BYTES = 512 * 1024
RECORD_BYTES = 60_000
ROUND = 8  # records of each partition, in one batch
BYTES_PER_S = 500_000


@pytest.fixture(scope="module")
def far() -> Iterator[KafkaCluster]:
    """One broker that can be reached by a detour."""
    with KafkaCluster(1, detour_host="127.0.0.1") as cluster:
        yield cluster


def hurry(monkeypatch: pytest.MonkeyPatch, times: int) -> int:
    """Be so many times as quick; what the line carries in a second then."""
    for module, name in (
        (requests_module, "TICK"),
        (requests_module, "SILENCE"),
        (suspicion_module, "SILENCE"),
        (suspicion_module, "SILENCE_OF_ALL"),
        (suspicion_module, "CROWDED"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) / times)
    return BYTES_PER_S * times


async def deliver(far: KafkaCluster, name: str, path: Path, partitions: int, batches: int) -> int:
    """Have so many batches of each partition delivered; how many of all were sent more than once."""
    async with RecoverableProducer(
        path,
        bootstrap_servers=far.detour_servers,
        max_batch_size=BATCH_BYTES,
        metadata_max_age_ms=2_000,  # it is asked for in the middle of a request
        stop_timeout_ms=1_000,
    ) as producer:
        await producer.partitions_for(name)
        for number in range(batches * ROUND):
            for partition in range(partitions):
                value = b"%06d" % number
                await producer.publish(name, value.ljust(RECORD_BYTES), partition=partition)
        await producer.flush(timeout_ms=60_000)
        return producer.statistics().batches_resent


async def assert_all_there(far: Cluster, name: str, partitions: int, batches: int) -> None:
    found: dict[int, list[int]] = {}
    for record in await read_topic(far.bootstrap_servers, name):
        found.setdefault(record.partition, []).append(int(record.value or b"-1"))
    assert found == {partition: list(range(batches * ROUND)) for partition in range(partitions)}


async def test_what_moves_is_not_cut_however_long_it_takes(
    far: KafkaCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(far, partitions=12)
    with Detour(far.detour_routes, uplink=Uplink(hurry(monkeypatch, 4))):
        resent = await deliver(far, name, tmp_path, partitions=12, batches=2)
    await assert_all_there(far, name, partitions=12, batches=2)
    assert resent == 0


async def test_where_nothing_is_seen_to_move_everything_arrives_all_the_same(
    far: KafkaCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy takes all at once, and goes on carrying what was cut long ago; more lanes than connections take turns."""
    name = topic(far, partitions=24)
    with Detour(far.detour_routes, uplink=Uplink(hurry(monkeypatch, 12), buffer=1 << 30)):
        resent = await deliver(far, name, tmp_path, partitions=24, batches=1)
    await assert_all_there(far, name, partitions=24, batches=1)
    assert resent > 0, "nothing was slow: this test shows nothing"
