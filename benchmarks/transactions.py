"""What exactly_once costs: the same records in transactions, and without, on few and on many partitions.

Saturated: a transaction waits for nothing but the next one. That readers of committed records see each record once is
looked at behind each round.
"""

from typing import Any

from benchmarks import kafka, throughput
from benchmarks.child import call
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
PARTITIONS = (6, 50)
GUARANTEES = ("exactly_once", "at_least_once")


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or throughput.RECORDS
    measured: dict[int, dict[str, list[dict[str, Any]]]] = {
        partitions: {guarantee: [] for guarantee in GUARANTEES} for partitions in PARTITIONS
    }
    for partitions, ways in measured.items():
        for number in range(rounds):
            for guarantee in GUARANTEES[:: 1 if number % 2 else -1]:
                ways[guarantee].append(_deliver(setting, guarantee, partitions, records))
                rate = ways[guarantee][-1]["delivered_s"]
                setting.say(f"transactions: {partitions} round {number + 1}/{rounds} {guarantee} {rate:,.0f}/s")
    return Result("transactions", [_table(setting, measured, records)], {"records": records, "rounds": measured})


def _deliver(setting: Setting, guarantee: str, partitions: int, records: int) -> dict[str, Any]:
    with kafka.topic(setting.cluster, "transactions", partitions) as topic, setting.wal_dir() as wal_dir:
        arguments = {"bootstrap_servers": setting.cluster.bootstrap_servers, "topic": topic, "records": records}
        figures = call(guaranteed, wal_dir=wal_dir, guarantee=guarantee, **arguments)
        kafka.verify_committed(setting.cluster, topic, throughput.WARM_UP + records)
        return figures


async def guaranteed(bootstrap_servers: str, topic: str, records: int, wal_dir: str, guarantee: str) -> dict[str, Any]:
    """As `throughput.aiorecover`, in a process of its own."""
    return await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir, guarantee=guarantee)


def _table(setting: Setting, measured: dict[int, dict[str, list[dict[str, Any]]]], records: int) -> Table:
    rows = []
    for partitions, ways in measured.items():
        dear, cheap = (ways[guarantee] for guarantee in GUARANTEES)
        ratios = [{"x": one["delivered_s"] / other["delivered_s"]} for one, other in zip(dear, cheap, strict=True)]
        for guarantee, figures in ways.items():
            rate, cpu = spread(figures, "delivered_s").text(), spread(figures, "cpu_us").text(".2f")
            ratio = f"{spread(ratios, 'x').text('.2f')}x" if guarantee == GUARANTEES[0] else "1x"
            rows.append([f"{partitions} partitions, {guarantee}", rate, ratio, cpu])
    cluster = setting.cluster
    return Table(
        title=f"Exactly once: {records:,} records, {cluster.size} broker(s), replication {min(3, cluster.size)}",
        columns=["", "delivered/s", "against at_least_once", "CPU µs/record"],
        rows=rows,
        notes=["medians of interleaved rounds (least to greatest); ratios: of the pairs of each round"],
    )
