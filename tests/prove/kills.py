"""`python -m tests.prove kills --seed S --count N [--brokers 1|3] [--faults]`: kill -9, again and again.

What a round is: `rounds`. With `--faults` the brokers are paused, resumed, killed and restarted meanwhile, one at a
time.

A run in which next to nothing was published, killed or left in the ring proves nothing, and fails.

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.crash.broker_faults import BrokerFaults
from tests.crash.cycles import run_cycles
from tests.crash.judgement import Verdict
from tests.prove.brokers import on_brokers
from tests.prove.rounds import below, chosen, progress, prove_rounds
from tests.support.broker import Cluster, choose_cluster

__all__ = ["main", "too_little"]

_LIFE_S = 1.2
_LIFE_WITH_FAULTS_S = 6.0  # as long as an outage and what follows it
_FLOOR_CYCLES = 10  # a shorter run may have too little of anything
_CYCLES_PER_KILL = 2  # but for one in twenty all are killed
_CYCLES_PER_RECOVERED = 10  # every third leaves something in the ring
_ACCEPTED_PER_CYCLE = 200  # some 4,000 on two cores, a thousand beside other work


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    play, flags = (_play_with_faults, " --faults") if options.faults else (_play, "")

    def prove(cluster: Cluster) -> int:
        told = f" --brokers {cluster.size}{flags}"
        return prove_rounds(
            "kills", partial(play, cluster), chosen(options.seed), options.count, flags=told, floor=too_little
        )

    return on_brokers(lambda: choose_cluster(options.brokers), prove, faults=options.faults)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove kills", description="kill -9 and look for every record"
    )
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many kills (default 200)")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1, help="size of the cluster (default 1)")
    parser.add_argument("--faults", action="store_true", help="pause and kill the brokers as well")
    return parser.parse_args(arguments)


def too_little(happened: Counter[str], cycles: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words. What that is: `tests.prove.rounds.Floor`."""
    if cycles < _FLOOR_CYCLES:
        return []
    floors = {
        "kills": cycles // _CYCLES_PER_KILL,
        "recovered": cycles // _CYCLES_PER_RECOVERED,
        "accepted": cycles * _ACCEPTED_PER_CYCLE,
    }
    return below(happened, floors)


def _play(cluster: Cluster, seed: int, count: int, directory: Path, _: Counter[str]) -> tuple[Verdict, str]:
    verdict = run_cycles(cluster, count, seed, directory, name="prove", longest_life_s=_LIFE_S, report=progress)
    return verdict, ""


def _play_with_faults(
    cluster: Cluster, seed: int, count: int, directory: Path, faults: Counter[str]
) -> tuple[Verdict, str]:
    broken = BrokerFaults(cluster, seed)
    verdict = run_cycles(
        cluster,
        count,
        seed,
        directory,
        name="prove",
        meanwhile=broken,
        longest_life_s=_LIFE_WITH_FAULTS_S,
        report=progress,
    )
    faults += broken.done
    return verdict, f"brokers: {broken}"
