"""The records that the tests of landing publish, how they land them, and the expected table."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from aiorecover.spark import Landed, land
from tests.spark.buckets import stored
from tests.support.cluster import Cluster

__all__ = ["ROWS", "P", "Q", "Rows", "landing", "manifest", "once", "published", "rows_of", "shuffled"]

P, Q = "abcdefghij234", "zyxwvutsrq765"
ROWS = 500  # of a batch
Rows = list[tuple[int, str | None]]


def rows_of(sequences: Iterable[int]) -> Rows:
    """Return records of the first epoch of `P`, all for partition 0."""
    return [(0, f"{P}/1/{sequence}") for sequence in sequences]


def shuffled(seed: int) -> Rows:
    """1,200 records of two producers over three partitions, 60 of them repeated anywhere, and 40 of other people."""
    chance = random.Random(seed)
    identities: list[str | None] = [f"{P}/1/{sequence}" for sequence in range(1, 801)]
    identities += [f"{Q}/{2 + sequence // 300}/{sequence % 300 + 1}" for sequence in range(400)]
    rows: Rows = [(chance.randrange(3), identity) for identity in identities]
    rows += [(chance.randrange(3), identity) for _, identity in chance.sample(rows, 60)]
    rows += [(chance.randrange(3), None) for _ in range(40)]
    chance.shuffle(rows)
    return rows


async def published(
    cluster: Cluster, topic: str, rows: Rows, value: bytes = b"value", *, timestamp_ms: int | None = None
) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition, identity in rows:
            headers = [("aiorecover-id", identity.encode())] if identity else []
            await producer.send(topic, value, partition=partition, headers=headers, timestamp_ms=timestamp_ms)
        await producer.flush()


def manifest(producer_id: str, epoch: int, part: int = 0, **fields: Any) -> tuple[bytes, bytes]:
    """Return the key and the value of a manifest in an audit topic."""
    value = {"version": 1, "producer_id": producer_id, "epoch": epoch, "part": part, "time_ms": 1}
    value |= {"last": 0, "settled": 0, "sealed": False, **fields}
    return f"{producer_id}/{epoch}/{part}".encode(), json.dumps(value).encode()


def once(rows: Iterable[tuple[int, str | None]]) -> Counter[str | None]:
    wanted = Counter(identity for _, identity in rows)
    return Counter({identity: count if identity is None else 1 for identity, count in wanted.items()})


def landing(
    spark: SparkSession,
    kafka: Cluster,
    topic: str | Sequence[str],
    directory: Path,
    target: str | None = None,
    **options: Any,
) -> list[Landed]:
    """Land all that is there; by default in `table` in the directory."""
    told: list[Landed] = []
    query = land(
        spark,
        [topic] if isinstance(topic, str) else topic,
        target or directory / "table",
        stored(directory / "checkpoint"),
        bootstrap_servers=kafka.bootstrap_servers,
        available_now=True,
        **{"max_offsets_per_trigger": ROWS, "on_batch": told.append, **options},
    )
    query.awaitTermination()
    return told
