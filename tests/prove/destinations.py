"""`python -m tests.prove destinations --seed S --count N`: what records were to go to is gone, and comes back.

Three real brokers, and a cluster of another one. Each round has a seed of its own, and these take turns
(`tests.crash.destinations`): the topic of half of a backlog is deleted, and made anew while somebody publishes to it;
or processes find another cluster at their address, with batches in flight at the right one. Those who find out are
killed, one after the other. At last all is delivered, read back and judged by record id: nothing missing, nothing
twice, nothing out of order; and the other cluster has got nothing.

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.crash.destinations import KINDS, TOPICS_ARE_MADE, kind_of, play
from tests.crash.judgement import Verdict
from tests.prove.brokers import on_brokers
from tests.prove.rounds import below, chosen, prove_rounds
from tests.support.broker import KafkaCluster

__all__ = ["main", "too_little"]

_BROKERS = 3
_KILLS_PER_ROUND = 2  # who has left the backlog, and one who finds out
_ACCEPTED_PER_ROUND = 1_000  # those with another cluster have the fewest


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove destinations", description="topics and clusters gone")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=40, help="how many rounds (default 40)")
    options = parser.parse_args(arguments)

    def prove(cluster: KafkaCluster) -> int:
        with KafkaCluster(1) as other:

            def round_of(seed: int, _: int, directory: Path, hit: Counter[str]) -> tuple[Verdict, str]:
                verdict = play(cluster, other, directory, seed)
                hit[kind_of(seed)] += 1
                return verdict, kind_of(seed)

            return prove_rounds("destinations", round_of, chosen(options.seed), options.count, size=1, floor=too_little)

    return on_brokers(lambda: KafkaCluster(_BROKERS, TOPICS_ARE_MADE), prove)


def too_little(happened: Counter[str], rounds: int) -> list[str]:
    """What a run had so seldom that it proves nothing, in words. What that is: `tests.prove.rounds.Floor`."""
    floors = {
        **dict.fromkeys(KINDS, rounds // len(KINDS)),
        "kills": rounds * _KILLS_PER_ROUND,
        "accepted": rounds * _ACCEPTED_PER_ROUND,
    }
    return below(happened, floors)
