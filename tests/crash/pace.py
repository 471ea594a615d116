"""How a publishing process is doing while it publishes: what its calls take, what it holds, and what was delivered."""

import asyncio
import mmap
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

__all__ = ["LOOK_EVERY_S", "Look", "Pace", "looks"]

LOOK_EVERY_S = 0.25  # at 5,000 records/s a thousand calls: enough for a p99


@dataclass(frozen=True)
class Look:
    """One quarter of a second; ``at`` is the machine's monotonic clock, which parent and child share."""

    at: float
    calls: int
    p50_us: float
    p99_us: float
    resident: int
    delivered: int
    waiting: int
    allocated: int
    descriptors: int
    threads: int
    tasks: int
    refused: int = 0
    """Calls for which there was no room; they are not among ``calls``."""
    seconds_left: float | None = None
    """What the process says that ``waiting`` will take."""

    @classmethod
    def parse(cls, line: str) -> Self:
        """From what `Pace.line` gives."""
        return msgspec.json.decode(line, type=cls)


class Pace:
    """Collects what calls took, in nanoseconds."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.refused = 0

    def line(self, delivered: int, waiting: int, allocated: int, seconds_left: float | None) -> str:
        """What there was since the last look."""
        taken, self.taken = sorted(self.taken), []
        refused, self.refused = self.refused, 0
        p50, p99 = (taken[len(taken) * part // 100] / 1000 if taken else 0.0 for part in (50, 99))
        look = Look(
            at=time.monotonic(),
            calls=len(taken),
            p50_us=p50,
            p99_us=p99,
            resident=resident_bytes(),
            delivered=delivered,
            waiting=waiting,
            allocated=allocated,
            descriptors=len(list(Path("/proc/self/fd").iterdir())),
            threads=threading.active_count(),
            tasks=len(asyncio.all_tasks()),
            refused=refused,
            seconds_left=seconds_left,
        )
        return msgspec.json.encode(look).decode()


def looks(words: Iterable[str]) -> list[Look]:
    """All that a process which is `paced` has said of itself."""
    return [Look.parse(line.removeprefix("pace ")) for line in list(words) if line.startswith("pace ")]


def resident_bytes() -> int:
    """Of this process, mapped files included."""
    _, pages, *_ = Path("/proc/self/statm").read_text().split()
    return int(pages) * mmap.PAGESIZE
