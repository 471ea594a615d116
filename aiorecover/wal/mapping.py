"""Mapping a part of a file without a file descriptor of its own.

Python's `mmap` duplicates the descriptor and keeps the copy for as long as the mapping lives; only from Python 3.13 on
it can be told not to (``trackfd``). An outage is a file of a thousand mapped slots, and a process has a thousand
descriptors by default: the last ones would be those of the connections to Kafka, and of whatever else the service does.
So before 3.13 the range is reserved by an anonymous mapping, which has none, and the file is mapped over it. Python's
object knows address and length, and unmaps both alike.

The range is reserved as shared memory: private memory would count against RLIMIT_DATA, though nobody ever stores into
it. Where the kernel promises no more memory than it has (vm.overcommit_memory=2) both may be refused: then the mapping
has a descriptor.
"""

import ctypes
import errno
import mmap
import os
import sys

TRACKS = sys.version_info < (3, 13)  # a copy of the descriptor is kept unless it is mapped by ourselves
MAP_FIXED = 0x10  # Linux, on every architecture that Python runs on there; `mmap` does not name it
FAILED = ctypes.c_void_p(-1).value
_BEFOREHAND = {errno.EBADF, errno.EACCES}  # what the kernel refuses before it takes away what was mapped there

_given_up: list[mmap.mmap] = []  # ranges that may be somebody else's by now: never unmapped


def map_shared(descriptor: int, length: int, offset: int) -> mmap.mmap:
    """Map ``length`` bytes of the file from ``offset``, shared and writable.

    Raises:
        OSError: the operating system refused.

    """
    if not TRACKS:
        return mmap.mmap(descriptor, length, offset=offset, trackfd=False)  # type: ignore[call-arg,unused-ignore]
    if sys.platform != "linux":  # pragma: no cover - its constants are not known here
        return mmap.mmap(descriptor, length, offset=offset)
    if length <= 0 or offset % mmap.ALLOCATIONGRANULARITY:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    try:
        reserved = _reserved(length)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        return mmap.mmap(descriptor, length, offset=offset)
    try:
        _map_over(reserved, descriptor, length, offset)
    except OSError as error:
        if error.errno in _BEFOREHAND:
            reserved.close()
        else:
            _given_up.append(reserved)
        raise
    except BaseException:
        reserved.close()
        raise
    return reserved


def map_zeros(mapping: mmap.mmap, offset: int, length: int) -> None:
    """Have a part of a mapping be memory of this process, all zeros, in place of the file; Linux.

    Raises:
        OSError: the operating system refused, and nothing has changed.

    """
    for room in [mmap.mmap(-1, 1) for _ in range(2)]:  # as in `_reserved`: what is split are three mappings
        room.close()
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + offset
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_FIXED
    if _mmap(address, length, protection, flags, -1, 0) == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def in_memory(mapping: mmap.mmap) -> bytes | None:
    """Of each page of a mapping, 1 where the kernel has it in memory, and 0; None where it cannot be asked."""
    if sys.platform != "linux":  # pragma: no cover - it says something else there
        return None
    length = len(mapping)
    found = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    if _mincore(ctypes.addressof(ctypes.c_char.from_buffer(mapping)), length, found) != 0:
        return None
    return bytes(found).translate(_LOWEST_BIT)


def _reserved(length: int) -> mmap.mmap:
    """A range, with room for one mapping more: the kernel asks for that before it replaces one.

    At the limit of mappings each range would else be given up, and take the place of one that was unmapped, for ever.
    """
    reserved = mmap.mmap(-1, length, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    try:
        mmap.mmap(-1, 1).close()
    except BaseException:
        reserved.close()
        raise
    return reserved


def _map_over(reserved: mmap.mmap, descriptor: int, length: int, offset: int) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(reserved))
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED
    if _mmap(address, length, protection, flags, descriptor, offset) == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,  # off_t: 64 bits wherever Linux has 64-bit addresses
]
_LOWEST_BIT = bytes(number & 1 for number in range(256))  # what the others say is not told
_mincore = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
