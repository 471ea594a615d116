"""A Spark session for the command line: what must be there is looked for first, and said in one sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import java
from aiorecover.spark.failures import FILES, cause_of, meaning_of
from aiorecover.spark.gone import RecordsGoneError, gone_in
from aiorecover.spark.packages import PACKAGES, packages_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["clear_errors", "start_session"]

_OLDEST_JAVA = 17  # Spark 4 is compiled for it
_JAVA_ANSWERS_WITHIN_S = 60


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
    """A session with the Kafka connector of pyspark's version; it is fetched unless ``settings`` name it, or jars.

    ``kafka``: False where nothing is read from Kafka, so that no connector is fetched. ``chosen``: the format of a
    table, and ``paths``: what is read and written, whose packages are fetched likewise
    (:mod:`aiorecover.spark.packages`). ``master`` is Spark's, for example ``local[*]``; None leaves it to
    ``settings`` and the environment. ``verbose`` shows what Spark says.

    Raises:
        ConfigError: there is no Java that will do, Spark does not start, or it is another version than pyspark.

    """
    _find_java()
    where = {} if master is None else {"spark.master": master}
    # Progress bars and the console's pictures are for Spark's own shell.
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
    """Whatever keeps it from starting is in the reader's hands."""
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with clear_errors():
            java.launch(settings, verbose=verbose)
            return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        if missing := java.missing():
            raise ConfigError(_not_fetched(missing, java.unreachable(), settings)) from None
        message = "Spark does not start: check JAVA_HOME, SPARK_HOME, --master and --conf; --verbose shows what it says"
        cause = cause_of(java.said()) or cause_of(str(error)) or type(error).__name__
        raise ConfigError(f"{message} error={cause!r}") from error


def _not_fetched(missing: Sequence[str], unreachable: Sequence[str], settings: Mapping[str, str]) -> str:
    """What to do where no repository has what Spark was to fetch, or none is reached."""
    told = f"missing={','.join(missing)} unreachable={','.join(unreachable) or None} packages={settings.get(PACKAGES)}"
    return (
        "Spark's Kafka connector, or another package, cannot be fetched: name a Maven repository that has it, "
        "--conf spark.jars.repositories=https://..., or hand over the files, with all that they depend on, "
        f"--conf spark.jars=one.jar,two.jar,...: for Kafka, {FILES} {told}"
    )


@contextmanager
def clear_errors(**told: object) -> Iterator[None]:
    """Make one sentence of what Spark and Kafka say in many lines, where the cause is in the reader's hands.

    ``told`` stands behind it, for what these do not name.

    Raises:
        RecordsGoneError: in the place of an error that says that of records which were to be read.
        ConfigError: in the place of another one that is known.

    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        said = str(error)
        if gone := gone_in(said):
            raise RecordsGoneError(gone) from error
        if meaning := meaning_of(said, **told):
            raise ConfigError(meaning) from error
        raise


def _find_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    message = "Spark needs Java 17 or newer: install openjdk-17-jre-headless, or set JAVA_HOME"
    if java is None:
        raise ConfigError(f"{message} {home=}")
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWERS_WITHIN_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{message} {java=} error={str(error)!r}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is None or int(found[1]) < _OLDEST_JAVA:
        version = found[1] if found else told[:100]
        raise ConfigError(f"{message} {java=} {version=}")
