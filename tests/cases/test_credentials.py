"""Credentials that fail, change, come late or not at all."""

import asyncio
import logging
from pathlib import Path

import pytest
from aiokafka.abc import AbstractTokenProvider

from aiorecover import DeliveryPendingError, RecoverableProducer
from tests.support.broker import TopicFactory
from tests.support.published import WITHIN_MS, Published, perfect
from tests.support.secured import PASSWORD, SecuredKafka, token

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

PAUSED_S = 8.0  # within the first pause after a refused login


async def test_a_wrong_password_is_tried_again_after_ten_seconds_and_taken_once_it_is_right(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, published = topic(secured), Published()
    secured.grant(name)
    options = secured.options(password="new")  # noqa: S106
    options["bootstrap_servers"] = [secured.secured_servers, secured.secured_servers.replace("127.0.0.1", "localhost")]
    before = secured.refused_logins()
    async with RecoverableProducer(tmp_path, **options) as producer:
        await published.publish(producer, name, 100)
        await asyncio.sleep(PAUSED_S)
        assert secured.refused_logins() - before == 1
        (line,) = [one for one in caplog.records if one.name == "aiorecover" and one.levelno > logging.INFO]
        said = "kafka_unreachable kafka is not reached: kafka refuses the credentials: mend them"
        assert line.getMessage().startswith(said)
        assert (producer.state, producer.statistics().pending) == ("connecting", 100)
        await asyncio.to_thread(secured.set_password, "new")
        try:
            await producer.flush(WITHIN_MS)
        finally:
            await asyncio.to_thread(secured.set_password, PASSWORD)
    perfect(await published.judged(secured, name))


async def test_a_password_that_changes_while_it_runs_is_not_tried_again_and_again(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, published = topic(secured, 12), Published()
    secured.grant(name)
    async with RecoverableProducer(tmp_path, **secured.options()) as producer:
        await published.publish(producer, name, 200)
        await producer.flush(WITHIN_MS)
        await asyncio.to_thread(secured.set_password, "other")
        await asyncio.to_thread(secured.nodes[0].kill)
        await asyncio.to_thread(secured.nodes[0].start)
        await asyncio.to_thread(secured.wait_ready)
        before = secured.refused_logins()
        await published.publish(producer, name, 200)
        await asyncio.sleep(PAUSED_S)
        assert secured.refused_logins() - before <= 3
        with pytest.raises(DeliveryPendingError, match="kafka refuses the credentials"):
            await producer.flush(100)
        await asyncio.to_thread(secured.set_password, PASSWORD)
        await producer.flush(2 * WITHIN_MS)
    perfect(await published.judged(secured, name))


class Provider(AbstractTokenProvider):
    """Gives no token at first, in one way or another; then a good one."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.calls = 0
        self.last = ""

    async def token(self) -> str:
        self.calls += 1
        self.last = token(lives_s=-60 if self.way == "is expired" else 3600)
        if self.way == "takes twelve seconds":
            await asyncio.sleep(12)
        if self.way == "raises":
            raise ValueError(self.last)
        return None if self.way == "returns None" else self.last  # type: ignore[return-value]


async def test_a_token_that_takes_twelve_seconds_is_waited_for(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, provider = topic(secured), Provider("takes twelve seconds")
    secured.grant(name)
    async with RecoverableProducer(tmp_path, **secured.token_options(provider)) as producer:
        receipt = await producer.publish(name, b"1")
        await receipt.delivered(2 * WITHIN_MS)
    assert provider.calls <= 4, "one for each connection"


@pytest.mark.parametrize(
    ("way", "named"),
    [
        ("raises", "sasl_oauth_token_provider raised ValueError"),
        ("returns None", "sasl_oauth_token_provider gave no text"),
        ("is expired", "kafka refuses the credentials: .* the token is refused"),
    ],
)
async def test_a_provider_that_gives_no_good_token_is_named_asked_again_later_and_its_token_is_not_shown(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path, way: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "aiorecover")
    name, provider = topic(secured), Provider(way)
    secured.grant(name)
    async with RecoverableProducer(tmp_path, **secured.token_options(provider)) as producer:
        receipt = await producer.publish(name, b"1")
        with pytest.raises(DeliveryPendingError, match=named) as raised:
            await receipt.delivered(int(PAUSED_S * 1000))
        assert provider.calls == 1
        assert provider.last not in f"{raised.value} {caplog.text}"
        provider.way = "well"
        await receipt.delivered(WITHIN_MS)
