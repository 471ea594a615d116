"""Producers' manifests (``audit_topic``), and the verdicts on missing records that follow from them."""

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aiorecover.audit.ids import Key, Range
from aiorecover.manifests import VERSION, Pairs, Ranges

__all__ = ["VERDICTS", "Claims", "Manifests", "judge", "read_manifests"]

VERDICTS = ("lost", "untold", "in_ring", "dead_lettered", "behind_open_transaction")

_END = 1 << 62  # after every sequence


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `aiorecover.manifests.Manifest` that an audit reads."""

    version: int
    producer_id: str
    epoch: int
    last: int
    settled: int = 0
    sealed: bool = False
    time_ms: int = 0
    dead_lettered: Pairs = ()
    damaged: Pairs = ()


_decode = msgspec.json.Decoder(_Manifest).decode


@dataclass
class Claims:
    """All manifests of one epoch together: the greatest numbers, and the union of the ranges."""

    last: int = 0
    settled: int = 0
    sealed_at: int | None = None
    time_ms: int = 0
    ranges: dict[str, Ranges] = field(default_factory=dict)

    def add(self, manifest: _Manifest) -> None:
        """Take in one more manifest."""
        self.last = max(self.last, manifest.last)
        self.settled = max(self.settled, manifest.settled)
        self.time_ms = max(self.time_ms, manifest.time_ms)
        if manifest.sealed:
            self.sealed_at = max(self.sealed_at or 0, manifest.last)
        for kind in ("dead_lettered", "damaged"):
            ranges = self.ranges.setdefault(kind, Ranges())
            for first, last in getattr(manifest, kind):
                ranges.add(first, last)


@dataclass
class Manifests:
    """The manifests of an audit topic."""

    epochs: dict[Key, Claims] = field(default_factory=dict)
    unreadable: int = 0
    """Keys whose newest record is no manifest of a known version."""

    def open_epochs(self) -> list[tuple[int, str]]:
        """Return time and name of the epochs that may have accepted more than was reported, the oldest first.

        An epoch is open until it is sealed, or until something of a later one of its directory is settled: settling
        goes through epochs in order.
        """
        passed: dict[str, int] = {}
        for (producer_id, number), claims in self.epochs.items():
            if claims.settled:
                passed[producer_id] = max(passed.get(producer_id, 0), number)
        return sorted(
            (claims.time_ms, f"{producer_id}/{number}")
            for (producer_id, number), claims in self.epochs.items()
            if claims.sealed_at is None and number >= passed.get(producer_id, 0)
        )


async def read_manifests(records: AsyncIterator[tuple[Any, Sequence[Any]]]) -> Manifests:
    """Read an audit topic; the newest record of each key counts, as after compaction."""
    newest: dict[tuple[int, bytes | None], bytes | None] = {}
    async for partition, some in records:
        for one in some:
            newest[partition.partition, one.key] = one.value
    found = Manifests()
    for value in newest.values():
        if value is None:
            continue
        try:
            manifest = _decode(value)
        except msgspec.MsgspecError:
            manifest = None
        if manifest is None or manifest.version != VERSION:
            found.unreadable += 1
        else:
            found.epochs.setdefault((manifest.producer_id, manifest.epoch), Claims()).add(manifest)
    return found


def judge(missing: Iterable[Range], claims: Claims | None, held: Pairs) -> Iterator[tuple[Range, str, str | None]]:
    """Yield missing ranges, cut where the verdict changes, with the verdict and, for ``lost``, why.

    ``behind_open_transaction``: the record is in Kafka, and a transaction that is not decided holds it up.
    ``dead_lettered``; ``in_ring``: not settled, as far as its producer has reported; ``lost``, because ``damaged`` in
    the ring, ``settled`` (its producer got the acknowledgement) or ``gone`` (it was accepted, and not found when the
    epoch was closed); ``untold``: its epoch has no manifest.
    """
    covers = {"behind_open_transaction": _Cover(held)}
    covers |= {kind: _Cover(ranges.pairs) for kind, ranges in (claims.ranges if claims is not None else {}).items()}
    for first, last in missing:
        at, piece = first, None
        while at <= last:
            inside, end = _at(covers, claims, at)
            end = min(end, last)
            said = _verdict(inside, claims)
            if piece is not None and piece[1:] == said:
                piece = ((piece[0][0], end), *said)
            else:
                if piece is not None:
                    yield piece
                piece = ((at, end), *said)
            at = end + 1
        if piece is not None:
            yield piece


class _Cover:
    """Ranges, in order."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs, self._lasts = pairs, [last for _, last in pairs]

    def at(self, sequence: int) -> tuple[bool, int]:
        """Return whether it is in one of them, and up to where that stays so."""
        number = bisect_left(self._lasts, sequence)
        if number == len(self._pairs):
            return False, _END
        first, last = self._pairs[number]
        return (True, last) if first <= sequence else (False, first - 1)


def _at(covers: dict[str, _Cover], claims: Claims | None, sequence: int) -> tuple[set[str], int]:
    inside, ends = set[str](), [_END]
    for kind, cover in covers.items():
        is_in, end = cover.at(sequence)
        ends.append(end)
        if is_in:
            inside.add(kind)
    if claims is not None:
        if sequence <= claims.settled:
            inside.add("settled")
            ends.append(claims.settled)
        if claims.sealed_at is not None:
            if sequence > claims.sealed_at:
                inside.add("gone")
            else:
                ends.append(claims.sealed_at)
    return inside, min(ends)


def _verdict(inside: set[str], claims: Claims | None) -> tuple[str, str | None]:
    if "behind_open_transaction" in inside:
        return "behind_open_transaction", None
    if claims is None:
        return "untold", None
    if "dead_lettered" in inside:
        return "dead_lettered", None
    for why in ("damaged", "settled", "gone"):
        if why in inside:
            return "lost", why
    return "in_ring", None
