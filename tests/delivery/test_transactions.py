"""Transactions with a stand-in for the session, that end in every way: nothing is missing, nothing comes twice."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.errors import KafkaError, PolicyViolationError

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover import supervised as supervised_module
from aiorecover.delivery import batches as batches_module
from aiorecover.delivery.committed import Committed
from aiorecover.delivery.lane import MAX_READY
from aiorecover.delivery.pace import Pace
from aiorecover.delivery.transactions import Transactions
from aiorecover.errors import DeliveryPendingError, WalIOError
from aiorecover.testing import MemoryDisk
from aiorecover.wal.ring import Ring
from aiorecover.wal.sync import GroupCommit
from tests.delivery.committing import Broker, delivery_of, producer_on, serving, transactions_of
from tests.delivery.expiring import adds_up, letters_of
from tests.delivery.refusing import Sent
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

PARTITIONS = 2
LIMIT = 20_000  # ms: what takes longer hangs
A_WHILE = 0.2  # seconds: something would have happened by then
POISON = b"poison"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    yield from serving(monkeypatch, PARTITIONS)


@pytest.fixture
def _only_if_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends for nothing else."""
    monkeypatch.setattr(Pace, "is_over", lambda *_, urgent, **__: urgent)


async def publish(producer: RecoverableProducer, *numbers: int) -> None:
    """Of one transaction: nothing is awaited in between, as `publish` would once a busy machine takes 1 ms for it."""
    for number in numbers:
        producer.publish_nowait("t", b"%d" % number, partition=number % PARTITIONS)


def each_once(broker: Broker, count: int) -> bool:
    """Whether Kafka has them all, in order."""
    wanted = [[b"%d" % number for number in range(first, count, PARTITIONS)] for first in range(PARTITIONS)]
    return [broker.values("t", partition) for partition in range(PARTITIONS)] == wanted


def acknowledged(producer: RecoverableProducer) -> int:
    """Records in the transaction that is open."""
    return sum(batch.count for batch in transactions_of(producer).uncommitted)


def raising(error: BaseException) -> Callable[[], None]:
    def raises() -> None:
        raise error

    return raises


async def cancel() -> None:
    """Somebody does, from outside."""
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "aiorecover-transactions")
    task.cancel()
    await asyncio.wait({task})


# -- one after the other ---------------------------------------------------------------------------------------------


async def test_the_steps_of_a_commit_come_in_their_order(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    durable, settle = GroupCommit.durable, Ring.settle

    async def flushed(self: GroupCommit, **how: Any) -> None:
        await durable(self, **how)
        steps.append("flushed")

    def settled(self: Ring, *given: Any) -> None:
        steps.append("settled")
        settle(self, *given)

    def noting(step: str) -> Callable[[], None]:
        return lambda: steps.append(step)

    monkeypatch.setattr(GroupCommit, "durable", flushed)
    monkeypatch.setattr(Ring, "settle", settled)
    async with producer_on(MemoryDisk(), on_delivery=lambda _: steps.append("told")) as producer:
        await until(lambda: transactions_of(producer).begun)
        for step in ("sent", "add", "committed"):
            broker.once(step, noting(step))
        await publish(producer, 0)
        await producer.flush(LIMIT)
    assert sorted(steps[:2]) == ["flushed", "sent"]  # whichever takes longer: `test_transactions_flushed`
    assert steps[2:] == ["add", "committed", "told", "settled"]


async def test_nobody_is_told_and_nothing_is_settled_before_the_commit(broker: Broker) -> None:
    told: list[DeliveryReport] = []
    async with producer_on(MemoryDisk(), on_delivery=told.append) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("commit")
        receipt = await producer.publish("t", b"0", partition=0)
        await until(lambda: broker.reached["commit"] == 2)
        assert (told, producer.statistics().pending, producer.statistics().delivered) == ([], 1, 0)
        broker.let_go("commit")
        report = await receipt.delivered(timeout_ms=LIMIT)
        assert told == [report]
        assert (report.status, report.partition, report.offset) == ("delivered", 0, 0)
        adds_up(producer)


async def test_each_transaction_has_the_position_that_it_ends_at_under_our_name(broker: Broker) -> None:
    async with producer_on(MemoryDisk()) as producer:
        for number in range(3):
            receipt = await producer.publish("t", b"%d" % number, partition=number % PARTITIONS)
            await producer.flush(LIMIT)
            assert broker.position.position & 0xFFFFFFFF == receipt.sequence
    assert len({one.owner for one in broker.commits}) == 1
    assert broker.transactions == [[b"0"], [b"1"], [b"2"]]


async def test_what_is_dispatched_while_a_run_ends_waits_for_the_next_one(broker: Broker) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("commit")
        await publish(producer, 0, 1)
        await until(lambda: broker.reached["commit"] == 2)
        sent = broker.reached["send"]
        await publish(producer, 2, 3)
        lanes = delivery_of(producer).router.lanes
        await until(lambda: [lane.added for lane in lanes()] == [2, 2])
        await asyncio.sleep(A_WHILE)
        assert broker.reached["send"] == sent
        broker.let_go("commit")
        await producer.flush(LIMIT)
    assert [sorted(values) for values in broker.transactions] == [[b"0", b"1"], [b"2", b"3"]]


async def test_a_batch_that_is_not_answered_holds_up_the_commit(broker: Broker) -> None:
    """One that came later in another lane is not waited for."""
    async with producer_on(MemoryDisk()) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("sent")
        await publish(producer, 0)
        await until(lambda: broker.reached["sent"] == 1)
        transactions_of(producer).wake()
        await asyncio.sleep(A_WHILE)  # the run ends
        await publish(producer, 1)
        await asyncio.sleep(A_WHILE)
        assert (broker.reached["add"], broker.reached["send"]) == (1, 1)
        broker.let_go("sent")
        await producer.flush(LIMIT)
    assert broker.transactions == [[b"0"], [b"1"]]


# -- when a run ends -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_only_if_urgent")
async def test_it_ends_at_once_when_somebody_waits_for_what_is_in_it(broker: Broker) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0, 1)
        await until(lambda: acknowledged(producer) == 2)
        transactions_of(producer).hurry(transactions_of(producer).settled_up_to)  # for what was there before
        await asyncio.sleep(A_WHILE)
        assert broker.transactions == []
        await producer.flush(LIMIT)
        await publish(producer, 2, 3)
        await until(lambda: acknowledged(producer) == 2)
        await asyncio.sleep(A_WHILE)
        assert sum(map(len, broker.transactions)) == 2  # who waited does not any more


@pytest.mark.usefixtures("_only_if_urgent")
async def test_it_does_not_end_before_all_that_somebody_waits_for_is_in_it(broker: Broker) -> None:
    async with producer_on(MemoryDisk(), max_batch_size=2048, max_request_size=2048) as producer:
        for number in range(100):
            await producer.publish("t", b"%d" % number + bytes(1000), partition=0)
        await producer.flush(LIMIT)
    assert [len(values) for values in broker.transactions] == [100]


@pytest.mark.usefixtures("_only_if_urgent")
@pytest.mark.parametrize("who", ["early first", "late first"])
async def test_who_waits_for_what_is_in_it_is_not_kept_waiting_by_who_waits_for_more(broker: Broker, who: str) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0)
        await until(lambda: acknowledged(producer) == 1)
        transactions = transactions_of(producer)
        early, late = transactions._position, transactions._position + 100
        if who == "late first":
            transactions.hurry(late)
            await asyncio.sleep(A_WHILE)
            assert broker.transactions == []
            transactions.hurry(early)
        else:
            transactions.hurry(early)
            transactions.hurry(late)
        await until(lambda: producer.statistics().delivered == 1)
        await publish(producer, 1)
        await until(lambda: acknowledged(producer) == 1)
        transactions.hurry(late)
        await asyncio.sleep(A_WHILE)
        assert broker.transactions == [[b"0"]]
        await producer.flush(LIMIT)


@pytest.mark.usefixtures("_only_if_urgent")
async def test_it_ends_when_half_of_the_memory_is_full_of_it(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "BATCH_BYTES", 8 * 1024)
    async with producer_on(MemoryDisk(), max_batch_size=2048, max_request_size=2048) as producer:
        for number in range(100):
            await producer.publish("t", b"%d" % number + bytes(1000), partition=0)
        await until(lambda: producer.statistics().delivered >= 80)
        batches = delivery_of(producer).dispatcher.batches
        await producer.flush(LIMIT)
        assert batches.closed_bytes == 0
    assert len(broker.transactions) > 5  # what comes while one is committed may fill the other half
    assert [int(value.rstrip(b"\0")) for value in broker.values()] == list(range(100))


async def test_what_is_published_while_one_is_committed_is_read_and_ready_for_the_next(broker: Broker) -> None:
    async with producer_on(MemoryDisk(), max_batch_size=2048, max_request_size=2048) as producer:
        await publish(producer, 0)
        await producer.flush(LIMIT)
        broker.hold("commit")
        reached = broker.reached["commit"]
        await producer.publish("t", b"1", partition=0)
        await until(lambda: broker.reached["commit"] > reached)
        for number in range(2, 22):
            await producer.publish("t", b"%d" % number + bytes(1000), partition=0)
        (lane,) = delivery_of(producer).router.lanes()
        await until(lambda: len(lane.ready) > MAX_READY)
        await until(lambda: delivery_of(producer).dispatcher.idle)
        broker.let_go("commit")
        await producer.flush(LIMIT)
    assert [int(value.rstrip(b"\0")) for value in broker.values()] == list(range(22))


async def test_what_is_dead_letters_only_is_committed_without_records(broker: Broker) -> None:
    broker.refuses = refusing_poison
    async with producer_on(MemoryDisk()) as producer:
        await producer.publish("t", POISON, partition=0)
        await producer.flush(LIMIT)
        assert [letter.value for letter in await letters_of(producer)] == [POISON]
        adds_up(producer)
        await publish(producer, 0, 1)
        await producer.flush(LIMIT)
        adds_up(producer)
    assert each_once(broker, 2)


async def test_poison_among_others_is_a_dead_letter_and_the_others_are_committed_once(broker: Broker) -> None:
    broker.refuses = refusing_poison
    async with producer_on(MemoryDisk()) as producer:
        for number in range(20):
            await publish(producer, number)
            if number % 7 == 0:
                await producer.publish("t", POISON, partition=0)
        await producer.flush(LIMIT)
        assert len(await letters_of(producer)) == 3
        adds_up(producer)
    assert each_once(broker, 20)


def refusing_poison(records: list[Sent]) -> BaseException | None:
    return PolicyViolationError() if any(record.value == POISON for record in records) else None


# -- a transaction is lost -------------------------------------------------------------------------------------------


async def test_a_commit_that_fails_is_made_again_with_all_that_was_in_it_and_told_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await until(lambda: transactions_of(producer).begun)
        for _ in range(3):
            broker.once("commit", raising(KafkaError("not today")))
        await publish(producer, *range(10))
        await producer.flush(LIMIT)
        assert each_once(broker, 10)
        assert transactions_of(producer).aborts == 3
        adds_up(producer)
        assert caplog.text.count("a transaction was lost") == 1
        broker.once("commit", raising(KafkaError("nor now")))
        await publish(producer, 10)
        await producer.flush(LIMIT)
        assert caplog.text.count("a transaction was lost") == 2  # one went well between them
    assert each_once(broker, 11)


async def test_who_waits_in_vain_for_a_commit_is_told_why_the_last_one_was_lost(broker: Broker) -> None:
    def fails() -> None:
        broker.once("commit", fails)
        raise KafkaError("not today")

    async with producer_on(MemoryDisk()) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.once("commit", fails)
        receipt = await producer.publish("t", b"0", partition=0)
        await until(lambda: transactions_of(producer).aborts > 2)
        broker.hold("send")
        sent = broker.reached["send"]
        await until(lambda: broker.reached["send"] > sent)
        with pytest.raises(
            DeliveryPendingError, match=r"its transaction was lost, .* topic=t partition=0 error=.*today"
        ):
            await receipt.delivered(timeout_ms=50)
        with pytest.raises(DeliveryPendingError, match=r"a transaction was lost, and is made anew error=.*today"):
            await producer.flush(50)
        broker.let_go("send")
        broker._once.clear()
        await producer.flush(LIMIT)
        assert transactions_of(producer).trouble == ""
        assert each_once(broker, 1)


async def test_of_a_transaction_that_was_lost_with_its_session_it_is_told_why_that_ended(broker: Broker) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("commit")
        await publish(producer, 0)
        await until(lambda: broker.reached["commit"] == 2)
        delivery_of(producer).session.trouble = "no answer for 40 s"
        broker.lose()
        await until(lambda: transactions_of(producer).aborts == 1)
        assert transactions_of(producer).trouble == "no answer for 40 s"
        broker.let_go("commit")
        await producer.flush(LIMIT)
        assert each_once(broker, 1)


@pytest.mark.parametrize("made", [True, False])
async def test_of_a_commit_that_was_not_answered_the_position_tells(broker: Broker, *, made: bool) -> None:
    told: list[int] = []
    async with producer_on(MemoryDisk(), on_delivery=lambda report: told.append(report.context)) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("committed" if made else "commit")
        for number in range(4):
            await producer.publish("t", b"%d" % number, partition=number % PARTITIONS, context=number)
        await until(lambda: broker.reached["commit"] == 2)
        for number in (4, 5):
            await producer.publish("t", b"%d" % number, partition=number % PARTITIONS, context=number)
        sent = broker.reached["send"]
        broker.lose()
        broker.let_go("committed" if made else "commit")
        await producer.flush(LIMIT)
        assert each_once(broker, 6)
        assert sorted(told[:4]) == [0, 1, 2, 3]
        assert sorted(told) == list(range(6))
        assert broker.reached["send"] == sent + (2 if made else 4)
        adds_up(producer)


@pytest.mark.usefixtures("_only_if_urgent")
async def test_lost_while_a_run_is_filled_what_was_acknowledged_goes_first_and_in_its_order(broker: Broker) -> None:
    async with producer_on(MemoryDisk(), linger_ms=0) as producer:
        for number in range(0, 8, 2):  # each in a batch of its own
            await publish(producer, number, number + 1)
            await until(lambda number=number: acknowledged(producer) == number + 2)  # type: ignore[misc]
        broker.hold("send")
        await publish(producer, *range(8, 12))
        await until(lambda: broker.reached["send"] == 10)
        lanes = list(delivery_of(producer).router.lanes())
        assert [lane.settled for lane in lanes] == [4, 4]
        broker.hold("begin")
        began = broker.reached["begin"]
        broker.lose()
        broker.let_go("send")
        await until(lambda: broker.reached["begin"] == began + 1)
        for lane in lanes:
            assert (lane.settled, lane.added) == (0, 6)
            records = [int(record.value or b"") for batch in lane.ready for record in batch.records()]
            assert records[:5] == list(range(lane.partition, 10, 2))
            assert [(batch.identity, batch.possibly) for batch in lane.ready] == [(None, False)] * len(lane.ready)
        assert acknowledged(producer) == 0
        broker.let_go("begin")
        await producer.flush(LIMIT)
        assert [lane.settled for lane in lanes] == [6, 6]
        assert delivery_of(producer).dispatcher.batches.closed_bytes == 0
        adds_up(producer)
    assert each_once(broker, 12)


@pytest.mark.parametrize("step", ["send", "sent"])
async def test_lost_while_it_is_answered_all_goes_into_the_next_one(broker: Broker, step: str) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold(step)
        await publish(producer, 0, 1)
        flushing = asyncio.ensure_future(producer.flush(LIMIT))
        await until(lambda: broker.reached[step] == 2)
        await asyncio.sleep(A_WHILE)  # the run ends
        await publish(producer, 2, 3)
        broker.lose()
        broker.let_go(step)
        await flushing
        await producer.flush(LIMIT)
    assert each_once(broker, 4)


async def test_a_lane_that_is_new_while_the_others_let_go_keeps_nobody_waiting(broker: Broker) -> None:
    async with producer_on(MemoryDisk(), retry_backoff_ms=1_500) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("sent")
        await publish(producer, 0)
        await until(lambda: broker.reached["sent"] == 1)
        broker.lose()
        (lane,) = delivery_of(producer).router.lanes()
        await until(lambda: lane.leaves)
        assert lane.delivering
        await publish(producer, 1)
        broker.let_go("sent")
        await producer.flush(LIMIT)
    assert each_once(broker, 2)


async def test_lost_behind_the_commit_what_is_committed_is_told_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka is away from then on, and nobody has to wait for it."""
    committed = Transactions._committed

    def lost_meanwhile(self: Transactions, position: int) -> None:
        broker.away = True
        broker.lose()
        committed(self, position)

    async with producer_on(MemoryDisk()) as producer:
        await until(lambda: transactions_of(producer).begun)
        monkeypatch.setattr(Transactions, "_committed", lost_meanwhile)
        receipt = await producer.publish("t", b"0", partition=0)
        await receipt.delivered(timeout_ms=5_000)
        monkeypatch.setattr(Transactions, "_committed", committed)
        assert (producer.statistics().delivered, producer.state) == (1, "connecting")
        broker.come()
        await publish(producer, 1)
        await producer.flush(LIMIT)
    assert each_once(broker, 2)


async def test_a_session_that_ends_again_and_again_costs_nothing(broker: Broker) -> None:
    async with producer_on(MemoryDisk()) as producer:
        for number in range(60):
            await publish(producer, number)
            step = ("begin", "send", "sent", "add", "commit", "committed", "read")[number % 7]
            broker.once(step, broker.lose)
            await asyncio.sleep(0.01)
        await producer.flush(LIMIT)
        adds_up(producer)
        assert producer.statistics().rebuilds > 5
    assert each_once(broker, 60)


# -- what else may go wrong ------------------------------------------------------------------------------------------


async def test_where_another_opening_has_committed_nothing_more_is_delivered(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0, 1)
        await producer.flush(LIMIT)
        broker.positions = dict.fromkeys(broker.positions, Committed(broker.position.position + 7, "copy/2"))
        broker.lose()
        await until(lambda: transactions_of(producer).fenced)
        commits = len(broker.commits)
        receipt = await producer.publish("t", b"2", partition=0)
        with pytest.raises(DeliveryPendingError, match="taken_over_by=copy/2"):
            await producer.flush(LIMIT)
        with pytest.raises(DeliveryPendingError, match="taken_over_by=copy/2"):
            await receipt.delivered(timeout_ms=LIMIT)
        broker.lose()
        delivery_of(producer).cluster.is_wrong("another")
        delivery_of(producer).cluster.is_wrong(None)
        with pytest.raises(DeliveryPendingError, match="taken_over_by=copy/2"):
            await producer.flush(LIMIT)
        await asyncio.sleep(A_WHILE)
        assert (len(broker.commits), producer.statistics().pending) == (commits, 1)
    assert each_once(broker, 2)
    assert caplog.text.count("another process delivers a copy of this directory") == 1


async def test_who_was_taken_over_from_asks_for_no_topic_any_more(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0)
        await producer.flush(LIMIT)
        await producer.publish("missing", b"1")
        broker.positions = dict.fromkeys(broker.positions, Committed(broker.position.position + 7, "copy/2"))
        broker.lose()
        await until(lambda: transactions_of(producer).fenced)
        await asyncio.sleep(1)
    assert "discovery" not in caplog.text


@pytest.mark.parametrize("doubt", [True, False])
async def test_a_position_that_is_gone_while_we_run_says_that_nothing_of_it_was_committed(
    broker: Broker, *, doubt: bool
) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.hold("commit" if doubt else "sent")
        await publish(producer, 0, 1)
        await until(lambda: broker.reached["sent"] == 2)
        await asyncio.sleep(A_WHILE)
        broker.positions.clear()
        broker.lose()
        broker.let_go("commit" if doubt else "sent")
        await producer.flush(LIMIT)
    assert each_once(broker, 2)


async def test_nothing_is_committed_while_the_ring_cannot_be_flushed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise WalIOError(5, "the disk is gone")

    async with producer_on(MemoryDisk()) as producer:
        await publish(producer, 0)
        await producer.flush(LIMIT)
        commits = len(broker.commits)
        monkeypatch.setattr(GroupCommit, "durable", fails)
        await publish(producer, 1, 2)
        await asyncio.sleep(A_WHILE)
        assert (len(broker.commits), producer.statistics().delivered) == (commits, 1)
        assert caplog.text.count("the ring cannot be flushed") == 1
        monkeypatch.undo()
        monkeypatch.setattr(supervised_module, "RESTART_PAUSE", 0.01)
        await producer.flush(LIMIT)
    assert each_once(broker, 3)


@pytest.mark.parametrize("step", ["read", "begin", "send", "sent", "add", "commit", "committed"])
@pytest.mark.parametrize("begun", [True, False])
async def test_a_task_that_was_cancelled_at_any_step_begins_again_and_nothing_comes_twice(
    broker: Broker, step: str, *, begun: bool
) -> None:
    """Also where the commit goes on by itself: what it was to commit is not known any more to who begins again."""
    async with producer_on(MemoryDisk()) as producer:
        if begun:
            await publish(producer, 0, 1)
            await producer.flush(LIMIT)
        broker.hold(step)
        reached = broker.reached[step]
        await publish(producer, 2, 3) if begun else await publish(producer, 0, 1)
        if step in {"read", "begin"}:
            broker.lose()
        await until(lambda: broker.reached[step] > reached)
        await asyncio.sleep(0.05)
        await cancel()
        assert producer.state == "interrupted"
        broker.let_go(step)
        await publish(producer, 4, 5) if begun else await publish(producer, 2, 3)
        await producer.flush(LIMIT)
        adds_up(producer)
        assert transactions_of(producer).uncommitted == []
    assert each_once(broker, 6 if begun else 4)


async def test_cancelled_while_it_tells_of_what_is_committed_it_tells_on(broker: Broker) -> None:
    told: list[DeliveryReport] = []
    hangs = asyncio.Event()

    async def on_delivery(report: DeliveryReport) -> None:
        told.append(report)
        if len(told) == 2:
            hangs.set()
            await asyncio.Event().wait()

    async with producer_on(MemoryDisk(), on_delivery=on_delivery) as producer:
        await publish(producer, 0, 1, 2, 3)
        await hangs.wait()
        await cancel()
        await producer.flush(LIMIT)
        adds_up(producer)
        assert delivery_of(producer).dispatcher.batches.closed_bytes == 0
    assert len({report.record_id for report in told}) == 4
    assert each_once(broker, 4)


async def test_where_the_disk_has_failed_nobody_waits_for_a_commit_that_cannot_come(broker: Broker) -> None:
    disk = MemoryDisk()
    async with producer_on(disk, stop_timeout_ms=LIMIT) as producer:
        await until(lambda: transactions_of(producer).begun)
        receipt = await producer.publish("t", b"0", partition=0)
        waiting = asyncio.ensure_future(receipt.delivered(timeout_ms=LIMIT))
        disk.fail_syncs()
        async with asyncio.timeout(5):
            for told in (waiting, producer.flush(LIMIT), receipt.delivered(timeout_ms=LIMIT)):
                with pytest.raises(DeliveryPendingError) as raised:
                    await told
                assert isinstance(raised.value.__cause__, WalIOError)
            await producer.stop()
    assert len(broker.commits) == 1
    disk.fail_syncs(0)
    async with producer_on(disk) as producer:
        await producer.flush(LIMIT)
    assert broker.values() == [b"0"]


async def test_a_callback_that_does_not_let_go_keeps_neither_a_session_open_nor_a_task_running(broker: Broker) -> None:
    told = asyncio.Event()

    async def holds_on(_: DeliveryReport) -> None:
        told.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    async with producer_on(MemoryDisk(), on_delivery=holds_on, stop_timeout_ms=500) as producer:
        await publish(producer, 0, 1)
        await told.wait()
    assert broker.session._closing
    await until(lambda: "aiorecover-transactions" not in {task.get_name() for task in asyncio.all_tasks()}, 5)


# -- rights to topics ------------------------------------------------------------------------------------------------


async def test_while_a_topic_may_not_be_written_to_nothing_is_sent_and_who_waits_is_told_which_right_is_missing(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.topics["u"] = 1
    broker.unwritable = {"u"}
    async with producer_on(MemoryDisk(), retry_backoff_max_ms=5) as producer:
        await until(lambda: transactions_of(producer).begun)
        await publish(producer, 0, 1)
        receipt = await producer.publish("u", b"u")
        await until(lambda: broker.reached["asked"] > 3)
        connections, sends = broker.connections, broker.reached["send"]
        asked = broker.reached["asked"]
        await until(lambda: broker.reached["asked"] > asked + 10)
        assert (broker.connections, broker.reached["send"]) == (connections, sends)
        for told in (receipt.delivered(timeout_ms=10), producer.flush(10)):
            with pytest.raises(DeliveryPendingError, match="nothing is committed: grant Write on the topic u"):
                await told
        broker.unwritable = set()
        await producer.flush(LIMIT)
        adds_up(producer)
        assert broker.connections == connections
    assert [text.partition(" group=")[0] for text in caplog.messages if "topic u" in text] == [
        "kafka refuses records, and nothing is committed: grant Write on the topic u, trying on",
        "kafka takes records of the topic u again",
    ]
    assert each_once(broker, 2)
    assert broker.values("u") == [b"u"]


async def test_why_kafka_is_not_reached_is_told_also_while_a_right_is_missing(broker: Broker) -> None:
    broker.unwritable = {"t"}
    async with producer_on(MemoryDisk(), retry_backoff_max_ms=5) as producer:
        await publish(producer, 0)
        await until(lambda: broker.reached["asked"] > 1)
        broker.away = True
        broker.lose()
        delivery_of(producer).session.trouble = "no broker"
        with pytest.raises(DeliveryPendingError, match="kafka is not reached error=no broker"):
            await producer.flush(10)
        broker.unwritable = set()
        broker.come()
        await producer.flush(LIMIT)
    assert each_once(broker, 1)


async def test_what_waits_for_a_right_becomes_a_dead_letter_at_its_age_and_the_others_go_on(broker: Broker) -> None:
    broker.topics["u"] = 1
    broker.unwritable = {"u"}
    limits = {"delivery_timeout_ms": 300, "request_timeout_ms": 200}
    async with producer_on(MemoryDisk(), retry_backoff_max_ms=20, **limits) as producer:
        await until(lambda: transactions_of(producer).begun)
        await producer.publish("u", b"u")
        await until(lambda: producer.statistics().expired == 1, 10)
        await publish(producer, 0, 1)
        await producer.flush(LIMIT)
        (letter,) = await letters_of(producer)
        adds_up(producer)
        assert transactions_of(producer).missing == ""
    assert (letter.topic, letter.error) == ("u", "DeliveryTimeout")
    assert each_once(broker, 2)


async def test_where_kafka_cannot_tell_whether_it_takes_records_they_are_sent_and_their_answer_tells(
    broker: Broker,
) -> None:
    broker.unwritable = {"t"}
    async with producer_on(MemoryDisk(), retry_backoff_max_ms=5) as producer:
        await until(lambda: transactions_of(producer).begun)
        broker.once("asked", raising(KafkaError("it does not tell")))
        sends = broker.reached["send"]
        await publish(producer, 0)
        await until(lambda: broker.reached["asked"] > 1)
        assert broker.reached["send"] == sends + 2
        broker.unwritable = set()
        await producer.flush(LIMIT)
    assert each_once(broker, 1)
