"""A broker with a quota answers at once, and wants no more for a while: that is no trouble."""

from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Float64, Int16, Int32, Schema, String

from aiorecover import DeliveryPendingError, RecoverableProducer
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.published import WITHIN_MS, Published, perfect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

RATE = 300_000.0  # bytes a second
CLIENT = "throttled"
_ENTITY = ("entity", Array(("type", String("utf-8")), ("name", String("utf-8"))))


class _Answer(Response):
    API_KEY, API_VERSION = 49, 0
    SCHEMA = Schema(("throttle", Int32), ("entries", Array(("code", Int16), ("message", String("utf-8")), _ENTITY)))


class _Struct(RequestStruct):
    API_KEY, API_VERSION, RESPONSE_TYPE = 49, 0, _Answer
    _CHANGES = ("changes", Array(("key", String("utf-8")), ("value", Float64), ("remove", Boolean)))
    SCHEMA = Schema(("entries", Array(_ENTITY, _CHANGES)), ("validate_only", Boolean))


class _AlterClientQuotas(Request[_Struct]):
    API_KEY = 49

    def build(self, request_struct_class: type[_Struct]) -> _Struct:
        entry = [("client-id", CLIENT)], [("producer_byte_rate", RATE, False)]
        return request_struct_class([entry], False)


async def limit_rate(servers: str) -> None:
    client = AIOKafkaClient(bootstrap_servers=servers)
    await client.bootstrap()
    try:
        answer = await client.send(client.get_random_node(), _AlterClientQuotas())
        assert [entry[0] for entry in answer.entries] == [0]
    finally:
        await client.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_throttled_answers_are_waited_for_and_named_and_nothing_is_sent_twice(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, published = topic(kafka, 12), Published()
    await limit_rate(kafka.bootstrap_servers)
    options: dict[str, Any] = {"client_id": CLIENT, "guarantee": guarantee}
    async with RecoverableProducer(tmp_path, bootstrap_servers=kafka.bootstrap_servers, **options) as producer:
        await published.publish(producer, name, 24_000)  # 3 MB: as much as the quota lets through in ten seconds
        await until(lambda: "kafka_throttles" in caplog.text)
        with pytest.raises(DeliveryPendingError, match="throttled: a quota is used up"):
            await producer.flush(10)
        await producer.flush(2 * WITHIN_MS)
        found = producer.statistics()
        assert (found.errors, found.lanes_in_trouble) == (0, 0)
        sent = found.requests
    perfect(await published.judged(kafka, name, "read_committed"))
    assert sent < 100
