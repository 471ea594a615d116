"""From `publish` to the table, while producers, brokers and the drivers of Spark are killed.

Processes publish through one directory and are killed, brokers are killed and frozen, and drivers that land the topic
die in the middle of their batches. Then the rest is delivered and landed, and three independent readers must agree: a
plain consumer of the topic, pyarrow on the table, and the audit.
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
from tests.spark.commands import audit_report
from tests.spark.landers import Lander
from tests.spark.table import landed_ids
from tests.support.cluster import Cluster
from tests.support.oracle import Verdict, read_topic

__all__ = ["Outcome", "run_pipeline"]

_BATCH_RECORDS = 20_000
_KILLED_WITHIN_S = 3.0  # after the begin of a batch
_LAND_WITHIN_S = 900.0


@dataclass
class Outcome:
    """The result of a run."""

    verdict: Verdict
    kills: int
    """Kills of drivers."""
    hits: int
    """Kills of drivers in the middle of a batch."""
    consumed: int
    """Records in Kafka."""
    lacking: Counter[str | None]
    """Ids of records in Kafka that the table lacks."""
    surplus: Counter[str | None]
    """Ids that the table has more often than Kafka."""
    audit: dict[str, Any]
    """The report on topic and table."""

    @property
    def ok(self) -> bool:
        """Return whether no record is missing anywhere, and all three agree."""
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
    """Kill producers this many times, and drivers meanwhile; return the outcome."""
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
    audit = audit_report(lander.directory, table=lander.target, bootstrap_servers=servers, topics=[topic])
    lacking, surplus = consumed - landed, landed - consumed
    return Outcome(verdict, drivers.kills, drivers.hits, consumed.total(), lacking, surplus, audit)


class _Drivers:
    """A thread that starts drivers, one after the other, and kills each of them in a batch."""

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
                self._start_and_kill()
        except BaseException as error:  # noqa: BLE001 - __exit__ raises it
            self._failure = error

    def _start_and_kill(self) -> None:
        before = self._lander.last_begun()
        with self._lander.start(available_now=False) as driver:
            driver.wait_until(lambda: self._lander.last_begun() > before or self._over.is_set())
            driver.run_for(self._chance.uniform(0.0, min(self._lander.batch_s(), _KILLED_WITHIN_S)))
            self.hits += driver.kill()
        self.kills += 1
        self._report(f"driver_kills={self.kills} in_a_batch={self.hits}")
