"""Rows written through the sink while executors are killed again and again, landed while executors are killed, too.

A plain consumer looks whether each row counts once by its manifest, and whether every attempt has had ids of its own,
also those that were killed. Then the table has to have each row once, and the audit has to find nothing else.
"""

import json
import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.spark.audited import audited
from tests.spark.driver import Driver, Lander
from tests.spark.killed_landing import Outcome as Landed
from tests.spark.killed_landing import land_on_machines
from tests.spark.machines import Machines
from tests.spark.sink_job import SinkJob
from tests.spark.sink_topics import number_of, write_of
from tests.spark.table import batches
from tests.support import admin
from tests.support.cluster import Cluster
from tests.support.oracle import Consumed, read_topic

__all__ = ["Outcome", "run_sink"]

_PARTITIONS = 6
_WRITE_S = 4.0  # that one is thought to take, if nobody is killed
_BOTH = 0.3  # of the kills hit both executors
_WRITE_WITHIN_S = 1800.0
_READ_WITHIN_S = 300.0
_BATCHES_PER_KILL = 3  # in which it is landed: a kill may be late for the batch that it was meant for


@dataclass
class Outcome:
    """What came of it."""

    rows: int
    kills: int
    hits: int
    """Kills in the middle of a write."""
    sent: int
    """Records in Kafka."""
    ids: int
    """How many ids these have."""
    counting: Counter[int]
    """How often each row stands there in an attempt that counts."""
    landed: Counter[int]
    """How often it stands in the table."""
    landing_kills: int
    totals: dict[str, int]
    """Of the audit of the topics."""

    @property
    def ok(self) -> bool:
        """Each row once, by whomever it is looked for, and no id twice."""
        wanted = Counter(range(self.rows))
        return self.ids == self.sent and wanted == self.counting == self.landed and self._audit_agrees

    @property
    def _audit_agrees(self) -> bool:
        wanted = {"records": self.rows, "found": self.rows, "expected": self.rows, "missing": 0, "repeated": 0}
        return self.totals.items() >= wanted.items()

    def __str__(self) -> str:
        return (
            f"rows={self.rows} kills={self.kills} in_a_write={self.hits} sent={self.sent} ids={self.ids} "
            f"leftovers={self.sent - self.counting.total()} counting={self.counting.total()} "
            f"landing_kills={self.landing_kills} landed={self.landed.total()} "
            f"audit={'agrees' if self._audit_agrees else self.totals}"
        )


def run_sink(
    cluster: Cluster, directory: Path, *, seed: int, rows: int, kills: int, writes: int, landing_kills: int
) -> Outcome:
    """Write so many rows in so many writes while executors are killed so often, land them, likewise, and judge."""
    topic, manifests = (f"{name}-{os.urandom(4).hex()}" for name in ("sink", "manifests"))
    cluster.create_topic(topic, _PARTITIONS)
    cluster.create_topic(manifests, 1)
    machines = Machines(directory)
    machines.make()
    rings = directory / "rings"
    rings.mkdir()
    options = {"bootstrap_servers": cluster.bootstrap_servers, "topic": topic, "manifest_topic": manifests}
    job = SinkJob({**options, "wal_dir": str(rings)}, directory, machines, -(-rows // writes), writes)
    rng = random.Random(f"executors {seed}")
    hits = _write(job, rng, kills)
    records = admin.run(read_topic(cluster.bootstrap_servers, topic, timeout_s=_READ_WITHIN_S))
    lander = Lander(
        cluster.bootstrap_servers,
        [topic],
        directory,
        batch_records=len(records) // (landing_kills * _BATCHES_PER_KILL),
        log=directory / "drivers.log",
        machines=machines,
        sink_manifests=manifests,
    )
    landing = Landed(job.rows * writes, len(records))
    land_on_machines(lander, landing, rng, landing_kills)
    found = audited(directory, bootstrap_servers=cluster.bootstrap_servers, topics=[topic], sink_manifests=manifests)
    return Outcome(
        rows=job.rows * writes,
        kills=kills,
        hits=hits,
        sent=len(records),
        ids=len({one.record_id for one in records}),
        counting=_counting(records, admin.run(read_topic(cluster.bootstrap_servers, manifests))),
        landed=_landed(lander.target),
        landing_kills=landing.kills,
        totals=found["totals"],
    )


def _write(job: SinkJob, rng: random.Random, kills: int) -> int:
    """How many of the kills were in the middle of a write; no two are meant for the same one."""
    hits = 0
    with job.start() as driver:
        for number in sorted(rng.sample(range(job.writes), kills)):
            hits += _killed(driver, job, number, rng)
        driver.finish(_WRITE_WITHIN_S)
    return hits


def _killed(driver: Driver, job: SinkJob, number: int, rng: random.Random) -> bool:
    driver.until(lambda: job.begun() >= number)
    driver.rest(rng.uniform(0.0, _WRITE_S))
    return driver.kill_executors(rng, 2 if rng.random() < _BOTH else 1)


def _counting(records: list[Consumed], manifests: list[Consumed]) -> Counter[int]:
    """The rows of the attempts that the first manifest of their write names."""
    named: dict[str, set[str]] = {}
    for part in (json.loads(one.value or b"") for one in manifests):
        named.setdefault(part["write"], {one["producer_id"] for one in part["attempts"]})
    return Counter(
        number_of(one)
        for one in records
        if one.record_id and one.record_id.split("/")[0] in named.get(write_of(one), ())
    )


def _landed(target: Path) -> Counter[int]:
    return Counter(int(value) for table in batches(target, ["value"]) for value in table["value"].to_pylist())
