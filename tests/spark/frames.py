"""Data frames from tables of Arrow, also for Spark 3.5, which takes none."""

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from aiorecover.spark.packages import SPARK

__all__ = ["Identity", "frame", "id_rows"]

Identity = tuple[str, int, int]
"""(producer id, epoch, sequence)"""
_ID_COLUMNS = pa.schema([("producer_id", pa.string()), ("epoch", pa.int32()), ("sequence", pa.int64())])


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return the table's rows as a data frame."""
    if SPARK == "3.5":
        return spark.createDataFrame(table.to_pylist(), from_arrow_schema(table.schema))
    return spark.createDataFrame(table)


def id_rows(spark: SparkSession, identities: Iterable[Identity | None]) -> DataFrame:
    """Return a row for each identity, with nulls for a record without an id."""
    columns = list(zip(*(one or (None, None, None) for one in identities), strict=True)) or [()] * 3
    return frame(spark, pa.table(dict(zip(_ID_COLUMNS.names, columns, strict=True)), _ID_COLUMNS))
