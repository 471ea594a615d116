"""Delivery reports over a real ring: who is told, when, and what; read back from the frames, nothing is kept."""

import asyncio
import gc
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiorecover import DeliveryPendingError, RecoverableProducer
from aiorecover import record as rec
from aiorecover.delivery import remembered
from aiorecover.delivery import reports as module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.frames import position_at, positions_of
from aiorecover.delivery.reports import Reports
from aiorecover.errors import ClosedError, PermanentDeliveryError
from aiorecover.receipt import DeliveryReport
from aiorecover.testing import MemoryDisk
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.recount import Recounted
from tests.delivery.refusing import Broker
from tests.delivery.stored import Stored, acknowledge, batch_of, metadata, open_at, settle, store
from tests.support.eventually import until
from tests.wal.test_recount import counted_anew
from tests.wal.test_stream import Life, read
from tests.wal.test_stream import settle as settle_placed

pytestmark = pytest.mark.asyncio

# --- waiting for a record


async def test_a_waiter_is_told_everything_once_its_batch_is_settled(directory: Directory, reports: Reports) -> None:
    stored = store(directory, "a", {"n": 1}, None)
    waiters = [reports.waiter("t", one.sequence, one.place) for one in stored]
    batch = batch_of(*stored)
    waited = reports.collect(batch, "t", metadata(100))
    assert not any(waiter.done() for waiter in waiters)
    settle(directory, batch)
    reports.tell(waited)
    assert [waiter.result() for waiter in waiters] == [
        DeliveryReport(
            topic="t",
            partition=2,
            offset=100 + number,
            timestamp_ms=1000 + number,
            record_id=f"{directory.producer_id}/1/{number + 1}",
            context=context,
        )
        for number, context in enumerate(["a", {"n": 1}, None])
    ]


async def test_whoever_asks_late_is_told_the_same(directory: Directory, reports: Reports) -> None:
    stored = store(directory, "a", "b")
    early = reports.waiter("t", stored[1].sequence, stored[1].place)
    await acknowledge(directory, reports, batch_of(*stored), 7)
    late = reports.waiter("t", stored[1].sequence, stored[1].place)
    assert late.done()
    assert late.result() == early.result()
    assert (late.result().offset, late.result().context) == (8, "b")


async def test_everybody_who_waits_for_one_record_is_told(directory: Directory, reports: Reports) -> None:
    (stored,) = store(directory, "a")
    waiters = [reports.waiter("t", stored.sequence, stored.place) for _ in range(3)]
    waiters[1].cancel()
    await acknowledge(directory, reports, batch_of(stored), 0)
    assert waiters[0].result() == waiters[2].result()
    assert waiters[1].cancelled()


async def test_a_waiter_that_gave_up_leaves_nothing_behind(directory: Directory, reports: Reports) -> None:
    (stored,) = store(directory, "a")
    first, second = (reports.waiter("t", stored.sequence, stored.place) for _ in range(2))
    reports.forget(stored.sequence, first)
    reports.forget(stored.sequence, first)
    await acknowledge(directory, reports, batch_of(stored), 0)
    assert not first.done()
    assert second.done()
    reports.forget(stored.sequence, second)
    assert not reports._waiters


async def test_nothing_is_read_or_kept_for_records_that_nobody_asks_about(
    directory: Directory, reports: Reports
) -> None:
    batch = batch_of(*store(directory, *range(50)))
    assert reports.collect(batch, "t", metadata(0)) == []


async def test_an_offset_that_the_broker_does_not_tell_is_none(directory: Directory, reports: Reports) -> None:
    (stored,) = store(directory, "a")
    waiter = reports.waiter("t", stored.sequence, stored.place)
    await acknowledge(directory, reports, batch_of(stored), -1)
    assert (waiter.result().partition, waiter.result().offset) == (2, None)
    assert reports.waiter("t", stored.sequence, stored.place).result().offset is None


async def test_a_batch_across_slots_reports_each_record_by_its_own_offset(
    directory: Directory, reports: Reports
) -> None:
    stored = store(directory, *range(40), size=1000)
    assert len({id(one.slot) for one in stored}) > 2
    waiters = [reports.waiter("t", one.sequence, one.place) for one in stored]
    await acknowledge(directory, reports, batch_of(*stored), 500)
    assert [(waiter.result().offset, waiter.result().context) for waiter in waiters] == [
        (500 + number, number) for number in range(40)
    ]
    late = [reports.waiter("t", one.sequence, one.place).result().offset for one in stored]
    assert late == [500 + number for number in range(40)]  # though their slots are not mapped any more


async def test_beyond_what_is_remembered_a_record_is_still_known_to_be_delivered(
    directory: Directory, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "REMEMBERED_RECORDS", 10)
    batches = [store(directory, *range(4)) for _ in range(10)]
    for number, stored in enumerate(batches):
        await acknowledge(directory, reports, batch_of(*stored), 4 * number)
    assert len(reports._remembered) <= 3
    old = reports.waiter("t", batches[0][0].sequence, batches[0][0].place).result()
    new = reports.waiter("t", batches[9][3].sequence, batches[9][3].place).result()
    assert (old.status, old.partition, old.offset) == ("delivered", None, None)
    assert old.record_id == f"{directory.producer_id}/1/1"
    assert (new.status, new.partition, new.offset) == ("delivered", 2, 39)


async def test_one_batch_larger_than_the_memory_is_remembered_alone(
    directory: Directory, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "REMEMBERED_RECORDS", 10)
    for offset in (0, 50):
        stored = store(directory, *range(50))
        await acknowledge(directory, reports, batch_of(*stored), offset)
    assert reports.waiter("t", stored[49].sequence, stored[49].place).result().offset == 99


class Counted(int):
    """A place that counts what it is compared with."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Counted.looks += 1
        return int(self) < other

    def __gt__(self, other: int) -> bool:
        Counted.looks += 1
        return int(self) > other

    __hash__ = int.__hash__


def steps_of(reports: Reports, one: Stored, offset: int) -> int:
    """Lines that run, and comparisons, until the report of a delivered record is there."""
    lines = 0

    def trace(_frame: Any, event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    Counted.looks = 0
    tracing = sys.gettrace()
    gc.disable()  # what it calls back would be counted, too
    sys.settrace(trace)
    try:
        found = reports.waiter("t", one.sequence, Counted(one.place))
    finally:
        sys.settrace(tracing)
        gc.enable()
    assert found.result().offset == offset
    return lines + Counted.looks


@pytest.mark.parametrize("lanes", [1, 10, 1000])
async def test_a_delivered_record_is_found_in_a_few_steps_however_many_are_remembered(
    directory: Directory, reports: Reports, lanes: int
) -> None:
    stored = store(directory, *[None] * 3000)
    for lane in range(lanes):
        await acknowledge(directory, reports, batch_of(*stored[lane::lanes]), 10_000 * lane)
    assert len({id(one.slot) for one in stored}) > 5
    steps_of(reports, stored[0], 0)  # what was kept since somebody asked last is put in order then, once
    steps = [steps_of(reports, one, 10_000 * (at % lanes) + at // lanes) for at, one in enumerate(stored)]
    assert max(steps) < 200


async def test_records_of_a_batch_that_stand_in_no_order_are_found_too(directory: Directory, reports: Reports) -> None:
    """Those without a key have none."""
    stored = store(directory, *range(10))
    mixed = [stored[at] for at in (7, 2, 9, 0, 4, 1, 8, 3, 6, 5)]
    await acknowledge(directory, reports, batch_of(*mixed), 0)
    found = [reports.waiter("t", one.sequence, one.place).result() for one in mixed]
    assert [(report.offset, report.context) for report in found] == list(enumerate([7, 2, 9, 0, 4, 1, 8, 3, 6, 5]))


async def test_what_is_forgotten_is_not_found_again_whoever_has_asked_for_it(
    directory: Directory, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "REMEMBERED_RECORDS", 10)
    first, second = store(directory, *range(10)), store(directory, *range(10))
    await acknowledge(directory, reports, batch_of(*first), 0)
    assert [reports.waiter("t", one.sequence, one.place).result().offset for one in first] == list(range(10))
    await acknowledge(directory, reports, batch_of(*second), 10)
    assert {reports.waiter("t", one.sequence, one.place).result().offset for one in first} == {None}
    assert [reports.waiter("t", one.sequence, one.place).result().offset for one in second] == list(range(10, 20))
    assert reports._remembered.found_at_once == 10


async def test_a_record_of_an_earlier_epoch_is_not_taken_for_one_of_this_epoch(tmp_path: Path) -> None:
    first = open_at(tmp_path / "wal")
    store(first, "old")
    first.close()
    second = open_at(tmp_path / "wal")
    try:
        told: list[DeliveryReport] = []
        reports = Reports(second, told.append)
        (new,) = store(second, "new")
        waiter = reports.waiter("t", new.sequence, new.place)
        reader = Reader(second.ring, rec.decode)
        run = reader.take(1)
        assert run is not None
        slot, place, sequence, _ = run.entry(0)
        assert sequence == new.sequence == 1  # the same ordinal, another epoch
        await acknowledge(second, reports, batch_of(Stored(sequence, place, slot)), 5)
        assert not waiter.done()
        await acknowledge(second, reports, batch_of(new), 6)
        assert (waiter.result().context, waiter.result().offset) == ("new", 6)
        expected = [(f"{first.producer_id}/1/1", "old"), (f"{second.producer_id}/2/1", "new")]
        assert [(report.record_id, report.context) for report in told] == expected
        reader.close()
    finally:
        second.close()


# --- refused and stopped


async def test_whoever_waits_for_a_refused_record_is_told_why_now_or_later(
    directory: Directory, reports: Reports
) -> None:
    stored = store(directory, "a", "b", "c")
    early = reports.waiter("t", stored[0].sequence, stored[0].place)
    other = reports.waiter("t", stored[2].sequence, stored[2].place)
    reports.refuse(positions_of(batch_of(*stored[:2])), PermanentDeliveryError("too large"))
    for waiter in (early, reports.waiter("t", stored[1].sequence, stored[1].place)):
        with pytest.raises(PermanentDeliveryError, match="too large"):
            waiter.result()
    assert not other.done()


class Moved:
    """Records that wait in the retry ring; of one of them the copy rots."""

    def __init__(self) -> None:
        self.life = Life()
        for _ in range(2):
            self.life.move()
        self.directory = self.life.directory
        self.reports = Reports(self.directory, None)
        self.slot = self.directory.retry.live[0]
        waiting = read(self.life.first.back_to(0))
        self.copies = [one for one in waiting if one[0] is self.slot]
        self.originals = [one for one in self.life.left if one[2] <= self.life.opened.ring.moved_up_to]

    def rot(self, number: int, *, word: bool = False) -> None:
        """In its payload, or from its settle word on."""
        _, place, _, _ = self.copies[number]
        at = self.slot.file_offset + 4 * place
        self.life.opened.disk.retry.damage(at if word else at + 60, b"rotten")

    def asks(self, number: int) -> "asyncio.Future[DeliveryReport]":
        _, place, position, _ = self.originals[number]
        return self.reports.waiter("t", position & fmt.SEQUENCE_MASK, place)

    def settle(self, number: int) -> None:
        settle_placed(self.copies[number : number + 1])

    def count_anew(self, *held: int) -> None:
        self.reports.lose(counted_anew(self.directory, self.slot, {self.copies[number][1] for number in held}))


def is_told_lost(waiter: "asyncio.Future[DeliveryReport]", persisted: str) -> None:
    with pytest.raises(PermanentDeliveryError, match="damage took the record") as caught:
        waiter.result()
    assert caught.value.persisted == persisted


async def test_a_record_of_which_the_copy_rots_unseen_is_not_called_delivered() -> None:
    """Who waited before knows that it was not; who comes now is told that nobody does."""
    moved = Moved()
    early = moved.asks(3)
    moved.rot(3)
    moved.rot(7)
    late = [moved.asks(number) for number in (3, 7)]
    assert not any(waiter.done() for waiter in (early, *late))
    moved.count_anew()
    for waiter, persisted in ((early, "not"), (late[0], "not"), (late[1], "possibly"), (moved.asks(7), "possibly")):
        is_told_lost(waiter, persisted)
    assert not moved.asks(5).done()


async def test_a_record_that_was_settled_before_its_copy_rotted_is_reported_where_the_count_finds_nothing_lost() -> (
    None
):
    """Its word has rotted, too, so who asks has to wait for the count; who asks then is told the same."""
    moved = Moved()
    moved.settle(7)
    moved.rot(7, word=True)
    waiter = moved.asks(7)
    assert not waiter.done()
    moved.count_anew()
    assert waiter.result() == moved.asks(7).result()
    assert waiter.result().status == "delivered"


async def test_of_a_very_bad_disk_it_is_remembered_in_little_room_what_damage_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More than that is doubted then, and nothing less."""
    monkeypatch.setattr(module, "DOUBTS_MOST", 2)
    moved = Moved()
    taken = [moved.originals[number][2] for number in (6, 0, 2, 4)]
    for position in [*taken, *taken[-2:]]:
        moved.reports.lose(Recounted(1, frozenset(), position, position, frozenset()))
    assert len(moved.reports._doubtful) == 2
    for number in (0, 2, 4, 6):
        moved.settle(number)
        is_told_lost(moved.asks(number), "possibly")
    moved.settle(8)
    assert moved.asks(8).result().status == "delivered"


async def test_who_joins_one_that_waited_before_the_damage_is_told_with_him_that_nothing_was_delivered() -> None:
    moved = Moved()
    early = moved.asks(3)
    moved.rot(3)
    late = moved.asks(3)
    moved.count_anew()
    for waiter in (early, late):
        is_told_lost(waiter, "not")


async def test_a_record_that_rots_in_hand_is_delivered_and_one_beside_it_is_lost_whenever_somebody_asks() -> None:
    moved = Moved()
    moved.rot(3)
    moved.rot(7)
    in_hand = moved.asks(3)
    moved.count_anew(3)
    assert not in_hand.done()
    too_early = moved.asks(7)
    assert not too_early.done(), "nothing tells the two apart yet"
    moved.reports.forget(moved.originals[7][2] & fmt.SEQUENCE_MASK, too_early)
    moved.settle(3)
    moved.count_anew()
    is_told_lost(moved.asks(7), "possibly")


async def test_a_copy_that_rots_word_and_all_makes_no_doubt_of_a_record_that_is_remembered() -> None:
    moved = Moved()
    original, place, _, _ = moved.originals[3]
    moved.settle(3)
    moved.rot(3, word=True)
    assert not moved.asks(3).done()
    moved.reports._remembered.keep([(original, [place])], 1, 2, 70)
    assert moved.asks(3).result().offset == 70


def frames_kept(error: BaseException) -> int:
    count, kept = 0, error.__traceback__
    while kept is not None:
        count, kept = count + 1, kept.tb_next
    return count


async def test_an_error_that_is_told_again_and_again_keeps_nothing_of_those_who_were_told(
    directory: Directory, reports: Reports
) -> None:
    """Its traceback would grow with each of them, and keep their locals (I8)."""
    halted, waiting = store(directory, None, None)
    error = PermanentDeliveryError("halted", persisted="not")
    reports.refuse([position_at(halted.slot, halted.place)], error)
    pending = DeliveryPendingError("another cluster")
    reports.hold_off(pending)
    for stored, expected in ((halted, error), (waiting, pending)):
        kept = []
        for _ in range(3):
            with pytest.raises(type(expected)) as caught:
                await reports.waiter("t", stored.sequence, stored.place)
            assert caught.value is expected
            kept.append(frames_kept(expected))
        assert kept == kept[:1] * 3


async def test_a_flush_that_is_refused_again_and_again_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(t=1)
    broker.answers.clear()
    monkeypatch.setattr(sessions_module, "Session", broker.session())
    given: dict[str, Any] = {"wal_min_free_bytes": 0, "stop_timeout_ms": 0, "cluster_id": "ours"}
    async with RecoverableProducer(MemoryDisk(), bootstrap_servers="nowhere:1", **given) as producer:
        await producer.publish("t", b"1", key=b"k")
        assert producer._opened is not None
        producer._opened.delivery.cluster.is_wrong("theirs")
        kept = []
        for _ in range(3):
            with pytest.raises(DeliveryPendingError) as caught:
                await producer.flush()
            kept.append(frames_kept(caught.value))
        assert kept == kept[:1] * 3


async def test_closing_tells_whoever_waits_and_whoever_asks_afterwards(directory: Directory, reports: Reports) -> None:
    delivered, waiting = store(directory, "a", "b")
    await acknowledge(directory, reports, batch_of(delivered), 3)
    waiter = reports.waiter("t", waiting.sequence, waiting.place)
    reports.close()
    for asked in (waiter, reports.waiter("t", waiting.sequence, waiting.place)):
        with pytest.raises(ClosedError, match="delivered after the next start"):
            asked.result()
    assert reports.waiter("t", delivered.sequence, delivered.place).result().offset == 3


async def test_after_the_ring_was_closed_too_what_was_delivered_is_not_denied(
    directory: Directory, reports: Reports
) -> None:
    """The second of three records was delivered, the first was not: the watermark stands before both."""
    first, second, third = store(directory, "a", "b", "c")
    await acknowledge(directory, reports, batch_of(second), 3)
    reports.close()
    directory.close()
    found = reports.waiter("t", second.sequence, second.place).result()
    assert (found.status, found.partition, found.offset) == ("delivered", 2, 3)
    assert found.record_id == f"{directory.producer_id}/1/2"
    for one in (first, third):
        with pytest.raises(ClosedError):
            reports.waiter("t", one.sequence, one.place).result()


async def test_a_waiter_that_nobody_awaits_is_no_error_at_the_end(directory: Directory, reports: Reports) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    (stored,) = store(directory, "a")
    reports.waiter("t", stored.sequence, stored.place)
    reports.close()
    await asyncio.sleep(0)
    assert problems == []


# --- on_delivery


async def test_on_delivery_is_told_of_each_record_in_order_and_before_it_is_settled(directory: Directory) -> None:
    stored = store(directory, *range(5))
    seen: list[tuple[int | None, Any, bool]] = []

    def on_delivery(report: DeliveryReport) -> None:
        one = stored[report.context]
        seen.append((report.offset, report.context, directory.ring.is_settled(one.sequence, one.place)))

    reports = Reports(directory, on_delivery)
    await acknowledge(directory, reports, batch_of(*stored), 10)
    assert seen == [(10 + number, number, False) for number in range(5)]
    assert all(directory.ring.is_settled(one.sequence, one.place) for one in stored)


async def test_an_awaitable_on_delivery_is_awaited_one_record_after_the_other(directory: Directory) -> None:
    running, seen = 0, []

    async def on_delivery(report: DeliveryReport) -> None:
        nonlocal running
        running += 1
        await asyncio.sleep(0.001)
        assert running == 1
        running -= 1
        seen.append(report.context)

    reports = Reports(directory, on_delivery)
    await acknowledge(directory, reports, batch_of(*store(directory, *range(5))), 0)
    assert seen == list(range(5))
    assert reports.callback_errors == 0


class OddError(BaseException):
    """No `Exception`."""


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("broken"),
        asyncio.CancelledError(),
        TimeoutError(),
        RecursionError(),
        OddError(),
        GeneratorExit(),
        pytest.fail.Exception("what an assertion of pytest raises"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_on_delivery_raises_is_counted_and_the_next_record_is_told(
    directory: Directory, error: BaseException, awaited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def plain(report: DeliveryReport) -> None:
        seen.append(report.context)
        raise error

    async def coroutine(report: DeliveryReport) -> None:
        plain(report)

    reports = Reports(directory, coroutine if awaited else plain)
    await acknowledge(directory, reports, batch_of(*store(directory, *range(3))), 0)
    assert seen == [0, 1, 2]
    assert reports.callback_errors == 3
    (line,) = caplog.records  # it may be that each one fails
    assert f"record_id={directory.producer_id}/1/1" in line.getMessage()
    assert line.exc_info is not None
    assert line.exc_info[1] is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()], ids=lambda error: type(error).__name__)
async def test_who_ends_the_process_in_on_delivery_ends_it(directory: Directory, error: BaseException) -> None:
    def on_delivery(_: DeliveryReport) -> None:
        raise error

    reports = Reports(directory, on_delivery)
    with pytest.raises(type(error)):
        await acknowledge(directory, reports, batch_of(*store(directory, 0)), 0)
    assert reports.callback_errors == 0


async def cancelling_and_waiting(seen: list[Any], report: DeliveryReport) -> None:
    cancel_this()
    await asyncio.sleep(0)
    seen.append("not reached")


async def cancelling_when_it_goes_on(seen: list[Any], report: DeliveryReport) -> None:
    await asyncio.sleep(0)
    cancel_this()
    cancel_this()
    await asyncio.sleep(0)
    seen.append("not reached")


async def cancelling_and_returning(seen: list[Any], report: DeliveryReport) -> None:
    cancel_this()


async def cancelling_and_raising(seen: list[Any], report: DeliveryReport) -> None:
    try:
        await cancelling_and_waiting(seen, report)
    except asyncio.CancelledError:
        raise ValueError("broken") from None


def cancelling(seen: list[Any], report: DeliveryReport) -> None:
    cancel_this()


def cancel_this() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize(
    "callback",
    [
        cancelling_and_waiting,
        cancelling_when_it_goes_on,
        cancelling_and_returning,
        cancelling_and_raising,
        cancelling,
    ],
)
async def test_an_on_delivery_that_cancels_the_task_it_runs_in_has_failed_and_no_record_is_told_twice(
    directory: Directory, callback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    def on_delivery(report: DeliveryReport) -> Any:
        seen.append(report.context)
        return callback(seen, report)

    reports = Reports(directory, on_delivery)
    task = asyncio.create_task(acknowledge(directory, reports, batch_of(*store(directory, *range(3))), 0))
    await task
    assert seen == [0, 1, 2]
    assert reports.callback_errors == 3
    assert task.cancelling() == 0
    (line,) = caplog.records
    assert line.exc_info is not None


async def test_an_on_delivery_may_use_what_cancels_its_task_and_takes_that_back(directory: Directory) -> None:
    seen: list[Any] = []

    async def on_delivery(report: DeliveryReport) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.sleep(60)
        seen.append(report.context)

    reports = Reports(directory, on_delivery)
    await acknowledge(directory, reports, batch_of(*store(directory, *range(3))), 0)
    assert (seen, reports.callback_errors) == ([0, 1, 2], 0)


@pytest.mark.parametrize("itself_too", [True, False])
@pytest.mark.parametrize("hidden", [True, False])
async def test_being_cancelled_from_outside_is_no_error_of_the_callback_whatever_it_makes_of_it(
    directory: Directory, itself_too: bool, hidden: bool
) -> None:
    begun = asyncio.Event()

    async def on_delivery(report: DeliveryReport) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if itself_too:
                cancel_this()
            if hidden:
                raise ValueError("broken") from None
            raise

    reports = Reports(directory, on_delivery)
    stored = store(directory, 0)
    task = asyncio.create_task(acknowledge(directory, reports, batch_of(*stored), 0))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reports.callback_errors == 0
    assert not directory.ring.is_settled(stored[0].sequence, stored[0].place)


async def test_what_is_not_run_any_more_ends_while_its_callback_waits(directory: Directory) -> None:
    """As with all that waits when its loop is gone, and is collected."""
    ended: list[str] = []

    async def on_delivery(_: DeliveryReport) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("callback")

    reports = Reports(directory, on_delivery)
    running = acknowledge(directory, reports, batch_of(*store(directory, 0)), 0)
    running.send(None)
    running.close()
    assert ended == ["callback"]
    assert reports.callback_errors == 0


async def test_callbacks_that_go_on_failing_are_told_of_once_a_minute(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def on_delivery(report: DeliveryReport) -> None:
        now[0] += 25.0
        raise ValueError("broken")

    reports = Reports(directory, on_delivery)
    await acknowledge(directory, reports, batch_of(*store(directory, *range(7))), 0)
    counts = [line.getMessage().partition("callback_errors=")[2] for line in caplog.records]
    assert counts == ["1", "4", "7"]


async def test_a_record_whose_frame_is_damaged_since_it_was_read_is_reported_without_what_stood_there(
    directory: Directory,
) -> None:
    """It is in Kafka: to halt its lane for that would help nobody."""
    seen: list[DeliveryReport] = []
    reports = Reports(directory, seen.append)
    (stored,) = store(directory, "a")
    waiter = reports.waiter("t", stored.sequence, stored.place)
    assert stored.slot.map is not None
    start = (stored.place + 1) * 4
    stored.slot.map[start : start + 8] = b"\xc1" * 8  # never begins anything in MessagePack
    await acknowledge(directory, reports, batch_of(stored), 7)
    expected = DeliveryReport(
        topic="t", partition=2, offset=7, timestamp_ms=None, record_id=f"{directory.producer_id}/1/1"
    )
    assert seen == [waiter.result()] == [expected]
    assert reports.waiter("t", stored.sequence, stored.place).result() == expected


async def test_an_on_delivery_that_hangs_is_given_up(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLBACK_LIMIT", 0.02)

    async def on_delivery(report: DeliveryReport) -> None:
        if report.context == 0:
            await asyncio.sleep(60)

    reports = Reports(directory, on_delivery)
    async with asyncio.timeout(5):
        await acknowledge(directory, reports, batch_of(*store(directory, *range(3))), 0)
    assert reports.callback_errors == 1


async def test_an_on_delivery_that_takes_its_time_holds_up_its_own_lane_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = asyncio.Event()
    told: list[tuple[int | None, Any]] = []

    async def on_delivery(report: DeliveryReport) -> None:
        if report.partition == 0:
            await go_on.wait()
        told.append((report.partition, report.context))

    broker = Broker(t=2)
    monkeypatch.setattr(sessions_module, "Session", broker.session())
    async with RecoverableProducer(MemoryDisk(), bootstrap_servers="nowhere:1", on_delivery=on_delivery) as producer:
        await producer.publish("t", b"0", partition=0, context=0)
        await until(lambda: broker.values("t", 0) == [b"0"])
        waiting = await producer.publish("t", b"1", partition=0, context=1)
        for number in range(5):
            receipt = await producer.publish("t", b"%d" % number, partition=1, context=number)
            assert (await receipt.delivered(timeout_ms=20_000)).partition == 1
        with pytest.raises(DeliveryPendingError):
            await waiting.delivered(timeout_ms=50)
        assert (broker.values("t", 0), producer.statistics().pending) == ([b"0"], 2)
        go_on.set()
        await producer.flush(timeout_ms=20_000)
    assert told == [*((1, number) for number in range(5)), (0, 0), (0, 1)]


@pytest.mark.parametrize("call", ["stop", "flush"])
async def test_who_awaits_in_on_delivery_what_waits_for_it_is_told_so_and_delivery_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    broker = Broker(t=1)
    monkeypatch.setattr(sessions_module, "Session", broker.session())
    later: list[asyncio.Task[Any]] = []

    async def on_delivery(report: DeliveryReport) -> None:
        if report.context == "later":  # from another task it is no error
            later.append(asyncio.create_task(getattr(producer, call)(timeout_ms=20_000)))
        else:
            await getattr(producer, call)(timeout_ms=20_000)

    async with RecoverableProducer(MemoryDisk(), bootstrap_servers="nowhere:1", on_delivery=on_delivery) as producer:
        await (await producer.publish("t", b"1")).delivered(timeout_ms=20_000)
        assert producer.statistics().callback_errors == 1
        assert f"{call} waits for on_delivery" in caplog.text
        assert producer.state == "connected"
        await (await producer.publish("t", b"2", context="later")).delivered(timeout_ms=20_000)
        await later[0]
        assert producer.statistics().callback_errors == 1
    assert broker.values("t") == [b"1", b"2"]


async def test_being_stopped_while_on_delivery_runs_is_no_error_of_the_callback(directory: Directory) -> None:
    begun = asyncio.Event()

    async def on_delivery(report: DeliveryReport) -> None:
        begun.set()
        await asyncio.sleep(60)

    reports = Reports(directory, on_delivery)
    stored = store(directory, 0)
    task = asyncio.create_task(acknowledge(directory, reports, batch_of(*stored), 0))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reports.callback_errors == 0
    assert not directory.ring.is_settled(stored[0].sequence, stored[0].place)  # so it is told again after the restart


async def test_a_report_says_what_stands_in_the_ring_and_not_what_the_publisher_has_made_of_it(
    directory: Directory, reports: Reports
) -> None:
    context = {"tags": ["a"]}
    (stored,) = store(directory, context)
    waiter = reports.waiter("t", stored.sequence, stored.place)
    context["tags"].append("b")
    await acknowledge(directory, reports, batch_of(stored), 0)
    assert waiter.result().context == {"tags": ["a"]}


async def test_the_sequence_is_read_where_the_format_puts_it(tmp_path: Path) -> None:
    directory = open_at(tmp_path / "wal")
    try:
        stored = store(directory, *range(3))
        assert [position_at(one.slot, one.place) for one in stored] == [1 << 40 | number for number in (1, 2, 3)]
        assert fmt.SETTLE_WORD - fmt.SEQUENCE_WORD == 2
    finally:
        directory.close()
