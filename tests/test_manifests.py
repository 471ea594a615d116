"""What stands on the audit topic of a producer: with a stand-in for Kafka, on an embedded broker, and across deaths."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import PolicyViolationError, TopicAuthorizationFailedError
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster
from tests.stand_in import Broker, Sent, put_in_place, rows_in
from tests.support.eventually import until
from tests.support.manifests import Told, compacted, told_in
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

Rows = list[tuple[bytes, bytes]]


class Auditing(Broker):
    """Refuses poison, and keeps the audit topic as it came; what the records are called stands in `ids`."""

    def __init__(self) -> None:
        super().__init__(t=3, audit=2)
        self.rows: Rows = []
        self.ids: list[tuple[str, int, int]] = []
        self.audit_refuses: BaseException | None = None
        self.refuses = poisoned

    def take(self, batch: Any, topic: str, partition: int) -> RecordMetadata:
        if topic != "audit":
            metadata = super().take(batch, topic, partition)
            for record in batch.records():
                producer_id, epoch, sequence = (record.headers[-1][1] or b"").decode().split("/")
                self.ids.append((producer_id, int(epoch), int(sequence)))
            return metadata
        if self.audit_refuses is not None:
            raise self.audit_refuses
        assert batch.identity is None
        self.rows += rows_in(batch)
        return RecordMetadata(topic, partition, TopicPartition(topic, partition), len(self.rows), 0, 0, 0)

    def delivered(self, producer_id: str, epoch: int) -> set[int]:
        return {sequence for owner, number, sequence in self.ids if (owner, number) == (producer_id, epoch)}


def poisoned(records: list[Sent]) -> BaseException | None:
    bad = any(record.value.startswith(b"poison") for record in records)
    return PolicyViolationError("no such schema") if bad else None


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Auditing:
    made = Auditing()
    put_in_place(made, monkeypatch)
    return made


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given = {"wal_min_free_bytes": 0, "slot_bytes": 256 * 1024, "retry_backoff_ms": 1, "checkpoint_interval_ms": 20}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", audit_topic="audit", **{**given, **options})


@asynccontextmanager
async def quiet(disk: MemoryDisk, **options: Any) -> AsyncIterator[RecoverableProducer]:
    """It tells nothing before it stops: its first look is over."""
    async with producer_on(disk, checkpoint_interval_ms=60_000, **options) as producer:
        await asyncio.sleep(0.05)
        yield producer


async def publish(producer: RecoverableProducer, count: int, *, poison: int = 0) -> None:
    """So many records; of each ``poison`` one that Kafka refuses."""
    for number in range(count):
        bad = poison and number % poison == 0
        await producer.publish("t", b"poison" if bad else b"sound", key=b"%d" % number)


def accounted_for(broker: Auditing) -> dict[tuple[str, int], dict[str, set[int]]]:
    """Of each epoch that was told of, what became of each id, as an audit says it."""
    verdicts: dict[tuple[str, int], dict[str, set[int]]] = {}
    for (producer_id, epoch), told in told_in(compacted(broker.rows)).items():
        delivered = broker.delivered(producer_id, epoch)
        found = verdicts[producer_id, epoch] = {"delivered": delivered}
        for sequence in set(range(1, max(told.last, *delivered, 0) + 1)) - delivered:
            found.setdefault(told.verdict(sequence), set()).add(sequence)
    return verdicts


def told_of(broker: Auditing, producer: RecoverableProducer) -> Told:
    return told_in(compacted(broker.rows))[producer.producer_id, producer.epoch]


async def test_a_run_that_ends_well_is_sealed_with_all_that_was_accepted_and_buried(broker: Auditing) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 200, poison=20)
        await producer.flush(timeout_ms=20_000)
        await until(lambda: bool(broker.rows) and told_of(broker, producer).settled == 200)
        assert told_of(broker, producer).sealed_at is None
        await publish(producer, 7)
    told = told_of(broker, producer)
    assert (told.last, told.settled, told.sealed_at) == (207, 207, 207)
    assert told.dead_lettered == set(range(1, 200, 20))
    assert accounted_for(broker)[producer.producer_id, 1].keys() == {"delivered", "dead_lettered"}
    now = producer.statistics()
    assert (now.accepted, now.delivered, now.dead_lettered, now.pending) == (207, 197, 10, 0)


async def test_a_short_run_is_told_of_when_it_stops_and_an_empty_one_is_not(broker: Auditing) -> None:
    disk = MemoryDisk()
    async with quiet(disk) as producer:
        await publish(producer, 3)
    assert (told_of(broker, producer).sealed_at, len(broker.rows)) == (3, 1)
    async with quiet(disk):
        pass
    assert {key.split(b"/")[1] for key, _ in broker.rows} == {b"1"}


async def test_while_nothing_happens_nothing_is_told(broker: Auditing) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 5)
        await until(lambda: bool(broker.rows) and told_of(broker, producer).settled == 5)
        count = len(broker.rows)
        await asyncio.sleep(0.3)
        assert len(broker.rows) == count


async def test_after_a_death_the_next_process_tells_what_became_of_the_records(broker: Auditing) -> None:
    disk = MemoryDisk()
    async with quiet(disk) as first:
        await publish(first, 100, poison=10)
        await first.flush(timeout_ms=20_000)
        assert broker.rows == []
        broker.answers.clear()
        await publish(first, 40, poison=10)
        left = disk.after_process_death()
        broker.answers.set()
        delivered = len(broker.ids)
    broker.rows.clear()  # what the one that died could not say any more
    del broker.ids[delivered:]
    broker.forget()
    async with producer_on(left) as second:
        await publish(second, 1)
        await second.flush(timeout_ms=20_000)
        await until(lambda: told_in(broker.rows).get((first.producer_id, 1), Told()).settled == 140)
    told = told_of(broker, first)
    assert (told.last, told.settled, told.sealed_at) == (140, 140, 140)
    assert told.dead_lettered == {*range(1, 100, 10), *range(101, 140, 10)}
    assert accounted_for(broker)[first.producer_id, 1].keys() == {"delivered", "dead_lettered"}
    assert told_of(broker, second).sealed_at == 1


async def test_what_waits_in_an_outage_is_in_the_ring(broker: Auditing) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await publish(producer, 20)
        await producer.flush(timeout_ms=20_000)
        broker.topics["t"] = 0
        broker.topics["other"] = 1
        await producer.publish("missing", b"v")
        await producer.publish("other", b"v")
        await until(lambda: told_of(broker, producer).last == 22)
        assert accounted_for(broker)[producer.producer_id, 1].get("in_ring") == {21}
        await producer.stop(timeout_ms=300)
    assert accounted_for(broker)[producer.producer_id, 1] == {"delivered": {*range(1, 21), 22}, "in_ring": {21}}
    assert told_of(broker, producer).sealed_at == 22


async def test_nothing_of_a_later_epoch_is_told_as_settled_while_records_of_an_earlier_one_wait(
    broker: Auditing,
) -> None:
    """So an audit takes the earlier one for told to its end by then, sealed or not."""
    disk = MemoryDisk()
    async with quiet(disk) as first:
        for _ in range(20):
            await first.publish("missing", b"v")
        left = disk.after_process_death()
    broker.rows.clear()
    async with producer_on(left) as second:
        await publish(second, 30)
        await until(lambda: len(broker.delivered(second.producer_id, 2)) == 30)
        await until(lambda: bool(broker.rows) and told_of(broker, second).last == 30)
        await asyncio.sleep(0.1)
        assert told_of(broker, second).settled == 0
        assert told_of(broker, first).settled == 0
        broker.topics["missing"] = 1
        await until(lambda: told_of(broker, second).settled == 30)
    assert told_of(broker, first).settled == 20
    for count in range(1, len(broker.rows) + 1):
        told = told_in(broker.rows[:count])
        if told.get((second.producer_id, 2), Told()).settled:
            assert told[first.producer_id, 1].settled == 20


async def test_a_dead_letter_that_was_purged_stays_one(broker: Auditing) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as first:
        await publish(first, 4, poison=2)
        await first.flush(timeout_ms=20_000)
        await until(lambda: bool(broker.rows) and len(told_of(broker, first).dead_lettered) == 2)
        assert await first.dead_letters.purge("all") == 2
    async with producer_on(disk) as second:
        await publish(second, 1)
    assert accounted_for(broker)[first.producer_id, 1] == {"delivered": {2, 4}, "dead_lettered": {1, 3}}


@pytest.mark.parametrize("trouble", ["missing", "not authorized"])
async def test_trouble_with_the_audit_topic_is_one_warning_and_holds_up_nobody(
    broker: Auditing, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    if trouble == "missing":
        del broker.topics["audit"]
    else:
        broker.audit_refuses = TopicAuthorizationFailedError("audit")
    async with producer_on(MemoryDisk()) as producer:
        for _ in range(5):
            await publish(producer, 10, poison=5)
            await producer.flush(timeout_ms=20_000)
            await asyncio.sleep(0.05)
        warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        told = [line for line in warnings if "audit" in line]
        assert len(told) == 1
        assert "records are delivered as ever" in told[0]
        broker.topics["audit"] = 2
        broker.audit_refuses = None
        await until(lambda: bool(broker.rows) and told_of(broker, producer).settled == 50)
    assert told_of(broker, producer).dead_lettered == {*range(1, 50, 5)}


async def test_a_neighbour_tells_of_the_directory_that_it_adopts(broker: Auditing) -> None:
    disk = MemoryDisk()
    async with quiet(disk, instance="a") as first:
        broker.answers.clear()
        await publish(first, 30)
        left = disk.after_process_death()
        broker.answers.set()
    broker.rows.clear()
    broker.ids.clear()
    broker.forget()
    async with producer_on(left, instance="b", adoption_grace_ms=1) as second:
        await until(lambda: second.statistics().directories_adopted == 1)
        await until(lambda: (first.producer_id, 1) in told_in(broker.rows))
    told = told_of(broker, first)
    assert (told.last, told.settled, told.sealed_at) == (30, 30, 30)
    assert accounted_for(broker)[first.producer_id, 1].keys() == {"delivered"}


# -- with an embedded broker -----------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(brokers=1) as made:
        made.create_topic("t", partitions=3)
        made.create_topic("audit", partitions=2)
        yield made


CHILD = """
import asyncio, sys
from aiorecover import RecoverableProducer

async def main():
    producer = RecoverableProducer(sys.argv[1], bootstrap_servers=sys.argv[2], audit_topic="audit",
                                   checkpoint_interval_ms=50, linger_ms=1)
    async with producer:
        for number in range(1_000_000):
            await producer.publish("t", b"%d" % number, key=b"%d" % (number % 50))
            if number % 20 == 0:
                await asyncio.sleep(0.001)
            if number == 3000:
                print("now", flush=True)

asyncio.run(main())
"""


async def test_processes_that_are_killed_leave_no_id_unaccounted_for(cluster: MockCluster, tmp_path: Any) -> None:
    for _ in range(3):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CHILD, str(tmp_path / "wal"), cluster.bootstrap_servers),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        assert await child.stdout.readline() == b"now\n"
        child.kill()
        await child.wait()
    options = {"audit_topic": "audit", "checkpoint_interval_ms": 50}
    async with RecoverableProducer(
        tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers, **options
    ) as producer:
        await producer.flush(timeout_ms=30_000)
        await asyncio.sleep(0.2)
    told = told_in(
        compacted([(row.key or b"", row.value or b"") for row in await read_topic(cluster.bootstrap_servers, "audit")])
    )
    assert sorted(epoch for _, epoch in told) == [1, 2, 3]
    found: dict[tuple[str, int], set[int]] = {}
    for row in await read_topic(cluster.bootstrap_servers, "t"):
        assert row.record_id is not None
        producer_id, epoch, sequence = row.record_id.split("/")
        found.setdefault((producer_id, int(epoch)), set()).add(int(sequence))
    for key, one in told.items():
        assert found[key] == set(range(1, one.last + 1))
        assert one.settled == one.last == one.sealed_at
