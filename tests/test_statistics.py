"""Collectors of metrics read the statistics at any time, most of them in a thread of their own."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer, Statistics
from tests.support.eventually import until

TOPICS = 300


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 1000)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.asyncio
async def test_another_thread_may_read_them_while_records_go_to_ever_new_topics(tmp_path: Path, restless: None) -> None:
    async with RecoverableProducer(tmp_path, bootstrap_servers="localhost:1", stop_timeout_ms=0) as producer:
        over, read = threading.Event(), list[Statistics]()

        def scrape() -> None:
            while not over.is_set():
                read.append(producer.statistics())

        scraping = asyncio.create_task(asyncio.to_thread(scrape))
        for number in range(TOPICS):
            await producer.publish(f"topic-{number}", b"one")
            await asyncio.sleep(0)
        over.set()
        await scraping
        assert [one.accepted for one in read] == sorted(one.accepted for one in read)
        assert producer.statistics().pending == TOPICS


@pytest.mark.asyncio
async def test_the_oldest_age_is_that_of_what_an_earlier_start_left_also_while_kafka_is_away(tmp_path: Path) -> None:
    options: dict[str, Any] = {"bootstrap_servers": "localhost:1", "stop_timeout_ms": 0}
    async with RecoverableProducer(tmp_path, **options) as producer:
        assert producer.statistics().oldest_age_seconds is None
        published = time.time()
        await producer.publish("t", b"v")
        await asyncio.sleep(1.1)  # it is remembered in whole seconds
    async with RecoverableProducer(tmp_path, **options) as producer:
        await until(lambda: producer.statistics().recovered == 1)
        await producer.publish("another", b"v")
        waits = time.time() - published
        assert waits <= (producer.statistics().oldest_age_seconds or 0) <= waits + 2
