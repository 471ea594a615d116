"""Brokers with TLS, certificates, passwords, tokens and rights: what they let through arrives, and the rest waits."""

import asyncio
import base64
import logging
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiokafka.abc import AbstractTokenProvider

from aiorecover import DeliveryPendingError, RecoverableProducer
from aiorecover.cli.doctor import BAD, FINE, UNSURE, examine
from aiorecover.config import Config
from aiorecover.integrations.settings import ProducerSettings
from tests.support.broker import TopicFactory
from tests.support.example import loaded
from tests.support.identity_provider import identity_provider
from tests.support.oracle import read_topic
from tests.support.published import WITHIN_MS, Published, perfect
from tests.support.secured import PASSWORD, SESSION_MS, SecuredKafka, token
from tests.test_readme import run

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


class Tokens(AbstractTokenProvider):
    async def token(self) -> str:
        return token()


WAYS: dict[str, Callable[[SecuredKafka], dict[str, Any]]] = {
    "password over TLS": lambda secured: secured.options("PLAIN"),
    "SCRAM over TLS": lambda secured: secured.options("SCRAM-SHA-512"),
    "password": lambda secured: secured.clear_options("PLAIN"),
    "SCRAM": lambda secured: secured.clear_options("SCRAM-SHA-512"),
    "token": lambda secured: secured.token_options(Tokens()),
    "certificate": lambda secured: secured.certificate_options(),
}


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    with SecuredKafka() as cluster:
        yield cluster


@pytest.fixture
def granted(secured: SecuredKafka, topic: TopicFactory) -> str:
    """A topic that the user may write to."""
    name = topic(secured, partitions=2)
    secured.grant(name)
    return name


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one for one in caplog.records if one.levelno >= logging.WARNING and one.name.startswith("aiorecover")]
    return [record.getMessage() for record in found]


@pytest.mark.parametrize("way", WAYS)
async def test_with_the_right_credentials_everything_arrives_and_nothing_is_warned_of(
    secured: SecuredKafka, granted: str, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    published = Published()
    with caplog.at_level(logging.DEBUG):
        async with RecoverableProducer(tmp_path, **WAYS[way](secured)) as producer:
            await published.publish(producer, granted, 1000)
            await producer.flush(WITHIN_MS)
    perfect(await published.judged(secured, granted))
    assert warnings(caplog) == []
    assert "Request to" in caplog.text  # of aiokafka, which writes down what it sends
    assert PASSWORD not in caplog.text
    assert "SaslAuthenticateRequest" not in caplog.text  # tokens and proofs are in there, too


async def test_variables_alone_take_a_producer_to_a_broker_over_tls_with_a_password(
    secured: SecuredKafka, granted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {name: value for name, value in secured.options().items() if name != "ssl_context"}
    for name, value in {**options, "wal_dir": tmp_path / "wal", "ssl_cafile": secured.authority_file(tmp_path)}.items():
        monkeypatch.setenv(f"AIORECOVER_{name.upper()}", str(value))
    async with RecoverableProducer(**ProducerSettings().options()) as producer:
        await producer.send_and_wait(granted, b"one")


async def test_the_snippet_of_the_page_delivers(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    secured.authority_file(tmp_path)
    secured.create_topic("orders", 1)
    secured.grant("orders")
    cluster: Any = SimpleNamespace(bootstrap_servers=secured.secured_servers)
    coroutine, _ = run("security.md:0", cluster)
    await coroutine
    assert [record.value for record in await read_topic(secured.bootstrap_servers, "orders")] == [b"one"]


@pytest.fixture
def example_environment(secured: SecuredKafka, granted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"KAFKA": secured.clear_servers, "SECURITY_PROTOCOL": "SASL_PLAINTEXT", "TOPIC": granted}
    for name, value in {**settings, "WAL_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("example_environment")
async def test_the_example_gets_its_tokens_from_an_identity_provider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with identity_provider("orders-service", "its secret") as (url, tokens_given):
        monkeypatch.setenv("TOKEN_URL", url)
        monkeypatch.setenv("CLIENT_ID", "orders-service")
        monkeypatch.setenv("CLIENT_SECRET", "its secret")
        example = loaded("oauth_tokens")
        await example.main()
        assert re.fullmatch(r"in Kafka [01] 0\n", capsys.readouterr().out)
        assert 1 <= tokens_given() <= 2  # connections share them
        wrong = example.ClientCredentials(url, "orders-service", "another secret")
        with pytest.raises(OSError, match="401"):
            await wrong.token()


async def test_the_example_signs_tokens_for_msk_which_another_kafka_refuses(
    secured: SecuredKafka, granted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    example = loaded("msk_iam")
    token = await example.MskTokens("eu-west-1").token()
    request = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    asked = parse_qs(request.query)
    assert request.hostname == "kafka.eu-west-1.amazonaws.com"
    assert asked["Action"] == ["kafka-cluster:Connect"]
    assert asked["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    options = secured.token_options(example.MskTokens("eu-west-1"))
    async with RecoverableProducer(tmp_path, **options, stop_timeout_ms=0) as producer:
        receipt = await producer.publish(granted, b"waits")
        with pytest.raises(DeliveryPendingError, match="the token is refused"):
            await receipt.delivered(timeout_ms=2000)


async def test_a_session_that_the_broker_ends_costs_nothing(
    secured: SecuredKafka, granted: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published = Published()
    async with RecoverableProducer(tmp_path, **secured.clear_options("PLAIN")) as producer:
        for _ in range(30):
            await published.publish(producer, granted, 100)
            await asyncio.sleep(3 * SESSION_MS / 1000 / 30)
        await producer.flush(WITHIN_MS)
    perfect(await published.judged(secured, granted))
    assert warnings(caplog) == []


async def test_a_certificate_that_is_not_trusted_is_named_and_nothing_is_sent(
    secured: SecuredKafka, granted: str, tmp_path: Path
) -> None:
    options = {**secured.options(), "ssl_context": ssl.create_default_context(), "stop_timeout_ms": 0}
    async with RecoverableProducer(tmp_path, **options) as producer:
        receipt = await producer.publish(granted, b"waits")
        with pytest.raises(DeliveryPendingError, match="the broker's certificate is not trusted"):
            await receipt.delivered(1500)
    assert await read_topic(secured.bootstrap_servers, granted) == []


async def test_the_doctor_names_the_right_that_is_missing_and_writes_nothing(
    secured: SecuredKafka, topic: TopicFactory, granted: str, tmp_path: Path
) -> None:
    refused = topic(secured, partitions=1)
    secured.grant(refused, "DESCRIBE")
    options = secured.options()
    config = Config.from_options(tmp_path, options.pop("bootstrap_servers"), options)
    found = [one async for one in examine(config, [granted, refused])]
    assert (FINE, f"topic {granted}", "may be written to") in [one[:3] for one in found]
    [missing] = [one for one in found if one.level == BAD]
    assert (missing.subject, missing.remedy) == (f"topic {refused}", "grant Write on the topic")
    assert "not authorized" in missing.text
    unread = [(one.level, one.remedy) for one in found if "may come twice" in one.text]
    assert unread == [(UNSURE, "grant Read on the topic")] * 2
    await asyncio.to_thread(secured.grant, granted, "READ")
    found = [one async for one in examine(config, [granted])]
    assert not any("may come twice" in one.text for one in found)
    assert await read_topic(secured.bootstrap_servers, granted) == []


@pytest.mark.parametrize("seen", [True, False], ids=["the topic can still be seen", "the topic is hidden too"])
async def test_a_right_taken_away_stalls_its_topic_alone_and_given_back_all_arrives_once_in_order(
    secured: SecuredKafka, topic: TopicFactory, tmp_path: Path, seen: bool
) -> None:
    name, other = topic(secured, partitions=1), topic(secured, partitions=1)
    for one in (name, other):
        secured.grant(one)
    if seen:
        secured.grant(name, "DESCRIBE")
    here, there = Published(), Published()
    async with RecoverableProducer(tmp_path, **secured.options()) as producer:
        await here.publish(producer, name, 500)
        await producer.flush(WITHIN_MS)
        await asyncio.to_thread(secured.revoke, name)
        await asyncio.sleep(1)
        await here.publish(producer, name, 500)
        await there.publish(producer, other, 500)
        await there.receipts[-1].delivered(WITHIN_MS)
        with pytest.raises(DeliveryPendingError, match=r"not authorized: grant .*Write"):
            await producer.flush(2000)
        found = producer.statistics()
        assert (found.pending, found.delivered, found.dead_lettered, found.lanes_halted) == (500, 1000, 0, 0)
        await asyncio.to_thread(secured.grant, name)
        await producer.flush(WITHIN_MS)
    perfect(await here.judged(secured, name))
    perfect(await there.judged(secured, other))
