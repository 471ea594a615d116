"""The other directories of a wal_dir: free or not, with something in them or not, and nothing of them written."""

import errno
import hashlib
import os
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from aiorecover.errors import WalCorruptError, WalIOError
from aiorecover.testing import MemoryDisk
from aiorecover.wal import format as fmt
from aiorecover.wal import neighbours as neighbours_module
from aiorecover.wal.checkpoint import COPY_BYTES, Destination
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.moved import pack_moved
from aiorecover.wal.neighbours import Neighbour, Neighbours
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.storage import OPERATING_SYSTEM, FileSystem
from tests.wal.rig import take

SLOT = 1 << 14


def opened(wal: Path, instance: str, *, file_system: FileSystem = OPERATING_SYSTEM, **options: Any) -> Directory:
    return open_directory(
        Options(wal, SLOT, 64 * SLOT, 0, instance=instance, lock_timeout=0.0, file_system=file_system, **options)
    )


def closed(directory: Directory) -> None:
    directory.write_checkpoint(directory.next_checkpoint(closed=True))
    directory.close()


def settle_all(directory: Directory) -> None:
    reader = Reader(directory.ring, bytes)
    while entries := take(reader, 10_000):
        for slot, place, _, _ in entries:
            directory.ring.settle(slot, [place])
    reader.close()


def orphan(wal: Path, name: str = "1", *, settled: bool = False, clean: bool = True) -> None:
    directory = opened(wal, name)
    for number in range(200):
        directory.ring.append(b"%d" % number * 50, None)
    if settled:
        settle_all(directory)
    if clean:
        closed(directory)
    else:
        directory.close()


def beside(wal: Path) -> Neighbours:
    return Neighbours(OPERATING_SYSTEM, wal / "0")


def look(wal: Path, name: str = "1", before: Neighbour | None = None) -> Neighbour:
    return beside(wal).look(name, before)


@pytest.mark.parametrize("clean", [True, False])
def test_a_directory_with_undelivered_records_that_nobody_has_locked_is_free_and_waits(
    tmp_path: Path, clean: bool
) -> None:
    orphan(tmp_path, clean=clean)
    found = look(tmp_path)
    assert (found.free, found.waiting, found.error) == (True, True, "")
    assert found.stamp


def test_one_that_was_delivered_and_closed_does_not_wait(tmp_path: Path) -> None:
    orphan(tmp_path, settled=True)
    assert look(tmp_path).waiting is False


def lose_seal(wal: Path, slot: int) -> None:
    """As a power cut has it in a slot whose newer life it took: the header of the older one is there, and no seal."""
    with (wal / "1" / "ring").open("r+b") as ring:
        for end in (0, SLOT - fmt.RESERVED):
            ring.seek(slot * SLOT + end + fmt.SEAL_OFFSET)
            ring.write(bytes(fmt.SEAL_BYTES))


def test_a_slot_without_a_seal_does_not_wait_where_all_before_the_next_one_is_delivered(tmp_path: Path) -> None:
    orphan(tmp_path, settled=True)
    lose_seal(tmp_path, 0)
    directory = opened(tmp_path, "1")
    settle_all(directory)
    closed(directory)
    assert look(tmp_path).waiting is False, "it would be adopted for ever: an opening finds nothing to do"


def test_a_slot_without_a_seal_waits_where_something_before_the_next_one_does(tmp_path: Path) -> None:
    orphan(tmp_path)
    lose_seal(tmp_path, 0)
    closed(opened(tmp_path, "1"))
    assert look(tmp_path).waiting is True


def test_one_that_was_killed_with_everything_delivered_may_wait_until_it_is_opened_and_closed_once(
    tmp_path: Path,
) -> None:
    orphan(tmp_path, settled=True, clean=False)
    assert look(tmp_path).waiting is True
    directory = opened(tmp_path, "1")
    settle_all(directory)
    closed(directory)
    assert look(tmp_path).waiting is False


def test_one_that_was_opened_and_never_used_does_not_wait(tmp_path: Path) -> None:
    opened(tmp_path, "1").close()
    assert look(tmp_path).waiting is False


def test_a_backlog_waits_also_behind_an_opening_that_delivered_nothing(tmp_path: Path) -> None:
    orphan(tmp_path)
    for _ in range(2):
        closed(opened(tmp_path, "1"))
        assert look(tmp_path).waiting is True


@pytest.mark.parametrize("settled", [0, 600])
def test_what_a_killed_process_stored_behind_its_last_checkpoint_waits_also_behind_a_clean_turn(
    tmp_path: Path, settled: int
) -> None:
    directory = opened(tmp_path, "1")
    directory.ring.append(b"before the checkpoint", None)
    directory.write_checkpoint(directory.next_checkpoint())
    for number in range(1000):
        directory.ring.append(b"%d" % number * 50, None)
    directory.close()
    directory = opened(tmp_path, "1")
    reader = Reader(directory.ring, bytes)
    for slot, place, _, _ in take(reader, settled) if settled else ():
        directory.ring.settle(slot, [place])
    reader.close()
    closed(directory)
    assert look(tmp_path).waiting is True
    directory = opened(tmp_path, "1")
    settle_all(directory)
    closed(directory)
    assert look(tmp_path).waiting is False


def test_the_one_that_is_locked_is_not_free_and_not_read(tmp_path: Path) -> None:
    directory = opened(tmp_path, "1")
    directory.ring.append(b"waits", None)
    found = look(tmp_path)
    assert (found.free, found.waiting) == (False, None)
    directory.close()
    assert look(tmp_path, before=found).waiting is True


def test_what_the_stamp_proves_is_not_read_and_not_locked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(tmp_path)
    orphan(tmp_path, "2", settled=True)
    waits, done = look(tmp_path), look(tmp_path, "2")
    monkeypatch.setattr(neighbours_module, "_waits", None)
    assert look(tmp_path, before=waits) == waits
    monkeypatch.setattr(Neighbours, "_is_free", None)
    assert look(tmp_path, "2", before=done) == done


def test_an_opening_changes_the_stamp_even_if_nothing_was_stored(tmp_path: Path) -> None:
    orphan(tmp_path, settled=True)
    done = look(tmp_path)
    directory = opened(tmp_path, "1")
    found = look(tmp_path, before=done)
    assert (found.free, found.waiting) == (False, None)
    assert found.stamp != done.stamp
    directory.ring.append(b"waits", None)
    directory.close()
    assert look(tmp_path, before=found).waiting is True


def test_without_a_checkpoint_the_stamp_is_another_one_when_the_ring_has_grown(tmp_path: Path) -> None:
    orphan(tmp_path, clean=False)
    (tmp_path / "1" / "checkpoint").unlink()
    found, ring = look(tmp_path), tmp_path / "1" / "ring"
    assert (found.free, found.waiting) == (True, True)
    os.truncate(ring, ring.stat().st_size + SLOT)
    grown = look(tmp_path)
    assert grown.stamp != found.stamp
    assert look(tmp_path).stamp == grown.stamp
    ring.unlink()
    gone = look(tmp_path)
    assert (gone.waiting, gone.error) == (False, "")


def test_looking_writes_nothing_and_leaves_the_lock(tmp_path: Path) -> None:
    orphan(tmp_path)

    def content() -> dict[str, str]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = content()
    look(tmp_path)
    assert content() == before
    assert not [link for link in Path("/proc/self/fd").iterdir() if str(tmp_path) in _target(link)]
    opened(tmp_path, "1").close()


def _target(link: Path) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - a socket is no path
    except FileNotFoundError:
        return ""


def test_copies_in_the_retry_ring_wait_as_well(tmp_path: Path) -> None:
    directory = opened(tmp_path, "1")
    directory.retry.append(pack_moved(1, 0, 0, b"a copy"), None)
    closed(directory)
    assert look(tmp_path).waiting is True


def test_junk_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    orphan(tmp_path)
    (tmp_path / "1" / "checkpoint").write_bytes(b"junk" * 1000)
    (tmp_path / "1" / "ring").write_bytes(b"junk" * 10_000)
    found = look(tmp_path)
    assert found.waiting is None
    assert str(tmp_path / "1") in found.error


def test_a_link_and_a_missing_file_are_errors_and_nothing_is_made(tmp_path: Path) -> None:
    orphan(tmp_path / "elsewhere")
    wal = tmp_path / "wal"
    wal.mkdir()
    (wal / "1").symlink_to(tmp_path / "elsewhere" / "1")
    assert "symbolic link" in look(wal).error
    assert [path.name for path in wal.iterdir()] == ["1"]


@pytest.mark.parametrize("files", [[], ["lock"], ["ring", "checkpoint"], ["something else"]])
def test_what_is_no_directory_of_ours_or_only_being_made_does_not_wait(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "1").mkdir()
    for name in files:
        (tmp_path / "1" / name).touch()
    found = look(tmp_path)
    assert (found.waiting, found.error) == (False, "")
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == sorted(files)
    assert look(tmp_path, "not there").waiting is False


def test_our_own_directory_is_none_of_the_others(tmp_path: Path) -> None:
    for name in ("0", "1", "orders"):
        orphan(tmp_path, name)
    orphan(tmp_path / ".backup")
    (tmp_path / "lost+found").mkdir()
    assert beside(tmp_path).names() == ["1", "orders"]


@pytest.mark.parametrize("locked", [False, True])
def test_destination_and_producer_are_known_without_opening_it_also_while_somebody_has_it(
    tmp_path: Path, locked: bool
) -> None:
    directory = opened(tmp_path, "1", name="orders", servers=("a:1",))
    directory.ring.append(b"waits", None)
    if not locked:
        closed(directory)
    found = look(tmp_path)
    assert found.destination == Destination(name="orders", servers=("a:1",))
    assert found.directory_id == fmt.directory_of(directory.checkpoint.producer_id)
    directory.close()


@pytest.mark.parametrize("left", [0, 1])
def test_destination_and_producer_are_known_by_whichever_copy_of_the_checkpoint_is_left(
    tmp_path: Path, left: int
) -> None:
    with closing(opened(tmp_path, "1", name="orders", servers=("a:1",))) as directory:
        with (tmp_path / "1" / "checkpoint").open("r+b") as file:
            file.seek((1 - left) * COPY_BYTES)
            file.write(b"\xa5" * 100)
        found = look(tmp_path)
        assert (found.free, found.error) == (False, "")
        assert found.destination == Destination(name="orders", servers=("a:1",))
        assert found.directory_id == fmt.directory_of(directory.checkpoint.producer_id)


@pytest.mark.parametrize("locked", [False, True])
def test_one_without_a_checkpoint_that_holds_says_all_that_its_ring_tells(tmp_path: Path, locked: bool) -> None:
    directory = opened(tmp_path, "1", name="orders")
    directory.ring.append(b"waits", None)
    if not locked:
        closed(directory)
    (tmp_path / "1" / "checkpoint").write_bytes(b"junk" * 100)
    found = look(tmp_path)
    assert (found.name, found.free, found.waiting, found.error) == ("1", not locked, None if locked else True, "")
    assert (found.destination, found.directory_id) == (Destination(), None)
    assert look(tmp_path, before=found) == found
    directory.close()


def test_a_directory_that_cannot_be_looked_at_is_an_error_that_says_so_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(tmp_path)

    def refuse(_: FileSystem, path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(FileSystem, "names", refuse)
    told = look(tmp_path).error
    assert "cannot look at the directory: check the disk and the permissions: Permission denied" in told
    assert str(tmp_path / "1") in told


def test_one_that_somebody_has_and_that_cannot_be_understood_is_no_error_and_looked_at_again_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may be writing it."""
    directory = opened(tmp_path, "1")

    def refuse(*_: object) -> NoReturn:
        raise WalCorruptError("the checkpoint cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(neighbours_module, "_known", refuse)
        found = look(tmp_path)
    assert (found.name, found.free, found.waiting, found.error) == ("1", False, None, "")
    assert found.stamp == look(tmp_path).stamp
    directory.close()


def test_a_wal_dir_that_cannot_be_listed_is_an_error_that_says_so_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(WalIOError, match="cannot list the directory: check the disk and the permissions: ") as caught:
        beside(tmp_path / "absent").names()
    assert caught.value.filename == str(tmp_path / "absent")


def test_a_cluster_once_known_stays_and_the_addresses_go(tmp_path: Path) -> None:
    opened(tmp_path, "1", servers=("a:1",)).close()
    for cluster_id in ("first", "second"):
        opened(tmp_path, "1", cluster_id=cluster_id, servers=("b:1",)).close()
    assert look(tmp_path).destination == Destination(cluster_id="first")


def test_progress_is_another_one_once_something_is_stored_or_delivered_from_the_front(tmp_path: Path) -> None:
    seen = set()
    for step in (orphan, lambda *_: closed(opened(tmp_path, "1")), lambda *_: orphan(tmp_path, settled=True)):
        step(tmp_path, "1")
        seen.add(look(tmp_path).progress)
    assert len(seen) == 2  # an opening that delivers nothing is no progress


def test_damage_is_not_read_again_before_somebody_has_opened_or_mended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan(tmp_path)
    whole = (tmp_path / "1" / "checkpoint").read_bytes()
    for junk in (b"junk" * 1000, b""):
        (tmp_path / "1" / "checkpoint").write_bytes(junk)
        (tmp_path / "1" / "ring").write_bytes(b"junk" * 10_000)
        damaged = look(tmp_path)
        assert damaged.error
        with monkeypatch.context() as patch:
            patch.setattr(Neighbours, "_waits", None)
            assert look(tmp_path, before=damaged) == damaged
    (tmp_path / "1" / "ring").write_bytes(b"")
    (tmp_path / "1" / "checkpoint").write_bytes(whole)
    assert look(tmp_path, before=damaged).error == ""


@pytest.mark.parametrize("owed", [True, False])
def test_a_letter_that_is_owed_waits_for_who_has_the_topic_and_for_nobody_else(tmp_path: Path, owed: bool) -> None:
    directory = opened(tmp_path, "1")
    for number in range(500):  # several slots
        directory.dead.append(pack_moved(1 + number, 0, 0, b"%d" % number * 30), None)
    directory.dead.append(pack_moved(501, 0, 0, b"owed" if owed else b"paid"), None)
    closed(directory)
    assert look(tmp_path).waiting is False
    with_topic = Neighbours(OPERATING_SYSTEM, tmp_path / "0", lambda payload: payload.endswith(b"owed"))
    assert with_topic.look("1").waiting is owed


def test_a_disk_in_memory_can_be_looked_at() -> None:
    disk = MemoryDisk()
    for settled in (False, True):
        directory = opened(disk.path, str(int(settled)), file_system=disk.file_system)
        directory.ring.append(b"waits", None)
        if settled:
            settle_all(directory)
        closed(directory)
    found = [Neighbours(disk.file_system, disk.path / "other").look(name).waiting for name in ("0", "1")]
    assert found == [True, False]
