"""Record ids in data frames: read from Kafka's headers as three columns, and given to rows that Spark publishes.

Only native expressions are used, so the executors need no Python.

Spark's own Kafka sink publishes a row again where a task is run again, and all rows where a job is. `with_record_ids`
makes ids that depend on nothing but the job's name and the rows, so a row has the same id each time: landing leaves out
the repeats, and because the ids have no gaps, an audit names what is missing. A hash of the columns of ``order_by``
spreads the rows over 64 epochs, and these columns number the rows of an epoch. So nothing is collected, and the number
of tasks does not matter.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F

from aiorecover.errors import ConfigError
from aiorecover.record_id import EPOCH_MAX, ID_PATTERN, RECORD_ID_HEADER, SEQUENCE_MAX
from aiorecover.spark.frames import HEADERS, TEXT, WHOLE, check_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "EPOCH_COLUMNS",
    "ID_COLUMNS",
    "last_ids",
    "parse_record_id",
    "undecodable",
    "with_id_columns",
    "with_record_ids",
]

EPOCH_COLUMNS = ["producer_id", "epoch"]
ID_COLUMNS = [*EPOCH_COLUMNS, "sequence"]

_ID = rf"\A{ID_PATTERN}\z"  # Java's $ accepts a trailing newline
_TEXT, _PARTS = "_aiorecover_text", "_aiorecover_parts"
_JOB_EPOCHS = 64  # never change it: a job that is repeated must get the same ids
_PRODUCER_ID = 13  # characters
_KEY, _BEFORE = "_aiorecover_key", "_aiorecover_before"


def parse_record_id(df: DataFrame) -> DataFrame:
    """Return the rows with the columns ``producer_id`` (string), ``epoch`` (int) and ``sequence`` (bigint) added.

    ``df`` has the columns of Spark's Kafka source with the option ``includeHeaders``; it may be a stream. The id is
    taken from the last header ``aiorecover-id``, which the producer appends. Where that is absent or is not
    ``producer id/epoch/sequence``, all three columns are null.

    Raises:
        ConfigError: there is no column ``headers``, or it has another type than Kafka's, or one of the three columns is
            there already.

    """
    if "headers" not in df.columns:
        raise ConfigError(
            f'there is no column headers: read Kafka with .option("includeHeaders", "true") columns={df.columns}'
        )
    if taken := [name for name in ID_COLUMNS if name in df.columns]:
        raise ConfigError(f"the ids are parsed already, or these columns must be renamed first: columns={taken}")
    check_columns("the records", df, {"headers": HEADERS})
    ours = F.filter("headers", lambda header: header["key"] == RECORD_ID_HEADER)
    text = F.col(_TEXT)
    parts, epoch, sequence = (F.col(_PARTS), F.col(_PARTS)[1].cast("bigint"), F.col(_PARTS)[2].cast("bigint"))
    valid = (epoch <= EPOCH_MAX) & (sequence <= SEQUENCE_MAX)
    return (
        df.withColumn(_TEXT, F.try_element_at(ours, F.lit(-1))["value"].cast("string"))
        .withColumn(_PARTS, F.when(text.rlike(_ID), F.split(text, "/")))
        .withColumns(
            {
                "producer_id": F.when(valid, parts[0]),
                "epoch": F.when(valid, F.least(epoch, F.lit(EPOCH_MAX)).cast("int")),
                "sequence": F.when(valid, sequence),
            }
        )
        .drop(_TEXT, _PARTS)
    )


def with_id_columns(df: DataFrame) -> DataFrame:
    """Return the rows with the ids as columns, parsed where the columns are not there yet.

    Raises:
        ConfigError: there are neither the ids nor the headers, or they have another type.

    """
    if not set(ID_COLUMNS) <= set(df.columns):
        return parse_record_id(df)
    check_columns("the records", df, {"producer_id": TEXT, "epoch": WHOLE, "sequence": WHOLE})
    return df


def undecodable() -> Column:
    """Whether a row whose id was parsed has the header, and no id in it."""
    named = F.exists("headers", lambda header: header["key"] == RECORD_ID_HEADER)
    return F.col("sequence").isNull() & F.coalesce(named, F.lit(False))  # noqa: FBT003 - a literal


def with_record_ids(df: DataFrame, *, job_id: str, order_by: Sequence[str]) -> DataFrame:
    """Return the rows with ids: as ``producer_id``, ``epoch`` and ``sequence``, and as header ``aiorecover-id``.

    ``df`` has the columns of Spark's Kafka sink: ``value``, and perhaps ``key``, ``topic``, ``partition``, ``headers``,
    and others, which the sink ignores. Write the result with ``.option("includeHeaders", "true")``.

    ``job_id``: names the rows of one run, as ``orders-2026-11-26``: a run with other rows has another one, and a run
    that is repeated has the same. ``order_by``: columns that together are different in each row (the job fails where
    two rows are equal), and that do not change when the job is repeated. Number a stream batch by batch, in
    ``foreachBatch``, with the batch's number in the ``job_id``.

    Raises:
        ConfigError: a column is absent or taken, ``df`` is a stream, or ``job_id`` is empty.

    """
    _check_numbered(df, job_id, order_by)
    digest = hashlib.sha256(job_id.encode()).digest()
    producer_id = base64.b32encode(digest).decode().lower()[:_PRODUCER_ID]
    epoch = (F.pmod(F.xxhash64(*order_by), F.lit(_JOB_EPOCHS)) + 1).cast("int")
    in_order = Window.partitionBy("epoch").orderBy(*order_by)
    numbered = df.withColumns({_KEY: F.struct(*order_by), "epoch": epoch}).withColumns(
        {"sequence": F.row_number().over(in_order), _BEFORE: F.lag(_KEY).over(in_order)}
    )
    twice = F.raise_error(F.lit(f"rows of the job are equal in order_by, add columns order_by={','.join(order_by)}"))
    sequence = F.when(F.col(_KEY).eqNullSafe(F.col(_BEFORE)) & F.col(_BEFORE).isNotNull(), twice.cast("bigint"))
    named = numbered.withColumns(
        {"sequence": sequence.otherwise(F.col("sequence").cast("bigint")), "producer_id": F.lit(producer_id)}
    )
    text = F.concat_ws("/", *ID_COLUMNS)
    header = F.array(F.struct(F.lit(RECORD_ID_HEADER).alias("key"), text.cast("binary").alias("value")))
    if "headers" in df.columns:
        theirs = F.coalesce(F.col("headers"), F.array().cast(HEADERS[0]))
        header = F.concat(F.filter(theirs, lambda one: one["key"] != RECORD_ID_HEADER), header)
    rest = [name for name in df.columns if name != "headers"]
    return named.withColumn("headers", header).select(*rest, "headers", *ID_COLUMNS)


def last_ids(numbered: DataFrame) -> DataFrame:
    """Return the last sequence of each epoch of a result of `with_record_ids`, for ``known_last`` of an audit."""
    check_columns("the numbered rows", numbered, {}, needed=ID_COLUMNS)
    return numbered.groupBy(*EPOCH_COLUMNS).agg(F.max("sequence").alias("last"))


def _check_numbered(df: DataFrame, job_id: str, order_by: Sequence[str]) -> None:
    if df.isStreaming:
        raise ConfigError("a stream is numbered in foreachBatch, with the batch's number in the job_id")
    if not job_id:
        raise ConfigError("name the job, with a text of its own for each run: job_id=''")
    if isinstance(order_by, str) or not order_by:
        raise ConfigError(f"order_by names columns by which no two rows are equal: {order_by=}")
    check_columns("df", df, {"headers": HEADERS}, needed=order_by)
    if taken := [name for name in ID_COLUMNS if name in df.columns]:
        raise ConfigError(f"these columns are taken by the ids, rename them: columns={taken}")
