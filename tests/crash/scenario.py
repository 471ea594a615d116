"""Lives of one directory that a test leads by hand, and their judgement."""

import os
import shutil
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from tests.crash.child import Task
from tests.crash.judgement import Ledger, Verdict, examine
from tests.crash.lives import Child
from tests.support import admin
from tests.support.broker import Cluster
from tests.support.oracle import Consumed, read_topic

__all__ = ["FLUSH", "SLOT_BYTES", "Scenario", "Step"]

Step = tuple[str, dict[str, Any]]

FLUSH: Step = ("flush", {"timeout_ms": 60_000})
SLOT_BYTES = 1 << 14
_FINISH_WITHIN_S = 120


class Scenario:
    """Lives on one directory that publish equal records, in turn into each lane of one topic, or of several.

    ``servers``: what the lives connect to, unless they say so themselves; ``prefix``: see `Child`;
    ``topic``: one that exists; ``beside``: others that do, with as many partitions.
    ``exactly_once``: the guarantee of all lives, and only what is committed is read.
    """

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        *,
        lanes: int = 1,
        servers: str = "",
        prefix: Sequence[str] = (),
        topic: str = "",
        beside: Sequence[str] = (),
        exactly_once: bool = False,
    ) -> None:
        self.cluster = cluster
        self.ledger = Ledger()
        self.topic = topic or f"scenario-{os.urandom(4).hex()}"
        self._topics = [self.topic, *beside]
        self.wal_dir = directory / "wal"
        self._log = directory / "children.log"
        self._lanes = lanes
        self._servers = servers or cluster.bootstrap_servers
        self._prefix = prefix
        self._lives = 0
        self._guarantee = {"guarantee": "exactly_once"} if exactly_once else {}
        self.isolation_level = "read_committed" if exactly_once else "read_uncommitted"
        if not topic:
            cluster.create_topic(self.topic, lanes)

    def life(
        self,
        *steps: Step,
        crash: tuple[str, int] | None = None,
        still: tuple[str, int] | None = None,
        boot_id: str | None = None,
        hours_later: int = 0,
        poison: int = 0,
        paced: bool = False,
        servers: str = "",
        wal_dir: Path | None = None,
        prefix: Sequence[str] | None = None,
        **options: Any,
    ) -> Child:
        """Begin another life; ``options`` are the producer's."""
        self._lives += 1
        task = Task(
            parent_pid=0,
            report_fd=-1,
            bootstrap_servers=servers or self._servers,
            wal_dir=str(wal_dir or self.wal_dir),
            topics=self._topics,
            partitions=self._lanes,
            life=self._lives,
            seed=1,
            steps=list(steps),
            options={"slot_bytes": SLOT_BYTES, "checkpoint_interval_ms": 20, **self._guarantee, **options},
            uniform=True,
            crash=crash,
            still=still,
            boot_id=boot_id,
            hours_later=hours_later,
            poison=poison,
            paced=paced,
        )
        return Child(task, self._log, self._prefix if prefix is None else prefix)

    def copy(self) -> Path:
        """Copy the directory as it is now; where to."""
        return Path(shutil.copytree(self.wal_dir, self.wal_dir.with_name("copied")))

    def use(self, directory: Path) -> None:
        """The next lives open this one."""
        self.wal_dir = directory

    def kill(self, child: Child) -> None:
        """`kill -9`, and remember what it had said."""
        child.kill()
        self.ledger.take(child)

    def dies(self, child: Child, within_s: float) -> bool:
        """Wait until a life kills itself (`Task.crash`), and remember what it had said; whether it did in time."""
        reached = child.wait_dead(within_s)
        self.ledger.take(child)
        return reached

    def finish(self, child: Child) -> dict[str, Any]:
        """Let a life end by itself; its last statistics."""
        statistics = child.finish(_FINISH_WITHIN_S)
        self.ledger.take(child)
        return statistics

    def verdict(self, *, once: bool = True, **last: Any) -> Verdict:
        """A last life delivers what is left; without ``once`` some may stand there twice."""
        self.finish(self.life(FLUSH, **last))
        return self.examine(once=once)

    def examine(self, *, once: bool = True) -> Verdict:
        """Judge what stands there now; as `verdict`."""
        return examine(self.cluster, self._topics, self.ledger, once=once, isolation_level=self.isolation_level)

    def committed(self) -> list[Consumed]:
        """What a plain consumer reads now, by partitions, in the order of their offsets."""
        servers, level = self.cluster.bootstrap_servers, self.isolation_level
        found = admin.run(read_topic(servers, self.topic, isolation_level=level))
        return sorted(found, key=attrgetter("partition", "offset"))
