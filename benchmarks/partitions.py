"""What a thousand partitions cost: the same records under the same keys, in turns over six of them and over a thousand.

Each of the thousand has one of the keys, so all get as many records; six get a sixth of the keys each, about.
"""

from typing import Any

from benchmarks import kafka, load, throughput, warm
from benchmarks.child import call
from benchmarks.figures import ratios, spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
RECORDS = 1_000_000  # a thousand of each of the many: with a few only, how a run ends would decide
FEW, MANY = 6, 1000


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or RECORDS
    measured: dict[int, list[dict[str, Any]]] = {FEW: [], MANY: []}
    with warm.topics(setting, "partitions", measured) as topics:
        for number in range(rounds):
            for partitions in list(measured)[:: 1 if number % 2 else -1]:
                figures = measured[partitions]
                figures.append(_deliver(setting, topics[partitions], records))
                there = partitions * warm.RECORDS_A_PARTITION + len(figures) * (throughput.WARM_UP + records)
                kafka.verify(setting.cluster, topics[partitions], there, partitions)
                rate, cpu = figures[-1]["delivered_s"], figures[-1]["cpu_us"]
                setting.say(f"partitions: round {number + 1}/{rounds} {partitions}: {rate:,.0f}/s {cpu:.2f} µs")
    return Result("partitions", [_table(measured, records)], {"records": records, "rounds": measured})


def _deliver(setting: Setting, topic: str, records: int) -> dict[str, Any]:
    with setting.wal_dir() as wal_dir:
        servers = setting.cluster.bootstrap_servers
        return call(spread_out, bootstrap_servers=servers, topic=topic, records=records, wal_dir=wal_dir)


def _table(measured: dict[int, list[dict[str, Any]]], records: int) -> Table:
    few, many = measured[FEW], measured[MANY]
    rows = [
        [
            f"{partitions:,}",
            spread(rounds, "delivered_s").text(),
            "1x" if rounds is few else f"{ratios(rounds, few, 'delivered_s').text('.2f')}x",
            spread(rounds, "cpu_us").text(".2f"),
            "1x" if rounds is few else f"{ratios(rounds, few, 'cpu_us').text('.2f')}x",
        ]
        for partitions, rounds in measured.items()
    ]
    return Table(
        title=f"Partitions: {records:,} records under {MANY:,} keys, flat out",
        columns=["partitions", "delivered/s", f"against {FEW}", "CPU µs/record", f"against {FEW}"],
        rows=rows,
        notes=[
            f"medians of {len(many)} interleaved rounds (least to greatest); ratios: of the pairs of each round",
            "CPU: of the publishing process, all threads; every record was found in Kafka (end offsets)",
        ],
    )


async def spread_out(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:
    """As `throughput.aiorecover`, in a process of its own; the keys are those of the many, whatever the topic has."""
    return await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir, keys=load.keys_of(MANY))
