"""The options of a run, and the result of a benchmark."""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.broker import Cluster


class DiskTooSmallError(Exception):
    """The disk has too little room for the run."""


@dataclass(frozen=True)
class Setting:
    """``rounds``, ``records``, ``gigabytes`` and ``seconds`` are None where each benchmark takes its own."""

    brokers: Cluster | None
    """Started; None where no benchmark of the run asks for Kafka."""
    rounds: int | None
    records: int | None
    gigabytes: float | None
    directory: str | None
    """Where the write-ahead logs are; None is the directory for temporary files."""
    seconds: float | None = None
    """For each measurement of a round."""

    @property
    def cluster(self) -> Cluster:
        """Kafka."""
        assert self.brokers is not None, "this benchmark is not on the list of those that need Kafka"
        return self.brokers

    @contextmanager
    def wal_dir(self) -> Iterator[str]:
        """A place for one write-ahead log, removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="aiorecover-benchmark-", dir=self.directory) as path:
            yield path

    def require_room(self, size: int) -> None:
        """Refuse to fill the disk: ``size`` bytes and a tenth must be free.

        Raises:
            DiskTooSmallError: they are not.

        """
        free = shutil.disk_usage(self.directory or tempfile.gettempdir()).free
        if free < size * 1.1:
            message = "not enough room for the backlog: ask for less, or name another --directory"
            raise DiskTooSmallError(f"{message} {free=} needed={int(size * 1.1)}")

    def say(self, text: str) -> None:
        """Report progress."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """``data`` is everything that was measured, round by round, as plain JSON."""

    name: str
    tables: Sequence[Table]
    data: dict[str, Any] = field(default_factory=dict)
