"""The cost of many partitions: the same records under the same keys over 6, 100 and 1,000 of them, in turns.

Each of the thousand has one of the keys, and of the hundred ten, so all get as many records; six get a sixth of the
keys each, about. confluent-kafka's `produce` does the same beside it.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks import kafka, load, throughput, warm
from benchmarks.child import call
from benchmarks.figures import ratios, spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
RECORDS = 300_000  # three hundred of each of the many: with a few only, how a run ends would decide
FEW, SOME, MANY = 6, 100, 1000
NUMBERS = (FEW, SOME, MANY)

Measured = dict[str, dict[int, list[dict[str, Any]]]]
"""The rounds of each contender over each number of partitions."""


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or RECORDS
    measured: Measured = {contender: {partitions: [] for partitions in NUMBERS} for contender in CONTENDERS}
    there = {partitions: partitions * warm.RECORDS_A_PARTITION for partitions in NUMBERS}
    with warm.topics(setting, "partitions", NUMBERS) as topics:
        for number in range(rounds):
            for partitions in NUMBERS[:: 1 if number % 2 else -1]:
                for contender, way in CONTENDERS.items():
                    figures = _deliver(setting, way, topics[partitions], records)
                    measured[contender][partitions].append(figures)
                    there[partitions] += throughput.WARM_UP + records
                    kafka.verify(setting.cluster, topics[partitions], there[partitions], partitions)
                    said = f"{contender} over {partitions}: {figures['delivered_s']:,.0f}/s {figures['cpu_us']:.2f} µs"
                    setting.say(f"partitions: round {number + 1}/{rounds} {said}")
    return Result("partitions", [_table(measured, records)], {"records": records, "rounds": measured})


def _deliver(setting: Setting, way: throughput.Way, topic: str, records: int) -> dict[str, Any]:
    with setting.wal_dir() as wal_dir:
        servers = setting.cluster.bootstrap_servers
        return call(way, bootstrap_servers=servers, topic=topic, records=records, wal_dir=wal_dir)


def _table(measured: Measured, records: int) -> Table:
    rows = [_row(contender, partitions, measured[contender]) for partitions in NUMBERS for contender in measured]
    number = len(next(iter(measured.values()))[FEW])
    return Table(
        title=f"Partitions: {records:,} records under {MANY:,} keys, flat out",
        columns=["partitions", "delivered/s", f"against {FEW}", "CPU µs/record", f"against {FEW}"],
        rows=rows,
        notes=[
            f"medians of {number} interleaved rounds (least to greatest); ratios: of the pairs of each round",
            "CPU: of the publishing process, all threads; every record was found in Kafka (end offsets)",
        ],
    )


def _row(contender: str, partitions: int, of_numbers: dict[int, list[dict[str, Any]]]) -> Sequence[str]:
    few, rounds = of_numbers[FEW], of_numbers[partitions]
    row = [f"{partitions:,}  {contender}"]
    for name, form in (("delivered_s", ",.0f"), ("cpu_us", ".2f")):
        against = "1x" if partitions == FEW else f"{ratios(rounds, few, name).text('.2f')}x"
        row += [spread(rounds, name).text(form), against]
    return row


# -- the contenders, each in its own process; the keys are those of the many, whatever the topic has -------------------


async def spread_out(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:
    return await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir, keys=load.keys_of(MANY))


def spread_out_confluent(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:
    return throughput.confluent(bootstrap_servers, topic, records, wal_dir, keys=load.keys_of(MANY))


CONTENDERS: dict[str, throughput.Way] = {
    "aiorecover publish": spread_out,
    "confluent-kafka produce": spread_out_confluent,
}
