"""`python -m tests.prove full_disk --count N --seconds S --rate R`: the disk filled in an outage, and freed.

What it looks at: `tests.crash.full_disk`. Refused is only where there is no room, and accepted again two seconds behind
whoever frees the disk, or some behind the brokers' return; memory may grow by 16 MiB, the files have to be small again
some minutes later, and at last every record that was accepted stands there once, in order, and none that was refused.

A run in which hardly a record was refused, by the stranger's doing and by the ring's own, proves nothing, and fails.

Exit status: 0 proved, 1 a promise was broken, a process failed (the directory is kept and named) or too little
happened, 2 cannot run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.crash.full_disk import run_full_disk
from tests.prove.once import Judged, prove_once
from tests.prove.rounds import progress
from tests.support.broker import KafkaCluster
from tests.support.mounts import why_impossible

__all__ = ["main"]

_BROKERS = 3
_BEFORE_S = 30.0  # memory in these seconds is what there is


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    if impossible := why_impossible():
        print(f"no disk can be mounted: {impossible}", file=sys.stderr)
        return 2

    def run(cluster: KafkaCluster, directory: Path, _: int) -> Judged:
        ok, told, wrong = True, [], []
        for number in range(options.count):
            place = directory / str(number)
            place.mkdir()
            full = run_full_disk(cluster, place, seconds=options.seconds, rate=options.rate, before=_BEFORE_S)
            told.append(str(full))
            wrong += [*full.wrong(), *full.too_little()]
            ok = ok and full.ok
            progress(told[-1])
        return Judged(ok, f"times={len(told)}", wrong)

    return prove_once("full_disk", lambda: KafkaCluster(_BROKERS), options.seed, run)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove full_disk", description="a full disk in an outage")
    parser.add_argument("--seed", type=int, help="taken for the others' sake: nothing here is random")
    parser.add_argument("--count", type=int, default=1, help="how many times (default 1)")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the outage is (default 600)")
    parser.add_argument("--rate", type=int, default=5_000, help="records a second (default 5000)")
    return parser.parse_args(arguments)
