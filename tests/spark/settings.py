"""How Spark is set up for the tests: small, with the jars that `tests.support.jars` has fetched."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from tests.spark.buckets import bucket_settings, stored
from tests.support.classes import archive_of, sharing
from tests.support.jars import find_java, spark_jars

__all__ = ["DRIVER_JAVA", "PLAIN", "QUICK", "archive", "command_words", "session_settings"]

DRIVER_JAVA = "spark.driver.extraJavaOptions"

# Under pytest a Java lives for seconds and minutes, and most of its work would be to compile well: 1.5 s of a core
# instead of 4.5 for a small audit. The long proofs have the default.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# At these sizes most of the time goes into compiling plans, and into stages of plans that adapt. The commands that the
# tests start have the defaults.
PLAIN = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
_MUTE = "-Xlog:disable"  # of an archive that does not fit Java tells on stdout, where commands print what they found
_PYSPARK = Path(pyspark.__file__).parent / "jars"


def session_settings(directory: Path) -> dict[str, str]:
    settings = {**_settings(directory), **(in_bucket := bucket_settings(directory))}
    jars = [*map(str, sorted(spark_jars().glob("*.jar"))), *filter(None, [in_bucket.get("spark.jars")])]
    return {**settings, "spark.jars": ",".join(jars)}


def _settings(directory: Path) -> dict[str, str]:
    return {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": stored(directory / "lake"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Fifty of the default for each read of a small table.
        "spark.databricks.delta.snapshotPartitions": "2",
        # Ten by default, more commits than most tests make: a Delta for another Spark fails once it reads one of these.
        "spark.databricks.delta.properties.defaults.checkpointInterval": "2",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # 200 by default: at these sizes most of the time would go into starting empty tasks.
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        **(_quick_java() if "PYTEST_VERSION" in os.environ else {}),
    }


def archive() -> Path:
    """Where the classes of drivers and executors are kept (`tests.spark.archive`)."""
    return archive_of(find_java(), _PYSPARK, _kept())


@functools.cache
def _quick_java() -> Mapping[str, str]:
    options = " ".join([QUICK, _MUTE, *sharing(find_java(), _PYSPARK, _kept())])
    return {DRIVER_JAVA: options, "spark.executor.extraJavaOptions": options}


def _kept() -> Path:
    return spark_jars().with_name("pyspark")


def command_words(directory: Path, master: str = "local[2]") -> list[str]:
    """As `session_settings`, for the command line."""
    pairs = session_settings(directory).items()
    return ["--master", master, *(word for key, value in pairs for word in ("--conf", f"{key}={value}"))]
