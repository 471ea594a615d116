"""`python -m tests.prove transactions --seed S --count N`: exactly once, across kill -9 and whatever the brokers do.

Three real brokers, replication 3, two in sync. A publisher of twelve lanes with ``guarantee="exactly_once"`` dies again
and again: at random moments, and at chosen points of a transaction (`tests.crash.crash_points`). Meanwhile the brokers
are frozen, killed, killed all at once and rolled: the coordinators of the transaction and of the position among them,
and leaders of its partitions right before a commit. At last everything is read back by a plain consumer that reads what
is committed, and judged by record id: missing 0, repeated 0, out of order 0. What a round is: `rounds`.

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.crash.broker_faults import HARD, BrokerFaults
from tests.crash.crash_points import TRANSACTION_POINTS
from tests.crash.cycles import run_cycles
from tests.crash.judgement import Verdict
from tests.prove.brokers import on_brokers
from tests.prove.rounds import below, chosen, progress, prove_rounds
from tests.support.broker import KafkaCluster

__all__ = ["main", "prove", "too_little"]

_BROKERS = 3
_LIFE_S = 2.5  # long enough for a life to begin under one fault and to die under another
_PEACE_S = 3.0  # transactions take some rest to be committed at all
_FLOOR_CYCLES = 10  # a shorter run may be over before all of that has come
_FAULTS = ("freeze", "kill")  # at least once each
_LONG_CYCLES = 250  # in which none of the rare faults of brokers is missing once in hundreds of runs
_RARE_FAULTS = ("kill all", "roll")
_CYCLES_PER = {"freeze": 10, "kill": 25}  # in a long run: two thirds of what there is, or less
_CYCLES_PER_KILL = 4 / 3  # 19 in 20: some are let be, and some end by themselves
_CYCLES_PER_RECOVERED = 4  # most leave something in the ring, and a transaction open, unless they die while they open
_CYCLES_PER_CRASHED = 20  # a third are to die at a chosen point, and some of these are not reached in time
_ACCEPTED_PER_CYCLE = 200  # some 4,000 on two cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove transactions", description="exactly once")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=500, help="how many cycles (default 500)")
    options = parser.parse_args(arguments)
    return on_brokers(
        lambda: KafkaCluster(_BROKERS), lambda cluster: prove(cluster, chosen(options.seed), options.count)
    )


def prove(cluster: KafkaCluster, seed: int, cycles: int) -> int:
    """Go through the rounds; the exit status."""
    return prove_rounds("transactions", partial(_play, cluster), seed, cycles, floor=too_little)


def _play(cluster: KafkaCluster, seed: int, count: int, directory: Path, faults: Counter[str]) -> tuple[Verdict, str]:
    broken = BrokerFaults(cluster, seed, HARD, longest_peace_s=_PEACE_S)
    verdict = run_cycles(
        cluster,
        count,
        seed,
        directory,
        name="transactions",
        meanwhile=broken,
        longest_life_s=_LIFE_S,
        crash_points=[*TRANSACTION_POINTS],
        isolation_level="read_committed",
        report=progress,
        guarantee="exactly_once",
    )
    faults += broken.done
    return verdict, f"brokers: {broken}"


def too_little(happened: Counter[str], cycles: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words. What that is: `tests.prove.rounds.Floor`."""
    if cycles < _FLOOR_CYCLES:
        return []
    floors = {
        **dict.fromkeys(_FAULTS, 1),
        **(_long_floors(cycles) if cycles >= _LONG_CYCLES else {}),
        "kills": int(cycles / _CYCLES_PER_KILL),
        "recovered": cycles // _CYCLES_PER_RECOVERED,
        "crashed": cycles // _CYCLES_PER_CRASHED,
        "accepted": cycles * _ACCEPTED_PER_CYCLE,
    }
    return below(happened, floors)


def _long_floors(cycles: int) -> dict[str, int]:
    return {**dict.fromkeys(_RARE_FAULTS, 1), **{what: cycles // per for what, per in _CYCLES_PER.items()}}
