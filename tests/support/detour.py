"""A way round to the brokers that can hold back what it carries, in a process of its own.

    with KafkaCluster(3, detour_host="127.0.0.1") as cluster, Detour(cluster.detour_routes) as detour:
        ...                     # a client connects to cluster.detour_servers
        detour.hold()           # from now on its requests stay here; new connections are not concerned
        ...                     # the client is killed, its successor sends
        detour.release()        # now the brokers get what the dead client had sent

It stands for the network and the kernel of a dead client's machine: bytes that a client has handed over arrive late,
and arrive although it is gone. `Detour(routes, uplink=Uplink(500_000))` stands for a slow line. `python -m
tests.support.detour [bytes per second, and what it buffers: 500000,65536] host:port=host:port …` answers each line of
its stdin (`hold`, `deafen`, `release`, `count`, `held`, `late`) with a line of JSON, and ends with its stdin.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["Detour", "Route", "Uplink"]

Route = tuple[str, str]
"""Where the detour listens, and where it leads to: `host:port` each."""

_REPOSITORY: Final = Path(__file__).parents[2]
_BLOCK_BYTES: Final = 1 << 18
_SLOW_BLOCK_BYTES: Final = 1 << 12  # of a slow line, which its connections use in turns
_ARRIVED_WITHIN_S: Final = 120.0  # a kernel that sends again waits twice as long each time, two minutes at most
_DELIVERED_WITHIN_S: Final = 15.0  # a broker closes the connection of a dead client at once, when it is well


@dataclass(frozen=True)
class Uplink:
    """What the clients send shares one slow line; answers do not.

    ``buffer``: bytes that it takes of each connection before it has carried them. A line has a small one; a proxy, a
    tunnel or a modem may have a large one, and then nobody sees from outside that anything moves.
    """

    bytes_per_s: int
    buffer: int = 1 << 16


class Detour:
    """The process, from the outside. Every method is an ordinary call that blocks."""

    def __init__(self, routes: Sequence[Route], *, uplink: Uplink | None = None) -> None:
        self._routes = routes
        self._line = [] if uplink is None else [f"{uplink.bytes_per_s},{uplink.buffer}"]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.detour",
                *self._line,
                *(f"{near}={far}" for near, far in self._routes),
            ],
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
        """What the present connections send stays here; their answers, and new connections, pass."""
        self._ask("hold")

    def hold_all(self) -> None:
        """As `hold`, and what new connections send, too, until `admit`: whoever waits for long cannot send it again."""
        self._ask("hold_all")

    def admit(self) -> None:
        """New connections pass from now on."""
        self._ask("admit")

    def deafen(self) -> None:
        """The answers to the present connections are lost; what they send passes."""
        self._ask("deafen")

    def wait_held(self, size: int) -> None:
        """Wait until so many bytes are held."""
        self._wait("held", size)

    def wait_late(self, size: int) -> None:
        """Wait until so many bytes are held whose clients are gone: it is told of a death a moment later."""
        self._wait("late", size)

    def wait_carried(self, size: int) -> None:
        """Wait until so many bytes were carried to the brokers, altogether."""
        self._wait("count", size)

    def late(self) -> int:
        """So many bytes are held whose clients are gone: they would arrive late."""
        return int(self._ask("late"))

    def release(self) -> int:
        """Deliver what was held; returns when the brokers have closed the connections of clients that are gone.

        The number of bytes that were late.
        """
        return int(self._ask("release"))

    def count(self) -> int:
        """So many bytes were carried to the brokers so far."""
        return int(self._ask("count"))

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


class _Line:
    """What all connections share."""

    def __init__(self, uplink: Uplink | None) -> None:
        self.block = _BLOCK_BYTES if uplink is None else _SLOW_BLOCK_BYTES
        self.blocks_ahead = 0 if uplink is None else max(1, uplink.buffer // self.block)  # 0: any number
        self._seconds = 0.0 if uplink is None else 1 / uplink.bytes_per_s  # for a byte
        self._free = 0.0  # when what was begun is carried

    async def carry(self, size: int) -> None:
        """Return when so many bytes had their time on the line."""
        if not self._seconds:
            return
        now = asyncio.get_running_loop().time()
        self._free = max(now, self._free) + size * self._seconds
        await asyncio.sleep(self._free - now)

    def listening(self, host: str, port: int) -> socket.socket:
        """A socket whose connections have no buffer worth the name, if the line is slow."""
        listening = socket.create_server((host, port))
        if self._seconds:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.block)
        return listening


class _Connection:
    """One client's connection, and the one that it leads to."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._task = asyncio.current_task()  # the loop knows it weakly, once the client is gone: it would be collected
        self.gate = asyncio.Event()
        self.gate.set()
        self.deaf = False
        self.sent = 0
        self.held = 0
        self.ended = asyncio.Event()  # the broker has closed it
        self.orphaned = False  # the client has
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(line.blocks_ahead)

    def late(self) -> int:
        """So many bytes of a client that is gone are held."""
        return self.held if self.orphaned and not self.gate.is_set() else 0

    async def carry(self, near: "_Stream", far: "_Stream") -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(near[0]))
            tasks.create_task(self._forward(far[1]))
            tasks.create_task(self._back(far[0], near[1]))

    async def _take(self, client: asyncio.StreamReader) -> None:
        """Read at once, held or not: the kernel forgets what was not read when a client dies by a reset."""
        with contextlib.suppress(OSError):
            while block := await client.read(self._line.block):
                await self._waiting.put(block)
                self.held += len(block)
        self.orphaned = True
        await self._waiting.put(b"")

    async def _forward(self, broker: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await self._waiting.get():
                await self.gate.wait()
                await self._line.carry(len(block))
                broker.write(block)
                await broker.drain()
                self.sent += len(block)
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


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Carrier:
    """All connections of this process, and what its parent asks for."""

    def __init__(self, uplink: Uplink | None) -> None:
        self._line = _Line(uplink)
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._admits = True  # new connections
        self._gone = 0  # bytes that connections carried which are over

    async def listen(self, route: str) -> None:
        near, _, far = route.partition("=")

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connect((reader, writer), far)

        host, _, port = near.rpartition(":")
        listening = self._line.listening(host, int(port))
        self._servers.append(await asyncio.start_server(connected, sock=listening, limit=self._line.block))

    def close(self) -> None:
        """Listen no more."""
        for server in self._servers:
            server.close()

    async def _connect(self, near: _Stream, far: str) -> None:
        connection = _Connection(self._line)
        host, _, port = far.rpartition(":")
        try:
            onward = await asyncio.open_connection(host, int(port))
        except OSError:  # the broker is down: so is the way to it
            near[1].close()
            return
        self._connections.add(connection)
        if not self._admits:
            connection.gate.clear()
        try:
            await connection.carry(near, onward)
        finally:
            onward[1].close()
            self._connections.discard(connection)
            self._gone += connection.sent

    async def answer(self, what: str) -> int:
        if what == "release":
            return await self._release()
        if what == "held":
            return sum(connection.held for connection in self._connections)
        if what == "late":
            return self._late()
        if what in {"hold_all", "admit"}:
            self._admits = what == "admit"
        for connection in self._connections:
            if what in {"hold", "hold_all"}:
                connection.gate.clear()
            elif what == "deafen":
                connection.deaf = True
        return self._gone + sum(connection.sent for connection in self._connections)

    def _late(self) -> int:
        return sum(connection.late() for connection in self._connections)

    async def _release(self) -> int:
        late = self._late()
        for connection in self._connections:
            connection.gate.set()
        with contextlib.suppress(TimeoutError):  # a frozen broker reads nothing: the count tells
            async with asyncio.timeout(_DELIVERED_WITHIN_S):
                for connection in [*self._connections]:
                    if connection.orphaned:
                        await connection.ended.wait()
        return late


def _uplink_of(argument: str) -> Uplink | None:
    return None if "=" in argument else Uplink(*map(int, argument.split(",")))


async def _main(arguments: Sequence[str]) -> None:
    uplink = _uplink_of(arguments[0])
    carrier = _Carrier(uplink)
    for route in arguments[uplink is not None :]:
        await carrier.listen(route)
    print(json.dumps("listening"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await carrier.answer(line.strip())), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
