"""Power cuts that follow each other: a disk, its lives, and at the end of each life many possible power cuts."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.power.ledger import Ledger
from tests.power.lives import IMAGE_BYTES, Geometry, live, make_disk
from tests.power.replay import Device, Judged, Replay, State, choose_states
from tests.power.workload import Task
from tests.power.writelog import WriteLog

__all__ = ["Chain", "Sums"]

_RING_BYTES: Final = 4 << 20  # a disk has 16 MiB; with a broker it may be less, so that slots are recycled
_STUCK_BATCH: Final = 1024
_STUCK_PATIENCE_MS: Final = 1000
_LIFE_SECONDS: Final = 10.0  # a life ends then, however few records a busy machine has published
_MOUNTS: Final = ("", "", "data=writeback", "commit=1", "noauto_da_alloc")


@dataclass
class Sums:
    """What has been seen so far."""

    states: int = 0
    lives: int = 0
    writes: int = 0
    flushes: int = 0
    acknowledged: int = 0
    """Records, once each."""
    delivered: int = 0
    """Of those and of earlier ones, what was let go: its slots are recycled."""
    looked_for: int = 0
    """Records that had to be found, summed over the states."""
    pending_writes: int = 0
    """Writes that were not flushed when the power went, summed over the states."""
    survived: int = 0
    """Of those, what was on the disk all the same: whole writes or pieces of them."""
    moved: int = 0
    """Records that were found in the retry ring, summed over the states."""
    reported_missing: int = 0
    """States in which a gap among records that nobody had been told of was reported: allowed."""

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


class Chain:
    """One disk from its making on. What `rng` decides is repeated by its seed."""

    def __init__(self, work: Path, rng: random.Random, sums: Sums, *, records: int, fault: str | None = None) -> None:
        """``records``: of a life, at most; ``fault``: "never" for the option fsync, or one of `tests.power.planted`."""
        self._work = work
        self._rng = rng
        self._sums = sums
        self._most_records = records
        self._fault = fault
        self._geometry = Geometry(rng.choice([1024, 4096]), rng.choice(_MOUNTS))
        self._slot_bytes = 1 << rng.choice([14, 14, 15, 16])
        self._image = work / "image"
        self._ledger = Ledger(life=1)
        self._replay: Replay | None = None
        self._task: Task | None = None
        make_disk(self._image, self._geometry)

    def __str__(self) -> str:
        return f"{self._geometry} {self._task}"

    def life(self, count: int) -> Iterator[Judged]:
        """Live, and look at ``count`` power cuts; one of them is where the next life begins."""
        task = self._task = self._new_task()
        log, said = live(self._work, self._image, self._geometry, task)
        ledger = self._ledger
        ledger.hear(said, task.publishers)
        base = self._image.read_bytes()
        states = choose_states(log, count, self._rng)
        self._count_life(log, ledger)
        next_one = self._rng.randrange(len(states))
        with Device.attached(self._work, IMAGE_BYTES, self._geometry) as device:
            self._replay = Replay(base, log)
            for index, state in enumerate(states):
                disk = self._replay.disk(state)
                judged = self._replay.judge(state, disk, device, ledger, self._slot_bytes)
                self._count_state(log, ledger, judged)
                if index == next_one and judged.found is not None:
                    self._image.write_bytes(disk)
                    self._ledger = ledger.after(judged.found, state.point)
                yield judged

    def keep(self, judged: Judged, folder: Path) -> None:
        """The disk of this state, and all that the life wrote and said."""
        assert self._replay is not None
        (folder / "disk").write_bytes(self._replay.disk(judged.state))
        for name in ("log", "said", "workload.log"):
            shutil.copy2(self._work / name, folder / name)

    def _new_task(self) -> Task:
        rng = self._rng
        broker = rng.random() < 0.7 and self._fault is None  # what is delivered need not be there
        stuck = broker and rng.random() < 0.5
        options: dict[str, Any] = {
            "fsync": "never" if self._fault == "never" else "always",
            "slot_bytes": self._slot_bytes,
            "checkpoint_interval_ms": rng.choice([5, 20, 100, 1000]),
            "wal_max_bytes": rng.choice([8, 32, _RING_BYTES // self._slot_bytes]) * self._slot_bytes
            if broker
            else _RING_BYTES,
            "wal_min_free_bytes": 0,
        }
        if stuck:  # two full batches of a lane that does not get through have it stalled; a full ring is full for good
            options |= {"max_batch_size": _STUCK_BATCH, "full_timeout_ms": _STUCK_PATIENCE_MS}
        return Task(
            wal_dir="",
            life=self._ledger.life,
            seed=rng.randrange(1 << 30),
            records=rng.randrange(self._most_records // 20, self._most_records),
            seconds=_LIFE_SECONDS,
            publishers=rng.choice([1, 4, 16, 64] if self._fault is None else [64]),
            said="",
            broker=broker,
            stuck=stuck,
            kill=rng.random() < 0.5,
            fault=self._fault if self._fault != "never" else None,
            options=options,
        )

    def _count_life(self, log: WriteLog, ledger: Ledger) -> None:
        self._sums.lives += 1
        self._sums.flushes += log.flushes
        self._sums.writes += len(log) - log.flushes
        self._sums.acknowledged += len(ledger.accepted)
        self._sums.delivered += len(ledger.let_go)

    def _count_state(self, log: WriteLog, ledger: Ledger, judged: Judged) -> None:
        state: State = judged.state
        self._sums.states += 1
        self._sums.looked_for += len(ledger.required(state.point))
        self._sums.pending_writes += len(log.pending(state.point))
        self._sums.survived += len(state.remains)
        self._sums.moved += judged.found.moved if judged.found is not None else 0
        self._sums.reported_missing += judged.found is not None and bool(judged.found.missing)
