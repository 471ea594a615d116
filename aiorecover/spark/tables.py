"""Tables of a catalogue to which whole batches are added, each once: Iceberg's, and the session catalogue's of Parquet.

Both say in a table property which landing they belong to, and have the number of the batch in the column ``batch_id``.
One that was made before belongs to nobody at first, and of two landings that claim it at once one at most gets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.spark.directory import Directory
from aiorecover.spark.files import Files
from aiorecover.spark.record_id import ID_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["IcebergTable", "ParquetTable", "provider_of"]

_MARK = "aiorecover.landing"
_CLAIM = "aiorecover.claim."
_BATCH, _OFFSETS = "aiorecover.batch", "aiorecover.offsets"  # of a snapshot
_COLUMNS = [
    "`key` binary",
    "`value` binary",
    "`topic` string",
    "`partition` int",
    "`offset` bigint",
    "`timestamp` timestamp",
    "`timestampType` int",
    "`headers` array<struct<`key`: string, `value`: binary>>",
    "`producer_id` string",
    "`epoch` int",
    "`sequence` bigint",
    "`batch_id` bigint",
]


class _Table:
    """A table by its name, which need not be there yet."""

    provider: str
    is_renamed: bool
    made_with = ""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        self._spark = spark
        self._is_made = False  # by its `claim`

    def where(self) -> str | None:
        """Where its files stand, as the catalogue says; None where it is not there yet, or has none."""
        return (_described(self._spark, self.name, "Location") or None) if self._is_there() else None

    def mark(self) -> str | None:
        """Which landing it belongs to."""
        return self._properties().get(_MARK) if self._is_there() else None

    def is_used(self) -> bool:
        """Whether there are rows in it."""
        return self._is_there() and not self._spark.table(self.name).isEmpty()

    def claim(self, mark: str) -> None:
        """Make it belong to this landing for good, unless it belongs to another one by now: `mark` tells.

        It is made where there is none.

        Raises:
            ConfigError: it is of another kind, or lacks columns.

        """
        if not self._is_there():
            made = f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(_COLUMNS)}) {self.made_with}"
            self._spark.sql(f"{made} TBLPROPERTIES ('{_MARK}' = '{mark}')")
            self._is_made = True
        if self.mark() is not None:
            return
        self._check()
        self._claim_made_before(mark)

    def take_back(self, mark: str) -> bool:
        """Whether `claim` has made it for this landing, and it is gone again: nothing was in it."""
        if not self._is_made or self.mark() != mark or self.is_used():
            return False
        self._spark.sql(f"DROP TABLE {self.name}")
        return True

    def _claim_made_before(self, mark: str) -> None:
        raise NotImplementedError

    def _set_mark(self, mark: str) -> None:
        self._set(_MARK, mark)

    def _set(self, key: str, value: str) -> None:
        self._spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{key}' = '{value}')")

    def _properties(self) -> dict[str, str]:
        # Iceberg remembers tables for each session.
        self._spark.catalog.refreshTable(self.name)
        return {row["key"]: row["value"] for row in self._spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()}

    def _is_there(self) -> bool:
        return self._spark.catalog.tableExists(self.name)

    def _check(self) -> None:
        provider = provider_of(self._spark, self.name)
        if provider != self.provider:
            raise ConfigError(
                f"records are landed in tables of Iceberg, or of Parquet in the session catalogue: name another table, "
                f"or one that is not there yet table={self.name} {provider=}"
            )
        absent = {column.split("`")[1] for column in _COLUMNS} - set(self._spark.table(self.name).columns)
        if absent:
            raise ConfigError(f"the table lacks columns: add them, or name another one table={self.name} {absent=}")


class IcebergTable(_Table):
    """A table of Iceberg: a batch is one append, which shows whole or not at all.

    Whether a batch is there is asked of its rows, so that it does not matter which snapshots have expired, or whether
    files were rewritten. Two processes that land with one checkpoint at the same time may both add a batch.
    """

    provider = "iceberg"
    is_renamed = False

    def location(self) -> str | None:
        """As `where`, from the root on and without links; None also where no file system of Hadoop's has it."""
        where = self.where()
        try:
            return None if where is None else Files(self._spark, where).real(where)
        except (ConfigError, Py4JJavaError):  # as of s3://, which Iceberg reaches by itself
            return None

    def clear(self, *, is_locked: bool) -> None:
        """Nothing: what no snapshot names is for Iceberg's ``remove_orphan_files``."""

    def holds(self, batch_id: int) -> bool:
        """Whether the batch is there; one without rows never is."""
        return not self._batch(batch_id).isEmpty()

    def beyond(self, batch_id: int) -> int | None:
        """The newest batch, where it is a later one than this."""
        # Iceberg opens no file of which it knows that all is older.
        later = self._rows().where(F.col("batch_id") > batch_id)
        newest: int | None = later.agg(F.max("batch_id")).collect()[0][0]
        return newest

    def fingerprint(self, batch_id: int) -> str | None:
        """Which offsets a batch has, as its snapshot tells, unless that has expired; None: nothing says so."""
        summary = F.col("summary")
        of_batch = self._spark.table(f"{self.name}.snapshots").where(summary[_BATCH] == str(batch_id))
        found = of_batch.where(summary[_OFFSETS].isNotNull()).select(summary[_OFFSETS]).take(1)
        return found[0][0] if found else None

    def add(self, rows: DataFrame, batch_id: int, fingerprint: str | None) -> None:
        """Add a batch that is not there yet; ``fingerprint``: which offsets it has."""
        writer = rows.withColumn("batch_id", F.lit(batch_id).cast("bigint")).writeTo(self.name)
        if fingerprint is not None:
            told = {_BATCH: str(batch_id), _OFFSETS: fingerprint}
            writer = writer.options(**{f"snapshot-property.{key}": value for key, value in told.items()})
        writer.append()

    def ids(self, batch_id: int) -> DataFrame:
        """The ids of a batch that is there, null for rows without one."""
        return self._batch(batch_id).select(*ID_COLUMNS)

    def _claim_made_before(self, mark: str) -> None:
        """Iceberg loses no property that two set at once; so each sets its own, and goes on only if that is alone."""
        ours = f"{_CLAIM}{mark}"
        self._set(ours, "true")
        properties = self._properties()
        if _MARK not in properties and not any(key.startswith(_CLAIM) and key != ours for key in properties):
            self._set_mark(mark)
        self._spark.sql(f"ALTER TABLE {self.name} UNSET TBLPROPERTIES ('{ours}')")

    def _batch(self, batch_id: int) -> DataFrame:
        return self._rows().where(F.col("batch_id") == batch_id)

    def _rows(self) -> DataFrame:
        # Iceberg remembers tables for each session, and a batch is written in a session of its query's own.
        self._spark.catalog.refreshTable(self.name)
        return self._spark.table(self.name)


class ParquetTable(_Table):
    """A table of the session catalogue whose partitions are the batches of a `Directory`.

    A partition is made known once its directory is there; a driver that was killed in between is made up for by the
    next start.
    """

    provider = "parquet"
    is_renamed = True
    made_with = "USING parquet PARTITIONED BY (batch_id)"

    def location(self) -> str | None:
        """As `where`, from the root on and without links."""
        where = self.where()
        return None if where is None else Files(self._spark, where).real(where)

    def is_used(self) -> bool:
        """Whether there are rows in it, or files: those of a table that was dropped stay where it was an external one.

        The catalogue knows none of their partitions once it is made anew.
        """
        where = self.where()
        return super().is_used() or (where is not None and Directory(self._spark, where).is_used())

    def clear(self, *, is_locked: bool) -> None:
        """Remove what killed attempts have left, and make known what they have landed."""
        self._check()
        self._directory().clear(is_locked=is_locked)
        for batch_id in self._directory().batch_ids()[-1:]:
            self._make_known(batch_id)

    def holds(self, batch_id: int) -> bool:
        """Whether the batch is there."""
        return self._directory().holds(batch_id)

    def beyond(self, batch_id: int) -> int | None:
        """The newest batch, where it is a later one than this."""
        return self._directory().beyond(batch_id)

    def fingerprint(self, batch_id: int) -> str | None:
        """Which offsets a batch has, as it was told when it was added; None: nothing says so."""
        return self._directory().fingerprint(batch_id)

    def add(self, rows: DataFrame, batch_id: int, fingerprint: str | None) -> None:
        """Add a batch that is not there yet; ``fingerprint``: which offsets it has."""
        self._directory().add(rows, batch_id, fingerprint)
        self._make_known(batch_id)

    def ids(self, batch_id: int) -> DataFrame:
        """The ids of a batch that is there, null for rows without one."""
        return self._directory().ids(batch_id)

    def _check(self) -> None:
        super()._check()
        if [column.name for column in self._spark.catalog.listColumns(self.name) if column.isPartition] != ["batch_id"]:
            raise ConfigError(
                f"a table of Parquet must be partitioned by batch_id alone: name one that is not there yet, and it is "
                f"made that way table={self.name}"
            )

    def _claim_made_before(self, mark: str) -> None:
        """The catalogue has one set the mark over another's; a file of its directory only one can make."""
        directory = self._directory()
        directory.claim(mark)
        if directory.mark() == mark:
            self._set_mark(mark)

    def _directory(self) -> Directory:
        return Directory(self._spark, self.where() or "")

    def _make_known(self, batch_id: int) -> None:
        self._spark.sql(f"ALTER TABLE {self.name} ADD IF NOT EXISTS PARTITION (batch_id = {batch_id})")


def provider_of(spark: SparkSession, name: str) -> str | None:
    """Whose format a table is in, as ``parquet`` or ``iceberg``; None where there is no such table."""
    return _described(spark, name, "Provider").lower() if spark.catalog.tableExists(name) else None


def _described(spark: SparkSession, name: str, what: str) -> str:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where(F.col("col_name") == what).collect()
    return str(rows[-1]["data_type"]) if rows else ""
