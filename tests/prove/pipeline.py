"""`python -m tests.prove pipeline --seed S --count CHANGES --kills K`: from publish to the table, and all of it killed.

What it looks at: `tests.spark.pipeline`, on three brokers that are killed and rolled meanwhile. Nothing may be missing,
twice, or in one place and not in the other, and the audit has to say so; then it has to name the one record that is
taken out of the table.

Exit status: 0 proved, 1 a promise was broken (the directory is kept and named) or too little happened, 2 cannot run.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.broker_faults import BrokerFaults
from tests.crash.lives import ChildFailedError
from tests.prove.rounds import chosen, progress
from tests.spark.driver import LandingFailedError
from tests.spark.pipeline import Outcome, run_pipeline
from tests.support.broker import BrokerUnavailableError, KafkaCluster
from tests.support.jars import JarsError

__all__ = ["main", "too_little"]

_BROKERS = 3
_KINDS = {"roll": 1.0, "kill": 1.0, "freeze": 1.0}
_HITS = 0.5  # of the kills of drivers are in the middle of a batch
_FAULTS_PER_KILL = 1  # of brokers: a driver lives for some 20 seconds
_ACCEPTED_PER_CHANGE = 100  # some 1,000 on two cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    began, seed = time.monotonic(), chosen(options.seed)
    directory = Path(tempfile.mkdtemp(prefix="aiorecover-pipeline-"))
    try:
        with KafkaCluster(_BROKERS) as cluster:
            print(f"broker: {cluster.description} seed={seed}", flush=True)
            faults = BrokerFaults(cluster, seed, _KINDS)
            outcome = run_pipeline(
                cluster,
                directory,
                seed=seed,
                rounds=options.count,
                kills=options.kills,
                meanwhile=faults,
                report=progress,
            )
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2
    except (ChildFailedError, LandingFailedError) as error:
        print(f"NOT OK: seed={seed} {error}\nkept: {directory}", flush=True)
        return 1
    little = too_little(outcome, faults.done.total(), options.count)
    proved = outcome.ok and not little
    seconds = time.monotonic() - began
    print(f"{'proved' if proved else 'NOT OK'}: seed={seed} {outcome} besides: {faults} seconds={seconds:.0f}")
    if proved:
        shutil.rmtree(directory)
        return 0
    print(f"kept: {directory}{''.join(f'; {what}' for what in little)}", flush=True)
    return 1


def too_little(outcome: Outcome, faults: int, changes: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words."""
    floors = {
        "driver kills in a batch": (outcome.hits, _HITS * outcome.kills),
        "faults of brokers": (faults, _FAULTS_PER_KILL * outcome.kills),
        "accepted": (outcome.served.verdict.accepted, _ACCEPTED_PER_CHANGE * changes),
        "worker kills": (outcome.served.verdict.kills, changes // 2),
    }
    return [f"{what}={count} expected>={floor}" for what, (count, floor) in floors.items() if count < floor]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove pipeline", description="from publish to the table")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=100, help="how many changes of workers, at least (default 100)")
    parser.add_argument("--kills", type=int, default=10, help="how many drivers are killed (default 10)")
    return parser.parse_args(arguments)
