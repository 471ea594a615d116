"""Whether the driver and its executors mean the same directory by a path that begins with ``file:``.

On a cluster it may be on a disk of each machine. Then executors write the files of a batch where the driver never
looks: it renames a directory that lacks them, Spark writes down that the batch is done, and nothing fails. A file
system that is mounted on all machines has the same paths, so the name does not tell: it is tried.

Files of the driver's are read by executors first. Where these are not in sight, nothing has been written on disks that
the driver cannot tidy up. Then executors write, as they do when they land, and the driver counts; some file systems
show what was there before, and keep what is new to themselves.

So it is a sample. There are twice as many tasks as Spark has cores then, as a rule enough for each executor to have
one; but Spark gives them out as it likes, one that is busy may have none, and with dynamic allocation most of them join
later and are not tried at all. What an executor like that writes for a target of Parquet, a quarantine or the state in
a checkpoint is found to be missing when the batch is counted, and the batch is not landed
(:mod:`aiorecover.spark.written`).
"""

from __future__ import annotations

import uuid
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from aiorecover.errors import ConfigError
from aiorecover.spark.failures import cause_of
from aiorecover.spark.files import Files
from aiorecover.spark.schemes import LOCAL, default_scheme, scheme_of
from aiorecover.spark.staging import ABANDONED_AFTER_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["check_shared", "is_one_machine"]

_TASKS_MOST = 200  # the driver makes a file for each, some milliseconds; one executor is met before another one twice
_PART = "part-"  # what Spark's files are called
_PROBE = "_aiorecover-"  # hidden: nobody takes it for data


def check_shared(spark: SparkSession, places: Mapping[str, str | None]) -> None:
    """``places``: paths by what they are to the reader, which need not be there yet; None: there is none.

    Raises:
        ConfigError: executors have a directory of their own by this name, or may not read and write there.

    """
    if is_one_machine(str(spark.sparkContext.master)):
        return
    tasks = min(2 * spark.sparkContext.defaultParallelism, _TASKS_MOST)
    tried: set[str] = set()
    for name, path in places.items():
        if path is None or scheme_of(path, default_scheme(spark)) != LOCAL:
            continue
        directory = _nearest(Files(spark, path), path)
        if directory not in tried and not _is_shared(spark, directory, tasks):
            raise ConfigError(
                "driver and executors do not share this directory, and what executors write there would be lost: name "
                "one on HDFS, or on a file system that is mounted on all machines, or run Spark with local[*] "
                f"{name}={path!r}"
            )
        tried.add(directory)


def is_one_machine(master: str) -> bool:
    """Whether the driver is all there is; ``local-cluster`` has executors, as a cluster does."""
    return master == "local" or master.startswith("local[")


def _nearest(files: Files, path: str) -> str:
    """The directory, or of those above it the nearest one that is there: where it will be made."""
    local = PurePosixPath(files.local(path) or "/")
    return next(where for where in (f"{LOCAL}:{one}" for one in (local, *local.parents)) if files.exists(where))


def _is_shared(spark: SparkSession, directory: str, tasks: int) -> bool:
    """Leave nothing there, nor what a start has left that was killed here."""
    files = Files(spark, directory)
    files.delete_unchanged(directory, ABANDONED_AFTER_S, _PROBE)
    probe = f"{directory.rstrip('/')}/{_PROBE}{uuid.uuid4().hex}"
    try:
        return _executors_see(spark, files, f"{probe}/drivers", tasks) and _driver_sees(
            spark, files, f"{probe}/executors", tasks
        )
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigError(
            "executors cannot read and write in this directory: see that the user may that they run as, or name "
            f"another one path={directory!r} error={cause_of(str(error))!r}"
        ) from error
    finally:
        files.delete(probe)


def _executors_see(spark: SparkSession, files: Files, directory: str, tasks: int) -> bool:
    files.make_directory(directory)
    for number in range(tasks):
        files.write_new(f"{directory}/{number}", b"seen")
    return spark.read.option("ignoreMissingFiles", "true").text(directory).count() == tasks


def _driver_sees(spark: SparkSession, files: Files, directory: str, tasks: int) -> bool:
    spark.range(0, tasks, 1, tasks).write.parquet(directory)
    return sum(1 for name in files.names(directory) if name.startswith(_PART)) == tasks
