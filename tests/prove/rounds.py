"""Rounds of kills: what the proofs of `kill -9` have in common.

A run consists of rounds of 25 cycles, or as many as a proof says, each with a directory, topics and a seed of its own:
round r has the seed S + r - 1, so the number that a failed round printed, and `--count 25`, repeat that round alone.
What the seed decides is repeated (loads, options, moments of the kills and of the faults); what the machine decides is
not, so a fault that was found may take some repetitions.
"""

import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.crash.judgement import Verdict
from tests.crash.lives import ChildFailedError

__all__ = ["ROUND", "Floor", "Play", "below", "chosen", "progress", "prove_rounds"]

ROUND = 25  # cycles: half a million records, which the judgement holds in memory

Play = Callable[[int, int, Path, Counter[str]], tuple[Verdict, str]]
"""(seed, cycles, directory, faults) of one round: kills and judgement, and what else is to be told of it; the faults
that there were are counted, and what else a floor asks for."""

Floor = Callable[[Counter[str], int], list[str]]
"""(faults and `HAPPENED`, cycles) of a run: what there was too little of to prove anything, in words."""

HAPPENED = ("accepted", "kills", "recovered", "resumed", "crashed")
"""What a verdict counts and a floor may ask for."""


def chosen(seed: int | None) -> int:
    """The seed that was asked for, or a random one."""
    return secrets.randbelow(1_000_000) if seed is None else seed


def progress(line: str) -> None:
    """One line of a round."""
    print(f"  {line}", flush=True)


def below(happened: Counter[str], floors: Mapping[str, int]) -> list[str]:
    """What there was less of than it takes, in words."""
    return [f"{what}={happened[what]} expected>={floor}" for what, floor in floors.items() if happened[what] < floor]


def prove_rounds(
    name: str,
    play: Play,
    seed: int,
    cycles: int,
    *,
    size: int = ROUND,
    flags: str = "",
    floor: Floor = lambda *_: [],
) -> int:
    """Go through the rounds; the exit status.

    ``size``: cycles of one round, of which the judgement holds all records in memory. ``flags``: what repeats one,
    beside the seed and the count.
    """
    began = time.monotonic()
    verdicts: list[Verdict] = []
    faults: Counter[str] = Counter()
    rounds = -(-cycles // size)
    for number in range(rounds):
        count = min(size, cycles - number * size)
        print(f"round {number + 1}/{rounds}: seed={seed + number} cycles={count}", flush=True)
        verdict = _round(name, play, seed + number, count, faults)
        if verdict is None or not verdict.ok:
            print(f"repeat: python -m tests.prove {name} --seed {seed + number} --count {count}{flags}", flush=True)
            return 1
        verdicts.append(verdict)
    happened = faults + Counter({what: sum(getattr(verdict, what) for verdict in verdicts) for what in HAPPENED})
    if too_little := floor(happened, cycles):
        print(f"NOT OK: nothing broke, and too little happened: {', '.join(too_little)}", flush=True)
        return 1
    print(_summary(verdicts, faults, seed, time.monotonic() - began), flush=True)
    return 0


def _round(name: str, play: Play, seed: int, count: int, faults: Counter[str]) -> Verdict | None:
    """One directory, its kills and its judgement; None when a process did not do what it was told."""
    directory = Path(tempfile.mkdtemp(prefix=f"aiorecover-{name}-{seed}-"))
    try:
        verdict, fate = play(seed, count, directory, faults)
    except ChildFailedError as error:
        print(f"NOT OK: {error}\nkept: {directory}", flush=True)
        return None
    print(f"{verdict} {fate}".rstrip(), flush=True)
    if verdict.ok:
        shutil.rmtree(directory)
    else:
        print(f"kept: {directory}", flush=True)
    return verdict


def _summary(verdicts: Sequence[Verdict], faults: Counter[str], seed: int, seconds: float) -> str:
    def total(name: str) -> int:
        return sum(getattr(verdict, name) for verdict in verdicts)

    counts = ("lives", "kills", "recovered", "resumed", "accepted", "delivered", "repeated", "confirmed", "untold")
    done = [f"{kind.replace(' ', '_')}={times}" for kind, times in sorted(faults.items())]
    return " ".join(
        [
            f"proved: seed={seed} missing=0 out_of_order=0 altered=0",
            *(f"{name}={total(name)}" for name in counts),
            f"crash_points={total('crashed')}/{total('crash_points')}",
            *(["besides:", *done] if done else []),
            f"seconds={seconds:.0f}",
        ]
    )
