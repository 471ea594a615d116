"""What the killed processes had said, held against what stands in Kafka.

`Ledger` collects what the lives of one ``wal_dir`` reported, and whether their counts added up (I9), while they lived
and at their end; `examine` reads the topics with a plain consumer and judges. To what `tests.support.oracle`
finds (missing, altered, out of order within a lane) it adds that nothing is repeated, whatever was killed, and what
only a history of lives can tell: ids that nobody can have been given.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.crash.child import Task, digest
from tests.crash.counts import uneven
from tests.crash.lives import Child
from tests.support import admin, oracle
from tests.support.broker import Cluster
from tests.support.oracle import Accepted, Consumed, judge, read_topic

__all__ = ["Ledger", "Verdict", "examine"]

_READ_WITHIN_S = 300.0
_EXAMPLES = 5

Opening = tuple[str, int]
"""Producer id and epoch: what one life gives out."""


@dataclass
class Ledger:
    """What the lives of one ``wal_dir`` said, in the order in which they said it."""

    accepted: dict[int, list[Accepted]] = field(default_factory=lambda: defaultdict(list))
    """By topic; the value is its digest."""
    delivered: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By topic, ids whose delivery was confirmed."""
    last: dict[Opening, int] = field(default_factory=dict)
    """The highest sequence that was told."""
    untold: dict[Opening, int] = field(default_factory=dict)
    """How many records may have been accepted behind that and could not be told."""
    complaints: list[str] = field(default_factory=list)
    """What must never happen, in words."""
    lives: int = 0
    kills: int = 0
    recovered: int = 0
    """Lives that found in the ring what one before had left."""
    resumed: int = 0
    """Lives that sent again what the one before had in flight."""
    crash_points: int = 0
    """Lives that were to kill themselves at a point of the library."""
    crashed: int = 0
    """Those of them that came so far."""

    def take(self, child: Child) -> None:
        """Enter what a life that is over had said."""
        self.lives += 1
        self.kills += child.killed
        self.crash_points += child.task.crash is not None
        self.crashed += child.crashed
        self.recovered += any(line.startswith("recovered ") for line in child.words)
        self.resumed += any(line.startswith("resumed ") for line in child.words)
        self.complaints += [line for line in child.words if line.startswith(("damage", "uneven"))]
        slack = child.task.group + _publishers(child.task)
        for line in child.words:
            if line.startswith("opened "):
                _, epoch, producer = line.split()
                self.untold[producer, int(epoch)] = slack
            elif line.startswith("stopped "):
                self.complaints += uneven(json.loads(line.removeprefix("stopped ")))
        for word, topic, *rest in child.reports:
            if word == b"A":
                self._accept(int(topic), *rest)
            else:
                self.delivered[int(topic)].append(rest[0].decode())

    def _accept(self, topic: int, partition: bytes, key: bytes, value: bytes, record_id: bytes) -> None:
        name = record_id.decode()
        producer, epoch, sequence = name.split("/")
        opening = producer, int(epoch)
        if int(sequence) <= self.last.get(opening, 0):
            self.complaints.append(f"told out of order: {name} behind {self.last[opening]}")
        self.last[opening] = max(int(sequence), self.last.get(opening, 0))
        self.accepted[topic].append(
            Accepted(
                name,
                None if key == b"-" else key[1:],
                None if value == b"-" else value,
                None if partition == b"-" else int(partition),
            )
        )


@dataclass(frozen=True)
class Verdict:
    """What became of the records of all cycles, over all topics."""

    accepted: int
    delivered: int
    confirmed: int
    """Records whose `delivered()` had returned, and been told, before the kill."""
    missing: list[str]
    repeated: int
    repeats: list[str]
    """Which, and where."""
    out_of_order: list[str]
    altered: list[str]
    untold: int
    """Accepted right before a kill that came before the word: allowed."""
    phantoms: list[str]
    """Ids that nobody can have been given."""
    complaints: list[str]
    lives: int = 0
    kills: int = 0
    recovered: int = 0
    resumed: int = 0
    crash_points: int = 0
    crashed: int = 0
    left: int = 0

    @property
    def ok(self) -> bool:
        """Nothing missing, altered, out of order, repeated, or left in the ring; and there was something."""
        return not any(self._faults().values())

    def _faults(self) -> dict[str, Sequence[str]]:
        return {
            "missing": self.missing,
            "out of order": self.out_of_order,
            "altered": self.altered,
            "repeated": self.repeats,
            "phantoms": self.phantoms,
            "complaints": [
                *self.complaints,
                *([f"left in the ring: {self.left}"] if self.left else []),
                *(["nothing was accepted"] if not self.accepted else []),
            ],
        }

    def __str__(self) -> str:
        counts = (
            f"accepted={self.accepted} delivered={self.delivered} missing={len(self.missing)} "
            f"repeated={self.repeated} out_of_order={len(self.out_of_order)} altered={len(self.altered)} "
            f"confirmed={self.confirmed} untold={self.untold} lives={self.lives} kills={self.kills} "
            f"recovered={self.recovered} resumed={self.resumed} crash_points={self.crashed}/{self.crash_points}"
        )
        found = [
            f"  {kind} ({len(examples)}): {'; '.join(examples[:_EXAMPLES])}"
            for kind, examples in self._faults().items()
            if examples
        ]
        return "\n".join([f"{'ok' if self.ok else 'NOT OK'}: {counts}", *found])


# -- the judgement -----------------------------------------------------------------------------------------------------


def examine(
    cluster: Cluster,
    topics: Sequence[str],
    ledger: Ledger,
    *,
    left: int = 0,
    once: bool = True,
    isolation_level: str = "read_uncommitted",
) -> Verdict:
    """Read the topics and hold every record against what was said; the publishers are gone.

    Without ``once`` a record may stand there twice: where the lanes' identities could not be trusted.
    """
    verdicts: list[oracle.Verdict] = []
    repeats: list[str] = []
    phantoms: list[str] = []
    for number, topic in enumerate(topics):
        consumed = [
            record._replace(value=digest(record.value))
            for record in admin.run(
                read_topic(cluster.bootstrap_servers, topic, isolation_level=isolation_level, timeout_s=_READ_WITHIN_S)
            )
        ]
        verdict = judge(ledger.accepted[number], consumed, whole_lanes=True)
        verdicts.append(verdict)
        phantoms += [name for name in verdict.foreign if not _may_be_untold(name, ledger)]
        repeats += _repeats(topic, consumed) if once else []
    return Verdict(
        accepted=sum(verdict.accepted for verdict in verdicts),
        delivered=sum(verdict.delivered for verdict in verdicts),
        confirmed=sum(len(names) for names in ledger.delivered.values()),
        missing=[name for verdict in verdicts for name in verdict.missing],
        repeated=sum(verdict.repeated for verdict in verdicts),
        repeats=repeats,
        out_of_order=[
            f"{late.record_id} behind {late.after} in {late.lane}"
            for verdict in verdicts
            for late in verdict.out_of_order
        ],
        altered=[
            *(f"{wrong.record_id}: {wrong.what}" for verdict in verdicts for wrong in verdict.wrong),
            *(f"key in several partitions: {key!r}" for verdict in verdicts for key in verdict.scattered),
        ],
        untold=sum(len(verdict.foreign) for verdict in verdicts) - len(phantoms),
        phantoms=phantoms,
        complaints=ledger.complaints,
        lives=ledger.lives,
        kills=ledger.kills,
        recovered=ledger.recovered,
        resumed=ledger.resumed,
        crash_points=ledger.crash_points,
        crashed=ledger.crashed,
        left=left,
    )


def _may_be_untold(name: str, ledger: Ledger) -> bool:
    """Accepted behind the last record that was told, and not more of them than a child keeps back."""
    try:
        producer, epoch, sequence = name.split("/")
        opening, number = (producer, int(epoch)), int(sequence)
    except ValueError:
        return False
    last = ledger.last.get(opening, 0)
    return last < number <= last + ledger.untold.get(opening, 0)


def _repeats(topic: str, consumed: Sequence[Consumed]) -> list[str]:
    """Records that stand there more than once, each with all its places: no kill explains that.

    A process sends a batch again only as the very same batch, and so does the next one with what was in flight: the
    broker recognises it.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for record in consumed:
        if record.record_id is not None:
            places[record.record_id].append(f"{record.partition}@{record.offset}")
    return [f"{name} at {', '.join(found)} of {topic}" for name, found in places.items() if len(found) > 1]


def _publishers(task: Task) -> int:
    return max((int(arguments.get("publishers", 1)) for _, arguments in task.steps), default=1)
