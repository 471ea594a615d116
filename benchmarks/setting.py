"""What a run was asked for, and what a benchmark gives back."""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.broker import Cluster


@dataclass(frozen=True)
class Setting:
    """The cluster is started; ``rounds`` and ``records`` are None where each benchmark takes its own number."""

    cluster: Cluster
    rounds: int | None
    records: int | None
    gigabytes: float
    directory: str | None
    """Where the write-ahead logs are; None is the directory for temporary files."""

    @contextmanager
    def wal_dir(self) -> Iterator[str]:
        """A place for one write-ahead log, removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="aiorecover-benchmark-", dir=self.directory) as path:
            yield path

    def say(self, text: str) -> None:
        """Tell whoever waits what goes on."""
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
