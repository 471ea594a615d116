"""The second core beside the first one, in one run: what the two of them take for the same work.

Goes with the first core. `python -m benchmarks cores --brokers 1`, and 3.
"""

import os
from collections.abc import Callable
from typing import Any

from benchmarks import backlog, group_commit, kafka, latency, load, partitions, throughput, warm
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
RECORDS = 300_000
CORES = ("first", "second")
MANY = 1_000_000  # records over many partitions
BACKLOG_BYTES = 500_000_000
PUBLISHERS = (1, 1000)


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or RECORDS
    measured: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def note(what: str, who: str, figures: dict[str, Any]) -> None:
        measured.setdefault(what, {}).setdefault(who, []).append(figures)
        shown = {name: round(value, 2) for name, value in figures.items() if isinstance(value, int | float)}
        setting.say(f"cores: {what} {who} {shown}")

    def both(what: str, measure: Callable[[], dict[str, Any]]) -> None:
        for core in CORES:
            os.environ[load.CORE] = core
            note(what, core, measure())

    for way in throughput.CONTENDERS.values():
        throughput.deliver(setting, "warm", way, throughput.WARM_UP)
    for _ in range(rounds):
        both("throughput", lambda: throughput.deliver(setting, "cores", throughput.aiorecover, records))
        note("throughput", "aiokafka", throughput.deliver(setting, "cores", throughput.aiokafka, records))
        note("throughput", "confluent", throughput.deliver(setting, "cores", throughput.confluent, records))
        if setting.cluster.size > 1:
            continue
        both("publish, no Kafka, 3,000/s", lambda: _flat(latency._one(setting, latency.idle, records)))
        both("publish, delivering, 100,000/s", lambda: _flat(latency._one(setting, latency.paced, records)))
        for publishers in PUBLISHERS:
            both(f"fsync always, {publishers}", lambda n=publishers: group_commit._one(setting, n))
    if setting.cluster.size == 1:
        _few_rounds(setting, max(1, rounds - 2), both)
    return Result("cores", [_table(what, whose) for what, whose in measured.items()], {"rounds": measured})


def _few_rounds(setting: Setting, rounds: int, both: Callable[..., None]) -> None:
    sizes = (partitions.FEW, partitions.MANY)
    there = {size: size * warm.RECORDS_A_PARTITION for size in sizes}

    def spread_out(topic: str, size: int) -> dict[str, Any]:
        found = partitions._deliver(setting, topic, MANY)
        there[size] += throughput.WARM_UP + MANY
        kafka.verify(setting.cluster, topic, there[size], size)
        return found

    os.environ[load.CORE] = "second"
    with warm.topics(setting, "partitions", sizes) as topics:
        for _ in range(rounds):
            for size in sizes:
                both(f"{size:,} partitions", lambda n=size: spread_out(topics[n], n))
    for _ in range(rounds):
        both("backlog", lambda: backlog._one(setting, BACKLOG_BYTES))


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name in ("p50", "p99", "p99.9"):
        found[name] = figures["publish"][name]
        found[f"{name}_x"] = figures["publish"][name] / figures["empty"][name]
        found[f"{name}_empties"] = figures["publish"][name] / figures["empty"]["p50"]
    return found


def _table(what: str, whose: dict[str, list[dict[str, Any]]]) -> Table:
    names = [name for name, value in next(iter(whose.values()))[0].items() if isinstance(value, int | float)]
    rows = []
    for name in names:
        medians = {who: spread(figures, name) for who, figures in whose.items()}
        second = medians["second"].median
        rows.append(
            [
                name,
                *(
                    f"{found.text(',.2f')}  [{second / found.median if found.median else 0:.2f}x]"
                    for found in medians.values()
                ),
            ]
        )
    return Table(title=what, columns=["", *whose], rows=rows, notes=["in brackets: the second core against it"])
