"""The disk below: what a flush costs by itself, how many there are, and files that the page cache does not hold."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import quantiles

PROBES = 200  # fdatasyncs of the disk alone
PROBE_BYTES = 4096


def count_syncs() -> Callable[[], int]:
    """Count every fdatasync of this process from now on."""
    fdatasync, count = os.fdatasync, 0

    def counting(descriptor: int) -> None:
        nonlocal count
        fdatasync(descriptor)
        count += 1

    os.fdatasync = counting  # type: ignore[assignment]
    return lambda: count


def sync_us(directory: str) -> float:
    """Return the disk's own time for 4096 bytes and fdatasync: p50 in µs."""
    path = Path(directory) / "probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    took = []
    try:
        os.posix_fallocate(descriptor, 0, PROBES * PROBE_BYTES)
        os.fsync(descriptor)
        for number in range(PROBES):
            os.pwrite(descriptor, bytes(PROBE_BYTES), number * PROBE_BYTES)
            began = time.perf_counter_ns()
            os.fdatasync(descriptor)
            took.append(time.perf_counter_ns() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return quantiles(took)["p50"] / 1e3


def evict(directory: str) -> None:
    """Write everything out and drop it from the page cache, as if the machine had been restarted."""
    for path in Path(directory).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
