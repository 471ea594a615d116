"""Delivered records a second and processor time a record, side by side with aiokafka and confluent-kafka.

All of them: the same records, acks=all, idempotence, batches of 512 KiB, linger 5 ms, one publisher that does nothing
else. Each record has an id header, except those of AIOProducer, which takes no headers. Only aiorecover's records would
survive the publisher's death.
"""

import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.aio import AIOProducer

from benchmarks import kafka, load
from benchmarks.child import Watch, call, stopwatch
from benchmarks.figures import spread
from benchmarks.setting import Result, Setting, Table

Way = Callable[..., Any]
"""A way of delivering: called in a process of its own, with the arguments of `aiorecover`."""
Headers = list[tuple[str, str | bytes | None]]
Told = Callable[[Any, Any], None] | None

ROUNDS = 3
RECORDS = 300_000
WARM_UP = 30_000  # records that each contender delivers before it is measured
BATCH_BYTES = 512 * 1024
LINGER_MS = 5
POLL_EVERY = 1024  # confluent-kafka wants to be polled now and then; each time costs about a microsecond
FULL_WAIT_S = 0.005  # its queue is full: so long until there is room again
AIO_PENDING = 50_000  # AIOProducer does not say that the queue (100,000 records) is full: it loses what is too much


def run(setting: Setting) -> Result:
    rounds, records = setting.rounds or ROUNDS, setting.records or RECORDS
    setting.say("throughput: warming up the brokers")
    for way in CONTENDERS.values():
        deliver(setting, "throughput", way, WARM_UP)
    measured: dict[str, list[dict[str, Any]]] = {contender: [] for contender in CONTENDERS}
    for number in range(rounds):
        for contender, figures in measured.items():
            figures.append(deliver(setting, "throughput", CONTENDERS[contender], records))
            setting.say(f"throughput: round {number + 1}/{rounds} {contender} {figures[-1]['delivered_s']:,.0f}/s")
    return Result("throughput", [_table(setting, measured, records)], {"records": records, "rounds": measured})


def deliver(setting: Setting, name: str, way: Way, records: int) -> dict[str, Any]:
    """The figures of one way of delivering, in a process of its own and into a topic of its own, of that name."""
    with kafka.topic(setting.cluster, name) as topic, setting.wal_dir() as wal_dir:
        arguments = {"bootstrap_servers": setting.cluster.bootstrap_servers, "topic": topic, "records": records}
        figures = call(way, wal_dir=wal_dir, **arguments)
        kafka.verify(setting.cluster, topic, WARM_UP + records)
        return figures


def _table(setting: Setting, measured: dict[str, list[dict[str, Any]]], records: int) -> Table:
    ours = measured["aiorecover publish"]
    delivered, cpu = spread(ours, "delivered_s").median, spread(ours, "cpu_us").median
    rows = [
        [
            contender,
            spread(figures, "delivered_s").text(),
            f"{delivered / spread(figures, 'delivered_s').median:.2f}x",
            spread(figures, "cpu_us").text(".2f"),
            f"{spread(figures, 'cpu_us').median / cpu:.2f}x",
        ]
        for contender, figures in measured.items()
    ]
    cluster = setting.cluster
    return Table(
        title=f"Throughput: {records:,} records, {cluster.size} broker(s), replication {min(3, cluster.size)}",
        columns=["", "delivered/s", "aiorecover against it", "CPU µs/record", "its CPU against aiorecover's"],
        rows=rows,
        notes=[
            f"median of {len(ours)} interleaved rounds (least to greatest); ratios are of medians",
            "CPU: of the publishing process, all threads; every record was found in Kafka (end offsets)",
        ],
    )


def _figures(records: int, accepted: float, watch: Watch) -> dict[str, Any]:
    return {
        "accepted_s": records / accepted,
        "delivered_s": records / watch.elapsed,
        "cpu_us": watch.cpu / records * 1e6,
    }


# -- the contenders, each in its own process ---------------------------------------------------------------------------


async def aiorecover(
    bootstrap_servers: str,
    topic: str,
    records: int,
    wal_dir: str,
    keys: Sequence[bytes] = load.KEYS,
    **options: Any,
) -> dict[str, Any]:
    options |= {"linger_ms": LINGER_MS, "max_batch_size": BATCH_BYTES}
    async with load.producer(wal_dir, bootstrap_servers, **options) as producer:
        return await _timed(producer, partial(load.publish_all, of=keys), topic, records)


async def aiokafka(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:  # noqa: ARG001
    async with aiokafka_producer(bootstrap_servers) as producer:
        return await _timed(producer, send_all, topic, records)


async def _timed(
    producer: Any, publish_all: Callable[..., Awaitable[None]], topic: str, records: int
) -> dict[str, Any]:
    """Publish some records that do not count, then ``records`` until the last acknowledgement."""
    await publish_all(producer, topic, WARM_UP)
    await producer.flush()
    gc.collect()
    with stopwatch() as watch:
        began = time.perf_counter()
        await publish_all(producer, topic, records)
        accepted = time.perf_counter() - began
        await producer.flush()
    return _figures(records, accepted, watch)


def aiokafka_producer(bootstrap_servers: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )


async def send_all(producer: AIOKafkaProducer, topic: str, count: int) -> None:
    send: Callable[..., Awaitable[Any]] = producer.send
    value = load.VALUE
    for number, key in enumerate(load.keys(count)):
        await send(topic, value, key, headers=[(load.ID_HEADER, b"%b%d" % (load.ID_PREFIX, number))])


def confluent(
    bootstrap_servers: str,
    topic: str,
    records: int,
    wal_dir: str,  # noqa: ARG001
    keys: Sequence[bytes] = load.KEYS,
) -> dict[str, Any]:
    producer = confluent_producer(bootstrap_servers)
    produce_all(producer, topic, WARM_UP, keys)
    producer.flush()
    gc.collect()
    with stopwatch() as watch:
        began = time.perf_counter()
        produce_all(producer, topic, records, keys)
        accepted = time.perf_counter() - began
        producer.flush()
    return _figures(records, accepted, watch)


async def confluent_aio(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:  # noqa: ARG001
    async with AIOProducer(confluent_options(bootstrap_servers)) as producer:
        return await _timed(producer, produce_all_aio, topic, records)


async def produce_all_aio(producer: AIOProducer, topic: str, count: int) -> None:
    """As in its documentation, with its own batches of 1,000 records; the futures are dropped, as aiokafka's are."""
    produce, value = producer.produce, load.VALUE
    for number, key in enumerate(load.keys(count)):
        await produce(topic, value, key)
        if number % POLL_EVERY == 0:
            while len(producer) > AIO_PENDING:
                await producer.poll(FULL_WAIT_S)


def confluent_producer(bootstrap_servers: str) -> Producer:
    return Producer(confluent_options(bootstrap_servers))


def confluent_options(bootstrap_servers: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap_servers,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": LINGER_MS,
        "batch.size": BATCH_BYTES,
        "partitioner": "murmur2_random",  # as the others: the same records in the same partitions
    }


def produce_all(producer: Producer, topic: str, count: int, keys: Sequence[bytes] = load.KEYS) -> None:
    produce, value = producer.produce, load.VALUE
    for number, key in enumerate(load.keys(count, keys)):
        headers: Headers = [(load.ID_HEADER, b"%b%d" % (load.ID_PREFIX, number))]
        try:
            produce(topic, value, key, headers=headers)
        except BufferError:
            produce_when_room(producer, topic, key, headers)
        if number % POLL_EVERY == 0:
            producer.poll(0)


def produce_when_room(producer: Producer, topic: str, key: bytes, headers: Headers, told: Told = None) -> None:
    """Wait for room in the queue of a producer that has just refused a record, as often as it takes."""
    while True:
        producer.poll(FULL_WAIT_S)
        try:
            producer.produce(topic, load.VALUE, key, headers=headers, on_delivery=told)
        except BufferError:
            continue
        return


CONTENDERS: dict[str, Way] = {
    "aiorecover publish": aiorecover,
    "aiokafka send": aiokafka,
    "confluent-kafka produce": confluent,
    "confluent-kafka AIOProducer": confluent_aio,
}
