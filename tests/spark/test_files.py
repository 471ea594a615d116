"""What cannot be reached, or may not be written, told in one sentence; and what stands in a directory."""

from pathlib import Path
from typing import Any

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


NO_CLASS = r"^a class is missing that Hadoop's settings name: name its jar in spark\.jars\.packages; for a path of abfs"
NO_SCHEME = "^Hadoop knows no file system of this scheme: check the path, or name its jar in spark.jars.packages "


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nosuch://x/y", NO_SCHEME),
        ("abfs://container@account/x", NO_CLASS),
        ("hdfs://no-such-host.invalid/x", "^no host is known by this name: check the path, and fs.defaultFS "),
        ("hdfs://127.0.0.1:1/x", "^the file system cannot be reached: check host and port in the path, fs.defaultFS "),
    ],
)
def test_a_file_system_that_is_not_there_is_one_sentence(
    path: str, said: str, spark: SparkSession, tmp_path: Path
) -> None:
    spark.sparkContext._jsc.hadoopConfiguration().set("ipc.client.connect.max.retries", "0")  # each takes a second
    for target, checkpoint in [(path, f"{tmp_path}/c"), (f"{tmp_path}/table", path)]:
        with pytest.raises(ConfigError, match=said) as refused:
            land(spark, ["x"], target, checkpoint, bootstrap_servers="x")
        assert "\n" not in str(refused.value)
        assert f"path='{path}" in str(refused.value)


def test_a_directory_is_listed_by_as_many_calls_of_java_s_however_much_stands_in_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(directory: str, names: list[str]) -> str:
        for name in names:
            (tmp_path / directory / name).mkdir(parents=True)
        return str(tmp_path / directory)

    odd = sorted([".hidden", "_staging", "a b", "a%20b", "a\nb", "batch_id=7", "\u00fc", "x,y", "[z]"])
    calls = 0
    client = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    send = client.send_command

    def counted(*told: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return send(*told, **options)

    files = Files(spark, str(tmp_path))
    monkeypatch.setattr(client, "send_command", counted)

    def listed(directory: str) -> tuple[list[str], int]:
        before = calls
        return files.names(directory), calls - before

    assert listed(made("odd", odd))[0] == odd
    many = sorted(f"batch_id={number}" for number in range(200))
    one, few = listed(made("few", ["x"]))
    all_of_them, most = listed(made("many", many))
    assert (one, all_of_them) == (["x"], many)
    assert most <= few + 5, "Java's garbage is collected meanwhile"
    assert listed(made("none", []))[0] == listed(str(tmp_path / "nowhere"))[0] == []


def test_a_small_file_that_cannot_be_written_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"may not be written|a path leads through a file") as refused:
        Files(spark, str(tmp_path)).write_new(f"{tmp_path}/file/new", b"x")
    assert "\n" not in str(refused.value)
