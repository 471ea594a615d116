"""``guarantee="exactly_once"`` on a broker with rights: each one that is missing is named, until all are granted."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover import DeliveryPendingError, RecoverableProducer
from aiorecover.cli.doctor import BAD, examine
from aiorecover.config import Config
from tests.support.broker import TopicFactory
from tests.support.published import WITHIN_MS, Published, perfect
from tests.support.secured import SecuredKafka

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

OFFSETS = "__consumer_offsets"


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    with SecuredKafka() as cluster:
        yield cluster


async def test_the_doctor_names_each_missing_right_and_begins_no_transaction(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(secured, partitions=1)
    for right in ("WRITE", "READ"):
        secured.grant(name, right)
    options = secured.options()
    config = Config.from_options(tmp_path, options.pop("bootstrap_servers"), options | {"guarantee": "exactly_once"})

    async def wrong() -> list[tuple[str, str]]:
        found = [one async for one in examine(config, [name])]
        return [(one.subject, one.remedy) for one in found if one.level == BAD]

    own = "aiorecover-doctor"
    use = "Write and Describe on the transactional ids that begin with aiorecover-"
    steps = (
        (own, "DESCRIBE", "TRANSACTIONAL_ID", use),
        (own, "WRITE", "TRANSACTIONAL_ID", use),
        (own, "READ", "GROUP", "Read on the groups that begin with aiorecover-"),
    )
    for resource, right, kind, remedy in steps:
        assert (f"transactional id {own}", f"grant {remedy}") in await wrong()
        await asyncio.to_thread(secured.grant, resource, right, kind)
    assert await wrong() == [(f"topic {OFFSETS}", "grant Read on this topic")]
    await asyncio.to_thread(secured.grant, OFFSETS, "READ", "TOPIC")
    assert await wrong() == []
    await asyncio.to_thread(secured.revoke, OFFSETS, "READ", "TOPIC")


async def test_each_missing_right_is_named_and_once_all_are_granted_the_records_are_committed_once(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(secured, partitions=2), Published()
    secured.grant(name)
    options = {**secured.options(), "guarantee": "exactly_once", "retry_backoff_max_ms": 200, "stop_timeout_ms": 2000}
    async with RecoverableProducer(tmp_path, **options) as producer:
        await published.publish(producer, name, 100)
        own = f"aiorecover-{producer.producer_id}"
        rights = {
            "grant Write and Describe on the transactional id": (own, "WRITE", "TRANSACTIONAL_ID"),
            "grant Read on the group": (own, "READ", "GROUP"),
            f"grant Read on the topic {OFFSETS}": (OFFSETS, "READ", "TOPIC"),
        }
        async with asyncio.timeout(60):
            while rights:
                with pytest.raises(DeliveryPendingError) as raised:
                    await producer.flush(300)
                for text in [text for text in rights if text in str(raised.value)]:
                    await asyncio.to_thread(secured.grant, *rights.pop(text))
        assert producer.statistics().delivered == 0
        await producer.flush(WITHIN_MS)
    perfect(await published.judged(secured, name, "read_committed"))
