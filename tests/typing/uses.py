"""Typical uses, for mypy and pyright in their strict modes: `make check` runs both over this file; no test runs it.

`assert_type` says what a call returns. A line with two ``ignore`` comments is a mistake that both must see: an ignore
that nothing needs is an error of its own.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Unpack, assert_type

from aiokafka.structs import RecordMetadata, TopicPartition
from fastapi import FastAPI, HTTPException
from faststream import FastStream

import aiorecover.sync
from aiorecover import (
    DeadLetter,
    Deduplicator,
    DeliveryPendingError,
    DeliveryReport,
    PermanentDeliveryError,
    Receipt,
    RecoverableProducer,
    Statistics,
    WalFullError,
    record_id_of,
)
from aiorecover.config import Options
from aiorecover.integrations.fastapi import ProducerDep, dead_letters_router, exception_handlers, lifespan, probes
from aiorecover.integrations.faststream import KafkaBroker
from aiorecover.integrations.settings import ProducerSettings
from aiorecover.testing import CrashingProcess, MemoryDisk, MockCluster, read_topic


async def publish(producer: RecoverableProducer) -> None:
    """A record, and what becomes of it."""
    receipt = await producer.publish("orders", {"id": 1}, key="1", headers=[("trace", b"1"), ("empty", None)])
    assert_type(receipt, Receipt)
    assert_type(receipt.record_id, str)
    try:
        report = await receipt.delivered(timeout_ms=10_000)
    except (DeliveryPendingError, PermanentDeliveryError, WalFullError) as error:
        print(error)
    else:
        assert_type(report, DeliveryReport)
        assert_type(report.offset, int | None)
    assert_type(producer.publish_nowait("orders", None, key=b"1", timestamp_ms=0, context={"a": 1}), Receipt)
    await producer.publish("totals", b"1", partition=0, source=("orders", 0, 1))
    await producer.flush(timeout_ms=10_000)
    assert_type(producer.statistics(), Statistics)
    assert_type(producer.statistics().oldest_age_seconds, float | None)
    assert_type(await producer.source_positions(), dict[TopicPartition, int])

    await producer.publish()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await producer.publish("orders", b"", key=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def as_with_aiokafka(producer: RecoverableProducer) -> None:
    """The calls that keep aiokafka's names."""
    assert_type(await producer.send_and_wait("orders", b"value", b"key"), RecordMetadata)
    assert_type(await producer.send("orders", b"value", key=b"key"), "asyncio.Future[RecordMetadata]")
    assert_type(await producer.partitions_for("orders"), set[int])


async def from_threads(producer: RecoverableProducer) -> None:
    """A thread has no loop to await in."""
    await asyncio.to_thread(lambda: producer.publish_threadsafe("orders", b"value").result())


async def options(directory: str) -> None:
    """Each option has a type, which an editor shows."""

    async def seen(report: DeliveryReport) -> None:
        print(report.record_id)

    shared: Options = {"linger_ms": 20, "compression_type": "zstd", "on_delivery": seen, "delivery_timeout_ms": None}
    RecoverableProducer(directory, bootstrap_servers="localhost", **shared)
    async with RecoverableProducer(
        directory,
        bootstrap_servers=["one:9092", "two:9092"],
        fsync="always",
        guarantee="exactly_once",
        on_full="wait",
        security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(),
        sasl_mechanism="PLAIN",
        on_delivery=lambda report: print(report.offset),
    ) as producer:
        assert_type(producer, RecoverableProducer)
        assert_type(producer.state, str)
    assert_type(await producer.stop(), int)

    RecoverableProducer(directory)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    servers = "localhost"
    RecoverableProducer(directory, bootstrap_servers=servers, lingerms=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RecoverableProducer(directory, bootstrap_servers=servers, fsync="sometimes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def of_my_own(directory: str, **chosen: Unpack[Options]) -> RecoverableProducer:
    """A function of a service that hands options on."""
    return RecoverableProducer(directory, bootstrap_servers="localhost", **chosen)


async def dead_letters(producer: RecoverableProducer) -> None:
    """Read and requeue the records that Kafka refused for good."""
    async for letter in producer.dead_letters.list():
        assert_type(letter, DeadLetter)
        assert_type(letter.value, bytes | None)
    assert_type(await producer.dead_letters.requeue(), int)
    assert_type(await producer.dead_letters.export("dead.jsonl"), int)


def consume(headers: tuple[tuple[str, bytes], ...]) -> bool:
    """A consumer that drops repeats; aiokafka's records have such headers."""
    seen = Deduplicator()
    assert_type(seen.to_bytes(), bytes)
    assert_type(record_id_of(headers), str | None)
    return seen.add(record_id_of(headers), "orders")


async def admins_only() -> None:
    """Refuse everybody."""
    raise HTTPException(403)


@asynccontextmanager
async def own(app: FastAPI) -> AsyncGenerator[None]:
    """Publish when the service starts."""
    await app.state.producer.publish("orders", b"service started")
    yield


web = FastAPI(lifespan=lifespan("wal", bootstrap_servers="localhost", wraps=own), exception_handlers=exception_handlers)
web.include_router(probes)
web.include_router(dead_letters_router(admins_only))


@web.post("/orders", status_code=202)
async def take(order: dict[str, str], producer: ProducerDep) -> dict[str, str]:
    """A request that is answered once the order is in the ring."""
    assert_type(producer, RecoverableProducer)
    return {"accepted": (await producer.publish("orders", order)).record_id}


broker = KafkaBroker("localhost:9092", wal_dir="wal", options={"fsync": "always"})
stream = FastStream(broker)


@stream.after_startup
async def greet() -> None:
    """Publish by FastStream, through the ring."""
    assert_type(await broker.publish({"item": "tea"}, "orders", key="tea"), Receipt)


def plain_calls() -> None:
    """Without asyncio."""
    with aiorecover.sync.RecoverableProducer("wal", bootstrap_servers="localhost", linger_ms=1) as producer:
        receipt = producer.publish("orders", {"id": 1}, key="1")
        assert_type(receipt, aiorecover.sync.Receipt)
        assert_type(receipt.delivered(timeout_ms=1000), DeliveryReport)
        producer.publish("orders", b"", keys="1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def settings() -> RecoverableProducer:
    """Options from variables and files."""
    found = ProducerSettings(linger_ms=20)
    assert_type(found.linger_ms, int | None)
    return RecoverableProducer(**found.options())


async def tests_of_a_service(
    mock_kafka: MockCluster,
    crashing_process: Callable[..., CrashingProcess],
    power_cut: Callable[[MemoryDisk], Iterator[MemoryDisk]],
) -> None:
    """The fixtures, and what they give."""
    mock_kafka.broker_down()
    service = crashing_process("service.py", env={"KAFKA": mock_kafka.bootstrap_servers})
    assert_type(service.line(), str)
    assert_type(service.kill(), list[str])
    disk = MemoryDisk()
    async with RecoverableProducer(disk, bootstrap_servers=mock_kafka.bootstrap_servers) as producer:
        await producer.publish("orders", b"tea")
    for image in power_cut(disk):
        assert_type(image, MemoryDisk)
    records: list[Any] = [*read_topic(mock_kafka.bootstrap_servers, "orders")]
    assert_type([record_id_of(record.headers) for record in records], list[str | None])
