"""Formats: schemas of a registry whose answers the event loop never waits for, CloudEvents, records passed on."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary_event
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, StringSerializer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from aiorecover import ConfigError, EncodeError, RecoverableProducer, record_id_of
from aiorecover.integrations.cloudevents import binary
from aiorecover.integrations.forwarding import SOURCE_HEADER, forwarded
from aiorecover.integrations.serializers import RegistrySerializer
from aiorecover.testing import MockCluster
from tests.support.eventually import until
from tests.support.oracle import Consumed, read_topic
from tests.support.registry import Registry, registry
from tests.test_readme import SNIPPETS, run

pytestmark = pytest.mark.asyncio

TOPIC = "orders"
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}'
JSON = (
    '{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",'
    ' "properties": {"item": {"type": "string"}}, "required": ["item"]}'
)


def order_class() -> Any:
    """Return the class that protoc makes of a message Order with a field item."""
    file = descriptor_pb2.FileDescriptorProto(name="aiorecover_order.proto", package="shop", syntax="proto3")
    field = file.message_type.add(name="Order").field.add(name="item", number=1)
    field.type, field.label = field.TYPE_STRING, field.LABEL_OPTIONAL
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


Order = order_class()
Client = Callable[[], SchemaRegistryClient]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        for topic in (TOPIC, "others"):
            cluster.create_topic(topic, partitions=1)
        yield cluster


@pytest.fixture
def schemas() -> Iterator[Registry]:
    with registry() as known:
        yield known


@pytest.fixture
def client(schemas: Registry) -> Iterator[Client]:
    """Makes clients that know nothing yet."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(SchemaRegistryClient({"url": schemas.url}))


def avro(schemas: SchemaRegistryClient, **conf: Any) -> AvroSerializer:
    made: AvroSerializer = AvroSerializer(schemas, AVRO, conf=conf)
    return made


FORMATS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[str], Any]]] = {
    "avro": (avro, lambda known: AvroDeserializer(known, AVRO), lambda item: {"item": item}),
    "json": (
        lambda known: JSONSerializer(JSON, known),
        lambda known: JSONDeserializer(JSON, schema_registry_client=known),
        lambda item: {"item": item},
    ),
    "protobuf": (
        lambda known: ProtobufSerializer(Order, known, {"use.deprecated.format": False}),
        lambda known: ProtobufDeserializer(Order, {"use.deprecated.format": False}, known),
        lambda item: Order(item=item),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
async def test_the_loop_goes_on_while_the_registry_answers_and_publish_never_asks_it(
    name: str, schemas: Registry, client: Client, cluster: MockCluster, tmp_path: Path
) -> None:
    make, make_reader, value_of = FORMATS[name]
    values = RegistrySerializer(others=lambda value: value)
    producer = RecoverableProducer(
        tmp_path, bootstrap_servers=cluster.bootstrap_servers, value_serializer=values, stop_timeout_ms=20_000
    )
    async with producer:
        schemas.lets_through.clear()
        adding = asyncio.create_task(values.add(TOPIC, make(client()), value_of("example")))
        await until(lambda: bool(schemas.asked))
        await producer.publish("others", b"meanwhile")
        assert await producer.send_and_wait("others", b"delivered meanwhile")
        assert not adding.done()
        schemas.lets_through.set()
        await adding
        schemas.asked.clear()
        for number in range(50):
            await producer.publish(TOPIC, value_of(f"item {number}"))
        with pytest.raises(EncodeError):
            await producer.publish(TOPIC, {"item": 1})
        await producer.publish(TOPIC, None, key=b"gone")
        assert schemas.asked == []
    found = await read_topic(cluster.bootstrap_servers, TOPIC)
    read, context = make_reader(client()), SerializationContext(TOPIC, MessageField.VALUE)
    orders = [await asyncio.to_thread(read, record.value, context) for record in found[:-1]]
    assert orders == [value_of(f"item {number}") for number in range(50)]
    assert found[-1].value is None
    assert list(schemas.subjects) == [f"{TOPIC}-value"]


async def test_a_registry_that_says_no_leaves_the_topic_refused_until_it_says_yes(client: Client) -> None:
    values = RegistrySerializer()
    looking_up = avro(client(), **{"auto.register.schemas": False})
    with pytest.raises(SchemaRegistryError, match="Subject not found"):
        await values.add(TOPIC, looking_up, {"item": "tea"})
    with pytest.raises(EncodeError, match=r"await add\(topic, serializer, example\) first topic='orders'"):
        values.serialize(TOPIC, {"item": "tea"}, None)
    await asyncio.to_thread(avro(client()), {"item": "tea"}, SerializationContext(TOPIC, MessageField.VALUE))
    await values.add(TOPIC, looking_up, {"item": "tea"})
    assert values.serialize(TOPIC, {"item": "tea"}, []) == b"\x00\x00\x00\x00\x01\x06tea"
    with pytest.raises(ConfigError, match="must make bytes of the example"):
        await values.add("others", StringSerializer(), None)


async def test_keys_have_schemas_of_their_own(
    schemas: Registry, client: Client, cluster: MockCluster, tmp_path: Path
) -> None:
    keys = RegistrySerializer(key=True)
    await keys.add(TOPIC, avro(client()), {"item": "example"})
    servers: Any = cluster.bootstrap_servers
    async with RecoverableProducer(tmp_path, bootstrap_servers=servers, key_serializer=keys) as producer:
        key: Any = {"item": "tea"}
        await producer.publish(TOPIC, b"value", key=key)
    [record] = await read_topic(cluster.bootstrap_servers, TOPIC)
    assert (record.key, list(schemas.subjects)) == (b"\x00\x00\x00\x00\x01\x06tea", ["orders-key"])


# -- CloudEvents -------------------------------------------------------------------------------------------------------


def event_of(record: Consumed) -> Any:
    """As a consumer with the SDK reads it; our own header stays out of its way."""
    headers = {name: value or b"" for name, value in record.headers}
    return from_binary_event(KafkaMessage(headers, record.key, record.value or b""))


async def test_cloud_events_come_back_as_they_were(cluster: MockCluster, tmp_path: Path) -> None:
    at = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    common: dict[str, Any] = {"type": "order.taken", "source": "/shop", "specversion": "1.0", "time": at}
    tea = {"datacontenttype": "application/json", "partitionkey": "tea"}
    given = [
        CloudEvent({**common, **tea, "id": "1"}, {"item": "käse"}),
        CloudEvent({**common, "id": "2", "datacontenttype": "application/octet-stream", "subject": "x"}, b"\x00\xff"),
        CloudEvent({**common, "id": "3"}),
    ]
    async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
        for event in given:
            await producer.publish(TOPIC, **binary(event))
    found = await read_topic(cluster.bootstrap_servers, TOPIC)
    assert [record.key for record in found] == [b"tea", None, None]
    assert dict(found[0].headers)["ce_type"] == b"order.taken"
    assert dict(found[0].headers)["content-type"] == b"application/json"
    for event, record in zip(given, found, strict=True):
        read = event_of(record)
        assert read.get_attributes() == event.get_attributes()
        assert (read.get_data() or None) == event.get_data()


# -- records passed on -------------------------------------------------------------------------------------------------


async def test_a_record_of_ours_is_passed_on_under_an_id_of_its_own(cluster: MockCluster, tmp_path: Path) -> None:
    async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
        first = await producer.publish(TOPIC, b"one", headers=[("trace", b"7"), ("trace", None)])
        await producer.flush(timeout_ms=20_000)
        for topic in (TOPIC, "others"):
            [record] = await read_topic(cluster.bootstrap_servers, topic)
            with pytest.raises(EncodeError, match="leave it out when forwarding"):
                await producer.publish("others", record.value, headers=record.headers)
            again = await producer.publish("others", record.value, headers=forwarded(record.headers))
            await producer.flush(timeout_ms=20_000)
    once, twice = await read_topic(cluster.bootstrap_servers, "others")
    assert (record_id_of(once.headers), record_id_of(twice.headers)) == (once.record_id, again.record_id)
    assert [header for header in once.headers if header[0] == SOURCE_HEADER] == [
        (SOURCE_HEADER, first.record_id.encode())
    ]
    assert [value for name, value in twice.headers if name == SOURCE_HEADER] == [(once.record_id or "").encode()]
    assert [value for name, value in twice.headers if name == "trace"] == [b"7", None]
    assert forwarded(forwarded(once.headers)) == forwarded(once.headers)
    assert forwarded([("a", b"b")]) == [("a", b"b")]


# -- the page ----------------------------------------------------------------------------------------------------------


def snippet(module: str) -> str:
    [name] = [name for name, text in SNIPPETS.items() if f"integrations.{module} import" in text]
    return name


async def test_the_snippets_of_the_page_publish_what_they_say(
    schemas: Registry, cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        SNIPPETS, "avro", SNIPPETS[snippet("serializers")].replace("http://localhost:8081", schemas.url)
    )
    cluster.create_topic("copies")
    for name in ("avro", snippet("cloudevents")):
        coroutine, names = run(name, cluster)
        await coroutine
        if "registry" in names:
            names["registry"].close()
    found = await read_topic(cluster.bootstrap_servers, TOPIC)
    assert sorted(record.value or b"" for record in found) == [b"\x00\x00\x00\x00\x01\x06tea", b'{"item": "tea"}']

    async def consumer() -> AsyncIterator[Consumed]:
        for record in found:
            yield record

    async with RecoverableProducer(tmp_path / "wal", bootstrap_servers=cluster.bootstrap_servers) as producer:
        coroutine, _ = run(snippet("forwarding"), cluster, consumer=consumer(), producer=producer)
        await coroutine
    copies = await read_topic(cluster.bootstrap_servers, "copies")
    assert sorted(dict(record.headers)[SOURCE_HEADER] or b"" for record in copies) == sorted(
        (record.record_id or "").encode() for record in found
    )
