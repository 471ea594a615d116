"""The cost of exactly_once: the same records in transactions, and without, on few and on many partitions.

Saturated: a transaction waits for nothing but the next one. That readers of committed records see each record once is
looked at behind each round.

Idle: one record at a time, with a pause before each, and when a reader of committed records has it.
"""

import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks import kafka, load, throughput
from benchmarks.child import call
from benchmarks.figures import quantiles, ratios, spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
PARTITIONS = (6, 50)
GUARANTEES = ("exactly_once", "at_least_once")
IDLE_RECORDS = 50
IDLE_S = 0.3  # before each record: longer than an idle transaction takes, so that it finds none open


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
    idle: dict[str, list[dict[str, int]]] = {guarantee: [] for guarantee in GUARANTEES}
    for number in range(rounds):
        for guarantee in GUARANTEES[:: 1 if number % 2 else -1]:
            idle[guarantee].append(_wait(setting, guarantee))
            setting.say(f"transactions: idle round {number + 1}/{rounds} {guarantee} {idle[guarantee][-1]} µs")
    tables = [_table(setting, measured, records), _idle_table(idle)]
    return Result("transactions", tables, {"records": records, "rounds": measured, "idle": idle})


def _deliver(setting: Setting, guarantee: str, partitions: int, records: int) -> dict[str, Any]:
    with kafka.topic(setting.cluster, "transactions", partitions) as topic, setting.wal_dir() as wal_dir:
        arguments = {"bootstrap_servers": setting.cluster.bootstrap_servers, "topic": topic, "records": records}
        figures = call(guaranteed, wal_dir=wal_dir, guarantee=guarantee, **arguments)
        kafka.verify_committed(setting.cluster, topic, throughput.WARM_UP + records)
        return figures


async def guaranteed(bootstrap_servers: str, topic: str, records: int, wal_dir: str, guarantee: str) -> dict[str, Any]:
    """As `throughput.aiorecover`, in a process of its own."""
    return await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir, guarantee=guarantee)


def _wait(setting: Setting, guarantee: str) -> dict[str, int]:
    with kafka.topic(setting.cluster, "transactions") as topic, setting.wal_dir() as wal_dir:
        servers = setting.cluster.bootstrap_servers
        figures: dict[str, int] = call(
            seen, bootstrap_servers=servers, topic=topic, wal_dir=wal_dir, guarantee=guarantee
        )
        return figures


async def seen(bootstrap_servers: str, topic: str, wal_dir: str, guarantee: str) -> dict[str, int]:
    """Microseconds from before a publish until a reader of committed records has the record."""
    reader = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with reader, load.producer(wal_dir, bootstrap_servers, guarantee=guarantee) as producer:
        reader.assign([TopicPartition(topic, 0)])
        waited = []
        for number in range(1 + IDLE_RECORDS):
            await asyncio.sleep(IDLE_S)
            began = time.perf_counter_ns()
            await producer.publish(topic, b"%d" % number, partition=0)
            found = await reader.getone()
            waited.append((time.perf_counter_ns() - began) // 1000)
            assert found.value == b"%d" % number, f"another record was read: {number=} {found.value=}"
        return quantiles(waited[1:])  # the first one waits for the session


def _idle_table(idle: dict[str, list[dict[str, int]]]) -> Table:
    names = ("p50", "p99", "max")
    return Table(
        title="One idle record until it is read, isolation_level=read_committed, in ms",
        columns=["", *names],
        rows=[
            [guarantee, *(spread(rounds, name, 1e-3).text(".1f") for name in names)]
            for guarantee, rounds in idle.items()
        ],
        notes=[f"{IDLE_RECORDS} records a round, {IDLE_S * 1000:.0f} ms apart; medians of interleaved rounds"],
    )


def _table(setting: Setting, measured: dict[int, dict[str, list[dict[str, Any]]]], records: int) -> Table:
    rows = []
    for partitions, ways in measured.items():
        dear, cheap = (ways[guarantee] for guarantee in GUARANTEES)
        for guarantee, figures in ways.items():
            rate, cpu = spread(figures, "delivered_s").text(), spread(figures, "cpu_us").text(".2f")
            ratio = f"{ratios(dear, cheap, 'delivered_s').text('.2f')}x" if guarantee == GUARANTEES[0] else "1x"
            rows.append([f"{partitions} partitions, {guarantee}", rate, ratio, cpu])
    cluster = setting.cluster
    return Table(
        title=f"Exactly once: {records:,} records, {cluster.size} broker(s), replication {min(3, cluster.size)}",
        columns=["", "delivered/s", "against at_least_once", "CPU µs/record"],
        rows=rows,
        notes=["medians of interleaved rounds (least to greatest); ratios: of the pairs of each round"],
    )
