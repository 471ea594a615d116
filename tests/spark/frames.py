"""Arrow's tables as data frames, which Spark takes from version 4 on."""

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from aiorecover.spark.packages import SPARK

__all__ = ["frame"]


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return the same rows."""
    if SPARK == "3.5":
        return spark.createDataFrame(table.to_pylist(), from_arrow_schema(table.schema))
    return spark.createDataFrame(table)
