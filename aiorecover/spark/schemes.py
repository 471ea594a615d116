"""Which file system a path is of: seen by its name, so that the jar for it need not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL", "default_scheme", "scheme_of"]

LOCAL = "file"


def scheme_of(path: str, default: str = LOCAL) -> str:
    """As Hadoop finds it: what stands before the first colon, if no slash comes first; else ``default``."""
    before, colon, _ = path.partition(":")
    return before.lower() if colon and "/" not in before else default


def default_scheme(spark: SparkSession) -> str:
    """That of paths without one, as `fs.defaultFS` says."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - pyspark offers no other way to it
    return scheme_of(str(configuration.get("fs.defaultFS")))
