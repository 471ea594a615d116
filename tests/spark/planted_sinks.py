"""Sink and source with a fault in them: the format `aiorecover-planted`, whose option `plant` names the fault.

- `attempt`: the first attempt of a task fails when its rows are in Kafka.
- `executor`: likewise, because its executor is killed with -9, Java and all.
- `reader`: the executor that reads the first rows of a ring is killed with -9 when it has read some.
- `before`: the driver is gone when all tasks of batch 1 are done, before there is a manifest.
- `after`: the driver is gone when the manifest of batch 1 is published, before Spark knows.

Each strikes once: then a file of its name stands in the directory `marker`.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from aiorecover.spark.sink import BatchWriter, StreamWriter
from aiorecover.spark.source import RingReader
from pyspark_aiorecover import DefaultSource

__all__ = ["FORMAT", "register_planted"]

FORMAT = "aiorecover-planted"


def register_planted(spark: SparkSession) -> None:
    # The workers know nothing of the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(_Planted)


class _Fault:
    def __init__(self, options: Any) -> None:
        self._plant, self._directory = options["plant"], options["marker"]

    def strike(self, plant: str) -> None:
        marker = Path(self._directory) / plant
        if self._plant == plant and not marker.exists():
            marker.touch()
            if plant in {"executor", "reader"}:
                _kill_executor()
            raise ArithmeticError(f"planted {plant}")

    def behind(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if self._plant in {"attempt", "executor"} and context is not None and context.partitionId() == 0:
            time.sleep(2.0)  # by then the writer has sent what it was given
            self.strike(self._plant)

    def between(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            self.strike("reader")


def _kill_executor() -> None:
    """Java, which has started the daemon that this process was forked from."""
    (java,) = re.findall(r"^PPid:\t(\d+)$", Path(f"/proc/{os.getppid()}/status").read_text(), re.MULTILINE)
    os.kill(int(java), signal.SIGKILL)


def _theirs(options: Any) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in {"plant", "marker"}}


class _Batch(BatchWriter):
    def __init__(self, options: Any, schema: StructType) -> None:
        super().__init__(_theirs(options), schema, overwrite=False)
        self._fault = _Fault(options)

    def write(self, iterator: Any) -> Any:
        return super().write(self._fault.behind(iterator))


class _Stream(StreamWriter):
    def __init__(self, options: Any, schema: StructType) -> None:
        super().__init__(_theirs(options), schema)
        self._fault = _Fault(options)

    def write(self, iterator: Any) -> Any:
        return super().write(self._fault.behind(iterator))

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - as Spark calls it
        if batchId == 1:
            self._fault.strike("before")
        super().commit(messages, batchId)
        if batchId == 1:
            self._fault.strike("after")


class _Rows(RingReader):
    def __init__(self, options: Any, schema: StructType) -> None:
        super().__init__(_theirs(options), schema)
        self._fault = _Fault(options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._fault.between(super().read(partition))


class _Planted(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return DefaultSource(_theirs(self.options)).schema()

    def reader(self, schema: StructType) -> Any:
        return _Rows(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return _Batch(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - as Spark calls it
        return _Stream(self.options, schema)
