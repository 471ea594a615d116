"""A topic with repeats, landed while drivers or executors are killed again and again, and what is in the table then.

The table is read with pyarrow, record by record: each has to be there once, with its own value. Then the audit of the
same table has to say the same. A driver that lives through it has also to tell how many repeats it has left out.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tests.spark.audited import audited
from tests.spark.driver import Driver, Lander
from tests.spark.exported import exported
from tests.spark.machines import Machines
from tests.spark.mixed import PARTITIONS, Numbers, mixed, numbers_of, publish
from tests.spark.table import ID_COLUMNS, batches
from tests.support import admin
from tests.support.cluster import Cluster

__all__ = ["DRIVERS", "EXECUTORS", "REPEATS", "Found", "Outcome", "found_in", "land_on_machines", "run_landing"]

DRIVERS, EXECUTORS = "drivers", "executors"
REPEATS = 0.05
_AGAIN = 0.3  # of the kills hit whoever does the batch again that the one before was killed in, or comes up
_BOTH = 0.3  # of the kills of executors hit all there are: then all that was shuffled is gone
_AS_IT_WRITES = 0.5  # of these kills are in the short moment in which files are written
_START_S = 10.0  # Java comes up
_LAND_WITHIN_S = 3600.0


@dataclass(frozen=True)
class Found:
    """What stands in a table, held against what should."""

    rows: int
    missing: list[int]
    repeated: int
    """Rows beyond the first of their record."""
    strange: int
    """Rows with an id that nobody has given, or with the value of another record."""

    @property
    def ok(self) -> bool:
        """Each record once, and nothing else."""
        return not (self.missing or self.repeated or self.strange)


@dataclass
class Outcome:
    """What came of it."""

    records: int
    published: int
    kills: int = 0
    hits: int = 0
    """Kills in the middle of a batch."""
    found: Found | None = None
    totals: dict[str, int] = field(default_factory=dict)
    """Of the audit."""
    repeats: int | None = None
    """That were left out, as the driver has told; None: it died, and could not tell of all."""
    states: dict[int, int] = field(default_factory=dict)
    """By batch, bytes of the state of ids."""

    @property
    def ok(self) -> bool:
        """Each record once, and the audit and the driver agree."""
        told = self.repeats is None or self.repeats == self.published - self.records
        return self.found is not None and self.found.ok and self._audit_agrees and told

    @property
    def _audit_agrees(self) -> bool:
        whole = {"records": self.records, "expected": self.records, "found": self.records, "without_id": 0}
        wanted = {**whole, "missing": 0, "repeated": 0}
        return {name: self.totals.get(name) for name in wanted} == wanted

    @property
    def growth(self) -> float:
        """The largest state of the last third of the batches, in those of the first third, without the very first."""
        third = max(1, len(self.states) // 3)
        sizes = [self.states[batch] for batch in sorted(self.states)]
        return max(sizes[-third:]) / max(sizes[1 : third + 1], default=1)

    def __str__(self) -> str:
        found = self.found or Found(0, [], 0, 0)
        return (
            f"records={self.records} published={self.published} kills={self.kills} in_a_batch={self.hits} "
            f"rows={found.rows} missing={len(found.missing)} repeated={found.repeated} strange={found.strange} "
            f"left_out={self.repeats} audit={'agrees' if self._audit_agrees else self.totals} "
            f"batches={len(self.states)} state_bytes={max(self.states.values(), default=0)} "
            f"state_growth={self.growth:.2f}"
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
    table: str | None = None,
) -> Outcome:
    """Publish so many records, some of them twice, land them in so many batches at least, and judge.

    ``who``: is killed. ``table``: of the tests' catalogue of Iceberg; none: a directory. What the seed decides is
    repeated with it; where in its work one is hit is up to the machine.
    """
    assert kills < batches, "who has landed everything is not killed"
    topic = f"landing-{os.urandom(4).hex()}"
    cluster.create_topic(topic, PARTITIONS)
    published = admin.run(publish(cluster.bootstrap_servers, topic, mixed(seed, records, REPEATS)))
    lander = Lander(
        cluster.bootstrap_servers,
        [topic],
        directory,
        batch_records=published // batches,
        log=directory / "drivers.log",
        table=table,
    )
    outcome = Outcome(records, published)

    def look() -> None:
        outcome.states.setdefault(lander.done(), lander.state_bytes())

    rng = random.Random(f"kills {seed}")
    if who == EXECUTORS:
        machines = Machines(directory)
        machines.make()
        land_on_machines(replace(lander, machines=machines), outcome, rng, kills, look)
    else:
        _land(lander, outcome, rng, kills, look)
    outcome.states.pop(-1, None)
    outcome.found = found_in(lander.target if table is None else exported(directory, table), records)
    outcome.totals = audited(directory, table=table or lander.target)["totals"]
    return outcome


def _land(lander: Lander, outcome: Outcome, rng: random.Random, kills: int, look: Callable[[], object]) -> None:
    target = 0
    while outcome.kills < kills:
        with lander.start(available_now=True) as driver:
            outcome.hits += _killed(driver, lander, target, rng)
        outcome.kills += 1
        if rng.random() >= _AGAIN:
            target += 1
    with lander.start(available_now=True) as driver:
        driver.finish(_LAND_WITHIN_S, look)


def land_on_machines(
    lander: Lander, outcome: Outcome, rng: random.Random, kills: int, look: Callable[[], object] = lambda: None
) -> None:
    """One driver lives through it; no batch is hit more than twice: Spark gives up what has failed four times."""
    target, again = 0, False
    with lander.start(available_now=True) as driver:
        while outcome.kills < kills:
            outcome.hits += _executors_killed(driver, lander, target, rng, look)
            outcome.kills += 1
            again = not again and rng.random() < _AGAIN
            target = max(target, lander.begun()) + (not again)
        driver.finish(_LAND_WITHIN_S, look)
    outcome.repeats = lander.repeats()


def _executors_killed(
    driver: Driver, lander: Lander, target: int, rng: random.Random, look: Callable[[], object]
) -> bool:
    """Kill one or both in this batch, or in the next one."""
    driver.until(lambda: lander.begun() >= target, look)
    if rng.random() < _AS_IT_WRITES:
        driver.until(lambda: lander.writes() or lander.done() >= target, look)
    else:
        driver.rest(rng.uniform(0.0, lander.batch_s()))
    return driver.kill_executors(rng, 2 if rng.random() < _BOTH else 1)


def _killed(driver: Driver, lander: Lander, target: int, rng: random.Random) -> bool:
    """Kill it in this batch, or the one before, which it has to do again."""
    came_up = lander.begun() < target
    driver.until(lambda: lander.begun() >= target)
    longest = lander.batch_s() + (0.0 if came_up else _START_S)
    driver.rest(rng.uniform(0.0, longest))
    return driver.kill()


# -- what came of it ---------------------------------------------------------------------------------------------------


def found_in(target: Path, records: int) -> Found:
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
