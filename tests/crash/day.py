"""A day of outages under the traffic of a day, each hour of it some seconds long: nothing may be left of it.

One process publishes through the hours: little by night, much by day. Brokers fail as a seed says (`broker_faults`),
and some hours long there is none at all. One such hour comes before the day, so that it begins with all that the
process and Python's allocator keep for the next outage. Behind the last hour, when all is delivered and the process has
had its rest, it has to be as it was before the first one: its memory, the ring's file, descriptors, threads, tasks. And
what it holds at the least in each hour may not creep up from the third quarter of the day to the last one: what is lost
with each record is little at the end of a day, and too much at the end of a month. (It takes until noon, and the first
busy hours, for the process to be warm.) At last everything is read back and judged by record id.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.crash.broker_faults import HARD, BrokerFaults
from tests.crash.judgement import Verdict
from tests.crash.lives import Child
from tests.crash.pace import Look, looks
from tests.crash.scenario import Scenario, Step
from tests.support.broker import KafkaCluster

__all__ = ["CREPT", "MEMORY", "REST_S", "Day", "run_day", "traffic_of"]

REST_S = 135.0  # until the files are small again, and a session that nobody needs any more is closed
_SLOT_BYTES = 1 << 20
MEMORY = 16 << 20  # bytes that may be left of a day: what Python's allocator has in its hands
CREPT = 4 << 20  # bytes between two quarters: some arenas of Python's allocator, or slots that happen to be mapped
_QUARTERS = 4  # of the hours
_KEPT = 2 * 4 * _SLOT_BYTES  # bytes that stay: the retry and the dead ring were never used before
_TRAFFIC = [2, 1, 1, 1, 2, 4, 10, 20, 35, 50, 60, 65, 70, 65, 70, 80, 90, 100, 90, 70, 45, 25, 10, 4]
"""Of each hour, in percent of the busiest."""
_DARK = 5
"""Hours without any broker, one at least by day."""
_LANES = 6
_PEACE_S = 2.0  # at most between two faults
_CAUGHT_UP_S = 600.0


@dataclass(frozen=True)
class Day:
    """What became of the records, and of the process."""

    verdict: Verdict
    before: Look
    after: Look
    most: int
    """Bytes of the ring's file at its largest."""
    faults: Counter[str]
    memory: Sequence[int] = ()
    """Bytes at the least in each hour: what an outage costs goes, what is lost stays."""

    def __str__(self) -> str:
        changes = (
            f"memory_left_mb={(self.after.resident - self.before.resident) / 1e6:.1f} crept_mb={self.crept / 1e6:.1f} "
            f"file_mb={self.before.allocated / 1e6:.1f} most_mb={self.most / 1e6:.1f} "
            f"left_mb={self.after.allocated / 1e6:.1f} descriptors={self.before.descriptors},{self.after.descriptors} "
            f"threads={self.before.threads},{self.after.threads} tasks={self.before.tasks},{self.after.tasks}"
        )
        faults = " ".join(f"{kind.replace(' ', '_')}={times}" for kind, times in sorted(self.faults.items()))
        memory = " ".join(f"{least / 1e6:.0f}" for least in self.memory)
        return f"{self.verdict} {changes} faults: {faults} least memory of each hour, MB: {memory}"

    @property
    def crept(self) -> int:
        """Bytes of memory in an hour of the last quarter over those in one of the third, at the median.

        So some hours of an outage do not count. 0: too few hours to tell.
        """
        hours = len(self.memory) // _QUARTERS
        return int(median(self.memory[-hours:]) - median(self.memory[-2 * hours : -hours])) if hours else 0

    def left(self) -> list[str]:
        """What is left of it, in words."""
        before, after = self.before, self.after
        found = {
            "memory": after.resident - before.resident >= MEMORY,
            "memory that creeps up": self.crept >= CREPT,
            "the ring's file": after.allocated > before.allocated + _KEPT,
            "descriptors": after.descriptors > before.descriptors,
            "threads": after.threads > before.threads,
            "tasks": after.tasks > before.tasks,
        }
        return [what for what, is_left in found.items() if is_left]


def run_day(
    cluster: KafkaCluster,
    directory: Path,
    *,
    seed: int,
    hours: int,
    hour_s: float,
    rate: int,
    rest: float = REST_S,
) -> Day:
    """Go through so many hours of the day, from its 24.

    ``rate``: records a second in the busiest hour; ``rest``: seconds between the last delivery and the look at what is
    left.
    """
    rng = random.Random(seed)
    begins = rng.randrange(24) if hours < 24 else 0
    traffic = traffic_of(begins, hours, rate)
    dark = set(rng.sample(range(hours), max(1, hours * _DARK // 24)))
    scenario = Scenario(cluster, directory, lanes=_LANES)
    child = scenario.life(
        *_still(_publish(rate, hour_s)),
        *_still(*(_publish(each, hour_s) for each in traffic)),
        paced=True,
        slot_bytes=_SLOT_BYTES,
        checkpoint_interval_ms=5_000,
    )
    child.wait_for("publish")
    _dark(cluster, hour_s)
    before = _rested(child, 1, hour_s, rest)
    child.tell()
    began = time.monotonic()
    faults = _outages(cluster, seed, hours, dark, hour_s)
    after = _rested(child, 2, _CAUGHT_UP_S, rest)
    every = looks(child.words)
    scenario.kill(child)
    by_hour = [
        [look.resident for look in every if 0 <= look.at - began - hour * hour_s < hour_s] for hour in range(hours)
    ]
    return Day(
        scenario.verdict(slot_bytes=_SLOT_BYTES),
        before,
        after,
        most=max(look.allocated for look in every),
        faults=faults,
        memory=[min(residents) for residents in by_hour if residents],
    )


def traffic_of(begins: int, hours: int, rate: int) -> list[int]:
    """Records a second in each of so many hours; ``rate``: in the busiest of a day."""
    return [_TRAFFIC[(begins + hour) % 24] * rate // 100 for hour in range(hours)]


def _publish(rate: int, seconds: float) -> Step:
    return "publish", {"rate": max(1, rate), "seconds": seconds}


def _still(*steps: Step) -> list[Step]:
    """All is delivered then, and nothing more comes until the process is told."""
    return [*steps, ("flush", {"timeout_ms": None}), ("wait", {})]


def _outages(cluster: KafkaCluster, seed: int, hours: int, dark: set[int], hour_s: float) -> Counter[str]:
    """Brokers that fail, and in the ``dark`` hours none; from the first hour to the end of the last."""
    done: Counter[str] = Counter()
    began = time.monotonic()
    for hour in range(hours):
        ends = began + (hour + 1) * hour_s
        if hour in dark:
            done["dark"] += 1
            _dark(cluster, ends - time.monotonic())
        else:
            with BrokerFaults(cluster, seed + hour, HARD, _PEACE_S) as faults:
                time.sleep(max(0.0, ends - time.monotonic()))
            done += faults.done
    return done


def _dark(cluster: KafkaCluster, seconds: float) -> None:
    """There is no broker for so long."""
    for node in cluster.nodes:
        node.kill()
    time.sleep(max(0.0, seconds))
    cluster.heal()


def _rested(child: Child, times: int, within: float, rest: float) -> Look:
    """How it is once all is delivered, and so much later."""
    child.wait_for("wait", within + _CAUGHT_UP_S, times=times)
    time.sleep(rest)
    return looks(child.words)[-1]
