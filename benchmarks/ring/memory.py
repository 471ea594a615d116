"""Memory over idle: appending flat out while everything is settled, and while nothing is, up to a backlog."""

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

from aiorecover.ring.flush import Keeper
from benchmarks import child
from benchmarks.figures import spread
from benchmarks.ring.store import TURN, Store, store_turns
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
SECONDS = 5.0
GIGABYTES = 2.147  # 2 GiB
CHUNK = 64  # turns between two looks at the memory: some 20 ms
REST_S = 2.0  # after the backlog is stored: a flush, and what it lets go of
KINDS = ("Anonymous", "Rss")
FLAT_OUT, STORING, STORED = "flat out, settled and reused", "while a backlog is stored", "the backlog, at rest"


def run(setting: Setting) -> Result:
    size, seconds = int((setting.gigabytes or GIGABYTES) * 1e9), setting.seconds or SECONDS
    setting.require_room(size)
    rounds = []
    for number in range(setting.rounds or ROUNDS):
        with setting.wal_dir() as directory:
            figures = child.call(flat_out, directory=directory, seconds=seconds)
        with setting.wal_dir() as directory:
            figures |= child.call(backlog, directory=directory, size=size)
        rounds.append(figures)
        setting.say(f"ring memory: round {number + 1} {figures[STORING]['Anonymous'] / 1e6:,.1f} MB anonymous")
    return Result("ring_memory", [_table(rounds, size)], {"bytes": size, "seconds": seconds, "rounds": rounds})


def _table(rounds: list[dict[str, Any]], size: int) -> Table:
    rows = [
        [title, *(spread([one[title] for one in rounds], kind, 1e-6).text(".1f") for kind in KINDS)]
        for title in (FLAT_OUT, STORING, STORED)
    ]
    return Table(
        title=f"Memory over idle in MB, backlog of {size / 1e9:,.1f} GB",
        columns=["", "anonymous", "resident"],
        rows=rows,
        notes=[
            f"medians over {len(rounds)} rounds (least to greatest); the most that was seen, at rest: at the end",
            "resident: mapped pages of the ring too, which are page cache; idle: open, and nothing stored yet",
        ],
    )


def memory() -> dict[str, int]:
    """Return the memory of this process, by kind, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    named = dict(line.split(":", 1) for line in lines)
    return {kind: int(named[kind].split()[0]) * 1024 for kind in KINDS}


class _Over:
    """The most of each kind over what there was first."""

    def __init__(self) -> None:
        gc.collect()
        self._idle = memory()
        self.most = dict.fromkeys(KINDS, 0)

    def look(self) -> dict[str, int]:
        found = {kind: size - self._idle[kind] for kind, size in memory().items()}
        self.most = {kind: max(size, found[kind]) for kind, size in self.most.items()}
        return found


# -- in processes of their own -----------------------------------------------------------------------------------------


async def flat_out(directory: str, seconds: float) -> dict[str, Any]:
    store, keeper = _started(directory)
    over = _Over()
    until = time.perf_counter() + seconds
    stored = 0
    while time.perf_counter() < until:
        await store_turns(store.writer.append, CHUNK)
        stored += CHUNK * TURN
        over.look()
        store.settle()
    await keeper.stop()
    store.close()
    return {FLAT_OUT: over.most, "records_s": stored / seconds}


async def backlog(directory: str, size: int) -> dict[str, Any]:
    store, keeper = _started(directory)
    over = _Over()
    while store.ring.used < size:
        await store_turns(store.writer.append, CHUNK)
        over.look()
    store.seal()
    await keeper.flushed()
    await asyncio.sleep(REST_S)
    gc.collect()
    rest = over.look()
    records = store.ring.pending
    await keeper.stop()
    store.close()
    return {STORING: over.most, STORED: rest, "records": records}


def _started(directory: str) -> tuple[Store, Keeper]:
    store = Store(directory)
    keeper = Keeper(store.ring)
    keeper.start()
    return store, keeper
