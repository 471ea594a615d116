"""A process that dies again and again while Kafka is away: a start costs a small segment, not a large one."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE, WITHIN_MS

pytestmark = pytest.mark.timeout(120)

LIVES = 100
WAL_BYTES = 64 << 20


def live(wal: str, topic: str) -> None:
    """Start, publish a record, and be killed; a hundred times, each time as another process."""

    async def once(number: int) -> None:
        producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, wal_max_bytes=WAL_BYTES)
        await producer.start()
        await producer.publish(topic, b"%d" % number, partition=0)
        os.kill(os.getpid(), signal.SIGKILL)

    for number in range(LIVES):
        if os.fork() == 0:
            asyncio.run(once(number))
            os._exit(1)
        _, status = os.wait()
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_a_hundred_lives_of_one_record_each_fit_and_are_delivered(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, 1)
    subprocess.run([sys.executable, "-m", __name__, str(tmp_path), name], check=True, timeout=100)

    async def deliver() -> None:
        options: dict[str, Any] = {"wal_max_bytes": WAL_BYTES}
        async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
            await producer.flush(WITHIN_MS)
            assert producer.epoch == LIVES + 1
            assert producer.statistics().recovered == LIVES

    asyncio.run(deliver())
    found = asyncio.run(read_topic(kafka.bootstrap_servers, name))
    assert [record.value for record in found] == [b"%d" % number for number in range(LIVES)]


if __name__ == "__main__":
    live(*sys.argv[1:])
