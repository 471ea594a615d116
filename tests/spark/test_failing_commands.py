"""What a user sees where Spark fails: few lines, none of Java's stacks, one sentence at the end, and the status."""

import os
import signal
from pathlib import Path

from pyspark.sql import SparkSession

from aiorecover.spark.failures import LACKING_ROWS
from tests.spark.clearing import clears_as_before
from tests.spark.commands import land_words, started_command
from tests.spark.feed import P, landing, once, published, shuffled
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

MOST_LINES = 30  # Spark's warnings as it starts, its errors in a line each, and our own


def failed(directory: Path, words: list[str]) -> tuple[int, list[str]]:
    with started_command(directory, words) as command:
        status, lines = command.end(), command.complained()
    return status, few(lines)


def few(lines: list[str]) -> list[str]:
    """There are few, and none of a stack, of Java's or of Python's."""
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert not any(line.lstrip().startswith(("at ", "Traceback")) for line in lines), "\n".join(lines)
    return lines


def test_records_that_kafka_deleted_before_they_were_landed_are_status_3_and_a_sentence(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/{sequence}") for sequence in range(1, 6)]))
    landing(spark, kafka, name, tmp_path)
    admin.run(published(kafka, name, [(0, f"{P}/1/{sequence}") for sequence in range(6, 11)]))
    admin.run(admin.delete_records(kafka.bootstrap_servers, name, 0, before=8))
    status, lines = failed(tmp_path, land_words(kafka, name, tmp_path, "--available-now"))
    assert status == 3, "\n".join(lines)
    assert lines[-1].startswith("Kafka has deleted records that were to be read next")
    assert lines[-1].endswith(f" topic={name} partition=0 within=5-9")
    # Those that are still there are landed by whoever says so.
    landing(spark, kafka, name, tmp_path, options={"failOnDataLoss": "false"})
    assert landed_ids(tmp_path / "table").keys() == {f"{P}/1/{sequence}" for sequence in (1, 2, 3, 4, 5, 9, 10)}


def test_rows_that_another_start_cleared_away_are_status_2_and_a_sentence_and_are_landed_by_the_next_start(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(11)
    admin.run(published(kafka, name, rows))
    with clears_as_before(tmp_path / "table"):
        status, lines = failed(
            tmp_path, land_words(kafka, name, tmp_path, "--available-now", "--files-per-batch", "40")
        )
    assert status == 2, "\n".join(lines)
    assert lines[-1].startswith(LACKING_ROWS)
    assert list((tmp_path / "table").glob("batch_id=*")) == []
    with started_command(tmp_path, land_words(kafka, name, tmp_path, "--available-now")) as command:
        assert command.end() == 0, "\n".join(command.complained())
    assert landed_ids(tmp_path / "table") == once(rows)


def test_what_nobody_foresaw_is_status_1_and_a_sentence_with_the_innermost_error(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/1")]))
    landing(spark, kafka, name, tmp_path)
    admin.run(published(kafka, name, [(0, f"{P}/1/2")]))
    for file in (tmp_path / "checkpoint" / "ids").rglob("*.parquet"):
        file.write_bytes(b"not Parquet")
        file.with_name(f".{file.name}.crc").unlink()
    status, lines = failed(tmp_path, land_words(kafka, name, tmp_path, "--available-now"))
    assert status == 1, "\n".join(lines)
    assert lines[-1].startswith("Spark failed, start again, and if that ends likewise, mend what the error says error=")
    assert "is not a Parquet file" in lines[-1]


def test_where_java_is_killed_the_last_line_says_so(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/1")]))
    with started_command(tmp_path, land_words(kafka, name, tmp_path)) as command:
        command.until((tmp_path / "checkpoint" / "query" / "offsets" / "0").exists)
        os.kill(command.members()["java"], signal.SIGKILL)
        assert command.end() == 1, "\n".join(command.complained())
        lines = few(command.complained())
    assert lines[-1].startswith("Spark's Java is gone, killed or by itself")
    assert lines[-1].endswith("java_status=-9")
