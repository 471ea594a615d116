"""`aiorecover land` and `audit` in processes of their own: signals, a Java that dies, missing installations."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark.failures import failure_of
from aiorecover.spark.packages import SPARK, packages_for
from aiorecover.spark.session import clear_errors, start_session
from tests.spark.commands import Command, audit_words, land_words, running_command
from tests.spark.feed import each_id_once, land_all, publish, rows_of, shuffled_rows
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

INT, TERM = signal.SIGINT, signal.SIGTERM
STOPS_WITHIN_S = 60.0  # the command allows itself eight; one that waits for Spark or Java without a bound hangs
MOST_LINES = 30  # Spark's warnings at its start, its errors in a line each, and the command's
SCALA = "2.12" if SPARK == "3.5" else "2.13"
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{pyspark.__version__}"


def stop(command: Command, number: signal.Signals, *, group: bool) -> str:
    """Stop the command; return its last line. It writes no other line, and leaves no process."""
    before = len(command.error_lines())
    command.send(number, group=group)
    status = command.wait(STOPS_WITHIN_S)
    lines = command.error_lines()[before:]
    assert (status, len(lines)) == (128 + number, 1), "\n".join(lines)
    assert command.processes() == {}
    return lines[0]


def test_ctrl_c_in_a_batch_prints_one_line_and_the_next_start_lands_each_record_once(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, rows, query = topic(kafka, partitions=3), shuffled_rows(2), tmp_path / "checkpoint" / "query"
    admin.run(publish(kafka, name, rows))
    with running_command(tmp_path, land_words(kafka, name, tmp_path, "--available-now")) as command:
        command.wait_until((query / "offsets" / "0").exists)
        line = stop(command, INT, group=True)
    counts = "stopped: 0 batches with 0 records were landed since the start"
    assert line == f"{counts}; the next start with the same target and checkpoint goes on from there"
    assert not (query / "commits" / "0").exists(), "the signal came after the batch"
    land_all(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == each_id_once(rows)


def test_sigterm_ends_an_audit_and_its_java(kafka: Cluster, tmp_path: Path) -> None:
    with running_command(tmp_path, audit_words(kafka, "never-read", tmp_path)) as command:
        command.wait_until(lambda: len(command.processes()) > 1)
        time.sleep(0.5)
        command.send(TERM, group=False)
        assert (command.wait(STOPS_WITHIN_S), command.processes()) == (143, {}), "\n".join(command.error_lines())
        assert command.error_lines()[-1].startswith("stopped: nothing is said of the records")


def test_a_killed_java_is_named_in_the_last_line_without_a_stack(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    admin.run(publish(kafka, name, rows_of([1])))
    with running_command(tmp_path, land_words(kafka, name, tmp_path)) as command:
        command.wait_until((tmp_path / "checkpoint" / "query" / "offsets" / "0").exists)
        os.kill(command.processes()["java"], signal.SIGKILL)
        assert command.wait() == 1, "\n".join(command.error_lines())
        lines = command.error_lines()
    assert lines[-1].startswith("Spark's Java is gone, killed or by itself")
    assert lines[-1].endswith("java_status=-9")
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert not any(line.lstrip().startswith(("at ", "Traceback")) for line in lines), "\n".join(lines)


# -- missing installations ---------------------------------------------------------------------------------------------

NOT_INSTALLED = """
import sys
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError("No module named pyspark", name="pyspark")
sys.meta_path.insert(0, NotInstalled())
"""
IVY = """<ivysettings><settings defaultResolver="only"/><resolvers>
<ibiblio name="only" m2compatible="true" root="http://127.0.0.1:1/"/></resolvers></ivysettings>"""


def hadoop_version() -> str:
    """Return the version of Hadoop in pyspark's jars."""
    client = next((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar"))
    return client.stem.removeprefix("hadoop-client-api-")


def last_line(tmp_path: Path, before: str = "", settings: Sequence[str] = (), **environment: str) -> str:
    """Run an `audit` that ends with status 2, in a process of its own; return its last line."""
    start = f"{before}\nimport sys\nfrom aiorecover.cli import main; sys.argv[0] = 'aiorecover'; main()"
    kafka = ["--bootstrap-servers", "127.0.0.1:1", "--topic", "orders"]
    conf = [word for setting in settings for word in ("--conf", setting)]
    done = subprocess.run(
        [sys.executable, "-c", start, "audit", "--engine", "spark", *kafka, *conf],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr[-2000:]
    return done.stderr.splitlines()[-1]


def test_a_missing_extra_is_one_line_that_says_how_to_install_it(tmp_path: Path) -> None:
    assert last_line(tmp_path, NOT_INSTALLED) == "pyspark is not installed: pip install 'aiorecover[spark]'"


def test_a_wrong_spark_home_setting_or_java_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = last_line(tmp_path, SPARK_HOME="/nonexistent")
    assert line.startswith("Spark does not start: check JAVA_HOME, SPARK_HOME, ")
    line = last_line(tmp_path, settings=["spark.jars=", "spark.driver.memory=300m"])
    assert "System memory 314572800 must be" in line, "not the warnings before it"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="Spark needs Java 17 or newer: install openjdk-17-jre-headless, or set"):
        start_session("test", None, {})


def test_the_connector_is_fetched_unless_it_is_named_and_a_failed_fetch_is_one_line(tmp_path: Path) -> None:
    assert packages_for({}) == {"spark.jars.packages": CONNECTOR}
    assert packages_for({"spark.jars": ""}) == {}
    assert packages_for({"spark.jars.packages": "org:x:1"}) == {"spark.jars.packages": f"org:x:1,{CONNECTOR}"}
    iceberg = packages_for({"spark.sql.catalog.x": "org.apache.iceberg.spark.SparkCatalog"}, kafka=False)
    assert iceberg["spark.jars.packages"].startswith("org.apache.iceberg:iceberg-spark-runtime-")
    on_s3 = packages_for({}, kafka=False, paths=["s3a://bucket/table", "/local"])["spark.jars.packages"]
    assert on_s3 == f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    found, chosen = packages_for({}, paths=[str(tmp_path / "table")]), packages_for({}, chosen="delta")
    assert found == chosen != packages_for({})
    (tmp_path / "ivy.xml").write_text(IVY)
    settings = [f"spark.jars.ivy={tmp_path / 'ivy'}", f"spark.jars.ivySettings={tmp_path / 'ivy.xml'}"]
    line = last_line(tmp_path, settings=settings)
    assert line.startswith("Spark's Kafka connector, or another package, cannot be fetched: name a Maven repository ")
    assert line.endswith(f" missing={CONNECTOR} unreachable=127.0.0.1:1 packages={CONNECTOR}")


# A line of an error of Spark 4.1, each met at the command line, and how its sentence begins.
FAILURES = {
    "Failed to find data source: kafka. Please deploy": "Spark's Kafka connector is missing: add --conf ",
    ": java.lang.NoClassDefFoundError: org/apache/kafka/common/serialization/X": "a jar is missing that another one",
    "ConfigException: No resolvable bootstrap urls given in bootstrap.servers": "Kafka cannot be reached",
    "SaslAuthenticationException: Authentication failed: Invalid username": "Kafka refuses user or password",
    "TopicAuthorizationException: Topic authorization failed.": "Kafka does not let this user read the topic",
    "[TABLE_OR_VIEW_NOT_FOUND] The table or view `delta`.`/d/t` cannot be found": "Delta is not set up",
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure": "Delta is not set up",
    "[UNABLE_TO_INFER_SCHEMA] Unable to infer schema for Parquet.": "there is no such table: check the path",
    "[SCHEMA_NOT_FOUND] The schema `spark_catalog`.`nodb` cannot be found.": "there is no such database",
    "[REQUIRES_SINGLE_PART_NAMESPACE] spark_catalog requires a single-part": "the catalogue of the table is not known",
    "SparkException: Cannot find catalog plugin class for catalog 'lake'": "the catalogue's jar is missing",
    "[INVALID_IDENTIFIER] The unquoted identifier my-db is invalid": "this is no name of a table: quote its parts",
    "FileNotFoundException: File file:/t/_batch-0-16715/_temporary/0 does not exist": "another landing works with this",
    ": java.lang.NoSuchMethodError: org.apache.spark.sql.SQLContext.conf()": "a jar was made for another Spark",
    "ParentNotDirectoryException: Parent path is not a directory: /file": "a path leads through a file",
    'UnsupportedFileSystemException: No FileSystem for scheme "foo"': "Hadoop knows no file system of this scheme",
}


@pytest.mark.parametrize("text", FAILURES)
def test_a_known_failure_is_one_sentence_and_another_failure_is_raised_unchanged(text: str) -> None:
    with pytest.raises(ConfigError) as raised, clear_errors():
        raise PySparkException(f"An error occurred\n{text}\n\tat org.apache")
    assert str(raised.value).startswith(FAILURES[text])
    assert len(str(raised.value).splitlines()) == 1
    with pytest.raises(PySparkException, match="overflow"), clear_errors():
        raise PySparkException("An error occurred\nlong overflow")


def test_a_path_that_may_not_be_read_is_named_in_the_last_line() -> None:
    text = "An error occurred\n: java.nio.file.AccessDeniedException: /t/table: Permission denied\n\tat java.base"
    line = failure_of(text).splitlines()[-1]
    assert line.startswith("Spark failed, this may not be read or written: check its rights error=")
    assert "/t/table" in line
