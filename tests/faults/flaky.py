"""A file system whose disk fails when told to: a folder passed on through FUSE, in a process of its own.

    with flaky(place) as disk:                       # disk.mount is the file system
        disk.fail("read", errno.EIO, name="ring", start=65536, end=131072)
        disk.fail("fsync", errno.EIO, times=1)       # and what was written since the last good one is lost, as
        disk.heal()                                  # after a failed write-back of the kernel
    disk.fail("read", errno.EIO, name="ring", start=8192, end=12288, until_written=True)
                                                 # a bad sector: a write over the whole range has it replaced

Pages go through the kernel's cache, so that shared mappings work. Opening a file anew forgets its cached pages.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Disk", "flaky"]


@dataclass
class Disk:
    """The mounted file system, seen from who uses it."""

    mount: Path
    backing: Path
    _process: "subprocess.Popen[str]"

    def fail(self, call: str, number: int, **where: Any) -> None:
        """Let ``call`` (read, write, fsync) fail with the errno.

        ``name``, ``start``, ``end``, ``times`` narrow it; ``until_written`` ends it with a write over all of its range.
        """
        self._tell({"call": call, "number": number, **where})

    def heal(self) -> None:
        """No more faults."""
        self._tell({})

    def hits(self) -> int:
        """How many calls failed so far."""
        return int(self._tell({"ask": "hits"}))

    def _tell(self, command: dict[str, Any]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def flaky(place: Path) -> Iterator[Disk]:
    """Mount it at ``place/mount``."""
    mount, backing = place / "mount", place / "backing"
    for folder in (mount, backing):
        folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.flaky", str(mount), str(backing)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    disk = Disk(mount, backing, process)
    try:
        assert disk._tell({}) == "0\n", "the file system does not answer"
        assert mount.is_mount()
        yield disk
    finally:
        unmount = shutil.which("fusermount3") or "fusermount"
        subprocess.run([unmount, "-u", "-z", str(mount)], check=False, capture_output=True)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


# -- the process of the file system ----------------------------------------------------------------------------------


class _Faults:
    """What shall fail, as told on stdin."""

    def __init__(self) -> None:
        self.hits = 0
        self._rules: list[dict[str, Any]] = []

    def listen(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if command.get("call"):
                self._rules.append(command)
            elif not command:
                self._rules.clear()
            print(self.hits, flush=True)
        os._exit(0)  # who used it is gone, perhaps by a signal

    def written(self, path: str, start: int, end: int) -> None:
        """Bad sectors that were written as a whole have others in their place."""
        self._rules = [
            rule
            for rule in self._rules
            if not (
                rule.get("until_written")
                and path.endswith(rule.get("name", ""))
                and start <= rule["start"]
                and rule["end"] <= end
            )
        ]

    def meets(self, call: str, path: str, start: int = 0, end: int = 1) -> int:
        """The errno with which this call fails; 0: it does not."""
        for rule in self._rules:
            if rule["call"] != call or not path.endswith(rule.get("name", "")):
                continue
            if end <= rule.get("start", 0) or start >= rule.get("end", 1 << 62):
                continue
            if rule.get("times", 1) <= 0:
                continue
            if "times" in rule:
                rule["times"] -= 1
            self.hits += 1
            return int(rule["number"])
        return 0


def _serve(mount: str, backing: str) -> None:  # noqa: C901 - one small method for each call
    import mfusepy  # noqa: PLC0415 - only this process needs it

    faults = _Faults()

    class Passed(mfusepy.Operations):  # type: ignore[misc]
        """Everything goes to the folder behind; faults come first."""

        use_ns = True

        def __init__(self) -> None:
            self._undo: dict[int, dict[int, bytes]] = {}  # by inode: what stood in pages before they were written

        def _path(self, path: str) -> str:
            return backing + path

        def _meet(self, call: str, path: str, start: int = 0, end: int = 1) -> None:
            if number := faults.meets(call, path, start, end):
                raise mfusepy.FuseOSError(number)

        def access(self, path: str, amode: int) -> int:
            return 0

        def chmod(self, path: str, mode: int) -> int:
            Path(self._path(path)).chmod(mode)
            return 0

        def chown(self, path: str, uid: int, gid: int) -> int:
            os.chown(self._path(path), uid, gid)
            return 0

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            return os.open(self._path(path), os.O_RDWR | os.O_CREAT, mode)

        def open(self, path: str, flags: int) -> int:
            return os.open(self._path(path), os.O_RDWR)

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            found = os.lstat(self._path(path))
            names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_ino")
            times = {name: getattr(found, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
            return {**{name: getattr(found, name) for name in names}, **times}

        def mkdir(self, path: str, mode: int) -> int:
            Path(self._path(path)).mkdir(mode)
            return 0

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *(entry.name for entry in Path(self._path(path)).iterdir())]

        def rmdir(self, path: str) -> int:
            Path(self._path(path)).rmdir()
            return 0

        def unlink(self, path: str) -> int:
            Path(self._path(path)).unlink()
            return 0

        def statfs(self, path: str) -> dict[str, int]:
            found = os.statvfs(self._path(path))
            names = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize", "f_namemax")
            return {name: getattr(found, name) for name in names}

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            os.truncate(self._path(path), length)
            return 0

        def utimens(self, path: str, times: Any = None) -> int:
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            self._meet("read", path, offset, offset + size)
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            self._meet("write", path, offset, offset + len(data))
            inode = os.fstat(fh).st_ino
            before = self._undo.setdefault(inode, {})
            if offset not in before:
                before[offset] = os.pread(fh, len(data), offset)
            faults.written(path, offset, offset + len(data))
            return os.pwrite(fh, data, offset)

        def flush(self, path: str, fh: int) -> int:
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            before = self._undo.pop(os.fstat(fh).st_ino, {})
            if number := faults.meets("fsync", path):
                for offset, data in before.items():
                    os.pwrite(fh, data, offset)
                raise mfusepy.FuseOSError(number)
            os.fsync(fh)
            return 0

        def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
            self._meet("fsyncdir", path)
            return 0

        def init(self, path: str) -> None:
            import threading  # noqa: PLC0415 - begun once the file system is there

            threading.Thread(target=faults.listen, daemon=True).start()

    mfusepy.FUSE(Passed(), mount, foreground=True, nothreads=True, raw_fi=False)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2])
