"""A thousand audio streams, each with 100 packets of 160 bytes a second: published, landed in a table, audited.

``python audio_streams.py --streams 1000 --seconds 10``, with Kafka at ``--kafka localhost:9092``. Needs Java 17 and
``pip install 'aiorecover[spark]'``. All streams share a topic. A packet's key is its stream, so a stream's packets stay
in one partition, in order. Killed and started again, it first delivers what waits in the ring. Ends with status 1 where
the audit finds that a packet is missing, or stands twice in the table.
"""

import argparse
import asyncio
import os
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pyspark
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError
from pyspark.sql import SparkSession

from aiorecover import RecoverableProducer
from aiorecover.spark import audit, land

PACKETS_A_SECOND = 100
PACKET_BYTES = 160
PARTITIONS = 12
SETTINGS = {
    "spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
    "spark.sql.shuffle.partitions": "8",  # of 200, most would be empty here
    "spark.ui.showConsoleProgress": "false",
}


class Published(NamedTuple):
    producer_id: str
    epoch: int
    last: int
    accepted_s: float
    delivered_s: float


async def create_topic(kafka: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])
    except TopicAlreadyExistsError:
        pass  # from an earlier run
    finally:
        await admin.close()


async def publish(kafka: str, topic: str, wal_dir: Path, streams: int, seconds: int) -> Published:
    """Publish the packets of all streams, at their rate."""
    keys = [b"stream-%d" % number for number in range(streams)]
    audio = os.urandom(PACKET_BYTES - 8)
    async with RecoverableProducer(wal_dir, bootstrap_servers=kafka, on_full="wait") as producer:
        began = time.perf_counter()
        for turn in range(seconds * PACKETS_A_SECOND):
            packet = struct.pack(">Q", turn) + audio
            for key in keys:
                receipt = await producer.publish(topic, packet, key=key)
            due = began + (turn + 1) / PACKETS_A_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        accepted = time.perf_counter() - began
        await producer.flush()
        delivered = time.perf_counter() - began
        return Published(receipt.record_id.split("/")[0], receipt.epoch, receipt.sequence, accepted, delivered)


def land_all(spark: SparkSession, kafka: str, topic: str, directory: Path) -> None:
    """Land the records of the topic that are not in the table yet."""
    directory = directory.absolute()  # a name without a slash would be a table's
    target, checkpoint = str(directory / "table"), str(directory / "checkpoint")
    land(spark, [topic], target, checkpoint, bootstrap_servers=kafka, available_now=True).awaitTermination()


def is_whole(spark: SparkSession, directory: Path, published: Published) -> bool:
    """Whether each packet stands in the table once; show those that are missing."""
    known_last = {(published.producer_id, published.epoch): published.last}
    with audit(spark.read.parquet(str(directory / "table")), known_last=known_last) as found:
        [totals] = found.totals.collect()
        print(f"{totals.expected:,} expected, {totals.missing:,} missing, {totals.repeated:,} repeated")
        if totals.missing:
            found.missing.show(truncate=False)
        return bool(totals.missing == totals.repeated == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description="audio streams, published, landed and audited")
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--kafka", default="localhost:9092")
    parser.add_argument("--topic", default="audio")
    parser.add_argument("--directory", type=Path, default=Path("audio"), help="of the ring, and of the table")
    given = parser.parse_args()
    asyncio.run(create_topic(given.kafka, given.topic))
    published = asyncio.run(publish(given.kafka, given.topic, given.directory / "wal", given.streams, given.seconds))
    packets = given.streams * given.seconds * PACKETS_A_SECOND
    print(f"{packets:,} packets accepted in {published.accepted_s:.1f} s, in Kafka after {published.delivered_s:.1f} s")
    if published.accepted_s > given.seconds + 1:
        print(f"too many streams for this machine: they are live for {given.seconds} s, try fewer")
    builder = SparkSession.builder.master("local[*]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    began = time.perf_counter()
    land_all(spark, given.kafka, given.topic, given.directory)
    landed = time.perf_counter()
    whole = is_whole(spark, given.directory, published)
    print(f"landed in {landed - began:.1f} s, audited in {time.perf_counter() - landed:.1f} s")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
