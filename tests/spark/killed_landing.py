"""A topic with repeats, landed while drivers or executors are killed again and again, or by two drivers at once.

pyarrow reads the table record by record: each record must be there once, with its own value. Then the audit of the
same table must agree.
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
from tests.spark.commands import audit_report
from tests.spark.lakes import Lake
from tests.spark.landers import Lander
from tests.spark.machines import make_spark_home
from tests.spark.mixed import PARTITIONS, Numbers, mixed, numbers_of, publish
from tests.spark.session import start_spark, stop_spark
from tests.spark.table import ID_COLUMNS, read_batches
from tests.support import admin
from tests.support.cluster import Cluster

__all__ = ["VICTIMS", "Contents", "Outcome", "run_landing"]

VICTIMS = DRIVERS, EXECUTORS, TWINS = "drivers", "executors", "twins"
REPEATS = 0.05
_AGAIN = 0.3  # of the kills hit the driver that does the batch again
_BOTH = 0.3  # of the kills of executors hit both: then all shuffled data is gone
_LAND_WITHIN_S = 3600.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class Contents:
    """The contents of a table, compared with the published records."""

    rows: int
    missing: list[int]
    repeated: int
    """Rows after the first one of their record."""
    wrong: int
    """Rows with an id that was never given, or with the value of another record."""

    @property
    def ok(self) -> bool:
        """Return whether each record is there once, and nothing else."""
        return not (self.missing or self.repeated or self.wrong)


@dataclass
class Outcome:
    """The result of a run."""

    records: int
    published: int
    kills: int = 0
    hits: int = 0
    """Kills in the middle of a batch."""
    contents: Contents | None = None
    totals: dict[str, int] = field(default_factory=dict)
    """The audit's totals."""
    batches_s: list[float] = field(default_factory=list)
    """The seconds of each batch, oldest first."""

    @property
    def ok(self) -> bool:
        """Return whether each record is there once, and the audit agrees."""
        expected = {"records": self.records, "expected": self.records, "found": self.records}
        expected |= {"without_id": 0, "missing": 0}
        return self.contents is not None and self.contents.ok and self.totals.items() >= expected.items()

    def __str__(self) -> str:
        contents = self.contents or Contents(0, [], 0, 0)
        third = max(1, len(self.batches_s) // 3)
        early, late = (statistics.median(part or [0.0]) for part in (self.batches_s[:third], self.batches_s[-third:]))
        return (
            f"records={self.records} published={self.published} kills={self.kills} in_a_batch={self.hits} "
            f"rows={contents.rows} missing={len(contents.missing)} repeated={contents.repeated} wrong={contents.wrong} "
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
    victims: str = DRIVERS,
    format: str = "parquet",  # noqa: A002 - Spark's word
    spark: SparkSession | None = None,
) -> Outcome:
    """Publish this many records, some of them twice, and land them in this many batches or more; return the outcome.

    The seed decides which records are repeated and how long a driver lives; the machine decides where in its work the
    kill hits it. ``victims`` is one of `VICTIMS`; ``twins`` are two drivers at once, with one checkpoint. ``spark``
    does the audit; None: a process of its own does.
    """
    assert kills < batches, "a driver that has landed everything is not killed"
    topic = f"landing-{os.urandom(4).hex()}"
    cluster.create_topic(topic, PARTITIONS)
    published = admin.run(publish(cluster.bootstrap_servers, topic, mixed(seed, records, REPEATS)))
    executors = make_spark_home(directory) if victims == EXECUTORS else None
    lander = Lander(cluster.bootstrap_servers, [topic], directory, published // batches, executors, format)
    outcome, chance = Outcome(records, published), random.Random(f"kills {seed}")
    land = {DRIVERS: _kill_drivers, EXECUTORS: _kill_executors, TWINS: _kill_twins}[victims]
    land(lander, outcome, chance, kills)
    outcome.batches_s = lander.batches_s()
    outcome.contents = _read_contents(Path(lander.target) if format == "parquet" else _export(lander), records)
    if spark is None:
        outcome.totals = audit_report(directory, table=lander.target)["totals"]
    else:
        with audit(Lake(spark, format, lander.target).rows()) as found:
            outcome.totals = found.totals.collect()[0].asDict()
    return outcome


def _kill_drivers(lander: Lander, outcome: Outcome, chance: random.Random, kills: int) -> None:
    """Land with one driver after another; some are killed anywhere in the batch that the driver before left."""
    start_s = 0.0  # until a new driver has done that batch and begun the next one
    again = False
    while outcome.kills < kills:
        before, batch = time.monotonic(), lander.last_begun() + 1
        with lander.start(available_now=True) as driver:
            if again:
                driver.wait_for_batch(batch, at_most_s=chance.uniform(0.0, start_s))
            else:
                driver.wait_for_batch(batch)
                start_s = time.monotonic() - before
                driver.run_for(chance.uniform(0.0, lander.batch_s()))
            outcome.hits += driver.kill()
        outcome.kills += 1
        again = chance.random() < _AGAIN
    with lander.start(available_now=True) as driver:
        driver.finish(_LAND_WITHIN_S)


def _kill_executors(lander: Lander, outcome: Outcome, chance: random.Random, kills: int) -> None:
    """Land with one driver; no batch is hit twice, since Spark gives up a task that has failed four times."""
    with lander.start(available_now=True) as driver:
        while outcome.kills < kills:
            driver.wait_for_batch(lander.last_begun() + 1)
            driver.run_for(chance.uniform(0.0, lander.batch_s()))
            outcome.hits += driver.kill_executors(chance, 2 if chance.random() < _BOTH else 1)
            outcome.kills += 1
        driver.finish(_LAND_WITHIN_S)


def _kill_twins(lander: Lander, outcome: Outcome, chance: random.Random, kills: int) -> None:
    """Land with two drivers at once, one of which may be refused at any time; kill both."""
    while outcome.kills < kills:
        begun = lander.last_begun()
        with lander.start(available_now=True) as one, lander.start(available_now=True) as other:
            while lander.last_begun() == begun and (one.is_alive or other.is_alive):
                one.run_for(_LOOK_S)
            one.run_for(chance.uniform(0.0, 2 * lander.batch_s()))
            outcome.hits += one.kill() | other.kill()
        outcome.kills += 1
    with lander.start(available_now=True) as driver:
        driver.finish(_LAND_WITHIN_S)


def _export(lander: Lander) -> Path:
    """Have Spark write the table's rows to Parquet; return the directory."""
    spark = start_spark(lander.directory, "export")
    try:
        directory = lander.directory / "export"
        Lake(spark, lander.format, lander.target).rows().write.parquet(str(directory / "batch_id=0"))
        return directory
    finally:
        stop_spark(spark)


def _read_contents(target: Path, records: int) -> Contents:
    """Read the files that readers see, batch by batch."""
    times = np.zeros(records, np.int32)
    rows = wrong = 0
    for table in read_batches(target, [*ID_COLUMNS, "value"]):
        numbers = numbers_of(
            table["producer_id"].to_numpy(zero_copy_only=False).astype(str),
            table["epoch"].to_numpy().astype(np.int64),
            table["sequence"].to_numpy().astype(np.int64),
        )
        in_values = np.array([int(value.partition(b".")[0]) for value in table["value"].to_pylist()], np.int64)
        right = (numbers == in_values) & (numbers >= 0) & (numbers < records)
        rows += len(numbers)
        wrong += int((~right).sum())
        times += np.bincount(numbers[right], minlength=records).astype(np.int32)
    missing: Numbers = np.flatnonzero(times == 0)
    return Contents(rows, missing.tolist(), int(np.maximum(times - 1, 0).sum()), wrong)
