"""One way of delivering beside another, round by round: what the second costs against the first."""

from collections.abc import Mapping
from typing import Any

from benchmarks import throughput
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 9


def compare(setting: Setting, name: str, title: str, ways: Mapping[str, throughput.Way]) -> Result:
    """``ways``: the dear one first, then the cheap one; each like `throughput.aiorecover`."""
    rounds, records = setting.rounds or ROUNDS, setting.records or throughput.RECORDS
    setting.say(f"{name}: warming up the brokers")
    for way in ways.values():
        throughput.deliver(setting, name, way, throughput.WARM_UP)
    measured: dict[str, list[dict[str, Any]]] = {label: [] for label in ways}
    for number in range(rounds):
        for label in list(ways)[:: 1 if number % 2 else -1]:
            measured[label].append(throughput.deliver(setting, name, ways[label], records))
            setting.say(f"{name}: round {number + 1}/{rounds} {label} {measured[label][-1]['delivered_s']:,.0f}/s")
    return Result(name, [_table(title, measured, records)], {"records": records, "rounds": measured})


def _table(title: str, measured: dict[str, list[dict[str, Any]]], records: int) -> Table:
    rows = [
        [label, spread(figures, "delivered_s").text(), spread(figures, "cpu_us").text(".3f")]
        for label, figures in measured.items()
    ]
    pairs = list(zip(*measured.values(), strict=True))
    costs = [{"cpu": 100 * (one["cpu_us"] / other["cpu_us"] - 1)} for one, other in pairs]
    rates = [{"rate": 100 * (1 - one["delivered_s"] / other["delivered_s"])} for one, other in pairs]
    dear, cheap = measured
    return Table(
        title=f"{title}: {records:,} records",
        columns=["", "delivered/s", "CPU µs/record"],
        rows=rows,
        notes=[
            f"medians of {len(pairs)} interleaved rounds (least to greatest); below: {dear}, against {cheap}",
            f"throughput lost, % (medians of the pairs): {spread(rates, 'rate').text('.1f')}",
            f"CPU gained, % (medians of the pairs): {spread(costs, 'cpu').text('.1f')}",
        ],
    )
