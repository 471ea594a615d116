"""The audit of topics in this process; its answer is the one that Spark gives."""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiorecover.audit.ids import Epoch, Ids, Key, Partition, Range
from aiorecover.audit.moments import Moments
from aiorecover.audit.reader import Topics, checked_options, opened
from aiorecover.audit.verdicts import VERDICTS, Manifests, judge, read_manifests
from aiorecover.errors import ConfigError
from aiorecover.manifests import Pairs
from aiorecover.record_id import RECORD_ID_HEADER

__all__ = ["Question", "audit"]

_COMPARED_AT_A_TIME = 1_000_000  # repeated ids whose contents are kept for one reading: some 150 MB

Row = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """An audit that is asked for.

    Attributes:
        known_last: for a producer id and epoch, the last sequence that it is known to have published.
        manifests: the producers' ``audit_topic``; None: nothing tells why a record is missing.
        from_first: nothing before the first sequence found of an epoch counts as missing.
        order: records that are out of order are counted.
        limit: rows of each list in the answer.
        over_time: the answer has a timeline.
        options: of aiokafka's clients, as text.
        on_progress: called with the number of records read so far.

    """

    bootstrap_servers: str
    topics: Sequence[str]
    known_last: Mapping[Key, int] = field(default_factory=dict)
    manifests: str | None = None
    from_first: bool = False
    order: bool = True
    limit: int = 20
    over_time: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    on_progress: Callable[[int], object] = lambda _: None


async def audit(question: Question) -> Row:
    """Read the topics, and return the totals, the worst epochs and ranges, and the verdicts.

    Raises:
        ConfigError: an option or Kafka needs mending; the message says which.

    """
    options = checked_options(question.options)
    manifests = None
    if question.manifests is not None:  # before the topics: what is delivered meanwhile is not settled then
        async with opened(question.bootstrap_servers, [question.manifests], options) as topic:
            manifests = await read_manifests(topic.committed())
        if not manifests.epochs and manifests.unreadable:
            raise ConfigError(
                "no record of this topic is a manifest of producers: name for --manifests what they name as "
                f"audit_topic manifests={question.manifests}"
            )
    async with opened(question.bootstrap_servers, question.topics, options) as topics:
        return await _Audit(question, topics, manifests).run()


class _Audit:
    def __init__(self, question: Question, topics: Topics, manifests: Manifests | None) -> None:
        self._question, self._topics, self._manifests = question, topics, manifests
        self._ids, self._held = Ids(), Ids()
        self._moments = Moments() if question.over_time else None
        self._records = self._without_id = 0

    async def run(self) -> Row:
        await self._read()
        if self._records and not self._ids.epochs:
            raise ConfigError(
                "no record has a record id: name topics that aiorecover publishes to, or a table that they were landed "
                f"in records={self._records}"
            )
        held = self._topics.held_offsets
        if held:
            async for _, epoch, sequence in self._placed(self._topics.held(), self._held):
                self._held.set(epoch, sequence, ahead=True)
        if self._moments is not None:
            for key, first, last in self._all_missing():
                self._moments.missing(key, first, last)
        await self._compare()
        return self._answer(held)

    async def _read(self) -> None:
        partitions: dict[Any, Partition] = {}
        moments = self._moments
        async for at, records in self._topics.committed():
            partition = partitions.get(at)
            if partition is None:
                partition = partitions[at] = Partition(self._ids)
            locate, add = partition.locate, partition.add
            for record in records:
                placed = locate(_id_of(record.headers))
                if placed is None:
                    self._without_id += 1
                elif add(*placed) and moments is not None:
                    moments.found(record.timestamp)
            self._records += len(records)
            self._question.on_progress(self._records)

    async def _placed(
        self, source: AsyncIterator[tuple[Any, Sequence[Any]]], ids: Ids
    ) -> AsyncIterator[tuple[Any, Epoch, int]]:
        partition = Partition(ids)  # any one: the order is not asked for here
        async for _, records in source:
            for record in records:
                placed = partition.locate(_id_of(record.headers))
                if placed is not None:
                    yield record, placed[0].epoch, placed[1]

    async def _compare(self) -> None:
        """Read the topics once more for the contents of repeated ids, and for the times beside missing ranges.

        A reading compares `_COMPARED_AT_A_TIME` ids; where there are more, there is another one.
        """
        ids, moments = self._ids, self._moments
        again = ids.begin_comparing() or (moments is not None and moments.wants_beside)
        while again:
            again, contents = False, dict[tuple[Key, int], int]()
            async for record, epoch, sequence in self._placed(self._topics.committed(), ids):
                if moments is not None:
                    moments.beside(epoch.key, sequence, record.timestamp)
                if not ids.is_left(epoch, sequence):
                    continue
                known = contents.get((epoch.key, sequence))
                if known is None and len(contents) >= _COMPARED_AT_A_TIME:
                    again = True
                    continue
                content = hash((record.topic, record.key, record.value, record.headers))
                if known is None:
                    contents[epoch.key, sequence] = content
                elif known != content:
                    ids.conflict(epoch, sequence)
            for key, sequence in contents:
                ids.compared(ids.epochs[key], sequence)

    def _keys(self) -> list[Key]:
        reported = () if self._manifests is None else self._manifests.epochs
        return sorted({*self._ids.epochs, *self._question.known_last, *reported})

    def _bounds(self, key: Key) -> tuple[int | None, int | None, int, int]:
        """Return the first and last sequence found, and the first and last that should be there."""
        found = self._ids.epochs.get(key)
        first = last = None
        if found is not None:
            for begin, end in found.found_ranges:
                first, last = begin if first is None else first, end
        known = self._question.known_last.get(key, 0)
        if self._manifests is not None and key in self._manifests.epochs:
            known = max(known, self._manifests.epochs[key].last)
        start = first if self._question.from_first and first is not None else 1
        return first, last, start, max(last or 0, known)

    def _all_missing(self) -> Iterator[tuple[Key, int, int]]:
        for key in self._keys():
            _, _, start, end = self._bounds(key)
            found = self._ids.epochs.get(key) or Epoch(key)
            yield from ((key, first, last) for first, last in found.missing_ranges(start, end))

    def _ranges_of(self, kind: Callable[[Epoch], Iterator[Range]]) -> Iterator[tuple[Key, int, int]]:
        for key, epoch in self._ids.epochs.items():
            yield from ((key, first, last) for first, last in kind(epoch))

    def _answer(self, held_offsets: int) -> Row:
        question, epochs = self._question, [self._row(key) for key in self._keys()]
        names = ("expected", "found", "missing", "repeated")
        totals: Row = {"records": self._records, "without_id": self._without_id, "epochs": len(epochs)}
        totals |= {name: sum(one[name] for one in epochs) for name in names}
        totals["out_of_order"] = sum(one["out_of_order"] for one in epochs) if question.order else None
        totals["conflicts"] = _total(self._ranges_of(lambda one: one.conflict_ranges))
        pieces = _Worst(question.limit)
        for piece in self._judged():
            pieces.add(piece)
        totals["held_offsets"] = held_offsets
        totals["behind_open_transaction"] = pieces.totals["behind_open_transaction"]
        if self._manifests is not None:
            totals |= self._unknown(epochs)
        found: Row = {
            "totals": totals,
            "epochs": _worst(epochs, "missing", question.limit),
            "missing": self._listed(self._all_missing()),
            "repeated": self._repeated(),
            "out_of_order": self._listed(self._ranges_of(lambda one: one.disorder_ranges)) if question.order else [],
            "conflicts": self._listed(self._ranges_of(lambda one: one.conflict_ranges)),
        }
        if self._manifests is not None:
            found["manifests"] = {
                "totals": pieces.totals,
                "ranges": pieces.rows(),
                "unreadable": self._manifests.unreadable,
            }
        if self._moments is not None:
            width, moments = self._moments.rows()
            found["timeline"] = {"width_s": width, "moments": moments}
        return found

    def _row(self, key: Key) -> Row:
        first, last, start, end = self._bounds(key)
        epoch = self._ids.epochs.get(key) or Epoch(key)
        there = epoch.found
        expected = end - start + 1
        disorder = sum(last - first + 1 for first, last in epoch.disorder_ranges) if self._question.order else None
        named = {"producer_id": key[0], "epoch": key[1], "first": first, "last": last}
        counts = {"expected": expected, "found": there, "missing": expected - there, "repeated": epoch.repeated}
        return {**named, **counts, "out_of_order": disorder}

    def _judged(self) -> Iterator[Row]:
        for key in self._keys():
            _, found_last, start, end = self._bounds(key)
            epoch = self._ids.epochs.get(key) or Epoch(key)
            claims = None if self._manifests is None else self._manifests.epochs.get(key)
            in_topics = self._held.epochs.get(key)
            held: Pairs = () if in_topics is None else tuple(in_topics.found_ranges)
            for (first, last), verdict, why in judge(epoch.missing_ranges(start, end), claims, held):
                row = _range(key, first, last)
                yield row | {"verdict": verdict, "why": why, "tail": first > (found_last or 0)}

    def _unknown(self, epochs: list[Row]) -> Row:
        """Count the epochs that may have no end yet, and those without a manifest."""
        manifests = self._manifests or Manifests()
        open_ones = manifests.open_epochs()
        untold = [one for one in epochs if one["found"] and (one["producer_id"], one["epoch"]) not in manifests.epochs]
        oldest_ms, oldest = open_ones[0] if open_ones else (None, None)
        return {
            "open_epochs": len(open_ones),
            "open_oldest": oldest,
            "open_told_ms": oldest_ms,
            "untold_epochs": len(untold),
        }

    def _repeated(self) -> list[Row]:
        def rows() -> Iterator[Row]:
            for key, epoch in self._ids.epochs.items():
                more = sorted(epoch.more)
                for first, last in epoch.repeated_ranges:
                    often = more[bisect_left(more, first) : bisect_right(more, last)]
                    repeated = last - first + 1 + sum(epoch.more[sequence] for sequence in often)
                    yield _range(key, first, last) | {"repeated": repeated}

        return _worst(rows(), "repeated", self._question.limit)

    def _listed(self, ranges: Iterable[tuple[Key, int, int]]) -> list[Row]:
        return _worst((_range(*one) for one in ranges), "count", self._question.limit)


class _Worst:
    """Counts of each verdict, and its longest ranges."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.totals = dict.fromkeys(VERDICTS, 0)
        self._rows: dict[str, list[Row]] = {verdict: [] for verdict in VERDICTS}

    def add(self, row: Row) -> None:
        self.totals[row["verdict"]] += row["count"]
        rows = self._rows[row["verdict"]]
        rows.append(row)
        if len(rows) > 2 * self._limit + 1_000:
            rows[:] = _worst(rows, "count", self._limit)

    def rows(self) -> list[Row]:
        return [row for rows in self._rows.values() for row in _worst(rows, "count", self._limit)]


def _id_of(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    found = None
    for name, content in headers:
        if name == RECORD_ID_HEADER:
            found = content
    return found


def _range(key: Key, first: int, last: int) -> Row:
    return {"producer_id": key[0], "epoch": key[1], "first": first, "last": last, "count": last - first + 1}


def _total(ranges: Iterable[tuple[Key, int, int]]) -> int:
    return sum(last - first + 1 for _, first, last in ranges)


def _worst(rows: Iterable[Row], by: str, limit: int) -> list[Row]:
    return heapq.nsmallest(limit, rows, key=lambda row: (-row[by], row["producer_id"], row["epoch"], row["first"] or 0))
