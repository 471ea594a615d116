"""The way round to the brokers: what a client has sent arrives, also when the client is gone."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.detour import _Carrier  # the process, from the inside
from tests.support.eventually import until
from tests.support.ports import ReservedPorts

PATIENCE_S = 10.0
SENT = b"what a client sends"


class SilentBroker:
    """Takes what comes and does not notice that a client is gone, as a frozen one."""

    def __init__(self) -> None:
        self.got = b""
        self.connections: list[asyncio.StreamWriter] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        while block := await reader.read(1 << 16):
            self.got += block


@asynccontextmanager
async def detoured() -> AsyncIterator[tuple[_Carrier, SilentBroker, int]]:
    broker, carrier, ports = SilentBroker(), _Carrier(None), ReservedPorts(2)
    near, far = ports.numbers
    async with await asyncio.start_server(broker.connected, "127.0.0.1", far):
        await carrier.listen(f"127.0.0.1:{near}=127.0.0.1:{far}")
        yield carrier, broker, near
        for connection in broker.connections:
            connection.close()
        carrier.close()
    ports.release()


async def at_least(size: int, what: str, carrier: _Carrier) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await carrier.answer(what) < size:  # noqa: ASYNC110 - as its parent does: it asks
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_what_is_held_arrives_late_when_its_client_is_gone() -> None:
    async with detoured() as (carrier, broker, port):
        _, client = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: bool(broker.connections))
        await carrier.answer("hold")
        client.write(SENT)
        await client.drain()
        await at_least(len(SENT), "held", carrier)
        assert await carrier.answer("late") == 0  # the client is still there
        client.close()
        await at_least(len(SENT), "late", carrier)
        assert broker.got == b""
        releasing = asyncio.create_task(carrier.answer("release"))
        await until(lambda: broker.got == SENT)
        broker.connections[0].close()
        assert await releasing == len(SENT)


@pytest.mark.asyncio
async def test_a_connection_outlives_its_client_while_the_broker_does_not_close_it() -> None:
    async with detoured() as (carrier, broker, port):
        _, client = await asyncio.open_connection("127.0.0.1", port)
        client.write(SENT)
        await until(lambda: broker.got == SENT)
        client.close()
        for _ in range(20):  # the loop knows the tasks of a client that is gone weakly
            await asyncio.sleep(0.01)
            gc.collect()
        assert len(carrier._connections) == 1
        releasing = asyncio.create_task(carrier.answer("release"))
        await asyncio.sleep(0.01)
        assert not releasing.done()  # the broker has still to notice
        broker.connections[0].close()
        async with asyncio.timeout(PATIENCE_S):
            assert await releasing == 0
