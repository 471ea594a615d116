"""`python -m tests.prove identity --seed S --count N`: nothing twice across kill -9, whatever the brokers do meanwhile.

Three real brokers, replication 3, two in sync. A publisher of twelve lanes dies again and again: at random moments and
at chosen points of the library (`tests.crash.crash_points`). Meanwhile the brokers are frozen, killed, killed all at
once and rolled, with batches in flight and in the middle of being sent again; and the network holds back what is on its
way, so that the bytes of a dead process arrive when its successor has sent. At last everything is read back with a
plain consumer and judged by record id: missing 0, repeated 0, out of order 0.

A run consists of rounds of 25 cycles, each with a directory, topics and a seed of its own: round r has the seed
S + r - 1, so the number that a failed round printed, and `--count 25`, repeat that round alone. What the seed decides
is repeated; what the machine decides is not, so a fault that was found may take some repetitions.

Exit status: 0 proved, 1 a promise was broken or a process failed (the directory is kept and named), 2 cannot run.
"""

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.crash.broker_faults import HARD, BrokerFaults, LateNetwork
from tests.crash.cycles import run_cycles
from tests.crash.judgement import Verdict
from tests.crash.lives import ChildFailedError
from tests.support.broker import BrokerUnavailableError, KafkaCluster
from tests.support.detour import Detour
from tests.support.jars import JarsError

__all__ = ["main", "prove"]

ROUND = 25  # cycles: half a million records, which the judgement holds in memory
_BROKERS = 3
_LIFE_S = 2.5  # long enough for a life to begin under one fault and to die under another
_PEACE_S = 1.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove identity", description="nothing twice across kill -9")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=500, help="how many cycles (default 500)")
    options = parser.parse_args(arguments)
    seed: int = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    try:
        with KafkaCluster(_BROKERS, detour_host="127.0.0.1") as cluster:
            print(f"broker: {cluster.description}", flush=True)
            return prove(cluster, seed, options.count)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2


def prove(cluster: KafkaCluster, seed: int, cycles: int) -> int:
    """Go through the rounds; the exit status."""
    began = time.monotonic()
    verdicts: list[Verdict] = []
    faults: Counter[str] = Counter()
    for number in range(-(-cycles // ROUND)):
        count = min(ROUND, cycles - number * ROUND)
        print(f"round {number + 1}: seed={seed + number} cycles={count}", flush=True)
        verdict = _round(cluster, seed + number, count, faults)
        if verdict is None or not verdict.ok:
            print(f"repeat: python -m tests.prove identity --seed {seed + number} --count {count}", flush=True)
            return 1
        verdicts.append(verdict)
    print(_summary(verdicts, faults, seed, time.monotonic() - began), flush=True)
    return 0


def _round(cluster: KafkaCluster, seed: int, count: int, faults: Counter[str]) -> Verdict | None:
    """One directory, its kills and its judgement; None when a process did not do what it was told."""
    directory = Path(tempfile.mkdtemp(prefix=f"aiorecover-identity-{seed}-"))
    with Detour(cluster.detour_routes) as detour:
        broken = BrokerFaults(cluster, seed, HARD, longest_peace_s=_PEACE_S)
        late = LateNetwork(detour, seed, longest_peace_s=_PEACE_S)
        try:
            verdict = run_cycles(
                cluster,
                count,
                seed,
                directory,
                name="identity",
                servers=cluster.detour_servers,
                meanwhile=_both(broken, late),
                longest_life_s=_LIFE_S,
                crash_points=True,
                report=lambda line: print(f"  {line}", flush=True),
            )
        except ChildFailedError as error:
            print(f"NOT OK: {error}\nkept: {directory}", flush=True)
            return None
    faults += broken.done + late.done
    print(f"{verdict} brokers: {broken} network: {late}", flush=True)
    if verdict.ok:
        shutil.rmtree(directory)
    else:
        print(f"kept: {directory}", flush=True)
    return verdict


@contextmanager
def _both(broken: BrokerFaults, late: LateNetwork) -> Iterator[None]:
    with broken, late:
        yield


def _summary(verdicts: Sequence[Verdict], faults: Counter[str], seed: int, seconds: float) -> str:
    def total(name: str) -> int:
        return sum(getattr(verdict, name) for verdict in verdicts)

    done = " ".join(f"{kind.replace(' ', '_')}={times}" for kind, times in sorted(faults.items()))
    return (
        f"proved: seed={seed} lives={total('lives')} kills={total('kills')} resumed={total('resumed')} "
        f"accepted={total('accepted')} delivered={total('delivered')} missing=0 repeated={total('repeated')} "
        f"out_of_order=0 altered=0 untold={total('untold')} faults: {done} seconds={seconds:.0f}"
    )
