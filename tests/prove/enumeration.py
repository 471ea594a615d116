"""`python -m tests.prove enumeration [--from N] [--count N]`: every cut and every flipped bit of small files.

Of a main ring, of its checkpoint and of a retry ring; see `tests.wal.specimen`. Each change is opened with the real
code, and everything is read: never a wrong record, never an error, every loss named. The numbers of the cases mean the
same in every run, so one that was stopped goes on with ``--from``, at the number it printed last.

Exit status: 0 proved, 1 a promise was broken (the first cases are named).
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence

from tests.wal.specimen import case, cases, why_wrong

__all__ = ["main"]

STEP = 20_000  # cases between two words: some ten seconds
SHOWN = 20  # broken ones that are named, before it gives up


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove enumeration", description="every cut, every bit")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N", help="the first case (default 0)")
    parser.add_argument("--count", type=int, help="how many (default: all that follow)")
    parser.add_argument("--seed", help="for the common command line; there is no chance in this proof")
    options = parser.parse_args(arguments)
    last = cases() if options.count is None else min(cases(), options.first + options.count)
    logging.disable(logging.CRITICAL)  # every loss is logged
    return _prove(options.first, last)


def _prove(first: int, last: int) -> int:
    began, wrong = time.process_time(), 0
    for number in range(first, last):
        if number % STEP == 0:
            print(f"at {number} of {last}, {time.process_time() - began:.0f} s of CPU", flush=True)
        target, within = case(number)
        why = _why(number)
        if why is not None:
            wrong += 1
            print(f"NOT OK: case {number}: {target.named(within)}: {why:.300}", flush=True)
            print(f"repeat: python -m tests.prove enumeration --from {number} --count 1", file=sys.stderr)
        if wrong >= SHOWN:
            break
    else:
        seconds, verdict = time.process_time() - began, "NOT OK" if wrong else "proved"
        print(f"{verdict}: cases {first} to {last - 1}, wrong={wrong} cpu_seconds={seconds:.0f}")
    return 1 if wrong else 0


def _why(number: int) -> str | None:
    try:
        return why_wrong(*case(number))
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody may see it
        return f"{type(error).__name__}: {error}"
