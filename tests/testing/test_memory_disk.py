"""The disk in memory: each rule of what a crash leaves, proven on files, on an opening, and under a producer."""

import contextlib
import errno
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from aiorecover import RecoverableProducer
from aiorecover.errors import WalFullError, WalIOError
from aiorecover.testing import MemoryDisk, MockCluster, memory_disk
from aiorecover.testing.memory_file import MemoryFile

REPOSITORY = Path(__file__).parents[2]
PAGE = 4096
SEEDS = range(200)
OLD, NEW = b"\x11" * 4 * PAGE, b"\x22" * 4 * PAGE


def file_on(disk: MemoryDisk, content: bytes = OLD, *, name: str = "file") -> Any:
    """A file with durable content and a durable name."""
    files = disk.file_system
    files.make_directory(disk.path, parents=True)
    file = files.open(disk.path / name)
    file.write(content, 0)
    file.sync()
    files.sync_directory(disk.path)
    files.sync_directory(disk.path.parent)
    return file


def content(disk: MemoryDisk, name: str = "file") -> bytes:
    return disk.file(name).live()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


# -- files: the death of the process, and the power cut --------------------------------------------------------------


def test_the_death_of_the_process_takes_nothing_and_makes_nothing_durable(disk: MemoryDisk) -> None:
    file = file_on(disk)
    file.write(NEW, 0)
    mapping = file.map(0, PAGE)
    mapping[:4] = b"kept"
    image = disk.after_process_death()
    assert content(image) == b"kept" + NEW[4:]
    assert image.file("file").durable == OLD
    assert content(image.after_power_cut(1)) != content(image)  # this seed lets less than all through


def test_what_was_synced_survives_every_power_cut(disk: MemoryDisk) -> None:
    file = file_on(disk)
    mapping = file.map(0, len(OLD))
    mapping[:] = NEW
    file.sync()
    assert {content(disk.after_power_cut(seed)) for seed in SEEDS} == {NEW}


@pytest.mark.parametrize("sector", [512, 4096])
def test_what_was_not_synced_survives_sector_by_sector_in_any_subset(disk: MemoryDisk, sector: int) -> None:
    file_on(disk).write(NEW, 0)
    images = {content(disk.after_power_cut(seed, sector)) for seed in SEEDS}
    pieces = {image[start : start + sector] for image in images for start in range(0, len(NEW), sector)}
    assert pieces == {OLD[:sector], NEW[:sector]}
    assert {OLD, NEW} < images
    torn = any(len(set(image[start : start + PAGE])) == 2 for image in images for start in range(0, len(NEW), PAGE))
    assert torn == (sector < PAGE)
    for start in range(0, len(NEW), sector):  # each sector can be the one that is missing, and the one that is there
        assert {image[start] for image in images} == {OLD[0], NEW[0]}


@pytest.mark.parametrize("sector", [0, 511, 1024])
def test_a_sector_is_of_a_size_that_disks_have(disk: MemoryDisk, sector: int) -> None:
    with pytest.raises(ValueError, match=f"a sector must be 512 or 4096 bytes sector={sector}"):
        disk.after_power_cut(1, sector)


def test_a_seed_chooses_the_same_again_and_files_do_not_disturb_each_other(disk: MemoryDisk) -> None:
    file_on(disk).write(NEW, 0)
    before = [content(disk.after_power_cut(seed)) for seed in SEEDS]
    file_on(disk, name="another").write(NEW, 0)
    images = [disk.after_power_cut(seed) for seed in SEEDS]
    assert [content(image) for image in images] == before
    assert len(set(before)) > 20
    assert any(content(image) != content(image, "another") for image in images)


@pytest.mark.parametrize("grown", [True, False])
def test_the_length_after_a_power_cut_lies_between_the_durable_and_the_live_one(disk: MemoryDisk, grown: bool) -> None:
    durable, live = (OLD, OLD + NEW) if grown else (OLD + NEW, OLD)
    file = file_on(disk, durable)
    assert isinstance(file, MemoryFile)
    if grown:
        file.write(NEW, len(OLD))
    else:
        os.ftruncate(file.fileno(), len(OLD))
    lengths = {len(content(disk.after_power_cut(seed))) for seed in SEEDS}
    assert {len(durable), len(live)} < lengths
    assert min(lengths) == len(OLD)
    assert max(lengths) == len(OLD + NEW)
    file.sync()
    assert {len(content(disk.after_power_cut(seed))) for seed in SEEDS} == {len(live)}


def test_the_kernel_writes_back_when_it_likes_and_older_versions_may_be_what_is_left(disk: MemoryDisk) -> None:
    file = file_on(disk)
    file.write(NEW, 0)
    for seed in range(20):
        image = disk.after_process_death()
        image.write_back(seed)
        assert content(image) == NEW
        assert set(image.file("file").durable) <= {OLD[0], NEW[0]}
    disk.write_back(next(seed for seed in SEEDS if written_back(disk, seed) == {OLD[0], NEW[0]}))
    file.write(b"\x33" * len(OLD), 0)
    left = {byte for seed in SEEDS for byte in content(disk.after_power_cut(seed))}
    assert left == {0x11, 0x22, 0x33}


def written_back(disk: MemoryDisk, seed: int) -> set[int]:
    image = disk.after_process_death()
    image.write_back(seed)
    return set(image.file("file").durable)


def test_an_image_taken_while_others_store_is_of_one_moment(disk: MemoryDisk, restless: None) -> None:
    """Files with a counter each, stored into one after the other."""
    names = [f"file {number}" for number in range(8)]
    mappings = [file_on(disk, bytes(PAGE), name=name).map(0, PAGE) for name in names]
    stop = threading.Event()

    def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for mapping in mappings:
                mapping[:8] = number.to_bytes(8, "little")

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(300):
            image = disk.after_process_death()
            counters = [int.from_bytes(content(image, name)[:8], "little") for name in names]
            assert counters == sorted(counters, reverse=True)
            assert counters[0] - counters[-1] in {0, 1}
    finally:
        stop.set()
        thread.join()
    assert counters[0] > 0


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_name_that_was_never_made_durable_may_be_gone_with_all_that_is_in_it(disk: MemoryDisk) -> None:
    files = disk.file_system
    files.make_directory(disk.path / "0", parents=True)
    files.open(disk.path / "0" / "ring").sync()
    outcomes = [disk.after_power_cut(seed) for seed in SEEDS]
    assert {tuple(image.files()) for image in outcomes} == {(), ("0/ring",)}
    assert {image.file_system.exists(disk.path) for image in outcomes} == {True, False}
    assert {image.file_system.exists(disk.path / "0") for image in outcomes} == {True, False}
    assert all(image.file_system.exists(disk.path / "0") for image in outcomes if image.files())


@pytest.mark.parametrize("unsynced", ["", "0", ".."])
def test_every_directory_on_the_way_must_be_synced(disk: MemoryDisk, unsynced: str) -> None:
    files = disk.file_system
    files.make_directory(disk.path / "0", parents=True)
    files.open(disk.path / "0" / "ring")
    paths = {"..": disk.path.parent, "": disk.path, "0": disk.path / "0"}
    for name, path in paths.items():
        if name != unsynced:
            files.sync_directory(path)
    assert {tuple(disk.after_power_cut(seed).files()) for seed in SEEDS} == {(), ("0/ring",)}
    files.sync_directory(paths[unsynced])
    assert {tuple(disk.after_power_cut(seed).files()) for seed in SEEDS} == {("0/ring",)}


def test_a_removed_file_is_gone_for_every_process_and_may_come_back_with_the_power(disk: MemoryDisk) -> None:
    file = file_on(disk)
    disk.remove("file")
    assert disk.files() == disk.after_process_death().files() == []
    with pytest.raises(FileNotFoundError):
        disk.file_system.identity(disk.path / "file")
    assert file.read(0, 4) == OLD[:4]  # who has it open keeps it
    left = [disk.after_power_cut(seed) for seed in SEEDS]
    assert {tuple(image.files()) for image in left} == {(), ("file",)}
    assert {content(image) for image in left if image.files()} == {OLD}
    disk.file_system.sync_directory(disk.path)
    assert {tuple(disk.after_power_cut(seed).files()) for seed in SEEDS} == {()}


def test_names_are_written_back_too(disk: MemoryDisk) -> None:
    disk.file_system.make_directory(disk.path)
    disk.file_system.open(disk.path / "file")
    for seed in SEEDS:
        disk.write_back(seed)
    assert {tuple(disk.after_power_cut(seed).files()) for seed in SEEDS} == {("file",)}


def test_what_is_not_there_or_not_of_the_kind_is_an_error_as_from_the_system(disk: MemoryDisk) -> None:
    files = disk.file_system
    file_on(disk).close()
    for call in (files.make_directory, files.names, files.read, files.identity):
        with pytest.raises(FileNotFoundError):
            call(disk.path / "no" / "thing")
    with pytest.raises(FileExistsError):
        files.make_directory(disk.path / "file")
    with pytest.raises(NotADirectoryError):
        files.make_directory(disk.path / "file" / "below", parents=True)
    with pytest.raises(WalIOError, match=r"cannot open the file: .*: No such file or directory"):
        files.open(disk.path / "no" / "thing")
    with pytest.raises(WalIOError, match=r"cannot open the file: .*: Is a directory"):
        files.open(disk.path)
    with pytest.raises(WalIOError, match="cannot flush the directory to the disk"):
        files.sync_directory(disk.path / "no")
    with pytest.raises(FileNotFoundError):
        disk.remove("no")
    with pytest.raises(IsADirectoryError):
        disk.file("")
    assert not files.is_directory(disk.path / "file")
    assert files.names(disk.path) == ["file"]


# -- faults ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_to_grow_and_nothing_else(disk: MemoryDisk) -> None:
    file = file_on(disk)
    disk.full()
    assert (disk.size, disk.used, disk.file_system.free_bytes(disk.path)) == (len(OLD), len(OLD), 0)
    file.write(NEW, 0)
    file.allocate(0, len(OLD))
    file.sync()
    with pytest.raises(WalFullError, match="no room to grow the file"):
        file.allocate(len(OLD), 1)
    with pytest.raises(WalFullError, match="no room to write the file"):
        file.write(b"xy", len(OLD) - 1)
    assert content(disk) == NEW
    disk.resize(len(OLD) + 10)
    file.allocate(len(OLD), 10)
    with pytest.raises(WalFullError):
        disk.after_process_death().file_system.open(disk.path / "file").allocate(len(OLD), 11)
    disk.resize(None)
    file.allocate(len(OLD), 1000)


def test_a_failed_sync_calls_what_was_dirty_clean_and_later_syncs_pass_it_over(disk: MemoryDisk) -> None:
    file = file_on(disk)
    mapping = file.map(0, len(OLD))
    mapping[: 2 * PAGE] = NEW[: 2 * PAGE]
    disk.fail_syncs()
    with pytest.raises(WalIOError, match=r"cannot flush the file to the disk: .*: Input/output error") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()
    assert content(disk) == NEW[: 2 * PAGE] + OLD[2 * PAGE :]  # it stays readable
    assert disk.file("file").durable == OLD
    assert disk.file("file").unsynced() == []  # and nobody would write it any more
    for seed in SEEDS:
        disk.write_back(seed)
        assert content(disk.after_power_cut(seed)) == OLD
    mapping[PAGE] = 0x33  # its page is dirty again, all of it
    mapping[3 * PAGE] = 0x44
    file.sync()
    expected = (
        OLD[:PAGE] + b"\x33" + NEW[PAGE + 1 : 2 * PAGE] + OLD[2 * PAGE : 3 * PAGE] + b"\x44" + OLD[3 * PAGE + 1 :]
    )
    assert {content(disk.after_power_cut(seed)) for seed in SEEDS} == {expected}


def test_what_a_failed_sync_left_stays_clean_for_the_next_process(disk: MemoryDisk) -> None:
    file = file_on(disk)
    file.write(NEW, 0)
    disk.fail_syncs()
    with pytest.raises(WalIOError):
        file.sync()
    following = disk.after_process_death()
    heir = following.file_system.open(disk.path / "file")
    heir.sync()
    assert content(following) == NEW
    assert {content(following.after_power_cut(seed)) for seed in SEEDS} == {OLD}
    heir.rewrite(0, len(NEW))
    heir.sync()
    assert {content(following.after_power_cut(seed)) for seed in SEEDS} == {NEW}
    assert disk.file("file").durable == OLD


@pytest.mark.parametrize("again", ["rewrite", "write"])
def test_what_is_rewritten_is_dirty_again_page_by_page(disk: MemoryDisk, again: str) -> None:
    file = file_on(disk)
    file.write(NEW, 0)
    disk.fail_syncs()
    with pytest.raises(WalIOError):
        file.sync()
    if again == "rewrite":
        file.rewrite(PAGE + 100, PAGE)  # touches two pages; the call begins at a page's start
    else:
        file.write(NEW[: PAGE + 1], PAGE)
    assert content(disk) == NEW
    assert disk.file("file").unsynced(PAGE) == [PAGE, 2 * PAGE]
    file.sync()
    assert disk.file("file").durable == OLD[:PAGE] + NEW[PAGE : 3 * PAGE] + OLD[3 * PAGE :]


def test_what_a_failed_sync_called_clean_may_leave_memory_and_what_the_disk_has_comes_back(disk: MemoryDisk) -> None:
    file = file_on(disk)
    file.write(NEW, 0)
    mapping = file.map(0, len(OLD))
    assert disk.file("file").evict(1) == 0  # the kernel still has to write it
    disk.fail_syncs()
    with pytest.raises(WalIOError):
        file.sync()
    mapping[0] = 0x33  # dirty again
    file.rewrite(PAGE, PAGE)
    images = set()
    for seed in SEEDS:
        image = disk.after_process_death()
        left = image.file("file").evict(seed)
        images.add(content(image))
        assert content(image).count(OLD[:PAGE]) == left  # as many pages
    pages = b"\x33" + NEW[1 : 2 * PAGE]
    half = NEW[:PAGE]
    assert images == {pages + third + fourth for third in (OLD[:PAGE], half) for fourth in (OLD[:PAGE], half)}
    assert max(disk.file("file").evict(seed) for seed in range(20)) > 0
    assert mapping[:] == content(disk) != pages + NEW[2 * PAGE :]  # mappings see it


def test_syncs_fail_so_often_and_then_no_more(disk: MemoryDisk) -> None:
    file = file_on(disk)
    disk.fail_syncs(2)
    for number in range(2):
        file.write(bytes([number]), 0)
        with pytest.raises(WalIOError):
            file.sync()
    file.write(b"x", 0)
    file.sync()
    assert disk.file("file").durable == b"x" + OLD[1:]


def test_reads_of_a_damaged_part_fail_also_after_every_crash(disk: MemoryDisk) -> None:
    file_on(disk)
    disk.file("file").fail_reads(PAGE + 600, 10)
    for image in (disk, disk.after_process_death(), disk.after_power_cut(1)):
        file = image.file_system.open(disk.path / "file")
        assert file.read(0, PAGE) == OLD[:PAGE]
        assert file.read(2 * PAGE, 10) == OLD[:10]
        for offset, length in ((0, PAGE + 1), (2 * PAGE - 1, 1), (PAGE + 600, 10), (PAGE, 1), (500, 2 * PAGE)):
            with pytest.raises(WalIOError, match=r"cannot read the file: .*: Input/output error"):
                file.read(offset, length)
        with pytest.raises(WalIOError, match="cannot rewrite the file"):
            file.rewrite(PAGE, PAGE)


def test_damage_is_seen_at_once_and_durable(disk: MemoryDisk) -> None:
    file = file_on(disk)
    stored = disk.file("file")
    stored.flip(8 * 3 + 1)
    stored.damage(600, b"xyz")
    stored.cut(PAGE)
    expected = OLD[:3] + b"\x13" + OLD[4:600] + b"xyz" + OLD[603:PAGE]
    assert file.read(0, 2 * PAGE) == expected
    assert {content(disk.after_power_cut(seed)) for seed in SEEDS} == {expected}


def test_damage_does_not_bring_back_what_a_failed_sync_lost(disk: MemoryDisk) -> None:
    file = file_on(disk)
    file.write(NEW, 0)
    disk.fail_syncs()
    with pytest.raises(WalIOError):
        file.sync()
    disk.file("file").flip(0)
    file.sync()
    assert disk.file("file").durable == bytes([NEW[0] ^ 1]) + OLD[1:]


# -- a producer ------------------------------------------------------------------------------------------------------

pytest.importorskip("confluent_kafka")
TOPIC = "orders"


def values(count: int, prefix: bytes = b"order") -> list[bytes | None]:
    return [prefix + b" %d" % number for number in range(count)]


def producer_on(disk: MemoryDisk, cluster: MockCluster, **options: object) -> RecoverableProducer:
    given = {"slot_bytes": 64 * 1024, "retry_backoff_ms": 10, "linger_ms": 0, **options}
    return RecoverableProducer(disk, bootstrap_servers=cluster.bootstrap_servers, **given)


@contextlib.asynccontextmanager
async def running(disk: MemoryDisk, cluster: MockCluster, **options: object) -> AsyncIterator[RecoverableProducer]:
    producer = producer_on(disk, cluster, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop(timeout_ms=0)


async def delivered(cluster: MockCluster) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    await consumer.start()
    try:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning()
        end = (await consumer.end_offsets([partition]))[partition]
        return [(await consumer.getone()).value for _ in range(end)]
    finally:
        await consumer.stop()


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@pytest.mark.asyncio
async def test_a_producer_delivers_from_a_disk_in_memory(tmp_path: Path, cluster: MockCluster) -> None:
    disk = MemoryDisk(tmp_path / "wal")
    async with running(disk, cluster) as producer:
        assert producer.wal_path == disk.path / "0"
        for value in values(500):
            await producer.publish(TOPIC, value, partition=0)
        await producer.flush(timeout_ms=20_000)
    assert await delivered(cluster) == values(500)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.asyncio
async def test_a_successor_on_a_crash_image_delivers_the_rest(disk: MemoryDisk, cluster: MockCluster) -> None:
    async with running(disk, cluster) as producer:
        for value in values(100, b"before"):
            await producer.publish(TOPIC, value, partition=0)
        await producer.flush(timeout_ms=20_000)
        cluster.broker_down()
        for value in values(100, b"behind"):
            await producer.publish(TOPIC, value, partition=0)
        killed = disk.after_process_death()
    cluster.broker_up()
    async with running(killed, cluster) as successor:
        await successor.flush(timeout_ms=20_000)
        assert successor.epoch == 2
        assert successor.statistics().recovered == 100
    assert await delivered(cluster) == values(100, b"before") + values(100, b"behind")


@pytest.mark.asyncio
async def test_a_failed_sync_poisons_a_producer_and_its_successor_has_every_record(
    disk: MemoryDisk, cluster: MockCluster
) -> None:
    cluster.broker_down()
    async with running(disk, cluster, fsync="always") as producer:
        await producer.publish(TOPIC, b"synced", partition=0)
        disk.fail_syncs()
        for _ in range(2):
            with pytest.raises(WalIOError):
                await producer.publish(TOPIC, b"refused", partition=0)
        killed = disk.after_process_death()
    cluster.broker_up()
    async with running(killed, cluster) as successor:
        await successor.flush(timeout_ms=20_000)
    assert (await delivered(cluster))[:1] == [b"synced"]


@pytest.mark.asyncio
async def test_a_full_disk_is_a_full_ring_until_delivery_frees_it(disk: MemoryDisk, cluster: MockCluster) -> None:
    disk.resize(20 * 64 * 1024)
    cluster.broker_down()
    async with running(disk, cluster, wal_min_free_bytes=0, checkpoint_interval_ms=10) as producer:
        accepted = await publish_until_full(producer)
        assert accepted > 100
        cluster.broker_up()
        await producer.flush(timeout_ms=20_000)
        await producer.publish(TOPIC, b"room", partition=0)
        await producer.flush(timeout_ms=20_000)
    assert len(await delivered(cluster)) == accepted + 1


async def publish_until_full(producer: RecoverableProducer) -> int:
    for number in itertools.count():
        try:
            await producer.publish(TOPIC, b"<%d>" % number * 1000, partition=0)
        except WalFullError:
            return number
    raise AssertionError


def test_a_disk_is_a_path_only_by_name(disk: MemoryDisk, cluster: MockCluster) -> None:
    named = MemoryDisk("some/where", size=5)
    assert named.path == Path.cwd() / "some" / "where"
    assert repr(named) == f"MemoryDisk('{named.path}', size=5)"
    assert producer_on(named, cluster).wal_path is None


# -- the documentation -----------------------------------------------------------------------------------------------


def test_the_example_is_a_test_that_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/test_recovery.py"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_module_s_example_is_that_of_the_file() -> None:
    told = memory_disk.__doc__ or ""
    block = textwrap.dedent(told[told.index("life::") + 6 : told.index("``examples/test_recovery.py``")])
    lines = [line for line in block.splitlines() if line.strip() and "..." not in line]
    rest = iter((REPOSITORY / "examples" / "test_recovery.py").read_text(encoding="utf-8").splitlines())
    assert len(lines) > 30
    assert [line for line in lines if line not in rest] == []
