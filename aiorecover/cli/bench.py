"""``aiorecover bench``: how fast records get into a Kafka of yours, beside the other producers that are installed.

One publisher each, the same records, acks=all, idempotence. Only aiorecover's records would survive its death.
"""

from __future__ import annotations

import importlib.util
import inspect
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aiokafka import AIOKafkaProducer

from aiorecover import RecoverableProducer
from aiorecover.cli.endings import FAILED, EndedError, errors_only
from aiorecover.errors import DeliveryPendingError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

__all__ = ["measure"]

Publish: TypeAlias = "Callable[[int], Awaitable[None]]"  # so many records

BATCH_BYTES: Final = 256 * 1024
LINGER_MS: Final = 5
KEYS: Final = [b"key-%d" % number for number in range(100)]
WARM_UP: Final = 2000
REACHED_MS: Final = 20_000  # that Kafka has for a first record
POLL_EVERY: Final = 1024
QUEUE_FULL_S: Final = 0.005


async def measure(
    options: Mapping[str, Any], topic: str, records: int, size: int, wal_dir: pathlib.Path
) -> AsyncIterator[dict[str, Any]]:
    """Yield the figures of each producer; ``options``: those of `RecoverableProducer`, with bootstrap_servers.

    Raises:
        EndedError: Kafka takes no record within 20 s.
        KafkaError, RecoverError: Kafka is not reached, or refuses the first record.

    """
    value = bytes(size)
    tuning: dict[str, Any] = {"linger_ms": LINGER_MS, "max_batch_size": BATCH_BYTES}
    async with RecoverableProducer(wal_dir, **{**options, **tuning, "stop_timeout_ms": 0}) as ours:
        try:
            first = await ours.publish(topic, value, key=KEYS[0])
            await first.delivered(REACHED_MS)  # what is timed waits without a limit
            yield await _timed("aiorecover", _awaited(ours.publish, topic, value), ours.flush, records)
        except DeliveryPendingError as error:
            _, _, cause = str(error).partition(": ")
            raise EndedError(f"nothing is measured, Kafka took no record: {cause}", FAILED) from None
        finally:
            with errors_only():  # the log would say that the next start delivers what is left: it is thrown away
                await ours.stop(0)
    known = inspect.signature(AIOKafkaProducer).parameters
    shared = {name: value for name, value in options.items() if name in known}
    async with AIOKafkaProducer(**{**shared, **tuning, "acks": "all", "enable_idempotence": True}) as theirs:
        yield await _timed("aiokafka", _awaited(theirs.send, topic, value), theirs.flush, records)
    if importlib.util.find_spec("confluent_kafka") is None:
        yield {"producer": "confluent-kafka", "skipped": "not installed"}
    elif "security_protocol" in options:
        yield {"producer": "confluent-kafka", "skipped": "Kafka wants a login, whose options it names otherwise"}
    else:
        yield await _timed("confluent-kafka", *_confluent(options["bootstrap_servers"], topic, value), records)


async def _timed(name: str, publish: Publish, flush: Callable[[], Awaitable[object]], records: int) -> dict[str, Any]:
    await publish(WARM_UP)
    await flush()
    wall, cpu = time.perf_counter(), time.process_time()
    await publish(records)
    accepted_s = time.perf_counter() - wall
    await flush()
    return {
        "producer": name,
        "accepted_per_second": records / accepted_s,
        "delivered_per_second": records / (time.perf_counter() - wall),
        "cpu_us_per_record": (time.process_time() - cpu) / records * 1e6,
    }


def _awaited(call: Callable[..., Awaitable[object]], topic: str, value: bytes) -> Publish:
    async def publish(count: int) -> None:
        for number in range(count):
            await call(topic, value, key=KEYS[number % len(KEYS)])

    return publish


def _confluent(servers: Any, topic: str, value: bytes) -> tuple[Publish, Callable[[], Awaitable[object]]]:
    """Return how it publishes and flushes: its calls wait for nothing, but block where its queue is full."""
    from confluent_kafka import Producer  # noqa: PLC0415 - may not be installed

    where = servers if isinstance(servers, str) else ",".join(servers)
    settings = {"bootstrap.servers": where, "acks": "all", "enable.idempotence": True, "linger.ms": LINGER_MS}
    producer = Producer({**settings, "batch.size": BATCH_BYTES})

    async def publish(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value, KEYS[number % len(KEYS)])
                    break
                except BufferError:
                    producer.poll(QUEUE_FULL_S)
            if not number % POLL_EVERY:
                producer.poll(0)

    async def flush() -> None:
        producer.flush()

    return publish, flush
