"""Fetches the jars of the broker and of Spark's connectors: `python -m tests.support.jars [broker] [spark]`.

Ivy does it, which stands in the pyspark wheel anyway, so that Java is all that a machine must bring: no
Maven, no Docker. `ivy.xml` beside this file says what is fetched, `ivy_spark35.xml` what Spark 3.5 needs in its
place, `ivy_s3.xml` what S3 needs. The result is kept in `.cache/jars/<configuration>` of the checkout (or in the
directory that the environment variable AIORECOVER_JARS names) until its file changes.
"""

import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["JarsError", "JavaMissingError", "broker_jars", "find_java", "s3_jars", "spark_jars"]

_SPARK35, _S3 = "spark35", "s3"
_IVY_FILES = {_SPARK35: "ivy_spark35.xml", _S3: "ivy_s3.xml"}
_REPOSITORY = Path(__file__).parents[2]
_STAMP = ".complete"
_OLDEST_JAVA = 17  # Kafka 4's brokers and Spark 4 are compiled for it
_PAUSES_S = (0, 5, 15)  # before each attempt: a download that fails once mostly works a moment later
_ATTEMPT_TIMEOUT_S = 600


class JarsError(RuntimeError):
    """The jars could not be fetched."""


class JavaMissingError(JarsError):
    """There is no Java on this machine that can run a broker."""


def broker_jars() -> Path:
    """The directory with the jars of a Kafka broker; fetched first where it is not complete."""
    return _jars("broker")


def spark_jars() -> Path:
    """The directory with the jars of Spark's Kafka connector, Iceberg and Delta; fetched first likewise."""
    return _jars(_SPARK35 if importlib.metadata.version("pyspark").startswith("3.5.") else "spark")


def s3_jars() -> Path:
    """The directory with the jars of Hadoop's file system s3a; fetched first likewise."""
    return _jars(_S3)


@functools.cache
def find_java() -> Path:
    """The Java of JAVA_HOME or of the PATH, if it is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    version = _java_version(java) if java else None
    if java is None or version is None:
        raise JavaMissingError(
            f"no java, install openjdk-17-jre-headless (or newer) or set JAVA_HOME: JAVA_HOME={home}"
        )
    if version < _OLDEST_JAVA:
        raise JavaMissingError(f"java is too old, install openjdk-17-jre-headless or set JAVA_HOME: {java=} {version=}")
    return Path(java)


def _java_version(java: str) -> int | None:
    """17 for 'openjdk version "17.0.15" ...'; None where the command only asks to be installed."""
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    return int(found[1]) if told.returncode == 0 and found else None


def _jars(configuration: str) -> Path:
    directory = _cache() / configuration
    wanted = hashlib.sha256(_ivy_file(configuration).read_bytes()).hexdigest()
    if not _is_complete(directory, wanted):
        # Java first: without it there is nothing to wait for.
        find_java()
        with _alone():
            if not _is_complete(directory, wanted):  # another process may have done it meanwhile
                _fetch(configuration, directory, wanted)
    return directory


def _cache() -> Path:
    named = os.environ.get("AIORECOVER_JARS")
    return Path(named).resolve() if named else _REPOSITORY / ".cache" / "jars"


def _is_complete(directory: Path, wanted: str) -> bool:
    try:
        return (directory / _STAMP).read_text() == wanted
    except OSError:
        return False


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time, over all checkouts: Ivy's own cache in the home directory has no lock."""
    ivy_home = Path.home() / ".ivy2"
    ivy_home.mkdir(parents=True, exist_ok=True)
    with (ivy_home / "aiorecover-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(configuration: str, directory: Path, wanted: str) -> None:
    """Put the jars aside and move them into place whole: a directory is complete or not there."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    for left_over in directory.parent.glob(f"{configuration}.new-*"):
        shutil.rmtree(left_over)
    aside = Path(tempfile.mkdtemp(prefix=f"{configuration}.new-", dir=directory.parent))
    try:
        _run_ivy(configuration, aside)
        (aside / _STAMP).write_text(wanted)
        shutil.rmtree(directory, ignore_errors=True)
        aside.rename(directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _run_ivy(configuration: str, into: Path) -> None:
    command: list[str | Path] = [
        *(find_java(), "-jar", _ivy()),
        *("-ivy", _ivy_file(configuration), "-confs", configuration, "-types", "jar", "bundle"),
        *("-retrieve", f"{into}/[artifact]-[revision].[ext]"),
    ]
    said = ""
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        try:
            ran = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_ATTEMPT_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said = f"still running after {_ATTEMPT_TIMEOUT_S} s"
            continue
        if ran.returncode == 0 and any(into.glob("*.jar")):
            return
        said = "\n".join(ran.stdout.splitlines()[-40:])
    raise JarsError(
        f"jars not fetched, is a Maven repository reachable? {configuration=} tries={len(_PAUSES_S)}\n{said}"
    )


def _ivy_file(configuration: str) -> Path:
    """Which file says what is in it."""
    return Path(__file__).with_name(_IVY_FILES.get(configuration, "ivy.xml"))


def _ivy() -> Path:
    # Found, not imported: importing pyspark takes longer than all the rest of this module.
    pyspark = importlib.util.find_spec("pyspark")
    found = sorted(Path(pyspark.origin).parent.glob("jars/ivy-*.jar")) if pyspark and pyspark.origin else []
    if not found:
        raise JarsError("no Ivy was found: install the dependency group dev, whose pyspark brings it")
    return found[-1]


def _main(configurations: list[str]) -> None:
    known = {"broker": broker_jars, "spark": spark_jars}
    for configuration in configurations or ["broker"]:
        if configuration not in known:
            raise JarsError(f"no such configuration, there are {', '.join(known)}: {configuration=}")
        print(f"jars: {known[configuration]()}")


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except JarsError as error:
        sys.exit(f"jars: {error}")
