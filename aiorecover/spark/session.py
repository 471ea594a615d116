"""A Spark session for the command line: what must be there is checked first, and said in one sentence.

What Spark's Java writes on its standard error is kept in a file unless it is to be shown: Ivy, which fetches packages,
writes forty lines each time, and of an error that ends the work each part of Spark writes the stack once more, although
the error is raised with all of it.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark.failures import cause_of, gone_in, meaning_of
from aiorecover.spark.packages import PACKAGES, SPARK, packages_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["cause_said", "clear_errors", "py4j_silent", "start_session"]

_OLDEST_JAVA = 17  # Spark 4 is compiled for it
_JAVA_ANSWERS_WITHIN_S = 60
_LAST_BYTES = 256 << 10  # of Java's output: Ivy's longest report
_MISSING = re.compile(r"(?:unresolved dependency|download failed): ([^\s#]+)#([^\s;]+);([^\s:!\]]+)")
_UNREACHABLE = re.compile(r"Host (\S+) not found|Server access error at url https?://([^\s/]+)")
_FIRST_ERROR = re.compile(r"^(?:Exception in thread|[\w.$]+(?:Exception|Error):)", re.MULTILINE)  # begins a stack
# The jars of the connector, for a machine that can fetch none.
_FILES = "spark-sql-kafka-0-10, spark-token-provider-kafka-0-10, kafka-clients and commons-pool2"

_kept: IO[bytes] | None = None  # the output of this process's one Java


def start_session(
    name: str,
    master: str | None,
    settings: Mapping[str, str],
    *,
    kafka: bool = True,
    chosen: str | None = None,
    paths: Sequence[str] = (),
    verbose: bool = False,
) -> SparkSession:
    """Start a session that fetches the packages it needs (`packages_for`), unless ``settings`` name them, or jars.

    ``kafka``: whether Kafka is read. ``chosen``: the format of a table. ``paths``: what is read and written.
    ``master`` is Spark's, for example ``local[*]``; None leaves it to ``settings`` and the environment. ``verbose``
    shows what Spark says.

    Raises:
        ConfigError: there is no suitable Java, Spark does not start, or it is another version than pyspark.

    """
    _check_java()
    where = {} if master is None else {"spark.master": master}
    # Progress bars and the web page are for Spark's own shell.
    quiet = {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false"}
    packages = packages_for(settings, kafka=kafka, chosen=chosen, paths=paths)
    session = _started({"spark.app.name": name, **where, **quiet, **settings, **packages}, verbose=verbose)
    session.sparkContext.setLogLevel("WARN" if verbose else "ERROR")
    if session.version != pyspark.__version__:
        session.stop()
        raise ConfigError(
            f"Spark and pyspark are not of one version: unset SPARK_HOME, or install pyspark of Spark's version "
            f"spark={session.version} pyspark={pyspark.__version__} home={os.environ.get('SPARK_HOME')}"
        )
    return session


def _started(settings: Mapping[str, str], *, verbose: bool) -> SparkSession:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with clear_errors():
            _launch(settings, verbose=verbose)
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        if missing := _found(_MISSING):
            raise ConfigError(
                "Spark's Kafka connector, or another package, cannot be fetched: name a Maven repository that has it, "
                "--conf spark.jars.repositories=https://..., or hand over the files, with all that they depend on, "
                f"--conf spark.jars=one.jar,two.jar,...: for Kafka, {_FILES} missing={','.join(missing)} "
                f"unreachable={','.join(_found(_UNREACHABLE)) or None} packages={settings.get(PACKAGES)}"
            ) from None
        message = "Spark does not start: check JAVA_HOME, SPARK_HOME, --master and --conf; --verbose shows what it says"
        cause = "" if isinstance(error, Py4JJavaError) else cause_said()
        cause = cause or cause_of(str(error)) or type(error).__name__
        raise ConfigError(f"{message} error={cause!r}") from error


def _launch(settings: Mapping[str, str], *, verbose: bool) -> None:
    """Start Java, unless this process has one."""
    global _kept  # noqa: PLW0603 - this process has one Java
    if SparkContext._gateway is not None:  # noqa: SLF001 - pyspark itself checks it so
        return
    _kept = None if verbose else tempfile.TemporaryFile()  # noqa: SIM115 - as long as Java lives
    conf = SparkConf().setAll(list(settings.items()))
    gateway = launch_gateway(conf, {} if _kept is None else {"stderr": _kept})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as SparkContext does with its own
    if SPARK != "3.5" and not verbose:  # later ones also log an error in SQL that they raise
        from pyspark.logger import PySparkLogger  # noqa: PLC0415 - Spark 3.5 has none

        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def said() -> str:
    """Return the end of what Java has written so far; empty where it was shown."""
    if _kept is None:
        return ""
    size = os.fstat(_kept.fileno()).st_size
    # pread leaves the position where Java writes.
    return os.pread(_kept.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace")


def cause_said() -> str:
    """Return the cause in what Java has written, after the warnings of its start."""
    written = said()
    first = _FIRST_ERROR.search(written)
    return cause_of(written[first.start() :] if first else written)


def _found(pattern: re.Pattern[str]) -> list[str]:
    return list(dict.fromkeys(":".join(filter(None, match.groups())) for match in pattern.finditer(said())))


@contextmanager
def clear_errors(**more: object) -> Iterator[None]:
    """Make one sentence of an error of Spark or Kafka, where the user can mend the cause.

    ``more`` is added to the sentence as ``key=value``.

    Raises:
        RecordsGoneError: instead of an error that says that records to be read are gone.
        ConfigError: instead of another one that is known.

    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if gone := gone_in(text):
            raise gone from error
        if meaning := meaning_of(text, **more):
            raise ConfigError(meaning) from error
        raise


@contextmanager
def py4j_silent() -> Iterator[None]:
    """Log nothing of py4j, neither under its name nor at the root."""
    root, named = logging.getLogger(), logging.getLogger("py4j")
    before, named.propagate = named.propagate, False
    root.addFilter(_nothing)  # only affects what is logged at the root itself
    try:
        yield
    finally:
        root.removeFilter(_nothing)
        named.propagate = before


def _nothing(_record: logging.LogRecord) -> bool:
    return False


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    message = "Spark needs Java 17 or newer: install openjdk-17-jre-headless, or set JAVA_HOME"
    if java is None:
        raise ConfigError(f"{message} {home=}")
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWERS_WITHIN_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{message} {java=} error={str(error)!r}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    if found is None or int(found[1]) < _OLDEST_JAVA:
        version = found[1] if found else answer[:100]
        raise ConfigError(f"{message} {java=} {version=}")
