"""From `publish` to the table, and everything on the way is killed: producers, brokers, and the drivers of Spark.

Processes publish through one directory and are killed, beside brokers that are killed and frozen, while drivers that
land their topic die in the middle of their batches. Then the rest is delivered and landed, and three that know nothing
of one another have to agree: a plain consumer that reads the topic, pyarrow, which reads the table, and the audit.
"""

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.kafka.kills import kill_cycles
from tests.spark.commands import audited
from tests.spark.landers import Lander
from tests.spark.table import landed_ids
from tests.support.cluster import Cluster
from tests.support.oracle import Verdict, read_topic

__all__ = ["Outcome", "run_pipeline"]

_BATCH_RECORDS = 20_000
_LONGEST_REST_S = 3.0  # of a driver in the middle of a batch
_LAND_WITHIN_S = 900.0


@dataclass
class Outcome:
    """The result of a run."""

    verdict: Verdict
    kills: int
    """Of drivers."""
    hits: int
    """Of these, in the middle of a batch."""
    consumed: int
    """Records in Kafka."""
    lacking: Counter[str | None]
    """Ids that a consumer finds and the table does not have."""
    surplus: Counter[str | None]
    """Ids that the table has more often than a consumer."""
    audit: dict[str, Any]
    """Of topic and table."""

    @property
    def ok(self) -> bool:
        """Nothing is missing anywhere, and all agree."""
        totals, compared = self.audit["totals"], self.audit["compared"]["totals"]
        found = totals["missing"], totals["repeated"], totals["found"], compared["absent"]
        return self.verdict.ok and not (self.lacking or self.surplus) and found == (0, 0, self.consumed, 0)

    def __str__(self) -> str:
        return (
            f"{self.verdict} driver_kills={self.kills} in_a_batch={self.hits} consumed={self.consumed} "
            f"table_lacks={self.lacking.total()} table_has_more={self.surplus.total()} audit={self.audit['totals']}"
        )


def run_pipeline(
    cluster: Cluster, directory: Path, *, seed: int, cycles: int, report: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Kill so many producers, and drivers meanwhile; judge."""
    topic, servers = f"pipeline-{os.urandom(4).hex()}", cluster.bootstrap_servers
    cluster.create_topic(topic, 6)
    lander = Lander(servers, [topic], directory / "lake", _BATCH_RECORDS)
    (directory / "producers").mkdir()
    with _Drivers(lander, random.Random(f"drivers {seed}"), report) as drivers:
        verdict = asyncio.run(kill_cycles(cluster, topic, directory / "producers", cycles=cycles, seed=seed, harm=True))
    with lander.start(available_now=True) as driver:
        driver.finish(_LAND_WITHIN_S)
    consumed = Counter(record.record_id for record in asyncio.run(read_topic(servers, topic)))
    landed = landed_ids(Path(lander.target))
    audit = audited(lander.directory, table=lander.target, bootstrap_servers=servers, topics=[topic])
    lacking, surplus = consumed - landed, landed - consumed
    return Outcome(verdict, drivers.kills, drivers.hits, consumed.total(), lacking, surplus, audit)


class _Drivers:
    """Drivers that land what comes, and are killed one after the other, in a thread."""

    def __init__(self, lander: Lander, chance: random.Random, report: Callable[[str], None]) -> None:
        self.kills = self.hits = 0
        self._lander, self._chance, self._report = lander, chance, report
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="drivers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None and kind is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._one()
        except BaseException as error:  # noqa: BLE001 - handed on by __exit__
            self._failure = error

    def _one(self) -> None:
        before = self._lander.begun()
        with self._lander.start(available_now=False) as driver:
            driver.until(lambda: self._lander.begun() > before or self._over.is_set())
            driver.rest(self._chance.uniform(0.0, min(self._lander.batch_s(), _LONGEST_REST_S)))
            self.hits += driver.kill()
        self.kills += 1
        self._report(f"driver_kills={self.kills} in_a_batch={self.hits}")
