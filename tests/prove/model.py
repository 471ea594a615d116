"""`python -m tests.prove model --seed S --count N [--resume FILE]`: steps of the log beside a dictionary model.

Walks of `tests.wal.model.Machine`, one after the other, until N steps were taken. Of seven, one is of lives that end
before a power cut is dealt with (`tests.wal.half_done`), two are of all steps, with those of the dead ring and of what
is in flight, in one pages that a failed flush has called clean leave memory besides (`tests.wal.evict_steps`), and in
one all goes in transactions; the others keep to the main and the retry ring. A walk depends on the seed and its number
alone, so `--seed S --walk NUMBER`, which a failed run prints, repeats it; what it found is made small first.

With `--resume FILE` it goes on where an earlier run with that file stopped, with that run's seed; N counts from there.

Exit status: 0 proved, 1 a promise was broken.
"""

import argparse
import json
import logging
import secrets
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.wal.half_done import half_done
from tests.wal.walk import Taken, run, smallest, walk, walk_all, walk_evicting, walk_in_transactions

__all__ = ["main"]

KINDS = (half_done, walk_all, walk, walk_all, walk, walk_in_transactions, walk_evicting)  # by turns
_PACE_S = 10.0  # between two lines of progress, each with the state stored


@dataclass
class Progress:
    """What was taken so far, over all runs with one file."""

    seed: int
    walks: int = 0
    steps: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    logging.disable(logging.CRITICAL)  # every hole that a power cut leaves is logged
    if options.walk is not None:
        return _one(options.seed or 0, options.walk)
    progress = _resumed(options.resume, options.seed)
    return _prove(progress, options.count, options.resume)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove model", description="the log beside a dictionary")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=1_000_000, help="how many steps (default 1000000)")
    parser.add_argument("--resume", type=Path, help="go on where the run with this file stopped, and keep it there")
    parser.add_argument("--walk", type=int, help="only this walk of the seed")
    return parser.parse_args(arguments)


def _resumed(path: Path | None, seed: int | None) -> Progress:
    if path is not None and path.exists():
        found = Progress(**json.loads(path.read_text(encoding="utf-8")))
        if seed in {None, found.seed}:
            return found
        print(f"{path} is of another seed ({found.seed}): it begins anew", file=sys.stderr)
    return Progress(secrets.randbelow(1_000_000) if seed is None else seed)


def _prove(progress: Progress, count: int, path: Path | None) -> int:
    began = told = time.monotonic()
    before = progress.steps
    print(f"seed={progress.seed} steps so far={before}", flush=True)
    while progress.steps - before < count:
        taken, error = _walk(progress.seed, progress.walks)
        if error is not None:
            _tell(progress.seed, progress.walks)
            return 1
        progress.walks += 1
        progress.steps += len(taken)
        if time.monotonic() - told > _PACE_S:
            told = time.monotonic()
            print(f"  steps={progress.steps} walks={progress.walks} seconds={told - began:.0f}", flush=True)
            _store(progress, path)
    _store(progress, path)
    ran = progress.steps - before
    print(f"proved: seed={progress.seed} ran={ran} steps={progress.steps} seconds={time.monotonic() - began:.0f}")
    return 0


def _store(progress: Progress, path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(progress)), encoding="utf-8")


def _walk(seed: int, number: int) -> tuple[list[Taken], Exception | None]:
    return KINDS[number % len(KINDS)](f"{seed}/{number}")


def _one(seed: int, number: int) -> int:
    taken, error = _walk(seed, number)
    if error is not None:
        _tell(seed, number)
        return 1
    print(f"proved: seed={seed} walk={number} steps={len(taken)}")
    return 0


def _tell(seed: int, number: int) -> None:
    """What is broken, by the fewest steps that show it."""
    taken, error = _walk(seed, number)
    small = smallest(taken)
    traceback.print_exception(run(small) or error)
    print("NOT OK:")
    for name, values in small:
        print(f"    ({name!r}, {values!r}),")
    print(f"repeat: python -m tests.prove model --seed {seed} --walk {number}", flush=True)
