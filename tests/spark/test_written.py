"""Rows that Spark has written and that are not all in the files: they are not taken for landed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import written
from aiorecover.spark.directory import Directory
from aiorecover.spark.files import Files
from aiorecover.spark.observed import counts_of
from aiorecover.spark.session import clear_errors
from aiorecover.spark.written import write_whole
from tests.spark.clearing import clears_as_before
from tests.spark.feed import landing, once, published, shuffled
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

LACKING = "^rows that Spark has written are not in the files, so these are not landed: see that no other landing works "


def part_of(directory: Path) -> Path:
    return next(iter(sorted(directory.glob("part-*.parquet"), key=lambda path: -path.stat().st_size)))


def test_a_batch_of_which_a_file_is_gone_before_it_is_renamed_is_not_there_and_is_added_whole_by_the_next_try(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, write_new = Directory(spark, str(tmp_path / "table")), Files.write_new
    rows = spark.range(0, 1000, 1, 4)

    def write_later(self: Files, path: str, content: bytes) -> None:
        (aside,) = (tmp_path / "table" / "_staging").iterdir()
        part_of(aside).unlink()
        write_new(self, path, content)

    monkeypatch.setattr(Files, "write_new", write_later)
    with pytest.raises(ConfigError, match=rf"{LACKING}.* written=1000 found=750 directory='{tmp_path}/table/_staging/"):
        target.add(rows, 7, "offsets")
    monkeypatch.undo()
    assert not target.holds(7)
    target.add(rows, 7, "offsets")
    assert spark.read.parquet(target.place(7)).count() == 1000


def cut_short(directory: Path) -> None:
    part_of(directory).write_bytes(b"PAR1")
    (directory / f".{part_of(directory).name}.crc").unlink()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda directory: part_of(directory).unlink(), r"written=100 found=50 "),
        (shutil.rmtree, r"written=100 directory=.* error='java.io.FileNotFoundException: "),
        (cut_short, r"written=100 directory=.* error='.*is not a Parquet file"),
    ],
    ids=["a file", "all", "an end"],
)
def test_what_is_gone_or_cut_short_by_then_is_one_sentence(
    harm: Callable[[Path], object], said: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def harmed(observation: Any) -> Any:
        harm(tmp_path / "rows")
        return counts_of(observation)

    monkeypatch.setattr(written, "counts_of", harmed)
    with pytest.raises(ConfigError, match=f"{LACKING}.* {said}") as refused:
        write_whole(spark.range(0, 100, 1, 2), str(tmp_path / "rows"))
    assert "\n" not in str(refused.value)


def test_no_rows_are_as_whole_as_many_and_where_spark_tells_no_number_none_is_asked_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = spark.range(0)
    for number, rows in enumerate([nothing, nothing.coalesce(1), spark.range(9).where("id > 9"), spark.range(9)]):
        write_whole(rows, str(tmp_path / str(number)))
        assert spark.read.parquet(str(tmp_path / str(number))).count() == rows.count()
    monkeypatch.setattr(written, "counts_of", lambda _: None)
    monkeypatch.setattr(written, "_rows_in", lambda *_: 8)
    write_whole(spark.range(9), str(tmp_path / "unknown"))


def test_what_another_start_clears_away_in_the_middle_of_a_write_is_not_landed_and_nothing_is_lost(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled(11)
    admin.run(published(kafka, name, rows))
    lacking = pytest.raises(ConfigError, match=LACKING)
    with clears_as_before(tmp_path / "table"), lacking, clear_errors():
        landing(spark, kafka, name, tmp_path, files_per_batch=40)
    assert list((tmp_path / "table").glob("batch_id=*")) == []
    landing(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == once(rows)
