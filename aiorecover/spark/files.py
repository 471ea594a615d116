"""Small files and directories on whatever file system Spark's paths name, through Hadoop's own interface."""

from __future__ import annotations

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
_RENAMES = ("file", "hdfs", "viewfs")  # in one step, which object stores do not


class Files:
    """The file system of a path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Find it.

        Raises:
            ConfigError: Hadoop knows none of this scheme, or no such host.

        """
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark offers no other way to Hadoop's interface
        self._gateway, self._hadoop = gateway, gateway.jvm.org.apache.hadoop
        self._configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        with _asked(path):
            self._system: Any = self._path(path).getFileSystem(self._configuration)
            self.scheme: str = self._system.getUri().getScheme()

    @property
    def renames(self) -> bool:
        """Whether it gives a directory another name in one step, and only if nothing has that name."""
        return self.scheme in _RENAMES

    def exists(self, path: str) -> bool:
        """Whether something has this name.

        Raises:
            ConfigError: it cannot be reached, or may not be looked at; so with all that looks.

        """
        with _asked(path):
            return bool(self._system.exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """What stands in a directory; nothing where there is none."""
        if not self.exists(path):
            return []
        asked = self._gateway.new_array(self._hadoop.fs.Path, 1)  # one path alone gives an array of s3a's own type
        asked[0] = self._path(path)
        with _asked(path):
            listed = self._system.listStatus(asked)
        if not len(listed):
            return []
        # All at once: each call of Java's takes its time, and a target has a name for each of its batches.
        paths = self._gateway.jvm.scala.Predef.genericWrapArray(self._hadoop.fs.FileUtil.stat2Paths(listed))
        return sorted(one.rpartition("/")[2] for one in str(paths.mkString(_APART)).split(_APART))

    def numbers(self, path: str, prefix: str = "") -> list[int]:
        """Of what stands in a directory under names that end with a number, in order."""
        names = (name.removeprefix(prefix) for name in self.names(path) if name.startswith(prefix))
        return sorted(int(name) for name in names if name.isdecimal())

    def move(self, source: str, destination: str) -> None:
        """Give a directory another name, which nothing may have yet: an error of Java's otherwise."""
        context = self._hadoop.fs.FileContext.getFileContext(self._system.getUri(), self._configuration)
        no_options = self._gateway.new_array(self._hadoop.fs.Options.Rename, 0)
        context.rename(self._path(source), self._path(destination), no_options)

    def delete(self, path: str) -> None:
        """Remove it with all that is in it; it need not be there.

        Raises:
            ConfigError: it may not be removed.

        """
        with _told(path):
            self._system.delete(self._path(path), True)  # noqa: FBT003 - as Java calls it: recursive

    def make_directory(self, path: str) -> None:
        """With those above it; it may be there already.

        Raises:
            ConfigError: it may not be made.

        """
        with _told(path):
            self._system.mkdirs(self._path(path))

    def read(self, path: str) -> bytes | None:
        """All of a small file; None where there is none."""
        if not self.exists(path):
            return None
        with _asked(path):
            stream = self._system.open(self._path(path))
            try:
                return bytes(self._gateway.jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write_new(self, path: str, content: bytes) -> None:
        """A small file that is whole or not there; where something has the name by then, that stays.

        Raises:
            ConfigError: it may not be written.

        """
        with _told(path):
            aside = f"{path}.{uuid.uuid4().hex}.new" if self.renames else path
            stream = self._system.create(self._path(aside), False)  # noqa: FBT003 - as Java calls it: overwrite
            try:
                stream.write(content)
            finally:
                stream.close()  # an object is there from now on, and whole
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
