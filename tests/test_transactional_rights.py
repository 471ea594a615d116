"""``guarantee="exactly_once"`` on a broker with rights: what is missing is named, and once it is granted all goes on.

Each test reads back what is committed with a plain consumer and judges it by record id.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from aiorecover import RecoverableProducer
from tests.publishing import FLUSH_MS, Publisher, assert_once_in_order, producer_of, warnings
from tests.support.broker import TopicFactory
from tests.support.eventually import until
from tests.support.secured import SecuredKafka

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

OFFSETS_TOPIC = "__consumer_offsets"
STALLED_S = 1.2  # some attempts


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    with SecuredKafka() as cluster:
        yield cluster


def secured_producer(wal: Path, secured: SecuredKafka, **more: Any) -> RecoverableProducer:
    options = {**secured.options(), **more}
    return producer_of(wal, options.pop("bootstrap_servers"), **options)


async def grant_transactions(secured: SecuredKafka, producer: RecoverableProducer) -> None:
    name = group_in(producer)
    for kind, right in (("TRANSACTIONAL_ID", "WRITE"), ("TRANSACTIONAL_ID", "DESCRIBE"), ("GROUP", "READ")):
        await asyncio.to_thread(secured.grant, name, right, kind)


def group_in(producer: RecoverableProducer) -> str:
    """What the position is committed for: the directory, as it stands at the beginning of each of its ids."""
    return f"aiorecover-{producer.producer_id[:7]}aaaaaa"


@pytest.fixture
def offsets(secured: SecuredKafka) -> Iterator["Offsets"]:
    rights = Offsets(secured)
    yield rights
    for right in [*rights.granted]:
        rights.revoke(right)


class Offsets:
    """Rights to the topic in which Kafka keeps offsets, until the test is over."""

    def __init__(self, secured: SecuredKafka) -> None:
        self.granted: set[str] = set()
        self._secured = secured

    def grant(self, right: str) -> None:
        self._secured.grant(OFFSETS_TOPIC, right)
        self.granted.add(right)

    def revoke(self, right: str) -> None:
        self._secured.revoke(OFFSETS_TOPIC, right)
        self.granted.remove(right)

    def places(self, group: str) -> set[str]:
        """Topics under which Kafka has a position of the group."""
        asked = AdminClient({"bootstrap.servers": self._secured.bootstrap_servers})
        (answer,) = asked.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return {place.topic for place in answer.result(10).topic_partitions if place.offset >= 0}


def publisher_beside_whom_it_may_stand(secured: SecuredKafka, topic: TopicFactory) -> Publisher:
    """The position, that is: there are the rights to write the records, and to commit it beside them."""
    publisher = Publisher(topic(secured, partitions=2))
    for right in ("WRITE", "READ"):
        secured.grant(publisher.topic, right)
    return publisher


async def test_without_a_right_to_its_transactional_id_records_wait_a_line_says_why_and_then_they_go(
    secured: SecuredKafka, offsets: Offsets, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(topic(secured, partitions=2))
    secured.grant(publisher.topic)
    offsets.grant("READ")
    async with secured_producer(tmp_path, secured) as producer:
        await publisher.publish(producer, 100)
        await until(lambda: "ransactional" in warnings(caplog) and "uthoriz" in warnings(caplog))
        assert "grant Write and Describe on it, trying on" in warnings(caplog)
        assert producer.statistics().delivered == 0
        await grant_transactions(secured, producer)
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(secured, publisher)


async def test_without_a_right_to_the_topic_of_offsets_the_position_stands_beside_the_records(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = publisher_beside_whom_it_may_stand(secured, topic)
    for _ in range(3):
        async with secured_producer(tmp_path, secured) as producer:
            await grant_transactions(secured, producer)
            await publisher.publish(producer, 100)
            await producer.flush(timeout_ms=FLUSH_MS)
    assert warnings(caplog).count("no permission to read") == 1
    await assert_once_in_order(secured, publisher)


async def test_where_offsets_may_be_described_and_not_read_the_position_stands_beside_the_records_for_good(
    secured: SecuredKafka,
    offsets: Offsets,
    topic: TopicFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It can be looked for there then, and not be committed."""
    publisher = publisher_beside_whom_it_may_stand(secured, topic)
    offsets.grant("DESCRIBE")
    for number in range(3):
        if number == 2:
            offsets.grant("READ")
        async with secured_producer(tmp_path, secured) as producer:
            await grant_transactions(secured, producer)
            await publisher.publish(producer, 100)
            await producer.flush(timeout_ms=FLUSH_MS)
            assert offsets.places(group_in(producer)) == {publisher.topic}
    assert warnings(caplog).count("no permission to read") == 1
    await assert_once_in_order(secured, publisher)


async def test_where_the_topic_beside_which_it_stands_may_not_be_read_one_line_says_so_and_then_they_go(
    secured: SecuredKafka, offsets: Offsets, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(topic(secured, partitions=2))
    secured.grant(publisher.topic)
    async with secured_producer(tmp_path, secured) as producer:
        await grant_transactions(secured, producer)
        await publisher.publish(producer, 100)
        await until(lambda: f"grant Read on the topic {publisher.topic}" in warnings(caplog))
        before = len(caplog.records)
        await asyncio.sleep(STALLED_S)
        assert (producer.statistics().delivered, caplog.records[before:]) == (0, [])
        secured.grant(publisher.topic, "READ")
        await producer.flush(timeout_ms=FLUSH_MS)
        assert offsets.places(group_in(producer)) == {publisher.topic}
    await assert_once_in_order(secured, publisher)


async def test_a_right_to_the_position_that_is_taken_away_holds_up_and_does_not_move_it(
    secured: SecuredKafka, offsets: Offsets, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Were it committed elsewhere from then on, what it says here would be found again, and be wrong."""
    publisher = publisher_beside_whom_it_may_stand(secured, topic)
    offsets.grant("DESCRIBE")
    offsets.grant("READ")
    async with secured_producer(tmp_path, secured) as producer:
        await grant_transactions(secured, producer)
        await publisher.publish(producer, 20)
        await producer.flush(timeout_ms=FLUSH_MS)
        offsets.revoke("READ")
        await publisher.publish(producer, 20)
        await until(lambda: "grant Read on the topic __consumer_offsets" in warnings(caplog))
        await until(lambda: producer.state == "connected")
        before = len(caplog.records)
        await asyncio.sleep(STALLED_S)
        assert (producer.statistics().delivered, caplog.records[before:]) == (20, [])
        await producer.stop(timeout_ms=0)
    caplog.clear()
    async with secured_producer(tmp_path, secured) as producer:
        await publisher.publish(producer, 20)
        await until(lambda: "grant Read on the topic __consumer_offsets" in warnings(caplog))
        assert producer.statistics().delivered == 0
        offsets.grant("READ")
        await producer.flush(timeout_ms=FLUSH_MS)
        assert offsets.places(group_in(producer)) == {OFFSETS_TOPIC}
    await assert_once_in_order(secured, publisher)


# -- rights to topics -------------------------------------------------------------------------------------------------


async def test_a_right_that_is_taken_away_and_given_back_holds_up_and_goes_on(
    secured: SecuredKafka, offsets: Offsets, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(topic(secured, partitions=2))
    secured.grant(publisher.topic)
    offsets.grant("READ")
    async with secured_producer(tmp_path, secured) as producer:
        await grant_transactions(secured, producer)
        await publisher.publish(producer, 20)
        await producer.flush(timeout_ms=FLUSH_MS)
        secured.revoke(publisher.topic)
        await asyncio.sleep(0.5)
        await publisher.publish(producer, 20)
        await asyncio.sleep(2)
        assert producer.statistics().delivered == 20
        secured.grant(publisher.topic)
        began = time.perf_counter()
        await producer.flush(timeout_ms=FLUSH_MS)
        print("took", time.perf_counter() - began, warnings(caplog))
        assert time.perf_counter() - began < 10
    await assert_once_in_order(secured, publisher)
