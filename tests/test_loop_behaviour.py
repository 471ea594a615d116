"""Publishing from everywhere in an event loop, and in spite of everything that happens to its tasks."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest
import uvloop

from aiorecover import ClosedError, DeliveryReport, Receipt, RecoverableProducer, RecoverError, WalFullError
from aiorecover.testing import MockCluster
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, Verdict, judge, read_topic

TOPIC = "loop"
PARTITIONS = 4
FLUSH_MS = 60_000
NOWHERE = "127.0.0.1:1"  # no broker listens there
SLOT = 1 << 14  # small ones: the ring goes from slot to slot all the time
NESTED = 20  # handlers that interrupt each other: signals that come faster than a disk allocates would do so for ever
HANDLED = 500  # records published by a signal handler, in each test
MOST = 20_000  # records of a task: the mock keeps 5 MiB of each partition

Run = Callable[[Coroutine[Any, Any, None]], None]
Started = Callable[..., Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine in the main thread, where signal handlers run."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def in_a_new_loop(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return in_a_new_loop


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create_topic(TOPIC, PARTITIONS)
        yield mock


@pytest.fixture
def started(cluster: MockCluster, tmp_path: Path) -> Started:
    """A started producer; `connected`: delivery goes on already."""

    @asynccontextmanager
    async def start(*, connected: bool = True, **options: Any) -> AsyncIterator[RecoverableProducer]:
        options = {"bootstrap_servers": cluster.bootstrap_servers, "slot_bytes": SLOT, **options}
        async with RecoverableProducer(tmp_path / "wal", **options) as producer:
            if connected:
                await producer.partitions_for(TOPIC)
            yield producer

    return start


class Publishers:
    """What was accepted, by whom, and whether Kafka has just that."""

    def __init__(self, producer: RecoverableProducer, topic: str = TOPIC) -> None:
        self.accepted: list[Accepted] = []
        self._producer = producer
        self._topic = topic
        self._numbers = itertools.count()

    def next(self, who: str) -> tuple[bytes, bytes]:
        return who.encode(), b"%b %d" % (who.encode(), next(self._numbers))

    def enter(self, receipt: Receipt, key: bytes, value: bytes) -> Receipt:
        self.accepted.append(Accepted(receipt.record_id, key, value))
        return receipt

    async def publish(self, who: str) -> Receipt:
        key, value = self.next(who)
        return self.enter(await self._producer.publish(self._topic, value, key=key), key, value)

    def publish_nowait(self, who: str) -> Receipt:
        key, value = self.next(who)
        return self.enter(self._producer.publish_nowait(self._topic, value, key=key), key, value)

    def count(self, who: str) -> int:
        return sum(record.key == who.encode() for record in self.accepted)

    async def judged(self, cluster: MockCluster | Cluster) -> Verdict:
        """Ids tell the order: a signal handler's record is entered before the one it interrupted."""
        by_id = sorted(self.accepted, key=lambda record: int(record.record_id.rpartition("/")[2]))
        return judge(by_id, await read_topic(cluster.bootstrap_servers, self._topic), whole_lanes=True)

    async def assert_delivered_once(self, cluster: MockCluster | Cluster) -> None:
        """Just what was accepted, each record once, every key in order; the producer's counts say so too."""
        await self._producer.flush(FLUSH_MS)
        assert_exact(await self.judged(cluster), len(self.accepted))
        statistics = self._producer.statistics()
        assert statistics.pending == statistics.missing == 0
        assert statistics.accepted + statistics.recovered == statistics.delivered


def assert_exact(verdict: Verdict, count: int) -> None:
    assert verdict.ok, str(verdict)
    assert (verdict.delivered, verdict.repeated, verdict.foreign) == (count, 0, []), str(verdict)


@contextmanager
def at_signals(handler: Callable[[], object]) -> Iterator[None]:
    """Call `handler` from a signal handler several thousand times a second; another process sends the signals."""
    nested = 0

    def handle(*_: object) -> None:
        nonlocal nested
        if nested == NESTED:
            return
        nested += 1
        try:
            handler()
        finally:
            nested -= 1

    before = signal.signal(signal.SIGUSR1, handle)
    program = "import os, sys, time\nwhile True: os.kill(int(sys.argv[1]), int(sys.argv[2])); time.sleep(0.0001)"
    arguments = [sys.executable, "-I", "-S", "-c", program, str(os.getpid()), str(int(signal.SIGUSR1))]
    with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as sender:
        try:
            yield
        finally:
            sender.kill()
            sender.wait()
            signal.signal(signal.SIGUSR1, before)


# -- signal handlers --------------------------------------------------------------------------------------------------


def test_a_signal_handler_publishes_while_tasks_publish(run: Run, cluster: MockCluster, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)
            with at_signals(lambda: publishers.publish_nowait("handler")):
                await asyncio.gather(publish_among(publishers, "one"), publish_among(publishers, "other"))
                await producer.flush(FLUSH_MS)
            await publishers.assert_delivered_once(cluster)

    run(main())


def test_what_signal_handlers_published_into_publishing_is_read_back_whole_after_a_restart(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    """Nothing is delivered before the restart: what stands in the slots must be in order, without a hole."""

    async def main() -> None:
        async with started(connected=False, bootstrap_servers=NOWHERE, stop_timeout_ms=200) as producer:
            publishers = Publishers(producer)
            with at_signals(lambda: publishers.publish_nowait("handler")):
                await publish_among(publishers, "task")
        async with started() as producer:
            await producer.flush(FLUSH_MS)
            assert producer.statistics().recovered == len(publishers.accepted)
            assert producer.statistics().missing == 0
        assert_exact(await publishers.judged(cluster), len(publishers.accepted))

    run(main())


async def publish_among(publishers: Publishers, who: str) -> None:
    """Publish until the signal handler has published HANDLED records meanwhile."""
    for number in range(MOST):
        await publishers.publish(f"{who} {number % 16}")
        if number % 500 == 0:
            if publishers.count("handler") >= HANDLED:
                return
            await asyncio.sleep(0.002)  # where others have the processor, let the sender of the signals have it too
    async with asyncio.timeout(60):
        while publishers.count("handler") < HANDLED:  # noqa: ASYNC110 - the handler wakes nobody
            await asyncio.sleep(0.01)


def test_a_signal_handler_publishes_into_an_idle_loop(run: Run, cluster: MockCluster, started: Started) -> None:
    async def main() -> None:
        reported = asyncio.Queue[DeliveryReport]()
        async with started(on_delivery=reported.put_nowait) as producer:
            publishers = Publishers(producer)
            before = signal.signal(signal.SIGUSR1, lambda *_: publishers.publish_nowait("handler"))
            try:
                for number in range(1, 6):
                    # From another thread: nothing else goes on in the loop when the handler runs.
                    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                    async with asyncio.timeout(30):
                        report = await reported.get()
                    assert report.record_id == publishers.accepted[-1].record_id
                    assert len(publishers.accepted) == number
            finally:
                signal.signal(signal.SIGUSR1, before)
            await publishers.assert_delivered_once(cluster)

    run(main())


# -- tasks, callbacks, threads ----------------------------------------------------------------------------------------


def test_two_tasks_publish_at_the_same_time(run: Run, cluster: MockCluster, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)

            async def publish(who: str, pause: bool) -> None:
                for number in range(5_000):
                    await publishers.publish(who)
                    if pause and not number % 50:
                        await asyncio.sleep(0)

            await asyncio.gather(publish("one", pause=True), publish("other", pause=False))
            await publishers.assert_delivered_once(cluster)

    run(main())


def test_callbacks_publish_without_a_task(run: Run, cluster: MockCluster, started: Started) -> None:
    """call_soon, call_later, many in one turn, and after the dispatcher has gone to sleep."""

    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)
            loop = asyncio.get_running_loop()
            done = asyncio.Event()

            def one_after_another(left: int) -> None:
                publishers.publish_nowait("soon")
                if left:
                    loop.call_soon(one_after_another, left - 1)
                else:
                    loop.call_later(0.2, many_at_once)  # the dispatcher sleeps by then

            def many_at_once() -> None:
                for _ in range(5_000):
                    publishers.publish_nowait("many")
                loop.call_later(0.2, last)

            def last() -> None:
                publishers.publish_nowait("last")
                done.set()

            loop.call_soon(one_after_another, 1_000)
            await done.wait()
            await publishers.assert_delivered_once(cluster)
            assert len(publishers.accepted) == 6_002

    run(main())


def test_a_record_published_by_a_callback_needs_nobody_to_flush_it(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    async def main() -> None:
        reported = asyncio.Queue[DeliveryReport]()
        async with started(on_delivery=reported.put_nowait) as producer:
            publishers = Publishers(producer)
            for _ in range(3):
                asyncio.get_running_loop().call_later(0.1, publishers.publish_nowait, "callback")
                async with asyncio.timeout(30):
                    report = await reported.get()
                assert report.record_id == publishers.accepted[-1].record_id
            await publishers.assert_delivered_once(cluster)

    run(main())


def test_four_threads_publish_each_in_its_order(run: Run, cluster: MockCluster, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)
            count = 1_000

            def publish(who: str) -> list[tuple[Receipt, bytes, bytes]]:
                told = []
                for number in range(count):
                    key, value = who.encode(), b"%b %d" % (who.encode(), number)
                    told.append((producer.publish_threadsafe(TOPIC, value, key=key).result(60), key, value))
                return told

            names = ["one", "two", "three", "four"]
            loads = [asyncio.to_thread(publish, name) for name in names]
            for told in await asyncio.gather(*loads, publish_in_a_task(publishers, "task", count)):
                for receipt, key, value in told:
                    publishers.enter(receipt, key, value)
            await publishers.assert_delivered_once(cluster)
            arrived = await read_topic(cluster.bootstrap_servers, TOPIC)
            for name in names:
                mine = [record.value for record in arrived if record.key == name.encode()]
                assert mine == [b"%b %d" % (name.encode(), number) for number in range(count)]

    run(main())


async def publish_in_a_task(publishers: Publishers, who: str, count: int) -> list[Any]:
    for _ in range(count):
        await publishers.publish(who)
    return []


@pytest.mark.parametrize("options", [{}, {"on_full": "wait"}, {"fsync": "always"}])
def test_what_a_thread_takes_back_before_the_loop_comes_to_it_is_not_stored(
    run: Run, cluster: MockCluster, started: Started, options: dict[str, Any]
) -> None:
    async def main() -> None:
        async with started(**options) as producer:
            kept, taken_back = producer.publish_threadsafe(TOPIC, b"kept"), producer.publish_threadsafe(TOPIC, b"back")
            assert taken_back.cancel()
            await asyncio.wrap_future(kept)
            await producer.flush(timeout_ms=30_000)
            assert producer.statistics().accepted == 1
        assert [record.value for record in await read_topic(cluster.bootstrap_servers, TOPIC)] == [b"kept"]

    run(main())


def test_a_thread_is_told_that_the_producer_is_stopped(run: Run, cluster: MockCluster, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            pass
        with pytest.raises(ClosedError):
            await asyncio.to_thread(producer.publish_threadsafe, TOPIC, b"late")

    run(main())


@pytest.mark.parametrize("in_a_turn", [False, True])
@pytest.mark.parametrize("options", [{}, {"on_full": "wait"}])
def test_once_its_loop_has_ended_a_producer_refuses_and_can_be_stopped_in_another_one(
    run: Run, tmp_path: Path, options: dict[str, Any], in_a_turn: bool
) -> None:
    """As in a test that forgets to stop it: what it has is delivered by the next one, once it lets go."""
    left = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, instance="orders", **options)

    async def leave() -> None:
        await left.start()
        await left.publish(TOPIC, b"accepted")

    async def publish_in_another_loop(topic: str, value: bytes) -> None:
        await left.publish(topic, value)

    run(leave())
    left._in_turn = in_a_turn
    ways: list[Callable[[str, bytes], object]] = [
        left.publish_nowait,
        left.publish_threadsafe,
        lambda topic, value: run(publish_in_another_loop(topic, value)),
    ]
    for publish in ways * 2:
        with pytest.raises(ClosedError, match=r"has ended: await its stop\(\) in a running loop"):
            publish(TOPIC, b"late")

    async def go_on() -> None:
        assert await left.stop(0) == 1
        async with RecoverableProducer(
            tmp_path, bootstrap_servers=NOWHERE, instance="orders", stop_timeout_ms=0
        ) as new:
            assert new.statistics().unread == 1

    run(go_on())


def test_publishing_from_another_thread_is_refused_and_the_way_to_do_it_is_named(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    async def main() -> None:
        async with started() as producer:
            for _ in range(3):
                await asyncio.sleep(0.01)  # the loop has been idle
                with pytest.raises(RecoverError, match="call publish_threadsafe"):
                    await asyncio.to_thread(producer.publish_nowait, TOPIC, b"foreign")
                with pytest.raises(RecoverError, match="call publish_threadsafe"):
                    await asyncio.to_thread(lambda: asyncio.run(producer.publish(TOPIC, b"foreign")))
            assert producer.statistics().accepted == 0
            publishers = Publishers(producer)
            await publishers.publish("own")
            await publishers.assert_delivered_once(cluster)

    run(main())


def test_what_is_awaited_in_another_event_loop_is_refused_and_the_producer_goes_on(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    def elsewhere(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
        asyncio.run(asyncio.wait_for(call(), 2))

    async def listed(producer: RecoverableProducer) -> None:
        _ = [letter async for letter in producer.dead_letters.list()]

    async def main() -> None:
        async with started() as producer:
            receipt = await producer.publish(TOPIC, b"before")
            awaited: list[Callable[[], Coroutine[Any, Any, object]]] = [
                producer.start,
                producer.stop,
                producer.flush,
                producer.source_positions,
                lambda: producer.partitions_for(TOPIC),
                lambda: listed(producer),
                producer.dead_letters.requeue,
                lambda: producer.dead_letters.purge("all"),
                lambda: producer.dead_letters.export("never-written"),
            ]
            for call in awaited:
                with pytest.raises(RecoverError, match="run_coroutine_threadsafe"):
                    await asyncio.to_thread(elsewhere, call)
            await producer.publish(TOPIC, b"after")
            await producer.flush(FLUSH_MS)
            assert (await receipt.delivered(FLUSH_MS)).record_id == receipt.record_id
            assert producer.statistics().delivered == 2

    run(main())


def test_a_receipt_that_waits_is_not_awaited_in_another_event_loop(run: Run, started: Started) -> None:
    async def main() -> None:
        async with started(connected=False, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
            receipt = await producer.publish(TOPIC, b"waits")
            with pytest.raises(RecoverError, match="run_coroutine_threadsafe"):
                await asyncio.to_thread(lambda: asyncio.run(receipt.delivered(2_000)))
            assert producer.statistics().pending == 1

    run(main())


# -- timestamps -------------------------------------------------------------------------------------------------------


def test_a_record_has_the_millisecond_of_its_call_however_many_come_in_one_turn(
    run: Run, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = (time.time_ns() // 1_000_000 + 10) * 1_000_000
    steps = [1, 300_000, 999_999, 1_000_000, 1_000_001, 1_999_999, 5_500_000, 5_500_001]

    async def main() -> None:
        receipts: list[Receipt] = []
        async with started() as producer:
            for step in steps:
                monkeypatch.setattr(time, "time_ns", lambda step=step: begin + step)
                receipts.append(producer.publish_nowait(TOPIC, b"plain"))
                receipts.append(await producer.publish(TOPIC, b"awaited"))
            reports = [await receipt.delivered(FLUSH_MS) for receipt in receipts]
        expected = [(begin + step) // 1_000_000 for step in steps for _ in range(2)]
        assert [report.timestamp_ms for report in reports] == expected

    run(main())


def test_a_record_that_waited_for_room_has_the_time_of_its_call(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    async def main() -> None:
        cluster.broker_down()
        options = {"on_full": "wait", "full_timeout_ms": 60_000, "wal_max_bytes": 6 * SLOT}
        async with started(connected=False, **options) as producer:
            fill(Publishers(producer))
            waiting = asyncio.create_task(producer.publish(TOPIC, b"waits" * 100))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            called_before = time.time_ns() // 1_000_000
            await asyncio.sleep(0.05)
            cluster.broker_up()
            report = await (await waiting).delivered(FLUSH_MS)
        assert report.timestamp_ms is not None
        assert report.timestamp_ms < called_before

    run(main())


# -- a loop that only publishes ---------------------------------------------------------------------------------------


def test_a_loop_that_only_publishes_starves_neither_timeouts_nor_delivery(
    run: Run, kafka: Cluster, topic: TopicFactory, started: Started
) -> None:
    """On a real broker: the mock does not keep so many records."""

    async def publish_only(publishers: Publishers) -> None:
        async with asyncio.timeout(0.5):
            for _ in range(3_000_000):  # an end, so that a time-out that never fires is seen
                await publishers.publish("only")

    async def main() -> None:
        async with started(connected=False, bootstrap_servers=kafka.bootstrap_servers) as producer:
            publishers = Publishers(producer, topic(kafka))
            await publishers.publish("first")
            await producer.flush(FLUSH_MS)
            with pytest.raises(TimeoutError):
                await publish_only(publishers)
            assert producer.statistics().delivered > 1  # while nobody awaited anything but publish
            await publishers.assert_delivered_once(kafka)

    run(main())


class Turns:
    """How often another task has had its turn."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> Self:
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._counting.cancel()

    async def _count(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


def test_other_tasks_run_while_one_only_publishes(run: Run, cluster: MockCluster, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)
            async with Turns() as turns:
                for _ in range(10_000):
                    await publishers.publish("only")
            assert turns.count >= 10_000 // 256 - 1
            await publishers.assert_delivered_once(cluster)

    run(main())


@pytest.mark.parametrize(("step_ns", "calls"), [(0, 256), (1_000_000 // 10, 12)])
def test_other_tasks_run_while_one_only_asks_for_what_is_delivered(
    run: Run, started: Started, monkeypatch: pytest.MonkeyPatch, step_ns: int, calls: int
) -> None:
    """After so many calls where the clock stands still, and after a millisecond where it goes on with each call."""
    now = time.time_ns()

    def time_ns() -> int:
        nonlocal now
        now += step_ns
        return now

    async def main() -> None:
        async with started() as producer:
            receipt = await producer.publish(TOPIC, b"v")
            await producer.flush(FLUSH_MS)
            monkeypatch.setattr(time, "time_ns", time_ns)
            async with Turns() as turns:
                for _ in range(10_000):
                    await receipt.delivered()
            assert turns.count >= 10_000 // calls - 1

    run(main())


def test_what_is_delivered_can_be_asked_for_after_the_stop_without_a_turn(run: Run, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            receipt = await producer.publish(TOPIC, b"v")
            await producer.flush(FLUSH_MS)
        for _ in range(1000):
            assert (await receipt.delivered()).offset == 0

    run(main())


def test_publish_takes_no_turn_of_its_own_while_the_loop_has_turns_anyway(
    run: Run, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)  # so that only the calls count

    async def main() -> None:
        async with started() as producer:
            for number in range(3_000):
                _, awaits = await cancelled_by_hand(producer.publish(TOPIC, b"v"), at=1)
                assert awaits == 0
                if number % 100 == 0:
                    await asyncio.sleep(0)

    run(main())


# -- cancelling -------------------------------------------------------------------------------------------------------


async def cancelled_by_hand(coroutine: Coroutine[Any, Any, Receipt], at: int) -> tuple[Receipt | None, int]:
    """Drive it, without a task, to its `at`-th await and cancel it there; its receipt, and how many awaits it had."""
    for step in range(at):
        try:
            coroutine.send(None)
        except StopIteration as done:
            receipt: Receipt = done.value
            return receipt, step
    try:
        coroutine.throw(asyncio.CancelledError())
    except asyncio.CancelledError:
        return None, at
    except StopIteration as done:
        raise AssertionError(f"a cancelled publish went on: {at=}") from done
    coroutine.close()
    raise AssertionError(f"a cancelled publish waits again: {at=}")


def test_publish_cancelled_where_it_gives_its_turn_has_stored_nothing(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)
            cancelled = 0
            for _ in range(20_000):  # without a turn of the loop in between: every 256th wants one
                before = producer.statistics().accepted if cancelled < 5 else -1
                key, value = publishers.next("hand")
                receipt, _awaits = await cancelled_by_hand(producer.publish(TOPIC, value, key=key), at=1)
                if receipt is not None:
                    publishers.enter(receipt, key, value)
                    continue
                cancelled += 1
                assert before in (-1, producer.statistics().accepted)
            assert cancelled >= 50
            assert producer.statistics().accepted == len(publishers.accepted)
            await publishers.assert_delivered_once(cluster)

    run(main())


def test_publish_cancelled_before_it_began_has_stored_nothing(run: Run, cluster: MockCluster, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)
            for _ in range(10):
                key, value = publishers.next("never")
                receipt, _awaits = await cancelled_by_hand(producer.publish(TOPIC, value, key=key), at=0)
                assert receipt is None
                await publishers.publish("afterwards")
            await publishers.assert_delivered_once(cluster)

    run(main())


def test_a_task_cancelled_at_any_step_has_published_just_what_it_was_told(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)

            async def publish() -> None:
                for number in itertools.count():
                    await publishers.publish(f"victim {number % 16}")  # every partition: the mock keeps 5 MiB of each

            for turns in range(24):
                victim = asyncio.create_task(publish())
                for _ in range(turns % 12):
                    await asyncio.sleep(0)
                victim.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await victim
                await publishers.publish("afterwards")
            assert producer.statistics().accepted == len(publishers.accepted)
            await publishers.assert_delivered_once(cluster)

    run(main())


def test_publish_cancelled_while_it_waits_for_room_has_stored_nothing(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    async def main() -> None:
        cluster.broker_down()
        options = {"on_full": "wait", "full_timeout_ms": 60_000, "wal_max_bytes": 6 * SLOT}
        async with started(connected=False, **options) as producer:
            publishers = Publishers(producer)
            fill(publishers)
            full = producer.statistics().accepted
            key, value = publishers.next("by hand")
            for _ in range(3):
                receipt, _awaits = await cancelled_by_hand(waiting_for_room(producer, key, value), at=1)
                assert receipt is None
            waiting = [asyncio.create_task(publishers.publish(f"waits {number}")) for number in range(20)]
            for turn in range(10):  # at each turn another one, some before they have begun
                waiting[turn].cancel()
                await asyncio.sleep(0)
            assert producer.statistics().accepted == full == len(publishers.accepted)
            cluster.broker_up()
            told = await asyncio.gather(*waiting, return_exceptions=True)
            assert [isinstance(each, asyncio.CancelledError) for each in told] == [True] * 10 + [False] * 10
            assert len(publishers.accepted) == full + 10
            await publishers.assert_delivered_once(cluster)

    run(main())


def fill(publishers: Publishers) -> None:
    with suppress(WalFullError):
        while True:
            publishers.publish_nowait("before")


async def waiting_for_room(producer: RecoverableProducer, key: bytes, value: bytes) -> Receipt:
    """As publish, but without the turn: its first await is for room."""
    producer._turn_ends = 1 << 63
    return await producer.publish(TOPIC, value, key=key)


def test_publish_cancelled_while_it_waits_for_the_disk_may_be_delivered_and_harms_nobody(
    run: Run, cluster: MockCluster, started: Started
) -> None:
    """With fsync="always" it is in the ring by then: as with any commit that nobody heard of, its fate is open."""

    async def main() -> None:
        async with started(fsync="always") as producer:
            publishers = Publishers(producer)
            unheard: list[asyncio.Task[Receipt]] = []
            for _ in range(30):
                tasks = [asyncio.create_task(publishers.publish(f"publisher {number}")) for number in range(10)]
                await asyncio.sleep(0)  # all have stored, and wait for one fdatasync
                for victim in tasks[::3]:
                    victim.cancel()
                    unheard.append(victim)
                await asyncio.gather(*tasks, return_exceptions=True)
            assert all(victim.cancelled() for victim in unheard)
            assert len(publishers.accepted) == 30 * 6
            await producer.flush(FLUSH_MS)
            verdict = await publishers.judged(cluster)
            assert verdict.ok, str(verdict)
            assert verdict.repeated == 0
            statistics = producer.statistics()
            assert statistics.accepted == statistics.delivered
            # Stored and delivered, and nobody was told; but for those that were to give a turn before they stored.
            assert len(verdict.foreign) == statistics.accepted - len(publishers.accepted)
            assert len(unheard) - 2 <= len(verdict.foreign) <= len(unheard)

    run(main())


def test_a_cancelled_wait_for_a_delivery_changes_nothing(run: Run, cluster: MockCluster, started: Started) -> None:
    async def main() -> None:
        async with started() as producer:
            publishers = Publishers(producer)
            for turns in range(30):
                receipt = await publishers.publish("told")
                waits: list[Awaitable[DeliveryReport]] = []
                victim = asyncio.create_task(receipt.delivered())
                waits.append(asyncio.create_task(receipt.delivered()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                victim.cancel()
                (report,) = await asyncio.gather(*waits)
                assert report.record_id == receipt.record_id
                await asyncio.gather(victim, return_exceptions=True)
            await publishers.assert_delivered_once(cluster)

    run(main())
