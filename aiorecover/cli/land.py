"""``aiorecover land``: start the query, report each batch, and wait for the end or for a signal."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from aiorecover import spark as downstream
from aiorecover.cli.endings import FAILED, EndedError, StoppedError, print_json
from aiorecover.cli.options import pairs
from aiorecover.cli.spark_work import STARTS, with_spark
from aiorecover.spark.admin import convertible, ends_of, held_offsets
from aiorecover.spark.checkpoint import offsets_to_go
from aiorecover.spark.failures import RecordsGoneError
from aiorecover.spark.landing import checked_options
from aiorecover.spark.session import start_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from aiorecover.cli.endings import Output

__all__ = ["Options", "run"]

RECORDS_GONE = 3
CONFLICTS = 4
PROGRESS_LOOK = 1.0  # seconds between two looks at what Spark says of its batches: one takes some, as a rule

_WAY_OUT = (
    "no landing gets past it, so publish it and what stands before it since the last batch anew, with the headers "
    "(then repeats are left out) and a right timestamp, delete the old ones with kafka-delete-records.sh, and go on "
    "with --kafka-option failOnDataLoss=false"
)


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    bootstrap_servers: str
    topics: Sequence[str]
    target: str
    checkpoint: str
    format: str | None
    available_now: bool
    max_offsets_per_trigger: int
    files_per_batch: int | None
    json: bool
    master: str | None
    verbose: bool
    settings: Sequence[str]
    kafka_options: Sequence[str]


def run(options: Options, console: Output) -> int:
    """Land until everything is landed, or until a signal comes; return the exit status.

    Raises:
        ConfigError: an option, the installation, Kafka or a directory needs mending; the message says which.
        EndedError: records that were to be landed next are not in Kafka any more, or Spark has failed.
        StoppedError: a signal has ended it; the message says how far it got.

    """
    kafka_options = pairs(options.kafka_options)
    # Refused here, before Spark fetches and starts anything.
    source = checked_options(
        options.topics, options.target, options.checkpoint, options.bootstrap_servers, kafka_options
    )
    settings, counted = pairs(options.settings), _Counted()
    say = console.say if not options.json else _nothing

    def start() -> SparkSession:
        return start_session(
            "aiorecover land",
            options.master,
            settings,
            chosen=options.format,
            paths=[options.target, options.checkpoint],
            verbose=options.verbose,
        )

    def work(spark: SparkSession) -> None:
        with convertible(spark, source, _WAY_OUT):
            try:
                query = downstream.land(
                    spark,
                    options.topics,
                    options.target,
                    options.checkpoint,
                    bootstrap_servers=options.bootstrap_servers,
                    format=options.format,
                    available_now=options.available_now,
                    max_offsets_per_trigger=options.max_offsets_per_trigger,
                    files_per_batch=options.files_per_batch,
                    options=kafka_options,
                    on_batch=counted.count,
                )
                say(f"landing in {options.target}: each batch is reported when it is done")
                _wait(query, say, counted)
            finally:
                counted.report(say)
        counted.held_offsets = held_offsets(ends_of(spark, source))
        if options.available_now and not counted.totals["batches"]:
            say("no batch: nothing new stands in the topics")
        if counted.held_offsets:
            say(_held(counted.held_offsets))

    if not console.is_terminal:  # there `with_spark` shows it
        say(STARTS)
    try:
        with_spark(start, work, failed=FAILED)
    except StoppedError as stopped:
        raise StoppedError(stopped.number, str(counted)) from None
    except RecordsGoneError as error:
        raise EndedError(str(error), RECORDS_GONE) from error
    if options.json:
        print_json(counted.totals | {"held_offsets": counted.held_offsets})
    return CONFLICTS if counted.totals["conflicts"] else 0


def _nothing(_: str) -> None:
    """Say nothing."""


def _line(batch: downstream.Landed) -> str:
    line = (
        f"batch {batch.batch_id}: {batch.landed:,} landed, {batch.without_id:,} of them without an id, "
        f"{batch.repeats:,} repeats left out"
    )
    for count, what in ((batch.conflicts, "in conflict"), (batch.undecodable, "with an undecodable id")):
        line += f", {count:,} {what} in the quarantine" if count else ""
    return line


@dataclass
class _Counted:
    """Counts of what was landed since the start, and the batches that were not reported yet."""

    totals: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("batches", "landed", "without_id", "repeats", "conflicts", "undecodable"), 0
        )
    )
    held_offsets: int = 0
    batches: deque[downstream.Landed] = field(default_factory=deque)

    def count(self, batch: downstream.Landed) -> None:
        """Count it alone: in Spark's thread an output whose reader has gone would fail the query."""
        self.batches.append(batch)
        self.totals["batches"] += 1
        for name, count in asdict(batch).items():
            if name in self.totals:
                self.totals[name] += count

    def report(self, say: Callable[[str], None]) -> None:
        while self.batches:
            say(_line(self.batches.popleft()))

    def __str__(self) -> str:
        landed = f"{self.totals['batches']:,} batches with {self.totals['landed']:,} records were landed"
        return (
            f"stopped: {landed} since the start; the next start with the same target and checkpoint goes on from there"
        )


def _held(count: int) -> str:
    return (
        f"{count:,} offsets are held up by an open transaction: they are landed once it ends; kafka-transactions.sh "
        "find-hanging finds one that does not"
    )


def _wait(query: StreamingQuery, say: Callable[[str], None], counted: _Counted) -> None:
    """Wait until the query ends; report each batch meanwhile, and how much is left after it, unless nothing is."""
    done = -1
    while not query.awaitTermination(PROGRESS_LOOK):  # type: ignore[arg-type] # a part of a second is taken, too
        progress: Mapping[str, Any] | None = query.lastProgress
        counted.report(say)  # the batch of that progress among them
        if progress is None or progress["batchId"] == done:
            continue
        done = progress["batchId"]
        if left := offsets_to_go(progress):
            say(f"batch {done} is done: {left:,} offsets to go")
