"""Other processes: many on one wal_dir, several for one instance, helpers that outlive whoever started them."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest

from aiorecover import RecoverableProducer, WalLockedError
from aiorecover.testing import MockCluster
from tests.faults.ledger import NOWHERE, SMALL, TOPIC, Ledger
from tests.faults.scene import REPOSITORY
from tests.support.oracle import Accepted

WITHIN = 60  # seconds that anything here may take
NUMBERED = {name: value for name, value in SMALL.items() if name not in {"instance", "full_timeout_ms"}}
CLOSED_AT_ONCE = {**NUMBERED, "stop_timeout_ms": 0}


class Other:
    """Another process, which runs one of the lives below; it is killed in the end if it is still there."""

    def __init__(self, life: str, wal: Path, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.test_processes", life, str(wal), json.dumps(options)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # helpers that outlive it are found by its group
        )

    def hear(self) -> Any:
        """The next thing that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended without a word: status {self._process.wait(WITHIN)}"
        return json.loads(line)

    def go_on(self) -> None:
        """Let it do the next step."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """``kill -9``, of itself alone."""
        self._process.kill()
        self._process.wait(WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WITHIN)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


# -- lives, in the other process -------------------------------------------------------------------------------------


def say(what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


async def wait_for_word() -> None:
    assert await asyncio.to_thread(sys.stdin.readline), "nobody is there any more"


async def publish(wal: Path, options: dict[str, Any], count: int = 50) -> None:
    """Start when told, publish, say what was accepted; then publish on until killed, or told to stop."""
    ledger = Ledger()
    say("ready")
    await wait_for_word()
    try:
        async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **{**CLOSED_AT_ONCE, **options}) as producer:
            await ledger.publish_all(producer, count)
            assert producer.wal_path is not None
            say({"number": producer.wal_path.name, "id": producer.producer_id, "epoch": producer.epoch})
            say([[one.record_id, (one.key or b"").decode(), (one.value or b"").decode()] for one in ledger.accepted])
            await wait_for_word()
            say(await producer.stop())
    except WalLockedError as error:
        say({"locked": str(error)})


async def start_helper(wal: Path, options: dict[str, Any]) -> None:
    """Publish, start a helper, and wait to be killed."""
    helper = options.pop("helper")
    async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **{**CLOSED_AT_ONCE, **options}) as producer:
        ledger = Ledger()
        await ledger.publish_all(producer, 30)
        say(HELPERS[helper]())
        await ledger.publish_all(producer, 30)
        say([[one.record_id, (one.key or b"").decode(), (one.value or b"").decode()] for one in ledger.accepted])
        await asyncio.sleep(WITHIN)


KEPT: list[Any] = []
"""What must not be collected while the helper lives."""


def sleep() -> None:
    time.sleep(WITHIN)


def of_multiprocessing(method: str) -> int:
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=sleep)
    process.start()
    KEPT.append(process)
    return int(process.pid)


def of_a_pool() -> int:
    pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    pid: int = pool.submit(os.getpid).result()
    pool.submit(sleep)
    KEPT.append(pool)
    return pid


def by_posix_spawn() -> int:
    return os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], os.environ)


def by_the_shell() -> int:
    told = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], capture_output=True, check=True, close_fds=False
    )
    return int(told.stdout)


def behind_pythons_back() -> int:
    """A C library that forks by itself and never executes anything: Python's hooks do not run in its child."""
    libc = ctypes.CDLL(None)
    pid = int(ctypes.PyDLL(None).fork())
    if pid == 0:
        libc.sleep(WITHIN)
        libc._exit(0)
    return pid


HELPERS = {
    "fork": lambda: of_multiprocessing("fork"),
    "forkserver": lambda: of_multiprocessing("forkserver"),
    "spawn": lambda: of_multiprocessing("spawn"),
    "pool": of_a_pool,
    "posix_spawn": by_posix_spawn,
    "shell": by_the_shell,
    "C": behind_pythons_back,
}


# -- many on one wal_dir ---------------------------------------------------------------------------------------------


def records(lines: list[list[str]]) -> list[Accepted]:
    return [Accepted(record_id, key.encode(), value.encode()) for record_id, key, value in lines]


def start_together(others: list[Other]) -> None:
    for other in others:
        assert other.hear() == "ready"
    for other in others:
        other.go_on()


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    return tmp_path / "wal"


def test_processes_that_start_at_the_same_moment_take_a_directory_each_and_successors_find_every_record(
    wal: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(Other("publish", wal)) for _ in range(4)]
        start_together(first)
        told = [other.hear() for other in first]
        assert sorted(one["number"] for one in told) == ["0", "1", "2", "3"]
        assert len({one["id"] for one in told}) == 4
        accepted = [record for other in first for record in records(other.hear())]
        assert len({record.record_id for record in accepted}) == 200
        for other in first[:2]:
            other.kill()
        for other in first[2:]:
            other.go_on()
            assert other.hear() == 50
    with contextlib.ExitStack() as stack:
        second = [stack.enter_context(Other("publish", wal)) for _ in range(4)]
        start_together(second)
        again = [other.hear() for other in second]
        assert {one["id"][:7] for one in again} == {one["id"][:7] for one in told}
        assert {one["id"] for one in again}.isdisjoint(one["id"] for one in told)
        assert {one["epoch"] for one in again} == {2}
        accepted += [record for other in second for record in records(other.hear())]
        for other in second:
            other.kill()
    asyncio.run(deliver(wal, accepted, 4))


async def deliver(wal: Path, accepted: list[Accepted], instances: int) -> None:
    """Everything of so many directories reaches Kafka, once."""
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(instances):
                producer = RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **NUMBERED)
                await stack.enter_async_context(producer)
                await producer.flush(timeout_ms=30_000)
                figures = producer.statistics()
                assert figures.recovered == figures.delivered
                assert (figures.pending, figures.missing) == (0, 0)
        await Ledger(accepted=accepted).check_kafka(cluster.bootstrap_servers)


def test_of_processes_that_want_one_instance_one_has_it_and_the_next_gets_it_when_that_is_killed(wal: Path) -> None:
    options = {"instance": "orders", "full_timeout_ms": 400}
    with contextlib.ExitStack() as stack:
        rivals = [stack.enter_context(Other("publish", wal, **options)) for _ in range(3)]
        start_together(rivals)
        told = [other.hear() for other in rivals]
        (winner,) = [other for other, one in zip(rivals, told, strict=True) if "number" in one]
        pid = winner._process.pid
        refused = [one["locked"] for one in told if "locked" in one]
        assert len(refused) == 2
        assert all(f"stop it, or choose another instance path={wal}/orders pid={pid}" in one for one in refused)
        accepted = records(winner.hear())
        heir = stack.enter_context(Other("publish", wal, instance="orders", full_timeout_ms=WITHIN * 1000))
        start_together([heir])
        time.sleep(0.3)  # it waits for the lock by now
        winner.kill()
        assert heir.hear()["epoch"] == 2
        accepted += records(heir.hear())
        heir.kill()
    asyncio.run(deliver_named(wal, accepted))


async def deliver_named(wal: Path, accepted: list[Accepted]) -> None:
    options = {**SMALL, "instance": "orders", "full_timeout_ms": 1}
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
            await producer.flush(timeout_ms=30_000)
        await Ledger(accepted=accepted).check_kafka(cluster.bootstrap_servers)


# -- helpers that outlive their parent -------------------------------------------------------------------------------


@pytest.mark.parametrize("helper", [name for name in HELPERS if name != "C"])
def test_a_helper_that_outlives_its_killed_parent_does_not_hold_the_lock(wal: Path, helper: str) -> None:
    with Other("start_helper", wal, instance="orders", helper=helper) as parent:
        pid = parent.hear()
        accepted = records(parent.hear())
        assert len(accepted) == 60
        parent.kill()
        os.kill(pid, 0)  # it is still there
        asyncio.run(deliver_named(wal, accepted))
        os.kill(pid, 0)
        os.kill(pid, signal.SIGKILL)


def test_a_child_that_c_code_forked_behind_pythons_back_holds_the_lock_as_long_as_it_lives_and_no_longer(
    wal: Path,
) -> None:
    """Promised: no second process beside it, and nothing lost. Not: that the directory is free before it ends."""
    with Other("start_helper", wal, instance="orders", helper="C") as parent:
        pid = parent.hear()
        accepted = records(parent.hear())
        parent.kill()
        with pytest.raises(WalLockedError, match="another process holds the instance directory: stop it"):
            asyncio.run(deliver_named(wal, accepted))
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        asyncio.run(deliver_named(wal, accepted))


def wait_until_gone(pid: int) -> None:
    """It is nobody's child of ours: its files are closed when nothing but a zombie is left of it."""
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the helper does not end")


if __name__ == "__main__":
    lives = {"publish": publish, "start_helper": start_helper}
    asyncio.run(lives[sys.argv[1]](Path(sys.argv[2]), json.loads(sys.argv[3])))
