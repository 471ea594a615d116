"""The process dies at each step around a batch: the next one leaves every record in Kafka once, and in order.

The steps are those of `Sender` and of the checkpoint. At each of them an image of the disk and of the broker is taken,
from which another producer goes on; the batch of that moment may also reach the broker late, from the dead process's
socket.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from aiorecover.delivery import batches as batches_module
from aiorecover.delivery import delivery as delivery_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.journal import Doubt
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Identity, Lane
from aiorecover.errors import DeliveryError, WalIOError
from aiorecover.statistics import Statistics
from aiorecover.testing import MemoryDisk
from aiorecover.wal.checkpoint import Checkpoint
from aiorecover.wal.directory import Directory
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from tests.delivery.remembering import Broker
from tests.support.eventually import until

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 3
RECORDS = 60
STEPS = {
    "before it is written down",
    "written down",
    "before it is appended",
    "before it is acknowledged",
    "before it is settled",
    "half of it is settled",
    "settled",
    "before a checkpoint",
    "behind a checkpoint",
}


@dataclass
class Moment:
    """A process that died: what it left, and what it may have had on the way to partition ``partition``."""

    step: str
    disk: MemoryDisk
    broker: Broker
    accepted: list[bytes]
    on_the_way: bytes | None = None


class Life:
    """One producer that is watched at every step."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = MemoryDisk()
        self.broker = broker
        self.accepted: list[bytes] = []
        self.moments: list[Moment] = []
        monkeypatch.setattr(sessions_module, "Session", broker.session(self._told))

    async def _told(self, step: str, data: bytes) -> None:
        self.note(step, data)

    def note(self, step: str, on_the_way: bytes | None = None) -> None:
        image = self.disk.after_process_death()
        self.moments.append(Moment(step, image, self.broker.snapshot(), self.accepted.copy(), on_the_way))

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            self._watch(patch)
            yield

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        enter, settle = Journal.enter, Ring.settle
        capture, recycle = Directory.next_checkpoint, Directory.recycle

        async def watched_enter(journal: Journal, *batch: Any) -> bool:
            self.note("before it is written down")
            entered = await enter(journal, *batch)
            self.note("written down")
            return entered

        def watched_settle(ring: Ring, slot: Slot, places: Sequence[int]) -> None:
            self.note("before it is settled")
            half = len(places) // 2
            if half:
                settle(ring, slot, places[:half])
                self.note("half of it is settled")
            settle(ring, slot, places[half:])
            self.note("settled")

        def watched_capture(directory: Directory, **more: Any) -> Checkpoint:
            self.note("before a checkpoint")
            return capture(directory, **more)

        def watched_recycle(directory: Directory, durable: Checkpoint) -> int:
            self.note("behind a checkpoint")
            return recycle(directory, durable)

        patch.setattr(Journal, "enter", watched_enter)
        patch.setattr(Ring, "settle", watched_settle)
        patch.setattr(Directory, "next_checkpoint", watched_capture)
        patch.setattr(Directory, "recycle", watched_recycle)


def producer_of(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    chosen: dict[str, Any] = {"slot_bytes": 1 << 14, "linger_ms": 1, "checkpoint_interval_ms": 100, **options}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **chosen)


async def publish(producer: RecoverableProducer, accepted: list[bytes], count: int) -> None:
    for _ in range(count):
        value = b"%d.%d" % (producer.epoch, len(accepted))
        await producer.publish("t", value.ljust(300), partition=len(accepted) % PARTITIONS)
        accepted.append(value)


async def lives(life: Life) -> None:
    async with producer_of(life.disk) as producer:
        with life.watched():
            for _ in range(4):
                await publish(producer, life.accepted, RECORDS // 4)
                await producer.flush(timeout_ms=10_000)
            # A quick machine is done before the first checkpoint is due.
            await until(lambda: producer.statistics().checkpoints > 0)


async def goes_on(moment: Moment, monkeypatch: pytest.MonkeyPatch, *, late: str, **options: Any) -> Statistics:
    """Another process, with other settings; ``late``: when the dead one's last batch reaches the broker."""
    broker, accepted = moment.broker, moment.accepted.copy()
    on_the_way = moment.on_the_way if moment.step == "before it is appended" else None
    partition = _partition_of(on_the_way, accepted)
    if on_the_way is not None and late == "at first":
        broker.take(partition, on_the_way)
    monkeypatch.setattr(sessions_module, "Session", broker.session())
    async with producer_of(moment.disk, **options) as producer:
        await publish(producer, accepted, 2 * PARTITIONS)
        await producer.flush(timeout_ms=10_000)
        statistics = producer.statistics()
    if on_the_way is not None and late == "at last":
        broker.take(partition, on_the_way)  # a repeat, or an error: the connection has nobody to tell
    for number, log in broker.logs.items():
        assert [value.rstrip() for value in log] == accepted[number::PARTITIONS], (moment.step, number)
    return statistics


def _partition_of(data: bytes | None, accepted: list[bytes]) -> int:
    if data is None:
        return -1
    return next(number for number, value in enumerate(accepted) if value.ljust(300) in data) % PARTITIONS


@pytest.mark.parametrize("late", ["never", "at first", "at last"])
@pytest.mark.parametrize("options", [{}, {"max_batch_size": 2_048, "compression_type": "gzip"}], ids=["same", "other"])
def test_wherever_a_process_dies_each_record_stands_in_kafka_once(
    monkeypatch: pytest.MonkeyPatch, late: str, options: dict[str, Any]
) -> None:
    life = Life(Broker(PARTITIONS), monkeypatch)
    asyncio.run(lives(life))
    assert {moment.step for moment in life.moments} == STEPS
    resumed = repeats = 0
    for moment in life.moments:
        statistics = asyncio.run(goes_on(moment, monkeypatch, late=late, **options))
        assert (statistics.identities_renewed, statistics.lanes_halted, statistics.missing) == (0, 0, 0), moment.step
        came = statistics.accepted + statistics.recovered
        assert (came, statistics.pending) == (statistics.delivered, 0)
        resumed += statistics.batches_resumed
        repeats += moment.broker.repeats
    assert resumed > len(life.moments) / 3
    assert repeats > 0


@pytest.mark.parametrize("deaths", [5])
def test_a_process_that_dies_again_and_again_while_it_takes_up_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """Each one is another image of the one before, at a step that has something in flight."""
    life = Life(Broker(PARTITIONS), monkeypatch)
    asyncio.run(lives(life))
    for step in ("before it is appended", "before it is acknowledged", "half of it is settled"):
        moment = next(moment for moment in life.moments[20:] if moment.step == step)
        for _ in range(deaths):
            following = Life(moment.broker, monkeypatch)
            following.disk, following.accepted = moment.disk, moment.accepted
            asyncio.run(_opens_and_flushes(following))
            found = [moment for moment in following.moments if moment.step == step]
            if not found:
                break
            moment = found[0]
        asyncio.run(goes_on(moment, monkeypatch, late="never"))


async def _opens_and_flushes(life: Life) -> None:
    with life.watched():
        async with producer_of(life.disk) as producer:
            await producer.flush(timeout_ms=10_000)


def test_a_thousand_lanes_that_die_unanswered_are_each_sent_again_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appended in every lane, and nobody was told; more waits behind each."""
    lanes, disk = 1000, MemoryDisk()
    broker = Broker(lanes)

    async def never(step: str, _: bytes) -> None:
        if step == "before it is acknowledged":
            await asyncio.Event().wait()

    async def publish_each(producer: RecoverableProducer, name: bytes) -> None:
        for partition in range(lanes):
            await producer.publish("t", name, partition=partition)

    async def dies() -> tuple[MemoryDisk, Broker]:
        monkeypatch.setattr(sessions_module, "Session", broker.session(never))
        async with producer_of(disk, slot_bytes=1 << 20, stop_timeout_ms=0) as producer:
            await publish_each(producer, b"1")
            await until(lambda: all(broker.logs.values()))
            await publish_each(producer, b"2")
            return disk.after_process_death(), broker.snapshot()

    async def follows(left: MemoryDisk, there: Broker) -> Statistics:
        monkeypatch.setattr(sessions_module, "Session", there.session())
        async with producer_of(left, slot_bytes=1 << 20) as producer:
            await publish_each(producer, b"3")
            await producer.flush(timeout_ms=60_000)
            return producer.statistics()

    left, there = asyncio.run(dies())
    statistics = asyncio.run(follows(left, there))
    assert (statistics.batches_resumed, there.repeats, statistics.identities_renewed) == (lanes, lanes, 0)
    assert list(there.logs.values()) == [[b"1", b"2", b"3"]] * lanes


def test_without_the_journal_records_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests would see: an opening that trusts nothing."""
    monkeypatch.setattr("aiorecover.delivery.resume.doubt_of", lambda *_, **__: Doubt.OLD)
    life = Life(Broker(PARTITIONS), monkeypatch)
    asyncio.run(lives(life))
    appended = next(moment for moment in life.moments if moment.step == "before it is acknowledged")
    with pytest.raises(AssertionError, match="before it is acknowledged"):
        asyncio.run(goes_on(appended, monkeypatch, late="never"))


# -- what else may stand in the way ------------------------------------------------------------------------------------


def in_flight(monkeypatch: pytest.MonkeyPatch) -> Moment:
    """A moment with a batch of every lane in flight, all of them appended and none acknowledged."""
    life = Life(Broker(PARTITIONS), monkeypatch)
    asyncio.run(lives(life))
    waiting = [moment for moment in life.moments if moment.step == "before it is acknowledged"]
    return max(waiting, key=lambda moment: sum(map(len, moment.broker.logs.values())) % (RECORDS // 4))


def test_what_was_in_flight_waits_for_room_and_goes_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "BATCH_BYTES", 1)  # full as soon as a single batch is in flight
    statistics = asyncio.run(goes_on(in_flight(monkeypatch), monkeypatch, late="never"))
    assert statistics.batches_resumed > 0


def test_a_batch_that_cannot_be_read_again_halts_its_lane_until_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = in_flight(monkeypatch)

    def broken(*_: object) -> None:
        raise WalIOError(5, "cannot read the file")

    async def halted() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(sessions_module, "Session", moment.broker.session())
            patch.setattr(delivery_module, "rebuild", broken)
            async with producer_of(moment.disk, stop_timeout_ms=300) as producer:
                with pytest.raises(DeliveryError, match="cannot read the file"):
                    await producer.flush(timeout_ms=10_000)
                assert producer.statistics().lanes_halted > 0

    asyncio.run(halted())
    asyncio.run(goes_on(moment, monkeypatch, late="never"))


def test_a_lane_whose_topic_was_made_anew_takes_a_fresh_identity(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(Broker(1), monkeypatch)

    async def course() -> list[Identity | None]:
        async with producer_of(life.disk) as producer:
            for value in (b"1", b"2", b"3"):
                await producer.publish("t", value, partition=0)
                await producer.flush(timeout_ms=10_000)
                if value == b"1":
                    life.broker.logs[0].clear()
            assert producer.statistics().identities_renewed == 1
            opened = producer._opened
            assert opened is not None
            return [lane.identity for lane in opened.delivery.router.lanes()]

    assert asyncio.run(course()) == [Identity(1, 1)]
    assert life.broker.logs[0] == [b"2", b"3"]
    assert "was the topic deleted" in caplog.text


def test_what_kafka_takes_for_a_repeat_of_another_batch_is_not_settled_but_sent_under_a_fresh_identity(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stand_still(self: Lane, batch: LaneBatch, fresh: Identity) -> None:
        self.identity = self.identity or fresh
        batch.identify(self.identity.producer_id, self.identity.epoch, 0)

    monkeypatch.setattr(Lane, "identify", stand_still)
    life = Life(Broker(1), monkeypatch)

    async def course() -> int:
        async with producer_of(life.disk) as producer:
            for value in (b"0", b"1", b"2"):
                await producer.publish("t", value, partition=0)
                await producer.flush(timeout_ms=10_000)
            return producer.statistics().identities_renewed

    assert asyncio.run(course()) == life.broker.repeats == 2
    assert life.broker.logs[0] == [b"0", b"1", b"2"]
    assert "error=SwallowedError" in caplog.text
