"""What the killed processes had said, held against what stands in Kafka.

`Ledger` collects what the lives of one directory reported, `examine` reads the topics with a plain consumer and
judges. To what `tests.support.oracle` finds (missing, altered, out of order within a lane) it adds what only a history
of lives can tell: repeats that no kill explains, and ids that nobody can have been given.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.crash.child import Task, digest
from tests.crash.lives import Child
from tests.support import admin, oracle
from tests.support.broker import Cluster
from tests.support.oracle import Accepted, Consumed, judge, read_topic

__all__ = ["Ledger", "Verdict", "examine"]

_READ_WITHIN_S = 300.0
_EXAMPLES = 5

Position = tuple[int, int]
"""Epoch and sequence."""


@dataclass
class Ledger:
    """What the lives of one directory said, in the order in which they said it."""

    accepted: dict[int, list[Accepted]] = field(default_factory=lambda: defaultdict(list))
    """By topic; the value is its digest."""
    delivered: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By topic, ids whose delivery was confirmed."""
    last: dict[int, int] = field(default_factory=dict)
    """Epoch to the highest sequence that was told."""
    untold: dict[int, int] = field(default_factory=dict)
    """Epoch to how many records may have been accepted behind that and could not be told."""
    producers: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)
    """What must never happen, in words."""
    lives: int = 0
    kills: int = 0

    def take(self, child: Child) -> None:
        """Enter what a life that is over had said."""
        self.lives += 1
        self.kills += child.killed
        self.complaints += [line for line in child.words if line.startswith("damage")]
        slack = child.task.group + _publishers(child.task)
        for line in child.words:
            if line.startswith("opened "):
                self.untold[int(line.split()[1])] = slack
        for word, topic, *rest in child.reports:
            if word == b"A":
                self._accept(int(topic), *rest)
            else:
                self.delivered[int(topic)].append(rest[0].decode())

    def _accept(self, topic: int, partition: bytes, key: bytes, value: bytes, record_id: bytes) -> None:
        name = record_id.decode()
        producer, epoch, sequence = name.split("/")
        self.producers.add(producer)
        if int(sequence) <= self.last.get(int(epoch), 0):
            self.complaints.append(f"told out of order: {name} behind {self.last[int(epoch)]}")
        self.last[int(epoch)] = max(int(sequence), self.last.get(int(epoch), 0))
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
    repeated_too_often: list[str]
    """Appeared again after their delivery was confirmed, or more often than processes can have sent them."""
    out_of_order: list[str]
    altered: list[str]
    untold: int
    """Accepted right before a kill that came before the word: allowed."""
    phantoms: list[str]
    """Ids that nobody can have been given."""
    complaints: list[str]
    lives: int = 0
    kills: int = 0
    left: int = 0

    @property
    def ok(self) -> bool:
        """Nothing missing, altered, out of order, repeated without need, or left in the ring."""
        return not any(self._faults().values())

    def _faults(self) -> dict[str, Sequence[str]]:
        return {
            "missing": self.missing,
            "out of order": self.out_of_order,
            "altered": self.altered,
            "repeated too often": self.repeated_too_often,
            "phantoms": self.phantoms,
            "complaints": [*self.complaints, *([f"left in the ring: {self.left}"] if self.left else [])],
        }

    def __str__(self) -> str:
        counts = (
            f"accepted={self.accepted} delivered={self.delivered} missing={len(self.missing)} "
            f"repeated={self.repeated} out_of_order={len(self.out_of_order)} altered={len(self.altered)} "
            f"confirmed={self.confirmed} untold={self.untold} lives={self.lives} kills={self.kills}"
        )
        found = [
            f"  {kind} ({len(examples)}): {'; '.join(examples[:_EXAMPLES])}"
            for kind, examples in self._faults().items()
            if examples
        ]
        return "\n".join([f"{'ok' if self.ok else 'NOT OK'}: {counts}", *found])


# -- the judgement -----------------------------------------------------------------------------------------------------


def examine(cluster: Cluster, topics: Sequence[str], ledger: Ledger, *, left: int = 0) -> Verdict:
    """Read the topics and hold every record against what was said; the publishers are gone."""
    verdicts: list[oracle.Verdict] = []
    too_often: list[str] = []
    phantoms: list[str] = []
    for number, topic in enumerate(topics):
        consumed = [
            record._replace(value=digest(record.value))
            for record in admin.run(read_topic(cluster.bootstrap_servers, topic, timeout_s=_READ_WITHIN_S))
        ]
        verdict = judge(ledger.accepted[number], consumed, whole_lanes=True)
        verdicts.append(verdict)
        phantoms += [name for name in verdict.foreign if not _may_be_untold(name, ledger)]
        too_often += _too_often(
            ledger.accepted[number], consumed, ledger.delivered[number], max(ledger.untold, default=0)
        )
    return Verdict(
        accepted=sum(verdict.accepted for verdict in verdicts),
        delivered=sum(verdict.delivered for verdict in verdicts),
        confirmed=sum(len(names) for names in ledger.delivered.values()),
        missing=[name for verdict in verdicts for name in verdict.missing],
        repeated=sum(verdict.repeated for verdict in verdicts),
        repeated_too_often=too_often,
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
        left=left,
    )


def _may_be_untold(name: str, ledger: Ledger) -> bool:
    """Accepted behind the last record that was told, and not more of them than a child keeps back."""
    place = _position(name)
    if place is None or (ledger.producers and name.split("/", maxsplit=1)[0] not in ledger.producers):
        return False
    epoch, sequence = place
    last = ledger.last.get(epoch, 0)
    return epoch in ledger.untold and last < sequence <= last + ledger.untold[epoch]


def _too_often(
    accepted: Sequence[Accepted], consumed: Sequence[Consumed], delivered: Sequence[str], last_epoch: int
) -> list[str]:
    """Repeats that no kill explains.

    A process sends a record once, or again as a batch that the broker recognises; so a record appears at most once
    for each process that had it in flight: from the one that accepted it to the one in which it was settled. When a
    delivery was confirmed, everything before it in its lane was settled too, and settle words survive a kill.
    """
    appearances = Counter(record.record_id for record in consumed)
    if appearances.total() == len(appearances):
        return []
    placed = {record.record_id: record.key is not None or record.partition is not None for record in accepted}
    partition_of: dict[str, int] = {}
    for record in consumed:
        partition_of.setdefault(record.record_id or "", record.partition)
    settled = _Settled((partition_of[name], name) for name in delivered if name in partition_of)
    found = []
    for name, times in appearances.items():
        place = _position(name or "")
        if times == 1 or name is None or place is None:
            continue
        alone = not placed.get(name, True)  # without key and partition it may have been in another lane
        until = settled.in_epoch(partition_of[name], name, alone=alone)
        allowed = 1 + (last_epoch if until is None else until) - place[0]
        if times > allowed:
            confirmed = "" if until is None else f", confirmed in epoch {until}"
            found.append(f"{name} stands there {times} times{confirmed}")
    return found


class _Settled:
    """In which epoch, at the latest, a record was settled, as far as confirmations tell."""

    def __init__(self, confirmed: Iterable[tuple[int, str]]) -> None:
        self._own: set[str] = set()
        self._lanes: dict[int, list[Position]] = defaultdict(list)
        for partition, name in confirmed:
            self._own.add(name)
            place = _position(name)
            if place is not None:
                self._lanes[partition].append(place)
        for places in self._lanes.values():
            places.sort()

    def in_epoch(self, partition: int, name: str, *, alone: bool) -> int | None:
        place = _position(name)
        if place is None or alone:
            return place[0] if place is not None and name in self._own else None
        places = self._lanes[partition]
        at = bisect_left(places, place)
        return places[at][0] if at < len(places) else None


def _position(name: str) -> Position | None:
    try:
        _, epoch, sequence = name.split("/")
        return int(epoch), int(sequence)
    except ValueError:
        return None


def _publishers(task: Task) -> int:
    return max((int(arguments.get("publishers", 1)) for _, arguments in task.steps), default=1)
