"""`Ring.append` at four sizes: alone, with fdatasync running beside it, and while everything is read and settled."""

from typing import Any

from benchmarks.figures import spread
from benchmarks.ring import measure
from benchmarks.ring.contenders import APPEND, contenders
from benchmarks.ring.payloads import SIZES
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
SECONDS = 1.0


def run(setting: Setting) -> Result:
    rounds = setting.rounds or ROUNDS
    keys = [(size, name) for size in setting.sizes or SIZES for name in contenders(APPEND)]
    measured: dict[tuple[int, str], list[dict[str, Any]]] = {key: [] for key in keys}
    for number in range(rounds):
        for (size, name), figures in measured.items():
            figures.append(measure.one(setting, APPEND, name, size, setting.seconds or SECONDS))
            setting.say(f"ring append: round {number + 1}/{rounds} {size} B {name} {figures[-1]['records_s']:,.0f}/s")
    data = {f"{size} B, {name}": figures for (size, name), figures in measured.items()}
    return Result("ring_append", [_table(measured)], {"seconds": setting.seconds or SECONDS, "rounds": data})


def _table(measured: dict[tuple[int, str], list[dict[str, Any]]]) -> Table:
    rows = [
        [
            f"{size:,} B, {name}",
            spread(figures, "records_s").text(),
            spread(figures, "records_s", size / 1e6).text(),
            *(f"{spread(figures, quantile, 1e-3).median:,.2f}" for quantile in ("p50", "p99", "p99.9")),
            f"{spread(figures, 'max', 1e-6).median:.1f}",
        ]
        for (size, name), figures in measured.items()
    ]
    clocks = [one["clock_ns"] for figures in measured.values() for one in figures]
    return Table(
        title="Ring.append, by size of the payload",
        columns=["", "records/s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "max ms"],
        rows=rows,
        notes=[
            f"medians over {len(next(iter(measured.values())))} interleaved rounds (least to greatest)",
            f"latencies include one reading of the clock, {min(clocks)} to {max(clocks)} ns (p50); records/s do not",
            "records/s are of all that goes on: with reading and settling they hold that too, the latencies do not",
            "every record was read back by another process after kill -9",
        ],
    )
