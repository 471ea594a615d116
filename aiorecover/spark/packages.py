"""What Spark has to fetch for its version, as Maven coordinates: its Kafka connector, formats of tables, and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CONNECTOR", "PACKAGES", "SPARK", "packages_for"]

PACKAGES = "spark.jars.packages"

SPARK = pyspark.__version__.rpartition(".")[0]
"""Spark's major and minor version."""
_SCALA = "2.12" if SPARK == "3.5" else "2.13"
_DELTA = {
    "3.5": "io.delta:delta-spark_2.12:3.3.2",
    "4.0": "io.delta:delta-spark_2.13:4.0.0",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.1.0",
}
_ICEBERG = {
    "3.5": "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.11.0",
    "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
}
_HADOOP = {"3.5": "3.3.4", "4.0": "3.4.1", "4.1": "3.4.2"}  # that pyspark brings
_STORES = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{pyspark.__version__}"
"""The coordinates of Spark's Kafka connector."""


def packages_for(
    settings: Mapping[str, str], *, kafka: bool = True, chosen: str | None = None, paths: Iterable[str] = ()
) -> dict[str, str]:
    """Return the settings that are to be added, so that Spark fetches what it lacks; who names jars brings all.

    ``kafka``: whether Kafka is read. ``chosen``: the format. ``paths``: what is read and written, perhaps in a store
    that Hadoop needs a package for. A catalogue of Iceberg shows in the settings, as does where it keeps tables.
    """
    added: dict[str, str] = {}
    wanted = [CONNECTOR] if kafka else []
    if chosen == "delta":
        added["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        added["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        wanted.append(_DELTA.get(SPARK, ""))
    if any(value.startswith("org.apache.iceberg.spark.") for value in settings.values()):
        wanted.append(_ICEBERG.get(SPARK, ""))
    wanted += sorted(_store_packages([*paths, *settings.values()]))
    named = settings.get(PACKAGES, "")
    lacking = [one for one in wanted if one and one.split(":")[1].partition("_")[0] not in named]
    if "spark.jars" not in settings and lacking:
        added[PACKAGES] = ",".join(filter(None, [named, *lacking]))
    return {name: value for name, value in added.items() if name not in settings or name == PACKAGES}


def _store_packages(paths: Iterable[str]) -> set[str]:
    schemes = {path.partition("://")[0] for path in paths}
    version = _HADOOP.get(SPARK)
    return {f"org.apache.hadoop:{name}:{version}" for scheme, name in _STORES.items() if version and scheme in schemes}
