"""Group commit: a publisher is released only by an fdatasync that began after its store."""

import asyncio
from collections.abc import Awaitable, Callable
from errno import ETIMEDOUT
from typing import TYPE_CHECKING

import pytest

from aiorecover.errors import ClosedError, WalIOError
from aiorecover.wal import sync
from aiorecover.wal.keeper import Keeper
from aiorecover.wal.sync import GroupCommit
from tests.wal.rig import Opened, found

if TYPE_CHECKING:
    from tests.wal.memory import FaultyFile


class SlowDisk:
    """Syncs that end when they are told to; remembers what was stored when each began."""

    def __init__(self) -> None:
        self.stored = 0
        self.durable = 0
        self.running: list[asyncio.Future[None]] = []
        self.most = 0

    async def sync(self) -> None:
        covered = self.stored
        end = asyncio.get_running_loop().create_future()
        self.running.append(end)
        self.most = max(self.most, len(self.running))
        try:
            await end
        finally:
            self.running.remove(end)
        self.durable = covered

    def store(self) -> int:
        self.stored += 1
        return self.stored

    async def end(self, error: Exception | None = None) -> None:
        """Let the running one end, and everybody see it."""
        (running,) = self.running
        if error is None:
            running.set_result(None)
        else:
            running.set_exception(error)
        await settle()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def publisher(disk: SlowDisk, commit: GroupCommit, *, patient: bool = False) -> "asyncio.Task[int]":
    """Stores, waits, and then the disk must have it."""

    async def publish() -> int:
        number = disk.store()
        await (commit.durable(patient=True) if patient else commit.durable())
        assert disk.durable >= number
        return number

    return asyncio.create_task(publish())


@pytest.mark.asyncio
async def test_who_comes_while_a_sync_runs_waits_for_the_next_one() -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    first = publisher(disk, commit)
    await settle()
    late = [publisher(disk, commit) for _ in range(3)]
    await settle()
    assert len(disk.running) == 1
    await disk.end()
    assert first.done()
    assert not any(task.done() for task in late)
    await disk.end()
    assert [task.result() for task in late] == [2, 3, 4]
    assert disk.running == []


@pytest.mark.asyncio
async def test_a_thousand_publishers_need_two_syncs_and_one_runs_at_a_time() -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    syncs = 0
    first = publisher(disk, commit)
    await settle()
    others = [publisher(disk, commit) for _ in range(1000)]
    await settle()
    while disk.running:
        await disk.end()
        syncs += 1
    await asyncio.gather(first, *others)
    assert (syncs, disk.most) == (2, 1)


@pytest.mark.asyncio
async def test_a_publisher_that_was_released_can_publish_at_once() -> None:
    """By then the flush has ended, and nobody was told of that yet."""
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)

    async def publish_twice() -> None:
        for _ in range(2):
            disk.store()
            await commit.durable()

    publishing = asyncio.create_task(publish_twice())
    for _ in range(2):
        await settle()
        await disk.end()
    await publishing
    assert disk.durable == 2


@pytest.mark.asyncio
async def test_waves_of_publishers_are_never_released_too_early() -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    tasks = []
    for wave in range(30):
        tasks += [publisher(disk, commit) for _ in range(wave % 4)]
        for _ in range(wave % 3):
            await asyncio.sleep(0)
        if disk.running and wave % 2:
            await disk.end()
    while disk.running:
        await disk.end()
    assert sorted(await asyncio.gather(*tasks)) == list(range(1, len(tasks) + 1))


@pytest.mark.asyncio
async def test_who_is_told_of_a_flush_that_failed_learns_that_the_record_is_stored() -> None:
    disk = SlowDisk()
    waiting = publisher(disk, GroupCommit(disk.sync))
    await settle()
    await disk.end(WalIOError(5, "input/output error", "/wal/0/ring"))
    with pytest.raises(WalIOError, match=r"the record is stored.*do not publish it again: '/wal/0/ring'") as caught:
        await waiting
    assert (caught.value.errno, caught.value.filename) == (5, "/wal/0/ring")


@pytest.mark.parametrize("error", [WalIOError(5, "input/output error"), RuntimeError("a mistake of ours")])
@pytest.mark.asyncio
async def test_a_failure_reaches_all_who_waited_for_it_and_nobody_waits_for_ever(error: Exception) -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    first = [publisher(disk, commit) for _ in range(3)]
    await settle()
    late = publisher(disk, commit)
    await settle()
    await disk.end(error)
    results = await asyncio.wait_for(asyncio.gather(*first, return_exceptions=True), 10)
    assert [type(result) for result in results] == [type(error)] * 3
    assert all(error.args[-1] in str(result) for result in results)
    assert not late.done()
    await disk.end()
    assert await late == 4


@pytest.mark.asyncio
async def test_nobody_waits_for_a_disk_that_hangs_and_it_is_used_again_once_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync, "SYNC_LIMIT", 0.05)
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    patient = [publisher(disk, commit, patient=True)]
    await settle()
    patient.append(publisher(disk, commit, patient=True))
    for _ in range(2):  # whoever comes afterwards, too
        waiting = [publisher(disk, commit) for _ in range(3)]
        async with asyncio.timeout(10):
            told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [(type(error), error.errno) for error in told if isinstance(error, OSError)] == [
            (WalIOError, ETIMEDOUT)
        ] * 3
        assert "do not publish it again" in str(told[0])
    assert len(disk.running) == 1
    monkeypatch.setattr(sync, "SYNC_LIMIT", 60.0)
    last = publisher(disk, commit)
    await settle()
    assert not any(task.done() for task in patient)
    await disk.end()
    assert [task.done() for task in (*patient, last)] == [True, False, False]  # that flush began before their stores
    await disk.end()
    assert [await task for task in (*patient, last)] == [1, 2, 9]
    assert commit._patient == set()


@pytest.mark.asyncio
async def test_the_limit_of_a_flush_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be told of the next one, which has only just begun."""
    monkeypatch.setattr(sync, "SYNC_LIMIT", 0.02)
    disk = SlowDisk()

    async def at_once() -> None:
        disk.durable = disk.stored

    commit = GroupCommit(at_once)
    given_up: list[None] = []
    monkeypatch.setattr(commit, "_give_up", lambda: given_up.append(None))
    await publisher(disk, commit)
    await asyncio.sleep(0.1)
    assert not given_up


@pytest.mark.asyncio
async def test_who_gives_up_waiting_disturbs_nobody() -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    tasks = [publisher(disk, commit) for _ in range(3)]
    await settle()
    tasks[1].cancel()
    await settle()
    await disk.end()
    assert [task.cancelled() for task in tasks] == [False, True, False]


@pytest.mark.asyncio
async def test_who_gives_up_waiting_is_not_told_of_the_failure() -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    tasks = [publisher(disk, commit) for _ in range(2)]
    await settle()
    tasks[0].cancel()
    await settle()
    await disk.end(WalIOError(5, "failed"))
    assert tasks[0].cancelled()
    assert isinstance(tasks[1].exception(), WalIOError)


@pytest.mark.asyncio
async def test_a_loop_that_ends_leaves_nobody_waiting() -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    tasks = [publisher(disk, commit) for _ in range(2)]
    await settle()
    tasks.append(publisher(disk, commit))
    await settle()
    assert commit._task is not None
    commit._task.cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert [type(result) for result in results] == [ClosedError] * 3


@pytest.mark.asyncio
async def test_a_flush_that_is_cancelled_before_it_begins_leaves_nobody_waiting() -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    waiting = publisher(disk, commit)
    await asyncio.sleep(0)
    assert commit._task is not None
    assert not disk.running
    commit._task.cancel()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(waiting, 10)
    assert not disk.running


class _Interrupted(asyncio.Future[None]):
    """A signal handler raises as it is told."""

    def set_result(self, result: None, /) -> None:
        raise RuntimeError


@pytest.mark.asyncio
async def test_a_signal_handler_that_raises_while_they_are_told_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    first = publisher(disk, commit)
    await settle()
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as changed:
        changed.setattr(loop, "create_future", lambda: _Interrupted(loop=loop))
        interrupted = publisher(disk, commit)
        await settle()
    waiting = [interrupted, *(publisher(disk, commit) for _ in range(2))]
    await settle()
    await disk.end()
    await asyncio.wait_for(first, 10)
    disk.running[0].set_result(None)
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(result) for result in results] == [ClosedError] * 3
    later = publisher(disk, commit)
    await settle()
    await disk.end()
    assert await asyncio.wait_for(later, 10)


class _Overtaken(GroupCommit):
    """Somebody who comes in the very turn in which it is cancelled has begun anew before its end is told."""

    def _ended(self, task: "asyncio.Task[None]") -> None:
        pass


@pytest.mark.asyncio
async def test_who_waits_is_told_of_the_end_before_anybody_can_begin_anew() -> None:
    disk = SlowDisk()
    commit = _Overtaken(disk.sync)
    waiting = publisher(disk, commit)
    await settle()
    assert commit._task is not None
    commit._task.cancel()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(waiting, 10)


@pytest.mark.asyncio
async def test_closing_waits_for_the_sync_that_runs() -> None:
    disk = SlowDisk()
    commit = GroupCommit(disk.sync)
    await commit.close()  # nothing to wait for
    waiting = publisher(disk, commit)
    await settle()
    closing = asyncio.create_task(commit.close())
    await settle()
    assert not closing.done()
    await disk.end()
    await closing
    assert waiting.done()


@pytest.mark.asyncio
async def test_what_a_group_commit_released_survives_a_power_cut() -> None:
    """With the real thread over a file that can lose its power."""
    opened = Opened()
    keeper = Keeper("test")
    released: list[tuple[tuple[int, int], bytes]] = []
    cuts: list[tuple[int, FaultyFile]] = []

    async def sync() -> None:
        await keeper.submit(opened.ring.sync)

    commit = GroupCommit(sync)

    async def publish(number: int) -> None:
        await asyncio.sleep(number % 7 / 1000)
        positions = opened.append(b"%d" % number * 50)
        await commit.durable()
        released.extend((position, opened.accepted[position]) for position in positions)
        if number % 10 == 0:
            cuts.append((len(released), opened.disk.ring.after_power_cut(number)))

    await asyncio.gather(*(publish(number) for number in range(200)))
    keeper.stop()
    assert keeper.join(10)
    for count, ring in cuts:
        disk = opened.disk.after_death()
        disk.ring = ring
        with Opened(disk) as following:
            assert set(released[:count]) <= set(found(following.read()))
    assert len(released) == 200


@pytest.mark.asyncio
async def test_a_poisoned_ring_releases_nobody() -> None:
    """I7: also not who stored before the failure."""
    opened = Opened()
    opened.append(b"stored")

    async def sync() -> None:
        opened.ring.sync()

    commit = GroupCommit(sync)
    opened.ring.poison(WalIOError(5, "failed"))
    for wait in [commit.durable] * 3:
        assert isinstance(await outcome(wait), WalIOError)


async def outcome(call: Callable[[], Awaitable[None]]) -> BaseException | None:
    try:
        await asyncio.wait_for(call(), 10)
    except WalIOError as error:
        return error
    return None
