"""A broker with ``socket.request.max.bytes``: it closes the connection at a request above it, and says nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorecover import PermanentDeliveryError, RecoverableProducer
from tests.support.broker import KafkaCluster, TopicFactory
from tests.support.published import WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

LIMIT = 300_000


@pytest.fixture(scope="module")
def limited() -> Iterator[KafkaCluster]:
    with KafkaCluster(1, {"socket.request.max.bytes": str(LIMIT)}) as cluster:
        yield cluster


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize(("partitions", "batch"), [(1, 1 << 20), (12, 1 << 18)])
async def test_smaller_requests_are_found_and_the_size_is_named(
    limited: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    partitions: int,
    batch: int,
    guarantee: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, published = topic(limited, partitions), Published()
    options: dict[str, Any] = {"max_batch_size": batch, "guarantee": guarantee, "linger_ms": 500}
    async with RecoverableProducer(tmp_path, bootstrap_servers=limited.bootstrap_servers, **options) as producer:
        await published.publish(producer, name, 12_000)  # 1.5 MB
        await producer.flush(WITHIN_MS)
        assert producer.statistics().dead_lettered == 0
    perfect(await published.judged(limited, name, "read_committed"))
    assert partitions > 1 or "see its socket.request.max.bytes" in caplog.text  # else fewer lanes may have done


async def test_one_record_above_the_limit_is_a_dead_letter_and_those_after_it_arrive(
    limited: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(limited, 1), Published()
    async with RecoverableProducer(tmp_path, bootstrap_servers=limited.bootstrap_servers) as producer:
        await published.publish(producer, name, 100)
        large = await producer.publish(name, b"x" * 2 * LIMIT, key=b"key-1")
        await published.publish(producer, name, 3000)
        await producer.flush(WITHIN_MS)
        with pytest.raises(PermanentDeliveryError, match=r"socket\.request\.max\.bytes"):
            await large.delivered(0)
        assert [letter.record_id async for letter in producer.dead_letters.list()] == [large.record_id]
    perfect(await published.judged(limited, name))
