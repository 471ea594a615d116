"""``python -m tests.model --seed S --count N``: walk N steps; print the shortest trace of what is found, and exit 1.

``--delivery``: with the package's own delivery in place of the model's.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from tests.model import delivering
from tests.model.walk import Outcome, Plan, shortest, small, walk

PROGRESS_S = 20.0
PLANS = (
    Plan(),
    Plan(kinds="kp"),
    Plan(operations=8),
    Plan(operations=45, lives=4),
    Plan(kinds="kp", big=0.3),
    Plan(theme=0.0),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Walk as many steps as asked for; 0: nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first walk")
    parser.add_argument("--count", type=int, default=200_000, help="steps")
    parser.add_argument("--delivery", action="store_true", help="with the package's own delivery")
    options = parser.parse_args(arguments)
    if options.delivery:
        return _deliver(options.seed, options.count)
    steps, walks = 0, 0
    began = said = time.monotonic()
    with small():
        while steps < options.count:
            seed = options.seed + walks
            plan = PLANS[seed % len(PLANS)]
            found = walk(seed, plan)
            steps, walks = steps + found.steps, walks + 1
            if found.error:
                _report(shortest(found, plan))
                print(f"{steps} steps, {walks} walks; found at --seed {seed}")
                return 1
            if time.monotonic() - said >= PROGRESS_S:
                said = time.monotonic()
                print(f"{steps} steps, {walks} walks, {steps / (said - began):.0f} steps/s", flush=True)
    took = time.monotonic() - began
    print(f"{steps} steps, {walks} walks, nothing found, {took:.0f} s, {steps / took:.0f} steps/s")
    return 0


def _deliver(seed: int, count: int) -> int:
    """Walk with the package's own delivery."""
    steps, walks, began = 0, 0, time.monotonic()
    with delivering.modelled():
        while steps < count:
            found = delivering.walk(seed + walks)
            if found.error:
                _report(delivering.walk(seed + walks, tracing=True))
                print(f"{steps} steps, {walks} walks; found at --seed {seed + walks}")
                return 1
            steps, walks = steps + found.steps, walks + 1
    print(f"{steps} steps, {walks} walks with the real delivery, nothing found, {time.monotonic() - began:.0f} s")
    return 0


def _report(found: Outcome) -> None:
    print(f"{found.error}\nseed {found.seed}, {found.steps} steps, {found.plan}")
    for line in found.trace:
        print("   ", line)


if __name__ == "__main__":
    sys.exit(main())
