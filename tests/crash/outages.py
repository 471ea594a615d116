"""Outages of all brokers under steady load: what they cost the publisher, and that nothing is lost by them.

A process publishes at a steady rate. Again and again all brokers are killed, and started once more some time later.
Meanwhile the process says how it is doing (`pace`); at last everything is read back and judged by record id.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.judgement import Verdict
from tests.crash.lives import Child, ChildFailedError
from tests.crash.pace import Look, looks
from tests.crash.scenario import Scenario
from tests.support.broker import KafkaCluster

__all__ = ["Outage", "Outcome", "run_outages"]

MEMORY = 16 << 20  # bytes that an outage may cost, however long it is
RESUMED_S = 1.0  # from the moment when the brokers serve again until the first acknowledgement
_SETTLED_S = 3.0  # after an opening, and behind the edges of an outage
_LANES = 6
_SLOT_BYTES = 16 << 20
_CAUGHT_UP_S = 600.0
_BEHIND = 2_000  # records in flight and lingering at any time


@dataclass(frozen=True)
class Outage:
    """One of them, in figures."""

    seconds: float
    waiting: int
    """Records that were accepted and not delivered when it ended."""
    memory: int
    """Bytes of memory at most, over what there was before."""
    resumed_s: float
    """From the moment when the brokers served again to the first acknowledgement; 0 where it came before."""
    slower: float
    """p99 of `publish` in it, over p99 before it."""

    def __str__(self) -> str:
        return (
            f"outage seconds={self.seconds:.0f} waiting={self.waiting} memory_growth_mb={self.memory / 1e6:.1f} "
            f"resumed_s={self.resumed_s:.2f} publish_p99_ratio={self.slower:.2f}"
        )


@dataclass(frozen=True)
class Outcome:
    """What became of the records, and what each outage was like."""

    verdict: Verdict
    outages: Sequence[Outage]
    memory_left: int
    """Bytes of memory at the end, over those before the first outage."""
    file_left: int
    """Bytes of the ring file, likewise; None was waited for where the rest was short."""

    @property
    def ok(self) -> bool:
        """Nothing lost, and no outage cost more than it may. What a call takes depends on the machine: only told."""
        flat = all(outage.memory < MEMORY and outage.resumed_s <= RESUMED_S for outage in self.outages)
        return self.verdict.ok and self.verdict.repeated == 0 and flat and self.memory_left < MEMORY


def run_outages(
    cluster: KafkaCluster, directory: Path, *, count: int, seconds: float, rate: int, rest: float = 0.0
) -> Outcome:
    """Let all brokers be gone ``count`` times for so many ``seconds``, while ``rate`` records a second come.

    ``rest``: seconds behind the last one; the ring file is given back to the disk after a minute.
    """
    scenario = Scenario(cluster, directory, lanes=_LANES)
    child = scenario.life(("publish", {"rate": rate}), paced=True, slot_bytes=_SLOT_BYTES, checkpoint_interval_ms=5_000)
    child.wait_for("publish")
    outages: list[Outage] = []
    _wait_caught_up(child)
    time.sleep(_SETTLED_S)
    first = looks(child.words)[-1]
    for _ in range(count):
        outages.append(_outage(cluster, child, seconds))
        _wait_caught_up(child)
        time.sleep(_SETTLED_S)
    time.sleep(rest)
    last = looks(child.words)[-1]
    scenario.kill(child)
    verdict = scenario.verdict(slot_bytes=_SLOT_BYTES)
    return Outcome(verdict, outages, last.resident - first.resident, last.allocated - first.allocated)


def _outage(cluster: KafkaCluster, child: Child, seconds: float) -> Outage:
    before = looks(child.words)
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
    resumed = _wait_for(child, lambda look: look.delivered > delivered)
    every = looks(child.words)
    quiet = [look for look in before if look.at > before[-1].at - _SETTLED_S]
    dark = [look for look in every if gone + 1.0 < look.at < after]
    return Outage(
        seconds=after - gone,
        waiting=max(look.waiting for look in dark),
        memory=max(look.resident for look in dark) - max(look.resident for look in quiet),
        resumed_s=max(0.0, resumed.at - back),
        slower=statistics.median(look.p99_us for look in dark) / statistics.median(look.p99_us for look in quiet),
    )


def _wait_caught_up(child: Child) -> None:
    """Until nearly all that was published is delivered."""
    _wait_for(child, lambda look: look.waiting <= look.calls + _BEHIND)


def _wait_for(child: Child, wanted: Callable[[Look], bool]) -> Look:
    """The first look from now on that is as wanted."""
    give_up_at, seen = time.monotonic() + _CAUGHT_UP_S, len(looks(child.words))
    while time.monotonic() < give_up_at:
        for look in looks(child.words)[seen:]:
            if wanted(look):
                return look
        time.sleep(0.05)
    child.kill()
    raise ChildFailedError(f"the child does not come to it within {_CAUGHT_UP_S} s said={child.words[-3:]}")
