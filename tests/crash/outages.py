"""Outages of all brokers under steady load: what they cost the publisher, and that nothing is lost by them.

A process publishes at a steady rate. Again and again all brokers are killed, and started once more some time later.
Meanwhile the process says how it is doing (`pace`); at last everything is read back and judged by record id.

What a call takes is held against what it took right before, at the median and at p99. The one alone would not do: in
front of an outage one call in ten or so waits for a turn of the loop in which records are delivered, and so p99 bears
much that an outage takes away.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.crash.judgement import Verdict
from tests.crash.lives import Child, ChildFailedError
from tests.crash.pace import Look, looks
from tests.crash.scenario import Scenario
from tests.support.broker import KafkaCluster

__all__ = [
    "CHECKPOINT_S",
    "CUT_MOST",
    "FILE",
    "FILE_SLOTS",
    "IDLE_LOOKS",
    "MEMORY",
    "RESUMED_S",
    "SETTLED_S",
    "SLOWER",
    "Outage",
    "Outcome",
    "rest_s",
    "run_outages",
    "wait_caught_up",
    "wait_for",
]

MEMORY = 16 << 20  # bytes that an outage may cost, however long it is
RESUMED_S = 1.0  # from the moment when the brokers serve again until the first acknowledgement
SLOWER = 1.2  # what a call takes in an outage, over what it took before
WAITING = 0.9  # of what comes in an outage, so much waits at its end at least: else the publisher stood still
TOLD_WRONG = 2.0  # how far off it may be how long a backlog takes, when half of it is delivered
_SLOT_BYTES = 16 << 20
KEPT_FREE = 4  # slots of a ring
CUT_MOST = 16  # slots that a file gives back at once
IDLE_LOOKS = 12  # before it does
FILE_SLOTS = 2 * KEPT_FREE + 2
"""That an outage may leave of the files: free slots of the ring, two more in use, and free ones of the retry ring, to
which a lane is moved that was passed over on trial."""
FILE = FILE_SLOTS * _SLOT_BYTES
SETTLED_S = 3.0  # after an opening, and behind the edges of an outage
_SHORT_S = 2.0  # it is told once a second, of what was in the half minute before
_TOLD_AFTER_S = 5.0  # of catching up it has to be told at all
_LANES = 6
_CAUGHT_UP_S = 600.0
_BEHIND = 2_000  # records in flight and lingering at any time
CHECKPOINT_S = 5.0  # from one to the next; at each is looked at what the file can do without
_LATE = 1.2  # such a look comes later on a busy machine
_LEAST_BYTES = 116  # of a record: its value alone


@dataclass(frozen=True)
class Outage:
    """One of them, in figures."""

    seconds: float
    came: float
    """Records that came from its beginning to the last look, at the rate that was asked for."""
    waiting: int
    """Records that were accepted and not delivered when it ended."""
    memory: int
    """Bytes of memory at most, over what there was before."""
    resumed_s: float
    """From the moment when the brokers served again to the first acknowledgement; 0 where it came before."""
    slower_p50: float
    """The median of what `publish` took in it, over that before it."""
    slower_p99: float
    """Likewise p99."""
    half_took_s: float | None = None
    """Until what waited when half of it was delivered was delivered, too; None: nobody has looked."""
    half_told_s: float | None = None
    """How long this would take, as the process said then; None: it did not know."""

    def __str__(self) -> str:
        return (
            f"outage seconds={self.seconds:.0f} came={self.came:.0f} waiting={self.waiting} "
            f"memory_growth_mb={self.memory / 1e6:.1f} resumed_s={self.resumed_s:.2f} "
            f"publish_p50_ratio={self.slower_p50:.2f} publish_p99_ratio={self.slower_p99:.2f} "
            f"half_caught_up_s={_seconds(self.half_took_s)} half_told_s={_seconds(self.half_told_s)}"
        )

    def wrong(self) -> list[str]:
        """What it cost that it may not, in words."""
        found = {
            "fewer records wait than came": self.waiting < WAITING * self.came,
            "memory": self.memory >= MEMORY,
            "not resumed in time": self.resumed_s > RESUMED_S,
            "publish takes longer (p50)": self.slower_p50 > SLOWER,
            "publish takes longer (p99)": self.slower_p99 > SLOWER,
            "it was told wrongly what catching up takes": self._told_wrong > TOLD_WRONG,
        }
        return [what for what, is_wrong in found.items() if is_wrong]

    @property
    def _told_wrong(self) -> float:
        """So many times too much, or too little."""
        took, told = self.half_took_s, self.half_told_s
        if took is None or (told is None and took < _TOLD_AFTER_S):
            return 1.0
        if told is None:
            return math.inf
        less, more = sorted([max(took, _SHORT_S), max(told, _SHORT_S)])
        return more / less


@dataclass(frozen=True)
class Outcome:
    """What became of the records, and what each outage was like."""

    verdict: Verdict
    outages: Sequence[Outage]
    memory_left: int
    """Bytes of memory at most at the end, over those before the first outage; of as long a time as that is."""
    file_left: int | None
    """Bytes of the ring's file, likewise; None: nobody has waited for it to become small."""
    file_most: int
    """Bytes of it at its largest, likewise."""

    def __str__(self) -> str:
        left = "?" if self.file_left is None else f"{self.file_left / 1e6:.1f}"
        return (
            f"{self.verdict} memory_left_mb={self.memory_left / 1e6:.1f} "
            f"file_most_mb={self.file_most / 1e6:.1f} file_left_mb={left}"
        )

    @property
    def ok(self) -> bool:
        """Every record stands there once, in order."""
        return self.verdict.ok and self.verdict.repeated == 0

    def wrong(self) -> list[str]:
        """What it cost that it may not, in words."""
        left = {
            "memory is left": self.memory_left >= MEMORY,
            "the file is not small again": self.file_left is not None and self.file_left > FILE,
        }
        return [
            *(f"{what}: {outage}" for outage in self.outages for what in outage.wrong()),
            *(what for what, is_wrong in left.items() if is_wrong),
        ]


def rest_s(allocated: int, rate: int, slot_bytes: int = _SLOT_BYTES) -> float:
    """Seconds from when all is delivered until a file of so many bytes has to be small again.

    First of all the slot at its end has to be left, by a process that goes on publishing; then twelve looks have to
    find all those before it free; and each look cuts off a part of them.
    """
    left = slot_bytes / (rate * _LEAST_BYTES) + 2 * CHECKPOINT_S  # and the checkpoint that frees it
    cuts = allocated // (slot_bytes * CUT_MOST) + 1
    return _LATE * (left + (IDLE_LOOKS + cuts) * CHECKPOINT_S)


def run_outages(
    cluster: KafkaCluster,
    directory: Path,
    *,
    count: int,
    seconds: float,
    rate: int,
    before: float = SETTLED_S,
    rest: bool = False,
) -> Outcome:
    """Let all brokers be gone ``count`` times for so many ``seconds``, while ``rate`` records a second come.

    ``before``: seconds in front of each outage that it is held against. ``rest``: wait behind the last one until the
    ring's file has to be small again.
    """
    scenario = Scenario(cluster, directory, lanes=_LANES)
    interval = int(1000 * CHECKPOINT_S)
    child = scenario.life(
        ("publish", {"rate": rate}), paced=True, slot_bytes=_SLOT_BYTES, checkpoint_interval_ms=interval
    )
    child.wait_for("publish")
    outages: list[Outage] = []
    wait_caught_up(child)
    time.sleep(SETTLED_S)
    first: list[Look] = []
    for _ in range(count):
        time.sleep(before)
        first = first or _since(looks(child.words), before)
        outage = _outage(cluster, child, seconds, rate, before)
        came_back = time.monotonic()
        wait_caught_up(child)
        outages.append(_with_what_was_told(outage, [look for look in looks(child.words) if look.at > came_back]))
        time.sleep(SETTLED_S)
    if rest:
        time.sleep(rest_s(looks(child.words)[-1].allocated, rate))
    every = looks(child.words)
    scenario.kill(child)
    last, most = _since(every, before), max(look.allocated for look in every)
    return Outcome(
        scenario.verdict(slot_bytes=_SLOT_BYTES),
        outages,
        memory_left=_most_resident(last) - _most_resident(first),
        file_left=last[-1].allocated - first[-1].allocated if rest else None,
        file_most=most - first[-1].allocated,
    )


def _outage(cluster: KafkaCluster, child: Child, seconds: float, rate: int, before: float) -> Outage:
    seen = looks(child.words)
    for node in cluster.nodes:
        node.kill()
    gone = time.monotonic()
    time.sleep(seconds)
    after = time.monotonic()
    delivered = looks(child.words)[-1].delivered
    for node in cluster.nodes:
        node.start()
    cluster.wait_ready()
    back = time.monotonic()
    resumed = wait_for(child, lambda look: look.delivered > delivered)
    every = looks(child.words)
    quiet = _since(seen, before)
    dark = [look for look in every if gone + 1.0 < look.at < after]

    def slower(of: Callable[[Look], float]) -> float:
        return statistics.median(map(of, dark)) / statistics.median(map(of, quiet))

    return Outage(
        seconds=after - gone,
        came=rate * (dark[-1].at - gone),
        waiting=dark[-1].waiting,
        memory=_most_resident(dark) - _most_resident(quiet),
        resumed_s=max(0.0, resumed.at - back),
        slower_p50=slower(lambda look: look.p50_us),
        slower_p99=slower(lambda look: look.p99_us),
    )


def _since(every: Sequence[Look], seconds: float) -> list[Look]:
    """The last ones, of so many seconds."""
    return [look for look in every if look.at > every[-1].at - seconds]


def _most_resident(some: Sequence[Look]) -> int:
    """At any one moment it may be a slot more or less: of the one that is being filled its pages count."""
    return max(look.resident for look in some)


def _with_what_was_told(outage: Outage, since: Sequence[Look]) -> Outage:
    """``since``: what was seen from the brokers' return until nearly nothing waited any more."""
    half = next((look for look in since if 2 * look.waiting < outage.waiting), None)
    if half is None:
        return outage
    there = next((look for look in since if look.delivered >= half.delivered + half.waiting), since[-1])
    return replace(outage, half_took_s=there.at - half.at, half_told_s=half.seconds_left)


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.1f}"


def wait_caught_up(child: Child) -> None:
    """Until nearly all that was published is delivered."""
    wait_for(child, lambda look: look.waiting <= look.calls + _BEHIND)


def wait_for(child: Child, wanted: Callable[[Look], bool]) -> Look:
    """The first look from now on that is as wanted."""
    give_up_at, seen = time.monotonic() + _CAUGHT_UP_S, len(looks(child.words))
    while time.monotonic() < give_up_at:
        for look in looks(child.words)[seen:]:
            if wanted(look):
                return look
        time.sleep(0.05)
    child.kill()
    raise ChildFailedError(f"the child does not come to it within {_CAUGHT_UP_S} s said={child.words[-3:]}")
