"""What has to be installed, and what Spark says in many lines, in one sentence each."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

import aiorecover
from aiorecover.errors import ConfigError
from aiorecover.spark import land, read_topics, session
from aiorecover.spark.session import _packages, clear_errors, start_session

CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def test_the_connector_is_fetched_unless_it_is_brought() -> None:
    assert _packages({}) == {"spark.jars.packages": CONNECTOR}
    assert _packages({"spark.jars": ""}) == {}
    assert _packages({"spark.jars.packages": "a:spark-sql-kafka-0-10_2.13:4"}) == {}
    assert _packages({"spark.jars.packages": "org:lake:1"}) == {"spark.jars.packages": f"org:lake:1,{CONNECTOR}"}


def test_a_session_without_the_connector_names_its_coordinates(tmp_path: Path) -> None:
    """In a process of its own: this one's Spark has it."""
    command = "import sys; from aiorecover.cli import main; sys.argv[0] = 'aiorecover'; main()"
    kafka = ["--bootstrap-servers", "127.0.0.1:1", "--topic", "orders"]
    done = subprocess.run(
        [sys.executable, "-c", command, "audit", *kafka, "--conf", "spark.jars=", "--master", "local[1]"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.splitlines()[-1].startswith(
        f"Spark's Kafka connector is missing: add --conf spark.jars.packages={CONNECTOR} "
    )


NOT_INSTALLED = """
import sys
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NotInstalled())
"""


def lines_of(
    tmp_path: Path, command: str, before: str = "import sys", settings: Sequence[str] = (), **environment: str
) -> list[str]:
    """What a command says that is refused, in a process of its own."""
    start = f"{before}\nfrom aiorecover.cli import main; sys.argv[0] = 'aiorecover'; main()"
    kafka = ["--bootstrap-servers", "127.0.0.1:1", "--topic", "orders"]
    where = ["--target", "./here", "--checkpoint", "./there"] if command == "land" else []
    conf = [word for setting in settings for word in ("--conf", setting)]
    done = subprocess.run(
        [sys.executable, "-c", start, command, *kafka, *where, *conf],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr[-2000:]
    return done.stderr.splitlines()


def java(tmp_path: Path, script: str) -> str:
    """A JAVA_HOME with this in the place of Java."""
    path = tmp_path / "bin" / "java"
    path.parent.mkdir()
    path.write_text(script)
    path.chmod(0o755)
    return str(tmp_path)


ENDS = '#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "17.0.1"\' >&2; else exit 1; fi\n'


def test_a_java_that_ends_at_once_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    line = lines_of(tmp_path, "land", JAVA_HOME=java(tmp_path, ENDS))[-1]
    assert line.startswith("Spark does not start, its own lines above say why: check JAVA_HOME, SPARK_HOME, ")
    assert "--master and --conf error='[JAVA_GATEWAY_EXITED]" in line


IVY = """<ivysettings><settings defaultResolver="only"/><resolvers>
<ibiblio name="only" m2compatible="true" root="{root}"/></resolvers></ivysettings>"""


@pytest.mark.parametrize(
    ("root", "unreachable"),
    [("http://127.0.0.1:1/", "127.0.0.1:1"), ("file://{empty}/", "None")],
    ids=["down", "empty"],
)
def test_a_connector_that_cannot_be_fetched_is_one_line_that_says_what_to_do(
    tmp_path: Path, root: str, unreachable: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "ivy.xml").write_text(IVY.format(root=root.format(empty=tmp_path / "empty")))
    settings = [f"spark.jars.ivy={tmp_path / 'ivy'}", f"spark.jars.ivySettings={tmp_path / 'ivy.xml'}"]
    *others, line = lines_of(tmp_path, "land", settings=settings)
    assert line.startswith("Spark's Kafka connector, or another package, cannot be fetched: name a Maven repository ")
    assert "--conf spark.jars=one.jar,two.jar,...: for Kafka, spark-sql-kafka-0-10, spark-token-provider-" in line
    assert line.endswith(f" missing={CONNECTOR} unreachable={unreachable} packages={CONNECTOR}")
    assert len(others) < 8, "\n".join(others)
    assert not [other for other in others if "::" in other or "\tat " in other]


@pytest.mark.parametrize("source", [DataFrameReader, DataStreamReader])
def test_a_job_whose_spark_lacks_the_connector_is_told_its_coordinates(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: type
) -> None:
    def lack(*_: object) -> None:
        raise AnalysisException("Failed to find data source: kafka. Please deploy the application as per the guide")

    starts: dict[type, Callable[[], object]] = {
        DataFrameReader: lambda: read_topics(spark, ["orders"], "x"),
        DataStreamReader: lambda: land(spark, ["orders"], f"{tmp_path}/a", f"{tmp_path}/b", bootstrap_servers="x"),
    }
    monkeypatch.setattr(source, "load", lack)
    with pytest.raises(ConfigError, match=f"connector is missing: add --conf spark.jars.packages={CONNECTOR}"):
        starts[source]()


@pytest.mark.parametrize("script", ["garbage", "#!/nowhere/sh"])
def test_a_java_that_cannot_be_run_is_one_line_that_says_what_to_do(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, script))
    with pytest.raises(ConfigError, match="Spark needs Java 17 or newer: install openjdk-17-jre-headless, or set"):
        start_session("test", None, {})


def test_a_java_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_JAVA_ANSWERS_WITHIN_S", 0.1)
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, "#!/bin/sh\nexec sleep 5\n"))
    with pytest.raises(ConfigError, match="Spark needs Java 17 or newer: install openjdk-17-jre-headless, or set"):
        start_session("test", None, {})


def test_a_wrong_spark_home_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    (line,) = lines_of(tmp_path, "audit", SPARK_HOME="/nonexistent")
    assert line.startswith("Spark does not start, its own lines above say why: check JAVA_HOME, SPARK_HOME, ")
    assert "/nonexistent/./bin/spark-submit" in line


@pytest.mark.parametrize(("command", "name"), [("audit", "pyspark"), ("land", "pyarrow")])
def test_where_the_extra_is_not_installed_one_line_says_how_to_have_it(tmp_path: Path, command: str, name: str) -> None:
    (line,) = lines_of(tmp_path, command, NOT_INSTALLED.replace("{name!r}", repr(name)))
    assert line == f"aiorecover.spark needs {name}, and Java 17 or newer: pip install 'aiorecover[spark]'"


def test_another_version_of_spark_than_of_pyspark_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the session, not of its class: pyspark keeps the version in the session once somebody has asked for it.
    monkeypatch.setattr(spark, "version", "3.5.1")
    monkeypatch.setattr(spark, "stop", lambda: None)
    with pytest.raises(ConfigError, match=r"unset SPARK_HOME, .* spark=3\.5\.1"):
        start_session("test", None, {})


def test_a_pyspark_that_is_too_old_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("aiorecover.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(aiorecover, "spark")
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(ConfigError, match=r"needs Spark 4\.1 or newer: pip install 'aiorecover\[spark\]' pyspark=3"):
        __import__("aiorecover.spark")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("[SCHEMA_NOT_FOUND] The schema `spark_catalog`.`x` cannot be found", "there is no such database"),
        ("[REQUIRES_SINGLE_PART_NAMESPACE] spark_catalog requires a single-part namespace", "set spark.sql.catalog"),
        (
            "Cannot find catalog plugin class for catalog 'lake': org.apache",
            "the catalogue's jar is missing",
        ),
        (
            "java.lang.NoClassDefFoundError: org/apache/kafka/common/Uuid",
            "a jar is missing that another one depends on",
        ),
        ("py4j...: java.lang.NoSuchMethodError: 'void org.apache.spark...'", "a jar was made for another Spark"),
    ],
)
def test_what_spark_says_in_many_lines_is_one_sentence(said: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=meant) as raised, clear_errors():
        raise PySparkException(f"An error occurred\n{said}\n\tat org.apache")
    assert len(str(raised.value).splitlines()) == 1
