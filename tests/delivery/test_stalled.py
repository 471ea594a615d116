"""Lanes that do not get through are passed over and gone back for: order kept, nothing lost, nothing twice."""

import asyncio
import itertools
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import NotEnoughReplicasError
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover import RecoverableProducer
from aiorecover.delivery import batches as batches_module
from aiorecover.delivery import dispatcher as dispatcher_module
from aiorecover.delivery import drain as drain_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery import stalled as stalled_module
from aiorecover.delivery import stalls as stalls_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dispatcher import Dispatcher
from aiorecover.delivery.drain import GoingBack
from aiorecover.delivery.frames import frames_of, position_at
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.passed_over import PassedOver
from aiorecover.errors import WalCorruptError
from tests.delivery.stand_in import StandIn
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

PARTITIONS = 12
VALUE = b"v" * 1000
WINDOW = 60  # records of a kilobyte in what a lane may have: three batches of 16 KiB


class Kafka:
    """Partitions, of which some take nothing; where each record stands in the ring, in the order of its arrival."""

    def __init__(self) -> None:
        self.topics: dict[str, set[int]] = {"t": set(range(PARTITIONS))}
        self.stalled: set[int] = set()
        self.slow: dict[int, float] = {}
        self.lanes: dict[tuple[str, int], list[int]] = defaultdict(list)

    @property
    def taken(self) -> int:
        return sum(len(lane) for lane in self.lanes.values())

    def assert_in_order_and_once(self, accepted: int) -> None:
        for name, lane in self.lanes.items():
            assert lane == sorted(lane), name
        every = [place for lane in self.lanes.values() for place in lane]
        assert len(set(every)) == len(every) == accepted


@pytest.fixture
def kafka_stand_in(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    kafka = Kafka()

    class Noting(StandIn):
        async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
            await asyncio.sleep(kafka.slow.get(partition, 0.0005))
            if partition in kafka.stalled:
                raise NotEnoughReplicasError
            lane = kafka.lanes[topic, partition]
            lane += [position_at(slot, place) for slot, place in frames_of(batch)]
            return RecordMetadata(topic, partition, TopicPartition(topic, partition), len(lane) - batch.count, 0, 0, 0)

        def partitions(self, topic: str) -> frozenset[int]:
            return frozenset(kafka.topics.get(topic, ()))

    monkeypatch.setattr(sessions_module, "Session", Noting)
    for name, value in (("STALLED_AFTER", 0.1), ("OTHERS_AFTER", 0.05), ("FIRST_REST", 0.05), ("FIRST_TRIAL", 0.2)):
        monkeypatch.setattr(stalls_module, name, value)
    monkeypatch.setattr(dispatcher_module, "STALL_LOOK", 0.05)
    monkeypatch.setattr(stalled_module, "GATHER", 0.02)
    return kafka


def producer_of(path: Path, **options: Any) -> RecoverableProducer:
    sizes = {"slot_bytes": 1 << 18, "max_batch_size": 1 << 14, "max_request_size": 1 << 16}
    return RecoverableProducer(
        path,
        bootstrap_servers="nowhere:1",
        wal_min_free_bytes=0,
        stop_timeout_ms=500,
        retry_backoff_ms=5,
        retry_backoff_max_ms=20,
        **{**sizes, **options},
    )


def dispatcher_of(producer: RecoverableProducer) -> Dispatcher:
    assert producer._opened is not None
    return producer._opened.delivery.dispatcher


def lane_of(producer: RecoverableProducer, partition: int) -> Lane:
    return dispatcher_of(producer).router.topics["t"].lanes[partition]


async def publish_to_each(producer: RecoverableProducer, rounds: int, partitions: Any = range(PARTITIONS)) -> int:
    for _ in range(rounds):
        for partition in partitions:
            await producer.publish("t", VALUE, partition=partition)
    return rounds * len(partitions)


async def stall(producer: RecoverableProducer, kafka: Kafka, *partitions: int, rounds: int = 200) -> int:
    """Fill what these lanes may have, and far more; return when they are passed over, and all others are through."""
    kafka.stalled |= set(partitions)
    count = await publish_to_each(producer, rounds)
    await until(lambda: producer.statistics().lanes_stalled == len(kafka.stalled))
    others = [number for number in range(PARTITIONS) if number not in kafka.stalled]
    await until(
        lambda: all(not lane_of(producer, number).added > lane_of(producer, number).settled for number in others)
    )
    return count


async def test_the_others_go_on_while_a_lane_is_stalled_and_it_is_caught_up_once_it_is_well(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    async with producer_of(tmp_path) as producer:
        count = await publish_to_each(producer, 5)
        await producer.flush(timeout_ms=20_000)
        count += await stall(producer, kafka_stand_in, 3)
        assert len(kafka_stand_in.lanes["t", 3]) == 5
        assert all(len(kafka_stand_in.lanes["t", other]) == 205 for other in range(PARTITIONS) if other != 3)
        assert lane_of(producer, 3).added - lane_of(producer, 3).settled <= WINDOW
        count += await publish_to_each(producer, 10)
        await (await producer.publish("t", VALUE, partition=4)).delivered(timeout_ms=20_000)
        count += 1
        kafka_stand_in.stalled.clear()
        await producer.flush(timeout_ms=20_000)
        figures = producer.statistics()
        assert (figures.lanes_stalled, figures.pending, figures.delivered) == (0, 0, count)
        assert not dispatcher_of(producer).has_gaps
    kafka_stand_in.assert_in_order_and_once(count)


async def test_keyed_records_wait_for_their_lane_and_for_no_other(kafka_stand_in: Kafka, tmp_path: Path) -> None:
    count = 0
    async with producer_of(tmp_path) as producer:
        kafka_stand_in.stalled = {1, 7}
        for number in range(4_000):
            await producer.publish("t", VALUE, key=b"%d" % (number % 300))
            count += 1
        await until(lambda: producer.statistics().lanes_stalled == 2)
        kafka_stand_in.stalled = {7}
        await until(lambda: producer.statistics().lanes_stalled == 1 and len(dispatcher_of(producer)._gaps) == 1)
        for number in range(4_000):
            await producer.publish("t", VALUE, key=b"%d" % (number % 300))
            count += 1
        kafka_stand_in.stalled = set()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(count)


async def test_a_lane_that_is_merely_slow_holds_up_the_dispatcher(kafka_stand_in: Kafka, tmp_path: Path) -> None:
    """What is passed over is read twice: somebody has to wait where Kafka takes less than is published."""
    kafka_stand_in.slow = {3: 0.3}
    async with producer_of(tmp_path) as producer:
        count = await publish_to_each(producer, 100)
        await producer.flush(timeout_ms=20_000)
        assert not dispatcher_of(producer).stalled._stalls._returned
    kafka_stand_in.assert_in_order_and_once(count)


async def test_where_nobody_gets_through_the_ring_is_the_queue(kafka_stand_in: Kafka, tmp_path: Path) -> None:
    async with producer_of(tmp_path) as producer:
        kafka_stand_in.stalled = set(range(PARTITIONS))
        count = await publish_to_each(producer, 200)
        await until(lambda: producer.statistics().lanes_stalled > 1)  # a second trial
        assert producer.statistics().lanes_stalled < PARTITIONS
        behind = dispatcher_of(producer).reader.at
        ring = producer._opened.directory.ring  # type: ignore[union-attr]
        assert behind < ring.last_position - 500
        kafka_stand_in.stalled.clear()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(count)


async def test_many_stalled_lanes_leave_the_others_room_in_memory(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five of them hold more than all lanes together may; each alone has room yet."""
    monkeypatch.setattr(batches_module, "BATCH_BYTES", 4 << 14)
    async with producer_of(tmp_path) as producer:
        count = await publish_to_each(producer, 1)
        await producer.flush(timeout_ms=20_000)
        count += await stall(producer, kafka_stand_in, 0, 2, 4, 6, 8)
        count += await publish_to_each(producer, 50)
        receipt = await producer.publish("t", VALUE, partition=1)
        await receipt.delivered(timeout_ms=20_000)
        held = sum(lane.closed_bytes for lane in dispatcher_of(producer).router.lanes())
        assert dispatcher_of(producer).batches.closed_bytes == held
        kafka_stand_in.stalled.clear()
        await producer.flush(timeout_ms=20_000)
        assert (dispatcher_of(producer).batches.closed_bytes, dispatcher_of(producer).stalled.bytes) == (0, 0)
    kafka_stand_in.assert_in_order_and_once(count + 1)


async def test_a_long_way_back_does_not_keep_a_short_one_waiting(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_module, "STEP", 16)
    async with producer_of(tmp_path) as producer:
        count = await stall(producer, kafka_stand_in, 3, rounds=400)
        count += await stall(producer, kafka_stand_in, 9, rounds=100)
        kafka_stand_in.slow[3] = 0.05  # seconds for 16 records: a long way
        kafka_stand_in.stalled.remove(3)
        await until(lambda: bool(dispatcher_of(producer)._drain))
        kafka_stand_in.stalled.remove(9)
        await until(lambda: len(kafka_stand_in.lanes["t", 9]) == 500)
        assert len(kafka_stand_in.lanes["t", 3]) < 500
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(count)


async def test_a_lane_that_stalls_again_on_the_way_back_keeps_no_other_waiting(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    async with producer_of(tmp_path) as producer:
        count = await stall(producer, kafka_stand_in, 3, 9, rounds=300)
        before = len(kafka_stand_in.lanes["t", 3])
        kafka_stand_in.stalled = set()
        await until(lambda: len(kafka_stand_in.lanes["t", 3]) > before)
        kafka_stand_in.stalled = {3}
        await until(lambda: len(kafka_stand_in.lanes["t", 9]) == 300)
        assert len(kafka_stand_in.lanes["t", 3]) < 300
        await until(lambda: producer.statistics().lanes_stalled == 1)
        kafka_stand_in.stalled = set()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(count)


async def test_stalls_that_come_and_go_at_random_change_no_order_and_lose_nothing(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    """Keys and explicit partitions; a topic that grows meanwhile."""
    rng, count = random.Random(7), 0
    async with producer_of(tmp_path) as producer:
        for turn in range(24):
            kafka_stand_in.stalled = set(rng.sample(range(PARTITIONS), rng.choice((0, 1, 1, 3, PARTITIONS))))
            if turn == 12:
                kafka_stand_in.topics["t"] = set(range(PARTITIONS + 4))
                producer._opened.delivery._on_metadata()  # type: ignore[union-attr]
            for _ in range(rng.randrange(2_000)):
                key, partition = rng.choice(((b"%d" % rng.randrange(300), None), (None, rng.randrange(PARTITIONS))))
                await producer.publish("t", VALUE[: rng.randrange(1000)], key=key, partition=partition)
                count += 1
            await asyncio.sleep(rng.choice((0.0, 0.02, 0.2, 0.4)))
        kafka_stand_in.stalled = set()
        await producer.flush(timeout_ms=30_000)
        figures = producer.statistics()
        assert (figures.pending, figures.delivered, figures.lanes_stalled) == (0, count, 0)
        assert dispatcher_of(producer).batches.closed_bytes == dispatcher_of(producer).stalled.bytes == 0
    kafka_stand_in.assert_in_order_and_once(count)


async def test_what_waits_for_a_stalled_lane_is_delivered_by_the_next_process_in_order(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    async with producer_of(tmp_path) as producer:
        count = await stall(producer, kafka_stand_in, 3)
        left = await producer.stop()
        assert left == 200
    kafka_stand_in.stalled.clear()
    async with producer_of(tmp_path) as producer:
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(count)


async def test_what_was_in_flight_to_dead_partitions_does_not_hold_up_what_was_to_others_though_nobody_publishes(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is built again in its order, as far as there is room: behind the dead ones the others would wait for ever."""
    kafka_stand_in.stalled = set(range(PARTITIONS))
    async with producer_of(tmp_path) as producer:
        await publish_to_each(producer, 10)
        lanes = dispatcher_of(producer).router.lanes
        await until(lambda: sum(lane.in_flight is not None for lane in lanes()) == PARTITIONS)
    monkeypatch.setattr(batches_module, "BATCH_BYTES", 1 << 14)
    async with producer_of(tmp_path) as producer:
        await until(lambda: dispatcher_of(producer).batches.full)
        assert producer._opened is not None
        waiting = {lane.partition for lane, _ in producer._opened.delivery._held}
        assert 1 < len(waiting) < PARTITIONS - 1
        kafka_stand_in.stalled -= waiting
        await until(lambda: all(kafka_stand_in.lanes["t", number] for number in waiting))
        assert not any(kafka_stand_in.lanes["t", number] for number in kafka_stand_in.stalled)
        kafka_stand_in.stalled.clear()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(10 * PARTITIONS)


async def test_records_without_a_key_go_to_partitions_that_are_well(kafka_stand_in: Kafka, tmp_path: Path) -> None:
    async with producer_of(tmp_path) as producer:
        await publish_to_each(producer, 1)
        await producer.flush(timeout_ms=20_000)
        kafka_stand_in.stalled = {2, 5}
        for _ in range(3_000):
            await producer.publish("t", VALUE)
        await until(lambda: all(lane_of(producer, number).failing for number in (2, 5)))
        stuck = [lane_of(producer, number).added for number in (2, 5)]
        for _ in range(3_000):
            await producer.publish("t", VALUE)
        await until(lambda: kafka_stand_in.taken == PARTITIONS + 6_000 - sum(stuck) + 2)
        assert stuck == [lane_of(producer, number).added for number in (2, 5)]
        assert not dispatcher_of(producer).has_gaps
        kafka_stand_in.stalled.clear()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(PARTITIONS + 6_000)


async def test_records_without_a_key_wait_where_no_partition_of_their_topic_takes_any(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    kafka_stand_in.topics["u"] = {50, 51}
    kafka_stand_in.stalled = {50, 51}
    async with producer_of(tmp_path) as producer:
        for _ in range(500):
            await producer.publish("u", VALUE)
            other = await producer.publish("t", VALUE, partition=1)
        await other.delivered(timeout_ms=20_000)
        assert len(kafka_stand_in.lanes["t", 1]) == 500
        kafka_stand_in.stalled.clear()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(1_000)


async def test_where_a_partitioner_of_the_user_s_chooses_its_topic_waits_and_no_other(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    kafka_stand_in.topics["u"] = {50, 51}
    kafka_stand_in.stalled = {50}

    def partitioner(key: bytes | None, every: list[int], _: list[int]) -> int:
        return every[len(key or b"") % len(every)]

    async with producer_of(tmp_path, partitioner=partitioner) as producer:
        for number in range(500):
            await producer.publish("u", VALUE, key=b"k" * (number % 2))
            other = await producer.publish("t", VALUE, key=b"k")
        await other.delivered(timeout_ms=20_000)
        assert len(kafka_stand_in.lanes["u", 51]) < 250
        kafka_stand_in.stalled.clear()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(1_000)


async def test_where_a_partitioner_takes_turns_nobody_goes_to_and_fro_between_lanes_that_do_not_get_through(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is passed over; the next answer would be the other, which has no room, and the one after it the first."""
    monkeypatch.setattr(stalls_module, "FIRST_TRIAL", 60.0)
    kafka_stand_in.topics["u"] = {50, 51}
    kafka_stand_in.stalled = {50, 51}
    turns, begun = itertools.count(), itertools.count()
    go_back = GoingBack.__init__
    only: list[int] = [51]

    def partitioner(key: bytes | None, every: list[int], _: list[int]) -> int:
        return only[0] if only else every[next(turns) % 2]

    def counted(self: GoingBack, *given: Any) -> None:
        next(begun)
        go_back(self, *given)

    monkeypatch.setattr(GoingBack, "__init__", counted)
    async with producer_of(tmp_path, partitioner=partitioner) as producer:
        await producer.publish("u", VALUE)
        await until(lambda: dispatcher_of(producer).stalled.expected)
        only[0] = 50
        for _ in range(300):
            await producer.publish("u", VALUE)
        await until(lambda: producer.statistics().lanes_stalled == 1 and dispatcher_of(producer).has_gaps)
        only.clear()
        for _ in range(50):
            dispatcher_of(producer).start_catching_up()
            await asyncio.sleep(0.002)
        assert next(turns) < 100
        assert next(begun) < 100
        kafka_stand_in.stalled = set()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(301)


# -- planted faults --------------------------------------------------------------------------------------------------


def the_first_reader_takes_what_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    covers = PassedOver.covers

    def broken(self: PassedOver, entry: Any, going: GoingBack | None) -> bool:
        return going is not None and covers(self, entry, going)

    monkeypatch.setattr(PassedOver, "covers", broken)
    monkeypatch.setattr(PassedOver, "older_are_behind", lambda *_: False)


def the_second_reader_skips_one(monkeypatch: pytest.MonkeyPatch) -> None:
    take = GoingBack.take

    def broken(self: GoingBack, run: Any, ends: Any) -> Any:
        taken = take(self, run, ends)
        return taken.behind(1) if taken is not None else None

    monkeypatch.setattr(GoingBack, "take", broken)


def the_gap_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module.Drain, "add", lambda *_: None)


FAULTS = [the_first_reader_takes_what_is_behind, the_second_reader_skips_one, the_gap_is_forgotten]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
async def test_a_planted_fault_is_seen(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Any
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, WalCorruptError)):  # the ring says so itself, of a frame that is settled twice
        await stall_and_catch_up(kafka_stand_in, tmp_path)


async def test_without_a_fault_the_same_is_green(kafka_stand_in: Kafka, tmp_path: Path) -> None:
    await stall_and_catch_up(kafka_stand_in, tmp_path)


async def stall_and_catch_up(kafka_stand_in: Kafka, tmp_path: Path) -> None:
    async with producer_of(tmp_path) as producer:
        kafka_stand_in.stalled = {3}
        count = await publish_to_each(producer, 200)
        await until(lambda: producer.statistics().lanes_stalled == 1)
        kafka_stand_in.stalled.clear()
        await until(lambda: producer.statistics().lanes_stalled == 0)
        count += await publish_to_each(producer, 200)
        await until(lambda: not dispatcher_of(producer).has_gaps and producer.statistics().in_flight == 0)
        await asyncio.sleep(0.2)
    kafka_stand_in.assert_in_order_and_once(count)


async def test_what_failed_with_a_session_that_was_lost_makes_no_lane_stalled(
    kafka_stand_in: Kafka, tmp_path: Path
) -> None:
    """All of them would be passed over for nothing when the brokers are back, and the first one gets through."""
    async with producer_of(tmp_path) as producer:
        count = await publish_to_each(producer, 1)
        await producer.flush(timeout_ms=20_000)
        session: Any = producer._opened.delivery.session  # type: ignore[union-attr]
        session.state = "connecting"
        kafka_stand_in.stalled = set(range(PARTITIONS))
        count += await publish_to_each(producer, 100)
        await asyncio.sleep(0.5)
        assert producer.statistics().lanes_stalled == 0
        session.connect()
        kafka_stand_in.stalled = set()
        await producer.flush(timeout_ms=20_000)
        assert not dispatcher_of(producer).stalled._stalls._returned
    kafka_stand_in.assert_in_order_and_once(count)


async def test_a_lane_that_has_failed_for_long_is_passed_over_as_soon_as_it_has_no_room(
    kafka_stand_in: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first one in the life of a session holds up all others for a second more."""
    monkeypatch.setattr(stalls_module, "STALLED_AFTER", 1.0)
    clock = asyncio.get_running_loop().time
    async with producer_of(tmp_path) as producer:
        count = await publish_to_each(producer, 5)
        await producer.flush(timeout_ms=20_000)
        kafka_stand_in.stalled = {3}
        began = clock()
        while clock() - began < 1.2:
            count += await publish_to_each(producer, 1)
            await asyncio.sleep(0.05)
        assert producer.statistics().lanes_stalled == 0
        count += await publish_to_each(producer, WINDOW)
        await (await producer.publish("t", VALUE, partition=4)).delivered(timeout_ms=900)
        assert producer.statistics().lanes_stalled == 1
        kafka_stand_in.stalled.clear()
        await producer.flush(timeout_ms=20_000)
    kafka_stand_in.assert_in_order_and_once(count + 1)
