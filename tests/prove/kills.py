"""`python -m tests.prove kills --seed S --count N [--brokers 1|3] [--faults]`: kill -9, again and again.

A run consists of rounds of 25 cycles, each with a directory, topics and a seed of its own: round r has the seed
S + r - 1, so `--seed` with the number that a failed round printed, and `--count 25`, repeats that round alone. What
the seed decides is repeated (loads, options, moments of the kills and of the brokers' faults); what the machine
decides is not, so a fault that was found may take some repetitions.

With `--faults` the brokers are paused, resumed, killed and restarted meanwhile, one at a time.

Exit status: 0 proved, 1 a promise was broken or a process failed (the directory is kept and named), 2 cannot run.
"""

import argparse
import random
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.crash.cycles import run_cycles
from tests.crash.judgement import Verdict
from tests.crash.lives import ChildFailedError
from tests.support.broker import BrokerUnavailableError, Cluster, choose_cluster
from tests.support.jars import JarsError

__all__ = ["BrokerFaults", "main"]

ROUND = 25  # cycles: half a million records, which the judgement holds in memory
_LIFE_S = 1.2
_LIFE_WITH_FAULTS_S = 6.0  # as long as an outage and what follows it
_LONGEST_PEACE_S = 4.0
_LONGEST_PAUSE_S = 4.0  # above the brokers' session time-out: leaders move
_LONGEST_OUTAGE_S = 2.0


class BrokerFaults:
    """Pauses and kills one broker after the other, as the seed says, until it is left; then all are whole again."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.pauses = 0
        self.kills = 0
        self._cluster = cluster
        self._rng = random.Random(f"faults {seed}")
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="broker-faults", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._cluster.heal()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._over.wait(self._rng.uniform(0.0, _LONGEST_PEACE_S)):
                self._one()
        except Exception as error:  # noqa: BLE001 - handed on by __exit__
            self._failure = error

    def _one(self) -> None:
        node = self._rng.choice(self._cluster.nodes)
        if self._rng.random() < 0.5:
            self.pauses += 1
            node.pause()
            self._over.wait(self._rng.uniform(0.05, _LONGEST_PAUSE_S))
            node.resume()
        else:
            self.kills += 1
            node.kill()
            self._over.wait(self._rng.uniform(0.0, _LONGEST_OUTAGE_S))
            node.start()
            self._cluster.wait_ready()


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
    fate = f" brokers: pauses={broken.pauses} kills={broken.kills}" if broken is not None else ""
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
