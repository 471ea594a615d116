"""What an opening makes of the position that it finds, and of what the process before it left."""

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka.errors import LeaderNotAvailableError

from aiorecover import ConfigError, DeliveryReport, RecoverableProducer
from aiorecover.delivery import position_in_kafka as position_module
from aiorecover.delivery import telling as telling_module
from aiorecover.delivery import transactions as module
from aiorecover.delivery.committed import Committed
from aiorecover.delivery.transaction import OFFSETS_TOPIC
from aiorecover.errors import DeliveryPendingError, WalIOError
from aiorecover.opened import Opened
from aiorecover.testing import MemoryDisk
from aiorecover.wal import format as fmt
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from tests.delivery.committing import Broker, delivery_of, directory_of, producer_on, serving, transactions_of
from tests.delivery.expiring import LIMIT as OLD
from tests.delivery.expiring import Clock, adds_up, letters_of
from tests.support.eventually import until

pytestmark = pytest.mark.timeout(60)

LIMIT = 20_000  # ms: what takes longer hangs
A_WHILE = 0.2  # seconds: something would have happened by then
PARTITIONS = 2
STEPS = {"read", "begin", "send", "sent", "add", "commit", "committed", "half of it is settled", "settled"}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    yield from serving(monkeypatch, PARTITIONS)


async def publish(producer: RecoverableProducer, *numbers: int) -> None:
    """Of one transaction: nothing is awaited in between, as `publish` would once a busy machine takes 1 ms for it."""
    for number in numbers:
        producer.publish_nowait("t", b"%d" % number, partition=number % PARTITIONS, context=number)


def in_kafka(broker: Broker) -> list[int]:
    return sorted(int(value) for partition in range(PARTITIONS) for value in broker.values("t", partition))


async def committed_and_not_settled(broker: Broker, count: int) -> MemoryDisk:
    """What a process leaves that dies right behind its commit."""
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("committed")
        await publish(producer, *range(count))
        flushing = asyncio.ensure_future(producer.flush(LIMIT))
        await until(lambda: broker.reached["committed"] == 2)
        left = disk.after_process_death()
        broker.let_go("committed")
        await flushing
    return left


# -- the first look ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_nothing_is_sent_before_the_position_was_read_and_bears_our_name(broker: Broker) -> None:
    broker.hold("committed")
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0, 1)
        await until(lambda: broker.reached["committed"] == 1)
        await asyncio.sleep(A_WHILE)
        assert broker.reached["send"] == 0
        assert [position.position for position in broker.commits] == [0]
        broker.let_go("committed")
        await producer.flush(LIMIT)
    assert in_kafka(broker) == [0, 1]


@pytest.mark.asyncio
@pytest.mark.parametrize("cluster_id", ["cluster", None])
async def test_that_the_position_was_read_is_durable_before_it_bears_our_name(
    broker: Broker, cluster_id: str | None
) -> None:
    broker.cluster_id = cluster_id
    known: list[Any] = []

    def look() -> None:
        known.append(directory_of(producer).checkpoint.destination.transactional)

    producer = producer_on(MemoryDisk())
    broker.hold("read")
    async with producer:
        broker.once("add", look)
        broker.let_go("read")
        await until(lambda: transactions_of(producer).begun)
    (remembered,) = known
    assert remembered is not None
    assert (remembered.line, remembered.read_in) == (((broker.position.owner, 0),), 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [WalIOError(5, "the disk is gone"), TimeoutError()], ids=["fails", "hangs"])
async def test_where_that_cannot_be_remembered_nothing_is_committed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failed: list[Exception] = []

    async def fails(self: Any) -> None:
        if len(failed) < 3:
            failed.append(error)
            raise error
        await remember(self)

    remember = Opened._remember
    monkeypatch.setattr(Opened, "_remember", fails)
    producer = producer_on(MemoryDisk())
    async with producer:
        await publish(producer, 0, 1)
        await until(lambda: len(failed) == 3)
        assert broker.commits == []
        await producer.flush(LIMIT)
    assert in_kafka(broker) == [0, 1]


@pytest.mark.asyncio
async def test_without_kafka_it_starts_and_takes_records_and_commits_them_once_it_comes(broker: Broker) -> None:
    broker.away = True
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, *range(10))
        await asyncio.sleep(0.05)
        broker.come()
        await producer.flush(LIMIT)
        adds_up(producer)
    assert in_kafka(broker) == list(range(10))


@pytest.mark.asyncio
async def test_where_nothing_waits_a_flush_and_the_stop_do_not_wait_for_kafka(broker: Broker) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await publish(producer, 0, 1)
        await producer.flush(LIMIT)
    broker.away = True
    async with producer_on(disk, stop_timeout_ms=LIMIT) as producer, asyncio.timeout(5):
        await producer.flush(LIMIT)


@pytest.mark.asyncio
async def test_where_something_waits_a_flush_waits_though_it_is_all_that_is_covered(broker: Broker) -> None:
    left = await committed_and_not_settled(broker, 4)
    broker.away = True
    async with producer_on(left) as producer:
        with pytest.raises(DeliveryPendingError):
            await producer.flush(300)
        broker.come()
        await producer.flush(LIMIT)
        adds_up(producer)


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["read", "add", "commit", "committed", "begin"])
async def test_a_first_look_that_is_cut_off_is_taken_once_more(
    broker: Broker, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    left = await committed_and_not_settled(broker, 4)
    for _ in range(3):
        broker.once(step, broker.lose)
    async with producer_on(left) as producer:
        await publish(producer, 4, 5)
        await producer.flush(LIMIT)
        adds_up(producer)
    assert in_kafka(broker) == list(range(6))
    assert "no position of this directory any more" not in caplog.text


@pytest.mark.asyncio
async def test_a_first_commit_that_fails_is_no_position_that_is_gone(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.once("commit", broker.lose)
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0)
        await producer.flush(LIMIT)
    assert broker.reached["read"] == 2
    assert "no position of this directory any more" not in caplog.text


@pytest.mark.asyncio
async def test_a_death_before_the_first_commit_leaves_no_position_that_is_gone(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.hold("commit")
    disk = MemoryDisk()
    async with producer_on(disk, stop_timeout_ms=0) as producer:
        await publish(producer, 0)
        await until(lambda: broker.reached["commit"] == 1)
        left = disk.after_process_death()
    broker.let_go("commit")
    async with producer_on(left) as producer:
        await producer.flush(LIMIT)
    assert broker.reached["read"] == 2
    assert "no position of this directory any more" not in caplog.text


@pytest.mark.asyncio
async def test_nothing_is_committed_in_a_session_that_has_not_read_the_position_itself(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two sessions of ours a copy may have had one, and committed."""
    left = await committed_and_not_settled(broker, 4)
    remember, reads = Opened._remember, broker.reached["read"]
    seen: list[int] = []

    async def lost_meanwhile(self: Opened) -> None:
        await remember(self)
        if broker.connections == 2:
            broker.lose()
            await until(lambda: broker.connections == 3 and broker.session.state == "connected")

    monkeypatch.setattr(Opened, "_remember", lost_meanwhile)
    broker.once("commit", lambda: seen.append(broker.reached["read"] - reads))
    async with producer_on(left) as producer:
        await producer.flush(LIMIT)
    assert seen == [2]


# -- a transaction that does not end ----------------------------------------------------------------------------------


def never_ends(broker: Broker) -> None:
    """That of the process before keeps the next one from connecting."""
    broker.session.unfinished_since = asyncio.get_running_loop().time() - 2 * module.UNFINISHED_LIMIT
    broker.session.start_refused = True


@pytest.mark.asyncio
async def test_where_a_transaction_does_not_end_it_goes_on_under_another_id_and_fences_the_one_that_it_left(
    broker: Broker,
) -> None:
    left = await committed_and_not_settled(broker, 4)
    broker.away = True
    async with producer_on(left) as producer:
        name = broker.session.transactional_id
        never_ends(broker)
        await until(lambda: broker.session.transactional_id == f"{name}-1")
        remembered = directory_of(producer).checkpoint.destination.transactional
        assert remembered is not None
        assert remembered.number == 1
        broker.come()
        await publish(producer, 4)
        await producer.flush(LIMIT)
    assert (in_kafka(broker), broker.position.number, broker.apart) == (list(range(5)), 1, [None, name])


@pytest.mark.asyncio
async def test_to_fence_the_transactional_id_that_was_left_takes_nothing_back_of_the_position(broker: Broker) -> None:
    """What it covers is not settled yet when the process dies."""
    left = await committed_and_not_settled(broker, 6)
    telling = asyncio.Event()
    broker.away = True
    async with producer_on(left, on_delivery=lambda _: telling.wait()) as producer:
        name = broker.session.transactional_id
        never_ends(broker)
        await until(lambda: broker.apart == [None])
        broker.come()
        await until(lambda: broker.apart == [None, name])
        dead = left.after_process_death()
        telling.set()
        await producer.flush(LIMIT)
    async with producer_on(dead) as producer:
        await producer.flush(LIMIT)
    assert in_kafka(broker) == list(range(6))


@pytest.mark.asyncio
async def test_a_session_that_connects_while_its_id_is_left_is_not_used(broker: Broker) -> None:
    async def connect() -> None:
        broker.come()
        await until(lambda: broker.session.state == "connected")

    left = await committed_and_not_settled(broker, 4)
    broker.away = True
    async with producer_on(left) as producer:
        broker.once("apart", connect)
        never_ends(broker)
        await publish(producer, 4)
        await producer.flush(LIMIT)
    assert in_kafka(broker) == list(range(5))


@pytest.mark.asyncio
async def test_where_another_id_cannot_be_remembered_it_is_not_used_and_nobody_fences_himself(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await committed_and_not_settled(broker, 4)
    remember, failed = Opened._remember, asyncio.Event()

    async def fails(self: Opened) -> None:
        if not failed.is_set():
            failed.set()
            raise TimeoutError
        await remember(self)

    monkeypatch.setattr(Opened, "_remember", fails)
    broker.away = True
    async with producer_on(left) as producer:
        name = broker.session.transactional_id
        never_ends(broker)
        await failed.wait()
        broker.come()
        await publish(producer, 4)
        await producer.flush(LIMIT)
    assert (in_kafka(broker), broker.session.transactional_id) == (list(range(5)), name)


# -- what is covered --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_is_committed_and_not_settled_is_told_of_and_not_sent_again(broker: Broker) -> None:
    told: list[DeliveryReport] = []
    left = await committed_and_not_settled(broker, 6)
    sent = broker.reached["send"]
    async with producer_on(left, on_delivery=told.append) as producer:
        await producer.flush(LIMIT)
        figures = producer.statistics()
        assert (figures.recovered, figures.delivered, figures.pending) == (6, 6, 0)
        adds_up(producer)
        assert broker.reached["send"] == sent
        await publish(producer, 6)
        await producer.flush(LIMIT)
    assert [report.context for report in told] == list(range(7))
    assert in_kafka(broker) == list(range(7))


@pytest.mark.asyncio
async def test_a_flush_waits_until_all_that_is_covered_was_told_of_and_settled(broker: Broker) -> None:
    goes_on = asyncio.Event()

    async def on_delivery(_: DeliveryReport) -> None:
        await goes_on.wait()

    left = await committed_and_not_settled(broker, 3)
    async with producer_on(left, on_delivery=on_delivery) as producer:
        flushing = asyncio.ensure_future(producer.flush(LIMIT))
        await until(lambda: transactions_of(producer).begun)
        await asyncio.sleep(A_WHILE)
        assert not flushing.done()
        goes_on.set()
        await flushing
        assert producer.statistics().pending == 0


@pytest.mark.asyncio
async def test_what_is_covered_and_not_told_of_yet_is_in_somebody_s_hands(broker: Broker) -> None:
    """As is what is acknowledged and not committed: damage there is no loss."""
    goes_on = asyncio.Event()

    async def on_delivery(_: DeliveryReport) -> None:
        await goes_on.wait()

    left = await committed_and_not_settled(broker, 3)
    async with producer_on(left, on_delivery=on_delivery) as producer:
        (slot,) = directory_of(producer).ring.live
        places_in = delivery_of(producer).holders.places_in
        await until(lambda: len(places_in(slot)) == 3)
        goes_on.set()
        await producer.flush(LIMIT)
        assert places_in(slot) == set()
        broker.hold("commit")
        await publish(producer, 3, 4)
        await until(lambda: sum(batch.count for batch in transactions_of(producer).uncommitted) == 2)
        assert len(places_in(directory_of(producer).ring.live[-1])) == 2
        broker.let_go("commit")


@pytest.mark.asyncio
async def test_what_cannot_be_decoded_and_stays_in_the_ring_is_no_less_there_for_a_position_behind_it(
    broker: Broker,
) -> None:
    disk = MemoryDisk()
    async with producer_on(disk, on_permanent_error="halt") as producer:
        directory_of(producer).ring.append(b"\xc1no record", None)
        await publish(producer, 0)
        await producer.flush(LIMIT)
        assert (in_kafka(broker), producer.statistics().records_left) == ([0], 1)
    async with producer_on(disk) as producer:
        await until(lambda: producer.statistics().dead_lettered == 1)
        assert len(await letters_of(producer)) == 1
        adds_up(producer)


@pytest.mark.asyncio
async def test_where_the_position_is_gone_what_was_settled_counts(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await publish(producer, 0, 1)
        await producer.flush(LIMIT)
        broker.hold("sent")
        await publish(producer, 2, 3)
        left = disk.after_process_death()
        broker.lose()
        broker.let_go("sent")
    broker.log.clear()
    broker.positions.clear()
    async with producer_on(left) as producer:
        await producer.flush(LIMIT)
    assert in_kafka(broker) == [2, 3]
    assert caplog.text.count("no position of this directory any more") == 1


@pytest.mark.asyncio
async def test_restored_from_a_copy_what_it_held_is_not_sent_again(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("send")
        await publish(producer, 0, 1)
        copied = disk.after_process_death()
        broker.let_go("send")
        await producer.flush(LIMIT)
    async with producer_on(disk) as producer:  # the original goes on, under another name
        await publish(producer, 2, 3)
        await producer.flush(LIMIT)
    async with producer_on(copied) as producer:
        await publish(producer, 4, 5)
        await producer.flush(LIMIT)
        adds_up(producer)
    assert in_kafka(broker) == list(range(6))
    assert caplog.text.count("another process has delivered a copy of this directory, or this is the copy") == 1


@pytest.mark.asyncio
async def test_what_was_accepted_here_is_covered_by_nobody_else_s_position(broker: Broker) -> None:
    """Somebody else commits between two attempts to commit under our name: of our own records they have none."""

    def is_taken_over() -> None:
        broker.positions[OFFSETS_TOPIC] = Committed(fmt.position(9, 7), "a copy/9")
        broker.lose()

    broker.once("commit", is_taken_over)
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0, 1)
        await producer.flush(LIMIT)
    assert in_kafka(broker) == [0, 1]


@pytest.mark.asyncio
@pytest.mark.parametrize("owner", ["", "somebody"])
async def test_a_position_that_people_have_set_costs_a_directory_nothing_of_what_it_knows(
    broker: Broker, owner: str
) -> None:
    """Kafka's own tools set one without a word of who it was."""
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await publish(producer, 0, 1)
        await producer.flush(LIMIT)
    broker.positions[OFFSETS_TOPIC] = Committed(0, owner)
    for number in (2, 4):
        async with producer_on(disk) as producer:
            assert directory_of(producer).ring.epoch == 1 + number // 2, "as the checkpoint says"
            await publish(producer, number, number + 1)
            await producer.flush(LIMIT)
    assert in_kafka(broker) == list(range(6))


@pytest.mark.asyncio
async def test_without_its_checkpoint_a_directory_knows_its_position_by_the_slots_that_it_has(broker: Broker) -> None:
    left = await committed_and_not_settled(broker, 4)
    path = next(path for path in left.file_system.files() if path.name == "checkpoint")
    left.file_system.remove(path)
    async with producer_on(left) as producer:
        await producer.flush(LIMIT)
    assert in_kafka(broker) == list(range(4))


# -- where the position stands -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_where_the_offsets_topic_may_not_be_read_it_stands_beside_the_first_topic_that_is_there(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.unreadable.add(OFFSETS_TOPIC)
    broker.topics.clear()
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await producer.publish("t", b"0")
        await asyncio.sleep(A_WHILE)
        assert broker.commits == []
        broker.topics["t"] = PARTITIONS
        delivery_of(producer)._on_metadata()
        await producer.flush(LIMIT)
        broker.hold("committed")
        await publish(producer, 1, 2)
        await until(lambda: len(in_kafka(broker)) == 3)
        left = disk.after_process_death()
        broker.let_go("committed")
    assert list(broker.positions) == ["t"]
    assert caplog.text.count("no permission to read __consumer_offsets") == 1
    async with producer_on(left) as producer:
        await publish(producer, 3)
        await producer.flush(LIMIT)
    assert (in_kafka(broker), list(broker.positions)) == ([0, 1, 2, 3], ["t"])


@pytest.mark.asyncio
async def test_a_permission_that_is_taken_away_does_not_make_it_look_elsewhere(broker: Broker) -> None:
    left = await committed_and_not_settled(broker, 4)
    broker.unreadable.add(OFFSETS_TOPIC)
    async with producer_on(left) as producer:
        await publish(producer, 4)
        await until(lambda: broker.reached["read"] > 3)
        assert list(broker.positions) == [OFFSETS_TOPIC]
        assert len(in_kafka(broker)) == 4
        broker.unreadable.clear()
        await producer.flush(LIMIT)
    assert in_kafka(broker) == list(range(5))


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["add", "read", "committed"])
async def test_where_it_may_be_read_and_not_committed_it_stands_elsewhere_wherever_the_process_dies_meanwhile(
    broker: Broker, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    """When it is refused, when it is looked for in the other place, and when it is committed there."""
    broker.uncommittable.add(OFFSETS_TOPIC)
    reached = 2 if step == "read" else 1
    disk = MemoryDisk()
    async with producer_on(disk, stop_timeout_ms=0) as producer:
        broker.met = lambda met: broker.hold(step) if met == step and broker.reached[step] == reached else None
        await publish(producer, 0, 1)
        await until(lambda: broker.reached[step] == reached)
        await asyncio.sleep(A_WHILE)
        left = disk.after_process_death()
    broker.met = lambda _: None
    broker.let_go(step)
    async with producer_on(left) as producer:
        await publish(producer, 2, 3)
        await producer.flush(LIMIT)
    assert (in_kafka(broker), list(broker.positions)) == ([0, 1, 2, 3], ["t"])
    assert "no permission to read __consumer_offsets" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("settled", [True, False])
async def test_once_a_position_was_committed_it_waits_where_it_stands_for_the_right_to_commit_the_next_one(
    broker: Broker, caplog: pytest.LogCaptureFixture, *, settled: bool
) -> None:
    if settled:
        left = MemoryDisk()
        async with producer_on(left) as producer:
            await publish(producer, *range(4))
            await producer.flush(LIMIT)
    else:
        left = await committed_and_not_settled(broker, 4)
    broker.uncommittable.add(OFFSETS_TOPIC)
    async with producer_on(left) as producer:
        await publish(producer, 4)
        await until(lambda: "grant Read on the topic __consumer_offsets" in caplog.text)
        connections = broker.connections
        await asyncio.sleep(A_WHILE)
        assert (list(broker.positions), broker.connections) == ([OFFSETS_TOPIC], connections)
        assert caplog.text.count("grant Read on") == 1
        broker.uncommittable.clear()
        await producer.flush(LIMIT)
    assert in_kafka(broker) == list(range(5))


@pytest.mark.asyncio
async def test_a_right_that_goes_while_it_runs_has_nothing_sent_again_and_again(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0, 1)
        await producer.flush(LIMIT)
        broker.uncommittable.add(OFFSETS_TOPIC)
        await publish(producer, 2, 3)
        await until(lambda: "grant Read on" in caplog.text)
        await asyncio.sleep(A_WHILE)
        assert (broker.reached["send"], transactions_of(producer).aborts) == (4, 1)
        broker.uncommittable.clear()
        await producer.flush(LIMIT)
        adds_up(producer)
    assert in_kafka(broker) == list(range(4))


# -- what does not go together -----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_may_be_committed_does_not_expire_before_the_position_is_known(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    options: dict[str, Any] = {"delivery_timeout_ms": OLD, "checkpoint_interval_ms": 20}
    disk = MemoryDisk()
    async with producer_on(disk, **options) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("committed")
        await publish(producer, 0, 1)
        await until(lambda: broker.reached["committed"] == 2)
        await clock.known(producer)
        left = disk.after_process_death()
        broker.let_go("committed")
    clock.ms += 10 * OLD
    broker.hold("read")
    async with producer_on(left, **options) as producer:
        receipt = await producer.publish("t", b"2")
        await until(lambda: broker.reached["read"] == 2)
        await clock.age(producer)
        await until(lambda: producer.statistics().expired > 0 or directory_of(producer).expired > 0)
        await asyncio.sleep(A_WHILE)
        assert await letters_of(producer) == []
        broker.let_go("read")
        await producer.flush(LIMIT)
        adds_up(producer)
        assert producer.statistics().delivered == 2
        assert [letter.record_id for letter in await letters_of(producer)] == [receipt.record_id]
    assert in_kafka(broker) == [0, 1]


@pytest.mark.asyncio
async def test_nothing_is_passed_over_where_somebody_is_slow_to_be_told_of_what_has_expired(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind it would be committed under a position that does not cover it, and a crash would repeat it."""
    for name, value in (("MOST", 2), ("FEWEST", 2), ("HOLD", 0.05)):
        monkeypatch.setattr(telling_module, name, value)
    clock = Clock(monkeypatch)
    told = asyncio.Semaphore(0)
    options: dict[str, Any] = {"delivery_timeout_ms": OLD, "checkpoint_interval_ms": 20}
    disk = MemoryDisk()
    broker.away = True
    broker.topics["u"] = 1
    async with producer_on(disk, on_delivery=lambda _: told.acquire(), **options) as producer:
        await publish(producer, *range(0, 20, 2))
        await clock.age(producer)
        broker.come()
        await producer.publish("u", b"0")
        await asyncio.sleep(A_WHILE)
        for _ in range(5):
            told.release()
        await asyncio.sleep(2 * A_WHILE)
        assert broker.values("u") == []
        for _ in range(6):
            told.release()
        await producer.flush(LIMIT)
        adds_up(producer)
        assert len(await letters_of(producer)) == 10
    assert (in_kafka(broker), broker.values("u")) == ([], [b"0"])


@pytest.mark.asyncio
async def test_no_lane_counts_as_stalled(broker: Broker) -> None:
    """One that does not get through holds up all; none is passed over, and nothing is moved for it."""
    refusals = 3

    def refuses(_: Any) -> BaseException | None:
        nonlocal refusals
        refusals -= 1
        return LeaderNotAvailableError() if refusals >= 0 else None

    broker.refuses = refuses
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0, 1, 2)
        await producer.flush(LIMIT)
        assert not delivery_of(producer).dispatcher.stalled.expected
        assert [lane.failing for lane in delivery_of(producer).router.lanes()] == [False, False]
    assert in_kafka(broker) == [0, 1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("first", ["at_least_once", "exactly_once"])
async def test_where_records_wait_the_guarantee_stays_what_it_was(broker: Broker, first: str) -> None:
    """Nothing is sent under the other one, so this broker may know transactions alone."""
    other = {"at_least_once": "exactly_once", "exactly_once": "at_least_once"}[first]
    disk = MemoryDisk()
    async with producer_on(disk, guarantee=first) as producer:  # the cluster is known from now on
        await until(lambda: producer.statistics().cluster_id is not None)
    async with producer_on(disk, guarantee=other) as producer:
        await until(lambda: producer.statistics().checkpoints > 0)
    broker.away = True
    async with producer_on(disk, guarantee=first, stop_timeout_ms=0) as producer:
        await publish(producer, 0, 1)
    with pytest.raises(ConfigError, match=f"accepted with guarantee='{first}': start with that once"):
        await producer_on(disk, guarantee=other).start()
    async with producer_on(disk, guarantee=first, stop_timeout_ms=0) as producer:
        assert producer.statistics().records_left == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("first", ["at_least_once", "exactly_once"])
async def test_a_process_that_dies_before_its_first_checkpoint_leaves_its_own_guarantee(
    broker: Broker, first: str
) -> None:
    other = {"at_least_once": "exactly_once", "exactly_once": "at_least_once"}[first]
    disk = MemoryDisk()
    async with producer_on(disk, guarantee=first) as producer:
        await until(lambda: producer.statistics().cluster_id is not None)
    broker.away = True
    async with producer_on(disk, guarantee=other, stop_timeout_ms=0) as producer:
        await publish(producer, 0, 1)
        left = disk.after_process_death()
    with pytest.raises(ConfigError, match=f"accepted with guarantee='{other}': start with that once"):
        await producer_on(left, guarantee=first).start()
    async with producer_on(left, guarantee=other, stop_timeout_ms=0) as producer:
        await until(lambda: producer.statistics().recovered == 2)


@pytest.mark.asyncio
async def test_before_a_cluster_was_reached_the_guarantee_may_be_another_one(broker: Broker) -> None:
    disk = MemoryDisk()
    broker.away = True
    async with producer_on(disk, guarantee="at_least_once", stop_timeout_ms=0) as producer:
        await publish(producer, 0, 1)
    broker.away = False
    async with producer_on(disk) as producer:
        await producer.flush(LIMIT)
    assert in_kafka(broker) == [0, 1]


# -- wherever it dies --------------------------------------------------------------------------------------------------


@dataclass
class Moment:
    """A process that died: what it left, and how far Kafka was."""

    step: str
    disk: MemoryDisk
    log: dict[tuple[str, int], list[bytes]]
    positions: dict[str, Committed]
    accepted: int


class Life:
    """One that is watched at every step."""

    def __init__(self, broker: Broker, disk: MemoryDisk, accepted: int = 0) -> None:
        self.broker = broker
        self.disk = disk
        self.accepted = accepted
        self.moments: list[Moment] = []

    def note(self, step: str) -> None:
        broker = self.broker
        image = self.disk.after_process_death()
        self.moments.append(
            Moment(step, image, copy.deepcopy(broker.log), broker.positions.copy(), self.accepted),
        )

    async def live(self, transactions: int) -> None:
        settle = Ring.settle

        def settling(ring: Ring, slot: Slot, places: Sequence[int]) -> None:
            half = len(places) // 2
            if half:
                settle(ring, slot, places[:half])
                self.note("half of it is settled")
            settle(ring, slot, places[half:])
            self.note("settled")

        self.broker.met = self.note
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ring, "settle", settling)
            async with producer_on(self.disk, checkpoint_interval_ms=20) as producer:
                for _ in range(transactions):
                    for _ in range(10):
                        await publish(producer, self.accepted)
                        self.accepted += 1
                    await producer.flush(LIMIT)


async def goes_on(moment: Moment, monkeypatch: pytest.MonkeyPatch, also: Callable[[Life], None]) -> None:
    broker = Broker(t=PARTITIONS)
    broker.serve(monkeypatch)
    broker.log, broker.positions = copy.deepcopy(moment.log), moment.positions.copy()
    life = Life(broker, moment.disk, moment.accepted)
    await life.live(1)
    assert broker.wrong == []
    for partition in range(PARTITIONS):
        values = [int(value) for value in broker.values("t", partition)]
        assert values == list(range(partition, moment.accepted + 10, PARTITIONS)), (moment.step, partition)
    also(life)


def test_wherever_a_process_dies_each_record_is_committed_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(t=PARTITIONS)
    broker.serve(monkeypatch)
    life = Life(broker, MemoryDisk())
    asyncio.run(life.live(3))
    assert {moment.step for moment in life.moments} == STEPS
    for moment in life.moments:
        asyncio.run(goes_on(moment, monkeypatch, lambda _: None))


def test_a_process_that_dies_again_while_it_takes_up_leaves_each_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(t=PARTITIONS)
    broker.serve(monkeypatch)
    life = Life(broker, MemoryDisk())
    asyncio.run(life.live(2))
    for first in ("sent", "committed", "half of it is settled"):
        moment = [moment for moment in life.moments if moment.step == first][-1]
        again: list[Moment] = []
        asyncio.run(goes_on(moment, monkeypatch, lambda life, again=again: again.extend(life.moments)))  # type: ignore[misc]
        for second in again:
            asyncio.run(goes_on(second, monkeypatch, lambda _: None))


def test_a_position_that_is_not_looked_at_would_be_seen_here(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(t=PARTITIONS)
    broker.serve(monkeypatch)
    life = Life(broker, MemoryDisk())
    asyncio.run(life.live(1))
    monkeypatch.setattr(position_module, "covered_by", lambda *_: 0)
    moment = next(moment for moment in life.moments if moment.step == "half of it is settled")
    with pytest.raises(AssertionError, match="half of it is settled"):
        asyncio.run(goes_on(moment, monkeypatch, lambda _: None))
