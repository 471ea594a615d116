"""Who is measured, by name, level of durability and way of calling."""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from benchmarks.ring import others, ours

SYNC_S = 1.0  # level 2: the producer's default
OFTEN_S = 0.1  # ten times as often as by default: a short run holds some
LEVELS = {
    "process": "survives the death of the process",
    "interval": "survives a power cut after a bounded time",
    "always": "survives a power cut when the call returns",
}
FSYNC = {"process": "never", "interval": "interval", "always": "always"}  # aiorecover's name of the level
SYNCHRONOUS = {"process": "OFF", "interval": "NORMAL", "always": "FULL"}  # SQLite's

APPEND = "append"
"""No level: what else goes on while records are appended."""

RING, PUBLISH = "aiorecover ring", "aiorecover publish"
TOGETHER = ", 100 a transaction"
AT_ONCE = ", 100 at once"
ONE_SYNC = ", 100 and one fdatasync"


class Store(Protocol):
    """Something that records are stored in."""

    settled: int
    """So many of the first records are gone again."""

    async def store(self, chunk: list[bytes]) -> None: ...
    async def store_timed(self, chunk: list[bytes], times: "array[int]") -> None:
        """Append what each call took, in ns."""


@dataclass(frozen=True)
class Contender:
    """``make(directory)`` opens the store, ``back(directory)`` finds everything that was stored, in another process."""

    make: Callable[[str], Store]
    back: Callable[[str], Iterator[bytes]]
    kind: str
    """ours, sqlite, or queue: a package that offers a queue."""
    together: bool = False
    """A chunk at once: by tasks of our own, in one transaction of the others."""
    ordered: bool = True
    """False where several tasks publish at once."""


def contenders(level: str) -> dict[str, Contender]:
    """Everybody who can be asked for this level, by name, ours first."""
    if level == APPEND:
        return _appending()
    return {**_ours(level), **_others(level)}


def _appending() -> dict[str, Contender]:
    return {
        "alone": _ring(ours.RingStore),
        "fdatasync every 100 ms": _ring(partial(ours.RingStore, sync_every_s=OFTEN_S)),
        "the same, read, settled, recycled": _ring(partial(ours.SettlingStore, sync_every_s=OFTEN_S)),
        "await publish, no Kafka": _publish("interval"),
    }


def _ours(level: str) -> dict[str, Contender]:
    found = {
        RING: _ring(partial(ours.RingStore, sync_every_s=None if level == "process" else SYNC_S)),
        PUBLISH: _publish(level),
    }
    if level == "always":
        found[RING] = _ring(partial(ours.SyncedRingStore, together=False))
        found[RING + ONE_SYNC] = _ring(partial(ours.SyncedRingStore, together=True), together=True)
        found[PUBLISH + AT_ONCE] = _publish(level, together=True)
    return found


def _ring(make: Callable[[str], Store], *, together: bool = False) -> Contender:
    return Contender(make, ours.payloads_back, "ours", together)


def _publish(level: str, *, together: bool = False) -> Contender:
    make = partial(ours.PublishStore, fsync=FSYNC[level], together=together)
    return Contender(make, ours.values_back, "ours", together, ordered=not together)


def _others(level: str) -> dict[str, Contender]:
    synchronous = SYNCHRONOUS[level]
    found: dict[str, Contender] = {}
    stores: list[tuple[str, Callable[..., Store], Callable[[str], Iterator[bytes]], str]] = [
        (f"SQLite WAL {synchronous}", others.SqliteStore, others.sqlite_back, "sqlite"),
        (f"litequeue, {synchronous}", others.LiteQueueStore, others.litequeue_back, "queue"),
        (f"diskcache Deque, {synchronous}", others.DequeStore, others.deque_back, "queue"),
    ]
    for name, store, back, kind in stores:
        make = partial(store, synchronous=synchronous)
        found[name] = Contender(make, back, kind)
        found[name + TOGETHER] = Contender(partial(make, together=True), back, kind, together=True)
    sql_queue = partial(others.SqlQueueStore, synchronous=synchronous)
    found[f"persist-queue SQLiteQueue, {synchronous}"] = Contender(sql_queue, others.sql_queue_back, "queue")
    if level == "process":
        back = others.file_queue_back
        found["persist-queue Queue"] = Contender(others.FileQueueStore, back, "queue")
        large = partial(others.FileQueueStore, chunksize=100_000)
        found["persist-queue Queue, chunksize 100,000"] = Contender(large, back, "queue")
    return found
