"""`python -m tests.prove audit --seed S --count ROWS --faults F --rounds R`: what the audit finds, and at what cost.

What it looks at: `tests.spark.planted_rows`. Each record that is missing, repeated or out of order has to be named, and
no other one, and to be counted at its producer and epoch. A tenth of the rows is audited by turns with all of them: a
row of many must not cost more than 1.3 times what it costs among few, neither in time nor in bytes that are shuffled.

Exit status: 0 proved, 1 something was not found, or a row costs too much (the tables are kept), 2 cannot run.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame

from tests.prove.rounds import chosen, progress
from tests.spark.planted_rows import Cost, Planted, measure, plant, write_table
from tests.spark.session import start_spark
from tests.support.jars import JarsError

__all__ = ["main", "too_dear"]

_DEARER = 1.3  # a row of all, measured in rows of a tenth of them
_TENTH = 10
_MEMORY = "4g"  # so that the larger ones need not be sorted on disk, and the machine keeps its page cache


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove it, or say what is broken."""
    options = _options(arguments)
    began, seed = time.monotonic(), chosen(options.seed)
    directory = Path(tempfile.mkdtemp(prefix="aiorecover-audit-"))
    try:
        spark = start_spark(directory, "aiorecover audit", settings={"spark.driver.memory": _MEMORY})
    except JarsError as error:
        print(f"jars: {error}", file=sys.stderr)
        return 2
    tables = []
    for share in (_TENTH, 1):
        # As many faults to a row in both: what names them costs by the buckets that have one.
        rows = options.count // share
        planted = plant(seed, rows, options.faults // share)
        tables.append((planted, write_table(spark, planted, directory / f"rows={rows}")))
    measure(tables[0][1], tables[0][0])  # Java warms up
    costs = [[_cost(*table) for table in tables] for _ in range(options.rounds)]
    spark.stop()
    wrong = [one for pair in costs for cost in pair for one in cost.wrong] + too_dear(costs)
    few, many = ([pair[which] for pair in costs] for which in (0, 1))
    print(
        f"{'NOT OK' if wrong else 'proved'}: seed={seed} rows={options.count} missing={len(planted.missing)} "
        f"repeated={len(planted.repeated)} out_of_order={len(planted.out_of_order)} wrong={len(wrong)} "
        f"us_per_row={_median(few, _time):.3f}/{_median(many, _time):.3f} "
        f"shuffled_per_row={_median(few, _shuffled):.3f}/{_median(many, _shuffled):.3f} "
        f"seconds={time.monotonic() - began:.0f}"
    )
    if not wrong:
        shutil.rmtree(directory)
        return 0
    print("\n".join([*wrong[:20], f"kept: {directory}"]), flush=True)
    return 1


def too_dear(costs: Sequence[Sequence[Cost]]) -> list[str]:
    """Name the costs that grow faster than the rows, by the medians of the rounds."""
    ratios = {
        name: statistics.median(of(many) / of(few) for few, many in costs)
        for name, of in (("time", _time), ("bytes shuffled", _shuffled))
    }
    return [f"a row of many costs {ratio:.2f} times the {name}" for name, ratio in ratios.items() if ratio > _DEARER]


def _time(cost: Cost) -> float:
    return cost.us_per_row


def _shuffled(cost: Cost) -> float:
    return cost.shuffled_per_row


def _median(costs: Sequence[Cost], of: Callable[[Cost], float]) -> float:
    return statistics.median(map(of, costs))


def _cost(planted: Planted, table: DataFrame) -> Cost:
    cost = measure(table, planted)
    progress(
        f"rows={cost.rows} seconds={cost.seconds:.1f} us_per_row={cost.us_per_row:.3f} "
        f"shuffled={cost.shuffled} wrong={len(cost.wrong)}"
    )
    return cost


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove audit", description="what the audit finds, and pays")
    parser.add_argument("--seed", type=int, help="repeat a run; without it a random one is chosen and printed")
    parser.add_argument("--count", type=int, default=40_000_000, help="how many rows (default 40000000)")
    parser.add_argument("--faults", type=int, default=1_000, help="of each kind, at most (default 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is audited (default 3)")
    return parser.parse_args(arguments)
