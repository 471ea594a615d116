"""Dispatching with a stand-in for the session, so that every interleaving can be arranged."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.delivery import delivery as delivery_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dispatcher import FIRST_STEP, Dispatcher
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.judge import Judge, Verdict
from aiorecover.delivery.partitioner import partition_for
from aiorecover.errors import WalIOError
from aiorecover.testing import MemoryDisk
from aiorecover.wal import format as fmt
from aiorecover.wal.reading import ALL, Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Run
from tests.delivery.stand_in import StandIn
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


class Kafka:
    """What the stand-in session knows and was sent."""

    def __init__(self) -> None:
        self.topics: dict[str, set[int]] = {"a": {0}, "b": {0}}
        self.sent: list[tuple[str, int, list[int]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers = True

    def places(self, topic: str, partition: int) -> list[int]:
        return [place for name, number, places in self.sent if (name, number) == (topic, partition) for place in places]


@pytest.fixture
def kafka_stand_in(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()

    class Noting(StandIn):
        def start(self) -> None:
            if kafka.answers:
                self.connect()

        async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
            await kafka.gate.wait()
            await asyncio.sleep(0.001)
            kafka.sent.append((topic, partition, [place for _, places in batch.frames for place in places]))
            return RecordMetadata(topic, partition, TopicPartition(topic, partition), 0, 0, 0, 0)

        def partitions(self, topic: str) -> frozenset[int]:
            return frozenset(kafka.topics.get(topic, ()))

    monkeypatch.setattr(sessions_module, "Session", Noting)
    return kafka


def producer_of(path: Path, **options: Any) -> RecoverableProducer:
    return RecoverableProducer(
        path, bootstrap_servers="nowhere:1", wal_min_free_bytes=0, stop_timeout_ms=500, **options
    )


def metadata_came(producer: RecoverableProducer) -> None:
    assert producer._opened is not None
    producer._opened.delivery._on_metadata()


def publish_to_any_partition(producer: RecoverableProducer) -> None:
    """As if it had been published before the metadata was known."""
    producer._existing_partition = lambda topic, partition: partition  # type: ignore[method-assign, assignment, return-value]


async def test_until_something_is_acknowledged_the_loop_has_its_turn_soon(
    kafka_stand_in: Kafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It connects meanwhile, beside the frames that the last process has settled."""
    looks: list[tuple[int, int]] = []
    look = Reader.look

    def noting(reader: Reader, limit: int, most: int = ALL) -> Run | None:
        before = reader.expected
        run = look(reader, limit, most)
        looks.append((producer.statistics().delivered, reader.expected - before))
        return run

    async with producer_of(tmp_path) as producer:
        for number in range(4 * FIRST_STEP):
            await producer.publish("a", b"%d" % number)
        await producer.flush(timeout_ms=20_000)
        await producer.publish("unknown", b"keeps the slot")
        monkeypatch.setattr(Ring, "recycle", lambda *_, **__: 0)
    monkeypatch.setattr(Reader, "look", noting)
    kafka_stand_in.topics["unknown"] = {0}
    async with producer_of(tmp_path) as producer:
        await producer.flush(timeout_ms=20_000)
        before = [passed for delivered, passed in looks if not delivered]
        assert max(before) == FIRST_STEP
        assert sum(before) == 4 * FIRST_STEP + 1


async def test_two_gaps_caught_up_together_dispatch_no_record_twice(kafka_stand_in: Kafka, tmp_path: Path) -> None:
    kafka_stand_in.topics["t"] = {0, 1}
    fails = False

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        if fails:
            raise RuntimeError("the registry is down")
        return 0

    async with producer_of(tmp_path, partitioner=partitioner) as producer:
        await producer.publish("t", b"0", key=b"k")
        await producer.flush(timeout_ms=20_000)
        publish_to_any_partition(producer)
        kafka_stand_in.gate.clear()
        await producer.publish("t", b"falls behind", partition=9)
        await producer.publish("t", b"in flight", key=b"k")
        await asyncio.sleep(0.1)
        fails = True
        await producer.publish("t", b"falls behind too", key=b"other")
        await asyncio.sleep(0.1)
        fails = False
        kafka_stand_in.topics["t"] = set(range(10))
        metadata_came(producer)
        kafka_stand_in.gate.set()
        await producer.flush(timeout_ms=20_000)
        figures = producer.statistics()
    assert (figures.accepted, figures.delivered, figures.pending) == (4, 4, 0)
    assert sum(len(places) for _, _, places in kafka_stand_in.sent) == 4


class OfTheUsers(BaseException):
    """As test tools have them."""


@pytest.mark.parametrize("raised", [asyncio.CancelledError, GeneratorExit, OfTheUsers])
async def test_whatever_a_partitioner_raises_its_topic_waits_and_nothing_is_dispatched_twice(
    raised: type[BaseException], kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_module, "DISCOVER_INTERVAL", 0.02)
    asked = itertools.count()

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        if next(asked) == 2:
            raise raised
        return 0

    async with producer_of(tmp_path, partitioner=partitioner) as producer:
        for number in range(20):
            await producer.publish("a", b"%d" % number, key=b"%d" % number)
        await producer.flush(timeout_ms=20_000)
        figures = producer.statistics()
        assert (figures.delivered, figures.pending, figures.state) == (20, 0, "connected")
    assert len(kafka_stand_in.places("a", 0)) == 20


async def test_a_record_for_which_the_partitioner_keeps_failing_holds_its_topic_and_no_other_until_it_answers(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery_module, "DISCOVER_INTERVAL", 0.02)
    asked: list[bytes | None] = []
    mended = False

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        asked.append(key)
        if key == b"poison" and not mended:
            raise LookupError("nobody knows this key")
        return 0

    async with producer_of(tmp_path, partitioner=partitioner) as producer:
        await producer.publish("a", b"0", key=b"poison")
        await producer.publish("a", b"1", key=b"k")
        other = await producer.publish("b", b"2", key=b"k")
        await other.delivered(timeout_ms=20_000)
        await until(lambda: asked.count(b"poison") > 3)
        figures = producer.statistics()
        assert (figures.pending, figures.dead_lettered) == (2, 0)
        mended = True
        await producer.flush(timeout_ms=20_000)
        assert asked.count(b"k") == 2  # once for each topic
    warnings = [record for record in caplog.records if "the partitioner failed" in record.getMessage()]
    assert [record.levelname for record in warnings] == ["WARNING"]


async def test_the_oldest_that_waits_is_known_record_by_record_in_a_lane_and_behind(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    async with producer_of(tmp_path) as producer:
        assert producer._opened is not None
        delivery = producer._opened.delivery
        kafka_stand_in.gate.clear()
        first = await producer.publish("a", b"0", key=b"k")
        behind = await producer.publish("nowhere", b"1")
        last = await producer.publish("a", b"2", key=b"k")
        await until(lambda: delivery.dispatcher.has_gaps)
        assert delivery.oldest == fmt.position(first.epoch, first.sequence)
        kafka_stand_in.gate.set()
        await last.delivered(timeout_ms=20_000)
        assert delivery.oldest == fmt.position(behind.epoch, behind.sequence)
        kafka_stand_in.topics["nowhere"] = {0}
        metadata_came(producer)
        await producer.flush(timeout_ms=20_000)
        assert delivery.oldest > fmt.position(last.epoch, last.sequence)


async def test_a_keyed_record_does_not_overtake_what_its_new_partition_has_to_catch_up(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    kafka_stand_in.topics["t"] = {0}
    key = next(b"%d" % number for number in range(99) if partition_for(b"%d" % number, 2) == 1)
    async with producer_of(tmp_path) as producer:
        publish_to_any_partition(producer)
        await producer.publish("t", b"0")
        await producer.flush(timeout_ms=20_000)
        for _ in range(1500):
            older = await producer.publish("t", b"waits for its partition", partition=1, key=key)
        await asyncio.sleep(0.1)
        kafka_stand_in.topics["t"] = {0, 1}
        metadata_came(producer)
        newer = await producer.publish("t", b"newer", key=key)
        await producer.flush(timeout_ms=20_000)
    order = kafka_stand_in.places("t", 1)
    assert order == sorted(order)
    assert order.index(older._place) < order.index(newer._place)


async def test_a_lane_with_one_record_is_handed_over_while_another_keeps_the_dispatcher_busy(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    async with producer_of(tmp_path) as producer:
        await producer.publish("a", b"1")
        await producer.publish("b", b"1")
        await producer.flush(timeout_ms=20_000)
        waiting = asyncio.create_task((await producer.publish("b", b"alone")).delivered())
        for _ in range(2_000_000):  # seconds; it never stops to await anything else
            await producer.publish("a", b"v" * 100, key=b"k")
            if waiting.done():
                break
        assert waiting.done()
        await waiting


async def test_a_reading_that_fails_once_is_begun_again_and_nothing_is_lost(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = Reader.look
    failed: list[bool] = []

    def fails_once(self: Reader, *limits: int) -> Any:
        if not failed:
            failed.append(True)
            raise WalIOError(5, "the sector is unreadable today")
        return look(self, *limits)

    monkeypatch.setattr(Reader, "look", fails_once)
    async with producer_of(tmp_path) as producer:
        for number in range(10):
            await producer.publish("a", b"%d" % number)
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().delivered == 10
    assert "begun again" in caplog.text


async def test_a_record_that_cannot_be_judged_at_first_is_neither_skipped_nor_sent_twice(
    kafka_stand_in: Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a power cut each record is judged by itself; those before the one that failed are in their batch."""

    def service(disk: MemoryDisk) -> RecoverableProducer:
        options: dict[str, Any] = {"fsync": "never", "checkpoint_interval_ms": 600_000, "recovery_check": False}
        return RecoverableProducer(disk, bootstrap_servers="nowhere:1", stop_timeout_ms=0, **options)

    disk = MemoryDisk()
    kafka_stand_in.gate.clear()
    async with service(disk) as first:
        for number in range(9):
            await first.publish("a", b"%d" % number, key=b"k")
        _ring_of(first).sync()
        disk = disk.after_power_cut(1)
    kafka_stand_in.gate.set()
    verdict, asked = Judge.verdict, itertools.count()

    def fails_once(self: Judge, *given: Any) -> Verdict:
        if next(asked) == 4:
            raise RuntimeError("not today")
        return verdict(self, *given)

    monkeypatch.setattr(Judge, "verdict", fails_once)
    async with service(disk) as second:
        await until(lambda: second.statistics().delivered == 9)
        assert second.statistics().pending == 0
    order = kafka_stand_in.places("a", 0)
    assert order == sorted(set(order))
    assert caplog.text.count("RuntimeError: not today") == 1


@pytest.mark.parametrize("what", ["leading", "holds"])
async def test_whatever_fails_before_a_record_is_dispatched_skips_none(
    what: str, kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right, asked = getattr(Expiry, what), itertools.count()

    def fails_once(self: Expiry, run: Run) -> Any:
        if next(asked) == 0:
            raise RuntimeError("not today")
        return right(self, run)

    monkeypatch.setattr(Expiry, what, fails_once)
    async with producer_of(tmp_path) as producer:
        for number in range(9):
            await producer.publish("a", b"%d" % number)
        await until(lambda: producer.statistics().delivered == 9)
    assert len(kafka_stand_in.places("a", 0)) == 9
    assert caplog.text.count("RuntimeError: not today") == 1


async def test_a_batch_that_cannot_be_closed_at_first_is_handed_over_all_the_same(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, asked = LaneBatch.finish, itertools.count()

    def fails_once(self: LaneBatch) -> None:
        if next(asked) == 0:
            raise MemoryError
        finish(self)

    monkeypatch.setattr(LaneBatch, "finish", fails_once)
    async with producer_of(tmp_path) as producer:
        await producer.publish("a", b"alone")
        await until(lambda: producer.statistics().delivered == 1)


async def test_whatever_an_acknowledgement_sets_off_its_lane_goes_on_and_who_waits_is_told(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acknowledged, asked = Dispatcher.acknowledged, itertools.count()

    def fails_once(self: Dispatcher, *given: Any) -> None:
        acknowledged(self, *given)
        if next(asked) == 0:
            raise RuntimeError("not today")

    monkeypatch.setattr(Dispatcher, "acknowledged", fails_once)
    async with producer_of(tmp_path, linger_ms=1, on_delivery=_raises) as producer:
        first = await producer.publish("a", b"1")
        waiting = asyncio.create_task(first.delivered(timeout_ms=20_000))
        kafka_stand_in.gate.clear()
        await asyncio.sleep(0.05)
        last = await producer.publish("a", b"behind it, in the next batch")
        await asyncio.sleep(0.05)
        kafka_stand_in.gate.set()
        await waiting
        await last.delivered(timeout_ms=20_000)
        assert producer.statistics().callback_errors == 2
        assert producer.state == "connected"
    assert caplog.text.count("RuntimeError: not today") == 1
    assert caplog.text.count("ValueError: of no interest") == 1


def _raises(_: DeliveryReport) -> None:
    raise ValueError("of no interest")


async def test_a_record_that_waited_for_room_is_delivered_without_another_publish(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    small = {"slot_bytes": 65536, "wal_max_bytes": 6 * 65536, "max_request_size": 16384, "max_batch_size": 16384}
    async with producer_of(tmp_path, on_full="wait", checkpoint_interval_ms=50, **small) as producer:
        for _ in range(500):
            receipt = await producer.publish("a", b"x" * 4000)
        report = await receipt.delivered(timeout_ms=20_000)
        assert report.status == "delivered"
        await until(lambda: producer.statistics().pending == 0)


@pytest.fixture
def opened_readers(monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    """The readers that go back for what was passed over."""
    readers: list[Reader] = []
    behind = Reader.behind

    def noting(self: Reader, *where: Any) -> Reader:
        readers.append(behind(self, *where))
        return readers[-1]

    monkeypatch.setattr(Reader, "behind", noting)
    return readers


def connect(producer: RecoverableProducer) -> None:
    assert producer._opened is not None
    session: Any = producer._opened.delivery.session
    session.connect()


async def test_nothing_is_passed_over_before_kafka_has_answered_once(
    kafka_stand_in: Kafka, tmp_path: Path, opened_readers: list[Reader]
) -> None:
    """What was published by then is read once: an outage's backlog may be gigabytes."""
    kafka_stand_in.answers = False
    async with producer_of(tmp_path) as producer:
        for number in range(3000):
            await producer.publish("a", b"%d" % number)
        await asyncio.sleep(0.1)
        metadata_came(producer)  # from whom ever: without an answer nothing begins
        await asyncio.sleep(0.1)
        assert producer._opened is not None
        assert producer._opened.delivery.session._topics == {"a"}
        assert not producer._opened.delivery.dispatcher.has_gaps
        assert kafka_stand_in.sent == []
        connect(producer)
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().delivered == 3000
    assert opened_readers == []
    order = kafka_stand_in.places("a", 0)
    assert order == sorted(order)


async def test_a_held_record_whose_topic_the_first_answer_does_not_tell_of_holds_up_nobody_and_is_delivered_later(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    kafka_stand_in.answers = False
    async with producer_of(tmp_path) as producer:
        late = await producer.publish("late", b"before")
        known = await producer.publish("a", b"behind it")
        await asyncio.sleep(0.1)
        connect(producer)
        await known.delivered(timeout_ms=20_000)
        assert kafka_stand_in.places("late", 0) == []
        kafka_stand_in.topics["late"] = {0}
        await late.delivered(timeout_ms=20_000)
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().pending == 0


async def test_what_is_damaged_while_it_waits_for_its_lane_is_named_and_the_others_are_delivered(
    kafka_stand_in: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    async with RecoverableProducer(disk, bootstrap_servers="nowhere:1", stop_timeout_ms=0) as producer:
        receipts = [await producer.publish("late", b"%02d" % number * 500) for number in range(9)]
        await until(lambda: dispatcher_of(producer).reader.at > fmt.position(1, 9))
        disk.file("0/ring").damage(4 * receipts[4]._place + 500, b"rot")
        disk.file("0/ring").damage(4 * receipts[8]._place + 500, b"rot")
        kafka_stand_in.topics["late"] = {0}
        await producer.flush(timeout_ms=20_000)
        await until(lambda: producer.statistics().pending == 0)
        figures = producer.statistics()
        assert (figures.accepted, figures.delivered, figures.lost, figures.missing) == (9, 7, 2, 2)
    assert caplog.text.count("records are missing from the file ring") == 2
    assert "sequences=5-5" in caplog.text
    assert "sequences=9-9" in caplog.text


async def test_a_flush_does_not_wait_for_the_newest_record_when_that_is_damaged(kafka_stand_in: Kafka) -> None:
    disk = MemoryDisk()
    async with RecoverableProducer(disk, bootstrap_servers="nowhere:1", stop_timeout_ms=0) as producer:
        await producer.publish("a", b"whole")
        lost = await producer.publish("a", b"-" * 3000)  # too large for memory: it is read from the file
        disk.file("0/ring").damage(4 * lost._place + 500, b"rot")
        await producer.flush(timeout_ms=20_000)
        assert (producer.statistics().delivered, producer.statistics().missing) == (1, 1)


async def test_the_first_answer_wakes_the_dispatcher_even_when_it_tells_of_no_topic(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    kafka_stand_in.answers = False
    kafka_stand_in.topics.clear()
    async with producer_of(tmp_path) as producer:
        receipt = await producer.publish("a", b"held")
        await asyncio.sleep(0.1)
        connect(producer)
        assert producer._opened is not None
        dispatcher = producer._opened.delivery.dispatcher
        await until(lambda: dispatcher.has_gaps)
        kafka_stand_in.topics["a"] = {0}
        await receipt.delivered(timeout_ms=20_000)


async def test_what_was_delivered_again_before_a_second_power_cut_waits_in_the_ring_as_well(
    kafka_stand_in: Kafka,
) -> None:
    """Behind a word that was lost. Compaction copies what waits there: settle words say nothing about generations."""

    def service(disk: MemoryDisk) -> RecoverableProducer:
        options: dict[str, Any] = {"fsync": "never", "checkpoint_interval_ms": 600_000, "slot_bytes": 16 * 1024}
        options |= {"stop_timeout_ms": 0, "recovery_check": False}
        return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **options)

    disk = MemoryDisk()
    kafka_stand_in.gate.clear()
    async with service(disk) as first:
        for number in range(5):
            await first.publish("a", b"%d" % number, key=b"k")
        _ring_of(first).sync()
        disk = disk.after_power_cut(1)
    kafka_stand_in.gate.set()
    async with service(disk) as second:
        await second.flush(timeout_ms=20_000)
        assert len(kafka_stand_in.places("a", 0)) == 5
        ring = _ring_of(second)
        run = Reader.inside(ring, ring.live[0], bytes, everything=True).take(1)
        assert run is not None
        ring.reopen(run.slot, run.places)
        ring.sync()
        disk = disk.after_power_cut(2)
    kafka_stand_in.gate.clear()
    async with service(disk) as third:
        await until(lambda: third.statistics().pending == 5)
        ring = _ring_of(third)
        waiting = [Reader.inside(ring, slot, bytes).take(100) for slot in ring.live]
        assert sum(len(run) for run in waiting if run is not None) == 5


def dispatcher_of(producer: RecoverableProducer) -> Dispatcher:
    assert producer._opened is not None
    return producer._opened.delivery.dispatcher


def _ring_of(producer: RecoverableProducer) -> Ring:
    assert producer._opened is not None
    return producer._opened.directory.ring
