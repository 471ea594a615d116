"""After a power cut the tails are read back: what is in Kafka is settled, all else is sent; and what may prevent that.

Real producers on disks in memory, and an embedded broker. Two of three lanes were delivered, the third one had no
leader; then the machine goes down with any part of the settle words.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.delivery import recovery_check
from aiorecover.delivery.in_kafka import InKafka, Place
from aiorecover.delivery.recovery_check import RecoveryCheck
from aiorecover.statistics import Statistics
from aiorecover.testing import MemoryDisk, MockCluster, memory_file
from aiorecover.wal import format as fmt
from aiorecover.wal.lanes import Lanes
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import Consumed, read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

TOPIC = "values"
CLOSED = "closed-values"  # one topic's name ends with the other's
PARTITIONS = 3
RECORDS = 120
STALLED = 1
FETCH, NOT_AUTHORIZED, UNKNOWN_TOPIC = 1, 29, 3
SEED = 1


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        yield cluster


def service(disk: MemoryDisk, cluster: MockCluster, **options: object) -> RecoverableProducer:
    return RecoverableProducer(
        disk,
        bootstrap_servers=cluster.bootstrap_servers,
        fsync="never",
        checkpoint_interval_ms=600_000,  # no checkpoint of its own: every settle word may be lost
        slot_bytes=16 * 1024,
        max_request_size=8 * 1024,
        max_batch_size=2 * 1024,  # several batches a lane
        linger_ms=0,
        retry_backoff_ms=10,
        **options,
    )


@dataclass
class Before:
    """What the machine that went down left."""

    disk: MemoryDisk
    ids: list[str]
    delivered: int


async def went_down(cluster: MockCluster, topic: str = TOPIC, seed: int = SEED, closed: int = 0) -> Before:
    """``closed``: so many records go to another topic, too."""
    cluster.set_leader(topic, STALLED, None)
    cluster.broker_down()
    disk = MemoryDisk()
    first = service(disk, cluster)
    await first.start()
    receipts = [
        await first.publish(topic, b"%d" % number, key=b"k", partition=number % PARTITIONS) for number in range(RECORDS)
    ]
    for number in range(closed):
        await first.publish(CLOSED, b"%d" % number, key=b"k", partition=0)
    assert first._opened is not None
    first._opened.directory.ring.sync()  # the records, and not their settle words
    cluster.broker_up()
    await until(lambda: first.statistics().delivered >= RECORDS * 2 // PARTITIONS + closed)
    first._opened.directory.lanes.sync()
    disk.write_back(seed)
    left = disk.after_power_cut(seed)
    await first.stop(timeout_ms=0)
    cluster.set_leader(topic, STALLED, 1)
    return Before(left, [receipt.record_id for receipt in receipts], first.statistics().delivered)


@dataclass
class After:
    """What another life made of it."""

    statistics: Statistics
    consumed: list[Consumed]
    reports: list[DeliveryReport] = field(default_factory=list)

    @property
    def ids(self) -> Counter[str | None]:
        return Counter(record.record_id for record in self.consumed)

    @property
    def repeated(self) -> int:
        return sum(self.ids.values()) - len(self.ids)

    @property
    def settled(self) -> int:
        return self.statistics.recovered_in_kafka


async def went_on(cluster: MockCluster, before: Before, topic: str = TOPIC, **options: object) -> After:
    reports: list[DeliveryReport] = []
    async with service(before.disk, cluster, on_delivery=reports.append, **options) as second:
        await second.flush(timeout_ms=20_000)
        await second.publish(topic, b"new", key=b"k", partition=0)
        await second.flush(timeout_ms=20_000)
        counts = second.statistics()
    assert counts.accepted + counts.recovered == counts.delivered + counts.pending
    assert counts.delivered == len(reports)
    after = After(counts, await read_topic(cluster.bootstrap_servers, topic), reports)
    missing = [name for name in before.ids if name not in after.ids]
    assert not missing, f"missing: {missing}"
    return after


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "recovery check" in record.getMessage()]


def check_is_over(producer: RecoverableProducer) -> bool:
    assert producer._opened is not None
    return producer._opened.delivery.check.over


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_in_kafka_is_settled_and_what_is_not_is_sent(
    cluster: MockCluster, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    after = await went_on(cluster, await went_down(cluster, seed=seed))
    assert after.repeated == 0
    assert told(caplog) == []
    places = {record.record_id: (record.partition, record.offset) for record in after.consumed}
    assert {report.record_id: (report.partition, report.offset) for report in after.reports}.items() <= places.items()


async def test_settle_words_were_lost_or_this_proves_nothing(cluster: MockCluster) -> None:
    assert (await went_on(cluster, await went_down(cluster))).settled > 0


async def test_without_the_check_nothing_is_read_and_records_stand_twice(cluster: MockCluster) -> None:
    before = await went_down(cluster)
    after = await went_on(cluster, before, recovery_check=False)
    assert (after.repeated > 0, after.settled) == (True, 0)


async def test_an_opening_without_doubts_reads_nothing_back(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecoveryCheck, "_check", None)
    disk = MemoryDisk()
    async with service(disk, cluster) as first:
        await first.publish(TOPIC, b"1", key=b"k")
        await first.flush(timeout_ms=20_000)
        left = disk.after_process_death()
    async with service(left, cluster) as second:
        await second.publish(TOPIC, b"2", key=b"k")
        await second.flush(timeout_ms=20_000)
        assert second.statistics().recovered_in_kafka == 0


async def test_after_a_clean_end_nothing_is_read_back(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecoveryCheck, "_check", None)
    disk = MemoryDisk()
    async with service(disk, cluster) as first:
        await first.publish(TOPIC, b"1", key=b"k")
        await first.flush(timeout_ms=20_000)
    async with service(disk.after_power_cut(SEED), cluster) as second:
        assert not check_is_over(second)
        await second.publish(TOPIC, b"2", key=b"k")
        await second.flush(timeout_ms=20_000)
        assert check_is_over(second)
        assert second.statistics().recovered_in_kafka == 0


# -- where it begins to read: entries are durable with a checkpoint ---------------------------------------------------


async def went_down_behind_a_checkpoint(cluster: MockCluster) -> Before:
    """Nothing was flushed since but what was published: neither settle words nor entries."""
    disk = MemoryDisk()
    first = service(disk, cluster)
    await first.start()
    assert first._opened is not None
    directory = first._opened.directory
    for number in range(PARTITIONS):
        await first.publish(TOPIC, b"%d" % number, key=b"k", partition=number)
    await first.flush(timeout_ms=20_000)
    directory.write_checkpoint(directory.next_checkpoint())
    cluster.broker_down()
    receipts = [
        await first.publish(TOPIC, b"%d" % number, key=b"k", partition=number % PARTITIONS) for number in range(RECORDS)
    ]
    directory.ring.sync()
    cluster.broker_up()
    await first.flush(timeout_ms=20_000)
    left = disk.after_power_cut(SEED)
    await first.stop(timeout_ms=0)
    return Before(left, [receipt.record_id for receipt in receipts], first.statistics().delivered)


@pytest.mark.parametrize("fault", [None, "planted: it flushes the rings alone"])
async def test_a_checkpoint_makes_durable_where_to_read_from(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    """Where a power cut takes everything that it may."""
    monkeypatch.setattr(memory_file, "SHARES", (0.0,))
    if fault is not None:
        monkeypatch.setattr(Lanes, "sync", lambda _: None)
    after = await went_on(cluster, await went_down_behind_a_checkpoint(cluster))
    assert (after.repeated > 0) == (fault is not None)


# -- what prevents it --------------------------------------------------------------------------------------------------


async def test_without_permission_to_read_it_says_so_once_and_goes_on(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    before = await went_down(cluster)
    cluster.push_errors(FETCH, *[NOT_AUTHORIZED] * 20)
    async with service(before.disk, cluster) as second:
        await second.flush(timeout_ms=20_000)
        assert second.statistics().recovered_in_kafka == 0
    (line,) = told(caplog)
    assert "grant Read or set recovery_check=False" in line
    assert f"lanes=2 topics={TOPIC}" in line
    cluster.clear_errors(FETCH)
    ids = {record.record_id for record in await read_topic(cluster.bootstrap_servers, TOPIC)}
    assert ids >= set(before.ids)


async def test_a_topic_that_must_not_be_read_leaves_the_others(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic(CLOSED, 1)
    before = await went_down(cluster, closed=20)
    cluster.push_partition_errors(CLOSED, 0, FETCH, *[NOT_AUTHORIZED] * 20)
    after = await went_on(cluster, before)
    assert after.repeated == 0
    assert after.settled > 0
    (line,) = told(caplog)
    assert f"lanes=1 topics={CLOSED}" in line


async def test_a_partition_without_a_leader_leaves_the_others(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = await went_down(cluster)
    cluster.set_leader(TOPIC, 2, None)
    tell = RecoveryCheck._tell

    def elected(self: RecoveryCheck, *told: Any) -> None:
        tell(self, *told)
        cluster.set_leader(TOPIC, 2, 1)

    monkeypatch.setattr(RecoveryCheck, "_tell", elected)
    after = await went_on(cluster, before)
    assert after.settled > 0
    assert len(told(caplog)) == 1
    assert {record.partition for record in after.consumed if after.ids[record.record_id] > 1} == {2}


async def test_a_check_that_takes_too_long_is_given_up(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hangs(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(recovery_check, "CHECK_LIMIT", 0.5)
    monkeypatch.setattr(RecoveryCheck, "_look", hangs)
    after = await went_on(cluster, await went_down(cluster))
    assert (after.repeated > 0, after.settled) == (True, 0)
    assert len(told(caplog)) == 1
    assert "it took more than" in told(caplog)[0]


async def test_whatever_fails_in_it_records_go_on(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RecoveryCheck, "_look", fails)
    assert (await went_on(cluster, await went_down(cluster))).settled == 0
    assert "ZeroDivisionError" in told(caplog)[0]


async def test_more_records_than_it_may_remember_count_for_nothing_where_the_rest_is_not_known(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aiorecover.delivery.in_kafka.MOST_IDS", 10)
    monkeypatch.setattr(recovery_check, "STEP", 8)
    await went_on(cluster, await went_down(cluster))
    assert "more records" in told(caplog)[0]


async def test_a_topic_that_is_gone_keeps_nobody(cluster: MockCluster, caplog: pytest.LogCaptureFixture) -> None:
    before = await went_down(cluster)
    cluster.topic_error(TOPIC, UNKNOWN_TOPIC)
    async with service(before.disk, cluster) as second:
        receipt = await second.publish("others", b"1")
        await receipt.delivered(timeout_ms=20_000)
        await second.stop(timeout_ms=0)
    assert len(told(caplog)) == 1
    assert recovery_check.NOT_THERE in told(caplog)[0]


async def test_a_stop_in_the_middle_of_it_leaves_no_task(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = asyncio.Event()

    async def hangs(*_: object) -> None:
        looking.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(RecoveryCheck, "_look", hangs)
    before = await went_down(cluster)
    second = service(before.disk, cluster)
    await second.start()
    await asyncio.wait_for(looking.wait(), 20)
    await second.publish(TOPIC, b"published meanwhile")
    assert second.statistics().delivered == 0
    await second.stop(timeout_ms=0)
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


# -- planted faults, each of them loses records ------------------------------------------------------------------------


async def publish_foreign(cluster: MockCluster, before: Before) -> None:
    """Another producer's records, equal but for the producer's name in their ids."""
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    await producer.start()
    for number, name in enumerate(before.ids):
        headers = [("aiorecover-id", b"another/" + name.split("/", 1)[1].encode())]
        await producer.send(TOPIC, b"%d" % number, key=b"k", partition=number % PARTITIONS, headers=headers)
    await producer.stop()


async def test_a_stop_in_the_middle_of_it_leaves_nothing(cluster: MockCluster, tmp_path: Path) -> None:
    before = await went_down(cluster)
    census = Census(tmp_path)
    cluster.push_broker_errors(1, FETCH, *[(0, 600_000)] * 20)  # answers that never come
    second = service(before.disk, cluster, stop_timeout_ms=300)
    await second.start()
    assert second._opened is not None
    check = second._opened.delivery.check
    await until(lambda: check.reading)
    await asyncio.sleep(0.2)
    assert check.reading
    async with asyncio.timeout(20):
        await second.stop()
    assert census.left_since() == []


async def test_records_of_another_producer_do_not_count(cluster: MockCluster) -> None:
    before = await went_down(cluster)
    await publish_foreign(cluster, before)
    await went_on(cluster, before)


async def test_counting_records_of_another_producer_would_lose_some(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await went_down(cluster)
    ours = fmt.producer_id_of(before.ids[0].partition("/")[0])
    assert ours is not None
    nonce = fmt.nonce_of(ours)

    def any_producer(_: InKafka, name: bytes) -> tuple[int, int]:
        epoch, sequence = name.split(b"/")[1:]
        return fmt.position(int(epoch), int(sequence)), nonce

    await publish_foreign(cluster, before)
    monkeypatch.setattr(InKafka, "_told", any_producer)
    with pytest.raises(AssertionError, match="missing"):
        await went_on(cluster, before)


async def test_settling_everything_up_to_the_last_one_found_would_lose_some(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def up_to(self: InKafka, topic: str, position: int, *_: int) -> Place | None:
        number = (position & fmt.SEQUENCE_MASK) - 1
        return Place(number % PARTITIONS, number) if topic == TOPIC and position <= self.last else None

    monkeypatch.setattr(InKafka, "place", up_to)
    monkeypatch.setattr(InKafka, "__contains__", lambda *_: True)
    with pytest.raises(AssertionError, match="missing"):
        await went_on(cluster, await went_down(cluster))


@pytest.mark.parametrize("fault", [None, "planted: its connections are not asked"])
async def test_what_stands_in_another_cluster_says_nothing_of_ours(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str | None
) -> None:
    """The other one, a copy of the service perhaps, has everything."""
    before = await went_down(cluster)
    with MockCluster() as other:
        other.create_topic(TOPIC, PARTITIONS)
        async with AIOKafkaProducer(bootstrap_servers=other.bootstrap_servers) as copying:
            for number, name in enumerate(before.ids):
                headers = [("aiorecover-id", name.encode())]
                await copying.send_and_wait(
                    TOPIC, b"%d" % number, key=b"k", partition=number % PARTITIONS, headers=headers
                )
        options = RecoveryCheck._options
        monkeypatch.setattr(
            RecoveryCheck, "_options", lambda self: {**options(self), "bootstrap_servers": other.bootstrap_servers}
        )
        if fault is not None:
            monkeypatch.setattr(recovery_check, "ClusterGuard", Unguarded)
            with pytest.raises(AssertionError, match="missing"):
                await went_on(cluster, before)
            return
        after = await went_on(cluster, before)
    assert after.settled == 0
    assert "a broker belongs to another cluster" in told(caplog)[0]


class Unguarded:
    """What lets everything through."""

    wrong = None

    def __init__(self, *_: object) -> None:
        pass
