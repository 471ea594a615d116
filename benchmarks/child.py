"""A function of this package in a process of its own: contenders share no heap, no threads and no garbage.

    python -m benchmarks.child benchmarks.throughput:aiokafka '{"records": 1000, ...}'

A coroutine function is run by uvloop. The child writes JSON lines: what it reports by `tell`, then {"result": ...}.
"""

import asyncio
import importlib
import inspect
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any, Self

import uvloop

from aiorecover.testing.mock_cluster_process import die_with_parent

_ROOT = Path(__file__).parents[1]
_LIMIT_S = 900  # 10 GB of backlog take five minutes


class Child:
    """The running process; the context manager ends it."""

    def __init__(self, function: Callable[..., Any], /, **arguments: Any) -> None:
        self._name = f"{function.__module__}:{function.__qualname__}"
        command = [sys.executable, "-m", __name__, self._name, json.dumps(arguments), str(os.getpid())]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
        self._too_late = Timer(_LIMIT_S, self._process.kill)
        self._too_late.daemon = True
        self._too_late.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._too_late.cancel()
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self) -> dict[str, Any]:
        """Return the child's next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a child ended early: function={self._name} exit={self._process.wait()}")
        told: dict[str, Any] = json.loads(line)
        return told

    def result(self) -> dict[str, Any]:
        """Return the function's result; skip the lines before it."""
        while "result" not in (told := self.read()):
            pass
        result: dict[str, Any] = told["result"]
        return result

    def kill(self) -> None:
        """`kill -9`; returns when the process is gone."""
        self._process.kill()
        self._process.wait()


def call(function: Callable[..., Any], /, **arguments: Any) -> dict[str, Any]:
    """The result of ``function(**arguments)`` in a child; both are plain JSON."""
    with Child(function, **arguments) as child:
        return child.result()


def tell(**fields: Any) -> None:
    """Say something to the parent (in the child)."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


@dataclass
class Watch:
    """Elapsed time, and processor time of all threads of this process, in seconds."""

    elapsed: float = 0.0
    cpu: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Watch]:
    """Measure a block."""
    watch = Watch()
    began, cpu_began = time.perf_counter(), time.process_time()
    yield watch
    watch.elapsed = time.perf_counter() - began
    watch.cpu = time.process_time() - cpu_began


def main(name: str, arguments: str, parent: str) -> None:
    die_with_parent(int(parent))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # where there is no broker on purpose
    logging.getLogger("aiorecover").setLevel(logging.ERROR)
    module, _, function_name = name.partition(":")
    function = getattr(importlib.import_module(module), function_name)
    result = function(**json.loads(arguments))
    if inspect.iscoroutine(result):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(result)
    tell(result=result)


if __name__ == "__main__":
    main(*sys.argv[1:])
