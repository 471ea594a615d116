"""Records rot while they wait for Kafka: the rest is delivered, and the ring does not stay full of what is lost."""

import asyncio
from typing import Any

import pytest

from aiorecover import DeliveryReport, PermanentDeliveryError, Receipt, RecoverableProducer
from aiorecover import background as background_module
from aiorecover import recounting as recounting_module
from aiorecover.delivery.frames import frames_of, position_at, positions_of
from aiorecover.delivery.lane import Lane
from aiorecover.testing import MemoryDisk
from aiorecover.wal import format as fmt
from aiorecover.wal import window as window_module
from aiorecover.wal.ring import RECENT, Ring
from aiorecover.wal.slot import Slot
from tests.delivery.test_compacting import MAX_BYTES, SLOT, STUCK, publish
from tests.delivery.test_compacting import kafka as partitions_stall
from tests.delivery.test_compacting import producer_of as compacting_producer
from tests.delivery.test_dispatcher import Kafka, dispatcher_of, kafka_stand_in
from tests.delivery.test_stalled_lives import Kafka as Stalling
from tests.delivery.test_stalled_lives import short
from tests.support.eventually import until

__all__ = ["kafka_stand_in", "partitions_stall", "short"]

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recounting_module, "PAUSE", 0.01)
    monkeypatch.setattr(recounting_module, "READ_PAUSE", 0.01)
    monkeypatch.setattr(background_module, "FAILURE_PAUSE", 0.01)


def producer_of(disk: MemoryDisk, **more: Any) -> RecoverableProducer:
    options: dict[str, Any] = {"slot_bytes": SLOT, "max_batch_size": 1 << 14, "max_request_size": 1 << 15}
    options |= {"wal_max_bytes": MAX_BYTES, "checkpoint_interval_ms": 20, "stop_timeout_ms": 0, "on_full": "wait"}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **(options | more))


def rot(disk: MemoryDisk, receipt: Receipt, producer: RecoverableProducer) -> None:
    """In its payload."""
    ring = producer._opened.directory.ring  # type: ignore[union-attr]
    disk.file("0/ring").damage(ring.slot_of(receipt.sequence).file_offset + 4 * receipt._place + 60, b"rot")


def all_adds_up(producer: RecoverableProducer) -> None:
    """I9."""
    now = producer.statistics()
    assert now.accepted + now.recovered == now.delivered + now.dead_lettered + now.lost + now.pending, now


async def nothing_is_left(producer: RecoverableProducer) -> None:
    await producer.flush(timeout_ms=30_000)
    await until(lambda: producer.statistics().records_left == 0)
    all_adds_up(producer)


async def the_ring_goes_round(producer: RecoverableProducer, topic: str) -> None:
    """More than it holds is published and delivered."""
    for number in range(3 * MAX_BYTES // 1000):
        await producer.publish(topic, b"x" * 1000, partition=0)
        if number % 50 == 0:
            await asyncio.sleep(0)
    await nothing_is_left(producer)
    assert producer.state != "failed"


async def is_told_lost(receipt: Receipt) -> None:
    with pytest.raises(PermanentDeliveryError, match=f"damage took the record .*{receipt.record_id}"):
        await receipt.delivered(timeout_ms=20_000)


async def test_what_rots_before_it_is_read_leaves_the_ring_and_who_waits_for_it_is_told(kafka_stand_in: Kafka) -> None:
    kafka_stand_in.answers = False
    disk = MemoryDisk()
    async with producer_of(disk, wal_max_bytes=2 * MAX_BYTES) as producer:
        receipts = [await producer.publish("a", b"%05d" % number * 10) for number in range(RECENT + 2000)]
        lost = [receipts[number] for number in (1500, 1501, 1900)]
        waiters = [asyncio.create_task(is_told_lost(receipt)) for receipt in lost]
        await asyncio.sleep(0.01)
        for receipt in lost:
            rot(disk, receipt, producer)
        producer._opened.delivery.session.connect()  # type: ignore[union-attr]
        await asyncio.gather(*waiters)
        await nothing_is_left(producer)
        figures = producer.statistics()
        assert (figures.lost, figures.missing, figures.delivered) == (3, 3, len(receipts) - 3)
        await the_ring_goes_round(producer, "a")
        for receipt in lost:
            await is_told_lost(receipt)
        await receipts[1499].delivered(timeout_ms=20_000)


@pytest.mark.parametrize("unreadable", [False, True])
async def test_what_rots_while_it_is_behind_leaves_the_ring_and_who_waits_for_it_is_told(
    kafka_stand_in: Kafka, monkeypatch: pytest.MonkeyPatch, *, unreadable: bool
) -> None:
    monkeypatch.setattr(window_module, "READ_ATTEMPTS", 2)
    monkeypatch.setattr(window_module, "OUTAGE_ATTEMPTS", 3)
    disk = MemoryDisk()
    async with producer_of(disk) as producer:
        receipts = [await producer.publish("late", b"%03d" % number * 100) for number in range(300)]
        await until(lambda: dispatcher_of(producer).reader.at > producer.statistics().accepted)
        waiter = asyncio.create_task(is_told_lost(receipts[50]))
        await asyncio.sleep(0.01)
        if unreadable:
            disk.file("0/ring").fail_reads(4 * receipts[50]._place + 60, 1)
        else:
            rot(disk, receipts[50], producer)
            rot(disk, receipts[299], producer)
        kafka_stand_in.topics["late"] = {0}
        await waiter
        await nothing_is_left(producer)
        figures = producer.statistics()
        assert figures.lost == figures.missing == 300 - figures.delivered
        assert figures.lost > 2 if unreadable else figures.lost == 2
        await the_ring_goes_round(producer, "late")
        await is_told_lost(receipts[50])
        await receipts[20].delivered(timeout_ms=20_000)


async def test_what_is_in_flight_when_it_rots_is_delivered(kafka_stand_in: Kafka) -> None:
    disk = MemoryDisk()
    async with producer_of(disk) as producer:
        late = [await producer.publish("late", b"%03d" % number * 100) for number in range(10)]
        kafka_stand_in.gate.clear()
        sent = await producer.publish("a", b"-" * 300)
        late += [await producer.publish("late", b"%03d" % number * 100) for number in range(10)]
        await until(lambda: producer.statistics().in_flight == 1)
        await until(lambda: dispatcher_of(producer).reader.at & 0xFFFF_FFFF > 21)
        waiter = asyncio.create_task(sent.delivered(timeout_ms=20_000))
        rot(disk, sent, producer)
        rot(disk, late[15], producer)
        kafka_stand_in.topics["late"] = {0}
        await until(lambda: producer.statistics().lost == 1)
        all_adds_up(producer)
        assert producer.statistics().missing == 2
        assert not waiter.done()
        kafka_stand_in.gate.set()
        assert (await waiter).status == "delivered"
        await is_told_lost(late[15])
        await nothing_is_left(producer)
        assert (producer.statistics().delivered, producer.statistics().lost) == (20, 1)
        await the_ring_goes_round(producer, "a")


async def test_who_waits_for_what_rots_beside_a_record_in_flight_is_told_though_all_else_is_delivered_first(
    kafka_stand_in: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is free before it is counted once more."""
    disk = MemoryDisk()
    async with producer_of(disk) as producer:
        kafka_stand_in.gate.clear()
        sent = await producer.publish("a", b"-" * 300)
        late = [await producer.publish("late", b"%03d" % number * 100) for number in range(10)]
        await until(lambda: producer.statistics().in_flight == 1)
        await until(lambda: dispatcher_of(producer).reader.at & 0xFFFF_FFFF > 11)
        waiters = [asyncio.create_task(receipt.delivered(timeout_ms=20_000)) for receipt in (sent, late[5])]
        await asyncio.sleep(0.01)
        rot(disk, sent, producer)
        rot(disk, late[5], producer)
        monkeypatch.setattr(recounting_module, "PAUSE", 1.0)
        kafka_stand_in.topics["late"] = {0}
        await until(lambda: producer.statistics().lost == 1)
        slot = producer._opened.directory.ring.live[0]  # type: ignore[union-attr]
        assert not any(waiter.done() for waiter in waiters)
        kafka_stand_in.gate.set()
        await the_ring_goes_round(producer, "a")
        await until(lambda: slot.map is None)
        assert (await waiters[0]).status == "delivered"
        with pytest.raises(PermanentDeliveryError, match="before it was delivered"):
            await waiters[1]
        assert (producer.statistics().lost, producer.statistics().missing) == (1, 2)


@pytest.mark.parametrize("where", ["ring", "retry"])
async def test_what_rots_beside_a_stalled_lane_keeps_neither_moves_nor_rewritings_from_going_on(
    partitions_stall: Stalling, where: str
) -> None:
    kafka, disk = partitions_stall, MemoryDisk()
    async with compacting_producer(disk) as producer:
        await publish(producer, 100)
        await producer.flush(timeout_ms=30_000)  # what is in flight when its partition stalls would stay so
        kafka.stalled = {STUCK}
        directory = producer._opened.directory  # type: ignore[union-attr]
        while producer.statistics().slots_moved < (6 if where == "retry" else 1):
            await publish(producer, 500)
        ring = directory.retry if where == "retry" else directory.ring
        while (chosen := _behind(producer, ring)) is None:
            await publish(producer, 100)
        slot, place = chosen
        disk.file(f"0/{where}").damage(slot.file_offset + 4 * place + 60, b"rot")
        moved = producer.statistics().slots_moved
        while producer.statistics().slots_moved < moved + 20:
            await publish(producer, 500, every=100)
        if where == "ring":
            assert slot not in ring.live, "what damage left there was moved"
        kafka.stalled = set()
        await nothing_is_left(producer)
        figures = producer.statistics()
        assert (figures.lost, figures.missing) == (1, 1)
        assert figures.delivered == figures.accepted - 1
        assert producer.state == "connected"
        await until(lambda: slot not in ring.live)


async def test_who_asks_for_a_moved_record_that_rots_unseen_is_told_that_it_is_lost(
    partitions_stall: Stalling,
) -> None:
    """Its lane is stalled: nobody else would meet the damage."""
    kafka, disk = partitions_stall, MemoryDisk()
    async with compacting_producer(disk) as producer:
        await publish(producer, 100)
        await producer.flush(timeout_ms=30_000)
        kafka.stalled = {STUCK}
        retry, stuck = producer._opened.directory.retry, list[Receipt]()  # type: ignore[union-attr]
        while (chosen := _behind(producer, retry)) is None:
            stuck.append(producer.publish_nowait("t", b"v" * 400, partition=STUCK))
            await publish(producer, 50, every=100)
        slot, place = chosen
        position = position_at(slot, place)
        disk.file("0/retry").damage(slot.file_offset + 4 * place + 60, b"rot")
        receipt = next(one for one in stuck if fmt.position(one.epoch, one.sequence) == position)
        others = [one.delivered(timeout_ms=20_000) for one in stuck if one is not receipt]
        waiters = [asyncio.create_task(other) for other in others]
        await is_told_lost(receipt)
        assert producer.statistics().lost == 1
        kafka.stalled = set()
        reports = await asyncio.gather(*waiters)
        await nothing_is_left(producer)
        await is_told_lost(receipt)
        assert {report.status for report in reports} == {"delivered"}


async def test_copies_of_what_is_in_flight_that_rot_are_delivered_and_told_of_by_what_was_sent(
    partitions_stall: Stalling,
) -> None:
    """A copy's length and its place of origin are as rotten as the rest of it: the batch, in memory, knows better."""
    kafka, disk = partitions_stall, MemoryDisk()
    heard: list[DeliveryReport] = []
    async with compacting_producer(disk, on_delivery=heard.append) as producer:
        await publish(producer, 100)
        await producer.flush(timeout_ms=30_000)
        kafka.stalled = {STUCK}
        stuck = [producer.publish_nowait("t", b"v" * 400, partition=STUCK) for _ in range(8)]
        waiters = [asyncio.create_task(receipt.delivered(timeout_ms=30_000)) for receipt in stuck]
        retry = producer._opened.directory.retry  # type: ignore[union-attr]
        lane = await _in_flight(producer)
        while lane.in_flight is None or lane.in_flight.frames[0][0].ring is not retry:
            await publish(producer, 500, every=100)
        (length, origin, *_), first = list(frames_of(lane.in_flight)), next(positions_of(lane.in_flight))
        assert first == fmt.position(stuck[0].epoch, stuck[0].sequence)
        for (slot, place), word, rotten in ((length, -fmt.SETTLE_WORD, b"\3\0\0\0"), (origin, 1, bytes(16))):
            disk.file("0/retry").damage(slot.file_offset + 4 * (place + word), rotten)
        assert position_at(*length) == position_at(*origin) == 0
        kafka.stalled = set()
        reports = await asyncio.gather(*waiters)
        assert [report.record_id for report in reports] == [receipt.record_id for receipt in stuck]
        assert [report.partition for report in reports] == [STUCK] * 8
        await nothing_is_left(producer)
        figures = producer.statistics()
        assert (figures.lost, figures.delivered) == (0, figures.accepted)
        assert len({report.record_id for report in heard}) == figures.accepted
        assert producer.state == "connected"


async def _in_flight(producer: RecoverableProducer) -> Lane:
    """The lane that is stuck, once it is."""
    router = producer._opened.delivery.router  # type: ignore[union-attr]
    lane = next(lane for lane in router.lanes() if lane.partition == STUCK)
    await until(lambda: lane.in_flight is not None)
    return lane


def _behind(producer: RecoverableProducer, ring: Ring) -> tuple[Slot, int] | None:
    """A frame that waits, was read, and is in nobody's hands, nor on its way to the retry ring."""
    for slot in ring.live:
        if slot.readers or slot.copies or not producer._opened.delivery.moves.may_recount(slot):  # type: ignore[union-attr]
            continue  # a move that has read the frame already copies it whole
        held = producer._opened.delivery.holders.places_in(slot)  # type: ignore[union-attr]
        first = fmt.FIRST_FRAME // fmt.WORD + fmt.SETTLE_WORD
        if slot.words is None or not slot.sealed:
            continue
        for place, word in enumerate(slot.words[first:], first):
            if word == slot.open_word and place not in held:
                return slot, place
    return None
