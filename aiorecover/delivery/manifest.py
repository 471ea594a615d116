"""What a producer says of its own records, for audits: the manifests on the topic that ``audit_topic`` names. Pure.

Record ids have no gaps, so an audit sees which ids are not in Kafka; it cannot see why, nor what should stand behind
the last one. A manifest tells that, for one epoch of one directory:

    last            sequences 1 to ``last`` were given out so far
    sealed          and it will be no more: the epoch is closed, ``last`` is all that is left of it
    settled         everything up to this sequence is settled: delivered, or named below
    dead_lettered   these are dead letters: refused for good, too old (``delivery_timeout_ms``), undecodable
    skipped         these ids belong to no record: storing it failed, and `publish` raised
    damaged         these are gone from the ring, as far as its readers found out; of the retry ring, which does not
                    tell which are, all that was accepted between two records of which copies are left, or that was
                    moved by then behind the last one

So an id that is not in the topics is (`aiorecover.spark.judge`), the first that holds:

    dead-lettered   it is named as such
    skipped         it is named as such
    lost            it is damaged, or settled, or beyond the end of a sealed epoch
    in the ring     none of these: not settled, as far as is known

What stands in the topics is delivered, whatever manifests say: damage may be met in what was delivered before, and what
was refused by one process may be taken from the next.

Every claim only grows: numbers rise, ranges are added, sealed stays sealed. So all manifests of an epoch together are
read as the highest numbers and the union of the ranges. Repeats, disorder and an old manifest that stays do no harm,
and one that is left out is made good by the next of its kind. That is what makes at least once enough, without an
identity that Kafka knows, and without the ring: a manifest is no user's record, has no id, and is made anew from what
is known, instead of being kept.

Who tells
    An epoch is told of by the process that has it, from its first record on. What it leaves unsettled is settled by a
    later opening, which therefore tells of it, too, as ``told_by`` it: of the epoch right before its own, and of each
    epoch of which something stands in the main ring, or is a dead letter. So what was settled and not told before a
    crash is told then: by the watermark, and by the dead ring, which is read once for it. A closed epoch is sealed by
    its own process when that stops, with the last sequence that it gave out; after a crash by the next opening, as
    soon as it has read to the epoch's end. An epoch in which nothing was accepted is not told of.

    What a process accepted since its newest manifest nothing tells but its ring. In an outage that is all of the
    outage's, since manifests wait for Kafka as records do; so an audit calls an epoch open until that is told.

    After a power cut that took accepted records, the process that is gone has said more of ``last`` than is left: the
    seal of the next one is lower, and what lies between is lost, unless it is in the topics.

Where a manifest stands
    One record of JSON. Its key is ``producer id/epoch/told by/part``, and of one key only the newest counts: the topic
    may be compacted. With ``cleanup.policy=compact,delete`` and the retention of the topics with the records, what is
    told goes when the records do.

Bounds
    Ranges are cut into parts of `RANGES_MOST`, some 30 KB of JSON; numbers stand in each. What a full part says is told
    once, and forgotten as soon as Kafka has it. Where the audit topic takes nothing, `PARTS_MOST` are kept; what comes
    beyond them is left out, and the dead ring is read anew once the topic takes them (`Ledger.left_out`).

Limits of this version
    A dead letter that is purged before it was told (an interval of checkpoints, or as long as the audit topic takes
    nothing), by a process that then dies, is called lost. ``settled`` is the watermark, which goes slot by slot unless
    all is settled: what was lost of the newest slots is named once they are, and one record that waits, of a lane that
    does not get through, keeps all behind it in the ring, for an audit. An epoch of which nothing is left but in
    the retry ring is told of no further by openings behind the next one; nor is one sealed of which all was settled
    and recycled, if two processes in a row die before they could tell of it. A copy of a directory that is opened seals
    the epoch that the original may go on with: what that one accepts from then on is called lost until it is delivered.
    Of an epoch of which a power cut took everything no seal is told, so what its process had told of stays in the ring.
    What damage took from the retry ring before the first copy that is left in it, is told from the beginning of the
    epoch on: what was delivered then and is lost in Kafka is called damaged, too.
    An id that belongs to no record, noted by a process that died before it told that, is called lost.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

__all__ = ["VERSION", "Claim", "Kind", "Ledger", "Manifest", "News", "Ranges", "decode", "encode", "key_of"]

VERSION = 1
RANGES_MOST = 1000  # of one manifest, of all kinds together
PARTS_MOST = 64  # full ones that wait for the audit topic: 8 MB

Kind = Literal["dead_lettered", "skipped", "damaged"]
Pairs = tuple[tuple[int, int], ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the audit topic.

    Warning: the audit reads this by name and version: what changes its meaning is a new version.
    """

    producer_id: str
    epoch: int
    told_by: str
    """Producer id of the opening that tells; the epoch's own, or a later one of its directory."""
    part: int
    time_ms: int
    last: int
    settled: int
    sealed: bool
    dead_lettered: Pairs = ()
    skipped: Pairs = ()
    damaged: Pairs = ()
    version: int = VERSION


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Manifest).decode


def key_of(manifest: Manifest) -> bytes:
    """Of manifests with one key only the newest counts."""
    return f"{manifest.producer_id}/{manifest.epoch}/{manifest.told_by}/{manifest.part}".encode()


class Claim(NamedTuple):
    """How far an epoch has come."""

    producer_id: str
    epoch: int
    last: int
    settled: int
    sealed: bool


class Ranges:
    """Numbers as ranges, in order and apart: those that touch are one."""

    def __init__(self) -> None:
        """None."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._firsts)

    @property
    def pairs(self) -> Pairs:
        """First and last of each."""
        return tuple(zip(self._firsts, self._lasts, strict=True))

    def add(self, first: int, last: int) -> bool:
        """``first`` to ``last``; whether some of it is new."""
        begin = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if begin < end:
            if self._firsts[begin] <= first and last <= self._lasts[begin]:
                return False
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]
        return True


@dataclass(slots=True)
class _Part:
    ranges: dict[Kind, Ranges] = field(default_factory=dict)
    changes: int = 0
    told: int = -1

    @property
    def size(self) -> int:
        return sum(map(len, self.ranges.values()))

    def pairs(self, kind: Kind) -> Pairs:
        return self.ranges[kind].pairs if kind in self.ranges else ()


class _Account:
    """What is known of one epoch."""

    def __init__(self, producer_id: str, epoch: int) -> None:
        self.claim = Claim(producer_id, epoch, 0, 0, sealed=False)
        self.told: Claim | None = None
        self.number = 0  # of the part that is filled
        self.parts = {0: _Part()}  # it, and the full ones that were not told yet

    def grow(self, claim: Claim) -> None:
        """Nothing is ever taken back."""
        old = self.claim
        last, settled = max(old.last, claim.last), max(old.settled, claim.settled)
        self.claim = old._replace(last=last, settled=min(settled, last), sealed=old.sealed or claim.sealed)

    def note(self, kind: Kind, first: int, last: int) -> bool:
        """Whether the part that is filled is full now."""
        self.grow(self.claim._replace(last=last, settled=0))
        part = self.parts[self.number]
        if part.ranges.setdefault(kind, Ranges()).add(first, last):
            part.changes += 1
        if part.size < RANGES_MOST:
            return False
        self.number += 1
        self.parts[self.number] = _Part()
        return True

    def news(self) -> Iterator[int]:
        """Numbers of the parts that were not told as they are now, or whose epoch has come further."""
        if not self.claim.last:
            return
        for number, part in self.parts.items():
            untold = part.changes > max(part.told, 0)
            if untold or (number == self.number and self.claim != self.told):
                yield number


class News(NamedTuple):
    """A manifest to tell, and what `Ledger.told` needs to know of it."""

    manifest: Manifest
    changes: int
    claim: Claim


class Ledger:
    """What one opening has to tell, and what of it was told. State in, manifests out."""

    def __init__(self, told_by: str) -> None:
        """``told_by``: the opening's producer id."""
        self._told_by = told_by
        self._accounts: dict[tuple[str, int], _Account] = {}
        self._full = 0  # parts that are full and were not told
        self.left_out = False  # dead letters were, for want of room

    @property
    def full(self) -> bool:
        """Further dead letters are left out before some of what is known is told."""
        return self._full >= PARTS_MOST

    def claim(self, claims: Iterable[Claim]) -> None:
        """So far have epochs come."""
        for claim in claims:
            self._account(claim.producer_id, claim.epoch).grow(claim)

    def note(self, kind: Kind, producer_id: str, epoch: int, first: int, last: int) -> None:
        """What became of some sequences; noted again it does no harm."""
        if self.full:
            self.left_out = True
            return
        self._full += self._account(producer_id, epoch).note(kind, first, last)

    def _account(self, producer_id: str, epoch: int) -> _Account:
        key = producer_id, epoch
        if key not in self._accounts:
            self._accounts[key] = _Account(producer_id, epoch)
        return self._accounts[key]

    def news(self, now_ms: int, most: int | None = None) -> list[News]:
        """The manifests that say what was not told yet, or ``most`` of them; ``now_ms``: milliseconds since 1970."""
        untold = ((account, number) for account in self._accounts.values() for number in account.news())
        return [self._news_of(account, number, now_ms) for account, number in islice(untold, most)]

    def _news_of(self, account: _Account, number: int, now_ms: int) -> News:
        claim, part = account.claim, account.parts[number]
        manifest = Manifest(
            producer_id=claim.producer_id,
            epoch=claim.epoch,
            told_by=self._told_by,
            part=number,
            time_ms=now_ms,
            last=claim.last,
            settled=claim.settled,
            sealed=claim.sealed,
            dead_lettered=part.pairs("dead_lettered"),
            skipped=part.pairs("skipped"),
            damaged=part.pairs("damaged"),
        )
        return News(manifest, part.changes, claim)

    def told(self, news: Iterable[News]) -> None:
        """Kafka has them."""
        for manifest, changes, claim in news:
            account = self._account(manifest.producer_id, manifest.epoch)
            part = account.parts.get(manifest.part)
            if manifest.part == account.number:
                account.told = claim
            elif part is not None and part.changes == changes:
                del account.parts[manifest.part]
                self._full -= 1
                continue
            if part is not None:
                part.told = changes
