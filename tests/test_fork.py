"""Forks: a child has the memory of a running producer, and must neither use it nor keep hold of its directory."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from aiorecover import ClosedError, RecoverableProducer, WalLockedError
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.published import NOWHERE, WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

WITHIN_S = 60  # that anything here may take


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: that is what is tested here
        return os.fork()


class Child:
    """A forked child that does some work, reports its result as JSON, and waits until it may go.

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
            signal.alarm(WITHIN_S)  # a child that hangs must not stay for ever
            try:
                told = {"result": work()}
            except BaseException:  # noqa: BLE001 - reported to the parent
                told = {"error": traceback.format_exc()}
            os.write(answer, json.dumps(told).encode() + b"\n")
            os.read(held, 1)  # until the parent lets go, or is gone
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not run the parent's tests
            os._exit(99)
        leave()

    def result(self) -> Any:
        """Return the work's result; the child lives on."""
        with os.fdopen(os.dup(self._results), "rb") as stream:
            told = json.loads(stream.readline())
        assert "error" not in told, told["error"]
        return told["result"]

    def end(self) -> int:
        """Let the child go; its exit code."""
        if self._ended:
            return 0
        self._ended = True
        with contextlib.suppress(BrokenPipeError):
            os.write(self._hold, b".")  # not only closed: children forked later have it open too
        os.close(self._hold)
        os.close(self._results)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.end()


def refusal(call: Callable[[], Any]) -> str:
    """The message of the ClosedError that a call, or the coroutine that it returns, raises."""
    try:
        result = call()
        if asyncio.iscoroutine(result):
            asyncio.run(asyncio.wait_for(result, 5))
    except ClosedError as error:
        return str(error)
    return f"not refused: {result!r}"


async def test_in_a_forked_child_everything_is_refused_and_the_parent_goes_on(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        receipt = await producer.publish(name, b"0")
        calls: dict[str, Callable[[], Any]] = {
            "publish": lambda: producer.publish(name, b"child"),
            "publish_nowait": lambda: producer.publish_nowait(name, b"child"),
            "publish_threadsafe": lambda: producer.publish_threadsafe(name, b"child").result(5),
            "send": lambda: producer.send(name, b"child"),
            "flush": producer.flush,
            "partitions_for": lambda: producer.partitions_for(name),
            "statistics": producer.statistics,
            "delivered": lambda: receipt.delivered(timeout_ms=100),
            "start": producer.start,
            "dead letters": producer.dead_letters.requeue,
        }

        def try_everything() -> dict[str, Any]:
            refused = {one: refusal(call) for one, call in calls.items()}
            with Child(lambda: refusal(lambda: producer.publish_nowait("t", b"v"))) as grandchild:
                refused["grandchild"] = grandchild.result()
            return {**refused, "stop": asyncio.run(producer.stop()), "state": producer.state}

        with Child(try_everything) as child:
            told = child.result()
            assert (told.pop("stop"), told.pop("state")) == (0, "forked")
            assert {one: text for one, text in told.items() if "belongs to the parent process" not in text} == {}
            await producer.publish(name, b"1")
            assert child.end() == 0
        await producer.publish(name, b"2")
        await producer.flush(WITHIN_MS)
        figures = producer.statistics()
        assert (figures.accepted, figures.delivered, figures.pending) == (3, 3, 0)
    assert [record.value for record in await read_topic(kafka.bootstrap_servers, name)] == [b"0", b"1", b"2"]


async def test_a_producer_that_was_not_started_before_the_fork_belongs_to_the_process_that_starts_it(
    tmp_path: Path,
) -> None:
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, stop_timeout_ms=200)

    def start_and_publish() -> list[Any]:
        async def life() -> list[Any]:
            await producer.start()
            receipt = await producer.publish("t", b"child")
            return [receipt.record_id.split("/")[1:], await producer.stop()]

        return asyncio.run(life())

    with Child(start_and_publish) as child:
        assert child.result() == [["1", "1"], 1]
    await producer.start()
    assert producer.epoch == 2
    assert await producer.stop() == 1


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("leave", [lambda: os._exit(0), killed], ids=["exit", "kill"])
async def test_children_that_end_neither_unlock_nor_damage(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, leave: Callable[[], Any]
) -> None:
    name, published = topic(kafka), Published()
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "instance": "orders"}
    async with RecoverableProducer(tmp_path, **options) as producer:
        for _ in range(5):
            await published.publish(producer, name, 300)  # in the middle of everything: batches on their way
            with Child(lambda: refusal(lambda: producer.publish_nowait(name, b"v")), leave=leave) as child:
                await published.publish(producer, name, 100)
                assert "parent" in child.result()
                child.end()
            with pytest.raises(WalLockedError):
                await RecoverableProducer(tmp_path, **options, full_timeout_ms=1).start()
        await producer.flush(WITHIN_MS)
    perfect(await published.judged(kafka, name))


# -- children that outlive the producer --------------------------------------------------------------------------------

LEFT = """
import asyncio, os, subprocess, sys, time
from aiorecover import RecoverableProducer

async def main():
    async with RecoverableProducer(sys.argv[1], bootstrap_servers="127.0.0.1:1", instance="orders") as producer:
        for number in range(100):
            await producer.publish("t", b"%d" % number)
        if sys.argv[2] == "forked":
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
        else:
            pid = subprocess.Popen(["sleep", "60"], close_fds=False).pid
        print(pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def leave_behind(wal: str, helper: str) -> int:
    """Run that, and kill it; return the process that survives it."""
    with subprocess.Popen([sys.executable, "-c", LEFT, wal, helper], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    return pid


@pytest.mark.parametrize("helper", ["forked", "spawned"])
async def test_a_helper_that_outlives_its_killed_parent_does_not_keep_the_directory_from_a_successor(
    tmp_path: Path, helper: str
) -> None:
    pid = await asyncio.to_thread(leave_behind, str(tmp_path), helper)
    try:
        os.kill(pid, 0)  # it is still there
        options: dict[str, Any] = {"instance": "orders", "full_timeout_ms": 100, "stop_timeout_ms": 0}
        async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, **options) as successor:
            assert successor.epoch == 2
            await until(lambda: successor.statistics().recovered == 100)
    finally:
        os.kill(pid, signal.SIGKILL)


def work(wal: str, servers: str, topic: str, worker: int, told: Any, together: Any) -> None:
    """A multiprocessing worker with a producer of its own."""

    async def life() -> None:
        async with RecoverableProducer(wal, bootstrap_servers=servers) as producer:
            records = []
            for number in range(200):
                value = b"%d-%d" % (worker, number)
                receipt = await producer.publish(topic, value, key=b"%d" % worker)
                records.append([receipt.record_id, value.decode()])
            await producer.flush(WITHIN_MS)
            await asyncio.to_thread(together.wait, WITHIN_S)  # the first one to end must not hand on its number
            assert producer.wal_path is not None
            told.put([worker, producer.wal_path.name, records])

    asyncio.run(life())


async def test_forked_workers_with_producers_of_their_own_take_numbers_of_their_own(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, numbers = topic(kafka), {"0"}
    accepted: list[Accepted] = []
    forking = multiprocessing.get_context("fork")
    told, together = forking.SimpleQueue(), forking.Barrier(3)
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await (await producer.publish(name, b"parent", key=b"parent")).delivered(WITHIN_MS)
        workers = [
            forking.Process(target=work, args=(str(tmp_path), kafka.bootstrap_servers, name, number, told, together))
            for number in range(3)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for worker in workers:
                worker.start()
        for _ in workers:
            worker_number, directory_name, records = await asyncio.to_thread(told.get)
            numbers.add(directory_name)
            key = b"%d" % worker_number
            accepted += [Accepted(record_id, key, value.encode()) for record_id, value in records]
        for worker in workers:
            await asyncio.to_thread(worker.join, WITHIN_S)
            assert worker.exitcode == 0
    assert numbers == {"0", "1", "2", "3"}
    verdict = judge(accepted, await read_topic(kafka.bootstrap_servers, name))
    assert verdict.ok, str(verdict)
    assert (verdict.accepted, verdict.repeated) == (600, 0)
