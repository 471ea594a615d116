"""What killed attempts have left where files are written until they are renamed."""

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.spark.claiming import claim
from aiorecover.spark.files import Files
from aiorecover.spark.staging import ABANDONED_AFTER_S, clear_staging
from aiorecover.spark.targets import find_target
from aiorecover.spark.undecided import Undecided


def left(directory: Path, name: str, age_s: float) -> Path:
    """An attempt in a staging directory, that has been touched last so long ago."""
    path = directory / "_staging" / name
    path.mkdir(parents=True)
    (path / "part-0").touch()
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize("is_locked", [True, False])
def test_without_the_lock_only_what_is_a_day_old_is_cleared_away_and_with_it_all(
    is_locked: bool, spark: SparkSession, tmp_path: Path
) -> None:
    young = left(tmp_path, "7-young", ABANDONED_AFTER_S - 60), left(tmp_path, "7-new", 0)
    old = left(tmp_path, "6-old", ABANDONED_AFTER_S + 60)
    clear_staging(Files(spark, str(tmp_path)), str(tmp_path), is_locked=is_locked)
    assert not old.exists()
    assert [path.exists() for path in young] == [not is_locked] * 2


def test_a_start_that_holds_no_lock_leaves_alone_what_another_one_may_be_writing(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoint, target = tmp_path / "checkpoint", find_target(spark, str(tmp_path / "table"))
    claim(spark, target, str(checkpoint), str(tmp_path / "apart"))
    places = [tmp_path / "table", tmp_path / "apart", checkpoint / "ids", checkpoint / "sinks"]
    written = [left(place, "7-x", 0) for place in places]

    def start(*, is_locked: bool) -> None:
        claim(spark, target, str(checkpoint), str(tmp_path / "apart"), is_locked=is_locked)
        Undecided(spark, str(checkpoint / "sinks"), "manifests").clear(is_locked=is_locked)

    start(is_locked=False)
    assert [path.exists() for path in written] == [True] * len(places)
    start(is_locked=True)
    assert [path.exists() for path in written] == [False] * len(places)
