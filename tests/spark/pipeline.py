"""From `publish` to the table, and everything on the way is killed: workers, brokers, and the drivers of Spark.

Workers come and go over one ``wal_dir`` (`tests.crash.workers`) while brokers fail and drivers that land their topics
die in the middle of their batches. Then the last workers deliver what is left, the last driver lands it, and three who
know nothing of one another have to agree: a plain consumer that reads the topics, pyarrow, which reads the table, and
the audit, which is told by the producers' own manifests what they had accepted. At last a record is taken out of the
table, and the audit of it has to name that one.
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.crash.workers import Fleet
from tests.crash.workers import Outcome as Served
from tests.spark.audited import audited
from tests.spark.driver import Lander
from tests.spark.table import ID_COLUMNS, landed_ids
from tests.support import admin
from tests.support.cluster import Cluster
from tests.support.oracle import read_topic

__all__ = ["Outcome", "run_pipeline"]

_BATCH_RECORDS = 20_000
_MANIFESTS_PARTITIONS = 1
_LONGEST_REST_S = 3.0  # of a driver in the middle of a batch
_LAND_WITHIN_S = 900.0
_READ_WITHIN_S = 300.0


@dataclass
class Outcome:
    """What came of it."""

    served: Served
    kills: int
    """Of drivers."""
    hits: int
    """Of these, in the middle of a batch."""
    consumed: int
    """Records in Kafka."""
    lacking: list[str]
    """Ids that a consumer finds and the table does not have."""
    surplus: list[str]
    """Ids that the table has more often than a consumer."""
    audit: dict[str, Any]
    """Of topics and table, with the producers' manifests."""
    left_out: str
    """Was taken out of the table."""
    named: list[str] = field(default_factory=list)
    """What the audit of the table names then."""

    @property
    def ok(self) -> bool:
        """Nothing is missing anywhere, all agree, and what was left out is named."""
        return (
            self.served.verdict.ok
            and not (self.lacking or self.surplus)
            and self._audit == {"missing": 0, "repeated": 0, "absent": 0, "found": self.consumed}
            and self.named == [self.left_out]
        )

    @property
    def _audit(self) -> dict[str, int]:
        totals = self.audit["totals"]
        absent = sum(row["count"] for row in self.audit["compared"]["absent"])
        return {name: totals[name] for name in ("missing", "repeated", "found")} | {"absent": absent}

    def __str__(self) -> str:
        return (
            f"{self.served} driver_kills={self.kills} in_a_batch={self.hits} consumed={self.consumed} "
            f"table_lacks={len(self.lacking)} table_has_more={len(self.surplus)} audit={self._audit} "
            f"left_out={self.left_out} named={self.named}"
        )


def run_pipeline(
    cluster: Cluster,
    directory: Path,
    *,
    seed: int,
    rounds: int,
    kills: int,
    meanwhile: AbstractContextManager[Any] | None = None,
    workers: int = 4,
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Start and kill workers in at least so many rounds, and as long as it takes to kill so many drivers; judge.

    ``meanwhile`` is entered for that, and left before the rest is delivered: what fails of the brokers.
    """
    manifests = f"manifests-{os.urandom(4).hex()}"
    cluster.create_topic(manifests, _MANIFESTS_PARTITIONS)
    fleet = Fleet(cluster, seed, directory, workers, audit_topic=manifests)
    lander = Lander(
        cluster.bootstrap_servers, fleet.topics, directory / "lake", _BATCH_RECORDS, directory / "drivers.log"
    )
    drivers = _Drivers(lander, random.Random(f"drivers {seed}"), kills)
    try:
        with meanwhile or nullcontext(), drivers:
            number = 0
            while number < rounds or drivers.going_on:
                number += 1
                report(f"seed={seed} round={number} driver_kills={drivers.kills} {fleet.change()}")
        served = fleet.end()
    finally:
        fleet.kill_all()
    with lander.start(available_now=True) as driver:
        driver.finish(_LAND_WITHIN_S)
    return _judged(cluster, fleet.topics, manifests, lander, served, drivers, seed)


class _Drivers:
    """Drivers that land what comes, and are killed, so many of them, one after the other, in a thread."""

    def __init__(self, lander: Lander, rng: random.Random, wanted: int) -> None:
        self.kills = 0
        self.hits = 0
        self._lander = lander
        self._rng = rng
        self._wanted = wanted
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="drivers", daemon=True)

    @property
    def going_on(self) -> bool:
        """Not all of them were killed yet."""
        return self._thread.is_alive()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._over.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while self.kills < self._wanted and not self._over.is_set():
                self._one()
        except BaseException as error:  # noqa: BLE001 - handed on by __exit__
            self._failure = error

    def _one(self) -> None:
        before = self._lander.begun()
        with self._lander.start(available_now=False) as driver:
            driver.until(lambda: self._lander.begun() > before or self._over.is_set())
            driver.rest(self._rng.uniform(0.0, min(self._lander.batch_s(), _LONGEST_REST_S)))
            self.hits += driver.kill()
            self.kills += 1


# -- the judgement -----------------------------------------------------------------------------------------------------


def _judged(
    cluster: Cluster, topics: list[str], manifests: str, lander: Lander, served: Served, drivers: _Drivers, seed: int
) -> Outcome:
    consumed = _consumed(cluster, topics)
    landed = landed_ids(lander.target)
    servers = cluster.bootstrap_servers
    audit = audited(
        lander.directory, table=lander.target, bootstrap_servers=servers, topics=topics, manifests=manifests
    )
    left_out = _leave_out(lander.target, random.Random(f"left out {seed}"))
    found = audited(lander.directory, table=lander.target, bootstrap_servers=servers, manifests=manifests)
    return Outcome(
        served=served,
        kills=drivers.kills,
        hits=drivers.hits,
        consumed=consumed.total(),
        lacking=sorted(map(str, (consumed - landed).elements())),
        surplus=sorted(map(str, (landed - consumed).elements())),
        audit=audit,
        left_out=left_out,
        named=[_named(**row) for row in found["missing"]],
    )


def _named(producer_id: str, epoch: int, first: int, last: int, count: int) -> str:
    """A range that the audit names, as the id where it is a single one."""
    return f"{producer_id}/{epoch}/{first}{'' if count == 1 else f' to {last}'}"


def _consumed(cluster: Cluster, topics: list[str]) -> Counter[str | None]:
    return Counter(
        record.record_id
        for topic in topics
        for record in admin.run(read_topic(cluster.bootstrap_servers, topic, timeout_s=_READ_WITHIN_S))
    )


def _leave_out(target: Path, rng: random.Random) -> str:
    """Take one record out of the table, from the file that has it; its id."""
    files = [file for file in sorted(target.glob("batch_id=*/*.parquet")) if pq.read_metadata(file).num_rows]
    file = rng.choice(files)
    table = pq.read_table(file, partitioning=None)
    place = rng.randrange(table.num_rows)
    row = table.slice(place, 1).select(ID_COLUMNS).to_pylist()[0]
    keep = [number for number in range(table.num_rows) if number != place]
    for checksum in file.parent.glob(f".{file.name}.crc"):  # of the file as it was: Spark would refuse this one
        checksum.unlink()
    pq.write_table(table.take(keep), file)
    return "{producer_id}/{epoch}/{sequence}".format(**row)
