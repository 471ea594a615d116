"""The state behind "each record once", beside a set of Python's."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from aiorecover.spark import landed_ids

P, Q = "abcdefghij234", "zyxwvutsrq765"
BUCKET = 32_768
Ids = list[tuple[str | None, int | None, int | None]]


def frame(spark: SparkSession, ids: Ids) -> DataFrame:
    schema = pa.schema([("producer_id", pa.string()), ("epoch", pa.int32()), ("sequence", pa.int64())])
    columns = [pa.array([row[at] for row in ids], field.type) for at, field in enumerate(schema)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=schema))


def new_of(records: DataFrame, state: landed_ids.LandedIds) -> DataFrame:
    return state.marked(records, "landed").where("not landed").drop("landed")


def batches() -> list[Ids]:
    """Two buckets and a bit in a changing order; another epoch with a hole; some of it again each time."""
    chance = random.Random(3)
    front: Ids = [(P, 1, sequence) for sequence in range(1, 2 * BUCKET + 100)]
    for begin in range(0, len(front), 5_000):
        part = front[begin : begin + 10_000]
        chance.shuffle(part)
        front[begin : begin + 10_000] = part
    holes: Ids = [(Q, 2, sequence) for sequence in range(1, 3 * BUCKET + 1) if sequence != BUCKET - 1]
    return [front[:30_000], [*front[30_000:], *holes[: 2 * BUCKET]], [*holes[2 * BUCKET :], (P, 3, 7)]]


def test_what_was_landed_is_known_and_nothing_else_is(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(4)
    state, landed = landed_ids.empty(spark), set[tuple[str | None, int | None, int | None]]()
    for number, batch in enumerate(batches()):
        again = chance.sample(sorted(landed, key=str), min(len(landed), 500))
        asked = frame(spark, [*batch, *again, (None, None, None)])
        new = new_of(asked, state)
        assert new.columns == asked.columns
        assert sorted(map(str, (tuple(row) for row in new.collect()))) == sorted(map(str, [*batch, (None, None, None)]))
        landed |= set(batch)
        state.with_landed(new).write(str(tmp_path / str(number)))
        state = landed_ids.read(spark, str(tmp_path / str(number)))
    assert {tuple(row) for row in state.complete.collect()} == {(P, 1, 2)}
    buckets = {tuple(row)[:3]: (row["filled"], row["bits"] is None) for row in state.buckets.collect()}
    full, first, holes = (BUCKET, True), (99, True), (None, False)
    assert buckets == {(Q, 2, 1): holes, (Q, 2, 2): full, (Q, 2, 3): full, (P, 1, 3): first, (P, 3, 1): holes}
    # The hole is filled at last: nothing is ever too late.
    late = frame(spark, [(Q, 2, BUCKET - 1), (Q, 2, BUCKET)])
    new = new_of(late, state)
    assert [row["sequence"] for row in new.collect()] == [BUCKET - 1]
    assert (Q, 2, 3) in {tuple(row) for row in state.with_landed(new).complete.collect()}


def test_a_bucket_goes_on_wherever_it_had_come_to(spark: SparkSession, tmp_path: Path) -> None:
    ends = dict(enumerate([1, 7, 8, 9, 4095, 4096, BUCKET - 1, BUCKET], start=1))
    first: Ids = [(P, epoch, sequence) for epoch, end in ends.items() for sequence in range(1, end + 1)]
    landed_ids.empty(spark).with_landed(frame(spark, first)).write(str(tmp_path / "first"))
    state = landed_ids.read(spark, str(tmp_path / "first"))
    assert {row["epoch"]: row["landed"] for row in state.counts().collect()} == ends
    more: Ids = [(P, epoch, sequence) for epoch, end in ends.items() for sequence in range(max(end - 20, 1), end + 10)]
    new = new_of(frame(spark, more), state)
    behind = {(epoch, end + step) for epoch, end in ends.items() for step in range(1, 10)}
    assert {(row["epoch"], row["sequence"]) for row in new.collect()} == behind
    state.with_landed(new).write(str(tmp_path / "more"))
    state = landed_ids.read(spark, str(tmp_path / "more"))
    assert {row["epoch"]: row["landed"] for row in state.counts().collect()} == {e: end + 9 for e, end in ends.items()}
    assert state.buckets.where("bits is not null").count() == 0
    assert {tuple(row) for row in state.complete.where("complete > 0").collect()} == {(P, 7, 1), (P, 8, 1)}


def test_a_state_of_the_form_before_is_read(spark: SparkSession, tmp_path: Path) -> None:
    bits = bytes([0b101]).ljust(BUCKET // 8, b"\0")
    rows: dict[str, Any] = {"producer_id": [P, P], "epoch": pa.array([1, 1], pa.int32()), "bucket": [2, 3]}
    spark.createDataFrame(pa.table(rows | {"bits": pa.array([None, bits], pa.binary())})).write.parquet(
        str(tmp_path / "buckets")
    )
    complete = {"producer_id": [P], "epoch": pa.array([1], pa.int32()), "complete": pa.array([0], pa.int64())}
    spark.createDataFrame(pa.table(complete)).write.parquet(str(tmp_path / "complete"))
    state = landed_ids.read(spark, str(tmp_path))
    asked: Ids = [
        (P, 1, sequence) for sequence in (BUCKET, BUCKET + 1, 2 * BUCKET, *range(2 * BUCKET + 1, 2 * BUCKET + 5))
    ]
    new = [row["sequence"] for row in new_of(frame(spark, asked), state).collect()]
    assert sorted(new) == [BUCKET, 2 * BUCKET + 2, 2 * BUCKET + 4]


def test_who_knows_the_form_before_alone_stops_and_takes_no_bucket_for_full(
    spark: SparkSession, tmp_path: Path
) -> None:
    landed_ids.empty(spark).with_landed(frame(spark, [(P, 1, 1)])).write(str(tmp_path / "state"))
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        spark.read.parquet(f"{tmp_path}/state/buckets").collect()
    assert [row["filled"] for row in landed_ids.read(spark, str(tmp_path / "state")).buckets.collect()] == [1]


def test_epochs_that_have_ended_take_few_bytes_each_however_long_they_were(spark: SparkSession, tmp_path: Path) -> None:
    chance, epochs = random.Random(5), 200
    ids = [(P, epoch, sequence) for epoch in range(1, epochs + 1) for sequence in range(1, chance.randrange(2, 400))]
    landed_ids.empty(spark).with_landed(frame(spark, [*ids])).write(str(tmp_path / "state"))
    size = sum(path.stat().st_size for path in (tmp_path / "state").rglob("*.parquet"))
    assert size < 100 * epochs
