"""What an opening does for the disk: pages that no flush is known to cover are written again (step 7 of recovery).

And what it makes of zeros in the place of pages that nobody could read, as tools leave them that copy such files.
"""

import errno
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from aiorecover.errors import WalIOError
from aiorecover.testing import MemoryDisk
from aiorecover.wal import format as fmt
from aiorecover.wal import opening
from aiorecover.wal.checkpoint import COPY_BYTES, Checkpoint, CheckpointFile
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.moved import pack_moved
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from tests.wal.memory import PAGE, FaultyFile, broken
from tests.wal.rig import SLOT, Disk, Opened, found, missing, read

LARGE = 9000  # a slot holds one of them, and pages without a header or a settle word, which nobody stores into again
NAMES = ("ring", "retry", "dead")


def ring_of(opened: Opened, name: str) -> Ring:
    return opened.directory.rings[NAMES.index(name)]


def file_of(disk: Disk, name: str) -> FaultyFile:
    file = getattr(disk, name)
    assert isinstance(file, FaultyFile)
    return file


def a_flush_fails(opened: Opened, name: str = "ring") -> None:
    """The process dies of it, before it can leave word."""
    file_of(opened.disk, name).stored.fail_syncs()
    with pytest.raises(WalIOError):
        ring_of(opened, name).sync()


def test_what_a_flush_lost_in_a_process_that_died_of_it_is_saved_by_the_next_one() -> None:
    """The kernel calls those pages clean, so the flushes of the next process would pass them over."""
    opened = Opened()
    opened.append(*[b"%d" % number * LARGE for number in range(4)], *[b"small %d" % number for number in range(100)])
    a_flush_fails(opened)
    following = opened.dies()
    following.checkpoint()
    for seed in range(5):
        assert found(following.loses_power(seed).read()) == list(opened.accepted.items())


@pytest.mark.parametrize("name", NAMES)
def test_the_first_checkpoint_after_a_crash_covers_every_page_of_each_ring(name: str) -> None:
    opened = Opened()
    for number in range(3):
        ring_of(opened, name).append(bytes([number + 1]) * LARGE, None)
    a_flush_fails(opened, name)
    following = opened.dies()
    following.checkpoint()
    file = file_of(following.disk, name)
    assert file.durable == file.live()


def killed(disk: Disk) -> Disk:
    return disk


def rebooted(disk: Disk) -> Disk:
    disk.boots += 1
    return disk


@pytest.mark.parametrize(
    ("covered", "closed", "end", "expected"),
    [
        (0, False, killed, 4),
        (2, False, killed, 2),
        (4, False, killed, 1),  # frames may have come behind the last one that a checkpoint knows
        (4, True, killed, 0),
        (0, False, rebooted, 0),  # the pages come from the disk
    ],
    ids=["no flush", "a flush of half", "a flush of all", "closed", "another boot"],
)
def test_only_what_no_flush_covers_is_written_again(
    covered: int, *, closed: bool, end: Callable[[Disk], Disk], expected: int
) -> None:
    opened = Opened()
    opened.append(*[b"before" * 1500] * covered)
    opened.directory.write_checkpoint(opened.directory.next_checkpoint(closed=closed))
    opened.append(*[b"behind" * 1500] * (4 - covered))
    assert len(opened.ring.live) == 4
    disk = end(opened.disk.after_death())
    count = 0

    def rewritten() -> None:
        nonlocal count
        count += 1

    disk.ring.before["rewrite"] = rewritten
    with Opened(disk) as following:
        assert count == expected
        assert found(following.read()) == list(opened.accepted.items())


def unlike(file: FaultyFile) -> list[int]:
    """The pages that the disk does not have as they are."""
    live, durable = file.live(), file.durable
    return [at for at in range(0, len(live), PAGE) if live[at : at + PAGE] != durable[at : at + PAGE]]


@pytest.mark.parametrize("bad", [[SLOT + PAGE], [SLOT + PAGE, SLOT + 2 * PAGE, 2 * SLOT + PAGE]])
def test_a_page_that_cannot_be_read_keeps_no_directory_closed_and_all_others_are_written_again(
    bad: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Those beside it, too: a later flush would pass them over and succeed."""
    opened = Opened()
    opened.append(*[b"%d" % number * LARGE for number in range(3)])
    a_flush_fails(opened)
    disk = opened.disk.after_death()
    for page in bad:
        disk.ring.stored.fail_reads(page, 1)
    with caplog.at_level(logging.WARNING):
        following = Opened(disk)
    assert f"a page of the ring cannot be read path={disk.ring.path}" in caplog.text
    following.ring.sync()
    assert unlike(disk.ring) == bad


def test_so_many_pages_that_cannot_be_read_are_asked_for_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each may take the disk half a minute."""
    opened = Opened()
    opened.append(b"0" * LARGE, b"1" * LARGE)
    a_flush_fails(opened)
    disk = opened.disk.after_death()
    disk.ring.stored.fail_reads(PAGE, 2 * PAGE)
    asked = 0

    def asked_once() -> None:
        nonlocal asked
        asked += 1

    disk.ring.before["rewrite"] = asked_once
    monkeypatch.setattr(opening, "BAD_PAGES", 2)
    with caplog.at_level(logging.WARNING):
        following = Opened(disk)
    assert asked == 1 + 3 + 1  # the first slot, three pages of it, the second slot
    assert "no more pages of a slot are asked for" in caplog.text
    following.ring.sync()
    assert unlike(disk.ring) == [PAGE, 2 * PAGE, 3 * PAGE]


def test_where_pages_cannot_be_written_again_for_want_of_memory_the_directory_is_refused() -> None:
    """They can be read: no flush would tell that they are missing."""
    opened = Opened()
    opened.append(b"0" * LARGE)
    a_flush_fails(opened)
    disk = opened.disk.after_death()

    def without_memory() -> None:
        raise WalIOError(errno.ENOMEM, "cannot rewrite the file: give it more memory", "memory")

    disk.ring.before["rewrite"] = without_memory
    with pytest.raises(WalIOError, match="give it more memory"):
        Opened(disk)
    disk.ring.before.clear()
    following = Opened(disk)
    following.ring.sync()
    assert unlike(disk.ring) == []


def test_what_cannot_be_asked_for_at_all_is_not_taken_for_a_page_that_the_disk_has_lost() -> None:
    opened = Opened()
    opened.append(b"0" * LARGE)
    a_flush_fails(opened)
    disk = opened.disk.after_death()

    def without_descriptors() -> None:
        disk.ring.before["read"] = without_descriptors
        raise WalIOError(errno.EMFILE, "cannot open the file: allow more of them", "ring")

    disk.ring.before["rewrite"] = without_descriptors
    with pytest.raises(WalIOError, match="allow more of them"):
        Opened(disk)


def cannot_be_stored_into(disk: Disk, *, times: int) -> None:
    """The kernel says the same of a page that cannot be read."""
    left = times

    def refuses() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            broken()

    disk.ring.before["rewrite"] = refuses


def test_where_pages_can_be_read_and_not_be_stored_again_the_directory_is_refused() -> None:
    opened = Opened()
    opened.append(b"0" * LARGE)
    a_flush_fails(opened)
    disk = opened.disk.after_death()
    cannot_be_stored_into(disk, times=1000)
    with pytest.raises(WalIOError, match="input/output error"):
        Opened(disk)
    disk.ring.before.clear()
    following = Opened(disk)
    following.ring.sync()
    assert unlike(disk.ring) == []


def test_a_page_that_could_not_be_read_for_a_moment_is_stored_again(caplog: pytest.LogCaptureFixture) -> None:
    opened = Opened()
    opened.append(b"0" * LARGE)
    a_flush_fails(opened)
    disk = opened.disk.after_death()
    cannot_be_stored_into(disk, times=2)
    following = Opened(disk)
    following.ring.sync()
    assert (unlike(disk.ring), caplog.text) == ([], "")


def test_a_hole_that_the_disk_has_no_room_for_keeps_no_directory_closed(caplog: pytest.LogCaptureFixture) -> None:
    opened = Opened()
    opened.append(b"0" * PAGE)
    disk = opened.disk.after_death()
    hole, rewrite = SLOT // PAGE // 2, disk.ring.rewrite
    assert not any(disk.ring.live()[hole * PAGE : (hole + 1) * PAGE])

    def without_room(offset: int, length: int) -> None:
        if offset <= hole * PAGE < offset + length:
            broken()
        rewrite(offset, length)

    disk.ring.rewrite = without_room  # type: ignore[method-assign]
    with Opened(disk) as following:
        assert found(following.read()) == list(opened.accepted.items())
    assert caplog.text == ""


# -- zeros where nothing could be read -------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [SLOT, 2 * SLOT - PAGE])
def test_a_header_s_page_of_zeros_costs_what_stood_in_it_and_is_named(start: int) -> None:
    opened = Opened()
    for _ in range(3):
        opened.fill_slot()
    in_page = [
        (slot.header.epoch, sequence)
        for slot, place, sequence, record in opened.read()
        if slot.file_offset + 4 * place + 4 + len(record) > start  # its settle word, and the payload behind it
        and slot.file_offset + 4 * place - 16 < start + PAGE
    ]
    assert in_page
    disk = opened.disk.after_death()
    disk.ring.stored.fail_reads(start, 1)
    with pytest.raises(WalIOError, match=r"cannot read the file: check the disk, or open a copy .*ddrescue"):
        disk.open()
    disk = opened.disk.after_death()
    disk.ring.damage(start, bytes(PAGE))
    with Opened(disk) as following:
        assert following.ring.damaged_slots == []
        delivered = dict(found(following.read()))
        assert missing(following.ring) == in_page
        assert delivered == {place: held for place, held in opened.accepted.items() if place not in in_page}


@pytest.mark.parametrize("copy", [0, 1])
def test_a_checkpoint_s_page_of_zeros_leaves_the_other_copy_to_count(copy: int) -> None:
    opened = Opened()
    for _ in range(3):
        opened.fill_slot()
    entries = opened.read()
    opened.settle(entries[:-5])
    opened.checkpoint()
    opened.checkpoint()
    disk = opened.disk.after_death()
    disk.checkpoint.stored.fail_reads(copy * COPY_BYTES, 1)
    with pytest.raises(WalIOError, match=r"cannot read the file: check the disk, or open a copy .*ddrescue"):
        disk.open()
    disk = opened.disk.after_death()
    disk.checkpoint.damage(copy * COPY_BYTES, bytes(PAGE))
    with Opened(disk) as following:
        assert following.ring.epoch == opened.ring.epoch + 1
        assert found(following.read()) == found(entries[-5:])
        assert missing(following.ring) == []


def test_a_full_disk_refuses_no_directory_after_a_power_cut() -> None:
    """Files of which nothing was flushed are empty then: there is no room for our process id, nor for a header."""
    empty = set()
    for seed in range(40):
        disk = MemoryDisk()
        options = Options(disk.path, SLOT, max_bytes=66 * SLOT, min_free_bytes=0, file_system=disk.file_system)
        with closing(open_directory(options)) as directory:
            directory.ring.append(b"released", None)
            directory.sync()
            cut = disk.after_power_cut(seed)
        cut.full()
        empty |= {name for name in cut.files() if not cut.file(name).size()}
        with closing(open_directory(replace(options, file_system=cut.file_system))) as directory:
            assert [record for *_, record in read(Reader(directory.ring, bytes))] == [b"released"]
            cut.resize(None)
            directory.prepare_spares()
            assert not directory.lanes.wants_room
    assert {"0/lock", "0/lanes"} <= empty


def test_the_name_of_a_first_checkpoint_is_durable_before_another_file_has_a_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By their lengths a directory in use is told from a new one."""
    disk = MemoryDisk()
    cuts: list[MemoryDisk] = []
    options = Options(disk.path, SLOT, max_bytes=66 * SLOT, min_free_bytes=0, file_system=disk.file_system)
    reserve = opening._reserve

    def cut(directory: Directory) -> None:
        reserve(directory)
        cuts.extend(disk.after_power_cut(seed) for seed in range(40))

    monkeypatch.setattr(opening, "_reserve", cut)
    open_directory(options).close()
    monkeypatch.undo()
    for after in cuts:
        with closing(open_directory(replace(options, file_system=after.file_system))) as directory:
            assert directory.ring.live == []
    assert any(after.file("0/lanes").size() for after in cuts if "0/lanes" in after.files())


@pytest.mark.parametrize("name", ["ring", "retry"])
@pytest.mark.parametrize("zero", ["front", "end"])
def test_a_slot_full_of_records_is_not_written_over_though_one_header_is_zero_and_the_other_damaged(
    name: str, zero: str
) -> None:
    """It looks like one whose very first header was being stored, but for what stands in it."""
    opened = Opened()
    ring = ring_of(opened, name)
    for number in range(1, 100):
        ring.append(pack_moved(fmt.position(1, number), 0, 0, b"f" * 500), None)
    opened.checkpoint()
    disk = opened.disk.after_death()
    file, front, end = file_of(disk, name), SLOT, 2 * SLOT - fmt.RESERVED
    blank, other = (front, end) if zero == "front" else (end, front)
    file.damage(blank, bytes(fmt.RESERVED))
    file.stored.flip((other + 20) * 8)
    before = file.live()[SLOT : 2 * SLOT]
    following = Opened(disk)
    assert ring_of(following, name).damaged_slots == [1]
    for _ in range(6):
        ring_of(following, name).append(b"f" * 15000, None)
    assert file.live()[SLOT : 2 * SLOT] == before


def test_behind_a_death_before_the_second_copy_of_the_very_first_checkpoint_nothing_is_said_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, write, written = Disk(), CheckpointFile.write, list[int]()

    def dies_behind_the_first(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        if written:
            raise InterruptedError
        written.append(1)
        write(self, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "write", dies_behind_the_first)
        with pytest.raises(InterruptedError):
            disk.open()
    following = Opened(disk.after_death())
    assert following.directory.ring.epoch == 2
    assert caplog.text == ""


@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_that_one_copy_of_the_checkpoint_is_lost_is_said(caplog: pytest.LogCaptureFixture, checkpoints: int) -> None:
    opened = Opened()
    assert caplog.text == ""
    opened.append(b"waits")
    for _ in range(checkpoints):
        opened.checkpoint()
    copies = CheckpointFile(opened.disk.checkpoint).copies
    newer = max(range(2), key=lambda number: copies[number].generation)
    opened.disk.checkpoint.damage(newer * COPY_BYTES, bytes(COPY_BYTES))
    opened.dies()
    assert "one copy of the checkpoint does not hold" in caplog.text or "may be missing" in caplog.text
