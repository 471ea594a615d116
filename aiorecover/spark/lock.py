"""One landing at a time works with a checkpoint: a second one would clear away what the first is writing.

Where the operating system knows the directory it is locked, until the query has ended or the process is gone, however
that came: by itself, as earlier versions do it, too, and by the file `_lock` in it. File systems of several machines
pass the lock of a file on to one another, and mostly not that of a directory: NFS, which is asked to lock a directory,
locks it for this machine alone, or not at all. (Some pass on none, as they are mounted: NFS with ``nolock``, Lustre
with ``localflock``. There a lock is this machine's.)

On other file systems, such as HDFS, nothing is locked, nor where no file can be. There a start leaves alone what
another one may be writing (:mod:`aiorecover.spark.staging`), a batch counts only with all its rows
(:mod:`aiorecover.spark.written`), and Spark notices two queries when both begin the same batch, and ends one of them.
So a directory of Parquet files loses nothing and gets nothing twice. A table of Iceberg may get a batch twice.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from aiorecover.errors import ConfigError
from aiorecover.spark.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Lock"]

_FILE = "_lock"
_held: dict[str, Lock] = {}  # of this process, by directory
_guard = threading.Lock()


class Lock:
    """Of a checkpoint, which is made where it is not there yet; taken as soon as it is constructed."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        """Take it.

        Raises:
            ConfigError: another landing has it.

        """
        self._query: StreamingQuery | None = None
        self._descriptors: list[int] = []
        self._is_held = False
        files = Files(spark, checkpoint)
        files.make_directory(checkpoint)
        local = files.local(checkpoint)
        if local is None:
            return
        self._directory = os.path.realpath(local)
        with _guard:
            before = _held.get(self._directory)
            if before is not None and before._has_ended():  # noqa: SLF001 - of its own class
                before._unlock()  # noqa: SLF001 - likewise
            self._lock(checkpoint)
            if self._descriptors:
                _held[self._directory] = self

    @property
    def is_held(self) -> bool:
        """Whether nobody else works with it, on another machine either, as far as its file system can tell."""
        return self._is_held

    def release(self) -> None:
        """Leave it to others; harmless where that was done before."""
        with _guard:
            self._unlock()

    def release_after(self, query: StreamingQuery) -> None:
        """Hold it until the query has ended."""
        self._query = query
        if self._descriptors:
            threading.Thread(target=self._wait, args=(query,), name="aiorecover-lock", daemon=True).start()

    def _wait(self, query: StreamingQuery) -> None:
        try:
            # What it fails with is told to whoever else awaits it; and Java may be gone before it.
            with suppress(PySparkException, Py4JError, OSError):
                query.awaitTermination()
        finally:
            self.release()

    def _has_ended(self) -> bool:
        """Whether its query has, though the thread that waits for it was not told yet."""
        if self._query is None:
            return False
        try:
            return not self._query.isActive
        except (Py4JError, OSError):  # Java is gone, and the query with it
            return True

    def _lock(self, checkpoint: str) -> None:
        try:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"the checkpoint cannot be opened: check its rights error={error}") from error
        self._take(directory, checkpoint)
        try:
            # Open for writing, or NFS would not lock it.
            file = os.open(f"{self._directory}/{_FILE}", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # somebody else's
            return
        self._is_held = self._take(file, checkpoint)

    def _take(self, descriptor: int, checkpoint: str) -> bool:
        """Whether its file system locks it; otherwise it is closed."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            self._close()
            raise ConfigError(
                f"another landing works with this checkpoint: wait until it has ended, or stop it {checkpoint=}"
            ) from None
        except OSError:
            os.close(descriptor)
            return False
        self._descriptors.append(descriptor)
        return True

    def _unlock(self) -> None:
        if not self._descriptors:
            return
        self._close()
        del _held[self._directory]

    def _close(self) -> None:
        self._is_held = False
        for descriptor in self._descriptors:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child has the same open file, and may live for longer
            os.close(descriptor)
        self._descriptors.clear()


def _leave_in_child() -> None:
    """A child of a fork that outlives this process would keep the lock for it."""
    for lock in _held.values():
        for descriptor in lock._descriptors:  # noqa: SLF001 - of this room
            os.close(descriptor)
        lock._descriptors.clear()  # noqa: SLF001 - likewise
    _held.clear()


os.register_at_fork(after_in_child=_leave_in_child)
