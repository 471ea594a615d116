"""`python -m tests.prove steps --seed S --count N`: kill -9 at drawn steps of stalls, moves, letters and adoptions.

Three real brokers. Each round has a seed of its own, and that says (`tests.crash.steps`) who dies where, and the how
manieth time that is reached: beside a partition without a leader, while what waits for it is moved to the retry ring,
while that is rewritten or read, at a step of a dead letter, while its record is taken after all, or while what another
one has left is adopted, each of this included; with `exactly_once`, too, where there is such a step. At last all is
delivered, read back and judged by record id: nothing missing, nothing twice, nothing out of order, each refused record
one dead letter with its copy.

A run in which too few came as far as to die where they should proves nothing, and fails; so does a long one in which
nobody did in one of the scenarios.

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.crash.judgement import Verdict
from tests.crash.lives import ChildFailedError
from tests.crash.steps import KINDS, draw, play
from tests.prove.brokers import on_brokers
from tests.prove.rounds import below, chosen, prove_rounds
from tests.support.broker import KafkaCluster

__all__ = ["main", "too_little"]

_BROKERS = 3
_FLOOR_ROUNDS = 10  # a shorter run may have too little of anything
_LONG_ROUNDS = 3 * len(KINDS)  # of each kind some
_CRASHED = 3 / 4  # of the rounds; in each somebody is to die, in some of them up to three
_ACCEPTED_PER_ROUND = 500  # those with letters have the fewest, some thousand


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove steps", description="kills at drawn steps")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=200, help="how many rounds (default 200)")
    options = parser.parse_args(arguments)

    def prove(cluster: KafkaCluster) -> int:
        seed = chosen(options.seed)
        return prove_rounds("steps", partial(_play, cluster), seed, options.count, size=1, floor=too_little)

    return on_brokers(lambda: KafkaCluster(_BROKERS), prove)


def _play(cluster: KafkaCluster, seed: int, _: int, directory: Path, hit: Counter[str]) -> tuple[Verdict, str]:
    drawn = draw(seed)
    try:
        verdict = play(cluster, directory, drawn)
    except TimeoutError as error:  # what was left was not adopted
        raise ChildFailedError(f"{drawn}: {error}") from error
    hit[drawn.kind] += verdict.crashed
    return verdict, str(drawn)


def too_little(happened: Counter[str], rounds: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words. What that is: `tests.prove.rounds.Floor`."""
    if rounds < _FLOOR_ROUNDS:
        return []
    floors = {
        **(dict.fromkeys(KINDS, 1) if rounds >= _LONG_ROUNDS else {}),
        "crashed": int(rounds * _CRASHED),
        "accepted": rounds * _ACCEPTED_PER_ROUND,
    }
    return below(happened, floors)
