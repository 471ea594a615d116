"""`python -m tests.prove power --seed S --count N`: so many power cuts, with fsync="always", by replay.

A publisher writes through the real library, ext4, a loop device and a disk that logs every write and flush
(`tests.power`). Then the power goes, as often as wanted: at any point of that log, with any part of the writes that
came after the last completed flush, torn between sectors. Each such disk is mounted, so that ext4 recovers, and opened
with the library: every record that was acknowledged before that point must be there, unchanged and in order, unless
its delivery had begun; none may be invented, and no epoch used again. In some lives a partition has no leader, so that
records are moved meanwhile: ``moved`` says how many were found where they had been moved to.

A round is a disk and some lives, each of which begins with the disk as a power cut of the life before it has left it;
round r has the seed S + r - 1, so the seed that a failed round printed repeats that round alone. What the machine
decides (the kernel's order of writes) is not repeated: the failing disk is kept.

First come the controls: with fsync="never", and with faults planted into the library, records must be lost.

Exit status: 0 proved, 1 a promise was broken, 2 cannot run here.
"""

import argparse
import logging
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.power.chain import Chain, Sums
from tests.power.possible import folder, why_impossible

__all__ = ["main"]

ROUND: Final = 500  # states of one disk
_LIVES: Final = 4  # of one disk: power cuts that follow each other
_RECORDS: Final = 4000  # of a life, at most: some thousand flushes, two or three seconds
_CONTROL_LIVES: Final = 3  # a planted fault must show within so many lives,
_CONTROL_STATES: Final = 300  # and so many states of each
_CONTROLS: Final = ("never", "flush_nothing", "share_the_running_flush", "keep_the_epoch_in_memory")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove power", description="cut the power and look")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=10_000, help="how many states of the disk (default 10,000)")
    options = parser.parse_args(arguments)
    missing = why_impossible()
    if missing is not None:
        print(f"a disk cannot be logged: {missing}", file=sys.stderr)
        return 2
    seed: int = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    logging.getLogger("aiorecover").setLevel(logging.CRITICAL)
    began = time.monotonic()
    for fault in _CONTROLS:
        if not _control(seed, fault):
            print(f"NOT OK: nothing was lost with {fault}: this proof cannot fail", flush=True)
            return 1
    sums = Sums()
    for number in range(-(-options.count // ROUND)):
        count = min(ROUND, options.count - number * ROUND)
        if not _round(seed + number, count, sums):
            print(f"repeat: python -m tests.prove power --seed {seed + number} --count {count}", flush=True)
            return 1
        rest = options.count - sums.states
        more = f" to go on: --seed {seed + number + 1} --count {rest}" if rest else ""
        print(f"round {number + 1}: seed={seed + number} so far: {sums}{more}", flush=True)
    print(f"proved: seed={seed} {sums} lost=0 seconds={time.monotonic() - began:.0f}", flush=True)
    return 0


def _control(seed: int, fault: str) -> bool:
    """Whether a library that is broken on purpose is found out."""
    for attempt in range(_CONTROL_LIVES):
        with folder("power") as work:
            rng = random.Random(f"control {seed} {fault} {attempt}")
            chain = Chain(Path(work), rng, Sums(), records=_RECORDS, fault=fault)
            for tried, judged in enumerate(chain.life(_CONTROL_STATES), 1):
                if judged.wrong:
                    print(f"{fault}, as it must, in state {tried}: {judged.wrong[0]}", flush=True)
                    return True
    return False


def _round(seed: int, count: int, sums: Sums) -> bool:
    """One disk; False when something is wrong (the disk is kept)."""
    with folder("power") as work:
        chain = Chain(Path(work), random.Random(f"power {seed}"), sums, records=_RECORDS)
        for life in range(_LIVES):
            states = count * (life + 1) // _LIVES - count * life // _LIVES
            for judged in chain.life(states):
                if judged.wrong:
                    kept = Path(tempfile.mkdtemp(prefix=f"aiorecover-prove-power-{seed}-"))
                    chain.keep(judged, kept)
                    told = [f"NOT OK: seed={seed} life={life + 1} point={judged.state.point}", *judged.wrong]
                    print("\n  ".join([*told, f"{chain}", f"kept: {kept}"]), flush=True)
                    return False
    return True
