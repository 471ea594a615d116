"""The topics of a sink, and what counts of them, as a plain consumer and Spark find it."""

import json
from collections import Counter
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from aiorecover.spark import read_topics, without_leftovers
from aiorecover.spark.sink_manifest import WRITE_HEADER
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory
from tests.support.oracle import Consumed, read_topic

__all__ = ["Numbers", "Topics", "number_of", "write_of"]

Numbers = Counter[int]


class Topics:
    """One for records, one for manifests."""

    def __init__(self, kafka: Cluster, topic: TopicFactory, **config: str) -> None:
        self.kafka = kafka
        self.records = topic(kafka, partitions=3, config={name.replace("_", "."): one for name, one in config.items()})
        self.manifests = topic(kafka, partitions=2)

    def write(self, rows: DataFrame, **options: str) -> None:
        self.writer(rows, **options).save()

    def writer(self, rows: DataFrame, *, mode: str = "append", **options: str) -> Any:
        return rows.write.format("aiorecover").options(**self.options(**options)).mode(mode)

    def options(self, **more: str) -> dict[str, str]:
        named = {"topic": self.records, "manifest_topic": self.manifests}
        return {"bootstrap_servers": self.kafka.bootstrap_servers, **named, **more}

    def consumed(self) -> list[Consumed]:
        return admin.run(read_topic(self.kafka.bootstrap_servers, self.records))

    def manifest_parts(self) -> list[dict[str, Any]]:
        parts = admin.run(read_topic(self.kafka.bootstrap_servers, self.manifests))
        assert {one.partition for one in parts} <= {0}
        return [json.loads(one.value or b"") for one in parts]

    def counted(self) -> Numbers:
        """The rows that count, as a reader in plain Python finds them: the first manifest of each write."""
        named: dict[str, set[str]] = {}
        for part in self.manifest_parts():
            named.setdefault(part["write"], {one["producer_id"] for one in part["attempts"]})
        return Counter(
            number_of(one)
            for one in self.consumed()
            if one.record_id and one.record_id.split("/")[0] in named.get(write_of(one), ())
        )

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        return read_topics(spark, [name], self.kafka.bootstrap_servers)

    def found_by_spark(self, spark: SparkSession) -> Numbers:
        records, manifests = self.read(spark, self.records), self.read(spark, self.manifests)
        counting = without_leftovers(records, manifests).selectExpr("cast(value as string)").collect()
        return Counter(int(row[0].split(" ")[0]) for row in counting)


def number_of(one: Consumed) -> int:
    assert one.value is not None
    return int(one.value.split(b" ")[0])


def write_of(one: Consumed) -> str:
    return dict(one.headers)[WRITE_HEADER].decode()  # type: ignore[union-attr]
