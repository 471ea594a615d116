"""What may not be written, told in one sentence."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import land
from aiorecover.spark.files import Files

UNWRITABLE = "/proc/aiorecover"  # where nobody makes a directory, whatever rights there are


@pytest.mark.parametrize(("target", "checkpoint"), [("{0}/table", UNWRITABLE), (UNWRITABLE, "{0}/checkpoint")])
def test_a_landing_whose_directories_may_not_be_made_is_refused_in_one_sentence(
    target: str, checkpoint: str, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"^this may not be written: check its path, its rights and ") as refused:
        land(spark, ["x"], target.format(tmp_path), checkpoint.format(tmp_path), bootstrap_servers="x")
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(f"error='java.io.IOException: mkdir of {UNWRITABLE} failed' path='{UNWRITABLE}'")


def test_a_small_file_that_cannot_be_written_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"may not be written|a path leads through a file") as refused:
        Files(spark, str(tmp_path)).write_new(f"{tmp_path}/file/new", b"x")
    assert "\n" not in str(refused.value)
