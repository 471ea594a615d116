"""The web service under a real server, asked to end by SIGTERM while orders come in: what it has accepted arrives."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from aiorecover.testing import MockCluster
from tests.support import admin
from tests.support.eventually import until
from tests.support.oracle import read_topic
from tests.support.ports import ReservedPorts
from tests.support.serving import ENDED, order, served

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(180)]

TOPIC = "orders"
WORKERS = 2
CLIENTS = 4
ORDERS = 100  # at least, before the signal
WITHIN_S = 60.0
ANSWERS_IN_MS = 500  # so that much is under way when the signal comes
ENDS_WITHIN_S = 20.0  # ten of the producers, while there is no Kafka, and a busy machine


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
        async with served(port, cluster.bootstrap_servers, tmp_path, WORKERS) as server, asyncio.TaskGroup() as clients:
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
            async with served(port, cluster.bootstrap_servers, tmp_path, WORKERS) as server:
                await admin.until(all_there, timeout_s=WITHIN_S, what="what was accepted is not there")
                await ended(server)
        there = await arrived(cluster)
    ports.release()
    assert set(there) >= set(accepted)
    assert len(set(there)) == len(there)
