"""A program that a test kills with ``kill -9`` and starts again."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

__all__ = ["CrashingProcess"]

WITHIN_MS: Final = 10_000


class CrashingProcess:
    """A program whose output a test reads, line by line, and that it kills at any line.

    Its errors go where the test's go. It has a session of its own: whatever it has started dies with it.

    >>> with CrashingProcess("service.py", env={"KAFKA": "localhost:9092"}) as service:  # doctest: +SKIP
    ...     accepted = [service.line() for _ in range(100)]
    ...     accepted += service.kill()
    ...     service.start()  # the next life
    """

    def __init__(self, *command: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> None:
        """`start` does the rest.

        Args:
            command: a program and its arguments; a first one that ends in ``.py`` is run by this Python.
            env: variables beside those of the test.

        """
        words = [os.fspath(word) for word in command]
        self._command = [sys.executable, "-u", *words] if words[0].endswith(".py") else words
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start it, also after `kill` or `end`.

        Raises:
            RuntimeError: it runs already.
            OSError: there is no such program.

        """
        if self._process is not None:
            raise RuntimeError("the program runs already: kill it, or end it")
        self._lines = queue.SimpleQueue()
        self._process = subprocess.Popen(  # noqa: S603 - the caller's program
            self._command, env=self._env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._reader = threading.Thread(target=_read, args=(self._process, self._lines), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            RuntimeError: it does not run.

        """
        return self._get_process().pid

    def line(self, timeout_ms: int = WITHIN_MS) -> str:
        """Return the next line of its output, without its end.

        Raises:
            TimeoutError: none within ``timeout_ms``.
            RuntimeError: it does not run, or has ended.

        """
        process = self._get_process()
        try:
            line = self._lines.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            raise TimeoutError(f"the program wrote no line within {timeout_ms} ms command={self._command}") from None
        if line is None:
            self._lines.put(None)  # for the next call
            status = process.wait()
            raise RuntimeError(f"the program has ended: its errors say why status={status} command={self._command}")
        return line

    def kill(self) -> list[str]:
        """Kill it with SIGKILL; return the lines that it had written and `line` has not returned.

        Raises:
            RuntimeError: it does not run.

        """
        return self._rest(self._get_process())

    def end(self, timeout_ms: int = WITHIN_MS) -> list[str]:
        """End it with SIGTERM; return the lines that it had written and `line` has not returned.

        Raises:
            RuntimeError: it does not run, does not end within ``timeout_ms``, or ends with another status than 0.

        """
        process = self._get_process()
        process.terminate()
        try:
            status: int | str = process.wait(timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            self.kill()
            status = f"none within {timeout_ms} ms"
        else:
            lines = self._rest(process)
        if status == -signal.SIGTERM:
            raise RuntimeError(
                f"the program does not handle SIGTERM: have it do so, or kill() it command={self._command}"
            )
        if status != 0:
            raise RuntimeError(f"the program did not end well after SIGTERM status={status} command={self._command}")
        return lines

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it where it runs."""
        if self._process is not None:
            self.kill()

    def _get_process(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise RuntimeError("the program does not run: start it")
        return self._process

    def _rest(self, process: "subprocess.Popen[str]") -> list[str]:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what it has started, which would hold its output open
        process.wait()
        assert self._reader is not None
        self._reader.join()
        self._process = None
        return list(iter(self._lines.get, None))


def _read(process: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str | None]") -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            if line.endswith("\n"):  # else it died in the middle of it
                lines.put(line.rstrip("\n"))
    lines.put(None)
