"""Records that Kafka refuses for good, against a real broker: found by halving, and kept as dead letters."""

from pathlib import Path

import pytest

from aiorecover import PermanentDeliveryError, RecoverableProducer
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import read_topic

pytestmark = pytest.mark.asyncio


async def test_one_record_too_large_among_a_thousand_becomes_a_dead_letter_and_the_others_arrive_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1, config={"max.message.bytes": "50000"})
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        receipts = [
            await producer.publish(name, b"%d" % number + (b"x" * 60_000 if number == 333 else b""))
            for number in range(1000)
        ]
        await producer.flush(timeout_ms=20_000)
        with pytest.raises(PermanentDeliveryError, match="MessageSizeTooLarge"):
            await receipts[333].delivered(timeout_ms=1000)
        statistics = producer.statistics()
    found = await read_topic(kafka.bootstrap_servers, name)
    assert [int(record.value or b"") for record in found] == [n for n in range(1000) if n != 333]
    assert (statistics.delivered, statistics.dead_lettered, statistics.pending) == (999, 1, 0)
