"""A thousand partitions as a service has them: 1,000 streams of 100 records a second each; and a fresh topic.

The streams are paced: each hundredth of a second brings one record of each. Two figures count: the share of a core, and
the time from `publish` until the record is known to be in Kafka, of one stream a step, chosen at random. A fresh topic
is filled flat out, in turns with confluent-kafka: the time that both lose there is the broker's.
"""

import asyncio
import gc
import random
import time
from typing import Any

from benchmarks import kafka, load, throughput, warm
from benchmarks.child import call, stopwatch
from benchmarks.figures import quantiles, spread
from benchmarks.setting import Result, Setting, Table

ROUNDS = 5
SECONDS = 10.0
STREAMS = 1000
STEPS = 100  # a second: so many records a second has each stream
WARM_UP_S = 2.0  # that do not count
FRESH_RECORDS = 60  # of each partition of a fresh topic


def run(setting: Setting) -> Result:
    rounds, seconds = setting.rounds or ROUNDS, setting.seconds or SECONDS
    paced: list[dict[str, Any]] = []
    ways = {"aiorecover publish": fill, "confluent-kafka produce": fill_confluent}
    fresh: dict[str, list[dict[str, Any]]] = {contender: [] for contender in ways}
    with warm.topics(setting, "streams", [STREAMS]) as topics:
        for number in range(rounds):
            arguments = {"topic": topics[STREAMS], "seconds": seconds}
            paced.append(_in_child(setting, streams, arguments))
            figures = paced[-1]
            setting.say(f"streams: round {number + 1}/{rounds} {figures['core']:.0%} of a core {figures['ack']}")
    for number in range(rounds):
        for contender, found in fresh.items():
            with kafka.topic(setting.cluster, "fresh", STREAMS) as topic:
                found.append(_in_child(setting, ways[contender], {"topic": topic}))
                kafka.verify(setting.cluster, topic, STREAMS * FRESH_RECORDS, STREAMS)
            setting.say(f"streams: round {number + 1}/{rounds} fresh, {contender} {found[-1]['delivered_s']:,.0f}/s")
    data = {"seconds": seconds, "paced": paced, "fresh": fresh}
    return Result("streams", [_paced_table(paced, seconds), _fresh_table(fresh)], data)


def _in_child(setting: Setting, way: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    with setting.wal_dir() as wal_dir:
        return call(way, bootstrap_servers=setting.cluster.bootstrap_servers, wal_dir=wal_dir, **arguments)


def _paced_table(paced: list[dict[str, Any]], seconds: float) -> Table:
    acks = [one["ack"] for one in paced]
    row = [
        spread(paced, "published_s").text(),
        spread(paced, "core", 100).text(".0f") + " %",
        spread(paced, "cpu_us").text(".2f"),
        spread(acks, "p50", 1e-6).text(".0f"),
        spread(acks, "p99", 1e-6).text(".0f"),
    ]
    return Table(
        title=f"Streams: {STREAMS:,} partitions, {STEPS} records a second each, {seconds:.0f} s",
        columns=["records/s", "of a core", "CPU µs/record", "acknowledged p50 ms", "p99 ms"],
        rows=[row],
        notes=[f"medians of {len(paced)} rounds (least to greatest); acknowledged: from publish, one stream a step"],
    )


def _fresh_table(fresh: dict[str, list[dict[str, Any]]]) -> Table:
    rows = [
        [contender, spread(found, "delivered_s").text(), spread(found, "cpu_us").text(".2f")]
        for contender, found in fresh.items()
    ]
    return Table(
        title=f"A fresh topic: {STREAMS:,} partitions, {FRESH_RECORDS} records each, flat out",
        columns=["", "delivered/s", "CPU µs/record"],
        rows=rows,
        notes=["every record was found in Kafka (end offsets)"],
    )


# -- in a process of its own -------------------------------------------------------------------------------------------


async def streams(bootstrap_servers: str, topic: str, wal_dir: str, seconds: float) -> dict[str, Any]:
    keys = load.keys_of(STREAMS)
    async with load.producer(wal_dir, bootstrap_servers) as producer:
        await _pace(producer, topic, keys, WARM_UP_S)
        await producer.flush()
        gc.collect()
        before = producer.statistics().accepted
        with stopwatch() as watch:
            acknowledged = await _pace(producer, topic, keys, seconds)
            await producer.flush()
        records = producer.statistics().accepted - before
        return {
            "published_s": records / watch.elapsed,
            "core": watch.cpu / watch.elapsed,
            "cpu_us": watch.cpu / records * 1e6,
            "ack": quantiles(acknowledged),
        }


async def _pace(producer: Any, topic: str, keys: list[bytes], seconds: float) -> list[int]:
    """Publish a record of each stream a step; return how long one of each step took to be in Kafka, in ns."""
    chance, acknowledged, waiting = random.Random(1), [], []

    async def wait_for(receipt: Any, began: int) -> None:
        await receipt.delivered()
        acknowledged.append(time.perf_counter_ns() - began)

    began = time.perf_counter()
    for step in range(int(seconds * STEPS)):
        watched = chance.randrange(STREAMS)
        for number, key in enumerate(keys):
            receipt = await producer.publish(topic, load.VALUE, key=key)
            if number == watched:
                waiting.append(asyncio.create_task(wait_for(receipt, time.perf_counter_ns())))
        await asyncio.sleep(max(0.0, began + (step + 1) / STEPS - time.perf_counter()))
    await asyncio.gather(*waiting)
    return acknowledged


async def fill(bootstrap_servers: str, topic: str, wal_dir: str) -> dict[str, Any]:
    keys, records = load.keys_of(STREAMS), STREAMS * FRESH_RECORDS
    async with load.producer(wal_dir, bootstrap_servers) as producer:
        await producer.partitions_for(topic)
        with stopwatch() as watch:
            await load.publish_all(producer, topic, records, keys)
            await producer.flush()
    return {"delivered_s": records / watch.elapsed, "cpu_us": watch.cpu / records * 1e6}


def fill_confluent(bootstrap_servers: str, topic: str, wal_dir: str) -> dict[str, Any]:  # noqa: ARG001
    keys, records = load.keys_of(STREAMS), STREAMS * FRESH_RECORDS
    producer = throughput.confluent_producer(bootstrap_servers)
    producer.list_topics(topic, 30)
    with stopwatch() as watch:
        throughput.produce_all(producer, topic, records, keys)
        producer.flush()
    return {"delivered_s": records / watch.elapsed, "cpu_us": watch.cpu / records * 1e6}
