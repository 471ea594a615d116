"""`python -m tests.prove protocols [--only NAME …] [--depth 1|2] [--count N]`: the protocols of the log, exhaustively.

Every interleaving of small programs, a crash at every step, every subset of the sectors that were not flushed, and
where a scenario's name says ``failing``, each flush in turn one that fails; nothing is left to chance, so there is no
seed. Depth 1 is what the tests run; depth 2 has more in traffic, and second crashes.
`--count` ends after so many states have been judged, and says that it was not all.

Exit status: 0 proved, 1 a promise was broken, 2 not everything was enumerated.
"""

import argparse
import logging
import time
from collections.abc import Sequence

from tests.protocols import batches, failed_flushes
from tests.protocols.explore import Explorer, ReachedError
from tests.protocols.oracle import ViolationError
from tests.protocols.scenarios import DEEP, SMALL


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove protocols", description="protocols, exhaustively")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these scenarios")
    parser.add_argument("--depth", type=int, choices=(1, 2), default=2, help="2 (default): second crashes, traffic")
    parser.add_argument("--count", type=int, help="end after so many states (default: enumerate all)")
    options = parser.parse_args(arguments)
    logging.getLogger("aiorecover").setLevel(logging.CRITICAL)  # it reports what the power cuts take
    scenarios = [*SMALL, *batches.SMALL, *failed_flushes.SMALL]
    if options.depth == 2:
        scenarios += [*DEEP, *batches.DEEP, *failed_flushes.DEEP]
    chosen = [scenario for scenario in scenarios if not options.only or scenario.name in options.only]
    if not chosen:
        parser.error(f"no such scenario: choose from {[scenario.name for scenario in scenarios]}")
    status, left = 0, options.count
    for scenario in chosen:
        explorer, begin, ending = Explorer(scenario, most=left), time.process_time(), "green"
        try:
            explorer.run()
        except ViolationError as error:
            status, ending = 1, f"RED: {error}"
        except ReachedError:
            status, ending = status or 2, "not all: the count was reached"
        count = explorer.count
        told = f"ways={count.ways} moments={count.moments} states={count.states} openings={count.openings}"
        print(f"{scenario.name}: {told} cpu_s={time.process_time() - begin:.1f} {ending}", flush=True)
        left = None if left is None else left - count.states
    return status
