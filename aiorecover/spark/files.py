"""Small files and directories on any file system that Spark's paths name, through Hadoop's own interface."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from aiorecover.errors import ConfigError
from aiorecover.spark.failures import cause_of, meaning_of_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["Files"]

_SEPARATOR = "\0"  # no name of a file has it
_RENAMES = ("file", "hdfs", "viewfs")  # in one step, which object stores do not


class Files:
    """The file system of a path.

    Raises:
        ConfigError: from each method: Hadoop does not know the scheme, the file system cannot be reached, or this may
            not be read or written.

    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no other way to Hadoop's interface
        self._gateway, self._hadoop = gateway, gateway.jvm.org.apache.hadoop
        self._configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        with _reading(path):
            self._system: Any = self._path(path).getFileSystem(self._configuration)
            self.scheme: str = self._system.getUri().getScheme()

    @property
    def renames(self) -> bool:
        """Whether it renames a directory in one step, and only if nothing has the new name."""
        return self.scheme in _RENAMES

    def exists(self, path: str) -> bool:
        """Return whether something has this name."""
        with _reading(path):
            return bool(self._system.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """Return what is in a directory, in order; nothing where there is no directory."""
        if not self.exists(path):
            return []
        paths = self._gateway.new_array(self._hadoop.fs.Path, 1)  # for one path, s3a returns an array of its own type
        paths[0] = self._path(path)
        with _reading(path):
            listed = self._system.listStatus(paths)
        if not len(listed):
            return []
        # In one call: each call of Java takes its time, and a target has a name for each of its batches.
        found = self._gateway.jvm.scala.Predef.genericWrapArray(self._hadoop.fs.FileUtil.stat2Paths(listed))
        return sorted(one.rpartition("/")[2] for one in str(found.mkString(_SEPARATOR)).split(_SEPARATOR))

    def numbers(self, path: str, prefix: str = "") -> list[int]:
        """Return the numbers after ``prefix`` in the names in a directory, in order."""
        names = (name.removeprefix(prefix) for name in self.names(path) if name.startswith(prefix))
        return sorted(int(name) for name in names if name.isdecimal())

    def move(self, source: str, destination: str) -> None:
        """Rename a directory; raise Java's error if something has the new name."""
        context = self._hadoop.fs.FileContext.getFileContext(self._system.getUri(), self._configuration)
        no_options = self._gateway.new_array(self._hadoop.fs.Options.Rename, 0)
        context.rename(self._path(source), self._path(destination), no_options)

    def delete(self, path: str) -> None:
        """Remove it with all that is in it, if it exists."""
        with _writing(path):
            self._system.delete(self._path(path), True)  # noqa: FBT003 - Java's parameter: recursive

    def make_directory(self, path: str) -> None:
        """Make it, and those above it, if it does not exist."""
        with _writing(path):
            self._system.mkdirs(self._path(path))

    def read(self, path: str) -> bytes | None:
        """Return a small file; None where there is none."""
        if not self.exists(path):
            return None
        with _reading(path):
            stream = self._system.open(self._path(path))
            try:
                return bytes(self._gateway.jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write_new(self, path: str, content: bytes) -> None:
        """Write a small file, whole or not at all; where something has the name by then, that stays."""
        with _writing(path):
            aside = f"{path}.{uuid.uuid4().hex}.new" if self.renames else path
            stream = self._system.create(self._path(aside), False)  # noqa: FBT003 - Java's parameter: overwrite
            try:
                stream.write(content)
            finally:
                stream.close()  # an object exists from now on, and is whole
            if self.renames:
                self._settle(aside, path)

    def _settle(self, aside: str, path: str) -> None:
        try:
            self.move(aside, path)
        except Py4JJavaError:
            self.delete(aside)
            if not self.exists(path):
                raise

    def _path(self, path: str) -> Any:
        return self._hadoop.fs.Path(path)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Make one sentence of Java's error, where the user can mend the cause."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:  # pyspark wraps Java's IllegalArgumentException
        if meaning := meaning_of_files(str(error)):
            raise ConfigError(f"{meaning} {path=}") from error
        raise


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Likewise, with a sentence for every other cause, too."""
    try:
        with _reading(path):
            yield
    except Py4JJavaError as error:
        what = "this may not be written: check its path, its rights and the room on its disk"
        raise ConfigError(f"{what} error={cause_of(str(error))!r} {path=}") from error
