"""The Maven coordinates that Spark has to fetch for its version: its Kafka connector, formats of tables, and stores.

Imported before every other module here, so it says where pyspark is missing or too old.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.extras import extra

with extra("spark"):
    import pyspark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CONNECTOR", "PACKAGES", "SPARK", "packages_for"]

PACKAGES = "spark.jars.packages"

SPARK = pyspark.__version__.rpartition(".")[0]
"""Spark's major and minor version."""
if tuple(map(int, SPARK.split(".")[:2])) < (3, 5):  # which brought the functions for bitmaps
    raise ConfigError(
        f"aiorecover.spark needs Spark 3.5 or newer: pip install 'aiorecover[spark]' pyspark={pyspark.__version__}"
    )

_SCALA = "2.12" if SPARK == "3.5" else "2.13"
_DELTA = {
    "3.5": "io.delta:delta-spark_2.12:3.3.2",
    "4.0": "io.delta:delta-spark_4.0_2.13:4.4.0",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
_ICEBERG = {
    "3.5": "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.11.0",
    "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
}
_HADOOP = {"3.5": "3.3.4", "4.0": "3.4.1", "4.1": "3.4.2"}  # the version that pyspark brings
_STORES = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{pyspark.__version__}"
"""The coordinates of Spark's Kafka connector."""


def packages_for(
    settings: Mapping[str, str], *, kafka: bool = True, chosen: str | None = None, paths: Iterable[str] = ()
) -> dict[str, str]:
    """Return settings to add, so that Spark fetches what it lacks; ``spark.jars`` means that nothing is fetched.

    ``kafka``: whether Kafka is read. ``chosen``: the format; a table of Delta on a local disk is found without it.
    ``paths``: what is read and written, perhaps in a store that needs a package of Hadoop's. A catalogue of Iceberg,
    and where it keeps tables, is found in ``settings``.
    """
    added: dict[str, str] = {}
    wanted = [CONNECTOR] if kafka else []
    if chosen == "delta" or any((Path(path.removeprefix("file:")) / "_delta_log").is_dir() for path in paths):
        added["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        added["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        wanted.append(_DELTA.get(SPARK, ""))
    if any(value.startswith("org.apache.iceberg.spark.") for value in settings.values()):
        wanted.append(_ICEBERG.get(SPARK, ""))
    schemes = {path.partition("://")[0] for path in (*paths, *settings.values())}
    stores = sorted({name for scheme, name in _STORES.items() if scheme in schemes and SPARK in _HADOOP})
    wanted += [f"org.apache.hadoop:{name}:{_HADOOP[SPARK]}" for name in stores]
    named = settings.get(PACKAGES, "")
    lacking = [one for one in wanted if one and one.split(":")[1].partition("_")[0] not in named]
    if "spark.jars" not in settings and lacking:
        added[PACKAGES] = ",".join(filter(None, [named, *lacking]))
    return {name: value for name, value in added.items() if name not in settings or name == PACKAGES}
