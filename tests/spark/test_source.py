"""Rings as data frames. All but one test read without Spark: what it calls in its workers is plain Python."""

import asyncio
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import pyspark_aiorecover
from aiorecover import RecoverableProducer
from aiorecover.errors import ConfigError
from aiorecover.spark import audit, read_topics, source
from aiorecover.spark.ring_rows import _BATCH_ROWS, ARROW_SCHEMA
from tests.left import SLOT, leave
from tests.support.cluster import Cluster, TopicFactory

NOBODY = "127.0.0.1:1"
Row = dict[str, Any]


def reader_of(path: Path, **options: str) -> source.RingReader:
    return source.RingReader({"path": str(path), **options}, source.SCHEMA)


def rows_of(path: Path, **options: str) -> list[Row]:
    reader = reader_of(path, **options)
    return [row for part in reader.partitions() for row in rows_in(reader, part)]


def rows_in(reader: source.RingReader, part: Any) -> list[Row]:
    carried = pickle.loads(pickle.dumps(part))  # noqa: S301 - as Spark carries it to an executor
    return [row for batch in reader.read(carried) for row in batch.to_pylist()]


def sequences(rows: list[Row], state: str = "waiting") -> list[int]:
    return [row["sequence"] for row in rows if row["state"] == state]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


# -- records -----------------------------------------------------------------------------------------------------------


def test_every_record_that_waits_is_a_row_as_it_would_stand_in_kafka(tmp_path: Path) -> None:
    producer_id = leave(tmp_path, 500, value=bytes(100))
    left = rows_of(tmp_path)
    assert len(reader_of(tmp_path).partitions()) > 4, "a partition for each slot, and one for the retry ring"
    assert sequences(left) == list(range(1, 501))
    first = left[0]
    assert first.pop("timestamp").timestamp() == 1_700_000_000
    assert (first.pop("slot"), first.pop("file_offset") < SLOT) == (1, True)
    identity = f"{producer_id}/1/1".encode()
    assert first == {
        "directory": str(tmp_path / "0"),
        "ring": "ring",
        "state": "waiting",
        "producer_id": producer_id,
        "epoch": 1,
        "sequence": 1,
        "topic": "orders",
        "partition": None,
        "key": b"key 1",
        "value": b"1/" + bytes(100),
        "headers": [{"key": "h", "value": b"\xff"}, {"key": "aiorecover-id", "value": identity}],
        "error": None,
    }
    assert rows_of(tmp_path / "0")[1:] == left[1:], "one instance by its own path"


def test_the_columns_of_arrow_are_those_of_spark() -> None:
    assert to_arrow_schema(source.SCHEMA).equals(ARROW_SCHEMA)


def test_large_backlogs_come_in_batches_of_bounded_size(tmp_path: Path) -> None:
    leave(tmp_path, 2 * _BATCH_ROWS + 1, slot_bytes=1 << 22)
    reader = reader_of(tmp_path)
    batches = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
    assert batches == [_BATCH_ROWS, _BATCH_ROWS, 1]


# -- damage ------------------------------------------------------------------------------------------------------------


def test_damage_leaves_the_readable_rest_and_names_what_is_missing(tmp_path: Path) -> None:
    producer_id = leave(tmp_path, 500, value=bytes(100))
    rows = rows_of(tmp_path)
    places = {row["sequence"]: row["file_offset"] for row in rows}
    second = [row["sequence"] for row in rows if row["slot"] == 2]
    overwrite(tmp_path / "0" / "ring", places[20] + 30, b"damage")
    for offset in (SLOT, 2 * SLOT - 512):  # both copies of the header of the second slot
        overwrite(tmp_path / "0" / "ring", offset, b"\xff" * 512)
    rows = rows_of(tmp_path)
    gone = [20, *second]
    assert sequences(rows) == [number for number in range(1, 501) if number not in gone]
    assert sequences(rows, "missing") == [20, second[0]]
    said = [row["error"] for row in rows if row["state"] == "missing"]
    known = {row["producer_id"] for row in rows if row["state"] != "unreadable"}
    assert known == {producer_id}
    assert said == [
        "damage took away records epoch=1 sequences=20-20",
        f"damage took away records epoch=1 sequences={second[0]}-{second[-1]}",
    ]
    (unreadable,) = [row for row in rows if row["state"] == "unreadable"]
    assert "nothing of this slot can be read" in unreadable["error"]


def test_an_instance_of_which_nothing_can_be_read_is_a_row_beside_those_of_the_others(tmp_path: Path) -> None:
    for instance in ("0", "1"):
        leave(tmp_path, 3, instance=instance)
    (tmp_path / "0" / "ring").write_bytes(b"x" * SLOT)
    (tmp_path / "0" / "checkpoint").write_bytes(b"x" * 4096)
    rows = rows_of(tmp_path)
    assert [(Path(row["directory"]).name, row["state"]) for row in rows] == [
        ("0", "unreadable"),
        *[("1", "waiting")] * 3,
    ]
    assert "restore the files from a copy" in rows[0]["error"]


# -- what is gone ------------------------------------------------------------------------------------------------------


def test_a_directory_that_goes_between_listing_and_reading_is_one_sentence(tmp_path: Path) -> None:
    leave(tmp_path / "wal", 500, value=bytes(100))
    reader = reader_of(tmp_path / "wal", rings="ring")
    parts = list(reader.partitions())
    shutil.move(tmp_path / "wal" / "0", tmp_path / "away")
    for part in (parts[0], parts[-1]):
        with pytest.raises(ConfigError, match="the directory is not here: it must stand at the same place on every ex"):
            rows_in(reader, part)
    with pytest.raises(ConfigError, match="nothing of aiorecover is here: name a wal_dir"):
        reader.partitions()


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "name one wal_dir"),
        ({"path": "."}, "nothing of aiorecover is here: name a wal_dir"),
        ({"path": "not-there"}, "the directory cannot be read, name a wal_dir"),
        ({"path": ".", "rings": "ring,x"}, "rings are ring, retry and dead"),
        ({"path": ".", "settled": "yes"}, "settled is true or false"),
        ({"paths": '["/a", "/b"]'}, "name one wal_dir"),
        (
            {"path": "file:/x", "location": "file:/x", "owner": "root", "provider": "aiorecover"},
            "CREATE TEMPORARY VIEW",
        ),
        ({"path": ".", "ring": "dead"}, r"unknown option: did you mean rings\? option=ring"),
        ({"path": ".", "setled": "true"}, r"did you mean settled\?"),
        ({"wal_dir": "."}, "unknown option: leave it out, there are path, rings, settled option=wal_dir"),
    ],
)
def test_options_that_are_wrong_are_refused_with_the_remedy(
    options: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        source.check(options)


def test_columns_of_the_users_own_are_refused(tmp_path: Path) -> None:
    leave(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"leave out .schema\(...\)"):
        pyspark_aiorecover.DefaultSource({"path": str(tmp_path)}).reader(StructType())


# -- Spark -------------------------------------------------------------------------------------------------------------


def test_spark_knows_the_format_by_itself_and_publishes_what_a_producer_has_left(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=3)

    async def publish_and_read() -> tuple[list[Any], str]:
        async with RecoverableProducer(
            tmp_path, bootstrap_servers=NOBODY, slot_bytes=1 << 16, stop_timeout_ms=0
        ) as producer:
            for number in range(2_000):
                receipt = await producer.publish("orders", {"number": number}, key=str(number), partition=number % 3)
            found = await asyncio.to_thread(collected)
        return found, receipt.record_id

    def collected() -> list[Any]:
        df = spark.read.format("aiorecover").load(str(tmp_path))
        assert df.rdd.getNumPartitions() > 2
        return df.where("state = 'waiting'").select("sequence", "partition", "value", "key", "headers").collect()

    rows, last = asyncio.run(publish_and_read())
    assert [row["sequence"] for row in rows] == list(range(1, 2_001))
    assert all(json.loads(row["value"]) == {"number": row["sequence"] - 1} for row in rows)
    assert all(row["partition"] == int(row["key"]) % 3 for row in rows)
    assert rows[-1]["headers"][-1]["value"].decode() == last
    # Its machine is gone, so to say: what it has left is published, and nothing is missing from the topic.
    left = spark.read.format("aiorecover").load(str(tmp_path)).where("state = 'waiting'")
    left = left.select("partition", "key", "value", "headers").withColumn("topic", lit(name))
    left.write.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers).save()
    with audit(read_topics(spark, [name], kafka.bootstrap_servers)) as found:
        totals = found.totals.collect()[0]
        assert (totals["found"], totals["missing"], totals["repeated"]) == (2_000, 0, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PySparkException, match="nothing of aiorecover is here"):
        spark.read.format("aiorecover").load(str(tmp_path / "empty"))
