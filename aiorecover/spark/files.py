"""Directories on whatever file system Spark's paths name, through Hadoop's own interface.

What landing stands on is `move`: a directory appears under its name whole, and only if nothing has that name yet. HDFS
and local file systems do that in one step. Object stores without directories do not.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from aiorecover.errors import ConfigError
from aiorecover.spark.failures import cause_of, meaning_of_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["Files"]

_APART = "\0"  # in no name of a file


class Files:
    """The file system of a path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Find it.

        Raises:
            ConfigError: Hadoop knows none of this scheme, or no such host.

        """
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark offers no other way to Hadoop's interface
        self._hadoop: Any = gateway.jvm.org.apache.hadoop
        configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        with _asked(path):
            uri = self._path(path).toUri()
            self._context: Any = self._hadoop.fs.FileContext.getFileContext(uri, configuration)
        self._no_options: Any = gateway.new_array(self._hadoop.fs.Options.Rename, 0)
        self._create: Any = gateway.jvm.java.util.EnumSet.of(self._hadoop.fs.CreateFlag.CREATE)
        self._no_create_options: Any = gateway.new_array(self._hadoop.fs.Options.CreateOpts, 0)
        self._io: Any = gateway.jvm.org.apache.commons.io.IOUtils
        self._scala: Any = gateway.jvm.scala.runtime.ScalaRunTime

    def exists(self, path: str) -> bool:
        """Whether something has this name.

        Raises:
            ConfigError: it cannot be reached, or may not be looked at; so with all that looks.

        """
        with _asked(path):
            return bool(self._context.util().exists(self._path(path)))

    def qualified(self, path: str) -> str:
        """The path with its file system, and from its root on."""
        return str(self._context.makeQualified(self._path(path)).toString())

    def real(self, path: str) -> str:
        """As `qualified`, and on a file system that the operating system knows without links in it."""
        local = self.local(path)
        return self.qualified(path) if local is None else f"file:{os.path.realpath(local)}"

    def resolved(self, path: str) -> str:
        """As `qualified`, behind links and the mounts of a view; of the directory, or of the nearest one above it."""
        with _asked(path):
            one = self._context.makeQualified(self._path(path))
            while not self._context.util().exists(one) and one.getParent() is not None:
                one = one.getParent()
            return str(self._context.resolvePath(one).toString())

    def local(self, path: str) -> str | None:
        """What the operating system calls it; None on another file system."""
        uri = self._context.makeQualified(self._path(path)).toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def names(self, path: str) -> list[str]:
        """What stands in a directory; nothing where there is none."""
        if not self.exists(path):
            return []
        with _asked(path):
            listed = self._context.util().listStatus(self._path(path))
        if not len(listed):
            return []
        # All at once: each call of Java's takes its time, and a target has a name for each of its batches.
        paths = self._scala.genericWrapArray(self._hadoop.fs.FileUtil.stat2Paths(listed))
        return sorted(one.rpartition("/")[2] for one in str(paths.mkString(_APART)).split(_APART))

    def numbers(self, path: str, prefix: str = "") -> list[int]:
        """Of what stands in a directory under names that end with a number, in order."""
        names = (name.removeprefix(prefix) for name in self.names(path) if name.startswith(prefix))
        return sorted(int(name) for name in names if name.isdecimal())

    def move(self, source: str, destination: str) -> None:
        """Give a directory another name, which nothing may have yet: an error of Java's otherwise."""
        self._context.rename(self._path(source), self._path(destination), self._no_options)

    def delete(self, path: str) -> None:
        """Remove it with all that is in it; it need not be there.

        Raises:
            ConfigError: it may not be removed.

        """
        with _told(path):
            self._context.delete(self._path(path), True)  # noqa: FBT003 - as Java calls it: recursive

    def delete_unchanged(self, path: str, seconds: float, prefix: str = "") -> None:
        """Remove, of what stands in a directory under names that begin so, what was last changed so long ago.

        Of a directory that is when something right in it was made, renamed or removed. Where a file system does not
        tell, it stays.

        Raises:
            ConfigError: it may not be removed.

        """
        before_ms = (time.time() - seconds) * 1000
        for one in (f"{path.rstrip('/')}/{name}" for name in self.names(path) if name.startswith(prefix)):
            if 0 < self._changed_ms(one) < before_ms:
                self.delete(one)

    def make_directory(self, path: str) -> None:
        """With those above it; it may be there already.

        Raises:
            ConfigError: it may not be made.

        """
        rights = self._hadoop.fs.permission.FsPermission.getDirDefault()
        with _told(path):
            self._context.mkdir(self._path(path), rights, True)  # noqa: FBT003 - as Java calls it: with those above

    def read(self, path: str) -> bytes | None:
        """All of a small file; None where there is none."""
        if not self.exists(path):
            return None
        with _asked(path):
            stream = self._context.open(self._path(path))
            try:
                return bytes(self._io.toByteArray(stream))
            finally:
                stream.close()

    def write_new(self, path: str, content: bytes) -> None:
        """A small file that is whole or not there; where something has the name by then, that stays.

        Raises:
            ConfigError: it may not be written.

        """
        with _told(path):
            self._write_new(path, content)

    def _changed_ms(self, path: str) -> int:
        """When, since 1970; 0: it is gone, or nothing tells."""
        try:
            return int(self._context.getFileStatus(self._path(path)).getModificationTime())
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error):
                return 0
            raise

    def _write_new(self, path: str, content: bytes) -> None:
        aside = f"{path}.{uuid.uuid4().hex}.new"
        stream = self._context.create(self._path(aside), self._create, self._no_create_options)
        try:
            stream.write(content)
        finally:
            stream.close()
        try:
            self.move(aside, path)
        except Py4JJavaError:
            self.delete(aside)
            if not self.exists(path):
                raise

    def _path(self, path: str) -> Any:
        return self._hadoop.fs.Path(path)


@contextmanager
def _asked(path: str) -> Iterator[None]:
    """In one sentence what Java says in many lines, where the cause is in the reader's hands."""
    try:
        yield
    except Py4JJavaError as error:
        if meaning := meaning_of_files(str(error)):
            raise ConfigError(f"{meaning} {path=}") from error
        raise


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Likewise, of what was to be written, whatever the cause."""
    try:
        yield
    except Py4JJavaError as error:
        said = str(error)
        unknown = "this may not be written: check its path, its rights and the room on its disk"
        meaning = meaning_of_files(said) or f"{unknown} error={cause_of(said)!r}"
        raise ConfigError(f"{meaning} {path=}") from error
