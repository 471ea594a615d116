"""What Spark has written down of a query that lands: which batches are begun and done, and where in Kafka they end.

In the directory of a query Spark keeps ``sources/0/0``, where its source begins, ``offsets/<batch>``, where a batch
ends, written before the batch is run, and ``commits/<batch>``, written when it is done. A batch that is begun and not
done is run with the next start, whatever that is told.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aiorecover.spark.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QueryLog"]

Offsets = dict[str, dict[str, int]]
"""Topic to partition to offset."""


class QueryLog:
    """The directory of one query, which need not be there."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._files = Files(spark, path)
        self._path = path

    def unfinished(self) -> int | None:
        """The batch that is begun and not done yet."""
        begun = self._last("offsets")
        return begun if begun > self.last_done() else None

    def first(self) -> Offsets | None:
        """Where the first batch starts; None: nothing says so."""
        return self._read("sources/0/0")

    def done(self) -> Offsets | None:
        """Up to where all is done; None: nothing says so."""
        batch_id = self.last_done()
        return self.first() if batch_id < 0 else self.end(batch_id)

    def begun(self) -> Offsets | None:
        """Where the batch ends that is begun and not done; None: there is none."""
        batch_id = self.unfinished()
        return None if batch_id is None else self.end(batch_id)

    def end(self, batch_id: int) -> Offsets | None:
        """Where a batch ends; None: nothing says so."""
        return self._read(f"offsets/{batch_id}")

    def last_begun(self) -> int:
        """The last batch that has offsets, done or not; -1: there is none."""
        return self._last("offsets")

    def last_done(self) -> int:
        """The last batch that is done; -1: there is none."""
        return self._last("commits")

    def _last(self, log: str) -> int:
        return max(self._files.numbers(f"{self._path}/{log}"), default=-1)

    def _read(self, name: str) -> Offsets | None:
        written = self._files.read(f"{self._path}/{name}")
        if written is None:
            return None
        told: Offsets = json.loads(written.splitlines()[-1])  # above it stand a version and settings
        return told
