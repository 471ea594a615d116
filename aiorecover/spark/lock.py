"""One landing at a time works with a checkpoint: a second one would clear away what the first is writing.

A directory that the operating system knows is locked by it, until the query has ended or the process is gone, however
that came. On other file systems, and on those that lock no directories, nothing is locked: there Spark notices two
queries when both begin the same batch, and ends one of them.
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
        self._descriptor = -1
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
            self._descriptor = self._locked(checkpoint)
            if self._descriptor >= 0:
                _held[self._directory] = self

    def release(self) -> None:
        """Leave it to others; harmless where that was done before."""
        with _guard:
            self._unlock()

    def release_after(self, query: StreamingQuery) -> None:
        """Hold it until the query has ended."""
        self._query = query
        if self._descriptor >= 0:
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

    def _locked(self, checkpoint: str) -> int:
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"the checkpoint cannot be opened: check its rights error={error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"another landing works with this checkpoint: wait until it has ended, or stop it {checkpoint=}"
            ) from None
        except OSError:  # a file system that locks no directories, as NFS
            os.close(descriptor)
            return -1
        return descriptor

    def _unlock(self) -> None:
        if self._descriptor < 0:
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked child has the same open file, and may live for longer
        os.close(self._descriptor)
        self._descriptor = -1
        del _held[self._directory]


def _leave_in_child() -> None:
    """A child of a fork that outlives this process would keep the lock for it."""
    for lock in _held.values():
        os.close(lock._descriptor)  # noqa: SLF001 - of this room
        lock._descriptor = -1  # noqa: SLF001 - likewise
    _held.clear()


os.register_at_fork(after_in_child=_leave_in_child)
