"""The rules about who may have a directory, each taken away in turn: a scenario goes red that is green without."""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from aiorecover import orphans
from aiorecover.errors import WalDestinationError, WalError, WalFormatError, WalLockedError
from aiorecover.wal import instance, opening, storage
from aiorecover.wal.checkpoint import Destination
from aiorecover.wal.directory import LOCK, Directory, Options
from aiorecover.wal.moved import RING
from aiorecover.wal.neighbours import Neighbour
from aiorecover.wal.storage import FileSystem, StorageFile
from tests.wal.ledger import ViolationError, demand
from tests.wal.planted import Fault, Patch, Planted, Scenario, names_of, tells
from tests.wal.real_files import ends_well, forked, real_files


def must_refuse(error: type[WalError], call: Callable[[], object], promise: str) -> None:
    try:
        call()
    except error:
        return
    raise ViolationError(promise)


# -- a process takes the first directory whose lock is free ----------------------------------------------------------


def take_what_is_locked(patch: Patch) -> None:
    patch.setattr(StorageFile, "lock", lambda _: True)


def two_workers_share_a_wal_dir() -> None:
    with real_files() as (_, opens):
        demand(opens().path != opens().path, "a directory belongs to one process")


# -- an instance that is asked for by name is waited for -------------------------------------------------------------


def wait_for_no_name(patch: Patch) -> None:
    locked = instance._lock_named
    patch.setattr(instance, "_lock_named", lambda file_system, path, _: locked(file_system, path, 0.0))


def a_named_instance_has_a_predecessor() -> None:
    """Which ends behind the first try."""
    lock = StorageFile.lock

    def tried(self: StorageFile) -> bool:
        taken = lock(self)
        predecessor.close()
        return taken

    with real_files() as (_, opens):
        predecessor = opens(instance="shop")
        with mock.patch.object(StorageFile, "lock", tried):
            try:
                opens(instance="shop", lock_timeout=10.0)
            except WalLockedError as error:
                raise ViolationError("who asks for a name waits for it") from error


# -- inodes of lock and ring are compared with the path, after locking and on each tick --------------------------------


def trust_the_name_of_the_lock(patch: Patch) -> None:
    patch.setattr(instance, "_same_file", lambda *_: True)


def a_lock_is_replaced_before_it_is_locked() -> None:
    """Its next owner would lock another file of this name."""
    flock, left = fcntl.flock, [1]

    def replaced(descriptor: int, operation: int) -> None:
        if left and left.pop():
            (place / "wal" / "0" / LOCK).unlink()
        flock(descriptor, operation)

    with real_files() as (place, opens), mock.patch.object(fcntl, "flock", replaced):
        directory = opens()
        here = directory.file_system.identity(directory.path / LOCK) if (directory.path / LOCK).exists() else None
        demand(here == directory.files.lock.identity(), "who has the lock has the file of that name")


def look_at_no_inode(patch: Patch) -> None:
    """Only whether there is a file."""

    def moved_away(self: Directory) -> str | None:
        return next((f"{file.path}" for file in self.files if not self.file_system.exists(file.path)), None)

    patch.setattr(Directory, "moved_away", moved_away)


def a_file_is_replaced(name: str) -> None:
    with real_files() as (place, opens):
        directory = opens()
        demand(directory.moved_away() is None, "nothing is wrong", name)
        path = directory.path / name
        path.rename(place / "elsewhere")
        path.touch()
        demand(directory.moved_away() is not None, "a file that was replaced is noticed", name)


def a_lock_is_replaced() -> None:
    a_file_is_replaced(LOCK)


def a_ring_is_replaced() -> None:
    a_file_is_replaced(RING)


# -- a forked child closes everything and never unlocks --------------------------------------------------------------


def unlock_when_a_file_is_closed(patch: Patch) -> None:
    close = StorageFile.close

    def and_unlock(self: StorageFile) -> None:
        if not self.closed:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        close(self)

    patch.setattr(StorageFile, "close", and_unlock)


def keep_files_open_in_a_child(patch: Patch) -> None:
    close, parent = StorageFile.close, os.getpid()

    def close_in_the_parent(self: StorageFile) -> None:
        if os.getpid() == parent:
            close(self)

    patch.setattr(StorageFile, "close", close_in_the_parent)


def a_child_is_forked_and_ends() -> None:
    with real_files() as (_, opens):
        opens(instance="shop")
        ends_well(forked(lambda: None), "a child can be forked")
        must_refuse(WalLockedError, lambda: opens(instance="shop"), "a child unlocks nothing")


def a_child_outlives_its_parent() -> None:
    """The parent lets go of the directory; the child still runs."""
    (told, tell), (waits, let_go) = os.pipe(), os.pipe()

    def live() -> None:
        os.close(let_go)
        os.write(tell, b".")
        os.read(waits, 1)

    with real_files() as (_, opens):
        directory = opens(instance="shop")
        child = forked(live)
        try:
            os.read(told, 1)
            directory.close()
            opens(instance="shop")
        except WalLockedError as error:
            raise ViolationError("a child holds no lock") from error
        finally:
            for descriptor in (told, tell, waits, let_go):
                os.close(descriptor)
            ends_well(child, "a child ends")


def keep_the_rings_open_in_a_child(patch: Patch) -> None:
    abandon, parent = Directory.abandon, os.getpid()

    def abandon_in_the_parent(self: Directory) -> None:
        if os.getpid() == parent:
            abandon(self)

    patch.setattr(Directory, "abandon", abandon_in_the_parent)


def a_child_publishes() -> None:
    """Into the slot that the parent writes to: its mapping is shared."""
    with real_files() as (_, opens):
        directory = opens()
        directory.ring.append(b"before", None)

        def publish() -> None:
            must_refuse(WalError, lambda: directory.ring.append(b"a child's", None), "nothing is accepted in a child")

        ends_well(forked(publish), "nothing is accepted in a child")
        directory.ring.append(b"behind", None)


# -- an orphan is adopted once nobody has come back for it in the grace period ----------------------------------------


def adopt_at_once(patch: Patch) -> None:
    begin = orphans.Orphans.__init__
    patch.setattr(orphans.Orphans, "__init__", lambda self, _: begin(self, 0.0))


def a_process_restarts() -> None:
    """Its directory is free meanwhile, with something in it."""
    here, grace = Destination(cluster_id="here"), 60.0
    neighbours = orphans.Orphans(grace)
    own = Neighbour("0", destination=here, directory_id=1)
    left = Neighbour("1", b"stamp", free=True, waiting=True, destination=here, directory_id=2)
    for seconds in range(int(grace)):
        neighbours.saw(seconds, [left], own)
        demand(neighbours.due(seconds) is None, "who restarts has the grace period to come back", seconds)
    demand(neighbours.due(grace) == "1", "and what nobody has come back for is adopted")


# -- what is refused: links, another user's directory, another destination; and nobody else may read -------------------


def follow_links(patch: Patch) -> None:
    patch.setattr(FileSystem, "is_symlink", lambda *_: False)


def a_wal_dir_is_a_symbolic_link() -> None:
    with real_files() as (place, opens):
        (place / "elsewhere").mkdir()
        (place / "wal").symlink_to(place / "elsewhere")
        must_refuse(WalFormatError, opens, "a symbolic link is refused")


def take_any_owner(patch: Patch) -> None:
    patch.setattr(instance, "_check_owner", lambda *_: None)


class OfSomebodyElse(FileSystem):
    """Every directory is another user's."""

    def owner(self, path: Path) -> int:
        return super().owner(path) + 1


def a_wal_dir_is_another_user_s() -> None:
    with real_files() as (_, opens):
        must_refuse(WalFormatError, lambda: opens(file_system=OfSomebodyElse()), "another user's directory is refused")


def forget_whose_it_is(patch: Patch) -> None:
    def given(_: Path, stored: Destination, options: Options) -> Destination:
        return msgspec.structs.replace(stored, name=options.name)

    patch.setattr(opening, "_destination", given)


def a_directory_is_opened_by_another_name() -> None:
    with real_files() as (_, opens):
        opens(instance="shop", name="orders").close()
        again = {"instance": "shop", "name": "payments"}
        must_refuse(WalDestinationError, lambda: opens(**again), "what was for one destination goes to no other")


def let_others_read(patch: Patch) -> None:
    patch.setattr(storage, "FILE_MODE", 0o644)
    patch.setattr(storage, "DIRECTORY_MODE", 0o755)


def others_look_at_the_files() -> None:
    before = os.umask(0)
    try:
        with real_files() as (_, opens):
            path = opens().path
            found = {one: stat.S_IMODE(one.stat().st_mode) for one in [path.parent, path, *path.iterdir()]}
    finally:
        os.umask(before)
    demand(not any(mode & 0o077 for mode in found.values()), "files are nobody else's business", found)


PLANTED: Planted = [
    (two_workers_share_a_wal_dir, take_what_is_locked),
    (a_named_instance_has_a_predecessor, wait_for_no_name),
    (a_lock_is_replaced_before_it_is_locked, trust_the_name_of_the_lock),
    (a_lock_is_replaced, look_at_no_inode),
    (a_ring_is_replaced, look_at_no_inode),
    (a_child_is_forked_and_ends, unlock_when_a_file_is_closed),
    (a_child_outlives_its_parent, keep_files_open_in_a_child),
    (a_child_publishes, keep_the_rings_open_in_a_child),
    (a_process_restarts, adopt_at_once),
    (a_wal_dir_is_a_symbolic_link, follow_links),
    (a_wal_dir_is_another_user_s, take_any_owner),
    (a_directory_is_opened_by_another_name, forget_whose_it_is),
    (others_look_at_the_files, let_others_read),
]


@pytest.mark.parametrize(("scenario", "fault"), PLANTED, ids=names_of(PLANTED))
def test_a_rule_of_owners_that_is_taken_away_is_missed(scenario: Scenario, fault: Fault, monkeypatch: Patch) -> None:
    tells(scenario, fault, monkeypatch)
