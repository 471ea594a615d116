"""Completeness over time: each missing record counts once, in the moment of the record beside it."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import audit, timeline
from tests.spark.feed import P, Q

START_S = 1_700_000_000
GONE = "ggggggggggggg"


def records(spark: SparkSession, rows: list[tuple[str, int, float | None]]) -> DataFrame:
    """Of epoch 1: producer, sequence, seconds behind the start."""
    names = ["producer_id", "epoch", "sequence", "timestamp"]
    when = [None if second is None else int((START_S + second) * 1e6) for _, _, second in rows]
    columns = [
        pa.array([row[0] for row in rows]),
        pa.array([1] * len(rows), pa.int32()),
        pa.array([row[1] for row in rows], pa.int64()),
        pa.array(when, pa.timestamp("us", tz="UTC")),
    ]
    return spark.createDataFrame(pa.table(columns, names))


def moments(
    df: DataFrame, known: dict[tuple[str, int], int], most: int
) -> tuple[int, list[tuple[int | None, int, int]]]:
    with audit(df, known_last=known) as found:
        over_time = timeline(df, found.missing, most=most)
        rows = [tuple(row) for row in over_time.moments.collect()]
    return over_time.width_s, [(row[0] and row[0] - START_S, *row[1:]) for row in rows]


def test_what_is_missing_counts_where_the_record_beside_it_stands(spark: SparkSession) -> None:
    rows: list[tuple[str, int, float | None]] = [(P, sequence, float(sequence)) for sequence in range(1, 101)]
    lost = {*range(30, 36), 77, 99, 100}
    rows = [row for row in rows if row[1] not in lost]
    rows += [(P, 29, 29.0), (P, 29, 29.0), (Q, 4, 41.5), (Q, 5, None)]
    width_s, found = moments(records(spark, rows), {(P, 1): 105, (GONE, 1): 7}, most=12)
    assert width_s == 10
    by_moment = {start: (count, missing) for start, count, missing in found}
    # 7 of an epoch that has nothing, and sequence 5 that was found, but not when.
    assert by_moment.pop(None) == (1, 7)
    assert by_moment == {
        0: (9, 0),
        10: (10, 0),
        20: (10, 6),
        30: (4, 0),
        40: (11, 3),
        50: (10, 0),
        60: (10, 0),
        70: (9, 1),
        80: (10, 0),
        90: (9, 7),
    }


@pytest.mark.parametrize(
    ("span_s", "width_s"), [(1, 1), (200, 1), (3_000, 15), (86_400, 600), (20 * 365 * 86_400, 2_678_400)]
)
def test_moments_are_round_and_few(spark: SparkSession, span_s: int, width_s: int) -> None:
    width, found = moments(records(spark, [(P, 1, 0.0), (P, 2, float(span_s))]), {}, most=240)
    assert len(found) <= 240
    assert (width, span_s // width + 2 <= 242) == (width_s, True)


def test_nothing_at_all_has_no_moments_and_no_timestamps_are_refused(spark: SparkSession) -> None:
    some = records(spark, [(P, 1, 0.0)])
    assert moments(some.where("false"), {}, most=10)[1] == []
    missing = some.selectExpr("producer_id", "epoch", "1L as first", "1L as last", "1L as count")
    with pytest.raises(ConfigError, match="Kafka's column timestamp"):
        timeline(some.drop("timestamp"), missing)
    with pytest.raises(ConfigError, match=r"missing needs the columns .*absent=\['first', 'last', 'count'\]"):
        timeline(some, some)
