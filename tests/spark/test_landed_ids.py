"""The state behind "each record once", beside a set of Python's."""

import random
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from aiorecover.spark import landed_ids

P, Q = "abcdefghij234", "zyxwvutsrq765"
BUCKET = 32_768
Ids = list[tuple[str | None, int | None, int | None]]


def frame(spark: SparkSession, ids: Ids) -> DataFrame:
    schema = pa.schema([("producer_id", pa.string()), ("epoch", pa.int32()), ("sequence", pa.int64())])
    columns = [pa.array([row[at] for row in ids], field.type) for at, field in enumerate(schema)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=schema))


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
        new = state.without_landed(asked)
        assert new.columns == asked.columns
        assert sorted(map(str, (tuple(row) for row in new.collect()))) == sorted(map(str, [*batch, (None, None, None)]))
        landed |= set(batch)
        state.with_landed(new).write(str(tmp_path / str(number)))
        state = landed_ids.read(spark, str(tmp_path / str(number)))
    assert {tuple(row) for row in state.complete.collect()} == {(P, 1, 2)}
    buckets = {tuple(row)[:3]: row["bits"] for row in state.buckets.collect()}
    assert {key for key, bits in buckets.items() if bits is None} == {(Q, 2, 2), (Q, 2, 3)}
    assert {key for key, bits in buckets.items() if bits is not None} == {(P, 1, 3), (P, 3, 1), (Q, 2, 1)}
    # The hole is filled at last: nothing is ever too late.
    late = frame(spark, [(Q, 2, BUCKET - 1), (Q, 2, BUCKET)])
    new = state.without_landed(late)
    assert [row["sequence"] for row in new.collect()] == [BUCKET - 1]
    assert (Q, 2, 3) in {tuple(row) for row in state.with_landed(new).complete.collect()}
