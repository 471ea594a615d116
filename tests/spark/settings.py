"""Spark's settings for the tests: little memory, few tasks, and the jars that `tests.support.jars` has fetched."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from tests.spark.buckets import bucket_settings, storage_path
from tests.support.classes import archive_of, sharing
from tests.support.jars import find_java, spark_jars

__all__ = ["DRIVER_JAVA", "MUTE", "PLAIN", "QUICK", "archive_path", "command_words", "session_settings"]

DRIVER_JAVA = "spark.driver.extraJavaOptions"

# Under pytest a Java lives for seconds and minutes, and optimising compilation is most of its work: with these options
# a small audit takes 1.5 s of a core instead of 4.5. The long proofs use Java's defaults.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MUTE = "-Xlog:disable"  # Java reports an archive that does not fit on stdout, where commands print their results
# At these sizes Spark spends most time on compiling plans and on stages of adaptive plans. The commands that tests
# start use Spark's defaults.
PLAIN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
_PYSPARK = Path(pyspark.__file__).parent / "jars"


def session_settings(directory: Path) -> dict[str, str]:
    """Return the settings of a session that keeps its files, and Iceberg's tables, in ``directory``."""
    settings = {**_settings(directory), **(in_bucket := bucket_settings(directory))}
    jars = [*map(str, sorted(spark_jars().glob("*.jar"))), *filter(None, [in_bucket.get("spark.jars")])]
    return {**settings, "spark.jars": ",".join(jars)}


def _settings(directory: Path) -> dict[str, str]:
    return {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": storage_path(directory / "lake"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # The default is 50, for each read of a small table.
        "spark.databricks.delta.snapshotPartitions": "2",
        # A Delta for another Spark fails at the first checkpoint that it reads; most tests make fewer commits than the
        # default interval, 10.
        "spark.databricks.delta.properties.defaults.checkpointInterval": "2",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The default is 200: at these sizes Spark would spend most time on starting empty tasks.
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        **(_quick_java() if "PYTEST_VERSION" in os.environ else {}),
    }


def archive_path() -> Path:
    """Return the archive of the classes of drivers and executors (`tests.spark.archive`)."""
    return archive_of(find_java(), _PYSPARK, _archive_name())


@functools.cache
def _quick_java() -> Mapping[str, str]:
    options = " ".join([QUICK, MUTE, *sharing(find_java(), _PYSPARK, _archive_name())])
    return {DRIVER_JAVA: options, "spark.executor.extraJavaOptions": options}


def _archive_name() -> Path:
    return spark_jars().with_name("pyspark")


def command_words(directory: Path, master: str = "local[2]") -> list[str]:
    """Return `session_settings` and the master as arguments of a command."""
    pairs = session_settings(directory).items()
    return ["--master", master, *(word for key, value in pairs for word in ("--conf", f"{key}={value}"))]
