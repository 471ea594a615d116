"""Whether what is landed has got farther than its checkpoint: then batches would be taken for landed that are not.

A batch is known by its number, and its offsets stand in the checkpoint alone. Where that was put back from a backup, or
what Spark keeps in it was deleted so that all is read once more, Spark gives numbers again that the target knows, to
other offsets. So a start looks first how far each has got. The target may hold the last batch of the checkpoint, which
was killed before it was done, and none behind it; and of that one the target knows which offsets it has. And without
the ids of what was landed by the last batch that is done nobody could tell what comes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.files import Files
from aiorecover.spark.query_log import QueryLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from aiorecover.spark.directory import Directory
    from aiorecover.spark.targets import Target

__all__ = ["check_progress"]

_REMEDY = (
    "put back the checkpoint that belongs to the target, or name a new checkpoint and a new target, for all that is in "
    "Kafka"
)


def check_progress(spark: SparkSession, target: Target | None, quarantine: Directory, checkpoint: str) -> None:
    """Look only; they are known to belong together. ``target``: None where it belongs to nobody yet, and is empty.

    Raises:
        ConfigError: they are not of one day.

    """
    log = QueryLog(spark, f"{checkpoint}/query")
    last = log.last_begun()
    for holder, batch_id in _farthest(spark, target, quarantine, checkpoint, last):
        if batch_id is not None and batch_id > last:
            raise ConfigError(
                f"{holder} holds batches that this checkpoint knows nothing of, so that new records would be taken for "
                f"landed: {_REMEDY} {batch_id=} last_in_checkpoint={last} {checkpoint=}"
            )
    here, there = log.fingerprint(last), None if target is None else target.fingerprint(last)
    if None not in (here, there) and here != there:
        raise ConfigError(
            f"a batch of the target has other offsets than in this checkpoint, so that new records would be taken for "
            f"landed: {_REMEDY} batch_id={last} {checkpoint=}"
        )
    done = log.last_done()
    if done >= 0 and not Files(spark, checkpoint).exists(f"{checkpoint}/ids/after={done}"):
        raise ConfigError(
            f"which records were landed stands no longer in the checkpoint, so that repeats would be landed: {_REMEDY} "
            f"batch_id={done} {checkpoint=}"
        )


def _farthest(
    spark: SparkSession, target: Target | None, quarantine: Directory, checkpoint: str, last: int
) -> Iterator[tuple[str, int | None]]:
    if target is not None:
        yield "the target", target.beyond(last)
    yield "the quarantine", quarantine.beyond(last)
    files = Files(spark, checkpoint)
    kinds = [f"sinks/{kind}" for kind in files.names(f"{checkpoint}/sinks")]
    for state in ("ids", *kinds):
        yield f"the checkpoint's {state}", max(files.numbers(f"{checkpoint}/{state}", "after="), default=None)
