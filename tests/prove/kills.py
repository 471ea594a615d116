"""`python -m tests.prove kills --seed S --count N [--brokers 1|3] [--faults]`: kill -9, again and again.

A run consists of rounds of 25 cycles, each with a directory, topics and a seed of its own: round r has the seed
S + r - 1, so `--seed` with the number that a failed round printed, and `--count 25`, repeats that round alone. What
the seed decides is repeated (loads, options, moments of the kills and of the brokers' faults); what the machine
decides is not, so a fault that was found may take some repetitions.

With `--faults` the brokers are paused, resumed, killed and restarted meanwhile, one at a time.

Exit status: 0 proved, 1 a promise was broken or a process failed (the directory is kept and named), 2 cannot run.
"""

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.broker_faults import BrokerFaults
from tests.crash.cycles import run_cycles
from tests.crash.judgement import Verdict
from tests.crash.lives import ChildFailedError
from tests.support.broker import BrokerUnavailableError, Cluster, choose_cluster
from tests.support.jars import JarsError

__all__ = ["main"]

ROUND = 25  # cycles: half a million records, which the judgement holds in memory
_LIFE_S = 1.2
_LIFE_WITH_FAULTS_S = 6.0  # as long as an outage and what follows it


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    seed: int = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    try:
        with choose_cluster(options.brokers) as cluster:
            print(f"broker: {cluster.description}", flush=True)
            if options.faults and not cluster.can_kill:
                print("--faults needs brokers that can be killed: unset the cluster, install java", file=sys.stderr)
                return 2
            return _prove(cluster, seed, options.count, faults=options.faults)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove kills", description="kill -9 and look for every record"
    )
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many kills (default 200)")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1, help="size of the cluster (default 1)")
    parser.add_argument("--faults", action="store_true", help="pause and kill the brokers as well")
    return parser.parse_args(arguments)


def _prove(cluster: Cluster, seed: int, cycles: int, *, faults: bool) -> int:
    began = time.monotonic()
    verdicts: list[Verdict] = []
    rounds = -(-cycles // ROUND)
    for number in range(rounds):
        count = min(ROUND, cycles - number * ROUND)
        print(f"round {number + 1}/{rounds}: seed={seed + number} cycles={count}", flush=True)
        verdict = _round(cluster, seed + number, count, faults=faults)
        if verdict is None or not verdict.ok:
            _say_how_to_repeat(cluster, seed + number, count, faults=faults)
            return 1
        verdicts.append(verdict)
    print(_summary(verdicts, seed, time.monotonic() - began), flush=True)
    return 0


def _round(cluster: Cluster, seed: int, count: int, *, faults: bool) -> Verdict | None:
    """One directory, its kills and its judgement; None when a process did not do what it was told."""
    directory = Path(tempfile.mkdtemp(prefix=f"aiorecover-prove-{seed}-"))
    broken = BrokerFaults(cluster, seed) if faults else None
    try:
        verdict = run_cycles(
            cluster,
            count,
            seed,
            directory,
            name="prove",
            meanwhile=broken,
            longest_life_s=_LIFE_WITH_FAULTS_S if faults else _LIFE_S,
            report=_progress,
        )
    except ChildFailedError as error:
        print(f"NOT OK: {error}\nkept: {directory}", flush=True)
        return None
    fate = f" brokers: {broken}" if broken is not None else ""
    print(f"{verdict}{fate}", flush=True)
    if verdict.ok:
        shutil.rmtree(directory)
    else:
        print(f"kept: {directory}", flush=True)
    return verdict


def _progress(line: str) -> None:
    print(f"  {line}", flush=True)


def _say_how_to_repeat(cluster: Cluster, seed: int, count: int, *, faults: bool) -> None:
    flags = f" --brokers {cluster.size}{' --faults' if faults else ''}"
    print(f"repeat: python -m tests.prove kills --seed {seed} --count {count}{flags}", flush=True)


def _summary(verdicts: Sequence[Verdict], seed: int, seconds: float) -> str:
    def total(name: str) -> int:
        return sum(getattr(verdict, name) for verdict in verdicts)

    return (
        f"proved: seed={seed} lives={total('lives')} kills={total('kills')} resumed={total('resumed')} "
        f"accepted={total('accepted')} delivered={total('delivered')} missing=0 out_of_order=0 altered=0 repeated=0 "
        f"confirmed={total('confirmed')} untold={total('untold')} seconds={seconds:.0f}"
    )
