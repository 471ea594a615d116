"""Where batches are landed: a directory, or a table by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aiorecover.errors import ConfigError
from aiorecover.spark.directory import Directory
from aiorecover.spark.session import clear_errors
from aiorecover.spark.tables import IcebergTable, ParquetTable, provider_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Target", "find_target", "read_target"]

_SESSION_CATALOGUE = "spark_catalog"


class Target(Protocol):
    """Something to which batches are added by their number, each whole or not at all."""

    @property
    def name(self) -> str:
        """What it is called, by whoever and from wherever."""
        ...

    @property
    def is_renamed(self) -> bool:
        """Whether a batch is a directory that is renamed."""
        ...

    def where(self) -> str | None:
        """Where its files stand, or will stand, as it was told; None where that is not known before it is made."""
        ...

    def location(self) -> str | None:
        """As `where`, from the root on and without links; None also where no file system of Hadoop's has it."""
        ...

    def mark(self) -> str | None:
        """Which landing it belongs to."""
        ...

    def is_used(self) -> bool:
        """Whether anything is in it."""
        ...

    def claim(self, mark: str) -> None:
        """Make it belong to this landing for good, unless it belongs to another one by now: `mark` tells."""
        ...

    def take_back(self, mark: str) -> bool:
        """Whether `claim` has made it for this landing, and it is gone again: nothing was in it."""
        ...

    def clear(self, *, is_locked: bool) -> None:
        """Put in order what killed attempts have left; ``is_locked``: nobody else lands here."""
        ...

    def holds(self, batch_id: int) -> bool:
        """Whether the batch is there."""
        ...

    def beyond(self, batch_id: int) -> int | None:
        """The newest batch, where it is a later one than this."""
        ...

    def fingerprint(self, batch_id: int) -> str | None:
        """Which offsets a batch has, as it was told when it was added; None: nothing says so."""
        ...

    def add(self, rows: DataFrame, batch_id: int, fingerprint: str | None) -> None:
        """Add a batch that is not there yet; ``fingerprint``: which offsets it has."""
        ...

    def ids(self, batch_id: int) -> DataFrame:
        """The ids of a batch that is there, null for rows without one."""
        ...


def read_target(spark: SparkSession, name: str) -> DataFrame:
    """What stands there: in Parquet files, or in a table that Spark knows by this name.

    Raises:
        ConfigError: nothing is there, or it is none of both.

    """
    with clear_errors():
        return spark.read.parquet(name) if "/" in name else spark.table(name)


def find_target(spark: SparkSession, name: str) -> Target:
    """A directory where there is a ``/`` in the name, else a table: of Parquet in the session catalogue, else Iceberg.

    Raises:
        ConfigError: the session catalogue forgets its tables when the session ends.

    """
    if "/" in name:
        return Directory(spark, name)
    if _catalogue_of(spark, name) != _SESSION_CATALOGUE or provider_of(spark, name) == IcebergTable.provider:
        return IcebergTable(spark, name)
    if spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
        raise ConfigError(
            f"this session's catalogue forgets its tables: name a directory, with a / in it, a table of another "
            f"catalogue, or set spark.sql.catalogImplementation=hive target={name}"
        )
    return ParquetTable(spark, name)


def _catalogue_of(spark: SparkSession, name: str) -> str:
    first = name.partition(".")[0].strip("`")
    named = "." in name and spark.conf.get(f"spark.sql.catalog.{first}", None) is not None
    return first if named else spark.catalog.currentCatalog()
