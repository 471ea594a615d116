from pathlib import Path

import pytest

from tests.support.classes import archive_of, sharing


@pytest.fixture
def java(tmp_path: Path) -> Path:
    (tmp_path / "java").write_text("java")
    return tmp_path / "java"


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "one.jar").write_text("one")
    return tmp_path / "broker"


def test_an_archive_that_is_there_is_shared_and_none_that_is_not(java: Path, jars: Path) -> None:
    assert sharing(java, jars) == []
    archive_of(java, jars).touch()
    assert sharing(java, jars) == [f"-XX:SharedArchiveFile={archive_of(java, jars)}"]


def test_an_archive_may_be_kept_elsewhere(java: Path, jars: Path) -> None:
    kept = archive_of(java, jars, java.parent / "kept" / "spark")
    assert kept.parent == java.parent / "kept"
    assert kept.name == archive_of(java, jars).name.replace("broker-", "spark-")


@pytest.mark.parametrize("other", ["java", "broker/one.jar", "broker/two.jar"])
def test_another_java_or_other_jars_take_an_archive_of_their_own(java: Path, jars: Path, other: str) -> None:
    before = archive_of(java, jars)
    (java.parent / other).write_text("another one")
    assert archive_of(java, jars) != before
