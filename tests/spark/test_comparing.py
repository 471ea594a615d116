"""Topics beside the table that they were landed in, beside sets of plain Python."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import compare
from tests.spark.feed import P, Q

BUCKET = 32_768
Identity = tuple[str, int, int]

TOPICS: set[Identity] = {
    # Whole buckets, and what goes on in the next one; a bucket of which the table has nothing.
    *((P, 1, sequence) for sequence in range(1, 4 * BUCKET + 10)),
    *((P, 2, sequence) for sequence in (1, 3, 4, 5, 9, BUCKET, BUCKET + 1, (1 << 40) - 1)),
    *((Q, 7, sequence) for sequence in range(1, 50)),
}
ABSENT: set[Identity] = {
    *((P, 1, sequence) for sequence in (1, 7, 8, 9, 4 * BUCKET + 9)),
    *((P, 1, sequence) for sequence in range(BUCKET - 5, 3 * BUCKET + 4)),
    *((P, 2, sequence) for sequence in (1, 3, 5, BUCKET, BUCKET + 1, (1 << 40) - 1)),
    *((Q, 7, sequence) for sequence in range(1, 50)),
}
ONLY_IN_TABLE: set[Identity] = {(P, 2, 2), (P, 3, 1), (Q, 8, BUCKET + 3)}


def table(spark: SparkSession, identities: set[Identity], repeated: int, strangers: int) -> DataFrame:
    rows: list[Any] = [*identities, *list(identities)[:repeated], *[(None, None, None)] * strangers]
    types = pa.string(), pa.int32(), pa.int64()
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    return spark.createDataFrame(pa.table(columns, ["producer_id", "epoch", "sequence"]))


def test_what_the_table_lacks_is_named_by_ranges_that_are_as_long_as_they_go(spark: SparkSession) -> None:
    topics = table(spark, TOPICS, repeated=100, strangers=3)
    landed = table(spark, TOPICS - ABSENT | ONLY_IN_TABLE, repeated=7, strangers=2)
    with compare(topics, landed) as found:
        ranges = [tuple(row) for row in found.absent.collect()]
        totals = found.totals.collect()[0].asDict()
    named = [(*row[:2], sequence) for row in ranges for sequence in range(row[2], row[3] + 1)]
    assert len(named) == len(set(named))
    assert set(named) == ABSENT
    assert sum(row[4] for row in ranges) == len(ABSENT)
    borders = {(row[2] - 1, row[3] + 1) for row in ranges if row[:2] == (P, 1)}
    assert all((P, 1, beside) not in ABSENT for border in borders for beside in border)
    assert totals == {
        "in_topics": len(TOPICS),
        "in_table": len(TOPICS - ABSENT | ONLY_IN_TABLE),
        "absent": len(ABSENT),
        "only_in_table": len(ONLY_IN_TABLE),
        "without_id_in_topics": 3,
        "without_id_in_table": 2,
        "without_id_absent": 1,
    }


def test_a_table_that_has_all_lacks_nothing(spark: SparkSession) -> None:
    topics = table(spark, {(P, 1, 1), (P, 1, 2)}, repeated=1, strangers=0)
    with compare(topics, topics.distinct()) as found:
        assert found.absent.collect() == []
        assert found.totals.collect()[0]["absent"] == 0
    with compare(topics.where("false"), topics) as found:
        assert found.totals.collect()[0].asDict()["only_in_table"] == 2
    with compare(topics, table(spark, {(P, 1, 1)}, repeated=0, strangers=4)) as found:
        totals = found.totals.collect()[0].asDict()
    assert (totals["without_id_in_table"], totals["without_id_absent"]) == (4, 0), "more of others are no difference"
    with pytest.raises(ConfigError, match="includeHeaders"):
        compare(topics, topics.drop("epoch"))
