"""`python -m tests.prove pipeline --seed S --count CHANGES --kills K`: from publish to the table, and all of it killed.

What it looks at: `tests.spark.pipeline`, on three brokers that are killed and rolled meanwhile. Nothing may be missing,
twice, or in one place and not in the other, and the audit has to say so; then it has to name the one record that is
taken out of the table.

Exit status: 0 proved, 1 a promise was broken (the directory is kept and named) or too little happened, 2 cannot run.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.crash.broker_faults import BrokerFaults
from tests.prove.once import Judged, prove_once
from tests.prove.rounds import progress
from tests.spark.pipeline import Outcome, run_pipeline
from tests.support.broker import KafkaCluster

__all__ = ["main", "too_little"]

_BROKERS = 3
_KINDS = {"roll": 1.0, "kill": 1.0, "freeze": 1.0}
_HITS = 0.5  # of the kills of drivers are in the middle of a batch
_FAULTS_PER_KILL = 1  # of brokers: a driver lives for some 20 seconds
_ACCEPTED_PER_CHANGE = 100  # some 1,000 on two cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)

    def run(cluster: KafkaCluster, directory: Path, seed: int) -> Judged:
        faults = BrokerFaults(cluster, seed, _KINDS)
        asked = {"seed": seed, "rounds": options.count, "kills": options.kills}
        outcome = run_pipeline(cluster, directory, **asked, meanwhile=faults, report=progress)
        little = too_little(outcome, faults.done, options.count)
        return Judged(outcome.ok, f"{outcome} besides: {faults}", little)

    return prove_once("pipeline", lambda: KafkaCluster(_BROKERS), options.seed, run)


def too_little(outcome: Outcome, faults: Counter[str], changes: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words."""
    floors = {
        "driver kills in a batch": (outcome.hits, _HITS * outcome.kills),
        "faults of brokers": (faults.total(), _FAULTS_PER_KILL * outcome.kills),
        "rolls of the brokers": (faults["roll"], 1),
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
