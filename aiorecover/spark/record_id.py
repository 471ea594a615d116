"""The record id in Kafka's headers as three columns, by native expressions only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.record_id import EPOCH_MAX, ID_PATTERN, RECORD_ID_HEADER, SEQUENCE_MAX
from aiorecover.spark.handed_over import HEADERS, TEXT, WHOLE, check_columns, check_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ID_COLUMNS", "ID_SCHEMA", "parse_record_id", "undecodable", "with_record_id"]

ID_COLUMNS = ("producer_id", "epoch", "sequence")
ID_SCHEMA = "producer_id string, epoch int, sequence bigint"
_ID_TYPES = {"producer_id": TEXT, "epoch": WHOLE, "sequence": WHOLE}

_ID = rf"\A{ID_PATTERN}\z"  # Java's $ lets a line's end pass
_PARTS = "_aiorecover_parts"


def parse_record_id(df: DataFrame) -> DataFrame:
    """The same rows with the columns ``producer_id`` (string), ``epoch`` (int) and ``sequence`` (bigint) behind them.

    ``df`` is what Spark's Kafka source gives with the option ``includeHeaders``. The id is taken from the last header
    ``aiorecover-id``, which the producer appends; where it is absent or is no ``producer id/epoch/sequence``, all
    three are null. Streams are welcome, and nothing of it runs in Python.

    Raises:
        ConfigError: there is no column ``headers``, or it is none of Kafka's; or one of the three is there already.

    """
    check_frame("df", df)
    if "headers" not in df.columns:
        raise ConfigError(
            f'there is no column headers: read Kafka with .option("includeHeaders", "true") columns={df.columns}'
        )
    taken = [name for name in ID_COLUMNS if name in df.columns]
    if taken:
        raise ConfigError(f"the ids are parsed already, or these columns must be renamed first: columns={taken}")
    check_columns("the records", df, {"headers": HEADERS})
    parts = F.col(_PARTS)
    valid = (parts[1].cast("bigint") <= EPOCH_MAX) & (parts[2].cast("bigint") <= SEQUENCE_MAX)
    return (
        df.withColumn(_PARTS, _parts())
        .withColumns(
            {
                "producer_id": F.when(valid, parts[0]),
                "epoch": F.when(valid, F.least(parts[1].cast("bigint"), F.lit(EPOCH_MAX)).cast("int")),
                "sequence": F.when(valid, parts[2].cast("bigint")),
            }
        )
        .drop(_PARTS)
    )


def with_record_id(df: DataFrame) -> DataFrame:
    """The same rows with the ids as columns, parsed where they are not columns yet.

    Raises:
        ConfigError: there are neither the ids nor the headers, or they are of another type.

    """
    check_frame("df", df)
    if not set(ID_COLUMNS) <= set(df.columns):
        return parse_record_id(df)
    check_columns("the records", df, _ID_TYPES)
    return df


def undecodable() -> Column:
    """Of a row with its id parsed, whether there is a header of that name, and no id in it."""
    named = F.exists("headers", lambda header: header["key"] == RECORD_ID_HEADER)
    return F.col("sequence").isNull() & F.coalesce(named, F.lit(False))  # noqa: FBT003 - a literal


def _parts() -> Column:
    ours = F.filter("headers", lambda header: header["key"] == RECORD_ID_HEADER)
    text = F.try_element_at(ours, F.lit(-1))["value"].cast("string")
    return F.when(text.rlike(_ID), F.split(text, "/"))
