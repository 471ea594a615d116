"""Put into one sentence what Spark, Kafka and file systems say in pages of Java: text in, sentence out.

An executor's error passes through Spark's scheduler, Java's proxy and Python, and each puts its own around it. So what
happened comes last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyspark

from aiorecover.errors import ConfigError
from aiorecover.spark.packages import CONNECTOR, PACKAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REMADE", "RecordsGoneError", "cause_of", "failure_of", "gone_in", "meaning_of", "meaning_of_files"]

_LONGEST_LINE = 1000  # characters of a line that is quoted
_LONGEST_CAUSE = 300  # characters of a cause
_MOST_LINES = 20  # lines of what led to an error, from the outside in
_OURS = re.compile(r"aiorecover\.errors\.ConfigError: (.+)")

# A pattern in the text, and what the user can mend: an option, the installation or Kafka. The first match counts.
_MEANINGS = {
    "UnknownTopicOrPartitionException": "a topic does not exist: check the names of the topics",
    "Failed to find data source: kafka": f"Spark's Kafka connector is missing: add --conf {PACKAGES}={CONNECTOR}",
    "Timed out waiting for a node assignment|Invalid url in bootstrap.servers|No resolvable bootstrap urls": (
        "Kafka cannot be reached: check bootstrap_servers, host:port,host:port, and the network"
    ),
    "TopicAuthorizationException": "Kafka does not let this user read the topic: grant Read and Describe",
    "SaslAuthenticationException": "Kafka refuses user or password: check the kafka.sasl options",
    "Failed to find (?:the )?data source: delta|DELTA_CONFIGURE_SPARK_SESSION|The table or view `delta`": (
        "Delta is not set up: give --format delta, or set spark.sql.extensions and spark.sql.catalog.spark_catalog as "
        "its documentation says"
    ),
    "TABLE_OR_VIEW_NOT_FOUND": "there is no such table: name a table of the catalogue, or a path with a / in it",
    "PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA": "there is no such table: check the path",
    "SCHEMA_NOT_FOUND": "there is no such database in the catalogue: create it, or name another one",
    "REQUIRES_SINGLE_PART_NAMESPACE": "the catalogue of the table is not known: set spark.sql.catalog.<its name>",
    "Cannot find catalog plugin class": f"the catalogue's jar is missing: name it in {PACKAGES}",
    "INVALID_IDENTIFIER|PARSE_SYNTAX_ERROR": (
        "this is no name of a table: quote its parts as in lake.`my-db`.orders, or name a path with a / in it"
    ),
    r"Multiple streaming queries are concurrently using|CONCURRENT_STREAM_LOG_UPDATE|FileAlreadyExistsException"
    r"|ConcurrentTransactionException|Found conflicting files|is already active|CONCURRENT_QUERY"
    r"|/_batch-\d+-.* does not exist": (
        "another landing works with this checkpoint: see that it is the only one, or stop it and start again"
    ),
    "NoSuchMethodError|AbstractMethodError|IncompatibleClassChangeError": (
        f"a jar was made for another Spark: name those for version {pyspark.__version__}"
    ),
    "NoClassDefFoundError": (
        f"a jar is missing that another one depends on: name packages, with {PACKAGES}, which bring what they depend "
        "on, or add it to spark.jars"
    ),
    "is not a directory|ParentNotDirectoryException": "a path leads through a file: check target and checkpoint",
    "No FileSystem for scheme|No AbstractFileSystem configured for scheme|ClassNotFoundException: Class ": (
        f"Hadoop knows no file system of this scheme: check the path, or name its jar in {PACKAGES}, as "
        "org.apache.hadoop:hadoop-aws for s3a, or hadoop-azure for abfs, of Hadoop's version"
    ),
}

_DENIED = "AccessControlException|AccessDeniedException|Permission denied"

# Only where a file system was asked: in an error of a job they may mean an executor that is gone.
_OF_FILES = {
    "UnknownHostException|ConnectException|NoRouteToHostException|SocketTimeoutException": (
        "the file system cannot be reached: check host and port in the path, fs.defaultFS and the network"
    ),
    _DENIED: "this may not be read or written: check its rights",
}

# Errors that come later, where all was well at the start.
_ACCIDENTS = {
    "No space left on device|Disk quota exceeded": (
        "a disk is full, or a quota used up: free some where the target, the checkpoint and spark.local.dir are"
    ),
    "OutOfMemoryError": "Java ran out of memory: give it more, as --conf spark.driver.memory=4g does",
    "Cannot fetch record for offset|expired before the position for partition": (
        "Kafka has not answered in time: start again when it does"
    ),
    _DENIED: _OF_FILES[_DENIED],
}
_ELSE = "start again, and if that ends likewise, mend what the error says"
_PLAN = re.compile(r"^=== Streaming Query ===$.*?(?=^JVM stacktrace:$|\Z)", re.DOTALL | re.MULTILINE)
_TELLING = re.compile(r'\S|  File "(?!.*/site-packages/)')

_AUDIT = "`aiorecover audit --table` names what the target lacks"
_ACCEPTED = "failOnDataLoss=false, as --kafka-option or among the options of land,"
_NEW_TOPIC = (
    f"land the new topic with a target and a checkpoint of its own; {_AUDIT}; {_ACCEPTED} goes on with these, and "
    "leaves out for good what the new topic has before the offsets that were reached in the old one"
)
_EXPIRED = (
    "Kafka has deleted records that were to be read next (its retention, or an operator), so they were not landed",
    f"{_AUDIT}; {_ACCEPTED} goes on with what is still there, and leaves the rest out for good",
)
REMADE = (
    "a topic was deleted and made anew since it was landed last, so what the old one had left was not landed",
    _NEW_TOPIC,
)
"""The sentence on a topic that has another id, and its remedy."""
_SHRUNK = (
    "a partition ends before the offset that was to be read next: its topic was deleted and made anew, or lost its end",
    _NEW_TOPIC,
)
_DELETED = (
    "partitions that were read before are gone: their topic was deleted, made anew with fewer, or is no longer named",
    _NEW_TOPIC,
)

# As Spark's Kafka connector words it (its class KAFKA_DATA_LOSS); the last two are of Spark 3.5.
_GONE = {
    r"Could not read records in offset \[(?P<first>\S+), (?P<end>\S+)\) for topic partition (?P<place>\S+)": _EXPIRED,
    r"Partition (?P<place>\S+?)(?:'s)? offset was changed from (?P<next>\d+) to (?P<end>\d+)": _SHRUNK,
    r"Starting offset for (?P<place>\S+) was (?P<first>\d+) but consumer reset to (?P<end>\d+)": _EXPIRED,
    r"Added partition (?P<place>\S+) starts from (?P<end>\d+) instead of 0": _EXPIRED,
    r"Partitions (?P<places>.+?) have been deleted": _DELETED,
    r"Cannot find initial offsets for partitions (?P<places>.+?)\. They may have been deleted": _DELETED,
    r"Cannot fetch (?:offset |records in \[)(?P<first>\d+)(?:, (?P<end>\d+)\))? "
    r"\(GroupId: [^,]+, TopicPartition: (?P<place>[^)\s]+)\)": _EXPIRED,
    r"(?:Cannot find earliest offsets of )?Set\((?P<places>.+?)\)(?: are gone\.|\. Some data)": _DELETED,
}


class RecordsGoneError(ConfigError):
    """Records that were to be read next are not in Kafka any more, or a topic was deleted and made anew."""

    def __init__(self, what: str, remedy: str, where: str) -> None:
        super().__init__(f"{what}: {remedy} {where}")
        self.where = where


def gone_in(text: str) -> RecordsGoneError | None:
    """Return the error for what Spark's Kafka source says of records that are gone; None: it says nothing of that."""
    for pattern, (what, remedy) in _GONE.items():
        if found := re.search(pattern, text):
            return RecordsGoneError(what, remedy, _where(found.groupdict()))
    return None


def _where(found: Mapping[str, str | None]) -> str:
    if places := found.get("places"):
        return f"partitions={places}"
    topic, _, partition = (found["place"] or "").strip(",.").rpartition("-")
    named, first, end = f"topic={topic} partition={partition}", found.get("first") or "0", found["end"] or ""
    if "next" in found:
        return f"{named} next={found['next']} {end=!s}"
    # Spark only says where it wanted to begin and how far it wanted to get.
    return f"{named} within={first}-{int(end) - 1}" if end.isdecimal() else f"{named} from={first}"


def meaning_of(text: str, **more: object) -> str | None:
    """Return one sentence on what the user can mend; None: it is not known. ``more`` is added as ``key=value``."""
    if ours := _OURS.search(text):  # raised in a batch
        return ours[1].strip()
    return _meaning_in(_MEANINGS, text, more)


def meaning_of_files(text: str) -> str | None:
    """Return likewise the meaning of an error of a file system."""
    return _meaning_in({**_MEANINGS, **_OF_FILES}, text, {})


def _meaning_in(meanings: Mapping[str, str], text: str, more: Mapping[str, object]) -> str | None:
    for pattern, meaning in meanings.items():
        for line in text.splitlines():
            if re.search(pattern, line):
                what = "".join(f"{name}={value!r} " for name, value in more.items())
                return f"{meaning} {what}error={line.strip()[:_LONGEST_LINE]!r}"
    return None


def failure_of(text: str) -> str:
    """Return some lines of what led to any other error, and a last one that says what happened."""
    advice = next((advice for part, advice in _ACCIDENTS.items() if re.search(part, text)), _ELSE)
    # The errors, one in the other, and where in Python code that is no library's; no stack of Java, and no plan.
    lines = dict.fromkeys(line.rstrip() for line in _PLAN.sub("", text).splitlines() if _TELLING.match(line))
    led_to_it = "\n".join([*lines][:_MOST_LINES])
    return f"{led_to_it}\nSpark failed, {advice} error={cause_of(text)!r}"


def cause_of(text: str) -> str:
    """Return what happened: the innermost error, its name and the first line of its message."""
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
