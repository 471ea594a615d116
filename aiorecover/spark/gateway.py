"""Spark's Java, and what it says on the standard error: all of it, but for the report of Ivy, which fetches packages.

Ivy says some forty lines each time, though all is there already, and two hundred where something cannot be had. Of
these only what is fetched just now is handed on; what could not be had is kept.
"""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Report", "launch", "mute"]

_BEGINS = b":: loading settings ::"
_ENDS = b" artifacts copied, "
_FETCHES = b"downloading "
_MISSING = re.compile(rb"(?:unresolved dependency|download failed): ([^\s#]+)#([^\s;]+);([^\s:!\]]+)")
_UNREACHABLE = re.compile(rb"Host (\S+) not found|Server access error at url https?://([^\s/]+)")
_STDERR = 2
_handed_on = True  # what Java says; one thread reads it, and a signal handler may have changed it
_LAST_WORDS_S = 5.0  # Java has ended: what it said is in the pipe, unless a child of its has that, too


class Report:
    """What Ivy has said, line by line."""

    def __init__(self) -> None:
        self._held: list[bytes] | None = None
        self._over = False
        self._lock = threading.Lock()  # one thread hears what Java says, another one sees that it is up

    def started(self) -> None:
        """Java is up: whatever it says from now on is handed on, even if the report has not ended as it does today."""
        with self._lock:
            self._held, self._over = None, True

    def hear(self, line: bytes) -> bytes:
        """What to hand on of the next line of Java's."""
        with self._lock:
            return self._heard(line)

    def _heard(self, line: bytes) -> bytes:
        if self._held is None:
            if self._over or not line.startswith(_BEGINS):
                return line
            self._held = []
        self._held.append(line)
        if _ENDS in line:
            self._held = None
        return line if line.startswith(_FETCHES) else b""

    def rest(self) -> bytes:
        """What to hand on once Java has ended: what was held back, unless it says what could not be had."""
        return b"" if self.missing() else b"".join(self._held or [])

    def missing(self) -> list[str]:
        """Coordinates of what could not be had, as ``group:name:version``."""
        return self._found(_MISSING)

    def unreachable(self) -> list[str]:
        """Hosts that were asked in vain."""
        return self._found(_UNREACHABLE)

    def _found(self, pattern: re.Pattern[bytes]) -> list[str]:
        found = (match for line in self._held or [] for match in pattern.finditer(line))
        named = (b":".join(filter(None, match.groups())).decode(errors="replace") for match in found)
        return list(dict.fromkeys(named))


def launch(settings: Mapping[str, str], report: Report) -> None:
    """Start Java, unless this process has one; as long as it lives, what it says goes through the report.

    Raises:
        PySparkException: it ended; the report may know why.
        OSError: it cannot be run.

    """
    if SparkContext._gateway is not None:  # noqa: SLF001 - as pyspark itself asks
        return
    ours, java = os.pipe()
    relay = threading.Thread(target=_hand_on, args=(ours, report), name="aiorecover-java-stderr", daemon=True)
    relay.start()
    started = False
    try:
        conf = SparkConf().setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"stderr": java})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - what SparkContext does with its own
        report.started()
        started = True
    finally:
        os.close(java)
        if not started:
            relay.join(_LAST_WORDS_S)


def mute() -> None:
    """Hand on no more of what Java says: it is being ended, which takes it hundreds of lines. For signal handlers."""
    global _handed_on  # noqa: PLW0603 - of this process there is one Java
    _handed_on = False


def _hand_on(pipe: int, report: Report) -> None:
    with open(pipe, "rb") as lines:
        for line in lines:
            _write(report.hear(line))
    _write(report.rest())


def _write(said: bytes) -> None:
    while said and _handed_on:
        said = said[os.write(_STDERR, said) :]
