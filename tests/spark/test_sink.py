"""Data frames written by Spark to a real broker, with tasks that fail and drivers that die.

Read back with a plain consumer: what counts is told by the header, the ids and the manifests, as a stranger would.
"""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from aiorecover.spark import audit, compare, counted_attempts
from tests.spark.feed import landing
from tests.spark.planted_sinks import FORMAT, register_planted
from tests.spark.sink_topics import Topics, number_of, write_of
from tests.support.cluster import Cluster, TopicFactory

ROWS = 3000
SIZE = 200  # bytes of a value, at least


def numbered(spark: SparkSession, count: int = ROWS, tasks: int = 3, size: int = SIZE) -> DataFrame:
    rows = spark.range(0, count, 1, tasks)
    return rows.selectExpr(
        "cast(id as string) as key", f"concat(cast(id as string), ' ', repeat('x', {size})) as value"
    )


def test_a_batch_is_written_once_and_its_manifest_names_every_task(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    topics = Topics(kafka, topic)
    topics.write(numbered(spark), wal_dir=str(tmp_path))
    found = topics.consumed()
    assert sorted(map(number_of, found)) == list(range(ROWS))
    (manifest,) = topics.manifest_parts()
    assert [one["rows"] for one in manifest["attempts"]] == [1000] * 3
    assert len({one["producer_id"] for one in manifest["attempts"]}) == 3
    assert {write_of(one) for one in found} == {manifest["write"]}
    assert topics.counted() == Counter(range(ROWS)) == topics.found_by_spark(spark)
    assert list(tmp_path.iterdir()) == []


def test_what_a_failed_attempt_leaves_does_not_count(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    topics = Topics(kafka, topic)
    register_planted(spark)
    topics.writer(numbered(spark, 600), plant="attempt", marker=str(tmp_path)).format(FORMAT).save()
    assert len(topics.consumed()) > 600, "the failed attempt was to send something"
    assert topics.counted() == Counter(range(600)) == topics.found_by_spark(spark)
    records, manifests = topics.read(spark, topics.records), topics.read(spark, topics.manifests)
    with audit(records, sink_manifests=manifests) as found:
        (totals,) = found.totals.collect()
    assert (totals["records"], totals["found"], totals["missing"], totals["epochs"]) == (600, 600, 0, 3)
    with audit(records) as found:
        assert found.totals.collect()[0]["epochs"] == 4, "it was to have an id of its own"
    attempts = counted_attempts(manifests).orderBy("partition").collect()
    assert [(one["partition"], one["attempt"], one["last"]) for one in attempts] == [
        (0, 1, 200),
        (1, 0, 200),
        (2, 0, 200),
    ]


def test_a_row_that_is_too_large_for_the_topic_is_a_dead_letter_and_the_job_goes_on(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    topics = Topics(kafka, topic, max_message_bytes="20000")
    poison = spark.sql("select 'p' as key, concat('7 ', repeat('x', 30000)) as value")
    topics.write(numbered(spark, 100, 1).unionByName(poison).coalesce(1), wal_dir=str(tmp_path))
    assert topics.counted() == Counter(range(100))
    (attempt,) = topics.manifest_parts()[0]["attempts"]
    assert (attempt["rows"], attempt["dead_letters"]) == (101, [[101, 101]])
    assert Path(attempt["kept"].partition(":")[2]).parent == tmp_path
    with audit(topics.read(spark, topics.records), sink_manifests=topics.read(spark, topics.manifests)) as found:
        missing = [(row["first"], row["last"]) for row in found.missing.collect()]
    assert missing == [(101, 101)], "a dead letter is missing, and its id is in the manifest"


def test_a_job_with_a_name_counts_once_however_often_it_is_run(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory
) -> None:
    topics = Topics(kafka, topic)
    for _ in range(2):
        topics.write(numbered(spark, 100), job_id="2026-11-23")
    assert len(topics.consumed()) == 200
    assert topics.counted() == Counter(range(100))
    with pytest.raises(PySparkException, match="name another job_id for other rows"):
        topics.write(numbered(spark, 101), job_id="2026-11-23")
    topics.write(numbered(spark, 100), job_id="2026-11-24")
    assert topics.counted() == Counter(dict.fromkeys(range(100), 2))


def test_what_a_failed_job_leaves_never_counts(spark: SparkSession, kafka: Cluster, topic: TopicFactory) -> None:
    topics = Topics(kafka, topic)
    failing = numbered(spark, 100, 2).selectExpr("key", "if(key = '99', raise_error('planted'), value) as value")
    writes: list[dict[str, str]] = [{}, {"job_id": "may come again"}]
    for options in writes:
        with pytest.raises(PySparkException, match="planted"):
            topics.write(failing, **options)
        assert [part["attempts"] for part in topics.manifest_parts()] == [[]]
    assert topics.counted() == Counter()


def test_what_is_wrong_is_said_before_anything_runs(spark: SparkSession, kafka: Cluster, topic: TopicFactory) -> None:
    topics, rows = Topics(kafka, topic), numbered(spark, 10)
    for options, sentence in [
        ({"topic": "not-there"}, r"a topic does not exist: make it first, or check the name absent=\['not-there'\]"),
        ({"bootstrap_servers": "127.0.0.1:1"}, "Kafka cannot be reached"),
        ({"producer.linger": "1"}, "did you mean linger_ms"),
    ]:
        with pytest.raises(AnalysisException, match=sentence):
            topics.write(rows, **options)
    with pytest.raises(AnalysisException, match="cannot be overwritten"):
        topics.writer(rows, mode="overwrite").save()
    with pytest.raises(AnalysisException, match="a record needs a column value"):
        topics.write(rows.drop("value"))
    with pytest.raises(PySparkException, match="wal_dir must be a directory on every executor"):
        topics.write(rows, wal_dir="/not/there")
    assert topics.consumed() == []


# -- streams -----------------------------------------------------------------------------------------------------------


class Stream:
    """Files of numbers, a batch each, written by a stream that goes on where it was."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.topics, self.directory = topics, directory
        self.source = directory / "source"
        self.source.mkdir()
        self.written = 0

    def add(self, count: int) -> None:
        numbers = range(self.written, self.written + count)
        (self.source / f"{self.written:06d}.txt").write_text("".join(f"{number} \n" for number in numbers))
        self.written += count

    def run(self, spark: SparkSession, plant: str | None = None) -> None:
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.source)).repartition(2)
        planted = {"plant": plant, "marker": str(self.directory)} if plant else {}
        writer = rows.writeStream.format(FORMAT if plant else "aiorecover").trigger(availableNow=True)
        writer = writer.options(**self.topics.options(**planted))
        writer.option("checkpointLocation", str(self.directory / "checkpoint")).start().awaitTermination()


def test_a_stream_whose_driver_dies_before_or_after_its_manifest_counts_each_row_once(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    topics = Topics(kafka, topic)
    stream = Stream(topics, tmp_path)
    for _ in range(3):
        stream.add(100)
    register_planted(spark)
    for plant in ("before", "after"):
        with pytest.raises(StreamingQueryException, match=f"planted {plant}"):
            stream.run(spark, plant)
    stream.run(spark)
    assert len(topics.consumed()) == 500, "batch 1 was to be written three times"
    assert len(topics.manifest_parts()) == 4
    assert topics.counted() == Counter(range(300))
    # What lands and what is audited is the same.
    landing(spark, kafka, topics.records, tmp_path / "landing", sink_manifests=topics.manifests)
    landed = spark.read.parquet(*map(str, (tmp_path / "landing" / "table").glob("batch_id=*")))
    assert Counter(int(row["value"]) for row in landed.collect()) == Counter(range(300))
    records, manifests = topics.read(spark, topics.records), topics.read(spark, topics.manifests)
    with audit(records, sink_manifests=manifests) as found:
        (totals,) = found.totals.collect()
    assert (totals["found"], totals["expected"], totals["repeated"]) == (300, 300, 0)
    with compare(records, landed, sink_manifests=manifests) as compared:
        assert compared.totals.collect()[0]["absent"] == 0


def test_a_stream_whose_checkpoint_was_put_back_says_so(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    topics = Topics(kafka, topic)
    stream = Stream(topics, tmp_path)
    stream.add(10)
    stream.run(spark)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    stream.add(10)
    stream.add(10)
    stream.run(spark)
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    stream.add(10)
    with pytest.raises(StreamingQueryException, match="put back its newest state"):
        stream.run(spark)
    assert topics.counted() == Counter(range(30))
