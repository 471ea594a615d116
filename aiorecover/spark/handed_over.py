"""What is handed over to functions here, looked at before Spark is asked, which would say it late and in many lines."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from aiorecover.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql.types import DataType

__all__ = ["HEADERS", "TEXT", "WHOLE", "are_headers", "check_columns", "check_frame", "path_of", "shown"]

WHOLE = "bigint"
TEXT = "string"
HEADERS = "array<struct<key string, value binary>>"
_WHOLE_TYPES = (ByteType, ShortType, IntegerType, LongType)


def check_frame(name: str, value: object, instead: str = "") -> DataFrame:
    """The data frame that it is.

    Raises:
        ConfigError: it is none; ``instead`` says what to do.

    """
    if not isinstance(value, DataFrame):
        remedy = instead or "hand over one, for example of read_topics(...), or spark.read.parquet(...)"
        raise ConfigError(f"{name} must be a data frame: {remedy} {shown(name, value)}")
    return value


def check_columns(name: str, df: DataFrame, wanted: Mapping[str, str], needed: Iterable[str] = ()) -> None:
    """Those of ``wanted`` that are there have these types, and those ``needed`` are there.

    Raises:
        ConfigError: one has another type, which Spark would compare in its own way, or is absent.

    """
    absent = [one for one in needed if one not in df.columns]
    if absent:
        raise ConfigError(f"{name} needs the columns {', '.join(needed)}: absent={absent}")
    for field in df.schema.fields:
        what = wanted.get(field.name)
        if what is not None and not _is(field.dataType, what):
            raise ConfigError(
                f"the column {field.name} of {name} must be {what}: cast it type={field.dataType.simpleString()}"
            )


def path_of(name: str, value: object) -> str:
    """What Spark calls it: a text stays as it is, a `Path` is a directory, also one without a ``/`` in it.

    Raises:
        ConfigError: it is none of both, or empty.

    """
    if isinstance(value, PurePath):
        text = value.as_posix()
        return text if "/" in text else f"./{text}"
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} must be a path, as a text or as a Path: {shown(name, value)}")
    return value


def shown(name: str, value: object) -> str:
    """For the end of a sentence."""
    return f"type={type(value).__qualname__} {name}={value!r:.100}"


def _is(found: DataType, what: str) -> bool:
    if what == WHOLE:
        return isinstance(found, _WHOLE_TYPES)
    if what == HEADERS:
        return are_headers(found)
    return isinstance(found, StringType)


def are_headers(found: DataType) -> bool:
    """Whether they are Kafka's, whatever may be null in them."""
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    pair = [(one.name.lower(), one.dataType) for one in found.elementType.fields]
    return pair == [("key", StringType()), ("value", BinaryType())]
