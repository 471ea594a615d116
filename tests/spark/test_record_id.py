"""Ids of every form, good and bad, out of Kafka's headers."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.spark import parse_record_id
from tests.spark.by_hand import COLUMNS

NAME = "aiorecover-id"
SCHEMA = pa.schema([("number", pa.int32()), COLUMNS.field("headers")])
P = "abcdefghij234"
NONE = (None, None, None)
Headers = list[tuple[str, bytes | None]] | None

CASES: list[tuple[Headers, tuple[str | None, int | None, int | None]]] = [
    ([(NAME, f"{P}/1/1".encode())], (P, 1, 1)),
    ([(NAME, f"{P}/8388607/1099511627775".encode())], (P, 8388607, 1099511627775)),
    ([("x", b"1"), (NAME, f"{P}/3/45".encode()), ("y", None)], (P, 3, 45)),
    # The last one counts: it is the producer that appends it.
    ([(NAME, f"{P}/9/9".encode()), (NAME, f"{P}/3/46".encode())], (P, 3, 46)),
    ([(NAME, f"{P}/9/9".encode()), (NAME, b"foreign")], NONE),
    (None, NONE),
    ([], NONE),
    ([("AIORECOVER-ID", f"{P}/1/1".encode())], NONE),
    ([(NAME, None)], NONE),
    ([(NAME, b"")], NONE),
    ([(NAME, b"\xff\xfe\x00")], NONE),
]
NO_IDS = [
    f"{P}/1/1\n",
    f" {P}/1/1",
    f"{P}/1",
    f"{P}/1/1/1",
    f"{P}/+1/1",
    f"{P}/1/ 1",
    f"{P}/01/1",
    f"{P}/1/01",
    f"{P}/0/1",
    f"{P}/1/0",
    f"{P}/8388608/1",
    f"{P}/1/1099511627776",
    f"{P}/99999999999/1",
    f"{P}/1/99999999999999999999",
    f"{P}/\u0661/1",
    f"{P.upper()}/1/1",
    f"{P[:-1]}1/1/1",
    f"{P}a/1/1",
    "//",
]
CASES += [([(NAME, text.encode())], NONE) for text in NO_IDS]


def table(headers: list[Headers]) -> pa.Table:
    return pa.table({"number": range(len(headers)), "headers": headers}, SCHEMA)


def test_every_id_is_three_columns_and_what_is_none_is_null(spark: SparkSession) -> None:
    parsed = parse_record_id(spark.createDataFrame(table([headers for headers, _ in CASES])))
    assert parsed.columns == ["number", "headers", "producer_id", "epoch", "sequence"]
    assert [kind for _, kind in parsed.dtypes[2:]] == ["string", "int", "bigint"]
    found = {row["number"]: (row["producer_id"], row["epoch"], row["sequence"]) for row in parsed.collect()}
    assert [found[number] for number in range(len(CASES))] == [wanted for _, wanted in CASES]


def test_columns_that_are_there_already_are_not_written_over(spark: SparkSession) -> None:
    parsed = parse_record_id(spark.createDataFrame(table([None])))
    with pytest.raises(ConfigError, match="'producer_id', 'epoch', 'sequence'"):
        parse_record_id(parsed)


def test_headers_that_were_not_asked_for_are_named_as_the_remedy(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="includeHeaders"):
        parse_record_id(spark.range(1))


def test_no_python_has_part_in_it(spark: SparkSession) -> None:
    """So the executors need none, and a row costs what Spark's own functions cost."""
    header = "named_struct('key', cast(id as string), 'value', cast(cast(id as string) as binary))"
    parsed = parse_record_id(spark.range(1).selectExpr(f"array({header}) as headers"))

    def plan(df: DataFrame) -> str:
        planned: Any = df._jdf
        return str(planned.queryExecution().executedPlan().toString())

    assert "Python" not in plan(parsed)
    in_python = F.udf(lambda text: text, "string", useArrow=False)("producer_id")
    assert "Python" in plan(parsed.select(in_python)), "else the line above could not fail"
