"""`python -m tests.prove cuts --seed S --count N --disk D`: exactly once, across power cuts inside transactions.

One real broker. A worker with ``guarantee="exactly_once"`` writes to a disk that loses its power at a chosen step:
begin, send, flush, position, commit, settle, checkpoint, and the steps of an opening; a request of the transaction was
written then, or was not, or comes late. The next worker opens what that leaves. At last everything is read back by a
plain consumer that reads what is committed, and judged: missing 0, repeated 0, out of order 0 (`tests.crash.cuts`).

The disk is one in memory, or (``--disk ext4``) ext4 on a disk that logs what it is told, cut off at that moment.

A round is a disk and a topic of its own, with a cut at each step, in any order; round r has the seed S + r - 1, so the
seed that a failed round printed repeats that round. What the machine decides (which moment of a step) is not repeated.

First come the controls: with faults planted into the library, records must be missing, or repeated.

A run in which next to nothing was published, or nothing came late, fails, too.

Exit status: 0 proved, 1 a promise was broken or too little happened, 2 cannot run.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.crash.cuts import PARTITIONS, Verdict, play
from tests.crash.logged_machine import LoggedMachine
from tests.crash.machines import Machine, MemoryMachine
from tests.crash.planted import planted
from tests.crash.power_cut import CUT_POINTS, Cut, cuts_of
from tests.power.lives import Geometry
from tests.power.possible import folder, why_impossible
from tests.prove.brokers import on_brokers
from tests.prove.rounds import below, chosen
from tests.support.broker import Cluster, KafkaCluster

__all__ = ["main", "too_little"]

_TIMES: Final = (1, 2, 3, 5)
_ACCEPTED_PER_CUT: Final = 20  # a hundred and more
_CUTS_PER_LATE: Final = 50  # one in ten; which are to be late is drawn, and some have nothing to write
_CONTROL_CUTS: Final = (
    30  # within so many a planted fault must show: a position that no flush covers does in every third
)
_CONTROLS: Final = {
    "commit_without_a_flush": ("after the commit", "never"),
    "settle_before_the_commit": ("when the commit is lost", "always"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove cuts", description="power cuts in a transaction")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=1_000, help="how many cuts (default 1,000)")
    parser.add_argument("--disk", choices=["memory", "ext4"], default="memory", help="what loses its power")
    options = parser.parse_args(arguments)
    if options.disk == "ext4" and (impossible := why_impossible()):
        print(f"a disk cannot be logged: {impossible}", file=sys.stderr)
        return 2
    logging.getLogger("aiorecover").setLevel(logging.CRITICAL)
    return on_brokers(
        lambda: KafkaCluster(1),
        lambda cluster: _Proof(cluster, options.disk).run(chosen(options.seed), options.count),
    )


def too_little(verdict: Verdict) -> list[str]:
    """What there was so little of that it proves nothing, in words; of fewer cuts than there are steps: nothing."""
    if verdict.cuts < len(CUT_POINTS):
        return []
    floors = {"accepted": verdict.cuts * _ACCEPTED_PER_CUT, "late": max(1, verdict.cuts // _CUTS_PER_LATE)}
    return below(Counter(accepted=verdict.accepted, late=verdict.late), floors)


class _Proof:
    def __init__(self, cluster: Cluster, disk: str) -> None:
        self._cluster = cluster
        self._disk = disk

    def run(self, seed: int, count: int) -> int:
        began = time.monotonic()
        for fault in _CONTROLS:
            if not self._control(fault, seed):
                print(f"NOT OK: nothing was wrong with {fault}: this proof cannot fail", flush=True)
                return 1
        sums = Verdict()
        for number in range(-(-count // len(CUT_POINTS))):
            cuts = cuts_of(seed + number, _TIMES)[: count - sums.cuts]
            verdict = self._played(cuts)
            print(f"round {number + 1}: seed={seed + number} {verdict}", flush=True)
            if not verdict.ok:
                more = f"--seed {seed + number} --count {len(cuts)} --disk {self._disk}"
                print(f"repeat: python -m tests.prove cuts {more}", flush=True)
                return 1
            sums += verdict
        if said := too_little(sums):
            print(f"NOT OK: nothing broke, and too little happened: {', '.join(said)}", flush=True)
            return 1
        seconds = time.monotonic() - began
        print(f"proved: seed={seed} disk={self._disk} {sums} seconds={seconds:.0f}", flush=True)
        return 0

    def _control(self, fault: str, seed: int) -> bool:
        """Whether a library that is broken on purpose is found out."""
        point, fsync = _CONTROLS[fault]
        for attempt in range(_CONTROL_CUTS):
            with planted(fault):
                verdict = self._played([Cut(point, 3, fsync, seed + attempt)])
            if not verdict.ok:
                print(f"{fault}, as it must, after {attempt + 1} cuts: {verdict}", flush=True)
                return True
        return False

    def _played(self, cuts: Sequence[Cut]) -> Verdict:
        topic = f"cuts-{time.monotonic_ns()}"
        self._cluster.create_topic(topic, PARTITIONS)
        with self._machine() as machine:
            return asyncio.run(play(self._cluster, topic, cuts, machine))

    @contextmanager
    def _machine(self) -> Iterator[Machine]:
        if self._disk == "memory":
            yield MemoryMachine()
            return
        with folder("cuts") as work, LoggedMachine(Path(work), Geometry()) as machine:
            yield machine
