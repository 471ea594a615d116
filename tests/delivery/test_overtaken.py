"""A living producer whose producer id somebody else uses, too: it goes on under another epoch, on a real broker."""

from pathlib import Path

import pytest
from aiokafka.errors import ProducerFenced

from aiorecover import RecoverableProducer
from aiorecover.delivery.lane import Identity
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.somebody import send_as_somebody_else

pytestmark = pytest.mark.asyncio

FLUSH_MS = 40_000
BEFORE, AFTER = 5, 3


async def publish(producer: RecoverableProducer, topic: str, count: int, accepted: list[Accepted]) -> None:
    """One batch: nothing is awaited in between."""
    for _ in range(count):
        value = b"%d" % len(accepted)
        receipt = producer.publish_nowait(topic, value, key=b"k")
        accepted.append(Accepted(receipt.record_id, b"k", value))
    await producer.flush(timeout_ms=FLUSH_MS)


def identity_of(producer: RecoverableProducer) -> Identity:
    """The only lane's."""
    assert producer._opened is not None
    (lane,) = producer._opened.delivery.router.lanes()
    assert lane.identity is not None
    return lane.identity


@pytest.mark.parametrize("theirs", [AFTER, AFTER + 1], ids=["a batch as large as ours", "a larger one"])
async def test_a_lane_that_somebody_fences_goes_on_and_its_batch_is_not_taken_for_a_repeat_of_theirs(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture, theirs: int
) -> None:
    """They take the next epoch from sequence 0 on, as the lane itself would after an answer that is no fence."""
    name, accepted = topic(kafka, partitions=1), list[Accepted]()
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers) as producer:
        await publish(producer, name, BEFORE, accepted)
        ours = identity_of(producer)
        fence = Identity(ours.producer_id, ours.epoch + 1)
        await send_as_somebody_else(kafka.bootstrap_servers, name, 0, fence, 0, theirs)
        await publish(producer, name, AFTER, accepted)
        counts = producer.statistics()
        assert identity_of(producer).producer_id == ours.producer_id
        await publish(producer, name, AFTER, accepted)
    found = await read_topic(kafka.bootstrap_servers, name)
    verdict = judge(accepted, [record for record in found if record.key == b"k"], whole_lanes=True)
    assert (verdict.ok, verdict.repeated) == (True, 0), str(verdict)
    assert len(found) == len(accepted) + theirs
    assert (counts.identities_renewed, counts.rebuilds, counts.dead_lettered) == (1, 0, 0)
    assert ProducerFenced.__name__ in caplog.text
