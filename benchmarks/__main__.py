"""`python -m benchmarks [names …]`: run benchmarks one after the other and show what came out."""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import (
    acknowledgement,
    backlog,
    group_commit,
    kafka,
    latency,
    machine,
    neighbours,
    partitions,
    plots,
    report,
    restart,
    streams,
    throughput,
    transactions,
)
from benchmarks.ring import append as ring_append
from benchmarks.ring import commit as ring_commit
from benchmarks.ring import memory as ring_memory
from benchmarks.ring import opening as ring_opening
from benchmarks.setting import DiskTooSmallError, Result, Setting
from benchmarks.spark import audit as spark_audit
from benchmarks.spark import land as spark_land
from benchmarks.spark import source as spark_source
from tests.support.broker import BrokerUnavailableError
from tests.support.jars import JarsError

LEAST_BACKLOG_GB = 0.02  # more than some segments: with less, reading is over before the loop can have been late

WITH_KAFKA: dict[str, Callable[[Setting], Result]] = {
    "throughput": throughput.run,
    "latency": latency.run,
    "acknowledgement": acknowledgement.run,
    "group_commit": group_commit.run,
    "backlog": backlog.run,
    "restart": restart.run,
    "partitions": partitions.run,
    "streams": streams.run,
    "transactions": transactions.run,
}
WITHOUT_KAFKA: dict[str, Callable[[Setting], Result]] = {
    "ring_append": ring_append.run,
    "ring_commit": ring_commit.run,
    "ring_opening": ring_opening.run,
    "ring_memory": ring_memory.run,
}
SPARK_WITH_KAFKA: dict[str, Callable[[Setting], Result]] = {
    "spark_land": spark_land.run,
}
SPARK_WITHOUT_KAFKA: dict[str, Callable[[Setting], Result]] = {
    "spark_audit": spark_audit.run,
    "spark_source": spark_source.run,
}
WITH_BROKERS_OF_ITS_OWN: dict[str, Callable[[Setting], Result]] = {"neighbours": neighbours.run}
BENCHMARKS = {**WITH_KAFKA, **WITH_BROKERS_OF_ITS_OWN, **WITHOUT_KAFKA, **SPARK_WITH_KAFKA, **SPARK_WITHOUT_KAFKA}
GROUPS = {
    "short": ["throughput", "latency", "acknowledgement", "partitions", "backlog"],
    "all": list(BENCHMARKS),
    "kafka": [*WITH_KAFKA, *WITH_BROKERS_OF_ITS_OWN],
    "ring": list(WITHOUT_KAFKA),
    "spark": [*SPARK_WITH_KAFKA, *SPARK_WITHOUT_KAFKA],
}


def main() -> int:
    options = _parser().parse_args()
    names = list(dict.fromkeys(name for group in options.names or ["short"] for name in GROUPS.get(group, [group])))
    try:
        with ExitStack() as stack:
            cluster = None
            if any(name in WITH_KAFKA or name in SPARK_WITH_KAFKA for name in names):
                cluster = stack.enter_context(kafka.started(options.bootstrap_servers, options.brokers))
            found = machine.facts(cluster.description if cluster else "no Kafka", options.directory)
            given = (
                options.rounds,
                options.records,
                options.gigabytes,
                options.directory,
                options.seconds,
            )
            setting = Setting(cluster, *given)
            results = [BENCHMARKS[name](setting) for name in names]
    except (BrokerUnavailableError, JarsError, DiskTooSmallError) as error:
        sys.stderr.write(f"benchmarks: {error}\n")
        return 1
    report.show(found, results)
    print(f"\nload average at the end: {machine.load_average()}")
    content = report.content(found, results)
    if options.json is not None:
        report.write_json(options.json, content)
    if options.plots is not None:
        for path in plots.draw(content, options.plots):
            print(path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, side by side.")
    known = ", ".join([*GROUPS, *BENCHMARKS])
    parser.add_argument("names", nargs="*", metavar="NAME", type=_name, help=f"short if none: {known}")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="each benchmark has its own default")
    parser.add_argument("--records", type=_positive, metavar="N", help="each benchmark has its own default")
    parser.add_argument("--seconds", type=float, metavar="N", help="of each measurement, each has its own default")
    parser.add_argument("--gigabytes", type=_gigabytes, metavar="N", help="of backlog, each has its own default")
    parser.add_argument("--brokers", type=_positive, default=1, metavar="N", help="1; from 3 on, replication is 3")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,…", help="a cluster that runs, instead of our own")
    parser.add_argument("--directory", metavar="PATH", help="where the write-ahead logs go (temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every round there")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="draw pictures of the figures there")
    return parser


def _name(text: str) -> str:
    if text not in BENCHMARKS and text not in GROUPS:
        raise argparse.ArgumentTypeError(f"no such benchmark: {text}")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: {text}")
    return number


def _gigabytes(text: str) -> float:
    gigabytes = float(text)
    if not gigabytes >= LEAST_BACKLOG_GB:
        raise argparse.ArgumentTypeError(f"must be at least {LEAST_BACKLOG_GB}: {text}")
    return gigabytes


if __name__ == "__main__":
    sys.exit(main())
