"""What ``aiorecover audit`` does and shows: totals, the epochs and the ranges that lack most, few lines of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from aiorecover import spark as downstream
from aiorecover.cli.pairs import pairs
from aiorecover.errors import ConfigError
from aiorecover.spark.session import clear_errors, start_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

__all__ = ["Options", "run", "show"]

_COUNTS = {
    "expected": "expected",
    "found": "found",
    "missing": "missing",
    "repeated": "repeated",
    "out_of_order": "disorder",
}
_RECORD_ID = re.compile(r"([a-z2-7]{13})/(\d{1,7})/(\d{1,13})")


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    bootstrap_servers: str | None
    topics: Sequence[str]
    table: str | None
    last: Sequence[str]
    from_first: bool
    limit: int
    master: str | None
    settings: Sequence[str]
    kafka_options: Sequence[str]


def run(options: Options) -> dict[str, Any]:
    """The audit's totals, and up to ``limit`` of its epochs and of its missing ranges, those that lack most first.

    Raises:
        ConfigError: an option, the installation, Kafka or the table needs mending; the message says which.

    """
    known_last = _known_last(options.last)
    if (options.table is None) == (options.bootstrap_servers is None and not options.topics):
        raise ConfigError("say what to read: --bootstrap-servers and --topic, or --table")
    spark = start_session("aiorecover audit", options.master, pairs(options.settings))
    try:
        with (
            clear_errors(),
            downstream.audit(_records(spark, options), known_last=known_last, from_first=options.from_first) as audit,
        ):
            return {
                "totals": _rows(audit.totals)[0],
                "epochs": _rows(_worst(audit.producers, "missing", options.limit)),
                "missing": _rows(_worst(audit.missing, "count", options.limit)),
            }
    finally:
        spark.stop()


def _known_last(ids: Sequence[str]) -> dict[tuple[str, int], int]:
    known = {}
    for text in ids:
        found = _RECORD_ID.fullmatch(text)
        if found is None:
            raise ConfigError(f"--last takes a record id, producer id/epoch/sequence: {text=}")
        known[found[1], int(found[2])] = int(found[3])
    return known


def _records(spark: SparkSession, options: Options) -> DataFrame:
    if options.table is None:
        return downstream.read_topics(
            spark, options.topics, options.bootstrap_servers or "", pairs(options.kafka_options)
        )
    return spark.read.parquet(options.table) if "/" in options.table else spark.table(options.table)


def _worst(found: DataFrame, by: str, limit: int) -> DataFrame:
    rest = [name for name in ("producer_id", "epoch", "first") if name in found.columns]
    return found.orderBy(found[by].desc(), *rest).limit(limit)


def _rows(few: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in few.collect()]


def show(console: Console, found: dict[str, Any]) -> None:
    """Print the epochs as a table of at most 80 columns, the missing ranges as lines, and the totals."""
    totals, epochs, missing = found["totals"], found["epochs"], found["missing"]
    if epochs:
        console.print(_table(epochs))
    for one in missing:
        line = f"missing: {one['producer_id']}/{one['epoch']} sequences={one['first']}-{one['last']} {one['count']:,}"
        console.print(line, style="red", markup=False, soft_wrap=True)
    if totals["epochs"] > len(epochs) or totals["missing"] > sum(one["count"] for one in missing):
        console.print("there is more; these lack most (--limit shows more)", markup=False, soft_wrap=True)
    disorder = "order unknown" if totals["out_of_order"] is None else f"{totals['out_of_order']:,} out of order"
    verdict = (
        f"{totals['records']:,} records, {totals['without_id']:,} without an id: {totals['found']:,} of "
        f"{totals['expected']:,} found, {totals['missing']:,} missing, {totals['repeated']:,} repeated, {disorder}"
    )
    console.print(verdict, style="red" if totals["missing"] else "green", markup=False, soft_wrap=True)


def _table(epochs: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim")
    table.add_column("producer", no_wrap=True)
    for title in ("epoch", *_COUNTS.values()):
        table.add_column(title, justify="right", no_wrap=True)
    for one in epochs:
        counts = ("?" if one[name] is None else f"{one[name]:,}" for name in _COUNTS)
        table.add_row(one["producer_id"], str(one["epoch"]), *counts, style="red" if one["missing"] else None)
    return table
