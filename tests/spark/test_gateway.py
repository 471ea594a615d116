"""What Java says while Spark starts: Ivy's report is held back, and nothing else."""

import pytest

from aiorecover.spark.gateway import Report

BEFORE = ["WARNING: Using incubator modules", "Warning: Ignoring non-Spark config property: mine"]
RESOLVING = [
    ":: loading settings :: url = jar:file:/ivysettings.xml",
    "Ivy Default Cache set to: /root/.ivy2/cache",
    "org.apache.spark#spark-sql-kafka-0-10_2.13 added as a dependency",
    "\tfound org.apache.kafka#kafka-clients;3.9.1 in central",
]
FETCHING = ["downloading https://repo1.maven.org/maven2/kafka-clients-3.9.1.jar ..."]
DONE = [
    "\t[SUCCESSFUL ] org.apache.kafka#kafka-clients;3.9.1!kafka-clients.jar (220ms)",
    ":: retrieving :: org.apache.spark#spark-submit-parent-1",
    "\tconfs: [default]",
    "\t9 artifacts copied, 0 already retrieved (58105kB/99ms)",
]
AFTER = ["26/11/25 22:15:00 WARN Utils: Your hostname, vm, resolves to a loopback address"]
FAILED = [
    "\tHost repos.spark-packages.org not found. url=https://repos.spark-packages.org/one.jar",
    "\tHost repos.spark-packages.org not found. url=https://repos.spark-packages.org/two.jar",
    "\tServer access error at url https://repo1.maven.org/maven2/x.pom (java.net.ConnectException: refused)",
    "\t\t:: org.apache.kafka#kafka-clients;3.9.1: not found",
    "java.lang.RuntimeException: [unresolved dependency: org.apache.kafka#kafka-clients;3.9.1: not found]",
    "java.lang.RuntimeException: [download failed: org.lz4#lz4-java;1.8.0!lz4-java.jar]",
    "\tat org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:539)",
]


def heard(report: Report, *lines: str) -> list[str]:
    return b"".join(report.hear(f"{line}\n".encode()) for line in lines).decode().splitlines()


def test_of_what_is_fetched_only_the_downloads_are_told_and_all_of_the_rest_of_java() -> None:
    report = Report()
    assert heard(report, *BEFORE, *RESOLVING, *FETCHING, *DONE, *AFTER) == [*BEFORE, *FETCHING, *AFTER]
    assert (report.missing(), report.unreachable(), report.rest()) == ([], [], b"")


def test_once_java_is_up_all_is_told_however_the_report_has_ended() -> None:
    report = Report()
    assert heard(report, *RESOLVING, "a line that nobody knows") == []
    report.started()
    assert heard(report, *AFTER, *RESOLVING) == [*AFTER, *RESOLVING]
    assert report.rest() == b""


def test_what_could_not_be_had_is_kept_once_each_and_its_many_lines_are_not_told() -> None:
    report = Report()
    assert heard(report, *BEFORE, *RESOLVING, *FAILED) == BEFORE
    assert report.missing() == ["org.apache.kafka:kafka-clients:3.9.1", "org.lz4:lz4-java:1.8.0"]
    assert report.unreachable() == ["repos.spark-packages.org", "repo1.maven.org"]
    assert report.rest() == b""


@pytest.mark.parametrize("last", ["java.lang.OutOfMemoryError", ""])
def test_what_ends_for_another_reason_says_all_that_was_held_back(last: str) -> None:
    report = Report()
    assert heard(report, *RESOLVING, last) == []
    assert report.rest().decode().splitlines() == [*RESOLVING, last]
