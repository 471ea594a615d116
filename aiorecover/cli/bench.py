"""``aiorecover bench``: how fast records get into a Kafka of yours, beside the other producers that are installed.

One publisher each, the same records, acks=all, idempotence. Only aiorecover's records would survive its death.
"""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaProducer

from aiorecover import RecoverableProducer

if TYPE_CHECKING:
    import pathlib
    from collections.abc import AsyncIterator, Mapping

__all__ = ["measure"]

BATCH_BYTES: Final = 256 * 1024
LINGER_MS: Final = 5
KEYS: Final = [b"key-%d" % number for number in range(100)]
WARM_UP: Final = 2000
POLL_EVERY: Final = 1024
QUEUE_FULL_S: Final = 0.005


async def measure(
    options: Mapping[str, Any], topic: str, records: int, size: int, wal_dir: pathlib.Path
) -> AsyncIterator[dict[str, Any]]:
    """Yield the figures of each producer; ``options``: a producer's, as aiokafka names them, with bootstrap_servers.

    Raises:
        KafkaError, RecoverError: Kafka is not reached, or refuses.

    """
    value = bytes(size)
    yield await _ours(dict(options), topic, records, value, wal_dir)
    yield await _aiokafka(dict(options), topic, records, value)
    if importlib.util.find_spec("confluent_kafka") is None:
        yield {"producer": "confluent-kafka", "skipped": "not installed"}
    elif "security_protocol" in options:
        yield {"producer": "confluent-kafka", "skipped": "Kafka wants a login, whose options it names otherwise"}
    else:
        yield _confluent(options["bootstrap_servers"], topic, records, value)


class _Watch:
    """Time and processor time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, name: str, records: int, accepted_s: float) -> dict[str, Any]:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {
            "producer": name,
            "accepted_per_second": records / accepted_s,
            "delivered_per_second": records / wall,
            "cpu_us_per_record": cpu / records * 1e6,
        }

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._wall


async def _ours(
    options: dict[str, Any], topic: str, records: int, value: bytes, wal_dir: pathlib.Path
) -> dict[str, Any]:
    async with RecoverableProducer(wal_dir, **options, linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES) as producer:
        for number in range(WARM_UP):
            await producer.publish(topic, value, key=KEYS[number % len(KEYS)])
        await producer.flush(60_000)
        watch = _Watch()
        for number in range(records):
            await producer.publish(topic, value, key=KEYS[number % len(KEYS)])
        accepted = watch.elapsed
        await producer.flush()
        return watch.figures("aiorecover", records, accepted)


async def _aiokafka(options: dict[str, Any], topic: str, records: int, value: bytes) -> dict[str, Any]:
    producer = AIOKafkaProducer(
        **options, acks="all", enable_idempotence=True, linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES
    )
    await producer.start()
    try:
        for number in range(WARM_UP):
            await producer.send(topic, value, key=KEYS[number % len(KEYS)])
        await producer.flush()
        watch = _Watch()
        for number in range(records):
            await producer.send(topic, value, key=KEYS[number % len(KEYS)])
        accepted = watch.elapsed
        await producer.flush()
        return watch.figures("aiokafka", records, accepted)
    finally:
        await producer.stop()


def _confluent(servers: Any, topic: str, records: int, value: bytes) -> dict[str, Any]:
    from confluent_kafka import Producer  # noqa: PLC0415 - may not be installed

    where = servers if isinstance(servers, str) else ",".join(servers)
    settings = {"bootstrap.servers": where, "acks": "all", "enable.idempotence": True, "linger.ms": LINGER_MS}
    producer = Producer({**settings, "batch.size": BATCH_BYTES})

    def publish(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value, KEYS[number % len(KEYS)])
                    break
                except BufferError:
                    producer.poll(QUEUE_FULL_S)
            if not number % POLL_EVERY:
                producer.poll(0)

    publish(WARM_UP)
    producer.flush()
    watch = _Watch()
    publish(records)
    accepted = watch.elapsed
    producer.flush()
    return watch.figures("confluent-kafka", records, accepted)
