"""An ext4 of a test's own, on a loop device.

Everything is mounted in a mount namespace of this process (`why_impossible` enters it), and loop devices are released
with their last user: a run that is killed leaves nothing behind.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["loop_device", "make_disk", "mounted", "why_impossible"]

_CLONE_NEWNS: Final = 0x0002_0000
_MS_REC_PRIVATE: Final = 0x4000 | 0x4_0000
_MNT_DETACH: Final = 2
_LOOP_CTL_GET_FREE: Final = 0x4C82
_LOOP_CONFIGURE: Final = 0x4C0A
_LOOP_CONFIG: Final = struct.Struct("<II 52x I 240x")  # struct loop_config: fd, block size, …, lo_flags, …
_AUTOCLEAR: Final = 4
_TRIES: Final = 50  # others may take a free loop device before we do

_libc = ctypes.CDLL(None, use_errno=True)


def why_impossible() -> str | None:
    """What is missing, if anything; else this process has a mount namespace of its own from here on."""
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is not there: apt-get install e2fsprogs"
    if os.geteuid() != 0:
        return "mounting ext4 needs root: run it as root"
    try:
        _enter_namespace()
        with tempfile.TemporaryDirectory(prefix="aiorecover-mount-") as work:
            image, mountpoint = Path(work) / "image", Path(work) / "mounted"
            make_disk(image, 16 << 20)
            mountpoint.mkdir()
            with loop_device(image) as device, mounted(device, mountpoint):
                return None
    except OSError as error:  # what root in a container may be refused
        return f"ext4 cannot be mounted, the kernel and the container must allow it error={error}"


def make_disk(image: Path, size: int) -> None:
    """An empty ext4, complete: nothing is left to be written later in the background."""
    image.write_bytes(b"")
    os.truncate(image, size)
    options = ["-b", "4096", "-J", "size=4", "-m", "0", "-F", "-q"]
    lazy = ["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
    subprocess.run(["mkfs.ext4", *options, *lazy, str(image)], check=True, capture_output=True)


def _enter_namespace() -> None:
    """From here on, mounts of this process and its children are seen by nobody else, and end with them."""
    _check(_libc.unshare(_CLONE_NEWNS), "leave the mount namespace")
    _check(_libc.mount(None, b"/", None, _MS_REC_PRIVATE, None), "make mounts private")


@contextmanager
def loop_device(backing: Path) -> Iterator[str]:
    """A block device over a file."""
    with backing.open("r+b") as file:
        device, descriptor = _attached(file.fileno())
    try:
        yield device
    finally:
        os.close(descriptor)


def _attached(backing: int) -> tuple[str, int]:
    control = os.open("/dev/loop-control", os.O_RDWR)
    try:
        for _ in range(_TRIES):
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            descriptor = os.open(device, os.O_RDWR)
            try:
                fcntl.ioctl(descriptor, _LOOP_CONFIGURE, _LOOP_CONFIG.pack(backing, 0, _AUTOCLEAR))
            except OSError as error:
                os.close(descriptor)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device, descriptor
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "every loop device is taken as soon as it is free: try again")


@contextmanager
def mounted(device: str, directory: Path, options: str = "") -> Iterator[None]:
    """ext4 on the device; ext4 brings its journal back first."""
    arguments = (device.encode(), os.fsencode(directory), b"ext4", 0, options.encode() or None)
    _check(_libc.mount(*arguments), f"mount {device}")
    try:
        yield
    except BaseException:
        _libc.umount2(os.fsencode(directory), _MNT_DETACH)
        raise
    _check(_libc.umount2(os.fsencode(directory), 0), f"unmount {directory}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")
