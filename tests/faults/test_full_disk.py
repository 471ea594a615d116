"""A full disk: every single allocation refused in turn, and what becomes of it once there is room."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aiorecover import RecoverableProducer, WalFullError
from aiorecover.testing import MockCluster
from tests.faults.ledger import NOWHERE, SLOT, SMALL, TOPIC, Ledger, told
from tests.faults.scene import play, small_disk

PAGE = 4096
CHECKPOINT = 32  # pages: allocated as a whole
NEEDED = 1 + CHECKPOINT  # pages without which no new directory is made: the lock, the checkpoint
FIRST_FILES = NEEDED + 1  # pages: and the header of the lanes
FIRST_LANES = 67  # pages of the blocks that an opening allocates if there is room
RESERVED = 2  # slots: of the retry and the dead ring


def pages_free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize // PAGE


@contextmanager
def only(place: Path, pages: int) -> Iterator[None]:
    """So many pages are left on the disk."""
    filler = place / "filler"
    descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(descriptor, 0, (pages_free(place) - pages) * PAGE)
    os.close(descriptor)
    assert pages_free(place) == pages
    try:
        yield
    finally:
        filler.unlink(missing_ok=True)


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """A stranger takes whatever is left, also what a producer gives up or takes while he does."""
    filler, size = place / "filler", 0
    with filler.open("wb") as file, suppress(OSError):
        while True:
            os.posix_fallocate(file.fileno(), size, PAGE)
            size += PAGE
    try:
        yield
    finally:
        filler.unlink()


# -- every allocation ------------------------------------------------------------------------------------------------


async def refuse_every_allocation(place: Path) -> None:
    """The Nth page that is asked for is not there, for every N up to a ring of several slots.

    But not for each one of the checkpoint's, which are asked for at once.
    """
    reached = set()
    for pages in [0, 1, 2, *range(CHECKPOINT, FIRST_FILES + (RESERVED + 4) * SLOT // PAGE + 2)]:
        reached.add(await fill_and_mend(place, pages))
        shutil.rmtree(place / "wal")
    assert reached == {"opening", "no slot", "slots"}


async def fill_and_mend(place: Path, pages: int) -> str:
    ledger, wal, reached = Ledger(), place / "wal", "opening"
    producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, **SMALL)
    with only(place, pages):
        refusal = await refused_to_start(producer)
        assert (refusal is not None) == (pages < NEEDED)
        if refusal is None:
            reached = await fill(producer, ledger, pages)
        else:
            assert "no room to grow the file: free disk space" in told(refusal)
    await producer.start()
    await ledger.publish_all(producer, 40)
    ledger.check_counts(producer)
    assert await producer.stop(timeout_ms=0) == len(ledger.accepted)
    assert ledger.check_directory(wal) == []
    return reached


async def refused_to_start(producer: RecoverableProducer) -> WalFullError | None:
    try:
        await producer.start()
    except WalFullError as error:
        return error
    return None


async def fill(producer: RecoverableProducer, ledger: Ledger, pages: int) -> str:
    """Until refused, and then some more, which must be refused in the same words."""
    errors = [await ledger.publish_until_refused(producer)]
    stored = len(ledger.accepted)
    assert (stored > 0) == (pages >= FIRST_FILES + (RESERVED + 1) * SLOT // PAGE)
    await asyncio.sleep(0.02)  # the background's attempts to have a slot ready come in between
    errors += [error for error in [await ledger.publish(producer) for _ in range(3)] if error is not None]
    assert len(errors) == 4
    assert {type(error) for error in errors} == {WalFullError}
    assert len({told(error) for error in errors}) == 1
    ledger.check_counts(producer)
    return "slots" if stored else "no slot"


def test_each_allocation_that_a_full_disk_refuses_is_told_and_costs_nothing_that_was_accepted(
    tmp_path: Path,
) -> None:
    play(refuse_every_allocation, tmp_path, prefix=small_disk(tmp_path))


async def refuse_every_name(place: Path) -> None:
    """No inode is left for the Nth file or folder."""
    for number in range(10):
        spare = [place / f"spare{name}" for name in range(number)]
        ledger, wal = Ledger(), place / "wal"
        for path in spare:
            path.touch()
        with eaten_names(place):
            for path in spare:
                path.unlink()
            producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, **SMALL)
            refusal = await refused_to_start(producer)
            assert (refusal is not None) == (number < 8), "wal_dir, the instance, lock, checkpoint, three rings, lanes"
            if refusal is None:
                await ledger.publish_all(producer, 5)
            else:
                assert "free disk space" in told(refusal)
        await producer.start()
        await ledger.publish_all(producer, 20)
        assert await producer.stop(timeout_ms=0) == len(ledger.accepted)
        assert ledger.check_directory(wal) == []
        shutil.rmtree(wal)


@contextmanager
def eaten_names(place: Path) -> Iterator[None]:
    eaten: list[Path] = []
    try:
        while True:
            path = place / f"eaten{len(eaten)}"
            path.touch()
            eaten.append(path)
    except OSError:
        pass
    try:
        yield
    finally:
        for path in eaten:
            path.unlink()


def test_each_file_that_a_disk_without_inodes_refuses_is_told_as_a_full_disk(tmp_path: Path) -> None:
    play(refuse_every_name, tmp_path, prefix=small_disk(tmp_path, "size=1m,nr_inodes=40"))


# -- full, and room again --------------------------------------------------------------------------------------------


async def deliver_on_a_full_disk(place: Path) -> None:
    """Delivery needs no room, and makes it; also after a restart that finds the disk full."""
    ledger, wal = Ledger(), place / "wal"
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        with only(place, FIRST_FILES + FIRST_LANES + (RESERVED + 5) * SLOT // PAGE):
            producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, **SMALL)
            await producer.start()
            error = await ledger.publish_until_refused(producer)
            assert await producer.stop(timeout_ms=0) == len(ledger.accepted)
            for _ in range(3):
                async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
                    await producer.flush(timeout_ms=20_000)
                    await settled_down(producer)
                    await ledger.publish_until_refused_or(producer, 100)
                    ledger.check_counts(producer)
        assert type(error) is WalFullError
        await ledger.check_kafka(cluster.bootstrap_servers)


async def settled_down(producer: RecoverableProducer) -> None:
    """The slots of what is delivered are free."""
    async with asyncio.timeout(20):
        while producer.statistics().bytes_used > SLOT:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.02)


def test_what_a_full_disk_holds_is_delivered_and_makes_room_before_anybody_frees_space(tmp_path: Path) -> None:
    play(deliver_on_a_full_disk, tmp_path, prefix=small_disk(tmp_path))


async def wait_for_room(place: Path, freed_by: str) -> None:
    """``on_full="wait"``: ten publishers wait, and each of them gets in, once."""
    ledger, wal = Ledger(), place / "wal"
    options = {**SMALL, "on_full": "wait", "full_timeout_ms": 100_000}  # longer than the scenario may take
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        cluster.broker_down()
        with only(place, FIRST_FILES + FIRST_LANES + 4 * SLOT // PAGE):
            async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
                while (await waiting(ledger, producer)) is None:
                    pass
                more = [asyncio.create_task(ledger.publish(producer)) for _ in range(9)]
                await asyncio.sleep(0.1)
                assert not any(task.done() for task in more)
                if freed_by == "delivery":
                    cluster.broker_up()
                else:
                    (place / "filler").unlink()
                assert await asyncio.gather(*more, *STILL_WAITING) == [None] * 10
                ledger.check_counts(producer)
                cluster.broker_up()
                await producer.flush(timeout_ms=30_000)
        await ledger.check_kafka(cluster.bootstrap_servers)


STILL_WAITING: list["asyncio.Task[object]"] = []


async def waiting(ledger: Ledger, producer: RecoverableProducer) -> "asyncio.Task[object] | None":
    """Publish once; the task if it waits for room."""
    task: asyncio.Task[object] = asyncio.create_task(ledger.publish(producer))
    done, _ = await asyncio.wait({task}, timeout=0.3)
    if done:
        assert task.result() is None
        return None
    STILL_WAITING.append(task)
    return task


def test_publishers_that_wait_for_room_get_it_from_delivery(tmp_path: Path) -> None:
    play(wait_for_room, tmp_path, "delivery", prefix=small_disk(tmp_path))


def test_publishers_that_wait_for_room_get_it_from_whoever_frees_the_disk(tmp_path: Path) -> None:
    play(wait_for_room, tmp_path, "a stranger", prefix=small_disk(tmp_path))


async def fill_in_an_outage(place: Path) -> None:
    """A stranger fills the disk while all brokers are down, and frees it again; then they come back."""
    ledger, wal = Ledger(), place / "wal"
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            await ledger.publish_all(producer, 50)
            await producer.flush(timeout_ms=20_000)
            cluster.broker_down()
            await ledger.publish_all(producer, 100)
            with filled(place):
                error = await ledger.publish_until_refused(producer)
                assert "the disk is full: wait for delivery to free space, or free space on the disk" in told(error)
                assert producer.statistics().full
                assert type(await ledger.publish(producer)) is WalFullError
            await ledger.publish_all(producer, 100)
            assert not producer.statistics().full
            with filled(place):
                await ledger.publish_until_refused(producer)
                cluster.broker_up()
                await producer.flush(timeout_ms=40_000)
                await settled_down(producer)
                await ledger.publish_all(producer, 100)  # on a disk that is full still
                await producer.flush(timeout_ms=40_000)
            ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_a_disk_that_fills_up_in_an_outage_and_is_freed_costs_nothing_that_was_accepted(tmp_path: Path) -> None:
    play(fill_in_an_outage, tmp_path, prefix=small_disk(tmp_path, "size=2m"))


async def start_without_the_reserve(place: Path) -> None:
    """Not a page is left, and the slots that are kept for the other rings are gone."""
    ledger, wal = Ledger(), place / "wal"
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        cluster.broker_down()
        async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **{**SMALL, "stop_timeout_ms": 0}) as producer:
            await ledger.publish_all(producer, 150)
        for ring in ("retry", "dead"):
            with (wal / "0" / ring).open("r+b") as file:
                file.truncate(0)
        with only(place, 0):
            async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
                error = await ledger.publish_until_refused(producer)
                assert "full" in told(error)
                assert producer.statistics().full
                cluster.broker_up()
                await producer.flush(timeout_ms=40_000)
                await settled_down(producer)
                await ledger.publish_all(producer, 100)
                await producer.flush(timeout_ms=40_000)
                for ring in ("retry", "dead"):
                    assert (wal / "0" / ring).stat().st_size == SLOT, "made of what the ring has freed"
                ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_a_start_on_a_full_disk_without_the_reserved_slots_delivers_and_makes_them(tmp_path: Path) -> None:
    play(start_without_the_reserve, tmp_path, prefix=small_disk(tmp_path))


# -- holes -----------------------------------------------------------------------------------------------------------


async def use_a_copy_with_holes(place: Path) -> None:
    """A copy of the directory has holes where zeros were, and then the disk is full."""
    ledger, wal = Ledger(), place / "wal"
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        async with RecoverableProducer(wal, bootstrap_servers=NOWHERE, **{**SMALL, "stop_timeout_ms": 0}) as producer:
            await ledger.publish_all(producer, 20)
            await asyncio.sleep(0.1)  # the next slot is ready: all zeros
        ring = wal / "0" / "ring"
        content = ring.read_bytes()
        assert content.endswith(bytes(SLOT))
        with ring.open("r+b") as file:
            file.truncate(len(content) - SLOT)
            file.truncate(len(content))
        with only(place, 0):
            async with RecoverableProducer(
                wal, bootstrap_servers=NOWHERE, **{**SMALL, "stop_timeout_ms": 0}
            ) as producer:
                error = await ledger.publish_until_refused(producer)
                ledger.check_counts(producer)
            assert type(error) is WalFullError
        async with RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **SMALL) as producer:
            await ledger.publish_all(producer, 20)
        await ledger.check_kafka(cluster.bootstrap_servers)


def test_a_copy_with_holes_is_never_a_signal_on_a_full_disk(tmp_path: Path) -> None:
    play(use_a_copy_with_holes, tmp_path, prefix=small_disk(tmp_path))
