"""Tables of Iceberg and Delta, and directories of Parquet, to which each batch is added whole, and once.

A store has the number of the batch in the column ``batch_id``, and a mark: the checkpoint that it belongs to. A batch
that is there already is not added again, whenever a driver dies:

- Delta knows the last batch of a writer (``txnAppId``, ``txnVersion``), and refuses a second writer at the same time.
- Iceberg's snapshots say which batch they added; after they have expired, the rows say it. The batch is written as
  ``overwrite(batch_id = n)`` with serializable isolation, so of two drivers one is refused.
- Parquet gets a directory ``batch_id=<n>``, by one rename, which local disks and HDFS do in one step.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation calls it F
from pyspark.sql.types import StructType

from aiorecover.errors import ConfigError
from aiorecover.spark.files import Files
from aiorecover.spark.packages import SPARK
from aiorecover.spark.session import clear_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KINDS", "Store", "catalogue_in", "check_format", "read_target", "store_for"]

_MARK = "aiorecover.checkpoint"
_MARK_FILE = "_aiorecover.json"
_ASIDE = "_batch-"  # begins the name of a batch's directory while it is written


class Store:
    """A table or a directory, which need not exist yet."""

    format: str

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name, self._spark = name.rstrip("/") or name, spark

    def beside(self, suffix: str) -> Store:
        """Return the store of the same format whose name ends with ``__<suffix>``."""
        if "/" in self.name:
            return type(self)(self._spark, f"{self.name}__{suffix}")
        quoted = self.name.endswith("`")
        return type(self)(self._spark, f"{self.name.rstrip('`')}__{suffix}{'`' if quoted else ''}")

    def is_there(self) -> bool:
        """Return whether it exists, empty or not."""
        raise NotImplementedError

    def is_empty(self) -> bool:
        """Return whether nothing is in it; it exists."""
        return self.read().isEmpty()

    def mark(self) -> str | None:
        """Return which checkpoint it belongs to; None: to none yet."""
        raise NotImplementedError

    def claim(self, schema: StructType, mark: str) -> None:
        """Make it if it does not exist, and mark it unless it has a mark."""
        raise NotImplementedError

    def check_columns(self, schema: StructType) -> None:
        """Compare its columns with those that are landed.

        Raises:
            ConfigError: some are absent, or of another type.

        """

    def read(self) -> DataFrame:
        """Return all rows."""
        raise NotImplementedError

    def batch(self, batch_id: int) -> DataFrame:
        """Return the rows of one batch."""
        return self.read().where(F.col("batch_id") == batch_id)

    def before(self, batch_id: int) -> DataFrame:
        """Return the rows of all batches before one."""
        return self.read().where(F.col("batch_id") < batch_id)

    def beyond(self, batch_id: int) -> int | None:
        """Return the newest batch if it is later than this one."""
        later = self.read().where(F.col("batch_id") > batch_id)
        newest: int | None = later.agg(F.max("batch_id")).collect()[0][0]
        return newest

    def append(self, rows: DataFrame, batch_id: int, mark: str) -> None:
        """Add a batch unless it is there."""
        raise NotImplementedError

    def forget(self, before: int) -> None:
        """Remove the batches before this one."""
        raise NotImplementedError


class _Table(Store):
    """A table with properties, which Spark knows by a name."""

    @property
    def _identifier(self) -> str:
        """Its name in SQL."""
        return self.name

    def is_there(self) -> bool:
        return bool(self._spark.catalog.tableExists(self.name))

    def mark(self) -> str | None:
        if not self.is_there():
            return None
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {self._identifier}").collect()
        return {row["key"]: row["value"] for row in rows}.get(_MARK)

    def claim(self, schema: StructType, mark: str) -> None:
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)
        properties = f"TBLPROPERTIES ('{_MARK}' = '{mark}')"
        if not self.is_there():
            self._spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self._identifier} ({columns}) USING {self.format} {properties}"
            )
        if self.mark() is None:
            self._spark.sql(f"ALTER TABLE {self._identifier} SET {properties}")

    def check_columns(self, schema: StructType) -> None:
        there = {field.name: field.dataType.simpleString() for field in self.read().schema.fields}
        wanted = {field.name: field.dataType.simpleString() for field in schema.fields}
        remedy = f"or land with a new target and a new checkpoint table={self.name}"
        if absent := [name for name in wanted if name not in there]:
            raise ConfigError(
                f"the table lacks columns that are landed: add them again, {remedy} absent={','.join(absent)}"
            )
        if changed := [f"{name}:{there[name]}" for name, kind in wanted.items() if there[name] != kind]:
            raise ConfigError(
                f"the table has columns that are landed with another type: change them back, {remedy} "
                f"changed={','.join(changed)}"
            )

    def forget(self, before: int) -> None:
        self._spark.sql(f"DELETE FROM {self._identifier} WHERE batch_id < {before}")  # noqa: S608 - a name and a number


class _Iceberg(_Table):
    format = "iceberg"

    def read(self) -> DataFrame:
        self._spark.catalog.refreshTable(self.name)  # a session remembers what it read
        return self._spark.table(self.name)

    def append(self, rows: DataFrame, batch_id: int, mark: str) -> None:
        snapshot = self._newest_snapshot()
        if self._holds(batch_id, mark):
            return
        numbered = rows.withColumn("batch_id", F.lit(batch_id).cast("bigint"))
        if SPARK == "3.5":  # later versions add absent columns themselves
            theirs = [field for field in self.read().schema.fields if field.name not in numbered.columns]
            numbered = numbered.withColumns({field.name: F.lit(None).cast(field.dataType) for field in theirs})
        writer = numbered.writeTo(self.name)
        writer = writer.option("snapshot-property.aiorecover.batch", batch_id)
        writer = writer.option(f"snapshot-property.{_MARK}", mark)
        if snapshot is not None:
            writer = writer.option("validate-from-snapshot-id", snapshot)
        writer.option("isolation-level", "serializable").overwrite(F.col("batch_id") == batch_id)

    def _newest_snapshot(self) -> int | None:
        self._spark.catalog.refreshTable(self.name)
        newest = self._spark.table(f"{self.name}.refs").where("name = 'main'").select("snapshot_id").take(1)
        return newest[0][0] if newest else None

    def _holds(self, batch_id: int, mark: str) -> bool:
        summary = F.col("summary")
        ours = (summary["aiorecover.batch"] == str(batch_id)) & (summary[_MARK] == mark)
        if not self._spark.table(f"{self.name}.snapshots").where(ours).isEmpty():
            return True
        return not self.batch(batch_id).isEmpty()


class _Delta(_Table):
    """A table by its name or its path."""

    format = "delta"

    @property
    def _identifier(self) -> str:
        return f"delta.`{self.name}`" if "/" in self.name else self.name

    def is_there(self) -> bool:
        if "/" not in self.name:
            return super().is_there()
        return Files(self._spark, self.name).exists(f"{self.name}/_delta_log")

    def read(self) -> DataFrame:
        if "/" in self.name:
            return self._spark.read.format("delta").load(self.name)
        return self._spark.table(self.name)

    def append(self, rows: DataFrame, batch_id: int, mark: str) -> None:
        writer = rows.withColumn("batch_id", F.lit(batch_id).cast("bigint")).write.format("delta").mode("append")
        writer = writer.options(txnAppId=mark, txnVersion=batch_id)
        if "/" in self.name:
            writer.save(self.name)
        else:
            writer.saveAsTable(self.name)


class _Parquet(Store):
    """A directory with a directory for each batch."""

    format = "parquet"

    def __init__(self, spark: SparkSession, name: str) -> None:
        super().__init__(spark, name)
        self._files = Files(spark, name)
        self._schema = StructType()  # `claim` knows it: Spark would open files to find it
        if not self._files.renames:
            raise ConfigError(
                f"Parquet is landed on local disks and HDFS, which rename in one step: on {self._files.scheme} land in "
                f"a table of Delta (--format delta) or Iceberg (name a table of its catalogue) target={name}"
            )

    def is_there(self) -> bool:
        return self._files.exists(self.name)

    def is_empty(self) -> bool:
        return all(name.startswith((_ASIDE, _MARK_FILE)) for name in self._files.names(self.name))

    def mark(self) -> str | None:
        written = self._files.read(f"{self.name}/{_MARK_FILE}")
        return None if written is None else str(json.loads(written)[_MARK])

    def claim(self, schema: StructType, mark: str) -> None:
        self._schema = schema
        self._files.make_directory(self.name)
        if self.mark() is None:
            self._files.write_new(f"{self.name}/{_MARK_FILE}", json.dumps({_MARK: mark}).encode())
        for name in self._files.names(self.name):
            if name.startswith(_ASIDE):  # of a driver that died
                self._files.delete(f"{self.name}/{name}")

    def read(self) -> DataFrame:
        return self._load(self._files.numbers(self.name, "batch_id="))

    def batch(self, batch_id: int) -> DataFrame:
        return self._load([batch_id] if self._files.exists(f"{self.name}/batch_id={batch_id}") else [])

    def _load(self, numbers: Sequence[int]) -> DataFrame:
        if not numbers:
            return self._spark.createDataFrame([], self._schema)
        paths = [f"{self.name}/batch_id={number}" for number in numbers]
        return self._spark.read.schema(self._schema).option("basePath", self.name).parquet(*paths)

    def beyond(self, batch_id: int) -> int | None:
        newest = max(self._files.numbers(self.name, "batch_id="), default=-1)
        return newest if newest > batch_id else None

    def append(self, rows: DataFrame, batch_id: int, mark: str) -> None:  # noqa: ARG002 - the directory is the mark
        place = f"{self.name}/batch_id={batch_id}"
        if self._files.exists(place):
            return
        aside = f"{self.name}/{_ASIDE}{batch_id}-{uuid.uuid4().hex}"
        rows.write.parquet(aside)
        self._files.move(aside, place)

    def forget(self, before: int) -> None:
        for number in self._files.numbers(self.name, "batch_id="):
            if number < before:
                self._files.delete(f"{self.name}/batch_id={number}")


KINDS: dict[str, type[Store]] = {kind.format: kind for kind in (_Iceberg, _Delta, _Parquet)}


def store_for(spark: SparkSession, name: str, chosen: str | None = None) -> Store:
    """Return the store with this name, which may have to be made; a path has a ``/`` in it.

    ``chosen``: a key of `KINDS`; default, the format of what is there. A new path is of Parquet; a new table of
    Iceberg, or of Delta where Spark's own catalogue is Delta's.

    Raises:
        ConfigError: there is no such format, or it does not fit the name.

    """
    check_format(chosen)
    if "/" in name:
        if chosen == "iceberg":
            raise ConfigError(f"name a table of Iceberg by its catalogue, as lake.db.orders: target={name}")
        delta = _Delta(spark, name)
        return delta if chosen == "delta" or (chosen is None and delta.is_there()) else _Parquet(spark, name)
    if chosen == "parquet":
        raise ConfigError(f"Parquet is landed in a directory: name one, with a / in it target={name}")
    with clear_errors(target=name):
        return KINDS[chosen or _format_of(spark, name)](spark, name)


def check_format(chosen: str | None) -> None:
    """Check the name of a format.

    Raises:
        ConfigError: there is no such format.

    """
    if chosen is not None and chosen not in KINDS:
        raise ConfigError(f"a format is one of {', '.join(KINDS)}: format={chosen!r}")


def _format_of(spark: SparkSession, name: str) -> str:
    if spark.catalog.tableExists(name):
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where(F.col("col_name") == "Provider").collect()
        provider = str(rows[-1]["data_type"]).lower() if rows else ""
        if provider not in ("iceberg", "delta"):
            raise ConfigError(
                f"records are landed in tables of Iceberg and Delta: name one, or one that is not there yet, or a "
                f"directory, with a / in it table={name} {provider=}"
            )
        return provider
    catalogue = catalogue_in(spark, name) or spark.catalog.currentCatalog()
    if catalogue != "spark_catalog":
        return "iceberg"
    kind = spark.conf.get("spark.sql.catalog.spark_catalog", None)
    if kind is None:
        raise ConfigError(
            "name a directory, with a / in it, or a table with its catalogue, as lake.db.orders; with --format delta "
            f"Spark's own catalogue is Delta's table={name}"
        )
    return "delta" if "delta" in kind.lower() else "iceberg"


def catalogue_in(spark: SparkSession, name: str) -> str | None:
    """Return the catalogue that a table's name begins with; None: it begins with none."""
    first = name.partition(".")[0].strip("`")
    is_known = first == "spark_catalog" or spark.conf.get(f"spark.sql.catalog.{first}", None) is not None
    return first if "." in name and is_known else None


def read_target(spark: SparkSession, name: str) -> DataFrame:
    """Return the rows of Parquet files or of a table of Delta, by its path, or of a table that Spark knows by name.

    Raises:
        ConfigError: there is no such table.

    """
    with clear_errors():
        if "/" not in name:
            spark.catalog.refreshTable(name)  # a session remembers what it read
            return spark.table(name)
        delta = _Delta(spark, name)
        return delta.read() if delta.is_there() else spark.read.parquet(name)
