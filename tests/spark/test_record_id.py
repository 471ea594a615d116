"""Record ids as columns: the same that Python reads from the headers, whatever these hold."""

from pyspark.sql import DataFrame, SparkSession

from aiorecover import record_id_of
from aiorecover.record_id import EPOCH_MAX, SEQUENCE_MAX
from aiorecover.record_id import parse_record_id as parse_text
from aiorecover.spark import parse_record_id
from tests.spark.feed import P

TEXTS = [
    f"{P}/1/1",
    f"{P}/{EPOCH_MAX}/{SEQUENCE_MAX}",
    f"{P}/{EPOCH_MAX + 1}/1",
    f"{P}/9999999999/1",
    f"{P}/1/{SEQUENCE_MAX + 1}",
    f"{P}/01/1",
    f"{P}/1/1\n",
    f"{P}/1",
    f"{P.upper()}/1/1",
    "",
]
HEADERS: list[list[tuple[str, bytes | None]] | None] = [
    None,
    [],
    [("aiorecover-id", None)],
    [("aiorecover-id", b"\xff")],
    [("aiorecover-id", f"{P}/1/1".encode()), ("other", b"x"), ("aiorecover-id", f"{P}/2/5".encode())],
]
HEADERS += [[("aiorecover-id", text.encode())] for text in TEXTS]


def parsed(spark: SparkSession) -> DataFrame:
    kinds = "number int, headers array<struct<key string, value binary>>"
    return parse_record_id(spark.createDataFrame(list(enumerate(HEADERS)), kinds))


def test_the_columns_hold_the_ids_that_python_reads_and_null_where_there_is_none(spark: SparkSession) -> None:
    rows = parsed(spark).orderBy("number").collect()
    texts = [record_id_of(headers) for headers in HEADERS]
    expected = [(None, None, None) if text is None else parse_text(text) for text in texts]
    assert [(row["producer_id"], row["epoch"], row["sequence"]) for row in rows] == expected
    assert sum(text is not None for text in texts) == 3


def test_spark_reads_ids_without_python_workers(spark: SparkSession) -> None:
    assert "Python" not in parsed(spark)._jdf.queryExecution().executedPlan().toString()
