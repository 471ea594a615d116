"""`python -m benchmarks [names …]`: run benchmarks one after the other and show what came out."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import backlog, group_commit, kafka, latency, machine, report, restart, throughput
from benchmarks.setting import Result, Setting
from tests.support.broker import BrokerUnavailableError
from tests.support.jars import JarsError

BENCHMARKS: dict[str, Callable[[Setting], Result]] = {
    "throughput": throughput.run,
    "latency": latency.run,
    "group_commit": group_commit.run,
    "backlog": backlog.run,
    "restart": restart.run,
}


def main() -> int:
    options = _parser().parse_args()
    names = options.names or list(BENCHMARKS)
    try:
        with kafka.started(options.bootstrap_servers, options.brokers) as cluster:
            found = machine.facts(cluster.description, options.directory)
            setting = Setting(cluster, options.rounds, options.records, options.gigabytes, options.directory)
            results = [BENCHMARKS[name](setting) for name in names]
    except (BrokerUnavailableError, JarsError) as error:
        sys.stderr.write(f"benchmarks: {error}\n")
        return 1
    report.show(found, results)
    print(f"\nload average at the end: {machine.load_average()}")
    if options.json is not None:
        report.write_json(options.json, found, results)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, side by side.")
    known = ", ".join(BENCHMARKS)
    parser.add_argument("names", nargs="*", metavar="NAME", type=_name, help=f"all of them if none: {known}")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="each benchmark has its own default")
    parser.add_argument("--records", type=_positive, metavar="N", help="for throughput and latency (300,000)")
    parser.add_argument("--gigabytes", type=float, default=0.5, metavar="N", help="of backlog (0.5)")
    parser.add_argument("--brokers", type=_positive, default=1, metavar="N", help="1; from 3 on, replication is 3")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,…", help="a cluster that runs, instead of our own")
    parser.add_argument("--directory", metavar="PATH", help="where the write-ahead logs go (temporary files)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every round there")
    return parser


def _name(text: str) -> str:
    if text not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"no such benchmark: {text}")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: {text}")
    return number


if __name__ == "__main__":
    sys.exit(main())
