"""Loop devices and mounts by system call: ten thousand states cannot each wait for two programs to start.

Everything is mounted in a mount namespace of this process (`enter_namespace`), and loop devices are released with
their last user: a run that is killed leaves nothing behind.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = [
    "enter_namespace",
    "forget_cached",
    "loop_device",
    "missing_facility",
    "missing_installable",
    "mounted",
]

_CLONE_NEWNS: Final = 0x0002_0000
_MS_REC_PRIVATE: Final = 0x4000 | 0x4_0000
_MNT_DETACH: Final = 2
_LOOP_CTL_GET_FREE: Final = 0x4C82
_LOOP_CONFIGURE: Final = 0x4C0A
_LOOP_CONFIG: Final = struct.Struct("<II 52x I 240x")  # struct loop_config: fd, block size, …, lo_flags, …
_AUTOCLEAR: Final = 4
_BLKFLSBUF: Final = 0x1261
_TRIES: Final = 50  # others may take a free loop device before we do

_libc = ctypes.CDLL(None, use_errno=True)


def missing_installable() -> str | None:
    """What has to be installed before a disk can be logged, if anything, and how."""
    if find_spec("mfusepy") is None:
        return "mfusepy is not there: pip install --group dev"
    for program, package in {"fusermount3": "fuse3", "mkfs.ext4": "e2fsprogs"}.items():
        if shutil.which(program) is None:
            return f"{program} is not there: apt-get install fuse3 e2fsprogs (package={package})"
    return None


def missing_facility() -> str | None:
    """What kernel and permissions do not offer here, if anything."""
    if os.geteuid() != 0:
        return "mounting ext4 needs root: run it as root"
    for device in ("/dev/fuse", "/dev/loop-control"):
        try:
            os.close(os.open(device, os.O_RDWR))
        except OSError as error:
            return f"{device} cannot be opened: the kernel, or the container, must offer it error={error.strerror}"
    if "ext4" not in Path("/proc/filesystems").read_text(encoding="ascii").split():
        return "the kernel does not know ext4: modprobe ext4"
    return None


def enter_namespace() -> None:
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


def forget_cached(device: str) -> None:
    """Drop what the kernel remembers of the device: the file below it was written to."""
    descriptor = os.open(device, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _BLKFLSBUF)
    finally:
        os.close(descriptor)


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
