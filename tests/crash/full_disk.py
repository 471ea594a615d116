"""A disk that is full, and freed, and full again in an outage of all brokers, under steady load.

The directory stands alone on an ext4 that has less room than what comes in the outage takes. A process publishes at a
steady rate, and says how many records were accepted, and how many refused because there was no room (`pace`). All
brokers are killed, and then:

    alone      a quarter of the outage: the ring grows
    stranger   another quarter: somebody else has all that was left of the disk, and records are refused
    freed      he has given it back: records are accepted, without any broker, until the ring itself has filled the disk
    healed     the brokers are back: delivered, accepted again, and some minutes later the file is small

At last everything is read back and judged by record id: what was accepted stands there once, in order, and nothing that
was refused does (its id would be one that nobody was given).
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.judgement import Verdict
from tests.crash.lives import Child
from tests.crash.outages import (
    CHECKPOINT_S,
    FILE_SLOTS,
    MEMORY,
    RESUMED_S,
    SETTLED_S,
    rest_s,
    wait_caught_up,
    wait_for,
)
from tests.crash.pace import Look, looks
from tests.crash.scenario import Scenario
from tests.support.broker import KafkaCluster
from tests.support.mounts import loop_device, make_disk, mounted

__all__ = ["ACCEPTED_S", "AGAIN_S", "FILE", "LEFT", "FullDisk", "Stretch", "disk_bytes", "run_full_disk"]

_SLOT_BYTES = 4 << 20  # five seconds of records: what is ready when the stranger comes is soon used up
FILE = FILE_SLOTS * _SLOT_BYTES
ACCEPTED_S = 2.0  # from when the disk is freed: the next call takes a slot, and what it takes is told in quarters
AGAIN_S = 2 * CHECKPOINT_S + RESUMED_S  # from when the brokers serve: a slot is delivered, and a checkpoint frees it
LEFT = (_SLOT_BYTES, 4 * _SLOT_BYTES)  # below that the disk is full: the ring itself keeps room for the other two rings
FEW_S = 5.0  # seconds of records that have to be refused, or accepted, or nothing is proved
_STRANGER = (0.25, 0.5)  # of the outage
_FITS = 0.55  # of what comes in it: with the stranger's quarter the disk is full again behind four fifths of it
_FRAME_BYTES = 176  # of each record
_BESIDE = 6 * _SLOT_BYTES  # ext4's own, the slots that are kept for the other rings, one that is ready
_LANES = 6
_OPTIONS: dict[str, Any] = {"slot_bytes": _SLOT_BYTES, "wal_min_free_bytes": 0}
_LARGEST = 64 << 20  # bytes that the stranger asks for at once
_BLOCK = 4096


@dataclass(frozen=True)
class Stretch:
    """What became of the records that came in a part of the run."""

    accepted: int
    refused: int

    def __str__(self) -> str:
        return f"{self.accepted}+{self.refused}"


@dataclass(frozen=True)
class FullDisk:
    """What became of all records, of the process and of the disk."""

    verdict: Verdict
    rate: int
    seconds: float
    """The outage."""
    disk: int
    """Bytes of the disk."""
    left: Sequence[int]
    """Bytes that were left of it, beside the stranger and at the end of the outage."""
    stretches: Mapping[str, Stretch]
    """``before``, ``alone``, ``stranger``, ``freed`` and ``healed``."""
    told: Sequence[str]
    """What the refusals said, the first of each row."""
    accepted_s: float
    """From the moment when the stranger left to the first record that was accepted."""
    resumed_s: float
    """From the moment when the brokers served again to the first acknowledgement; 0 where it came before."""
    again_s: float
    """Likewise to the first record that was accepted."""
    memory: int
    """Bytes of memory at most in the outage, over what there was before."""
    memory_left: int
    """Bytes at the end, likewise."""
    file_most: int
    """Bytes of the files at their largest, over what there was before."""
    file_left: int
    """Bytes of them at the end, likewise."""

    def __str__(self) -> str:
        stretches = " ".join(f"{name}={stretch}" for name, stretch in self.stretches.items())
        return (
            f"{self.verdict} seconds={self.seconds:.0f} disk_mb={self.disk / 1e6:.0f} "
            f"left_kb={','.join(f'{left / 1e3:.0f}' for left in self.left)} accepted+refused: {stretches} "
            f"accepted_s={self.accepted_s:.2f} resumed_s={self.resumed_s:.2f} again_s={self.again_s:.2f} "
            f"memory_growth_mb={self.memory / 1e6:.1f} memory_left_mb={self.memory_left / 1e6:.1f} "
            f"file_most_mb={self.file_most / 1e6:.1f} file_left_mb={self.file_left / 1e6:.1f}"
        )

    @property
    def ok(self) -> bool:
        """Every record that was accepted stands there once, in order, and no other one does."""
        return self.verdict.ok and self.verdict.repeated == 0

    def wrong(self) -> list[str]:
        """What it cost that it may not, in words."""
        found = {
            "memory": self.memory >= MEMORY,
            "memory is left": self.memory_left >= MEMORY,
            "the file is not small again": self.file_left > FILE,
            "not accepted in time on a disk that was freed": self.accepted_s > ACCEPTED_S,
            "not resumed in time": self.resumed_s > RESUMED_S,
            "not accepted in time when the brokers were back": self.again_s > AGAIN_S,
        }
        had_room = [name for name in ("before", "alone", "healed") if self.stretches[name].refused]
        return [
            *(what for what, is_wrong in found.items() if is_wrong),
            *(f"refused although there was room: {name}={self.stretches[name]}" for name in had_room),
            *(f"not told that the disk is full: {words}" for words in self.told if "disk" not in words),
        ]

    def too_little(self) -> list[str]:
        """What there was so little of that it proves nothing, in words."""
        few = FEW_S * self.rate
        happened = {
            "refused beside the stranger": self.stretches["stranger"].refused,
            "accepted behind him": self.stretches["freed"].accepted,
            "refused behind him": self.stretches["freed"].refused,
            "accepted once healed": self.stretches["healed"].accepted,
        }
        return [
            *(f"{what}={count} expected>={few:.0f}" for what, count in happened.items() if count < few),
            *(f"the disk was not full: {left=}" for left, most in zip(self.left, LEFT, strict=True) if left >= most),
        ]


def disk_bytes(seconds: float, rate: int) -> int:
    """So large that what comes in so many ``seconds`` fills it, in spite of those in which it is a stranger's."""
    return int(_FITS * seconds * rate * _FRAME_BYTES) + _BESIDE


@contextmanager
def _small_disk(directory: Path, size: int) -> Iterator[Path]:
    """Where an ext4 of so many bytes is mounted meanwhile, in the mount namespace of this process."""
    image, place = directory / "image", directory / "disk"
    make_disk(image, size)
    place.mkdir()
    with loop_device(image) as device, mounted(device, place):
        yield place


def run_full_disk(
    cluster: KafkaCluster, directory: Path, *, seconds: float, rate: int, before: float = SETTLED_S
) -> FullDisk:
    """Let all brokers be gone for so many ``seconds``, while ``rate`` records a second come.

    ``before``: seconds in front of it that it is held against.
    """
    with _small_disk(directory, disk_bytes(seconds, rate)) as disk:
        return _Run(cluster, directory, disk, rate).through(seconds, before)


class _Run:
    """One of them."""

    def __init__(self, cluster: KafkaCluster, directory: Path, disk: Path, rate: int) -> None:
        self._cluster = cluster
        self._disk = disk
        self._rate = rate
        self._stranger = disk / "stranger"
        self._scenario = Scenario(cluster, directory, lanes=_LANES)
        self._scenario.use(disk / "wal")

    def through(self, seconds: float, before: float) -> FullDisk:
        """From before the outage until the file is small again."""
        interval = int(1000 * CHECKPOINT_S)
        publish = "publish", {"rate": self._rate, "may_fill": True}
        child = self._scenario.life(publish, paced=True, checkpoint_interval_ms=interval, **_OPTIONS)
        child.wait_for("publish")
        wait_caught_up(child)
        time.sleep(SETTLED_S + before)
        for node in self._cluster.nodes:
            node.kill()
        gone = time.monotonic()
        comes, goes = (gone + part * seconds for part in _STRANGER)
        _sleep_until(comes)
        self._take_all()
        _sleep_until(goes)
        left = [self._left()]
        self._stranger.unlink()
        freed = time.monotonic()
        _sleep_until(gone + seconds)
        left.append(self._left())
        ends = time.monotonic()
        back, resumed = self._resume(child)
        wait_caught_up(child)
        time.sleep(SETTLED_S)
        well = time.monotonic()
        time.sleep(rest_s(looks(child.words)[-1].allocated, self._rate, _SLOT_BYTES))
        every = looks(child.words)
        self._scenario.kill(child)
        told = [line for line in child.words if line.startswith("full ")]
        quiet = _between(every, gone - before, gone)
        dark = _between(every, gone + 1.0, ends)
        return FullDisk(
            self._scenario.verdict(**_OPTIONS),
            self._rate,
            ends - gone,
            disk=_size(self._disk),
            left=left,
            stretches={
                "before": _stretch(quiet),
                "alone": _stretch(_between(every, gone, comes)),
                "stranger": _stretch(_between(every, comes, freed)),
                "freed": _stretch(_between(every, freed, ends)),
                "healed": _stretch(_between(every, well, every[-1].at)),
            },
            told=told,
            accepted_s=_first_accepted(every, freed),
            resumed_s=max(0.0, resumed - back),
            again_s=max(0.0, _first_accepted(every, ends) - (back - ends)),
            memory=max(look.resident for look in dark) - max(look.resident for look in quiet),
            memory_left=every[-1].resident - quiet[-1].resident,
            file_most=max(look.allocated for look in every) - quiet[-1].allocated,
            file_left=every[-1].allocated - quiet[-1].allocated,
        )

    def _resume(self, child: Child) -> tuple[float, float]:
        """When the brokers served again, and when the first acknowledgement came."""
        delivered = looks(child.words)[-1].delivered
        for node in self._cluster.nodes:
            node.start()
        self._cluster.wait_ready()
        back = time.monotonic()
        return back, wait_for(child, lambda look: look.delivered > delivered).at

    def _take_all(self) -> None:
        """All that is left of the disk is somebody else's, down to the last block."""
        descriptor = os.open(self._stranger, os.O_CREAT | os.O_WRONLY)
        taken, step = 0, _LARGEST
        while step >= _BLOCK:
            try:
                os.posix_fallocate(descriptor, taken, step)
                taken += step
            except OSError:
                step //= 2
        os.close(descriptor)

    def _left(self) -> int:
        found = os.statvfs(self._disk)
        return found.f_bavail * found.f_frsize


def _sleep_until(then: float) -> None:
    time.sleep(max(0.0, then - time.monotonic()))


def _size(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_blocks * found.f_frsize


def _between(every: Sequence[Look], begins: float, ends: float) -> list[Look]:
    return [look for look in every if begins < look.at <= ends]


def _stretch(part: Sequence[Look]) -> Stretch:
    return Stretch(sum(look.calls for look in part), sum(look.refused for look in part))


def _first_accepted(every: Sequence[Look], since: float) -> float:
    """Seconds until a record was accepted."""
    return next((look.at - since for look in every if look.at > since and look.calls), float("inf"))
