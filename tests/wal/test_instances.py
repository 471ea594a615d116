"""Whose the instance directories are, and whether something waits, without touching a lock."""

import os
from pathlib import Path

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal import instances as instances_module
from aiorecover.wal.instances import holder, instances
from aiorecover.wal.storage import lock_identity
from tests.wal.memory import broken
from tests.wal.stored import stored


def test_instances_say_who_holds_them_and_whether_something_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stored(tmp_path)
    stored(tmp_path / "other", 3, settle=3).close()
    (tmp_path / "other" / "0").rename(tmp_path / "10")
    (tmp_path / "other").rmdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "ring").write_bytes(b"x" * 200)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "a file").write_bytes(b"")
    held, broken_one, free = instances(tmp_path)
    assert (held.path, held.state, held.pid, held.waiting) == (tmp_path / "0", "locked", os.getpid(), True)
    assert (free.path, free.state, free.pid, free.waiting) == (tmp_path / "10", "free", None, False)
    assert (broken_one.state, broken_one.waiting) == ("unknown", None)
    assert "restore the files" in (broken_one.error or "")
    directory.close()
    assert instances(tmp_path)[0].state == "free"
    monkeypatch.setattr(instances_module, "PROC_LOCKS", tmp_path / "no such file")
    assert {one.state for one in instances(tmp_path)} == {"unknown"}


def test_an_instance_directory_is_its_own_only_one(tmp_path: Path) -> None:
    stored(tmp_path).close()
    assert instances(tmp_path / "0") == instances(tmp_path)
    with pytest.raises(WalIOError):
        instances(tmp_path / "absent")


def test_looking_at_instances_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path).close()
    monkeypatch.setattr("fcntl.flock", broken)
    assert instances(tmp_path)[0].state == "free"


LOCKS = """1: FLOCK  ADVISORY  WRITE 11 fe:00:1000 0 EOF
1: -> FLOCK  ADVISORY  WRITE 12 fe:00:1000 0 EOF
2: POSIX  ADVISORY  READ 13 fe:00:2000 0 EOF
3: FLOCK  ADVISORY  WRITE 14 00:1f:3000 0 EOF
cut off
"""


@pytest.mark.parametrize(
    ("identity", "written", "expected"),
    [
        ("fe:00:1000", None, 11),
        ("fe:00:1000", 99, 11),  # the lock counts, not what a predecessor wrote
        ("fe:01:1000", None, None),
        ("fe:00:100", None, None),
        ("fe:00:2000", 13, None),  # nobody's exclusive lock
        ("00:2a:3000", 14, 14),  # a file system that gives its files another device number
        ("00:2a:3000", 15, None),
    ],
)
def test_the_holder_of_a_lock_is_found_by_device_and_inode(
    identity: str, written: int | None, expected: int | None
) -> None:
    assert holder(LOCKS, identity, written) == expected


def test_a_link_is_not_taken_for_the_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert lock_identity(tmp_path / "link") != lock_identity(tmp_path / "file")


def test_where_files_show_another_device_the_holder_is_who_wrote_its_number_into_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stored(tmp_path)
    inode = (tmp_path / "0" / "lock").stat().st_ino
    locks = tmp_path / "locks"
    locks.write_text(f"1: FLOCK  ADVISORY  WRITE {os.getpid()} ff:ff:{inode} 0 EOF\n")
    monkeypatch.setattr(instances_module, "PROC_LOCKS", locks)
    (found,) = instances(tmp_path / "0")
    assert (found.state, found.pid) == ("locked", os.getpid())
    directory.close()
