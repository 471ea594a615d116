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
    log.take_back(1)
    assert (log.unfinished(), log.end(1)) == (None, None)
    assert not Path(log.path_of(1)).exists()
