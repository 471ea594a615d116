"""What ``aiorecover land`` does: it starts the query, tells each batch, and waits for the end or for a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorecover import spark as downstream
from aiorecover.cli.endings import EndedError, StoppedError
from aiorecover.cli.pairs import pairs
from aiorecover.cli.spark_work import with_spark
from aiorecover.spark.gone import RecordsGoneError
from aiorecover.spark.landing import checked_options, held_in
from aiorecover.spark.remaining import offsets_to_go
from aiorecover.spark.session import start_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console

    from aiorecover.spark.undecided import Waiting

__all__ = ["Options", "run"]

FAILED = 1
RECORDS_GONE = 3
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
    files_per_batch: int | None
    master: str | None
    settings: Sequence[str]
    kafka_options: Sequence[str]


def run(options: Options, console: Console) -> None:
    """Land until everything is landed, or until a signal comes.

    Raises:
        ConfigError: an option, the installation, Kafka or a directory needs mending; the message says which.
        EndedError: records that were to be landed next are not in Kafka any more, or Spark has failed.
        StoppedError: a signal has ended it; the message says how far it got.

    """
    kafka_options = pairs(options.kafka_options)
    # Refused here, before Spark fetches and starts anything.
    checked_options(
        *(options.topics, options.target, options.checkpoint, options.quarantine),
        *(options.bootstrap_servers, options.sink_manifests, kafka_options),
    )
    settings, counted = pairs(options.settings), _Counted()

    def tell(batch: downstream.Landed) -> None:
        counted.count(batch)
        repeats = "repeats not counted" if batch.repeats is None else f"{batch.repeats:,} repeats left out"
        line = f"batch {batch.batch_id}: {batch.landed:,} landed, {batch.without_id:,} of them without an id, {repeats}"
        if batch.undecodable:
            line += f", {batch.undecodable:,} with an undecodable id in the quarantine"
        if batch.held:
            line += f", {batch.held:,} wait for their manifest"
        console.print(line, markup=False, soft_wrap=True)

    def work(spark: SparkSession) -> None:
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
            files_per_batch=options.files_per_batch,
            options=kafka_options,
            on_batch=tell,
        )
        _wait(query, console)
        if options.available_now and not counted.batches:
            console.print("no batch: nothing new stands in the topics", markup=False, soft_wrap=True)
        if options.sink_manifests is not None and (waiting := held_in(spark, options.checkpoint)).records:
            console.print(_held(waiting), markup=False, soft_wrap=True)

    try:
        with_spark(lambda: start_session("aiorecover land", options.master, settings), work, failed=FAILED)
    except StoppedError as stopped:
        raise StoppedError(stopped.number, str(counted)) from None
    except RecordsGoneError as error:
        raise EndedError(str(error), RECORDS_GONE) from error


@dataclass
class _Counted:
    """What was landed since the start."""

    batches: int = 0
    records: int = 0

    def count(self, batch: downstream.Landed) -> None:
        self.batches += 1
        self.records += batch.landed

    def __str__(self) -> str:
        landed = f"{self.batches:,} batches with {self.records:,} records were landed since the start"
        return f"stopped: {landed}; the next start with the same target and checkpoint goes on behind them"


def _held(waiting: Waiting) -> str:
    return (
        f"{waiting.records:,} records are not landed, as there is no manifest of their writes yet: a start behind it "
        "lands them; where its job has ended and will not be run again there will be none, so give these writes up "
        f"(aiorecover give-up) writes={','.join(waiting.writes)}"
    )


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
