"""Collectors of metrics read the statistics at any time, most of them in a thread of their own."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover import RecoverableProducer, Statistics

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
