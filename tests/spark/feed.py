"""What the tests of landing publish, how they land it, and what has to come of it."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from pyspark.sql import SparkSession

from aiorecover.spark import Landed, land
from tests.support.cluster import Cluster

__all__ = ["ROWS", "P", "Q", "Rows", "land_in_child", "landing", "once", "published", "shuffled"]

P, Q = "abcdefghij234", "zyxwvutsrq765"
ROWS = 500  # of a batch
Rows = list[tuple[int, str | None]]


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


async def published(cluster: Cluster, topic: str, rows: Rows) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition, identity in rows:
            headers = [("aiorecover-id", identity.encode())] if identity else []
            await producer.send(topic, b"value", partition=partition, headers=headers)
        await producer.flush()


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
        directory / "checkpoint",
        bootstrap_servers=kafka.bootstrap_servers,
        available_now=True,
        **{"max_offsets_per_trigger": ROWS, "on_batch": told.append, **options},
    )
    query.awaitTermination()
    return told


def land_in_child(
    kafka: Cluster,
    topic: str,
    directory: Path,
    target: str | None = None,
    *,
    death: str | None,
    settings: dict[str, str] | None = None,
) -> list[str | None]:
    """Land in a process of its own, which is killed at `death` of `tests.spark.lander`; else, the ids in the table."""
    told = {
        "servers": kafka.bootstrap_servers,
        "topic": topic,
        "directory": str(directory),
        "target": target or str(directory / "table"),
        "rows": ROWS,
        "death": death,
        "settings": settings or {},
    }
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark.lander", json.dumps(told)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == (-signal.SIGKILL if death else 0), child.stderr[-2000:]
    ids: list[str | None] = [] if death else json.loads(child.stdout.splitlines()[-1])
    return ids
