"""`python -m tests.prove etl --seed S --count KILLS --guarantee G`: workers that move records, killed again and again.

What it looks at: `tests.crash.etl`. Each record has to arrive exactly once, in the order of its key; with
``--guarantee exactly_once`` for a consumer that reads what is committed. At least nine in ten kills have to hit a
worker that is moving records: else nothing is proved.

Exit status: 0 proved, 1 a promise was broken (the directory is kept and named) or too few kills hit, 2 cannot run.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.etl import run_workers
from tests.prove.rounds import chosen
from tests.support.broker import BrokerUnavailableError, choose_cluster
from tests.support.jars import JarsError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    began, seed = time.monotonic(), chosen(options.seed)
    directory = Path(tempfile.mkdtemp(prefix="aiorecover-etl-"))
    try:
        with choose_cluster(1) as cluster:
            print(f"broker: {cluster.description} seed={seed}", flush=True)
            outcome = run_workers(cluster, directory, seed=seed, kills=options.count, guarantee=options.guarantee)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2
    proved = outcome.ok and outcome.enough
    seconds = time.monotonic() - began
    print(f"{'proved' if proved else 'NOT OK'}: seed={seed} {options.guarantee} {outcome} seconds={seconds:.0f}")
    if outcome.ok and not outcome.enough:
        print("nothing broke, and too few kills hit a worker that was moving")
    if proved:
        shutil.rmtree(directory)
        return 0
    print(f"kept: {directory}", flush=True)
    return 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove etl", description="workers from topic to topic")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many kills (default 200)")
    guarantees = ["at_least_once", "exactly_once"]
    parser.add_argument("--guarantee", choices=guarantees, default=guarantees[0], help="of the workers")
    return parser.parse_args(arguments)
