"""Records and manifests for the tests: publish them, land them, and compute the expected table."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from aiorecover.spark import Landed, land
from tests.spark.buckets import storage_path
from tests.support.cluster import Cluster

__all__ = ["P", "Q", "Rows", "each_id_once", "land_all", "manifest", "publish", "rows_of", "shuffled_rows"]

P, Q = "abcdefghij234", "zyxwvutsrq765"
_BATCH_RECORDS = 500
Rows = list[tuple[int, str | None]]
"""(partition, record id); None: a record without an id."""


def rows_of(sequences: Iterable[int]) -> Rows:
    """Return records of the first epoch of `P`, all for partition 0."""
    return [(0, f"{P}/1/{sequence}") for sequence in sequences]


def shuffled_rows(seed: int) -> Rows:
    """Return 1,200 records of two producers over three partitions, 60 repeats of them, and 40 without an id."""
    chance = random.Random(seed)
    ids: list[str | None] = [f"{P}/1/{sequence}" for sequence in range(1, 801)]
    ids += [f"{Q}/{2 + sequence // 300}/{sequence % 300 + 1}" for sequence in range(400)]
    rows: Rows = [(chance.randrange(3), record_id) for record_id in ids]
    rows += [(chance.randrange(3), record_id) for _, record_id in chance.sample(rows, 60)]
    rows += [(chance.randrange(3), None) for _ in range(40)]
    chance.shuffle(rows)
    return rows


async def publish(
    cluster: Cluster, topic: str, rows: Rows, value: bytes = b"value", *, timestamp_ms: int | None = None
) -> None:
    """Publish the rows with aiokafka alone."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition, record_id in rows:
            headers = [("aiorecover-id", record_id.encode())] if record_id else []
            await producer.send(topic, value, partition=partition, headers=headers, timestamp_ms=timestamp_ms)
        await producer.flush()


def manifest(producer_id: str, epoch: int, part: int = 0, **fields: Any) -> tuple[bytes, bytes]:
    """Return the key and the value of a manifest in an audit topic."""
    value = {"version": 1, "producer_id": producer_id, "epoch": epoch, "part": part, "time_ms": 1}
    value |= {"last": 0, "settled": 0, "sealed": False, **fields}
    return f"{producer_id}/{epoch}/{part}".encode(), json.dumps(value).encode()


def each_id_once(rows: Iterable[tuple[int, str | None]]) -> Counter[str | None]:
    """Count each id of the rows once, and each record without an id."""
    counts = Counter(record_id for _, record_id in rows)
    return Counter({record_id: count if record_id is None else 1 for record_id, count in counts.items()})


def land_all(
    spark: SparkSession,
    kafka: Cluster,
    topic: str | Sequence[str],
    directory: Path,
    target: str | None = None,
    **options: Any,
) -> list[Landed]:
    """Land all records of the topics; return a report of each batch. The default target is ``directory / "table"``."""
    reports: list[Landed] = []
    query = land(
        spark,
        [topic] if isinstance(topic, str) else topic,
        target or directory / "table",
        storage_path(directory / "checkpoint"),
        bootstrap_servers=kafka.bootstrap_servers,
        available_now=True,
        **{"max_offsets_per_trigger": _BATCH_RECORDS, "on_batch": reports.append, **options},
    )
    query.awaitTermination()
    return reports
