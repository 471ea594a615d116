"""Metadata is asked for topics in use, and for no others."""

import asyncio
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from aiorecover import RecoverableProducer
from tests.support.admin import delete_topic_everywhere
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.published import WITHIN_MS

BYTES_RECEIVED_AT = 128  # in Linux' struct tcp_info

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


async def test_a_deleted_topic_stays_deleted(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    gone, other = topic(kafka, 12), topic(kafka)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    options: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap_servers, "metadata_max_age_ms": 1000}
    async with RecoverableProducer(tmp_path, **options) as producer:
        await producer.publish(gone, b"1")
        await producer.flush(WITHIN_MS)
        await delete_topic_everywhere(kafka.bootstrap_servers, gone)
        for _ in range(20):
            await producer.publish(other, b"1")
            await asyncio.sleep(0.2)
        await producer.flush(WITHIN_MS)
        assert gone not in admin.list_topics(timeout=10).topics


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
