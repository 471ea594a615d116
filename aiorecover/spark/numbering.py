"""Record ids for rows of a data frame, so that what Spark's own Kafka sink publishes can be landed once and audited.

Spark's sink publishes a row again where a task is run again, and all of them where a job is. With ids that depend on
nothing but the job's name and the rows, a row has the same id each time: landing leaves out repeats, and as the ids
have no gaps, an audit names what is missing.

The rows are dealt to 64 epochs by a hash of the columns of ``order_by``, and numbered in each by these columns. So
nothing is collected, and it does not matter how many tasks there are.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.record_id import RECORD_ID_HEADER
from aiorecover.spark.handed_over import HEADERS, check_columns, check_frame, shown
from aiorecover.spark.record_id import ID_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["last_ids", "with_record_ids"]

EPOCHS = 64  # of a job: what a job publishes depends on it, so it stays
_PRODUCER_ID = 13  # characters
_KEY, _BEFORE = "_aiorecover_key", "_aiorecover_before"


def with_record_ids(df: DataFrame, *, job_id: str, order_by: Sequence[str]) -> DataFrame:
    """Return the rows with ids: as ``producer_id``, ``epoch`` and ``sequence``, and as header ``aiorecover-id``.

    ``df`` has the columns of Spark's Kafka sink: ``value``, and perhaps ``key``, ``topic``, ``partition``, ``headers``,
    and others, which the sink passes over. What is written with it needs ``.option("includeHeaders", "true")``.

    ``job_id``: names this job's rows, and no other job's: each run that publishes rows of its own has one of its own,
    as ``orders-2026-11-26``; a run that is repeated has the same. ``order_by``: columns of which no two rows have the
    same values (the job fails where two do), and which do not change when the job is repeated. A stream is numbered
    batch by batch, in ``foreachBatch``, with the batch's number in the ``job_id``.

    Raises:
        ConfigError: a column is absent or taken, ``df`` is a stream, or ``job_id`` is empty.

    """
    check_frame("df", df)
    _check(df, job_id, order_by)
    digest = hashlib.sha256(job_id.encode()).digest()
    producer_id = base64.b32encode(digest).decode().lower()[:_PRODUCER_ID]
    key = F.struct(*order_by)
    dealt = df.withColumns({_KEY: key, "epoch": (F.pmod(F.xxhash64(*order_by), F.lit(EPOCHS)) + 1).cast("int")})
    in_order = Window.partitionBy("epoch").orderBy(*order_by)
    numbered = dealt.withColumns({"sequence": F.row_number().over(in_order), _BEFORE: F.lag(_KEY).over(in_order)})
    twice = F.raise_error(F.lit(f"rows of the job are equal in order_by, add columns order_by={','.join(order_by)}"))
    sequence = F.when(F.col(_KEY).eqNullSafe(F.col(_BEFORE)) & F.col(_BEFORE).isNotNull(), twice.cast("bigint"))
    named = numbered.withColumns(
        {"sequence": sequence.otherwise(F.col("sequence").cast("bigint")), "producer_id": F.lit(producer_id)}
    )
    text = F.concat_ws("/", *ID_COLUMNS)
    header = F.array(F.struct(F.lit(RECORD_ID_HEADER).alias("key"), text.cast("binary").alias("value")))
    if "headers" in df.columns:
        theirs = F.coalesce(F.col("headers"), F.array().cast(HEADERS))
        header = F.concat(F.filter(theirs, lambda one: one["key"] != RECORD_ID_HEADER), header)
    rest = [name for name in df.columns if name != "headers"]
    return named.withColumn("headers", header).select(*rest, "headers", *ID_COLUMNS)


def last_ids(numbered: DataFrame) -> DataFrame:
    """Return the last sequence of each epoch of what `with_record_ids` gave, as ``known_last`` of an audit takes it."""
    check_columns("the rows", numbered, {}, needed=ID_COLUMNS)
    return numbered.groupBy("producer_id", "epoch").agg(F.max("sequence").alias("last"))


def _check(df: DataFrame, job_id: object, order_by: object) -> None:
    if df.isStreaming:
        raise ConfigError("a stream is numbered in foreachBatch, with the batch's number in the job_id")
    if not isinstance(job_id, str) or not job_id:
        raise ConfigError(f"name the job, a text of its own for each run: {shown('job_id', job_id)}")
    if not isinstance(order_by, Sequence) or isinstance(order_by, str) or not order_by:
        raise ConfigError(f"order_by names columns by which no two rows are equal: {shown('order_by', order_by)}")
    check_columns("df", df, {"headers": HEADERS}, needed=order_by)
    if taken := [name for name in ID_COLUMNS if name in df.columns]:
        raise ConfigError(f"these columns are taken by the ids, rename them: columns={taken}")
