"""`benchmarks.child.Child`, quicker: forked by a process that has imported everything already.

What a contender does takes hundredths of a second here, and to import half a second, twice for each of them.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, Self

from benchmarks import child

PATIENCE_S = 60  # until a child tells something

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["benchmarks.ring.measure", "benchmarks.ring.commit"])


class Forked:
    """As `Child`: the running process; the context manager kills it."""

    def __init__(self, function: Callable[..., Any], /, **arguments: Any) -> None:
        self._name = f"{function.__module__}:{function.__qualname__}"
        self._told, its = _context.Pipe(duplex=False)
        self._process = _context.Process(target=_run, args=(self._name, json.dumps(arguments), its))
        self._process.start()
        its.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._told.close()

    def read(self) -> dict[str, Any]:
        """What the child tells next."""
        try:
            assert self._told.poll(PATIENCE_S), f"a child tells nothing: function={self._name}"
            told: dict[str, Any] = self._told.recv()
        except EOFError:
            self._process.join()
            message = f"a child ended early: function={self._name} exit={self._process.exitcode}"
            raise RuntimeError(message) from None
        return told

    def result(self) -> dict[str, Any]:
        """What the function returned; skips what is told before."""
        while "result" not in (told := self.read()):
            pass
        result: dict[str, Any] = told["result"]
        return result


class _Lines:
    """What the child writes, line by line, for who forked it."""

    def __init__(self, told: Connection) -> None:
        self._told = told

    def write(self, text: str) -> None:
        self._told.send(json.loads(text))

    def flush(self) -> None:
        pass


def _run(name: str, arguments: str, told: Connection) -> None:
    sys.stdout = _Lines(told)
    child.main(name, arguments, str(os.getppid()))


def stop() -> None:
    """The process that forks has no more to do."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
