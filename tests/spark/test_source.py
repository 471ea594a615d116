"""Rings as data frames. All tests but one read without Spark: the reader in its workers is plain Python."""

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import pyspark_aiorecover
from aiorecover import RecoverableProducer
from aiorecover.errors import ConfigError
from aiorecover.spark import audit, read_topics, source
from tests.support.cluster import Cluster, TopicFactory
from tests.support.published import NOWHERE

TIME_MS = 1_700_000_000_123
Row = dict[str, Any]


def fill(wal_dir: Path, count: int, size: int = 5, partition: int | None = None) -> str:
    """Publish without a broker, so that the records stay in the directory; return the producer's id."""

    async def publish() -> str:
        async with RecoverableProducer(wal_dir, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
            for number in range(1, count + 1):
                more: Row = {"partition": partition, "timestamp_ms": TIME_MS, "headers": [("h", b"\xff")]}
                await producer.publish("orders", b"%d/" % number + bytes(size), key=b"key %d" % number, **more)
            return producer.producer_id

    return asyncio.run(publish())


def reader_of(path: Path, **options: str) -> source.RingReader:
    return source.RingReader({"path": str(path), **options}, source.SCHEMA)


def rows_of(path: Path, **options: str) -> list[Row]:
    reader = reader_of(path, **options)
    parts = pickle.loads(pickle.dumps(reader.partitions()))  # noqa: S301 - Spark does so for its executors
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_each_waiting_record_is_a_row_as_it_would_stand_in_kafka(tmp_path: Path) -> None:
    producer_id = fill(tmp_path, 10_000, 1000)
    rows = rows_of(tmp_path)
    assert [row["sequence"] for row in rows] == [*range(1, 10_001)]
    first = rows[0]
    assert first.pop("value").startswith(b"1/")
    assert first.pop("timestamp").timestamp() == TIME_MS / 1000
    headers = [("h", b"\xff"), ("aiorecover-id", f"{producer_id}/1/1".encode())]
    assert first.pop("headers") == [{"key": name, "value": value} for name, value in headers]
    ids = {"directory": str(tmp_path / "0"), "state": "waiting", "producer_id": producer_id, "epoch": 1}
    assert first == ids | {"sequence": 1, "topic": "orders", "partition": None, "key": b"key 1", "error": None}
    fill(tmp_path, 1, partition=3)
    assert [(row["epoch"], row["partition"]) for row in rows_of(tmp_path / "0")[-1:]] == [(2, 3)]
    reader = reader_of(tmp_path)
    sizes = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
    assert (sum(sizes), max(sizes)) == (10_001, 4_096)


def test_a_live_directory_is_read_and_dead_letters_are_rows_on_request(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1, config={"max.message.bytes": "3000"})

    async def publish() -> tuple[list[Row], list[Row]]:
        async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
            await producer.publish(name, b"x" * 5000, key="poison")
            await producer.flush(timeout_ms=30_000)
            producer.publish_nowait(name, "waits", partition=0)  # the loop gets no turn before the read
            return rows_of(tmp_path), rows_of(tmp_path, dead="true")

    waiting, both = asyncio.run(publish())
    assert [(row["state"], row["value"]) for row in waiting] == [("waiting", b"waits")]
    (letter,) = (row for row in both if row["state"] == "dead_letter")
    assert (letter["topic"], letter["partition"], letter["key"], letter["sequence"]) == (name, 0, b"poison", 1)
    assert "too large" in letter["error"]


def test_an_unreadable_instance_is_one_row_and_hides_no_other_instance(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    for name, file, content in [("1", "lock", b""), ("2", "checkpoint", b"garbage"), ("3", "ring", b"x" * 70_000)]:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(content)
    (tmp_path / "2" / "ring").touch()
    rows = rows_of(tmp_path)
    states = [(Path(row["directory"]).name, row["state"]) for row in rows]
    assert states[:3] == [("0", "waiting")] * 3
    assert dict(states[3:]) == dict.fromkeys("123", "unreadable")
    assert all(row["error"] and row["topic"] is None for row in rows[3:])


def test_records_after_damage_are_read(tmp_path: Path) -> None:
    fill(tmp_path, 2_000, 1000, partition=0)
    all_rows = rows_of(tmp_path)
    data = bytearray((tmp_path / "0" / "ring").read_bytes())
    place = data.index(b"key 1000")
    data[place - 300 : place + 300] = b"\xff" * 600
    (tmp_path / "0" / "ring").write_bytes(data)
    left = [row["sequence"] for row in rows_of(tmp_path) if row["state"] == "waiting"]
    assert len(left) < len(all_rows) == 2_000
    assert {*left} < {row["sequence"] for row in all_rows}
    assert 2_000 in left, "the records after the damage are read"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "{empty}"}, "nothing of aiorecover is here"),
        ({"path": "{empty}/absent"}, "the directory cannot be read"),
        ({"path": "{empty}/file"}, "the directory cannot be read"),
        ({}, "name one wal_dir"),
        ({"path": "{wal}", "dead": "maybe"}, "dead is true or false"),
        ({"path": "{wal}", "ded": "true"}, "there is dead=true, and the path option=ded"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(options: dict[str, str], message: str, tmp_path: Path) -> None:
    fill(tmp_path / "wal", 1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "file").touch()
    paths = {"empty": tmp_path / "empty", "wal": tmp_path / "wal"}
    options = {name: value.format(**paths) for name, value in options.items()}
    with pytest.raises(ConfigError, match=message):
        pyspark_aiorecover.DefaultSource(options).schema()
    with pytest.raises(ConfigError, match="the columns are given"):
        source.RingReader({"path": str(tmp_path / "wal")}, StructType())


def test_spark_finds_the_format_by_itself_and_publishes_the_records_that_a_producer_left(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=3)
    producer_id = fill(tmp_path / "wal", 100)
    left = spark.read.format("aiorecover").load(str(tmp_path / "wal")).where("state = 'waiting'")
    left.selectExpr(f"'{name}' as topic", "key", "value", "headers").write.format("kafka").option(
        "kafka.bootstrap.servers", kafka.bootstrap_servers
    ).option("includeHeaders", "true").save()
    with audit(read_topics(spark, [name], kafka.bootstrap_servers)) as found:
        (row,) = found.producers.collect()
    assert (row["producer_id"], row["found"], row["missing"], row["repeated"]) == (producer_id, 100, 0, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PySparkException, match="nothing of aiorecover is here"):
        spark.read.format("aiorecover").load(str(tmp_path / "empty"))
