"""Directories that driver and executors have in common, or have not."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import sharing
from aiorecover.spark.failures import LACKING_ROWS
from aiorecover.spark.files import Files
from aiorecover.spark.schemes import scheme_of
from aiorecover.spark.sharing import check_shared, is_one_machine
from aiorecover.spark.staging import ABANDONED_AFTER_S
from tests.spark.death import DeathError
from tests.spark.feed import P, published
from tests.spark.own_disks import CASES, OWN, UNTRIED
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

WITHIN_S = 500  # 40 on two cores that do much else
RECORDS = 90


@pytest.mark.timeout(600)
def test_where_driver_and_executors_have_disks_of_their_own_a_landing_is_refused_and_leaves_nothing(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=3)
    admin.run(published(kafka, name, [(number % 3, f"{P}/1/{number + 1}") for number in range(RECORDS)]))
    driver = tmp_path / "driver"
    driver.mkdir()
    told = {"servers": kafka.bootstrap_servers, "topic": name, "directory": str(tmp_path)}
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark.own_disks", json.dumps(told)],
        cwd=driver,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    found = dict(zip([*CASES, *UNTRIED], json.loads(child.stdout.splitlines()[-1]), strict=True))
    assert found.pop("none") == RECORDS
    for case in UNTRIED:
        assert LACKING_ROWS in str(found.pop(case)), f"landed, with so many records in sight: {found}"
        (driver / case).rename(tmp_path / f"driver-{case}")
    for case, said in found.items():
        assert isinstance(said, str), f"landed, with so many records in sight: {found}"
        place = f"target='file:{OWN}/warehouse/records'" if case == "table" else f"{case}='{OWN}/{case}'"
        assert said.startswith("driver and executors do not share this directory"), said
        assert said.endswith(place), said
        assert "\n" not in said
    assert list(tmp_path.rglob("_aiorecover-*")) == []
    assert sorted(path.name for path in driver.iterdir()) == ["warehouse"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' Spark is taken for one."""
    monkeypatch.setattr(sharing, "is_one_machine", lambda _: False)


@pytest.mark.usefixtures("cluster")
def test_directories_that_are_shared_are_tried_and_nothing_is_made(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    there, new = f"{tmp_path}/there", f"file:{tmp_path}/not/there/yet"
    elsewhere = "hdfs://nowhere/x"
    check_shared(spark, {"target": there, "quarantine": None, "checkpoint": new, "elsewhere": elsewhere})
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("dies", [False, True])
def test_what_executors_write_has_to_be_seen_and_the_trial_is_removed_in_any_case(
    dies: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Files.names

    def all_but_one(self: Files, path: str) -> list[str]:
        found = names(self, path)
        if not path.endswith("/executors"):
            return found
        if dies:
            raise DeathError
        found.remove(next(name for name in found if name.startswith("part-")))
        return found

    monkeypatch.setattr(Files, "names", all_but_one)
    with pytest.raises(
        DeathError if dies else ConfigError, match=None if dies else "^driver and executors do not share"
    ):
        check_shared(spark, {"target": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("cluster")
def test_what_a_killed_trial_has_left_is_removed_by_the_next_one_a_day_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    then = time.time() - ABANDONED_AFTER_S
    for name, when in [("_aiorecover-old", then - 60), ("_aiorecover-new", then + 60), ("_others", then - 60)]:
        (tmp_path / name / "drivers").mkdir(parents=True)
        os.utime(tmp_path / name, (when, when))
    check_shared(spark, {"target": str(tmp_path)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_aiorecover-new", "_others"]


@pytest.mark.usefixtures("cluster")
def test_executors_that_may_not_write_there_are_one_sentence_and_the_trial_is_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    see = sharing._executors_see

    def see_and_be_shut_out(spark: SparkSession, files: Files, directory: str, tasks: int) -> bool:
        found = see(spark, files, directory, tasks)
        probe = Path(directory.removeprefix("file:")).parent
        shutil.rmtree(probe)
        probe.touch()
        return found

    monkeypatch.setattr(sharing, "_executors_see", see_and_be_shut_out)
    with pytest.raises(ConfigError, match=r"^executors cannot read and write in this directory: see that ") as refused:
        check_shared(spark, {"target": str(tmp_path)})
    assert "\n" not in str(refused.value)
    assert f"path='file:{tmp_path}' error='" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("master", "is_one"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2, 2]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host:443", False),
    ],
)
def test_only_a_spark_without_executors_is_one_machine(master: str, is_one: bool) -> None:
    assert is_one_machine(master) == is_one


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("s3a://bucket/x", "s3a"),
        ("S3A://bucket/x", "s3a"),
        ("file:/x", "file"),
        ("/x/a:b", "default"),
        ("x/a:b", "default"),
        ("x", "default"),
        ("", "default"),
    ],
)
def test_the_scheme_is_what_hadoop_takes_for_it(path: str, scheme: str) -> None:
    assert scheme_of(path, "default") == scheme
