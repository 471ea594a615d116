"""What Spark's own files say of a query, on files made by hand; on those of real queries: `test_subscription`."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.spark.query_log import QueryLog, offsets_in

SETTINGS = '{"batchWatermarkMs":0,"conf":{"spark.sql.shuffle.partitions":"2"}}'
ENDS = {"a": {"0": 3, "1": 0}, "b.c-d": {"0": 7}}
WRITTEN = '{"a":{"0":3,"1":0},"b.c-d":{"0":7}}'


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (f"v1\n{SETTINGS}\n{WRITTEN}", ENDS),
        (f"\0v1\n{WRITTEN}", ENDS),
        (f"v1\n{SETTINGS}\n-", None),
        (f"v1\n{SETTINGS}\n17", None),
        (f'v1\n{SETTINGS}\n{{"a":{{"0":"x"}}}}', None),
        ("", None),
        ("\0", None),
    ],
    ids=["batch", "beginning", "nothing", "another source", "another format", "empty", "zero"],
)
def test_offsets_are_those_of_the_last_line(written: str, told: object) -> None:
    assert offsets_in(written.encode()) == told


def test_a_batch_is_unfinished_until_it_is_committed_and_may_be_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    def write(name: str, ends: str = WRITTEN) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"v1\n{SETTINGS}\n{ends}")

    log = QueryLog(spark, str(tmp_path))
    assert (log.unfinished(), log.done(), log.first()) == (None, None, None)
    write("sources/0/0", '{"a":{"0":0}}')
    write("offsets/0", '{"a":{"0":2}}')
    write("offsets/.0.crc")
    assert (log.unfinished(), log.done()) == (0, {"a": {"0": 0}})
    write("commits/0")
    write("offsets/1")
    assert (log.unfinished(), log.done(), log.end(1)) == (1, {"a": {"0": 2}}, ENDS)
    assert log.last_begun() == 1
    log.take_back(1)
    assert (log.unfinished(), log.end(1), log.last_begun()) == (None, None, 0)
    assert not Path(log.path_of(1)).exists()


def test_a_fingerprint_is_of_the_offsets_alone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    written = [WRITTEN, '{"b.c-d": {"0": 7}, "a": {"1": 0, "0": 3}}', '{"a":{"0":3,"1":1},"b.c-d":{"0":7}}', "-"]
    for batch_id, ends in enumerate(written):
        (tmp_path / "offsets" / str(batch_id)).write_text(f"v{batch_id}\n{SETTINGS}\n{ends}")
    first, same, other, nothing = map(QueryLog(spark, str(tmp_path)).fingerprint, range(4))
    assert first == same
    assert first != other
    assert nothing is None
