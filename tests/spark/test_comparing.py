"""Topics compared with their table, and missing records over time, both beside plain Python."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.record_id import SEQUENCE_MAX
from aiorecover.spark import audit, compare, timeline
from tests.spark.feed import P, Q
from tests.spark.frames import Identity, frame, id_rows

BUCKET = 32_768
START_S = 1_700_000_000
GONE = "ggggggggggggg"

TOPICS: set[Identity] = {
    # Whole buckets, ranges that go on in the next bucket, and a bucket that the table lacks.
    *((P, 1, sequence) for sequence in range(1, 4 * BUCKET + 10)),
    *((P, 2, sequence) for sequence in (1, 3, 4, 5, 9, BUCKET, BUCKET + 1, SEQUENCE_MAX)),
    *((Q, 7, sequence) for sequence in range(1, 50)),
}
ABSENT: set[Identity] = {
    *((P, 1, sequence) for sequence in (1, 7, 8, 9, 4 * BUCKET + 9)),
    *((P, 1, sequence) for sequence in range(BUCKET - 5, 3 * BUCKET + 4)),
    *((P, 2, sequence) for sequence in (1, 3, 5, BUCKET, BUCKET + 1, SEQUENCE_MAX)),
    *((Q, 7, sequence) for sequence in range(1, 50)),
}
ONLY_IN_TABLE: set[Identity] = {(P, 2, 2), (P, 3, 1), (Q, 8, BUCKET + 3)}


def test_records_that_the_table_lacks_are_named_in_the_longest_ranges(spark: SparkSession) -> None:
    in_table = TOPICS - ABSENT | ONLY_IN_TABLE
    topics = id_rows(spark, [*TOPICS, *list(TOPICS)[:100], *[None] * 3])
    table = id_rows(spark, [*in_table, *list(in_table)[:7], *[None] * 2])
    with compare(topics, table) as found:
        ranges = [tuple(row) for row in found.absent.collect()]
        totals = found.totals.collect()[0].asDict()
    named = [(*row[:2], sequence) for row in ranges for sequence in range(row[2], row[3] + 1)]
    assert len(named) == len(set(named)) == sum(row[4] for row in ranges)
    assert set(named) == ABSENT
    neighbours = {sequence for row in ranges if row[:2] == (P, 1) for sequence in (row[2] - 1, row[3] + 1)}
    assert not {(P, 1, sequence) for sequence in neighbours} & ABSENT
    assert totals == {
        "in_topics": len(TOPICS),
        "in_table": len(in_table),
        "absent": len(ABSENT),
        "only_in_table": len(ONLY_IN_TABLE),
        "without_id_in_topics": 3,
        "without_id_in_table": 2,
        "without_id_absent": 1,
    }


def test_missing_records_count_at_the_time_of_their_neighbour(spark: SparkSession) -> None:
    lost = {*range(30, 36), 77, 99, 100}
    rows = [(P, sequence, float(sequence)) for sequence in range(1, 101) if sequence not in lost]
    rows += [(P, 29, 29.0), (P, 29, 29.0), (Q, 4, 41.5)]
    times_us = [int((START_S + second) * 1e6) for _, _, second in rows]
    columns = [
        pa.array([producer for producer, _, _ in rows]),
        pa.array([1] * len(rows), pa.int32()),
        pa.array([sequence for _, sequence, _ in rows], pa.int64()),
        pa.array(times_us, pa.timestamp("us", tz="UTC")),
    ]
    records = frame(spark, pa.table(columns, ["producer_id", "epoch", "sequence", "timestamp"]))
    with audit(records, known_last={(P, 1): 105, (GONE, 1): 7}) as found:
        over_time = timeline(records, found.missing, most=12)
        moments = {row[0] and row[0] - START_S: tuple(row[1:]) for row in over_time.moments.collect()}
        with pytest.raises(ConfigError, match="Kafka's column timestamp"):
            timeline(records.drop("timestamp"), found.missing)
    assert over_time.width_s == 10
    assert moments.pop(None) == (0, 7), "an epoch without any record has no time"
    assert list(moments.values()) == [
        (9, 0), (10, 0), (10, 6), (4, 0), (11, 3), (10, 0), (10, 0), (9, 1), (10, 0), (9, 7),
    ]  # fmt: skip
