"""Forks: a child has the memory of a running producer, and must neither use it nor keep hold of its directory."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from aiorecover import ClosedError, RecoverableProducer, WalLockedError
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, judge, read_topic

NOWHERE = "127.0.0.1:1"  # no broker listens there
WITHIN = 60  # seconds that anything here may take

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: that is what is tested here
        return os.fork()


class Child:
    """A forked child that does some work, tells its result as JSON, and then waits until it is let go.

    Use it with ``with``: the child is killed at the end if it is still there.
    """

    def __init__(self, work: Callable[[], Any], *, leave: Callable[[], Any] = lambda: os._exit(0)) -> None:
        results, answer = os.pipe()
        held, self._hold = os.pipe()
        self.pid = fork()
        if self.pid == 0:
            os.close(results)
            os.close(self._hold)
            self._live(work, answer, held, leave)
        os.close(answer)
        os.close(held)
        self._results = results
        self._ended = False

    @staticmethod
    def _live(work: Callable[[], Any], answer: int, held: int, leave: Callable[[], Any]) -> None:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WITHIN)  # a child that hangs must not stay for ever
            try:
                told = {"result": work()}
            except BaseException:  # noqa: BLE001 - told to the parent
                told = {"error": traceback.format_exc()}
            os.write(answer, json.dumps(told).encode() + b"\n")
            os.read(held, 1)  # until the parent lets go, or is gone
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not run the parent's tests
            os._exit(99)
        leave()

    def result(self) -> Any:
        """What the work returned; the child lives on."""
        with os.fdopen(os.dup(self._results), "rb") as stream:
            told = json.loads(stream.readline())
        assert "error" not in told, told["error"]
        return told["result"]

    def end(self) -> int:
        """Let the child go; its exit code."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(BrokenPipeError):
                os.write(self._hold, b".")  # not only closed: children forked later have it open too
            os.close(self._hold)
            os.close(self._results)
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.end()


@asynccontextmanager
async def producing(wal: Path, servers: str = NOWHERE, **options: Any) -> AsyncIterator[RecoverableProducer]:
    options.setdefault("stop_timeout_ms", 1000 if servers == NOWHERE else 20_000)
    async with RecoverableProducer(wal, bootstrap_servers=servers, **options) as producer:
        yield producer


def refusal(call: Callable[[], Any]) -> str:
    """The message of the ClosedError that a call, or the coroutine that it returns, raises."""
    try:
        result = call()
        if asyncio.iscoroutine(result):
            asyncio.run(asyncio.wait_for(result, 5))
    except ClosedError as error:
        return str(error)
    return f"not refused: {result!r}"


async def number_of_records(wal: Path, **options: Any) -> int:
    """How many records a successor finds in the directory."""
    async with producing(wal, **options) as successor:
        assert successor.wal_path is not None
        assert successor.wal_path.name in {"0", "orders"}, "a child holds the directory locked"
        await asyncio.sleep(0.2)
        figures = successor.statistics()
        return figures.pending + figures.unread


# --- what the child may do


@pytest.mark.asyncio
async def test_in_a_forked_child_everything_is_refused_and_names_the_parent(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    async with producing(tmp_path, kafka.bootstrap_servers) as producer:
        receipt = await producer.publish(name, b"0")
        calls: dict[str, Callable[[], Any]] = {
            "publish": lambda: producer.publish(name, b"child"),
            "publish_nowait": lambda: producer.publish_nowait(name, b"child"),
            "publish_threadsafe": lambda: producer.publish_threadsafe(name, b"child").result(5),
            "send": lambda: producer.send(name, b"child"),
            "send_and_wait": lambda: producer.send_and_wait(name, b"child"),
            "flush": producer.flush,
            "partitions_for": lambda: producer.partitions_for(name),
            "statistics": producer.statistics,
            "delivered": lambda: receipt.delivered(timeout_ms=100),
            "start": producer.start,
        }

        def try_everything() -> dict[str, Any]:
            refused = {one: refusal(call) for one, call in calls.items()}
            return {**refused, "stop": asyncio.run(producer.stop()), "state": producer.state}

        with Child(try_everything) as child:
            told = child.result()
            assert (told.pop("stop"), told.pop("state")) == (0, "forked")
            assert {one: text for one, text in told.items() if "parent" not in text} == {}
            assert all("make a new one" in text for text in told.values())
            await producer.publish(name, b"1")
            assert child.end() == 0
        await producer.publish(name, b"2")
        await producer.flush(timeout_ms=20_000)
        figures = producer.statistics()
        assert (figures.accepted, figures.delivered, figures.pending) == (3, 3, 0)
    assert [record.value for record in await read_topic(kafka.bootstrap_servers, name)] == [b"0", b"1", b"2"]


@pytest.mark.asyncio
async def test_a_producer_that_was_not_started_before_the_fork_belongs_to_whoever_starts_it(tmp_path: Path) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=200)

    def start_and_publish() -> list[Any]:
        async def life() -> list[Any]:
            await producer.start()
            receipt = await producer.publish("t", b"child")
            assert producer.wal_path is not None
            return [producer.wal_path.name, receipt.sequence, await producer.stop()]

        return asyncio.run(life())

    with Child(start_and_publish) as child:
        assert child.result() == ["0", 1, 1]
    await producer.start()
    assert producer.epoch == 2
    assert await producer.stop() == 1


@pytest.mark.asyncio
async def test_a_child_of_a_child_is_refused_as_well(tmp_path: Path) -> None:
    async with producing(tmp_path) as producer:

        def fork_again() -> str:
            with Child(lambda: refusal(lambda: producer.publish_nowait("t", b"v"))) as grandchild:
                text: str = grandchild.result()
                return text

        with Child(fork_again) as child:
            assert "parent" in child.result()


# --- what the child leaves as it is


def exit_by_python() -> None:
    raise SystemExit(3)


def fail() -> None:
    raise RuntimeError("a bug in the child")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.asyncio
@pytest.mark.parametrize("leave", [lambda: os._exit(0), killed], ids=["exit", "kill"])
async def test_a_child_that_ends_neither_unlocks_nor_damages(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, leave: Callable[[], Any]
) -> None:
    name = topic(kafka)
    accepted = []
    options = {"instance": "orders", "slot_bytes": 65536, "max_batch_size": 16384}
    async with producing(tmp_path, kafka.bootstrap_servers, **options) as producer:
        for round_number in range(5):
            children = []
            for number in range(400):
                key, value = b"k%d" % (number % 7), b"%d-%d" % (round_number, number) * 20
                receipt = await producer.publish(name, value, key=key)
                accepted.append(Accepted(receipt.record_id, key, value))
                if number in {100, 300}:  # in the middle of everything: a full slot, batches on their way
                    children.append(Child(lambda: refusal(lambda: producer.publish_nowait(name, b"v")), leave=leave))
            for child in children:
                with child:
                    assert "parent" in child.result()
                    child.end()
            with pytest.raises(WalLockedError, match="this very process holds"):
                await RecoverableProducer(
                    tmp_path, bootstrap_servers=NOWHERE, instance="orders", full_timeout_ms=1
                ).start()
        await producer.flush(timeout_ms=30_000)
        assert producer.statistics().delivered == 2000
    verdict = judge(accepted, await read_topic(kafka.bootstrap_servers, name))
    assert verdict.ok, str(verdict)
    assert (verdict.repeated, verdict.foreign) == (0, [])


@pytest.mark.asyncio
async def test_a_child_that_outlives_the_stopped_parent_does_not_hold_the_directory(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as parent:
        producer = await parent.enter_async_context(producing(tmp_path))
        await producer.publish("t", b"v")
        with Child(lambda: None) as child:
            child.result()
            await parent.aclose()
            assert await number_of_records(tmp_path) == 1


# --- processes of their own: the parent dies, or the child runs the parent's loop to its end


class Process:
    """A process with a loop of its own, forked from a test that has none; it tells lines of JSON."""

    def __init__(self, life: Callable[[Callable[[Any], int]], Coroutine[Any, Any, None]]) -> None:
        results, answer = os.pipe()
        self.pid = fork()
        if self.pid == 0:
            os.close(results)
            code = 98
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(WITHIN)
                asyncio.run(life(lambda told: os.write(answer, json.dumps(told).encode() + b"\n")))
                code = 0
            except SystemExit as left:
                code = int(left.code or 0)
            except BaseException:  # noqa: BLE001 - shown, and never let into the tests of the parent
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(answer)
        self._stream = os.fdopen(results, "rb")

    def told(self) -> Any:
        """The next thing that it tells; a forked child of its own may tell as well."""
        line = self._stream.readline()
        assert line, "the process ended without a word: see its output"
        return json.loads(line)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._stream.close()


@pytest.fixture
def helpers() -> Iterator[list[int]]:
    """Process ids to be killed in the end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def spawned_helper() -> int:
    """A program that keeps every descriptor that it is given."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False).pid


def forked_helper() -> int:
    pid = fork()
    if pid == 0:
        time.sleep(WITHIN)
        os._exit(0)
    return pid


@pytest.mark.parametrize("helper", [forked_helper, spawned_helper])
def test_a_helper_that_outlives_its_killed_parent_does_not_keep_the_directory_from_a_successor(
    tmp_path: Path, helpers: list[int], helper: Callable[[], int]
) -> None:
    async def life(tell: Callable[[Any], int]) -> None:
        async with producing(tmp_path, instance="orders") as producer:
            for number in range(100):
                await producer.publish("t", b"%d" % number)
            pid = helper()
            for number in range(100, 150):
                await producer.publish("t", b"%d" % number)
            tell(pid)
            await asyncio.sleep(WITHIN)

    parent = Process(life)
    helpers.append(parent.told())
    time.sleep(0.2)
    parent.kill()
    os.kill(helpers[0], 0)  # it is still there
    assert asyncio.run(number_of_records(tmp_path, instance="orders", full_timeout_ms=100)) == 150
    os.kill(helpers[0], 0)


def still_there(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG) == (0, 0)


@pytest.mark.parametrize("leave", [exit_by_python, fail])
def test_a_child_that_runs_the_parent_s_program_to_its_end_leaves_the_parent_working(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, leave: Callable[[], None]
) -> None:
    """`sys.exit` in the child of a fork: it leaves every `async with` and closes its copy of the loop.

    With it goes what wakes the parent's loop from other threads: both share one epoll. That is asyncio's, and no
    business of ours; records are delivered all the same.
    """
    name = topic(kafka)

    async def life(tell: Callable[[Any], int]) -> None:
        async with producing(tmp_path, kafka.bootstrap_servers, stop_timeout_ms=40_000) as producer:
            await (await producer.publish(name, b"before")).delivered(20_000)
            pid = fork()
            if pid == 0:
                leave()
            while still_there(pid):  # noqa: ASYNC110 - waiting in a thread would need the wake-up
                await asyncio.sleep(0.05)
            await producer.publish(name, b"after")
            await producer.flush(timeout_ms=40_000)
            figures = producer.statistics()
            tell([figures.accepted, figures.delivered, figures.pending])
            os._exit(0)  # asyncio would wait for its threads, and nothing wakes it

    parent = Process(life)
    assert parent.told() == [2, 2, 0]
    parent.kill()
    values = [record.value for record in asyncio.run(read_topic(kafka.bootstrap_servers, name))]
    assert sorted(value or b"" for value in values) == [b"after", b"before"]


def work(wal: str, servers: str, topic: str, worker: int, told: Any, together: Any) -> None:
    """A multiprocessing worker with a producer of its own."""

    async def life() -> None:
        async with producing(Path(wal), servers) as producer:
            assert producer.wal_path is not None
            records = []
            for number in range(200):
                value = b"%d-%d" % (worker, number)
                receipt = await producer.publish(topic, value, key=b"%d" % worker)
                records.append([receipt.record_id, value.decode()])
            await producer.flush(timeout_ms=30_000)
            await asyncio.to_thread(together.wait, WITHIN)  # who is done first must not hand on its number
            told.put([worker, producer.wal_path.name, records])

    asyncio.run(life())


@pytest.mark.asyncio
async def test_forked_workers_with_producers_of_their_own_take_numbers_of_their_own(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka)
    accepted, numbers = [], {"0"}
    forking = multiprocessing.get_context("fork")
    told, together = forking.SimpleQueue(), forking.Barrier(3)
    async with producing(tmp_path, kafka.bootstrap_servers) as producer:
        assert producer.wal_path is not None
        assert producer.wal_path.name == "0"
        workers = [
            forking.Process(target=work, args=(str(tmp_path), kafka.bootstrap_servers, name, number, told, together))
            for number in range(3)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for worker in workers:
                worker.start()
        for number in range(200):
            value = b"parent-%d" % number
            receipt = await producer.publish(name, value, key=b"parent")
            accepted.append(Accepted(receipt.record_id, b"parent", value))
        await producer.flush(timeout_ms=30_000)
        for _ in workers:
            worker_number, directory_name, records = await asyncio.to_thread(told.get)
            numbers.add(directory_name)
            key = b"%d" % worker_number
            accepted += [Accepted(record_id, key, value.encode()) for record_id, value in records]
        for worker in workers:
            await asyncio.to_thread(worker.join, WITHIN)
            assert worker.exitcode == 0
    assert numbers == {"0", "1", "2", "3"}
    verdict = judge(accepted, await read_topic(kafka.bootstrap_servers, name))
    assert verdict.ok, str(verdict)
    assert (verdict.accepted, verdict.repeated, verdict.foreign) == (800, 0, [])
