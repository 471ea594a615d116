"""What the lanes' journal costs: the same records delivered with it, and with nothing written down.

Without it is no way to run: the patch in here sends what no next process could recognise.
"""

from typing import Any
from unittest import mock

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Lane
from benchmarks import kafka, throughput
from benchmarks.child import call
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 9
WITH, WITHOUT = "with the journal", "nothing written down"


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or throughput.RECORDS
    setting.say("journal: warming up the brokers")
    _one(setting, WITH, throughput.WARM_UP)
    measured: dict[str, list[dict[str, Any]]] = {WITH: [], WITHOUT: []}
    for number in range(rounds):
        names = list(measured)
        for name in names if number % 2 else reversed(names):
            measured[name].append(_one(setting, name, records))
            setting.say(f"journal: round {number + 1}/{rounds} {name} {measured[name][-1]['delivered_s']:,.0f}/s")
    return Result("journal", [_table(measured, records)], {"records": records, "rounds": measured})


def _one(setting: Setting, name: str, records: int) -> dict[str, Any]:
    with kafka.topic(setting.cluster, "journal") as topic, setting.wal_dir() as wal_dir:
        function = throughput.aiorecover if name == WITH else without
        servers = setting.cluster.bootstrap_servers
        figures = call(function, bootstrap_servers=servers, topic=topic, records=records, wal_dir=wal_dir)
        kafka.verify(setting.cluster, topic, throughput.WARM_UP + records)
        return figures


def _table(measured: dict[str, list[dict[str, Any]]], records: int) -> Table:
    rows = [
        [name, spread(figures, "delivered_s").text(), spread(figures, "cpu_us").text(".3f")]
        for name, figures in measured.items()
    ]
    pairs = list(zip(measured[WITH], measured[WITHOUT], strict=True))
    costs = [{"cpu": 100 * (one["cpu_us"] / other["cpu_us"] - 1)} for one, other in pairs]
    rates = [{"rate": 100 * (1 - one["delivered_s"] / other["delivered_s"])} for one, other in pairs]
    return Table(
        title=f"Journal of the lanes: {records:,} records",
        columns=["", "delivered/s", "CPU µs/record"],
        rows=rows,
        notes=[
            f"medians of {len(pairs)} interleaved rounds (least to greatest)",
            f"throughput lost, % (medians of the pairs): {spread(rates, 'rate').text('.1f')}",
            f"CPU gained, % (medians of the pairs): {spread(costs, 'cpu').text('.1f')}",
        ],
    )


async def without(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:
    """As `throughput.aiorecover`, in a process of its own."""

    async def enter(self: Journal, lane: Lane, batch: LaneBatch) -> None:
        pass

    with mock.patch.object(Journal, "enter", enter):
        return await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir)
