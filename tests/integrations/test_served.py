"""A web service of four workers: Kafka dies, a worker dies, both come back, the server is asked to end."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from aiorecover.ring.inspect import look
from tests.support.broker import Cluster
from tests.support.eventually import until
from tests.support.oracle import read_topic
from tests.support.ports import ReservedPorts
from tests.support.serving import ENDED, order, owners, served

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

TOPIC = "orders"
WORKERS = 4
CLIENTS = 12
PAUSE_S = 0.05  # of each between two orders: the broker has to start beside them
ORDERS = 200  # at least, in each phase
WITHIN_S = 60.0
LIMIT_S = 20.0  # ten of the producers, and a busy machine: below the 30 that a supervisor gives


async def test_whatever_dies_each_order_that_was_answered_arrives_once_and_the_server_ends_in_time(
    kafka: Cluster, tmp_path: Path
) -> None:
    kafka.create_topic(TOPIC, 6)
    wal, accepted, ports = tmp_path / "wal", list[str](), ReservedPorts(1)
    (port,) = ports.numbers
    serving = True

    async def more() -> None:
        before = len(accepted)
        await until(lambda: len(accepted) > before + ORDERS, WITHIN_S)

    async with served(port, kafka.bootstrap_servers, wal, WORKERS) as server, asyncio.TaskGroup() as clients:
        await until(lambda: len(owners(wal)) == WORKERS, WITHIN_S)
        for _ in range(CLIENTS):
            clients.create_task(order(port, accepted, lambda: serving, pause_s=PAUSE_S))
        await more()
        await asyncio.to_thread(kafka.nodes[0].kill)
        await more()
        before = owners(wal)
        victim = max(before, key=lambda directory: look(directory).records)
        waiting = look(victim).records
        os.kill(before[victim], signal.SIGKILL)
        await until(lambda: owners(wal).get(victim, before[victim]) != before[victim], WITHIN_S)
        await more()
        await asyncio.to_thread(kafka.nodes[0].start)
        await asyncio.to_thread(kafka.wait_ready)
        await more()
        serving = False
        server.terminate()
        assert await asyncio.to_thread(server.wait, LIMIT_S) in ENDED
    ports.release()

    arrived = [record.record_id for record in await read_topic(kafka.bootstrap_servers, TOPIC)]
    print(f"accepted={len(accepted)} arrived={len(arrived)} waiting={waiting} directories={len(before)}")
    assert waiting > 0  # else nothing was at stake
    assert len(before) == WORKERS
    assert set(accepted) <= set(arrived)
    assert len(set(arrived)) == len(arrived)
