"""How long a record takes to be known to be in Kafka, at three rates, side by side with aiokafka and confluent-kafka.

The clock starts with the call that publishes and stops where the publisher learns of the acknowledgement: in a task
that awaits it, or in the callback. The call alone is timed, too. Everything else is as in `throughput`.
"""

import asyncio
import gc
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from confluent_kafka.aio import AIOProducer

from aiorecover import Receipt
from benchmarks import kafka, load, throughput
from benchmarks.child import Watch, call, stopwatch
from benchmarks.figures import histogram, quantiles, spread
from benchmarks.pace import Paced
from benchmarks.setting import Result, Setting, Table
from benchmarks.throughput import BATCH_BYTES, LINGER_MS, WARM_UP, Headers, Told, Way

ROUNDS = 2
SECONDS = 3.0
RATES = (10, 1_000, 100_000)
WATCHED = 1_000  # records a second, at most, whose acknowledgement is waited for: more would be a load of its own

Times = Sequence[int]
"""In ns."""


def run(setting: Setting) -> Result:
    rounds, seconds = setting.rounds or ROUNDS, setting.seconds or SECONDS
    measured: dict[str, dict[int, list[dict[str, Any]]]] = {
        contender: {rate: [] for rate in RATES} for contender in CONTENDERS
    }
    for number in range(rounds):
        for rate in RATES:
            for contender, way in CONTENDERS.items():
                figures = _one(setting, way, rate, seconds)
                measured[contender][rate].append(figures)
                said = f"{contender} {rate:,}/s {figures['ack']['p50'] / 1e6:.1f} ms"
                setting.say(f"acknowledgement: round {number + 1}/{rounds} {said}")
    return Result("acknowledgement", [_table(measured, seconds)], {"seconds": seconds, "rounds": measured})


def _one(setting: Setting, way: Way, rate: int, seconds: float) -> dict[str, Any]:
    with kafka.topic(setting.cluster, "acknowledgement") as topic, setting.wal_dir() as wal_dir:
        servers = setting.cluster.bootstrap_servers
        arguments = {"topic": topic, "wal_dir": wal_dir, "rate": rate, "seconds": seconds}
        figures = call(way, bootstrap_servers=servers, **arguments)
        kafka.verify(setting.cluster, topic, WARM_UP + int(rate * seconds))
        return figures


def _table(measured: dict[str, dict[int, list[dict[str, Any]]]], seconds: float) -> Table:
    rows = []
    for rate in RATES:
        for contender, of_rates in measured.items():
            rounds = of_rates[rate]
            acks, calls = [one["ack"] for one in rounds], [one["call"] for one in rounds]
            rows.append(
                [
                    f"{rate:,}/s  {contender}",
                    f"{spread(rounds, 'published_s').median:,.0f}",
                    f"{spread(rounds, 'core', 100).median:.1f} %",
                    *(spread(acks, name, 1e-6).text(".1f") for name in ("p50", "p99")),
                    *(spread(calls, name, 1e-3).text(".1f") for name in ("p50", "p99")),
                ]
            )
    return Table(
        title=f"Acknowledgement: from the call until the record is known to be in Kafka, {seconds:.0f} s at each rate",
        columns=["", "published/s", "of a core", "acknowledged p50 ms", "p99 ms", "call p50 µs", "p99 µs"],
        rows=rows,
        notes=[
            f"medians of {len(rounds)} interleaved rounds (least to greatest); linger {LINGER_MS} ms",
            f"of at most {WATCHED:,} records a second; counted from the call, not from when the record was due",
            f"AIOProducer keeps records in a buffer of its own, which is flushed every {LINGER_MS} ms here",
        ],
    )


# -- the contenders, each in its own process ---------------------------------------------------------------------------


async def aiorecover(bootstrap_servers: str, topic: str, wal_dir: str, rate: int, seconds: float) -> dict[str, Any]:
    options = {"linger_ms": LINGER_MS, "max_batch_size": BATCH_BYTES}
    async with load.producer(wal_dir, bootstrap_servers, **options) as producer:
        await load.publish_all(producer, topic, WARM_UP)
        await producer.flush()
        return await _measured(producer.publish, producer.flush, topic, rate, seconds, headers=False)


async def aiokafka(bootstrap_servers: str, topic: str, wal_dir: str, rate: int, seconds: float) -> dict[str, Any]:  # noqa: ARG001
    async with throughput.aiokafka_producer(bootstrap_servers) as producer:
        await throughput.send_all(producer, topic, WARM_UP)
        await producer.flush()
        return await _measured(producer.send, producer.flush, topic, rate, seconds, headers=True)


async def confluent_aio(bootstrap_servers: str, topic: str, wal_dir: str, rate: int, seconds: float) -> dict[str, Any]:  # noqa: ARG001
    async with AIOProducer(throughput.confluent_options(bootstrap_servers)) as producer:
        await throughput.produce_all_aio(producer, topic, WARM_UP)
        await producer.flush()
        over = asyncio.Event()

        async def flush_again_and_again() -> None:
            """Its own timer would wait for a pause of a second, or for 1,000 records."""
            while not over.is_set():
                await producer.flush()
                await asyncio.sleep(LINGER_MS / 1000)

        flushing = asyncio.create_task(flush_again_and_again())

        async def finish() -> None:
            over.set()
            await flushing
            await producer.flush()

        return await _measured(producer.produce, finish, topic, rate, seconds, headers=False)


async def _measured(
    publish: Callable[..., Awaitable[Any]],
    flush: Callable[[], Awaitable[Any]],
    topic: str,
    rate: int,
    seconds: float,
    *,
    headers: bool,
) -> dict[str, Any]:
    """``publish`` returns a receipt, or a future of the acknowledgement. An id is made before the clock starts."""
    clock, records, every = time.perf_counter_ns, int(rate * seconds), max(1, rate // WATCHED)
    called, acknowledged, waiting = array("q"), array("q"), set()

    async def wait_for(given: Receipt | Awaitable[Any], began: int) -> None:
        await (given.delivered() if isinstance(given, Receipt) else given)
        acknowledged.append(clock() - began)

    gc.collect()
    pace = Paced(rate)
    pace.begin()
    with stopwatch() as watch:
        for number, key in enumerate(load.keys(records)):
            if number >= pace.pause_at:
                await pace.pause(number)
            options = {"headers": _id(number)} if headers else {}
            began = clock()
            given = await publish(topic, load.VALUE, key=key, **options)
            called.append(clock() - began)
            if number % every == 0:
                waiting.add(asyncio.create_task(wait_for(given, began)))
    await flush()
    await asyncio.gather(*waiting)
    return _figures(watch, called, acknowledged)


def confluent(bootstrap_servers: str, topic: str, wal_dir: str, rate: int, seconds: float) -> dict[str, Any]:  # noqa: ARG001
    """Without an event loop: `poll` waits for what is due, and calls back meanwhile."""
    producer = throughput.confluent_producer(bootstrap_servers)
    throughput.produce_all(producer, topic, WARM_UP)
    producer.flush()
    produce, value, clock = producer.produce, load.VALUE, time.perf_counter_ns
    every = max(1, rate // WATCHED)
    called, acknowledged = array("q"), array("q")

    def watched(began: int) -> Told:
        return lambda _error, _message: acknowledged.append(clock() - began)

    gc.collect()
    pace = Paced(rate)
    pace.begin()
    with stopwatch() as watch:
        for number, key in enumerate(load.keys(int(rate * seconds))):
            while number >= pace.pause_at:
                producer.poll(pace.wait_s(number))
                pace.count_due()
            headers = _id(number)
            began = clock()
            told = watched(began) if number % every == 0 else None
            try:
                produce(topic, value, key, headers=headers, on_delivery=told)
            except BufferError:
                throughput.produce_when_room(producer, topic, key, headers, told)
            called.append(clock() - began)
    producer.flush()
    return _figures(watch, called, acknowledged)


def _id(number: int) -> Headers:
    return [(load.ID_HEADER, b"%b%d" % (load.ID_PREFIX, number))]


def _figures(watch: Watch, called: Times, acknowledged: Times) -> dict[str, Any]:
    return {
        "published_s": len(called) / watch.elapsed,
        "core": watch.cpu / watch.elapsed,
        "call": quantiles(called),
        "call_histogram": histogram(called),
        "ack": quantiles(acknowledged),
        "ack_histogram": histogram(acknowledged),
    }


CONTENDERS: dict[str, Way] = {
    "aiorecover publish": aiorecover,
    "aiokafka send": aiokafka,
    "confluent-kafka produce": confluent,
    "confluent-kafka AIOProducer": confluent_aio,
}
