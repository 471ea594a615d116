"""A directory to which whole batches are added, each under its number: ``batch_id=<batch>``, once or not at all.

A batch is written to a directory of its own, ``_staging/<batch>-<random>``, and this is then renamed. Tasks of a driver
that was killed may still be writing for a while: to a directory of theirs, which nobody will ever rename. It is renamed
only where all rows stand in it that Spark has written (:mod:`aiorecover.spark.written`).

Beside the files of a batch stands which offsets it has, in ``_aiorecover.json``, which readers pass over.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from aiorecover.spark.files import Files
from aiorecover.spark.record_id import ID_SCHEMA
from aiorecover.spark.staging import STAGING, clear_staging
from aiorecover.spark.written import check_whole, write_counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Directory", "is_passed_over"]

_HIDDEN = (".", "_")  # what Spark does not take for data either; a start that was killed may have left it
_LISTS = frozenset({"_delta_log", "_spark_metadata"})  # where they are, readers see only files that they list
_MARK = "_aiorecover.json"
_LANDING = "landing"
_OFFSETS = "offsets"


class Directory:
    """Batches as directories of Parquet files, on a file system that renames a directory in one step."""

    is_renamed = True

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self._spark = spark
        self._files = Files(spark, path)

    @property
    def name(self) -> str:
        """With its file system, and from its root on."""
        return self._files.qualified(self.path)

    def where(self) -> str:
        """Where its files stand, or will stand, as it was told."""
        return self.path

    def location(self) -> str:
        """As `name`, without links in it where they can be told."""
        return self._files.real(self.path)

    def mark(self) -> str | None:
        """Which landing it belongs to."""
        found = self._files.read(f"{self.path}/{_MARK}")
        return None if found is None else str(json.loads(found)[_LANDING])

    def is_used(self) -> bool:
        """Whether anything stands in it but what landings leave before their first batch."""
        names = self._files.names(self.path)
        return any(not name.startswith(_HIDDEN) or name in _LISTS for name in names)

    def claim(self, mark: str) -> None:
        """Make it belong to this landing for good, unless it belongs to another one by now."""
        self._files.make_directory(self.path)
        self._files.write_new(f"{self.path}/{_MARK}", json.dumps({_LANDING: mark}).encode())

    def take_back(self, mark: str) -> bool:  # noqa: ARG002 - as others have it
        """No: where it stands is known before it is made, and it is not claimed where it cannot be landed in."""
        return False

    def clear(self, *, is_locked: bool) -> None:
        """Remove what killed attempts have left; ``is_locked``: nobody else lands here."""
        clear_staging(self._files, self.path, is_locked=is_locked)

    def holds(self, batch_id: int) -> bool:
        """Whether the batch is there."""
        return self._files.exists(self.place(batch_id))

    def beyond(self, batch_id: int) -> int | None:
        """The newest batch, where it is a later one than this."""
        newest = max(self.batch_ids(), default=batch_id)
        return newest if newest > batch_id else None

    def fingerprint(self, batch_id: int) -> str | None:
        """Which offsets a batch has, as it was told when it was added; None: nothing says so."""
        found = self._files.read(f"{self.place(batch_id)}/{_MARK}")
        return None if found is None else str(json.loads(found)[_OFFSETS])

    def add(self, rows: DataFrame, batch_id: int, fingerprint: str | None) -> None:
        """Add a batch that is not there yet; ``fingerprint``: which offsets it has.

        Raises:
            ConfigError: fewer rows stand in its files than Spark has written; nothing is added.

        """
        aside = f"{self.path}/{STAGING}/{batch_id}-{uuid.uuid4().hex}"
        written = write_counted(rows, aside)
        if fingerprint is not None:
            self._files.write_new(f"{aside}/{_MARK}", json.dumps({_OFFSETS: fingerprint}).encode())
        check_whole(self._spark, aside, written)
        self._files.move(aside, self.place(batch_id))

    def ids(self, batch_id: int) -> DataFrame:
        """The ids of a batch that is there, null for rows without one."""
        return self._spark.read.schema(ID_SCHEMA).parquet(self.place(batch_id))

    def place(self, batch_id: int) -> str:
        """The directory of a batch."""
        return f"{self.path}/batch_id={batch_id}"

    def batch_ids(self) -> list[int]:
        """Of the batches that are there, in order."""
        return self._files.numbers(self.path, "batch_id=")


def is_passed_over(name: str) -> bool:
    """Whether readers of such a directory, and landings, leave alone what has this name in it."""
    return name.startswith(_HIDDEN) and name != STAGING and name not in _LISTS
