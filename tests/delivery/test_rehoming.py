"""A topic is made anew with fewer partitions between two processes, or while one lives; a stand-in plays Kafka."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import PolicyViolationError

from aiorecover import RecoverableProducer
from aiorecover.adoption import PROLONGED, TURN_MAX
from aiorecover.delivery import batches as batches_module
from aiorecover.delivery import gone as gone_module
from aiorecover.delivery import rehoming as rehoming_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.delivery import Delivery
from aiorecover.delivery.frames import record_at
from aiorecover.delivery.gone import GONE_AFTER
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.partitioner import partition_for
from aiorecover.errors import PermanentDeliveryError, WalCorruptError, WalIOError
from aiorecover.record import VALUE
from aiorecover.testing import MemoryDisk
from aiorecover.wal.slot import Slot
from tests.delivery.refusing import Broker
from tests.support import admin
from tests.support.broker import Cluster, KafkaCluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio

BEFORE = 4  # partitions
KEYS = [b"k%d" % number for number in range(20)]  # some to each partition


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(t=BEFORE, other=1)
    monkeypatch.setattr(sessions_module, "Session", made.session())
    monkeypatch.setattr(gone_module, "GONE_AFTER", 0.05)
    return made


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given = {"linger_ms": 1, "slot_bytes": 1 << 16, "retry_backoff_ms": 1, "checkpoint_interval_ms": 100, **options}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


@asynccontextmanager
async def running(disk: MemoryDisk, **options: Any) -> AsyncIterator[RecoverableProducer]:
    """A producer that may end with records left."""
    producer = producer_on(disk, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop(timeout_ms=0)


async def publish(producer: RecoverableProducer, name: bytes, keys: Sequence[bytes | None] = KEYS) -> None:
    for key in keys:
        await producer.publish("t", b"%b %b" % (name, key or b"-"), key=key)


async def dying(
    broker: Broker, disk: MemoryDisk, *, named: int | None = None, behind: Sequence[bytes] = (b"b",)
) -> MemoryDisk:
    """What a process leaves that has a batch in flight to each partition, and records behind it."""
    broker.answers.clear()
    async with running(disk) as producer:
        await publish(producer, b"a")
        await producer.publish("t", b"a -")
        if named is not None:
            await producer.publish("t", b"a named", partition=named)
        await until(lambda: broker.held == BEFORE)
        for name in behind:
            await publish(producer, name)
        left = disk.after_process_death()
    broker.held = 0
    broker.answers.set()
    return left


def in_kafka(broker: Broker) -> list[bytes]:
    return [value for (topic, _), log in broker.log.items() if topic == "t" for value in log]


def holds_in_order(broker: Broker, partitions: int, *names: bytes) -> bool:
    """Each key's records are in its partition of today, once, in the order of ``names``."""
    for key in KEYS:
        log = broker.values("t", partition_for(key, partitions))
        found = [value for value in in_kafka(broker) if value.split()[1] == key]
        expected = [b"%b %b" % (name, key) for name in names]
        if found != expected or [value for value in log if value.split()[1] == key] != expected:
            return False
    return True


# -- between two processes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 2])  # of both a key that keeps its partition is in flight to it
async def test_what_was_in_flight_to_partitions_that_are_gone_is_routed_anew_before_all_else(
    broker: Broker, partitions: int
) -> None:
    left = await dying(broker, MemoryDisk())
    broker.make_anew("t", partitions)
    async with producer_on(left) as producer:
        await publish(producer, b"c")
        await producer.flush(timeout_ms=20_000)
        now = producer.statistics()
    assert holds_in_order(broker, partitions, b"a", b"b", b"c")
    assert in_kafka(broker).count(b"a -") == 1
    assert (now.pending, now.delivered) == (0, 3 * len(KEYS) + 1)
    assert now.identities_renewed >= BEFORE - partitions
    assert now.lanes_suspect == now.lanes_stalled == 0


async def test_where_nothing_else_waits_it_is_routed_anew_all_the_same_and_a_flush_waits_for_it(broker: Broker) -> None:
    disk = MemoryDisk()
    broker.answers.clear()
    async with running(disk) as producer:
        await publish(producer, b"a")
        await until(lambda: producer.statistics().in_flight == len(KEYS))
        left = disk.after_process_death()
    broker.answers.set()
    broker.make_anew("t", 1)
    async with producer_on(left) as producer:
        await producer.flush(timeout_ms=20_000)
        assert holds_in_order(broker, 1, b"a")


async def test_one_answer_with_fewer_partitions_decides_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gone_module, "GONE_AFTER", 3600.0)
    left = await dying(broker, MemoryDisk())
    broker.make_anew("t", 1)
    async with producer_on(left) as producer:
        await until(lambda: "asking for" in caplog.text)
        await asyncio.sleep(0.2)
        assert producer._get_opened().checking, "who adopts a directory waits until it is decided"
        assert all(value.startswith(b"a") for value in in_kafka(broker)), "nothing overtakes what was in flight"
        broker.topics["t"] = BEFORE
        await producer.flush(timeout_ms=20_000)
    assert holds_in_order(broker, BEFORE, b"a", b"b")
    assert "made anew" not in caplog.text


async def test_a_record_that_names_its_partition_waits_for_it_and_one_line_says_what_to_do(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    left = await dying(broker, MemoryDisk(), named=3)
    broker.make_anew("t", 2)
    with caplog.at_level(logging.ERROR, "aiorecover.delivery"):
        async with running(left) as producer:
            await until(lambda: holds_in_order(broker, 2, b"a", b"b"))
            await producer.publish("t", b"b named", partition=3)
            await until(lambda: producer.statistics().pending == 2)
            assert b"a named" not in in_kafka(broker)
            broker.topics["t"] = 4
            await producer.flush(timeout_ms=20_000)
    assert broker.values("t", 3) == [b"a named", b"b named"]
    (line,) = [line.getMessage() for line in caplog.records if "made anew" in line.getMessage()]
    assert "gone=2,3 partitions=2" in line


async def test_a_record_that_names_a_partition_that_is_gone_becomes_a_dead_letter_at_its_age(broker: Broker) -> None:
    left = await dying(broker, MemoryDisk(), named=3)
    broker.make_anew("t", 2)
    async with producer_on(left, delivery_timeout_ms=2000, request_timeout_ms=1000) as producer:
        await producer.flush(timeout_ms=20_000)
        letters = [letter async for letter in producer.dead_letters.list()]
    assert (b"a named", "DeliveryTimeout", 3) in [(one.value, one.error, one.partition) for one in letters]


@pytest.mark.parametrize("names", [[b"a"], [b"a", b"b"]], ids=["nothing waits behind it", "something does"])
async def test_a_lane_that_was_suspect_is_none_any_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, names: list[bytes]
) -> None:
    """A session apart asks for metadata of its own."""
    monkeypatch.setattr(gone_module, "GONE_AFTER", 3.0)
    left = await dying(broker, MemoryDisk(), behind=names[1:])
    broker.make_anew("t", 2)
    async with producer_on(left) as producer:
        while producer.statistics().lanes_suspect < 2:
            await producer.publish("other", b"gets through")
            await asyncio.sleep(0.02)
        await until(lambda: holds_in_order(broker, 2, *names))
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().lanes_suspect == 0


async def test_it_is_decided_some_seconds_before_who_adopts_a_directory_lets_go_of_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer may take half a second, and what was in flight there has to be sent."""
    monkeypatch.setattr(gone_module, "GONE_AFTER", GONE_AFTER)
    left = await dying(broker, MemoryDisk(), behind=[])
    broker.make_anew("t", 2)
    began = now = time.monotonic()

    async def passes(_self: Delivery, pause: float) -> None:
        nonlocal now
        now += pause + 0.5
        await asyncio.sleep(0)

    monkeypatch.setattr(Delivery, "_until_more_falls_behind", passes)
    async with producer_on(left) as producer:
        producer._get_opened().delivery.router._clock = lambda: now
        await producer.flush(timeout_ms=20_000)
    assert holds_in_order(broker, 2, b"a")
    assert GONE_AFTER <= now - began < TURN_MAX + PROLONGED


async def test_a_process_that_dies_at_any_step_of_it_leaves_everything_once_and_in_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await dying(broker, MemoryDisk())
    broker.make_anew("t", 2)
    images: list[tuple[str, MemoryDisk, list[bytes]]] = []
    forget, enter = Journal.forget, Journal.enter
    disk = left

    def watched_forget(journal: Journal, lane: Any) -> None:
        images.append(("before", disk.after_process_death(), in_kafka(broker)))
        forget(journal, lane)
        images.append(("cleared", disk.after_process_death(), in_kafka(broker)))

    async def watched_enter(journal: Journal, *batch: Any) -> bool:
        entered = await enter(journal, *batch)
        images.append(("entered", disk.after_process_death(), in_kafka(broker)))
        return entered

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "forget", watched_forget)
        patch.setattr(Journal, "enter", watched_enter)
        async with producer_on(left) as producer:
            await producer.flush(timeout_ms=20_000)
    assert {name for name, _, _ in images} == {"before", "cleared", "entered"}
    for name, image, there in images:
        broker.log.clear()
        broker.forget()
        async with producer_on(image) as producer:
            await producer.flush(timeout_ms=20_000)
        found = there + in_kafka(broker)
        for key in KEYS:
            mine = [value for value in found if value.split()[1] == key]
            assert set(mine) == {b"a " + key, b"b " + key}, name
            assert mine == sorted(mine), "the stand-in forgets what it knew of identities, so some come twice"


async def test_while_the_entry_cannot_be_cleared_nothing_is_routed_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await dying(broker, MemoryDisk())
    broker.make_anew("t", 1)
    forget, tries = Journal.forget, []

    def failing(journal: Journal, lane: Any) -> None:
        tries.append(in_kafka(broker))
        if len(tries) < 3:
            message = "cannot use the file"
            raise WalIOError(5, message)
        forget(journal, lane)

    monkeypatch.setattr(Journal, "forget", failing)
    async with producer_on(left) as producer:
        await producer.flush(timeout_ms=20_000)
    moved = [b"a " + key for key in KEYS if partition_for(key, BEFORE) == 1]
    assert all(value not in tries[2] for value in moved)
    assert holds_in_order(broker, 1, b"a", b"b")


async def test_what_cannot_be_read_again_halts_its_lane_alone(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    left = await dying(broker, MemoryDisk(), behind=[])
    broker.make_anew("t", 1)
    rotten = next(b"a " + key for key in KEYS if partition_for(key, BEFORE) == 3)

    def reading(slot: Slot, place: int) -> Any:
        record = record_at(slot, place)
        if record[VALUE] == rotten:
            message = "a record that was read before does not hold any more"
            raise WalCorruptError(message)
        return record

    monkeypatch.setattr(rehoming_module, "record_at", reading)
    async with running(left) as producer:
        await producer.publish("t", b"b -", key=b"another")
        await until(lambda: b"b -" in in_kafka(broker))
        with pytest.raises(PermanentDeliveryError, match="stop and start anew"):
            await producer.flush(timeout_ms=20_000)
        gone = [key for key in KEYS if partition_for(key, BEFORE) == 3]
        assert producer.statistics().pending == len(gone)
        again = left.after_process_death()
    monkeypatch.setattr(rehoming_module, "record_at", record_at)
    async with producer_on(again) as producer:
        await producer.flush(timeout_ms=20_000)
    assert holds_in_order(broker, 1, b"a")


def key_of(topic: str, partition: int, partitions: int) -> bytes:
    keys = (b"%b%d" % (topic.encode(), number) for number in range(100))
    return next(key for key in keys if partition_for(key, partitions) == partition)


async def two_topics(broker: Broker, disk: MemoryDisk) -> MemoryDisk:
    """What a process leaves that has a record in flight to t/0, to u/1 and u/2, and to t/1, in this order."""
    broker.topics.update(t=2, u=3)
    broker.answers.clear()

    def holds(number: int) -> bool:
        return broker.held == number

    async with running(disk) as producer:
        for number, (topic, partition) in enumerate([("t", 0), ("u", 1), ("u", 2), ("t", 1)], start=1):
            key = key_of(topic, partition, broker.topics[topic])
            await producer.publish(topic, b"%b %d" % (topic.encode(), partition), key=key)
            await until(partial(holds, number))
        left = disk.after_process_death()
    broker.held = 0
    broker.answers.set()
    for topic in ("t", "u"):
        broker.make_anew(topic, 1)
    return left


async def test_where_there_is_room_for_one_of_them_at_a_time_none_waits_for_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await two_topics(broker, MemoryDisk())
    monkeypatch.setattr(batches_module, "BATCH_BYTES", 1)
    async with producer_on(left) as producer:
        await producer.flush(timeout_ms=8000)
    assert broker.values("t") == [b"t 0", b"t 1"]
    assert sorted(broker.values("u")) == [b"u 1", b"u 2"]


async def test_a_partitioner_that_fails_for_one_topic_keeps_no_other_closed(broker: Broker) -> None:
    left = await two_topics(broker, MemoryDisk())
    failing = True

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        if failing and key == key_of("t", 1, 2):
            raise RuntimeError
        return 0

    async with producer_on(left, partitioner=partitioner) as producer:
        await until(lambda: b"u 2" in broker.values("u"))
        assert broker.values("t") == [b"t 0"]
        failing = False
        await producer.flush(timeout_ms=8000)
    assert broker.values("t") == [b"t 0", b"t 1"]


async def test_what_goes_to_a_halted_lane_stays_in_the_ring_and_takes_no_room(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gone_module, "GONE_AFTER", 1.0)
    left = await dying(broker, MemoryDisk(), behind=[])
    broker.make_anew("t", 1)
    refused = next(b"a " + key for key in KEYS if partition_for(key, BEFORE) == 0)
    broker.refuses = lambda records: PolicyViolationError() if refused in [one.value for one in records] else None
    async with running(left, on_permanent_error="halt") as producer:
        delivery = producer._get_opened().delivery
        await until(lambda: producer.statistics().lanes_halted == 1)
        assert delivery.router.undecided
        await until(lambda: all(lane.halted is not None or lane.holds_nothing for lane in delivery.router.lanes()))
        assert delivery.dispatcher.batches.closed_bytes == 0
        again = left.after_process_death()
    broker.refuses = lambda _: None
    async with producer_on(again) as producer:
        await producer.flush(timeout_ms=20_000)
    assert set(in_kafka(broker)) == {b"a " + key for key in KEYS} | {b"a -"}


# -- while the process lives -----------------------------------------------------------------------------------------


async def test_while_a_process_lives_they_wait_a_line_says_what_to_do_and_the_next_start_routes_them(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    with caplog.at_level(logging.ERROR, "aiorecover.delivery"):
        async with running(disk) as producer:
            await publish(producer, b"a")
            await producer.flush(timeout_ms=20_000)
            broker.make_anew("t", 1)
            await publish(producer, b"b")
            await until(lambda: any("made anew" in line.getMessage() for line in caplog.records))
            await publish(producer, b"c")
            waiting = [key for key in KEYS if partition_for(key, BEFORE) != 0]
            await until(lambda: producer.statistics().pending == 2 * len(waiting))
            assert producer.statistics().lanes_suspect + producer.statistics().in_flight > 0
    lines = [line.getMessage() for line in caplog.records if "made anew" in line.getMessage()]
    assert all(
        "stop and start anew, and they are routed anew" in line and "delivery_timeout_ms" in line for line in lines
    )
    assert "topic=t gone=" in lines[0]
    async with producer_on(disk.after_process_death()) as producer:
        await producer.flush(timeout_ms=20_000)
    assert holds_in_order(broker, 1, b"b", b"c")


# -- a real broker ---------------------------------------------------------------------------------------------------


@pytest.fixture
def only_made() -> Iterator[Cluster]:
    """Asking for a topic makes none: it would have the partitions of before."""
    with KafkaCluster(1, {"auto.create.topics.enable": "false"}) as cluster:
        yield cluster


@pytest.mark.timeout(120)
async def test_a_topic_that_is_deleted_and_made_anew_with_one_partition_gets_everything_once_and_each_key_in_order(
    only_made: Cluster,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(gone_module, "GONE_AFTER", 1.0)
    name, servers = topic(only_made, partitions=BEFORE), only_made.bootstrap_servers

    async def publish_to(producer: RecoverableProducer, word: bytes) -> None:
        for key in KEYS:
            await producer.publish(name, word + b" " + key, key=key)

    producer = RecoverableProducer(tmp_path, bootstrap_servers=servers)
    await producer.start()
    try:
        await publish_to(producer, b"a")
        await producer.flush(timeout_ms=30_000)
        await admin.delete_topic(servers, name)
        await publish_to(producer, b"b")
        await until(lambda: "trying on" in caplog.text, 30)
        await publish_to(producer, b"c")
        await admin.until(lambda: made_anew(servers, name), timeout_s=30, what="the topic is deleted")
        await until(lambda: "made anew with fewer partitions: their records wait" in caplog.text, 40)
    finally:
        assert await producer.stop(timeout_ms=0) > 0
    caplog.clear()
    async with RecoverableProducer(tmp_path, bootstrap_servers=servers) as following:
        await publish_to(following, b"d")
        await following.flush(timeout_ms=40_000)
        assert following.statistics().pending == 0
    assert "what was in flight to them is routed anew" in caplog.text
    found = [record.value or b"" for record in await read_topic(servers, name)]
    for key in KEYS:
        mine = [value.split()[0] for value in found if value.split()[1] == key]
        assert mine == [b"b", b"c", b"d"]


async def made_anew(servers: str, name: str) -> bool:
    await admin.create_topic(servers, name, 1, 1, {})
    return True
