"""A sink whose attempts are made without Spark, so that a test says which of them count."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from aiorecover.spark import Landed
from aiorecover.spark.attempt import make_attempt
from aiorecover.spark.sink import publish_manifest
from aiorecover.spark.sink_manifest import Attempt, Write
from aiorecover.spark.sink_plan import Plan
from tests.spark.feed import landing
from tests.support.cluster import Cluster, TopicFactory

__all__ = ["Sink"]


class Sink:
    """It has topics of its own."""

    def __init__(
        self, kafka: Cluster, topic: TopicFactory, *, config: Mapping[str, str] | None = None, dead_letters: int = 0
    ) -> None:
        """``config``: of the records' topic."""
        self.kafka = kafka
        self.records, self.manifests = topic(kafka, partitions=3, config=config), topic(kafka, partitions=1)
        self.plan = Plan(
            bootstrap_servers=kafka.bootstrap_servers,
            topic=self.records,
            manifest_topic=self.manifests,
            wal_dir=None,
            job_id=None,
            timeout_ms=60_000,
            max_dead_letters=dead_letters,
            columns=("value",),
            producer={},
            ssl_files={},
        )

    def attempt(self, batch: int, numbers: Iterable[object], *, task: int = 0) -> Attempt:
        rows = pa.record_batch({"value": [str(number) for number in numbers]})
        return make_attempt(self.plan, Write("job", batch), iter([rows]), partition=task, attempt=0)

    def decide(self, *attempts: Attempt) -> None:
        publish_manifest(self.plan, attempts[0].write, attempts)

    async def publish_plainly(self, number: int) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.kafka.bootstrap_servers) as producer:
            await producer.send_and_wait(self.records, str(number).encode())

    def land(self, spark: SparkSession, directory: Path) -> list[Landed]:
        return landing(spark, self.kafka, self.records, directory, sink_manifests=self.manifests)
