"""FastStream: applications start without Kafka, publish into the ring, and all else works as ever."""

import asyncio
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from faststream import BaseMiddleware, FastStream
from faststream.exceptions import IncorrectState
from faststream.kafka import KafkaBroker as FastStreamsBroker
from faststream.kafka import KafkaResponse, TestKafkaBroker

from aiorecover import ConfigError
from aiorecover.integrations import faststream as ours
from aiorecover.integrations.faststream import KafkaBroker
from aiorecover.testing import MockCluster
from tests.support.broker import Cluster
from tests.support.eventually import until
from tests.support.oracle import read_topic
from tests.test_readme import SNIPPETS, run

pytestmark = pytest.mark.asyncio


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        for topic in ("orders", "bills"):
            cluster.create_topic(topic, partitions=2)
        yield cluster


class Stamped(BaseMiddleware[Any, Any]):
    """Counts what is consumed, and stamps what is published."""

    consumed = 0

    async def on_receive(self) -> None:
        Stamped.consumed += 1
        return await super().on_receive()

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        cmd.headers["stamped"] = "yes"
        return await call_next(cmd)


def application(broker: KafkaBroker, group: str | None = "billing") -> tuple[FastStream, list[str]]:
    """Handle orders, and answer each with a bill."""
    handled: list[str] = []

    @broker.subscriber("orders", group_id=group, auto_offset_reset="earliest")
    @broker.publisher("bills")
    async def bill(item: str) -> KafkaResponse:
        handled.append(item)
        return KafkaResponse({"bill": item}, key=item.encode())

    return FastStream(broker), handled


async def test_an_application_starts_without_kafka_and_loses_nothing(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "RETRY_S", 0.1)
    cluster.broker_down()
    monkeypatch.setattr(Stamped, "consumed", 0)
    more: Any = {"middlewares": [Stamped], "allow_auto_create_topics": False}
    broker = KafkaBroker(cluster.bootstrap_servers, wal_dir=tmp_path, **more)
    app, handled = application(broker, None)
    await app.start()
    items = [f"item {number}" for number in range(20)]
    receipts = [await broker.publish(item, "orders") for item in items]
    assert (handled, await broker.ping(0), broker.recoverable_producer.statistics().pending) == ([], False, 20)

    cluster.broker_up()
    await until(lambda: len(handled) == len(items), limit=60)
    assert await broker.ping(20)
    assert (await receipts[-1].delivered(timeout_ms=20_000)).topic == "orders"
    await app.stop()

    orders = await read_topic(cluster.bootstrap_servers, "orders")
    bills = await read_topic(cluster.bootstrap_servers, "bills")
    assert sorted(record.record_id or "" for record in orders) == sorted(receipt.record_id for receipt in receipts)
    assert sorted(record.value or b"" for record in bills) == sorted(b'{"bill":"%b"}' % item.encode() for item in items)
    assert all(dict(record.headers)["stamped"] == b"yes" for record in orders + bills)
    assert all(dict(record.headers)["content-type"] == b"application/json" for record in bills)
    assert Stamped.consumed == len(items)


async def test_subscribers_begin_also_after_errors_of_another_kind_and_each_is_logged_once(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ours, "RETRY_S", 0.01)
    errors = [KafkaConnectionError("away"), OSError("odd"), OSError("odd"), ValueError("odder")]
    start = FastStreamsBroker.start

    async def failing(broker: KafkaBroker) -> None:
        if errors:
            raise errors.pop(0)
        await start(broker)

    monkeypatch.setattr(FastStreamsBroker, "start", failing)
    broker = KafkaBroker(cluster.bootstrap_servers, wal_dir=tmp_path, logger=logging.getLogger("shop"))
    app, handled = application(broker, None)
    await app.start()
    await broker.publish("tea", "orders")
    await until(lambda: handled == ["tea"])
    await app.stop()
    said = [record.getMessage() for record in caplog.records if "cannot start yet" in record.getMessage()]
    assert [line.partition("error=")[2] for line in said] == ["OSError('odd')", "ValueError('odder')"]


async def test_the_next_application_delivers_the_records_that_one_leaves(cluster: MockCluster, tmp_path: Path) -> None:
    cluster.broker_down()
    broker = KafkaBroker(cluster.bootstrap_servers, wal_dir=tmp_path, options={"stop_timeout_ms": 0})
    await broker.start()
    left = await broker.publish_batch(KafkaResponse("a", key=b"1"), "b", topic="bills", no_confirm=True)
    await broker.publish(None, "bills", key=b"gone")
    await broker.stop()

    cluster.broker_up()
    again = KafkaBroker(cluster.bootstrap_servers, wal_dir=tmp_path)
    for _ in range(2):  # a broker may be started once more
        await again.start()
        await again.recoverable_producer.flush(timeout_ms=20_000)
        await again.stop()
    found = await read_topic(cluster.bootstrap_servers, "bills")
    assert {receipt.record_id for receipt in left} <= {record.record_id for record in found}
    assert {(record.key, record.value) for record in found} == {(b"1", b"a"), (None, b"b"), (b"gone", None)}


async def test_the_test_broker_works_and_touches_no_disk(tmp_path: Path) -> None:
    broker = KafkaBroker("127.0.0.1:1", wal_dir=tmp_path / "wal", middlewares=[Stamped])
    _, handled = application(broker)
    bills = broker.publisher("bills")
    async with TestKafkaBroker(broker):
        await broker.publish("tea", "orders")
        bills.mock.assert_called_once_with({"bill": "tea"})
    assert handled == ["tea"]
    assert not (tmp_path / "wal").exists()


async def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="linger_ms is an option of the producer: say it in options="):
        KafkaBroker(wal_dir=tmp_path, linger_ms=5)
    with pytest.raises(ConfigError, match="unknown option: did you mean wal_max_bytes"):
        KafkaBroker(wal_dir=tmp_path, options={"wal_max_byte": 5})  # type: ignore[arg-type]
    broker = KafkaBroker(wal_dir=tmp_path)
    with pytest.raises(IncorrectState, match="start it first"):
        await broker.publish("tea", "orders")
    assert not await asyncio.wait_for(broker.ping(0), 5)


async def test_the_application_of_the_page_bills_what_it_orders(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [snippet] = [name for name, text in SNIPPETS.items() if "integrations.faststream" in text]
    _, names = run(snippet, cluster)
    await names["app"].start()
    producer = names["broker"].recoverable_producer
    await until(lambda: producer.statistics().delivered == 2)
    await names["app"].stop()
    [order] = await read_topic(cluster.bootstrap_servers, "orders")
    [bill] = await read_topic(cluster.bootstrap_servers, "bills")
    assert bill.value == b'{"bill":"tea"}'
    assert f"accepted {order.record_id}\n" in capsys.readouterr().out


async def test_on_a_real_kafka_topics_are_made_and_nothing_is_lost_while_it_is_dead(
    kafka: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "RETRY_S", 0.1)
    name = f"orders-{uuid.uuid4().hex}"
    await asyncio.to_thread(kafka.nodes[0].kill)
    broker = KafkaBroker(kafka.bootstrap_servers, wal_dir=tmp_path)
    handled: list[int] = []

    @broker.subscriber(name, group_id=name, auto_offset_reset="earliest")
    async def count(number: int) -> None:
        handled.append(number)

    await broker.start()
    accepted = [(await broker.publish(number, name)).record_id for number in range(100)]
    await asyncio.to_thread(kafka.nodes[0].start)
    await until(lambda: len(handled) >= len(accepted), limit=90)
    await broker.stop()
    assert sorted(handled) == list(range(100))
    assert sorted(record.record_id or "" for record in await read_topic(kafka.bootstrap_servers, name)) == sorted(
        accepted
    )
