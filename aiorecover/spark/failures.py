"""What Spark, Kafka and file systems say in pages of Java, in one sentence: text in, sentence out.

An error passes many hands on its way here, from an executor to Spark's scheduler, through Java's proxy into Python and
back, and each puts its own around it. What happened stands innermost, which is last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyspark

from aiorecover.spark.packages import CONNECTOR, PACKAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILES", "cause_of", "failure_of", "meaning_of", "meaning_of_files"]

FILES = "spark-sql-kafka-0-10, spark-token-provider-kafka-0-10, kafka-clients and commons-pool2"
"""What the connector is made of, where it is handed over file by file."""
_LONGEST_LINE = 1000  # characters of one of Spark's own: what it names stands behind stages, tasks and classes
_LONGEST_CAUSE = 300  # characters: what it quotes can be pages long
_MOST_LINES = 20  # of what led to it, from the outside in: some errors quote others at length
_OURS = re.compile(r"aiorecover\.errors\.ConfigError: (.+)")

# What the text has in it where an option, the installation or Kafka is to be mended: the first that fits is said.
_MEANINGS = {
    "UnknownTopicOrPartitionException": "a topic does not exist: check the names of the topics",
    "Failed to find data source: kafka": f"Spark's Kafka connector is missing: add --conf {PACKAGES}={CONNECTOR}",
    "Failed to find (?:the )?data source: delta": "Delta's package is missing: give --format delta",
    "Timed out waiting for a node assignment|Invalid url in bootstrap.servers|No resolvable bootstrap urls": (
        "Kafka cannot be reached: check bootstrap_servers, host:port,host:port, and the network"
    ),
    "TopicAuthorizationException": "Kafka does not let this user read the topic: grant Read and Describe",
    "GroupAuthorizationException": (
        "Kafka does not let this user read in Spark's consumer groups: grant Read on groups that begin with "
        "spark-kafka-, or name another beginning with the Kafka option groupIdPrefix"
    ),
    "SaslAuthenticationException": "Kafka refuses user or password: check the kafka.sasl options",
    "TABLE_OR_VIEW_NOT_FOUND": "there is no such table: name a table of the catalogue, or a path with a / in it",
    "PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA": "there is no such table: check the path",
    "SCHEMA_NOT_FOUND": "there is no such database in the catalogue: create it, or name another one",
    "REQUIRES_SINGLE_PART_NAMESPACE": "the catalogue of the table is not known: set spark.sql.catalog.<its name>",
    "Cannot find catalog plugin class": f"the catalogue's jar is missing: name it in {PACKAGES}",
    "DELTA_CONFIGURE_SPARK_SESSION": (
        "Delta is not set up: give --format delta, or set spark.sql.extensions and spark.sql.catalog.spark_catalog as "
        "its documentation says"
    ),
    "INCOMPATIBLE_DATA_FOR_TABLE": (
        "the table's columns do not take what is landed: change them, or name another table"
    ),
    "INVALID_IDENTIFIER|PARSE_SYNTAX_ERROR": (
        "this is no name of a table: quote its parts as in lake.`my-db`.orders, or name a path with a / in it"
    ),
    # Of two landings with one checkpoint: whichever comes second.
    "Multiple streaming queries are concurrently using|CONCURRENT_STREAM_LOG_UPDATE|FileAlreadyExistsException"
    "|ConcurrentTransactionException|Found conflicting files|is already active|CONCURRENT_QUERY": (
        "another landing works with this checkpoint: see that it is the only one, or stop it and start again"
    ),
    "NoSuchMethodError|AbstractMethodError|IncompatibleClassChangeError": (
        f"a jar was made for another Spark: name those for version {pyspark.__version__}"
    ),
    "NoClassDefFoundError": f"a jar is missing that another one depends on, name it in spark.jars: for Kafka, {FILES}",
    "is not a directory|ParentNotDirectoryException": "a path leads through a file: check target and checkpoint",
    "No FileSystem for scheme|No AbstractFileSystem configured for scheme|ClassNotFoundException: Class ": (
        f"Hadoop knows no file system of this scheme: check the path, or name its jar in {PACKAGES}, as "
        "org.apache.hadoop:hadoop-aws for s3a, or hadoop-azure for abfs, of Hadoop's version"
    ),
}

# Likewise, where a file system was asked: of a job of Spark's these may be said of an executor that is gone.
_OF_FILES = {
    "UnknownHostException|ConnectException|NoRouteToHostException|SocketTimeoutException": (
        "the file system cannot be reached: check host and port in the path, fs.defaultFS and the network"
    ),
    "AccessControlException|AccessDeniedException|Permission denied": (
        "this may not be read or written: check its rights"
    ),
}

# Likewise, where all was well when it was started.
_ACCIDENTS = {
    "No space left on device|Disk quota exceeded": (
        "a disk is full, or a quota used up: free some where the target, the checkpoint and spark.local.dir are"
    ),
    "OutOfMemoryError": "Java ran out of memory: give it more, as --conf spark.driver.memory=4g does",
    "Cannot fetch record for offset|expired before the position for partition": (
        "Kafka has not answered in time: start again when it does"
    ),
}
_PLAN = re.compile(r"^=== Streaming Query ===$.*?(?=^JVM stacktrace:$|\Z)", re.DOTALL | re.MULTILINE)
_TOLD = re.compile(r'\S|  File "(?!.*/site-packages/)')
_ELSE = "start again, and if that ends likewise, mend what the error says"


def meaning_of(text: str, **told: object) -> str | None:
    """One sentence, where an option, the installation or Kafka is to be mended, and it is known which.

    ``told`` stands behind it, for what the text does not name.
    """
    if ours := _OURS.search(text):  # raised in a batch
        return ours[1].strip()
    return _meaning_in(_MEANINGS, text, told)


def meaning_of_files(text: str, **told: object) -> str | None:
    """Likewise, of what a file system has said by itself."""
    return _meaning_in({**_MEANINGS, **_OF_FILES}, text, told)


def _meaning_in(meanings: Mapping[str, str], text: str, told: Mapping[str, object]) -> str | None:
    meaning = next((meaning for part, meaning in meanings.items() if re.search(part, text)), None)
    if meaning is None:
        return None
    first = next(line for line in text.splitlines() if any(re.search(part, line) for part in meanings))
    what = "".join(f"{name}={value!r} " for name, value in told.items())
    return f"{meaning} {what}error={first.strip()[:_LONGEST_LINE]!r}"


def failure_of(text: str) -> str:
    """Of any other error: what led to it in some lines, and a last one that says what happened."""
    advice = next((advice for part, advice in _ACCIDENTS.items() if re.search(part, text)), _ELSE)
    return f"{_condensed(text)}\nSpark failed, {advice} error={cause_of(text)!r}"


def cause_of(text: str) -> str:
    """What happened: the innermost error, its name and the first line of its message."""
    lines = text.splitlines()
    found = next((line for line in lines if line.strip()), "")
    in_python = False
    for line in lines:
        if in_python and re.match(r"\S", line):
            in_python = False
            found = line
        elif line.startswith(("Caused by: ", ": ")):  # as Java writes it, and as py4j does
            found = line.removeprefix("Caused by").removeprefix(": ")
        in_python = in_python or line.endswith("Traceback (most recent call last):")
    return found.strip()[:_LONGEST_CAUSE]


def _condensed(text: str) -> str:
    """The errors, one in the other, and where in Python code that is no library's; no stack of Java, and no plan."""
    lines = dict.fromkeys(line.rstrip() for line in _PLAN.sub("", text).splitlines())
    return "\n".join([line for line in lines if _TOLD.match(line)][:_MOST_LINES])
