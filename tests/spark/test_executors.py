"""What runs here with executors in processes of their own, as on a cluster."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from tests.spark.feed import P, once, published, shuffled
from tests.spark.sink_topics import Topics
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

NOBODY = "127.0.0.1:1"
IN_RING = 2_000
WRITTEN = 300
LEFT_OUT = 400  # sequence
WITHIN_S = 500  # 40 on two cores that do much else


def on_executors(**told: Any) -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, "-m", "tests.spark.executors", json.dumps(told)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-4000:]
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


async def left_behind(wal_dir: Path) -> list[str]:
    """A ring with records that wait; their ids."""
    async with RecoverableProducer(wal_dir, bootstrap_servers=NOBODY, stop_timeout_ms=0) as producer:
        return [(await producer.publish("orders", str(number))).record_id for number in range(IN_RING)]


@pytest.mark.timeout(600)
def test_executors_of_their_own_do_what_the_driver_does_with_threads_and_they_may_die(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    feed, sink = topic(kafka, partitions=3), Topics(kafka, topic)
    rows = [row for row in shuffled(1) if row[1] != f"{P}/1/{LEFT_OUT}"]
    admin.run(published(kafka, feed, rows))
    waiting = asyncio.run(left_behind(tmp_path / "ring"))
    found = on_executors(
        servers=kafka.bootstrap_servers,
        feed=feed,
        ring=str(tmp_path / "ring"),
        sink=sink.options(),
        rows=WRITTEN,
        directory=str(tmp_path / "spark"),
    )
    ids = once(rows)
    assert landed_ids(tmp_path / "spark" / "table") == ids
    assert found["audit"]["missing"] == [[P, 1, LEFT_OUT, LEFT_OUT]]
    repeated = sum(1 for _, identity in rows if identity) - (len(ids) - 1)
    totals = {"records": len(rows), "without_id": ids[None], "found": len(ids) - 1, "repeated": repeated}
    assert found["audit"]["totals"].items() >= totals.items()
    assert found["pythons_by_then"] == [], "landing and the audit were to need no Python there"
    assert Counter(found["ring"]) == Counter(waiting)
    assert found["pythons"], "the ring was to be read in the executors"
    assert {"reader", "executor"} <= {path.name for path in (tmp_path / "spark").iterdir()}, "two were to be killed"
    sent = [one.record_id for one in sink.consumed()]
    assert len(sent) > WRITTEN, "the executor was to be killed with rows in Kafka"
    assert len(set(sent)) == len(sent), "each attempt was to have ids of its own"
    assert sink.counted() == Counter(range(WRITTEN))
