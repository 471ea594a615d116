"""A broker with TLS, passwords and rights: what they let through arrives, what they hold up waits, and nothing dies."""

import asyncio
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from tests.support.broker import TopicFactory
from tests.support.eventually import until
from tests.support.oracle import Accepted, judge, read_topic
from tests.support.secured import MECHANISMS, PASSWORD, SecuredKafka

pytestmark = pytest.mark.asyncio

FLUSH_MS = 40_000
LEFT_ALONE_S = 1.5  # several attempts under the pauses below


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    with SecuredKafka() as cluster:
        yield cluster


@pytest.fixture
def granted(secured: SecuredKafka, topic: TopicFactory) -> str:
    """A topic with one partition that the user may write to."""
    name = topic(secured, partitions=1)
    secured.grant(name)
    return name


def producer_of(directory: Path, options: dict[str, Any]) -> RecoverableProducer:
    # What is mended is noticed soon.
    return RecoverableProducer(directory, retry_backoff_max_ms=200, stop_timeout_ms=500, **options)


class Publisher:
    """Numbered records of one key, and what was accepted of them."""

    def __init__(self) -> None:
        self.accepted: list[Accepted] = []

    async def publish(self, producer: RecoverableProducer, topic: str, count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(self.accepted)
            receipt = await producer.publish(topic, value, key=b"k")
            self.accepted.append(Accepted(receipt.record_id, b"k", value))


async def assert_once_in_order(secured: SecuredKafka, topic: str, publisher: Publisher) -> None:
    verdict = judge(publisher.accepted, await read_topic(secured.bootstrap_servers, topic), whole_lanes=True)
    assert (verdict.ok, verdict.repeated, verdict.foreign) == (True, 0, []), str(verdict)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_with_tls_and_the_right_password_everything_arrives(
    secured: SecuredKafka, granted: str, tmp_path: Path, mechanism: str
) -> None:
    publisher = Publisher()
    async with producer_of(tmp_path, secured.options(mechanism)) as producer:
        await publisher.publish(producer, granted, 2000)
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(secured, granted, publisher)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_with_a_wrong_password_records_wait_one_line_says_why_and_the_next_start_delivers_them(
    secured: SecuredKafka, granted: str, tmp_path: Path, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher()
    async with producer_of(tmp_path, secured.options(mechanism, "wrong")) as producer:
        await until(lambda: bool(complaints(caplog)))
        await publisher.publish(producer, granted, 500)
        await asyncio.sleep(LEFT_ALONE_S)
        (line,) = complaints(caplog)
        assert "error=SaslAuthenticationFailed" in line
        assert (producer.state, producer.statistics().pending) == ("connecting", 500)
    async with producer_of(tmp_path, secured.options(mechanism)) as producer:
        await publisher.publish(producer, granted, 500)
        await producer.flush(timeout_ms=FLUSH_MS)
        assert producer.statistics().dead_lettered == 0
    await assert_once_in_order(secured, granted, publisher)


async def test_a_password_that_is_mended_at_the_broker_is_taken_without_a_restart(
    secured: SecuredKafka, granted: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher()
    async with producer_of(tmp_path, secured.options(password="new")) as producer:  # noqa: S106
        await publisher.publish(producer, granted, 500)
        await until(lambda: bool(complaints(caplog)))
        secured.set_password("new")
        try:
            await producer.flush(timeout_ms=FLUSH_MS)
        finally:
            secured.set_password(PASSWORD)
    await assert_once_in_order(secured, granted, publisher)


async def test_a_certificate_that_nobody_vouches_for_is_told_of_and_nothing_is_sent(
    secured: SecuredKafka, granted: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    suspicious = {**secured.options(), "ssl_context": ssl.create_default_context()}
    async with producer_of(tmp_path, suspicious) as producer:
        await producer.publish(granted, b"waits")
        await until(lambda: bool(complaints(caplog)))
        await asyncio.sleep(LEFT_ALONE_S)
        (line,) = complaints(caplog)
        assert "CERTIFICATE_VERIFY_FAILED" in line
        assert producer.statistics().pending == 1
    assert await read_topic(secured.bootstrap_servers, granted) == []


@pytest.mark.parametrize("seen", [True, False], ids=["the topic can still be seen", "the topic is hidden too"])
async def test_a_right_taken_away_stalls_its_topic_alone_and_given_back_everything_arrives_once_in_order(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path, seen: bool
) -> None:
    name, other = topic(secured, partitions=1), topic(secured, partitions=1)
    secured.grant(name)
    secured.grant(other)
    if seen:
        secured.grant(name, "DESCRIBE")
    here, there = Publisher(), Publisher()
    async with producer_of(tmp_path, secured.options()) as producer:
        await here.publish(producer, name, 500)
        publishing = asyncio.create_task(publish_for_ever(producer, name, here))
        await until(lambda: producer.statistics().delivered > 500)
        await asyncio.to_thread(secured.revoke, name)
        await asyncio.sleep(LEFT_ALONE_S)
        delivered = len(await read_topic(secured.bootstrap_servers, name))
        await there.publish(producer, other, 500)
        await until(lambda: producer.statistics().delivered == delivered + 500)
        stalled = producer.statistics()
        publishing.cancel()
        await asyncio.wait({publishing})
        await asyncio.to_thread(secured.grant, name)
        await producer.flush(timeout_ms=FLUSH_MS)
        after = producer.statistics()
    assert stalled.pending > 0
    assert delivered < len(here.accepted)
    assert (stalled.dead_lettered, stalled.lanes_halted, after.dead_lettered, after.rebuilds) == (0, 0, 0, 0)
    await assert_once_in_order(secured, name, here)
    await assert_once_in_order(secured, other, there)


async def test_what_waits_for_a_right_is_moved_out_of_the_way_and_arrives_once_in_order(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The ring goes round many times meanwhile: refused batches are possibly persisted nowhere, and stay in order."""
    name, other = topic(secured, partitions=1), topic(secured, partitions=1)
    secured.grant(name)
    secured.grant(other)
    here, there = Publisher(), Publisher()
    async with producer_of(
        tmp_path, secured.options() | {"slot_bytes": 1 << 16, "max_batch_size": 1 << 14}
    ) as producer:
        await here.publish(producer, name, 500)
        await producer.flush(timeout_ms=FLUSH_MS)
        await asyncio.to_thread(secured.revoke, name)
        for _ in range(60):
            await here.publish(producer, name, 20)
            await there.publish(producer, other, 200)
            await asyncio.sleep(0.02)
        await until(lambda: producer.statistics().slots_moved > 2, 30)
        stalled = producer.statistics()
        await asyncio.to_thread(secured.grant, name)
        await producer.flush(timeout_ms=FLUSH_MS)
        after = producer.statistics()
    assert stalled.records_moved > 0
    assert (stalled.dead_lettered, stalled.lanes_halted, after.dead_lettered, after.pending) == (0, 0, 0, 0)
    await assert_once_in_order(secured, name, here)
    await assert_once_in_order(secured, other, there)


async def publish_for_ever(producer: RecoverableProducer, topic: str, publisher: Publisher) -> None:
    while True:
        await publisher.publish(producer, topic, 10)
        await asyncio.sleep(0.01)


async def test_a_topic_that_was_never_granted_waits_until_it_is(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, publisher = topic(secured, partitions=1), Publisher()
    async with producer_of(tmp_path, secured.options()) as producer:
        await publisher.publish(producer, name, 100)
        await asyncio.sleep(LEFT_ALONE_S)
        assert (producer.statistics().pending, producer.statistics().dead_lettered) == (100, 0)
        await asyncio.to_thread(secured.grant, name)
        await producer.flush(timeout_ms=FLUSH_MS)
    await assert_once_in_order(secured, name, publisher)
