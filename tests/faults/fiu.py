"""System calls that fail when told to, inside this process: libfiu, which `scene.libfiu()` has preloaded.

    with failing("posix/io/sync/fdatasync", errno.EIO, nth=3) as fault:
        ...
    fault.hits     # 0 when there was no third call

Calls are counted over all threads from the moment on that the block is entered.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.faults.scene import LIBFIU

__all__ = ["FDATASYNC", "FSYNC", "PWRITE", "SHORT_PWRITE", "Fault", "failing", "shortening"]

FDATASYNC = "posix/io/sync/fdatasync"
FSYNC = "posix/io/sync/fsync"
PWRITE = "posix/io/rw/pwrite"
SHORT_PWRITE = "posix/io/rw/pwrite/reduce"

_DECIDE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@dataclass
class Fault:
    """What became of it: how many calls there were, and how many failed."""

    calls: int = 0
    hits: int = 0


@contextmanager
def failing(point: str, number: int, *, nth: int = 1, times: int | None = None) -> Iterator[Fault]:
    """Let the ``nth`` call fail with the errno ``number``, and all behind it; ``times``: so many only."""
    library, fault = ctypes.CDLL(LIBFIU), Fault()

    def decide(*_: Any) -> int:
        fault.calls += 1
        hit = fault.calls >= nth and (times is None or fault.hits < times)
        fault.hits += hit
        return int(hit)

    callback = _DECIDE(decide)
    enabled = library.fiu_enable_external(point.encode(), 1, ctypes.c_void_p(number), 0, callback)
    assert enabled == 0, point
    try:
        yield fault
    finally:
        library.fiu_disable(point.encode())


@contextmanager
def shortening(point: str) -> Iterator[None]:
    """Let every call write less than it was given, at random."""
    library = ctypes.CDLL(LIBFIU)
    assert library.fiu_enable(point.encode(), 1, None, 0) == 0, point
    try:
        yield
    finally:
        library.fiu_disable(point.encode())
