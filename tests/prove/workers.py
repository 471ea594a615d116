"""`python -m tests.prove workers --seed S --count N [--most M]`: workers that come and go over one `wal_dir`.

So many rounds, in each of which workers are started, or killed with `kill -9`, or scaled down to two; each part of 25
rounds has a directory, topics and a seed of its own (S, S + 1 …), so `--seed` with the number that a failed part
printed, and `--count 25`, repeats that part alone.

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

from tests.crash.lives import ChildFailedError
from tests.crash.workers import Outcome, run_workers
from tests.support.broker import BrokerUnavailableError, Cluster, choose_cluster
from tests.support.jars import JarsError

__all__ = ["main"]

PART = 25  # rounds: some hundred thousand records, which the judgement holds in memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove workers", description="workers that come and go")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many rounds (default 200)")
    parser.add_argument("--most", type=int, default=20, help="workers at the same time (default 20)")
    options = parser.parse_args(arguments)
    seed: int = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    try:
        with choose_cluster(1) as cluster:
            print(f"broker: {cluster.description}", flush=True)
            return _prove(cluster, seed, options.count, options.most)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2


def _prove(cluster: Cluster, seed: int, rounds: int, most: int) -> int:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    parts = -(-rounds // PART)
    for number in range(parts):
        count = min(PART, rounds - number * PART)
        print(f"part {number + 1}/{parts}: seed={seed + number} rounds={count}", flush=True)
        outcome = _part(cluster, seed + number, count, most)
        if outcome is None or not outcome.verdict.ok:
            print(f"repeat: python -m tests.prove workers --seed {seed + number} --count {count} --most {most}")
            return 1
        outcomes.append(outcome)
    verdicts = [outcome.verdict for outcome in outcomes]
    print(
        f"proved: seed={seed} rounds={rounds} lives={sum(one.lives for one in verdicts)} "
        f"kills={sum(one.kills for one in verdicts)} accepted={sum(one.accepted for one in verdicts)} "
        f"delivered={sum(one.delivered for one in verdicts)} missing=0 out_of_order=0 repeated=0 "
        f"adopted={sum(one.adopted for one in outcomes)} seconds={time.monotonic() - began:.0f}",
        flush=True,
    )
    return 0


def _part(cluster: Cluster, seed: int, rounds: int, most: int) -> Outcome | None:
    """One directory and its judgement; None when a process did not do what it was told."""
    directory = Path(tempfile.mkdtemp(prefix=f"aiorecover-workers-{seed}-"))
    try:
        outcome = run_workers(cluster, rounds, seed, directory, most=most, report=_progress)
    except ChildFailedError as error:
        print(f"NOT OK: {error}\nkept: {directory}", flush=True)
        return None
    print(outcome, flush=True)
    if outcome.verdict.ok:
        shutil.rmtree(directory)
    else:
        print(f"kept: {directory}", flush=True)
    return outcome


def _progress(line: str) -> None:
    print(f"  {line}", flush=True)
