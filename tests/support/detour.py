"""A way round to the brokers that can hold back or lose what it carries, in a process of its own.

    with KafkaCluster(3, detour_host="127.0.0.1") as cluster, Detour(cluster.detour_routes) as detour:
        ...                     # a client connects to cluster.detour_servers
        detour.hold()           # from now on its requests stay here; new connections pass
        ...                     # the client is killed, its successor sends
        detour.release()        # now the brokers get what the dead client had sent

It stands for the network and the kernel of a dead client's machine: bytes that a client has handed over arrive late,
and arrive although it is gone. ``python -m tests.support.detour HOST:PORT=HOST:PORT …`` answers each line of its stdin
(``hold``, ``deafen``, ``release``, ``held``, ``late``) with a line of JSON, and ends with its stdin.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["Detour", "Route"]

Route = tuple[str, str]
"""Where the detour listens, and where it leads to: ``host:port`` each."""

_REPOSITORY: Final = Path(__file__).parents[2]
_BLOCK_BYTES: Final = 1 << 18
_ARRIVED_WITHIN_S: Final = 60.0
_DELIVERED_WITHIN_S: Final = 15.0  # a broker closes the connection of a dead client at once, when it is well


class Detour:
    """The process, from the outside. Every method is an ordinary call that blocks."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        routes = [f"{near}={far}" for near, far in self._routes]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.detour", *routes],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def hold(self) -> None:
        """Keep what the present connections send; their answers, and new connections, pass."""
        self._ask("hold")

    def deafen(self) -> None:
        """Lose the answers to the present connections; what they send passes."""
        self._ask("deafen")

    def wait_held(self, size: int) -> None:
        """Wait until so many bytes are held."""
        self._wait("held", size)

    def wait_late(self, size: int) -> None:
        """Wait until so many bytes are held whose clients are gone: it hears of a death a moment later."""
        self._wait("late", size)

    def release(self) -> int:
        """Deliver what was held; return the number of bytes that were late.

        It returns when the brokers have closed the connections of clients that are gone.
        """
        return int(self._ask("release"))

    def _wait(self, what: str, size: int) -> None:
        give_up_at = time.monotonic() + _ARRIVED_WITHIN_S
        while (found := int(self._ask(what))) < size:
            assert time.monotonic() < give_up_at, f"too few bytes came here: {what}={found} expected={size}"
            time.sleep(0.02)

    def _ask(self, what: str) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the detour is gone: its stderr says why"
        return json.loads(line)


# -- the process -------------------------------------------------------------------------------------------------------

_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Connection:
    """One client's connection, and the one that it leads to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.deaf = False
        self.held = 0
        self.ended = asyncio.Event()  # the broker has closed it
        self.orphaned = False  # the client has
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def late(self) -> int:
        """Bytes of a client that is gone that are held."""
        return self.held if self.orphaned and not self.gate.is_set() else 0

    async def carry(self, near: _Stream, far: _Stream) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(near[0]))
            tasks.create_task(self._forward(far[1]))
            tasks.create_task(self._back(far[0], near[1]))

    async def _take(self, client: asyncio.StreamReader) -> None:
        """Read at once, held or not: the kernel forgets what was not read when a client dies by a reset."""
        with contextlib.suppress(OSError):
            while block := await client.read(_BLOCK_BYTES):
                self._waiting.put_nowait(block)
                self.held += len(block)
        self.orphaned = True
        self._waiting.put_nowait(b"")

    async def _forward(self, broker: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await self._waiting.get():
                await self.gate.wait()
                broker.write(block)
                await broker.drain()
                self.held -= len(block)
            await self.gate.wait()
            broker.write_eof()

    async def _back(self, broker: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await broker.read(_BLOCK_BYTES):
                if not self.deaf and not self.orphaned:
                    client.write(block)
                    await client.drain()
        self.ended.set()
        client.close()


class _Carrier:
    """All connections of this process, and what its parent asks for."""

    def __init__(self) -> None:
        self._connections: dict[_Connection, asyncio.Task[None] | None] = {}  # the loop knows a task weakly

    async def listen(self, route: str) -> asyncio.Server:
        near, _, far = route.partition("=")

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connect((reader, writer), far)

        host, _, port = near.rpartition(":")
        return await asyncio.start_server(connected, host, int(port))

    async def _connect(self, near: _Stream, far: str) -> None:
        host, _, port = far.rpartition(":")
        try:
            onward = await asyncio.open_connection(host, int(port))
        except OSError:  # the broker is down: so is the way to it
            near[1].close()
            return
        connection = _Connection()
        self._connections[connection] = asyncio.current_task()
        try:
            await connection.carry(near, onward)
        finally:
            onward[1].close()
            del self._connections[connection]

    async def answer(self, what: str) -> int:
        if what == "release":
            return await self._release()
        for connection in self._connections:
            if what == "hold":
                connection.gate.clear()
            elif what == "deafen":
                connection.deaf = True
        if what == "late":
            return sum(connection.late for connection in self._connections)
        return sum(connection.held for connection in self._connections)

    async def _release(self) -> int:
        late = sum(connection.late for connection in self._connections)
        for connection in self._connections:
            connection.gate.set()
        with contextlib.suppress(TimeoutError):  # a frozen broker reads nothing
            async with asyncio.timeout(_DELIVERED_WITHIN_S):
                for connection in [*self._connections]:
                    if connection.orphaned:
                        await connection.ended.wait()
        return late


async def _main(routes: Sequence[str]) -> None:
    carrier = _Carrier()
    servers = [await carrier.listen(route) for route in routes]
    print("true", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await carrier.answer(line.strip())), flush=True)
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
