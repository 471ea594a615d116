"""How long an identity is trusted, and what is made of the answers of brokers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError

from aiorecover.delivery import identity_life
from aiorecover.delivery.identity_life import DAY_MS, LONGEST_MS, SETTING, ask_expiration_ms, identity_life_ms
from tests.support.broker import Cluster


class Told:
    """In a client's place."""

    def __init__(self, answer: Any, node: int | None = 3) -> None:
        self.answer = answer
        self.node = node
        self.asked: list[tuple[int, Any]] = []
        self.cluster = self
        self.known: list[Any] = []

    def brokers(self) -> list[Any]:
        return self.known

    def get_random_node(self) -> int | None:
        return self.node

    async def send(self, node: int, request: Any) -> Any:
        self.asked.append((node, request))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.Event().wait()
        return self.answer


def resources(*resources: Any) -> Any:
    return SimpleNamespace(resources=list(resources))


async def asked(client: Any, server: str = "elsewhere:9092") -> int | None:
    return await ask_expiration_ms(client, server)


def test_an_identity_is_trusted_half_as_long_as_the_brokers_keep_it_and_never_longer_than_by_default() -> None:
    assert identity_life_ms(3_000) == 1_500
    assert {identity_life_ms(told) for told in (None, DAY_MS, 7 * DAY_MS)} == {LONGEST_MS}


def test_where_nothing_can_be_read_back_an_identity_is_trusted_for_as_long_as_the_brokers_keep_it_up_to_a_day() -> None:
    assert identity_life_ms(3_000, readable=False) == 3_000
    assert {identity_life_ms(told, readable=False) for told in (None, DAY_MS, 7 * DAY_MS)} == {DAY_MS}


@pytest.mark.asyncio
async def test_a_real_broker_says_a_day(kafka: Cluster) -> None:
    client = AIOKafkaClient(bootstrap_servers=kafka.bootstrap_servers)
    await client.bootstrap()
    try:
        assert await ask_expiration_ms(client, kafka.bootstrap_servers) == DAY_MS
    finally:
        await client.close()


@pytest.mark.asyncio
async def test_a_broker_is_asked_for_its_own_setting() -> None:
    client = Told(resources((0, "", 4, "3", [(SETTING, "3000", False, 5, False, [])])))
    assert await asked(client) == 3_000
    ((node, request),) = client.asked
    assert (node, request._resources) == (3, [(4, "3", [SETTING])])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "value", ["", "1d", "86400000.0", "0", "-1", "+5", " 5", "1_000", "\u0665", "9" * 19, "9" * 5_000]
)
async def test_what_is_no_positive_number_says_nothing(value: str) -> None:
    assert await asked(Told(resources((0, "", 4, "3", [(SETTING, value, False, 5, False, [])])))) is None


@pytest.mark.asyncio
@pytest.mark.parametrize(("server", "node"), [("b:9092", 2), ("[::1]:9093", 4), ("balancer:9092", 3)])
async def test_the_broker_that_has_just_answered_is_asked_where_it_is_known(server: str, node: int) -> None:
    client = Told(resources())
    for number, host, port in ((1, "a", 9092), (2, "b", 9092), (4, "::1", 9093)):
        client.known.append(SimpleNamespace(nodeId=number, host=host, port=port))
    await asked(client, server)
    assert [asked_node for asked_node, _ in client.asked] == [node]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "client",
    [
        Told(resources((31, "Cluster authorization failed.", 4, "3", []))),
        Told(resources((31, "Cluster authorization failed.", 4, "3", None))),
        Told(resources((0, "", 4, "3", []))),
        Told(resources((0, "", 4, "3", [(SETTING, None, False, 5, True, [])]))),
        Told(resources()),
        Told(resources(), node=None),
        Told(IncompatibleBrokerVersion("no DescribeConfigs")),
        Told(KafkaConnectionError("gone")),
        Told(None),
    ],
    ids=["refused", "refused, null", "unknown setting", "no value", "empty", "no node", "old", "gone", "frozen"],
)
async def test_who_says_nothing_is_not_waited_for(client: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_life, "ASK_LIMIT", 0.05)
    assert await asyncio.wait_for(asked(client), 1.0) is None
