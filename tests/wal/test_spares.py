"""Three rings over one limit: who gives a slot up for whom, what of it stays on the disk, and what an opening finds."""

import dataclasses
import errno
import threading
from functools import partial
from pathlib import Path

import pytest

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.testing.memory_file import MemoryFile
from aiorecover.wal.directory import Options
from aiorecover.wal.opening import open_directory
from aiorecover.wal.room import IDLE_LOOKS, KEEP_FREE, KEPT, MAIN
from aiorecover.wal.spares import Limits, Quota, Spares
from aiorecover.wal.storage import StorageFile
from tests.wal.memory import PAGE, FaultyFile, broken, no_blocks, no_room
from tests.wal.rig import RESERVED, SLOT, Disk, Opened, found
from tests.wal.test_moving import everything, make, move, waiting

SLOTS = 14
BIG = b"f" * 3000  # five in a slot


def on_disk(opened: Opened) -> int:
    """Bytes of the three rings, as the disk has them."""
    return sum(file.disk_bytes() for file in (opened.disk.ring, opened.disk.retry, opened.disk.dead))


def full(opened: Opened) -> None:
    """Publish until it is refused."""
    with pytest.raises(WalFullError):
        opened.append(*[BIG] * 1000)


def sparse(opened: Opened, every: int = 4) -> list[tuple[int, int]]:
    """Of a full ring, every so many records wait still; which those are."""
    full(opened)
    entries = opened.read()
    opened.settle(entry for number, entry in enumerate(entries) if number % every)
    return [position for number, (position, _) in enumerate(found(entries)) if number % every == 0]


def moved_on(opened: Opened, slots: int) -> None:
    """The oldest slots, one after the other; the keeper has the next ones ready in between."""
    for _ in range(slots):
        prepare(opened)
        make(opened, move(opened))


def prepare(opened: Opened) -> None:
    try:
        opened.directory.prepare_spares()
    except WalFullError:
        return


@pytest.mark.parametrize("end", ["goes on", "dies", "loses_power"])
def test_the_retry_ring_grows_by_what_moving_frees_and_the_disk_holds_no_more(end: str) -> None:
    opened = Opened(Disk(max_slots=SLOTS))
    left = sparse(opened)
    assert on_disk(opened) == (SLOTS + RESERVED) * SLOT
    moved_on(opened, 10)
    assert opened.directory.retry.bytes_used == 3 * SLOT
    assert on_disk(opened) <= (SLOTS + RESERVED) * SLOT
    opened.append(b"published again")
    left.append(max(opened.accepted))
    opened.ring.sync()
    following = opened
    if end == "dies":
        following = opened.dies()
    if end == "loses_power":
        following = opened.loses_power(3)
    if end == "dies":
        assert everything(following) == waiting(opened, left)
    if end == "loses_power":  # settle words may be lost, records may not
        assert set(everything(following)) >= set(waiting(opened, left))
        while following.directory.shrink():  # what was given back may be there again
            pass
    following.settle(following.read())
    full(following)
    assert on_disk(following) <= (SLOTS + RESERVED) * SLOT


@pytest.mark.parametrize("holes", [True, False])
def test_what_an_outage_has_filled_is_given_back_though_the_newest_record_stands_at_the_end_of_the_file(
    monkeypatch: pytest.MonkeyPatch, *, holes: bool
) -> None:
    """A service that is quiet afterwards may not come to another slot for days."""
    if not holes:
        monkeypatch.setattr(StorageFile, "punch", lambda *_: False)
    opened = Opened(Disk(max_slots=SLOTS))
    full(opened)
    opened.settle(opened.read())
    opened.checkpoint()
    assert opened.ring.live[-1].index == opened.disk.ring.size() // SLOT - 1
    filled = on_disk(opened)
    for _ in range(3 * IDLE_LOOKS):
        opened.directory.shrink()
    kept = 1 + KEEP_FREE + RESERVED
    assert on_disk(opened) <= kept * SLOT if holes else on_disk(opened) == filled
    opened.append(*[BIG] * 20)  # what was given back is had again
    assert found(opened.dies().read()) == sorted(opened.accepted.items())[-20:]


def test_where_files_have_no_holes_nothing_is_exchanged_and_the_move_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StorageFile, "punch", lambda *_: False)
    opened = Opened(Disk(max_slots=SLOTS))
    left = sparse(opened)
    moved_on(opened, 4)
    prepare(opened)
    with pytest.raises(WalFullError, match="the retry ring is full: wait for delivery to free space, or raise wal_max"):
        move(opened)
    opened.append(b"in what the moves have freed")
    assert on_disk(opened) <= (SLOTS + RESERVED) * SLOT
    assert everything(opened.dies()) == waiting(opened, [*left, max(opened.accepted)])


def test_a_hole_is_not_taken_for_room_by_the_next_opening() -> None:
    opened = Opened(Disk(max_slots=SLOTS))
    sparse(opened)
    moved_on(opened, 9)
    following = opened.dies()
    holes = following.disk.ring.size() - following.disk.ring.disk_bytes()
    assert holes
    assert following.ring.bytes_allocated == following.disk.ring.size() - holes
    for file in (following.disk.ring, following.disk.retry, following.disk.dead):
        file.stored.belong_to(threading.RLock(), no_blocks)  # the holes' room is gone
    free = following.ring.spares.holding.free
    assert free
    with pytest.raises(WalFullError):
        following.append(*[BIG] * 1000)
    quota = following.ring.spares.quota
    kept = quota.shares.lacking(MAIN, quota.holdings())
    assert following.ring.spares.holding.free == kept, "what is on the disk is used, but for rewriting the retry ring"


def test_an_opening_with_a_lower_limit_refuses_until_delivery_has_freed_enough_and_gives_the_rest_back() -> None:
    opened = Opened(Disk(max_slots=30))
    full(opened)
    disk = opened.disk.after_death()
    disk.max_slots = 10
    following = Opened(disk)
    with pytest.raises(WalFullError, match=rf"the ring is full: .*, or raise wal_max_bytes .*={12 * SLOT}$"):
        following.append(BIG)
    entries = following.read()
    assert found(entries) == list(opened.accepted.items())
    following.settle(entries[: 12 * 5])
    following.checkpoint()
    with pytest.raises(WalFullError):
        following.append(BIG)
    while following.directory.shrink():
        pass
    assert on_disk(following) == 20 * SLOT, "eighteen of the ring, and what is kept for the others"
    following.settle(entries[12 * 5 :])
    following.checkpoint()
    while following.directory.shrink():
        pass
    assert on_disk(following) <= 12 * SLOT
    following.append(BIG)
    full(following)
    assert on_disk(following) <= 12 * SLOT


def test_a_dead_ring_full_of_letters_takes_a_quarter_and_the_main_ring_gets_the_rest() -> None:
    opened = Opened(Disk(max_slots=SLOTS))
    dead = opened.directory.dead
    while dead.bytes_used < (SLOTS + RESERVED) // 4 * SLOT or dead.spares.wanted is False:
        dead.append(BIG, None)
    with pytest.raises(WalFullError, match="the dead ring is full: export the dead letters and purge them, or raise"):
        dead.append(b"f" * dead.largest, None)
    assert dead.bytes_used == (SLOTS + RESERVED) // 4 * SLOT
    full(opened)
    assert opened.ring.bytes_used == (SLOTS + RESERVED) * SLOT - dead.bytes_used - SLOT
    assert opened.directory.retry.spares.holding.ready == 1


def test_a_full_main_ring_still_leaves_a_slot_for_what_kafka_refuses_and_for_what_is_moved() -> None:
    opened = Opened(Disk(max_slots=KEPT[MAIN]))
    full(opened)
    opened.directory.dead.append(BIG, None)
    opened.directory.retry.append(BIG, None)


def test_a_reserved_slot_that_was_used_has_another_one_before_the_main_ring_grows() -> None:
    """There may be room for no more than one."""
    opened = Opened()
    opened.directory.retry.append(BIG, None)
    order: list[str] = []
    for file in (opened.disk.ring, opened.disk.retry, opened.disk.dead):
        file.before["allocate"] = partial(order.append, file.path.name)
    opened.directory.prepare_spares()
    assert order == ["retry", "ring"]


def test_a_slot_that_was_given_back_in_part_is_allocated_again_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store into a hole of a full disk is a signal that kills the process."""
    opened = Opened()
    opened.append(*[BIG] * 16)
    opened.settle(opened.read())
    assert opened.checkpoint() == 3
    punch, begun = MemoryFile.punch, []

    def half(file: MemoryFile, offset: int, length: int) -> bool:
        begun.append(offset // SLOT)
        punch(file, offset, length // 2)
        raise WalIOError(errno.EIO, "cannot give back a part of the file", "memory")

    monkeypatch.setattr(MemoryFile, "punch", half)
    with pytest.raises(WalIOError):
        opened.ring.spares.give_up(1)
    reserve = opened.disk.ring.stored.belong_to
    reserve(threading.RLock(), no_blocks)
    assert {opened.ring.spares.take()[0] for _ in range(2)} == {0, 1, 2} - {*begun}
    with pytest.raises(WalFullError):
        opened.ring.spares.take()
    reserve(threading.RLock(), lambda _: None)
    assert [opened.ring.spares.take()[0]] == begun


def test_a_slot_that_an_opening_found_is_allocated_for_its_first_life_and_not_again() -> None:
    first = Opened()
    first.append(*[BIG] * 16)
    first.settle(first.read())
    first.checkpoint()
    opened = first.dies()
    allocated: list[bool] = []
    opened.disk.ring.before["allocate"] = lambda: allocated.append(True)
    for _ in range(6):
        opened.append(*[BIG] * 6)
        opened.settle(opened.read())
        opened.checkpoint()
    assert opened.ring.next_ordinal > 6
    assert len(allocated) <= opened.disk.ring.size() // SLOT


def test_a_slot_in_which_records_waited_in_a_sparse_copy_is_allocated_before_its_next_life() -> None:
    """Tools that copy leave out what was never written: the rest of the slot that a crash left open."""
    opened = Opened()
    opened.append(BIG)
    disk = opened.disk.after_death()
    disk.ring.stored.punched(PAGE, SLOT // 2)
    following = Opened(disk)
    following.settle(following.read())
    assert following.checkpoint() == 1
    disk.ring.stored.belong_to(threading.RLock(), no_blocks)
    with pytest.raises(WalFullError):
        following.ring.spares.take()
    disk.ring.stored.belong_to(threading.RLock(), lambda _: None)
    assert following.ring.spares.take()[0] == 0
    assert disk.ring.disk_bytes() == disk.ring.size()


@pytest.mark.parametrize("sparse", [0, 1, 2])
def test_a_free_slot_without_its_room_on_a_full_disk_is_in_nobody_s_way(sparse: int) -> None:
    """Of a sparse copy: the others are taken, and then it is a full ring, until there is room."""
    opened = Opened(Disk(max_slots=4))
    opened.append(*[BIG] * 16)
    disk = opened.disk.after_death()
    disk.ring.stored.punched(sparse * SLOT + PAGE, SLOT // 2)
    following = Opened(disk)
    following.settle(following.read())
    assert following.checkpoint() == 4
    spares = following.ring.spares
    disk.ring.stored.belong_to(threading.RLock(), no_blocks)
    assert {spares.take()[0] for _ in range(3)} == {0, 1, 2, 3} - {sparse}
    for _ in range(3):
        with pytest.raises(WalFullError):
            spares.take()
        assert spares.full
    disk.ring.stored.belong_to(threading.RLock(), lambda _: None)
    assert spares.take()[0] == sparse


def test_a_slot_that_is_being_prepared_is_not_taken_for_nobody_s() -> None:
    """The keeper's thread has it in hand, while the loop's recycles."""
    opened = Opened()
    opened.append(BIG)

    def recycle() -> None:
        opened.ring.recycle(0)

    opened.disk.ring.before["map"] = recycle
    opened.ring.prepare_spare()
    del opened.disk.ring.before["map"]
    spares = opened.ring.spares
    assert (spares.allocated, spares.free, len(opened.ring.live)) == (2, 1, 1)
    assert {spares.take()[0] for _ in range(3)} == {1, 2, 3}


def test_a_slot_that_is_nobody_s_is_free_again_for_a_life_unlike_its_last() -> None:
    opened = Opened()
    opened.append(*[BIG] * 11)
    opened.settle(opened.read())
    assert opened.checkpoint() == 2
    spares = opened.ring.spares
    index, salt, _ = spares.take()  # and an exception leaves whoever took it
    opened.disk.ring.before["read"] = broken
    opened.ring.recycle(0)
    assert spares.free == 1
    del opened.disk.ring.before["read"]
    for _ in range(2):
        opened.ring.recycle(0)
        assert spares.free == 2
    assert spares.take()[:2] == (index, salt)


class Counted(int):
    """The number of a slot that knows how often one is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = int.__hash__


def test_an_opening_goes_through_free_slots_once_however_many_there_are() -> None:
    """A directory of 20 GiB may have 300,000, most of which nothing was ever stored in."""
    file = FaultyFile("ring")
    file.write(b"\1", 2000 * SLOT - 1)
    file.punch(0, SLOT)
    free: list[tuple[int, int]] = [(Counted(index), index % 3) for index in range(2000)]
    Counted.compared = 0
    spares = Spares(Quota(Limits(SLOT, 2000 * SLOT)), MAIN, file, free)
    assert Counted.compared <= 2000
    assert (spares.free, spares.allocated) == (1333, 1333)


def test_a_slot_that_cannot_be_given_back_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(Disk(max_slots=SLOTS))
    sparse(opened)
    moved_on(opened, 5)
    before = opened.ring.spares.holding

    def fails(*_: object) -> bool:
        raise WalIOError(errno.EIO, "cannot give back a part of the file", "memory")

    monkeypatch.setattr(StorageFile, "punch", fails)
    with pytest.raises(WalIOError):
        opened.ring.spares.give_up(1)
    assert opened.ring.spares.holding == before


def test_no_more_free_slots_are_cut_off_than_are_superfluous() -> None:
    file = FaultyFile("ring", bytes(12 * SLOT))
    spares = Spares(Quota(Limits(SLOT, 12 * SLOT)), MAIN, file, [(index, 1) for index in range(4, 12)])
    spares._cut_end(3)
    assert (file.size(), spares.free) == (9 * SLOT, 5)


def test_a_directory_that_was_closed_has_nothing_mapped(tmp_path: Path) -> None:
    directory = open_directory(Options(tmp_path / "wal", SLOT, 32 * SLOT, 0))
    directory.ring.append(b"payload", None)
    directory.prepare_spares()
    name = str(directory.path / "ring")
    assert name in mapped()
    directory.close()
    assert name not in mapped()


def mapped() -> str:
    """What this process has in its memory, by the names of the files."""
    return Path("/proc/self/maps").read_text(encoding="utf-8")


def test_where_the_disk_has_no_block_for_a_slot_nothing_has_grown_and_the_ring_counts_as_full() -> None:
    """Whatever the file system said of its room: it may have been taken since."""
    opened = Opened()
    spares, reserve = opened.ring.spares, opened.disk.ring.stored.belong_to
    opened.append(BIG)
    reserve(threading.RLock(), no_blocks)
    full(opened)
    slots = spares.allocated
    assert spares.full
    assert (spares.free, spares.empty) == (0, True)
    with pytest.raises(WalFullError):
        spares.take()
    assert spares.allocated == slots == len(opened.ring.live)
    reserve(threading.RLock(), lambda _: None)
    opened.append(*[BIG] * 10)
    assert spares.allocated > slots
    assert not spares.full


@pytest.mark.parametrize("keep", [None, 0])
@pytest.mark.parametrize("end", ["dies", "loses_power"])
def test_what_is_free_at_the_end_is_given_back_wherever_it_stands_and_the_rest_is_opened_as_it_was(
    keep: int | None, end: str
) -> None:
    opened = Opened(Disk(max_slots=60))
    full(opened)
    entries = opened.read()
    left = found(entries[-1:])  # the last slots of the file hold something
    opened.settle(entries[:-1])
    opened.checkpoint()
    before, steps = on_disk(opened), 0
    while opened.directory.give_back_free(keep):
        steps += 1
    assert steps > 1, "some at a time"
    assert opened.ring.spares.holding.free == (KEEP_FREE if keep is None else 0)
    assert on_disk(opened) == sum(ring.bytes_allocated for ring in opened.directory.rings) < before / 4
    opened.ring.sync()
    following = opened.dies() if end == "dies" else opened.loses_power(3)
    waits = everything(following)
    assert waits[-1:] == left
    assert len(waits) == 1 or end == "loses_power", "settle words of the last slot may be lost with the power"
    full(following)


def test_slots_are_secured_all_or_those_that_are_ready_are_free_again_for_any_ring() -> None:
    opened = Opened(Disk(max_slots=SLOTS))
    retry, ring = opened.directory.retry.spares, opened.ring.spares
    while not retry.secure(4):
        pass
    assert (retry.holding.ready, retry.holding.free) == (4, 0)
    with pytest.raises(WalFullError, match="the retry ring is full"):
        retry.secure(40)
    assert retry.holding.ready == 4, "nothing is taken where it is not enough"
    full(opened)
    had, following = ring.allocated, retry._ready[-1]
    retry.let_go()
    assert retry._ready == [following]
    assert (retry.holding.ready, retry.holding.free) == (1, 3)
    opened.settle(opened.read())
    opened.checkpoint()
    full(opened)
    assert ring.allocated == had + 3
    assert retry.holding.free == 0
    assert on_disk(opened) <= (SLOTS + RESERVED) * SLOT


def test_a_disk_that_has_less_room_than_it_says_leaves_what_was_secured_to_be_let_go() -> None:
    opened = Opened(Disk(max_slots=SLOTS))
    retry = opened.directory.retry.spares
    assert not retry.secure(4)
    opened.disk.retry.before["allocate"] = no_room
    with pytest.raises(WalFullError):
        retry.secure(4)
    retry.let_go()
    assert (retry.holding.ready, retry.holding.free) == (1, 1)
    assert retry.wanted is False


@pytest.mark.parametrize(("slots", "moved", "may"), [(8, 10, True), (8, 11, False), (5, 1, False)])
def test_on_a_disk_that_others_have_filled_a_move_has_to_leave_room_to_rewrite_or_to_make_some(
    slots: int, moved: int, *, may: bool
) -> None:
    """With four slots the main ring may take back what it gives."""
    opened = Opened(Disk(max_slots=SLOTS))
    for _ in range(slots):
        opened.fill_slot()
    opened.read()
    quota, retry = opened.ring.spares.quota, opened.directory.retry.spares
    quota.limits = dataclasses.replace(quota.limits, free_bytes=lambda: 0)
    retry.check_move(SLOT)  # the first slot is kept for it
    make(opened, move(opened))
    assert (opened.ring.spares.holding.used, retry.holding.used) == (slots - 1, 1)
    if may:
        retry.check_move(moved * SLOT // 16)
    else:
        with pytest.raises(WalFullError, match="the disk is full: wait for delivery"):
            retry.check_move(moved * SLOT // 16)
