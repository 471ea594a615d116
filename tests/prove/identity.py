"""`python -m tests.prove identity --seed S --count N`: nothing twice across kill -9, whatever the brokers do meanwhile.

Three real brokers, replication 3, two in sync. A publisher of twelve lanes dies again and again: at random moments and
at chosen points around its requests (`tests.crash.crash_points`). Meanwhile the brokers are frozen, killed, killed all
at once and rolled, with batches in flight and in the middle of being sent again; and the network holds back what is on
its way, so that the bytes of a dead process arrive when its successor has sent. At last everything is read back with a
plain consumer and judged by record id: missing 0, repeated 0, out of order 0. What a round is: `rounds`.

A run in which too little of that happened proves nothing, and fails: one that is long enough has killed the publisher
in most of its cycles, at chosen points too, frozen and killed brokers all along, killed all and rolled them, held
something back again and again, had lives that sent again what was in flight, and published all the while
(`too_little`).

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.crash.broker_faults import HARD, BrokerFaults, LateNetwork
from tests.crash.cycles import run_cycles
from tests.crash.judgement import Verdict
from tests.prove.brokers import on_brokers
from tests.prove.rounds import below, chosen, progress, prove_rounds
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour

__all__ = ["main", "prove", "too_little"]

_BROKERS = 3
_LIFE_S = 2.5  # long enough for a life to begin under one fault and to die under another
_PEACE_S = 1.5
_FLOOR_CYCLES = 20  # a shorter run may be over before all of that has come
_FAULTS = ("freeze", "kill", "late")  # at least once each
_LONG_CYCLES = 250  # some hundred faults of brokers: of the rare kinds, one in twenty, none is missing once in 300 runs
_RARE_FAULTS = ("kill all", "roll")
_CYCLES_PER = {"freeze": 10, "kill": 25, "late": 25, "crashed": 20}  # in a long run: a third of what there is, or less
_CYCLES_PER_KILL = 4 / 3  # 24 in 25: the last life of each round is let be
_CYCLES_PER_RESUMED = 4  # most end with something in flight, unless they die while they open
_ACCEPTED_PER_CYCLE = 500  # some 10,000 on two cores


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove identity", description="nothing twice across kill -9")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=500, help="how many cycles (default 500)")
    options = parser.parse_args(arguments)
    return on_brokers(
        lambda: KafkaCluster(_BROKERS, detour_host="127.0.0.1"),
        lambda cluster: prove(cluster, chosen(options.seed), options.count),
    )


def prove(cluster: KafkaCluster, seed: int, cycles: int) -> int:
    """Go through the rounds; the exit status."""
    return prove_rounds("identity", partial(_play, cluster), seed, cycles, floor=too_little)


def _play(cluster: KafkaCluster, seed: int, count: int, directory: Path, faults: Counter[str]) -> tuple[Verdict, str]:
    with Detour(cluster.detour_routes) as detour:
        broken = BrokerFaults(cluster, seed, HARD, longest_peace_s=_PEACE_S)
        late = LateNetwork(detour, seed, longest_peace_s=_PEACE_S)
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
            report=progress,
        )
    faults += broken.done + late.done
    return verdict, f"brokers: {broken} network: {late}"


def too_little(happened: Counter[str], cycles: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words. What that is: `tests.prove.rounds.Floor`."""
    if cycles < _FLOOR_CYCLES:
        return []
    floors = {
        **dict.fromkeys((*_FAULTS, "crashed"), 1),
        **(_long_floors(cycles) if cycles >= _LONG_CYCLES else {}),
        "kills": int(cycles / _CYCLES_PER_KILL),
        "resumed": cycles // _CYCLES_PER_RESUMED,
        "accepted": cycles * _ACCEPTED_PER_CYCLE,
    }
    return below(happened, floors)


def _long_floors(cycles: int) -> dict[str, int]:
    return {**dict.fromkeys(_RARE_FAULTS, 1), **{what: cycles // per for what, per in _CYCLES_PER.items()}}


@contextmanager
def _both(broken: BrokerFaults, late: LateNetwork) -> Iterator[None]:
    with broken, late:
        yield
