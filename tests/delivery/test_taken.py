"""What the other end's machine has taken, counted by the kernel of this one."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from aiorecover.delivery.taken import bytes_taken

FAR_MORE = 32 << 20  # bytes; than the buffers of both ends take
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamWriter, socket.socket]]:
    """A connection, and its other end, which reads nothing by itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        _, writer = await asyncio.open_connection(*listening.getsockname())
        with listening.accept()[0] as far:
            far.setblocking(False)
            try:
                yield writer, far
            finally:
                writer.transport.abort()
                await asyncio.sleep(0.01)


async def settled(writer: asyncio.StreamWriter) -> int:
    """What is taken when it does not become more."""
    before = -1
    while (found := bytes_taken(writer)) != before:
        before = found
        await asyncio.sleep(0.2)
    return before


async def what_is_taken_stops_where_nobody_reads_and_goes_on_where_somebody_does() -> None:
    async with connected() as (writer, far):
        opened = await settled(writer)
        writer.write(b"x" * 1000)
        assert await settled(writer) == opened + 1000
        writer.write(b"x" * FAR_MORE)
        stuck = await settled(writer)
        assert 1000 < stuck < FAR_MORE
        async with asyncio.timeout(10):
            while bytes_taken(writer) == stuck:
                with contextlib.suppress(BlockingIOError):
                    far.recv(1 << 20)
                await asyncio.sleep(0.001)


async def of_a_connection_that_is_closed_nothing_is_known() -> None:
    async with connected() as (writer, _):
        writer.write(b"x")
        assert await settled(writer) > 0
        writer.transport.abort()
        await asyncio.sleep(0.01)
        assert bytes_taken(writer) == 0
    assert bytes_taken(None) == 0


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_what_is_taken_stops_where_nobody_reads_and_goes_on_where_somebody_does(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(what_is_taken_stops_where_nobody_reads_and_goes_on_where_somebody_does())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
def test_of_a_connection_that_is_closed_nothing_is_known(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(of_a_connection_that_is_closed_nothing_is_known())
