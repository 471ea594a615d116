"""Spark's Java: started, and what it says on its standard error kept in a file, unless it is to be shown.

Ivy, which fetches packages, says forty lines each time, Spark some more as it starts, and of an error that ends the
work executors, the scheduler, the query and py4j write the stack each, though the error is raised with all of it.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["launch", "missing", "py4j_silent", "said", "unreachable"]

_MISSING = re.compile(r"(?:unresolved dependency|download failed): ([^\s#]+)#([^\s;]+);([^\s:!\]]+)")
_UNREACHABLE = re.compile(r"Host (\S+) not found|Server access error at url https?://([^\s/]+)")
_LAST_BYTES = 256 << 10  # of what it said: Ivy's longest report

_kept: IO[bytes] | None = None  # of this process there is one Java


def launch(settings: Mapping[str, str], *, verbose: bool) -> None:
    """Start Java, unless this process has one.

    Raises:
        PySparkException: it ended; `said` may tell why.
        OSError: it cannot be run.

    """
    global _kept  # noqa: PLW0603 - of this process there is one Java
    if SparkContext._gateway is not None:  # noqa: SLF001 - as pyspark itself asks
        return
    _kept = None if verbose else tempfile.TemporaryFile()  # noqa: SIM115 - as long as Java lives
    conf = SparkConf().setAll(list(settings.items()))
    gateway = launch_gateway(conf, {} if _kept is None else {"stderr": _kept})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - what SparkContext does with its own


def said() -> str:
    """Return the end of what Java has said so far, unless it was shown."""
    if _kept is None:
        return ""
    size = os.fstat(_kept.fileno()).st_size
    # Where Java goes on writing is not moved by this.
    return os.pread(_kept.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace")


def missing() -> list[str]:
    """Coordinates of what could not be fetched, as ``group:name:version``."""
    return _found(_MISSING)


def unreachable() -> list[str]:
    """Hosts that were asked for it in vain."""
    return _found(_UNREACHABLE)


def _found(pattern: re.Pattern[str]) -> list[str]:
    return list(dict.fromkeys(":".join(filter(None, match.groups())) for match in pattern.finditer(said())))


@contextmanager
def py4j_silent() -> Iterator[None]:
    """Of py4j nothing is written: not what it logs under its name, nor what it logs under none."""
    root, named = logging.getLogger(), logging.getLogger("py4j")
    before, named.propagate = named.propagate, False
    root.addFilter(_nothing)  # on what is logged there itself
    try:
        yield
    finally:
        root.removeFilter(_nothing)
        named.propagate = before


def _nothing(_record: logging.LogRecord) -> bool:
    return False
