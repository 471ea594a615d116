"""Power cuts by replay: any point of a disk's log, any remains of what was not flushed, and what is found then."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiorecover import RecoverError
from tests.power.boot import another_boot
from tests.power.ledger import Ledger
from tests.power.lives import WAL_DIR, Geometry
from tests.power.mounts import forget_cached, loop_device, mounted
from tests.power.recovery import Found, recover
from tests.power.writelog import Write, WriteLog, apply, survivors

__all__ = ["Device", "Judged", "Replay", "State", "choose_states"]

_EARLY_FLUSHES = 12  # until then files are made, epochs written and the first records stored


@dataclass(frozen=True)
class State:
    """One power cut: right behind ``point`` entries of the log, with these remains of what was pending."""

    point: int
    remains: list[Write]


@dataclass(frozen=True)
class Judged:
    """What was found, and what is wrong with it."""

    state: State
    found: Found | None
    wrong: list[str]


def choose_states(log: WriteLog, count: int, rng: random.Random) -> list[State]:
    """So many power cuts, in the order of their points.

    Half of them anywhere; others right before a flush, half of these where most is pending, or while files and epochs
    are made.
    """
    flushes = [index for index, entry in enumerate(log.entries) if entry is None] or [0]
    fullest = sorted(flushes, key=lambda index: log.flushed(index) - index)[: len(flushes) // 4 + 1]
    early = flushes[min(len(flushes) - 1, _EARLY_FLUSHES)]

    def point() -> int:
        where = rng.random()
        if where < 0.5:
            return rng.randrange(len(log) + 1)
        if where < 0.9:
            return rng.choice(flushes if where < 0.7 else fullest)
        return rng.randrange(early + 1)

    points = sorted(point() for _ in range(count))
    return [State(point, survivors(log.pending(point), rng)) for point in points]


class Replay:
    """Builds the disks of one life, one after the other, and looks at each as the next start would."""

    def __init__(self, base: bytes, log: WriteLog) -> None:
        self._base = base
        self._image = bytearray(base)
        self._log = log
        self._reached = 0

    def disk(self, state: State) -> bytes:
        """The disk as the power cut left it; fast when asked in the order of points."""
        if self._log.flushed(state.point) < self._reached:
            self._image, self._reached = bytearray(self._base), 0
        apply(self._image, self._log.durable(self._reached, state.point))
        self._reached = self._log.flushed(state.point)
        image = bytearray(self._image)
        apply(image, state.remains)
        return bytes(image)

    @staticmethod
    def judge(state: State, disk: bytes, device: "Device", ledger: Ledger, slot_bytes: int) -> Judged:
        """Let ext4 and then the library recover it."""
        try:
            found = device.recover(disk, slot_bytes)
        except (OSError, RecoverError) as error:
            return Judged(state, None, [f"cannot be opened: {type(error).__name__}: {error}"])
        return Judged(state, found, ledger.complaints + ledger.judge(found, state.point))


class Device:
    """A loop device over a file in memory, mounted again and again with another content."""

    def __init__(self, file: Path, device: str, mountpoint: Path, geometry: Geometry) -> None:
        self._file = file
        self._device = device
        self._mountpoint = mountpoint
        self._geometry = geometry

    @classmethod
    @contextmanager
    def attached(cls, work: Path, size: int, geometry: Geometry) -> "Iterator[Device]":
        """``work`` should be in memory (tmpfs): each state is written there whole."""
        file, mountpoint = work / "state", work / "recovered"
        file.write_bytes(bytes(size))
        mountpoint.mkdir(exist_ok=True)
        with loop_device(file) as device:
            yield cls(file, device, mountpoint, geometry)

    def recover(self, disk: bytes, slot_bytes: int) -> Found:
        """What ext4 and the library make of it."""
        descriptor = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, disk, 0)
        finally:
            os.close(descriptor)
        forget_cached(self._device)
        another_boot(self._file.with_name("boot_id"))
        with mounted(self._device, self._mountpoint, self._geometry.mount_options):
            return recover(self._mountpoint / WAL_DIR, slot_bytes)
