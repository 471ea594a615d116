"""The web service under a real server, asked to end by SIGTERM while orders come in: what it has accepted arrives."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from aiorecover.testing import MockCluster
from tests.support import admin
from tests.support.eventually import until
from tests.support.example import EXAMPLES
from tests.support.oracle import read_topic
from tests.support.ports import ReservedPorts

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

TOPIC = "orders"
WORKERS = 2
CLIENTS = 4
ORDERS = 100  # at least, before the signal
WITHIN_S = 60.0
ANSWERS_IN_MS = 500  # so that much is under way when the signal comes
ENDS_WITHIN_S = 20.0  # ten of the producers, while there is no Kafka, and a busy machine
ENDED = {0, -signal.SIGTERM}  # uvicorn by itself ends as the signal would have ended it


@asynccontextmanager
async def served(port: int, cluster: MockCluster, wal: Path) -> AsyncIterator["subprocess.Popen[bytes]"]:
    """The server, until it is ended."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "web_service:app", "--port", str(port)]
    command += ["--workers", str(WORKERS), "--log-level", "warning"]
    environment = os.environ | {"WAL_DIR": str(wal), "KAFKA": cluster.bootstrap_servers}
    server = subprocess.Popen(command, env=environment)  # noqa: ASYNC220 - it lasts a moment
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await admin.until(partial(_answers, client), timeout_s=WITHIN_S, what="the server does not answer")
        yield server
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


async def _answers(client: httpx.AsyncClient) -> bool | None:
    with suppress(httpx.TransportError):
        return (await client.get("/health")).status_code == httpx.codes.OK or None
    return None


async def order(port: int, accepted: list[str]) -> None:
    """Order on until nobody answers."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=ENDS_WITHIN_S) as client:
        while True:
            try:
                answer = await client.post("/orders", json={"id": len(accepted), "item": "tea"})
            except httpx.TransportError:
                return
            assert answer.status_code == httpx.codes.ACCEPTED, answer.text
            accepted.append(answer.json()["accepted"])


async def ended(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    assert await asyncio.to_thread(server.wait, ENDS_WITHIN_S) in ENDED


async def arrived(cluster: MockCluster) -> list[str]:
    found = await read_topic(cluster.bootstrap_servers, TOPIC)
    return [record_id for record in found if (record_id := record.record_id) is not None]


@pytest.mark.parametrize("kafka", ["there", "away"])
async def test_at_sigterm_a_server_under_load_hands_over_what_it_has_accepted_or_leaves_it_to_the_next_start(
    tmp_path: Path, kafka: str
) -> None:
    accepted = list[str]()
    ports = ReservedPorts(1)
    (port,) = ports.numbers

    async def all_there() -> bool | None:
        return set(accepted) <= set(await arrived(cluster)) or None

    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=3)
        async with served(port, cluster, tmp_path) as server, asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(order(port, accepted))
            if kafka == "away":
                cluster.broker_down()
            else:
                cluster.round_trip_ms(ANSWERS_IN_MS)
            before = len(accepted)
            await until(lambda: len(accepted) > before + ORDERS, WITHIN_S)
            await ended(server)
        cluster.round_trip_ms(0)
        if kafka == "away":
            cluster.broker_up()
            assert not await all_there()
            async with served(port, cluster, tmp_path) as server:
                await admin.until(all_there, timeout_s=WITHIN_S, what="what was accepted is not there")
                await ended(server)
        there = await arrived(cluster)
    ports.release()
    assert set(there) >= set(accepted)
    assert len(set(there)) == len(there)
