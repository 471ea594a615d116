"""The mock cluster in a process of its own, so that it outlives what a test or a demonstration kills.

    async with MockClusterProcess(brokers=3) as cluster:
        await cluster.create_topic("orders", partitions=6, replication=3)
        ...
        await cluster.broker_down()

The child is ``python -m aiorecover.testing``. It writes one JSON line when it is up,
``{"bootstrap_servers": "...", "brokers": 3}``, then answers each line
``{"id": 1, "call": "broker_down", "arguments": [null]}`` on its stdin with ``{"id": 1, "error": null}`` or
the error's text. It ends with its parent, however that dies: its stdin reaches its end, and on Linux the
kernel kills it as well (``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, Self

from aiorecover.testing.mock_cluster import MockCluster

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["MockClusterProcess", "child_environment", "die_with_parent", "serve"]

_PR_SET_PDEATHSIG = 1

# The methods of MockCluster that the pipe carries: those whose arguments and results are plain JSON.
_CALLS: Final = frozenset(
    {
        "broker_down",
        "broker_up",
        "clear_errors",
        "create_topic",
        "push_errors",
        "round_trip_ms",
        "set_leader",
        "topic_error",
    }
)


class MockClusterProcess:
    """A :class:`MockCluster` in a child process, with the same method names as coroutines.

    ``async with``, or ``start()`` and ``close()``. Every method raises ``RuntimeError`` if the cluster
    refuses, if the child is gone, or if it does not answer within ``timeout_ms`` milliseconds. On Linux the
    child dies with the *thread* that started it: start it from the main thread.
    """

    def __init__(self, brokers: int = 1, *, timeout_ms: int = 10_000) -> None:
        """Remember the number of brokers; nothing is started yet."""
        self._brokers = brokers
        self._timeout = timeout_ms / 1000
        self._process: asyncio.subprocess.Process | None = None
        self._bootstrap_servers = ""
        self._last_id = 0
        self._one_call_at_a_time = asyncio.Lock()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every broker, comma separated; empty before ``start()``."""
        return self._bootstrap_servers

    @property
    def brokers(self) -> int:
        """The number of brokers; their ids are 1 to this number."""
        return self._brokers

    @property
    def pid(self) -> int | None:
        """Process id of the child, None when it is not running."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the child and wait until its brokers listen.

        ``RuntimeError`` if it does not come up; its stderr, which is ours, says why.
        """
        if self._process is not None:
            raise RuntimeError("the mock cluster is started already")
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aiorecover.testing"),
            *("--brokers", str(self._brokers), "--parent", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(),
        )
        try:
            hello = await self._answer()
        except BaseException:
            await self.close()
            raise
        self._bootstrap_servers = hello["bootstrap_servers"]

    async def close(self) -> None:
        """End the child: politely, by the end of its stdin, then with SIGKILL. Again does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.stdin is not None:
                process.stdin.close()
            await asyncio.wait_for(process.wait(), self._timeout)
        except TimeoutError:
            _kill(process)
            await process.wait()
        except BaseException:
            _kill(process)
            raise

    async def create_topic(self, topic: str, partitions: int = 1, replication: int = 1) -> None:
        """See :meth:`MockCluster.create_topic`."""
        await self._call("create_topic", topic, partitions, replication)

    async def topic_error(self, topic: str, code: int) -> None:
        """See :meth:`MockCluster.topic_error`."""
        await self._call("topic_error", topic, code)

    async def set_leader(self, topic: str, partition: int, broker_id: int | None) -> None:
        """See :meth:`MockCluster.set_leader`."""
        await self._call("set_leader", topic, partition, broker_id)

    async def broker_down(self, broker_id: int | None = None) -> None:
        """See :meth:`MockCluster.broker_down`."""
        await self._call("broker_down", broker_id)

    async def broker_up(self, broker_id: int | None = None) -> None:
        """See :meth:`MockCluster.broker_up`."""
        await self._call("broker_up", broker_id)

    async def round_trip_ms(self, ms: int, broker_id: int | None = None) -> None:
        """See :meth:`MockCluster.round_trip_ms`."""
        await self._call("round_trip_ms", ms, broker_id)

    async def push_errors(self, api_key: int, *codes: int) -> None:
        """See :meth:`MockCluster.push_errors`."""
        await self._call("push_errors", api_key, *codes)

    async def clear_errors(self, api_key: int) -> None:
        """See :meth:`MockCluster.clear_errors`."""
        await self._call("clear_errors", api_key)

    async def __aenter__(self) -> Self:
        """Start the child."""
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the child."""
        await self.close()

    async def _call(self, call: str, *arguments: int | str | None) -> None:
        async with self._one_call_at_a_time:
            process = self._running()
            self._last_id += 1
            request = {"id": self._last_id, "call": call, "arguments": arguments}
            if process.stdin is not None:
                process.stdin.write(json.dumps(request).encode() + b"\n")
            answer = await self._answer()
            # A call that was cancelled leaves its answer in the pipe: pass over it.
            while answer.get("id") != self._last_id:
                answer = await self._answer()
        if answer["error"] is not None:
            raise RuntimeError(answer["error"])

    async def _answer(self) -> dict[str, Any]:
        stdout = self._running().stdout
        line = b""
        if stdout is not None:
            try:
                line = await asyncio.wait_for(stdout.readline(), self._timeout)
            except TimeoutError:
                raise RuntimeError(f"the mock cluster's process does not answer; pid={self.pid}") from None
        if not line:
            raise RuntimeError(f"the mock cluster's process has ended, its stderr says why; pid={self.pid}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the mock cluster is not started")
        return self._process


def child_environment() -> dict[str, str]:
    """Return this environment, with this very package first on the child's path, installed or not."""
    root = str(pathlib.Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, known] if known else [root])}


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when the thread that started it ends (Linux; elsewhere no effect)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    # The parent may have died before the line above.
    if os.getppid() != parent_pid:
        os._exit(1)


def serve(arguments: list[str] | None = None) -> None:
    """Run a mock cluster until stdin ends, carrying out the commands that come over it."""
    parser = argparse.ArgumentParser(prog="python -m aiorecover.testing", description=serve.__doc__)
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers (default 1)")
    parser.add_argument("--parent", type=int, help="process id of the parent: die with it")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        die_with_parent(options.parent)
        # Ctrl-C reaches a whole foreground group; when this process ends is its parent's business.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with MockCluster(options.brokers) as cluster, contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        _write({"bootstrap_servers": cluster.bootstrap_servers, "brokers": cluster.brokers})
        for line in sys.stdin:
            _write(_carry_out(cluster, line))


def _carry_out(cluster: MockCluster, line: str) -> dict[str, Any]:
    """Carry out one command; whatever is wrong with it becomes the answer, never the end of the cluster."""
    request_id = None
    try:
        request = json.loads(line)
        request_id, call = request["id"], request["call"]
        if call not in _CALLS:
            return {"id": request_id, "error": f"unknown call; call={call!r}"}
        getattr(cluster, call)(*request["arguments"])
    except (KeyError, TypeError, ValueError, RuntimeError, ctypes.ArgumentError) as error:
        return {"id": request_id, "error": str(error) or repr(error)}
    return {"id": request_id, "error": None}


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
