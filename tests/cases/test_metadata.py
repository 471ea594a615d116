"""Metadata is asked for topics in use, and for no others."""

import asyncio
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until

BYTES_RECEIVED_AT = 128  # in Linux' struct tcp_info

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


async def test_an_idle_producer_asks_for_no_topic(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    """The bytes that the broker sends to it stay few, however many partitions there are."""
    topic(kafka, 100)
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "metadata_max_age_ms": 100}
    async with RecoverableProducer(tmp_path, **options) as producer:
        await until(lambda: producer.state == "connected")
        before = received(kafka)
        await asyncio.sleep(3)
        assert received(kafka) - before < 1000


def received(cluster: Cluster) -> int:
    """Return the bytes that this process has received by its open connections to the cluster."""
    port, total = int(cluster.bootstrap_servers.rpartition(":")[2]), 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(link.name))) as one:
            if one.family == socket.AF_INET and one.getpeername()[1] == port:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("<Q", info, BYTES_RECEIVED_AT)[0]
    return total
