"""Pages that cannot be read any more: written anew where no life stands, and nowhere else."""

import threading
from functools import partial

import pytest

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.wal import mending, spares
from aiorecover.wal.ring import Ring
from aiorecover.wal.room import DEAD, MAIN, RETRY
from aiorecover.wal.spares import Limits, Quota, RingFile, Spares
from aiorecover.wal.storage import PAGE
from tests.wal.memory import FaultyFile, broken, no_room
from tests.wal.rig import SLOT, Opened

BIG = b"f" * 3000  # five in a slot
MENDED = "pages of the ring could not be read and were written anew, nothing in them was needed: check the disk"


@pytest.fixture
def file() -> FaultyFile:
    made = FaultyFile("ring")
    made.write(b"\x11" * 12 * PAGE, 0)
    return made


def mend_all(file: FaultyFile, offset: int, length: int) -> list[int]:
    pages = mending.unreadable(file, offset, length)
    mending.mend(file, pages)
    return pages


@pytest.mark.parametrize("step", [PAGE, 4 * PAGE, 1 << 20])
def test_pages_that_cannot_be_read_are_zeros_then_and_the_others_stay_as_they_are(
    file: FaultyFile, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(mending, "STEP", step)
    for page in (0, 1, 3, 5, 8, 11):
        file.stored.fail_reads(page * PAGE, 1)
    assert mend_all(file, PAGE, 8 * PAGE) == [page * PAGE for page in (1, 3, 5, 8)]
    zeros = [page for page in range(1, 9) if file.read(page * PAGE, PAGE) == bytes(PAGE)]
    assert zeros == [1, 3, 5, 8]
    assert all(file.read(page * PAGE, PAGE) == b"\x11" * PAGE for page in (2, 4, 6, 7))
    for outside in (0, 11):
        with pytest.raises(WalIOError):
            file.read(outside * PAGE, PAGE)


def test_where_all_can_be_read_nothing_is_written(file: FaultyFile) -> None:
    file.before["write"] = broken
    assert mend_all(file, 0, 12 * PAGE) == []


def test_a_page_that_cannot_be_written_either_is_an_error_of_the_disk(file: FaultyFile) -> None:
    file.stored.fail_reads(PAGE, 1)
    file.before["write"] = broken
    with pytest.raises(WalIOError):
        mend_all(file, 0, 12 * PAGE)
    file.before["write"] = no_room
    with pytest.raises(WalFullError):
        mend_all(file, 0, 12 * PAGE)


def test_a_closed_file_is_not_taken_for_a_bad_disk(file: FaultyFile) -> None:
    file.close()
    assert mend_all(file, 0, 12 * PAGE) == []


# -- the slots of a ring ---------------------------------------------------------------------------------------------


def ring_named(opened: Opened, name: str) -> tuple[Ring, FaultyFile]:
    ring: Ring = getattr(opened.directory, name)
    file: FaultyFile = getattr(opened.disk, name)
    return ring, file


def lose(file: FaultyFile, offset: int) -> None:
    """A page that cannot be read any more, and somebody who has met it."""
    file.stored.fail_reads(offset, 1)
    with pytest.raises(WalIOError):
        file.read(offset, 1)


def fill(ring: Ring, number: int, slots: int) -> None:
    first = ring.next_ordinal
    while ring.next_ordinal < first + slots or ring.rest > 4000:
        ring.append(b"%d" % number * 3000, None)


@pytest.mark.parametrize("page", [0, 2, 3])
@pytest.mark.parametrize("name", ["ring", "retry", "dead"])
def test_a_bad_page_of_a_slot_can_be_read_in_its_next_life_and_a_line_tells_it(
    caplog: pytest.LogCaptureFixture, name: str, page: int
) -> None:
    opened = Opened()
    ring, file = ring_named(opened, name)
    fill(ring, 1, 3)
    ring.recycle(ring.live[-2].last_position, moved=ring.live[-2].last_position)
    free = [index for index, _ in ring.spares._free]
    assert len(free) == 2
    for index in free:
        lose(file, index * SLOT + page * PAGE)
    fill(ring, 2, 4)
    lines = [record.getMessage() for record in caplog.records if MENDED in record.getMessage()]
    told = [f"{MENDED} path={file.path} pages=1 offset={index * SLOT + page * PAGE}" for index in free]
    assert sorted(lines) == sorted(told)
    for index in free:
        assert file.read(index * SLOT, SLOT).count(b"2" * 3000) >= 4


def test_what_an_opening_finds_damaged_is_written_over_only_when_its_slot_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = Opened()
    for _ in range(3):
        opened.fill_slot(BIG)
    disk = opened.disk.after_death()
    disk.ring.stored.fail_reads(SLOT + 2 * PAGE, 1)
    before = disk.ring.live()
    with Opened(disk) as following:
        following.fill_slot(b"n" * 3000)
        following.directory.prepare_spares()
        following.fill_slot(b"n" * 3000)
        assert MENDED not in caplog.text
        assert disk.ring.live()[: 3 * SLOT] == before[: 3 * SLOT]


def slots_read(file: FaultyFile, spares: Spares) -> list[int]:
    """Which of two slots are read when they are taken, one after the other, and released again."""
    read: list[int] = []
    for _ in range(2):
        seen: list[None] = []
        file.before["read"] = partial(seen.append, None)
        index, salt, mapping = spares.take()
        mapping.close()
        read += [index] * bool(seen)
        spares._free.insert(0, (index, salt))
    del file.before["read"]
    return sorted(read)


@pytest.mark.parametrize("lost", ["a read that failed", "a prefault that failed"])
def test_a_slot_is_read_before_its_first_life_in_a_process_and_again_once_a_page_was_lost(lost: str) -> None:
    file = FaultyFile("ring")
    file.allocate(0, 2 * SLOT)
    quota = Quota(Limits(SLOT, 20 * SLOT))
    spares = Spares(quota, MAIN, file, [(0, 5), (1, 6)])
    for ring in (RETRY, DEAD):
        Spares(quota, ring, FaultyFile("other"), [])
    assert slots_read(file, spares) == [0, 1]
    assert slots_read(file, spares) == []
    if lost == "a read that failed":
        lose(file, SLOT)
    else:
        spares.distrust()
    assert slots_read(file, spares) == [0, 1]
    if lost == "a read that failed":
        assert slots_read(file, spares) == [1]  # the read that failed while it was mended counts, too
    assert slots_read(file, spares) == []


def test_slots_that_the_file_grows_by_are_not_read() -> None:
    opened = Opened()
    read: list[None] = []
    opened.disk.ring.before["read"] = partial(read.append, None)
    for _ in range(3):
        opened.fill_slot(BIG)
    assert not read


@pytest.mark.parametrize("where", ["keeper", "loop"])
@pytest.mark.parametrize("name", ["ring", "retry", "dead"])
def test_where_a_page_cannot_be_mended_nothing_more_is_accepted_and_the_next_opening_is_careful(
    name: str, where: str
) -> None:
    opened = Opened()
    opened.append(b"waits")
    ring, file = ring_named(opened, name)
    fill(ring, 1, 3)
    ring.recycle(ring.live[-2].last_position, moved=ring.live[-2].last_position)
    while not ring.spares.wanted:
        ring.spares.take()
    for index, _ in ring.spares._free:
        lose(file, index * SLOT + 2 * PAGE)
    file.before["write"] = broken
    act = opened.directory.prepare_spares if where == "keeper" else partial(fill, ring, 2, 4)
    with pytest.raises(WalIOError):
        act()
    assert all(isinstance(one.failure, WalIOError) for one in opened.directory.rings)
    with pytest.raises(WalIOError):
        opened.append(b"refused")
    following = opened.dies()
    assert following.ring.suspect.up_to > 0
    following.append(b"accepted again")
    fill(ring_named(following, name)[0], 3, 4)


def test_an_opening_reads_no_slot_and_what_it_has_reserved_is_read_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    disk = Opened().disk.after_death()
    for file in (disk.retry, disk.dead):
        file.stored.fail_reads(2 * PAGE, 1)
    with Opened(disk) as following:
        directory = following.directory
        assert MENDED not in caplog.text
        assert directory.retry.wants_spare
        assert directory.dead.wants_spare
        directory.prepare_spares()
        assert caplog.text.count(MENDED) == 2
        directory.prepare_spares()  # the reads that failed while it was mended count, too
        assert not any(ring.wants_spare for ring in (directory.retry, directory.dead))


def test_a_page_that_is_lost_while_a_slot_is_read_has_it_read_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Opened().directory.ring
    ring.spares._sound.clear()
    mended: list[int] = []

    def reading(_: RingFile, offset: int, __: int) -> list[int]:
        mended.append(offset)
        if len(mended) == 1:
            ring.spares.distrust()
        return []

    monkeypatch.setattr(spares, "unreadable", reading)
    ring.spares._make_sound(0)
    ring.spares._make_sound(0)
    ring.spares._make_sound(0)
    assert mended == [0, 0]


def test_a_slot_that_is_ready_is_read_again_once_a_page_of_its_file_could_not_be() -> None:
    opened = Opened()
    opened.fill_slot(BIG)
    directory, file = opened.directory, opened.disk.ring
    directory.prepare_spares()
    directory.prepare_spares()  # what was reserved, too
    assert not directory.wants_spare
    ready = opened.ring.spares._ready[-1][0]
    file.stored.fail_reads(ready * SLOT + 2 * PAGE, 1)
    lose(file, 0)
    assert opened.ring.wants_spare
    assert not directory.retry.wants_spare, "its file is another one"
    directory.prepare_spares()
    directory.prepare_spares()  # the read that failed while it was mended counts, too
    assert not directory.wants_spare
    opened.fill_slot(BIG)
    assert opened.ring.live[-1].index == ready


@pytest.mark.parametrize("name", ["ring", "retry", "dead"])
def test_nobody_who_stores_waits_while_the_slot_that_is_ready_is_read(name: str) -> None:
    opened = Opened()
    ring, file = ring_named(opened, name)
    fill(ring, 1, 2)
    directory = opened.directory
    while directory.wants_spare:
        directory.prepare_spares()
    lose(file, 0)
    reads, disk_answers = threading.Event(), threading.Event()

    def hangs() -> None:
        reads.set()
        disk_answers.wait(10)

    file.before["read"] = hangs
    keeper = threading.Thread(target=directory.prepare_spares)
    publisher = threading.Thread(target=fill, args=(ring, 2, 2))  # takes the one that is ready, and another one
    keeper.start()
    assert reads.wait(10)
    publisher.start()
    publisher.join(2)
    waited = publisher.is_alive()
    disk_answers.set()
    for thread in (keeper, publisher):
        thread.join(10)
    assert not waited


def ready_with_a_lost_page() -> tuple[Opened, int]:
    """Index of the slot that is ready."""
    opened = Opened()
    fill(opened.ring, 1, 2)
    while opened.directory.wants_spare:
        opened.directory.prepare_spares()
    index = opened.ring.spares._ready[-1][0]
    lose(opened.disk.ring, index * SLOT + 2 * PAGE)
    return opened, index


def test_a_slot_that_is_taken_while_it_is_read_is_written_to_by_nobody_else_and_is_read_again_once_it_is_free() -> None:
    opened, index = ready_with_a_lost_page()
    ring, file = opened.ring, opened.disk.ring

    def taken() -> None:
        del file.before["read"]
        fill(ring, 2, 1)

    file.before["read"] = taken
    opened.directory.prepare_spares()
    assert ring.live[-1].index == index
    assert file.live()[index * SLOT : (index + 1) * SLOT].count(b"2" * 3000) >= 4
    with pytest.raises(WalIOError):
        file.read(index * SLOT + 2 * PAGE, PAGE)
    assert index not in ring.spares._sound


def test_while_a_page_of_the_slot_that_is_ready_is_written_anew_it_cannot_be_taken() -> None:
    opened, index = ready_with_a_lost_page()
    ring, file = opened.ring, opened.disk.ring
    file.before["write"] = partial(fill, ring, 2, 1)  # as from a signal handler: the lock keeps no thread's own out
    opened.directory.prepare_spares()
    assert ring.live[-1].index != index
    file.before.clear()
    fill(ring, 3, 1)
    assert ring.live[-1].index == index
    assert file.read(index * SLOT, SLOT).count(b"3" * 3000) >= 4
