"""A topic with repeats, landed while drivers or executors are killed again and again, or by two drivers at once.

The table is read with pyarrow, record by record: each has to be there once, with its own value. Then the audit of the
same table has to say the same.
"""

import os
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from aiorecover.spark import audit
from tests.spark.commands import audited
from tests.spark.lakes import Lake
from tests.spark.landers import Lander
from tests.spark.machines import make_spark_home
from tests.spark.mixed import PARTITIONS, Numbers, mixed, numbers_of, publish
from tests.spark.started import ended, started
from tests.spark.table import ID_COLUMNS, batches
from tests.support import admin
from tests.support.cluster import Cluster

__all__ = ["WHO", "Found", "Outcome", "run_landing"]

WHO = DRIVERS, EXECUTORS, TWINS = "drivers", "executors", "twins"
REPEATS = 0.05
_AGAIN = 0.3  # of the kills hit the driver that does the batch again
_BOTH = 0.3  # of the kills of executors hit all there are: then all that was shuffled is gone
_LAND_WITHIN_S = 3600.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class Found:
    """The contents of a table, compared with what was published."""

    rows: int
    missing: list[int]
    repeated: int
    """Rows beyond the first of their record."""
    strange: int
    """Rows with an id that was never given, or with the value of another record."""

    @property
    def ok(self) -> bool:
        """Each record once, and nothing else."""
        return not (self.missing or self.repeated or self.strange)


@dataclass
class Outcome:
    """The result of a run."""

    records: int
    published: int
    kills: int = 0
    hits: int = 0
    """Kills in the middle of a batch."""
    found: Found | None = None
    totals: dict[str, int] = field(default_factory=dict)
    """Of the audit."""
    batches_s: list[float] = field(default_factory=list)
    """How long each batch took, oldest first."""

    @property
    def ok(self) -> bool:
        """Each record once, and the audit agrees."""
        wanted = {"records": self.records, "expected": self.records, "found": self.records, "without_id": 0}
        return self.found is not None and self.found.ok and self.totals.items() >= (wanted | {"missing": 0}).items()

    def __str__(self) -> str:
        found = self.found or Found(0, [], 0, 0)
        third = max(1, len(self.batches_s) // 3)
        early, late = (statistics.median(part or [0.0]) for part in (self.batches_s[:third], self.batches_s[-third:]))
        return (
            f"records={self.records} published={self.published} kills={self.kills} in_a_batch={self.hits} "
            f"rows={found.rows} missing={len(found.missing)} repeated={found.repeated} strange={found.strange} "
            f"audit={self.totals} batches={len(self.batches_s)} first_third_s={early:.1f} last_third_s={late:.1f}"
        )


def run_landing(
    cluster: Cluster,
    directory: Path,
    *,
    seed: int,
    records: int,
    kills: int,
    batches: int,
    who: str = DRIVERS,
    format: str = "parquet",  # noqa: A002 - Spark's word
    spark: SparkSession | None = None,
) -> Outcome:
    """Publish so many records, some of them twice, land them in so many batches at least, and judge.

    ``who``: is killed; ``twins`` are two drivers at once, with one checkpoint. The seed decides what is published and
    how long a driver lives; where in its work it is hit is up to the machine. ``spark``: audits; None: a process does.
    """
    assert kills < batches, "a driver that has landed everything is not killed"
    topic = f"landing-{os.urandom(4).hex()}"
    cluster.create_topic(topic, PARTITIONS)
    published = admin.run(publish(cluster.bootstrap_servers, topic, mixed(seed, records, REPEATS)))
    home = make_spark_home(directory) if who == EXECUTORS else None
    lander = Lander(cluster.bootstrap_servers, [topic], directory, published // batches, home, format)
    outcome, chance = Outcome(records, published), random.Random(f"kills {seed}")
    {DRIVERS: _land, EXECUTORS: _land_on_machines, TWINS: _land_by_twins}[who](lander, outcome, chance, kills)
    outcome.batches_s = lander.batches_s()
    outcome.found = _found_in(Path(lander.target) if format == "parquet" else _exported(lander), records)
    if spark is None:
        outcome.totals = audited(directory, table=lander.target)["totals"]
    else:
        with audit(Lake(spark, format, lander.target).rows()) as found_by_audit:
            outcome.totals = found_by_audit.totals.collect()[0].asDict()
    return outcome


def _land(lander: Lander, outcome: Outcome, chance: random.Random, kills: int) -> None:
    start_s = 0.0  # and finish what was left: a driver that does a batch again is hit anywhere in this
    again = False
    while outcome.kills < kills:
        before, target = time.monotonic(), lander.begun() + 1
        with lander.start(available_now=True) as driver:
            if again:
                driver.until_begun(target, at_most_s=chance.uniform(0.0, start_s))
            else:
                driver.until_begun(target)
                start_s = time.monotonic() - before
                driver.rest(chance.uniform(0.0, lander.batch_s()))
            outcome.hits += driver.kill()
        outcome.kills += 1
        again = chance.random() < _AGAIN
    with lander.start(available_now=True) as driver:
        driver.finish(_LAND_WITHIN_S)


def _land_on_machines(lander: Lander, outcome: Outcome, chance: random.Random, kills: int) -> None:
    """One driver lives through it; no batch is hit twice, since Spark gives up what has failed four times."""
    with lander.start(available_now=True) as driver:
        while outcome.kills < kills:
            driver.until_begun(lander.begun() + 1)
            driver.rest(chance.uniform(0.0, lander.batch_s()))
            outcome.hits += driver.kill_executors(chance, 2 if chance.random() < _BOTH else 1)
            outcome.kills += 1
        driver.finish(_LAND_WITHIN_S)


def _land_by_twins(lander: Lander, outcome: Outcome, chance: random.Random, kills: int) -> None:
    """Both are killed as they work; whether one of them is refused, and when, is up to them."""
    while outcome.kills < kills:
        begun = lander.begun()
        with lander.start(available_now=True) as one, lander.start(available_now=True) as other:
            while lander.begun() == begun and (one.is_alive or other.is_alive):
                one.rest(_LOOK_S)
            one.rest(chance.uniform(0.0, 2 * lander.batch_s()))
            outcome.hits += one.kill() | other.kill()
        outcome.kills += 1
    with lander.start(available_now=True) as driver:
        driver.finish(_LAND_WITHIN_S)


def _exported(lander: Lander) -> Path:
    """The rows of a table, as Spark reads them, in Parquet."""
    spark = started(lander.directory, "export")
    try:
        place = lander.directory / "export"
        Lake(spark, lander.format, lander.target).rows().write.parquet(str(place / "batch_id=0"))
        return place
    finally:
        ended(spark)


def _found_in(target: Path, records: int) -> Found:
    """Read the files that a reader is to see, batch by batch."""
    times = np.zeros(records, np.int32)
    rows = strange = 0
    for table in batches(target, [*ID_COLUMNS, "value"]):
        numbers = numbers_of(
            table["producer_id"].to_numpy(zero_copy_only=False).astype(str),
            table["epoch"].to_numpy().astype(np.int64),
            table["sequence"].to_numpy().astype(np.int64),
        )
        told = np.array([int(value.partition(b".")[0]) for value in table["value"].to_pylist()], np.int64)
        sound = (numbers == told) & (numbers >= 0) & (numbers < records)
        rows += len(numbers)
        strange += int((~sound).sum())
        times += np.bincount(numbers[sound], minlength=records).astype(np.int32)
    missing: Numbers = np.flatnonzero(times == 0)
    return Found(rows, missing.tolist(), int(np.maximum(times - 1, 0).sum()), strange)
