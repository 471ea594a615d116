"""A ring with a large backlog: how soon `open_ring` returns, and how long `recover` takes after it.

Segments, heads, batches and sync points are written by the package. The value of each record is zeros, which are left
out as it is stored: the file reads the same, and holds little but heads. So reading the records costs the processor
what it would and the disk nothing; heads are read from the disk where the pages cached of the file were dropped.
"""

import gc
import mmap
import time
from typing import Any, cast

from aiorecover.ring.files import Files, Mapping
from benchmarks import child
from benchmarks.disk import evict
from benchmarks.figures import spread
from benchmarks.ring.memory import memory
from benchmarks.ring.store import KEYS, TOPIC, OtherBoot, Store, now_ms
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
GIGABYTES = 21.475  # 20 GiB
VALUE_BYTES = 250 << 10  # a batch each: four in a segment of 1 MiB
END = 128  # bytes before and behind the zeros of a record, at least
FLUSH_EVERY = 256  # batches: 64 MiB
HEADS = 16  # the file takes at most a so manieth of the backlog
SAME, SAME_COLD, OTHER = "same boot, cached", "same boot, nothing cached", "other boot, nothing cached"
WAYS = {SAME: False, SAME_COLD: False, OTHER: True}

Rounds = dict[str, list[dict[str, Any]]]


def run(setting: Setting) -> Result:
    size, rounds = int((setting.gigabytes or GIGABYTES) * 1e9), setting.rounds or ROUNDS
    setting.require_room(size // HEADS)
    measured: Rounds = {way: [] for way in WAYS}
    with setting.wal_dir() as directory:
        setting.say(f"ring opening: storing {size / 1e9:,.1f} GB, most of it holes")
        built = child.call(build, directory=directory, size=size)
        for number in range(rounds):
            for way, figures in measured.items():
                if way != SAME:
                    evict(directory)
                figures.append(child.call(reopen, directory=directory, other_boot=WAYS[way]))
                found = figures[-1]["records"]
                assert found == built["batches"], f"other records were found: stored={built['batches']} {found=}"
                setting.say(f"ring opening: round {number + 1}/{rounds} {way} {figures[-1]['ready_s'] * 1000:,.0f} ms")
    return Result("ring_opening", [_table(measured, built)], {**built, "rounds": measured})


def _table(measured: Rounds, built: dict[str, Any]) -> Table:
    kinds = [("ready_s", 1e3, ",.0f"), ("recover_s", 1e3, ",.0f"), ("adopt_s", 1e3, ",.1f"), ("anonymous", 1e-6, ".1f")]
    rows = [[way, *(spread(figures, *kind[:2]).text(kind[2]) for kind in kinds)] for way, figures in measured.items()]
    return Table(
        title=f"Opening a ring with a backlog of {built['bytes'] / (1 << 30):,.1f} GiB, {built['batches']:,} batches",
        columns=["", "ready ms", "recover ms", "adopt ms", "anonymous memory over before, MB"],
        rows=rows,
        notes=[
            f"medians over {len(measured[SAME])} interleaved rounds (least to greatest)",
            "ready: the directory is taken, and `open_ring` has returned; records are accepted while recover runs",
            "most of the file is holes: what the disk takes to read records after another boot is not in it",
        ],
    )


# -- in processes of their own -----------------------------------------------------------------------------------------


class _Sparse(Files):
    """Reserves nothing, and leaves holes where a large record is stored."""

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Leave the hole."""

    def map(self, fd: int, offset: int, size: int) -> Mapping:
        mapping = super().map(fd, offset, size)
        mapping.data.madvise(mmap.MADV_RANDOM)  # else a store dirties, and fills, many pages around it at once
        mapping.data = cast("mmap.mmap", _Ends(mapping.data))
        return mapping


class _Ends:
    """Memory that reads as zeros, and takes of a record only the ends."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    def __getitem__(self, place: slice) -> bytes:
        return self._memory[place]

    def __setitem__(self, place: slice, data: bytes) -> None:
        start, stop = place.start, place.stop
        if len(data) > VALUE_BYTES:
            self._memory[start : start + END] = data[:END]
            start, data = stop - END, data[-END:]
        self._memory[start:stop] = data


def build(directory: str, size: int) -> dict[str, Any]:
    """Store batches of one record each until the ring has so many bytes."""
    store = Store(directory, files=_Sparse())
    ring, batches, value = store.ring, 0, bytes(VALUE_BYTES)
    while ring.used < size:
        for number in range(FLUSH_EVERY):
            store.writer.append(TOPIC, KEYS[number % len(KEYS)], value, now_ms())
        batches += FLUSH_EVERY
        store.seal()
        store.flush()
    used = ring.used
    store.close()
    return {"batches": batches, "bytes": used}


def reopen(directory: str, other_boot: bool) -> dict[str, Any]:  # noqa: FBT001 - plain JSON
    gc.collect()
    before = memory()["Anonymous"]
    files = OtherBoot() if other_boot else Files()
    began = time.perf_counter()
    store = Store(directory, files=files)
    ready = time.perf_counter()
    found = store.recover()
    recovered = time.perf_counter()
    store.fill_lanes(found)
    adopted = time.perf_counter()
    anonymous = memory()["Anonymous"] - before
    store.close()
    return {
        "ready_s": ready - began,
        "recover_s": recovered - ready,
        "adopt_s": adopted - recovered,
        "anonymous": anonymous,
        "records": found.records,
    }
