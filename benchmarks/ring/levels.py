"""Side by side with SQLite and Python's durable queues; the package's docstring says what equal durability is.

The aim is ten times the best queue at each level.
"""

from typing import Any

from benchmarks.disk import PROBE_BYTES, sync_us
from benchmarks.figures import spread
from benchmarks.ring import measure
from benchmarks.ring.contenders import AT_ONCE, LEVELS, PUBLISH, RING, Contender, contenders
from benchmarks.setting import Result, Setting, Table

ROUNDS = 3
SECONDS = 1.0  # each: without the clock, and with it
SIZES = (160,)

Measured = dict[str, list[dict[str, Any]]]


def run(setting: Setting) -> Result:
    rounds = setting.rounds or ROUNDS
    tables, data = [], {}
    for level in LEVELS:
        for size in setting.sizes or SIZES:
            known = contenders(level)
            measured: Measured = {name: [] for name in known}
            probes = []
            for number in range(rounds):
                with setting.wal_dir() as directory:
                    probes.append(sync_us(directory))
                for name, figures in measured.items():
                    figures.append(measure.one(setting, level, name, size, setting.seconds or SECONDS))
                    told = f"{figures[-1]['records_s']:,.0f}/s"
                    setting.say(f"ring levels: round {number + 1}/{rounds} {level}, {size} B, {name} {told}")
            tables.append(_table(level, size, known, measured, probes))
            data[f"{level}, {size} B"] = {"rounds": measured, "sync_us": probes}
    return Result("ring_levels", tables, {"seconds": setting.seconds or SECONDS, **data})


def _table(level: str, size: int, known: dict[str, Contender], measured: Measured, probes: list[float]) -> Table:
    rows = [_row(name, known, measured) for name in known]
    return Table(
        title=f"{size:,}-byte records, level {list(LEVELS).index(level) + 1}: {LEVELS[level]}",
        columns=["", "records/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs", "ring against it", "publish against it"],
        rows=rows,
        notes=[
            f"medians over {len(probes)} interleaved rounds (least to greatest); ratios are of median records/s",
            "100 a transaction, 100 at once: latencies are those of all 100 together",
            "CPU: of the process, all threads, for one record; the steadier figure where others use the machine too",
            *_verdicts(known, measured),
            f"the disk alone: {PROBE_BYTES} bytes and fdatasync in {min(probes):,.0f} to {max(probes):,.0f} µs (p50)",
            "every record was read back by another process after kill -9",
        ],
    )


def _row(name: str, known: dict[str, Contender], measured: Measured) -> list[str]:
    figures = measured[name]
    ring, publish = _equals(known[name], known)
    return [
        name,
        spread(figures, "records_s").text(),
        *(f"{spread(figures, quantile, 1e-3).median:,.1f}" for quantile in ("p50", "p99", "p99.9")),
        f"{spread(figures, 'cpu_us').median:,.2f}",
        _ratio(measured, ring, name),
        _ratio(measured, publish, name),
    ]


def _equals(contender: Contender, known: dict[str, Contender]) -> tuple[str, str]:
    """Which of our rows a contender is compared with: who has 100 records at once is met by 100 at once, if need be."""
    if contender.together and PUBLISH + AT_ONCE in known:
        together = next(name for name, one in known.items() if one.together and name.startswith(RING))
        return together, PUBLISH + AT_ONCE
    return RING, PUBLISH


def _ratio(measured: Measured, ours: str, other: str) -> str:
    return f"{_rate(measured, ours) / _rate(measured, other):.1f}x"


def _rate(measured: Measured, name: str) -> float:
    return spread(measured[name], "records_s").median


def _verdicts(known: dict[str, Contender], measured: Measured) -> list[str]:
    """Against the best queue, called record by record and in transactions."""
    told = []
    for together, how in ((False, "record by record"), (True, "100 a transaction")):
        best = _best_queue(known, measured, together=together)
        ring, publish = _equals(known[best], known)
        ratios = f"ring {_ratio(measured, ring, best)}, publish {_ratio(measured, publish, best)}"
        told.append(f"the best queue, {how}: {best}; against it {ratios}")
    if PUBLISH + AT_ONCE in known:
        best = _best_queue(known, measured, together=False)
        ratio = _ratio(measured, PUBLISH + AT_ONCE, best)
        told.append(
            f"100 tasks, each of which waits for its own record; {best} serves them one by one: publish {ratio}"
        )
    return told


def _best_queue(known: dict[str, Contender], measured: Measured, *, together: bool) -> str:
    queues = [name for name, one in known.items() if one.kind == "queue" and one.together is together]
    return max(queues, key=lambda name: _rate(measured, name))
