"""What ``aiorecover land`` does: it starts the query, tells each batch, and waits for the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorecover import spark as downstream
from aiorecover.cli.pairs import pairs
from aiorecover.spark.landing import checked_options
from aiorecover.spark.remaining import offsets_to_go
from aiorecover.spark.session import clear_errors, start_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console

__all__ = ["Options", "run"]

PROGRESS_LOOK = 1.0  # seconds between two looks at what Spark says of its batches: one takes some, as a rule


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    bootstrap_servers: str
    topics: Sequence[str]
    target: str
    checkpoint: str
    quarantine: str | None
    sink_manifests: str | None
    available_now: bool
    max_offsets_per_trigger: int
    master: str | None
    settings: Sequence[str]
    kafka_options: Sequence[str]


def run(options: Options, console: Console) -> None:
    """Land until everything is landed, or until somebody interrupts.

    Raises:
        ConfigError: an option, the installation, Kafka or a directory needs mending; the message says which.

    """
    kafka_options = pairs(options.kafka_options)
    # Refused here, before Spark fetches and starts anything.
    checked_options(
        *(options.topics, options.target, options.checkpoint),
        *(options.bootstrap_servers, options.sink_manifests, kafka_options),
    )
    spark = start_session("aiorecover land", options.master, pairs(options.settings))

    def tell(batch: downstream.Landed) -> None:
        repeats = "repeats not counted" if batch.repeats is None else f"{batch.repeats:,} repeats left out"
        line = f"batch {batch.batch_id}: {batch.landed:,} landed, {batch.without_id:,} of them without an id, {repeats}"
        if batch.undecodable:
            line += f", {batch.undecodable:,} with an undecodable id in the quarantine"
        console.print(line, markup=False, soft_wrap=True)

    try:
        with clear_errors():
            query = downstream.land(
                spark,
                options.topics,
                options.target,
                options.checkpoint,
                bootstrap_servers=options.bootstrap_servers,
                quarantine=options.quarantine,
                sink_manifests=options.sink_manifests,
                available_now=options.available_now,
                max_offsets_per_trigger=options.max_offsets_per_trigger,
                options=kafka_options,
                on_batch=tell,
            )
            _wait(query, console)
    finally:
        spark.stop()


def _wait(query: StreamingQuery, console: Console) -> None:
    """Until it ends; how much is left is told behind each batch, unless nothing is."""
    told = -1
    while not query.awaitTermination(PROGRESS_LOOK):  # type: ignore[arg-type] # a part of a second is taken, too
        progress = query.lastProgress
        if progress is None or progress["batchId"] == told:
            continue
        told = progress["batchId"]
        if left := offsets_to_go(progress.json):
            console.print(f"batch {told} is done: {left:,} offsets to go", markup=False, soft_wrap=True)
