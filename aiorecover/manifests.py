"""Manifests: what a producer says of its own records on ``audit_topic``, for audits.

Record ids have no gaps, so an audit sees which ids are not in Kafka; it cannot see why, nor what should come after the
last one. A manifest says that of one epoch of one directory:

    last            sequences up to ``last`` were given out so far
    sealed          and no others will be: the epoch is over
    settled         everything up to this sequence is done: delivered, or named below
    dead_lettered   ranges of dead letters: refused for good, or too old (``delivery_timeout_ms``)
    damaged         ranges in which the ring was damaged, and what is not in the topics is gone

Each claim only grows, so all manifests of an epoch are read together: the highest numbers, the union of the ranges.
Repeats and disorder do no harm, and the next manifest makes up for one that is lost: at least once is enough, past the
ring, without an identity that Kafka knows.

A process reports its own epoch, and seals it when it stops. An opening reports each earlier epoch that it finds in the
ring, sealed, since nothing is added to it. Records settle epoch by epoch: where one of a later epoch is settled, all of
an earlier one are, reported or not. An epoch without records is not reported.

A manifest is one record of JSON. Its key is ``producer id/epoch/told_by/part``, where ``told_by`` is the epoch of the
process that reports; of one key the newest counts, so the topic may be compacted. Ranges are cut into parts of
`RANGES_MOST`; the newest part bears the numbers, and comes last.

Limits: what an epoch accepted after its newest manifest is in its ring alone. A dead letter that is purged before it
was reported, by a process that is killed then, is called lost. One record that waits keeps what was accepted after it
from being called settled.
"""

import asyncio
import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

import msgspec
from aiokafka import errors as kafka
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from aiorecover.errors import WalDestinationError, WalError
from aiorecover.kafka.client import FAILURES, ConnectError
from aiorecover.kafka.delivery import Delivery
from aiorecover.kafka.outcomes import outcome_of
from aiorecover.kafka.produce import ProduceRequest
from aiorecover.kafka.router import DEAD_TOPIC
from aiorecover.ring.lane import DEAD
from aiorecover.ring.records import DamagedRecordError, id_of, murmur2, walk
from aiorecover.ring.segments import Batch
from aiorecover.ring.writer import FIRST_SEQUENCE

VERSION = 1
RANGES_MOST = 1000  # of one manifest: some 30 KB of JSON
PARTS_MOST = 64  # full ones of an epoch that wait for Kafka; what comes beyond is left out until the next start
AT_ONCE = 16  # manifests of one request: half a MiB, which topics take by default
BATCH_BYTES = 1 << 20
TOPIC_UNKNOWN, NO_LEADER = 3, 5  # Kafka's error codes
REPLICAS_MS = 5000  # what the topic's replicas have for one request
STOP_S = 2.0  # what stopping waits for the last ones

Pairs = tuple[tuple[int, int], ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the audit topic. Audits read it by name: what changes its meaning is a new version."""

    producer_id: str
    epoch: int
    told_by: int
    part: int
    time_ms: int
    last: int
    settled: int
    sealed: bool
    dead_lettered: Pairs = ()
    damaged: Pairs = ()
    version: int = VERSION


encode = msgspec.json.Encoder().encode


def key_of(manifest: Manifest) -> bytes:
    """Return the record's key."""
    return f"{manifest.producer_id}/{manifest.epoch}/{manifest.told_by}/{manifest.part}".encode()


class Ranges:
    """Numbers as ranges, in order and apart: those that touch are one."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    @property
    def pairs(self) -> Pairs:
        """The first and last number of each range."""
        return tuple(zip(self._firsts, self._lasts, strict=True))

    def add(self, first: int, last: int) -> None:
        """Add the numbers from ``first`` to ``last``."""
        begin, end = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end], self._lasts[begin:end] = [first], [last]


class _Account:
    """One epoch: what is known of its records, and which of that was published."""

    def __init__(self) -> None:
        self.last = self.settled = self.part = 0
        self.sealed = False
        self.dead, self.damaged = Ranges(), Ranges()
        self.full: list[tuple[int, Pairs, Pairs]] = []  # parts that Kafka does not have yet
        self.published: Any = None

    def note(self, ranges: Ranges, first: int, last: int) -> None:
        if len(self.full) >= PARTS_MOST:
            return
        ranges.add(first, last)
        self.last = max(self.last, last)
        if len(self.dead) + len(self.damaged) >= RANGES_MOST:
            self.full.append((self.part, self.dead.pairs, self.damaged.pairs))
            self.part += 1
            self.dead, self.damaged = Ranges(), Ranges()

    @property
    def claims(self) -> Any:
        return self.part, self.last, self.settled, self.sealed, self.dead.pairs, self.damaged.pairs


class Manifests:
    """Tell the audit topic what became of the records of one directory."""

    def __init__(self, delivery: Delivery, topic: str, interval_s: float) -> None:
        self.delivery, self.ring, self.topic, self.interval_s = delivery, delivery.ring, topic, interval_s
        self._accounts: dict[int, _Account] = {}
        self._failures = 0  # in a row
        delivery.rewriter.on_dead_letters = self.note_dead_letters

    def note_dead_letters(self, ids: Iterable[tuple[int, int]]) -> None:
        """Take down the epochs and sequences of dead letters."""
        for epoch, sequence in ids:
            account = self._account(epoch)
            account.note(account.dead, sequence, sequence)

    def _account(self, epoch: int) -> _Account:
        return self._accounts.setdefault(epoch, _Account())

    async def run(self, lanes_filled: asyncio.Event) -> None:
        """Tell what is new at each interval; ``lanes_filled``: what earlier lives left is in the lanes."""
        await lanes_filled.wait()
        letters = list(self.ring.lane(DEAD_TOPIC, DEAD).queue)
        self.note_dead_letters(await asyncio.to_thread(self._ids, letters))
        while True:
            await self.tell()
            await asyncio.sleep(self.interval_s)

    def _ids(self, letters: list[Batch]) -> list[tuple[int, int]]:
        """Return epochs and sequences of dead letters; blocks."""
        found: list[tuple[int, int]] = []
        for batch in letters:
            if self.ring.closing:
                break
            with contextlib.suppress(DamagedRecordError, WalError):  # purged meanwhile, or the disk fails
                data = bytes(batch.read())
                found += [id_of(data, span[4])[1:] for span in walk(data)]
        return found

    async def finish(self) -> None:
        """Seal this epoch and report what is left; after the last record, while Kafka is still connected."""
        try:
            async with asyncio.timeout(STOP_S):
                await self.tell(sealed=True)
        except TimeoutError:
            self._failed("no answer in time")

    async def tell(self, *, sealed: bool = False) -> None:
        """Report what is new, if Kafka is there; ``sealed``: nothing more is accepted."""
        self._take_stock(sealed)
        connection = self.delivery.connection
        if not connection.connected or connection.cause is not None or self.delivery.failure is not None:
            return  # the log says why already
        try:
            for epoch, account in self._accounts.items():
                await self._tell_of(epoch, account)
        except (*FAILURES, ConnectError, WalDestinationError) as error:
            self._failed(str(error) or repr(error))
        else:
            self._failures = 0
            self.delivery.throttle.over("manifest_failed", self.topic, "manifests are taken topic=%s", self.topic)

    def _take_stock(self, sealed: bool) -> None:  # noqa: FBT001
        ring = self.ring
        own = self._account(ring.epoch)
        own.last, own.sealed = ring.next_sequence() - 1, sealed
        for epoch, last in ring.issued.items():
            account = self._account(epoch)
            account.last, account.sealed = max(account.last, last), True
        while ring.damages:
            epoch, first, last = ring.damages.popleft()
            account = self._account(epoch)
            account.note(account.damaged, first, last)
        if ring.recovering:
            return
        waiting = [oldest for lane in ring.lanes.values() if lane.partition != DEAD and (oldest := lane.oldest)]
        until = min(waiting, default=(ring.epoch + 1, 0))
        for epoch, account in self._accounts.items():
            if epoch <= until[0]:
                settled = account.last if epoch < until[0] else until[1] - 1
                account.settled = max(account.settled, min(settled, account.last))

    async def _tell_of(self, epoch: int, account: _Account) -> None:
        claims = account.claims
        if account.last < FIRST_SEQUENCE or claims == account.published:
            return
        full = account.full[:]
        manifests = [self._manifest(epoch, part, dead_lettered=dead, damaged=bad) for part, dead, bad in full]
        part, last, settled, sealed, dead, bad = claims
        numbers = {"last": last, "settled": settled, "sealed": sealed}
        manifests.append(self._manifest(epoch, part, dead_lettered=dead, damaged=bad, **numbers))
        for start in range(0, len(manifests), AT_ONCE):
            await self._produce(manifests[start : start + AT_ONCE])
        account.published = claims
        del account.full[: len(full)]

    def _manifest(self, epoch: int, part: int, **claims: Any) -> Manifest:
        return Manifest(
            producer_id=self.ring.producer_id,
            epoch=epoch,
            told_by=self.ring.epoch,
            part=part,
            time_ms=self.ring.files.now_ms(),
            **{"last": 0, "settled": 0, "sealed": False, **claims},
        )

    async def _produce(self, manifests: list[Manifest]) -> None:
        """Produce to one partition, always the same: compaction knows no other.

        Raises:
            KafkaError, OSError, RuntimeError, TimeoutError, ConnectError: Kafka may not have them.

        """
        client = self.delivery.client
        found = client.metadata.topics.get(self.topic)
        if found is None or not found.leaders or self._failures:
            stale = client.stale
            found = (await client.refresh([self.topic], create=True)).topics.get(self.topic)
            client.stale = stale
        if found is None or not found.leaders:
            raise _error(TOPIC_UNKNOWN if found is None else found.code)
        partition = murmur2(self.ring.producer_id.encode()) % len(found.leaders)
        node = found.leaders.get(partition, -1)
        if node < 0:
            raise _error(NO_LEADER)
        request = ProduceRequest(None, REPLICAS_MS, [(self.topic, partition, [_batch_of(manifests)])])
        limit = self.delivery.request_timeout_s + REPLICAS_MS / 1000
        (answer,) = (await client.produce(node, request, apart=True, timeout_s=limit)).partitions
        if answer.code:
            raise _error(answer.code)

    def _failed(self, cause: str) -> None:
        """Warn at the second failure in a row: a leader may move at any time."""
        self._failures += 1
        if self._failures > 1:
            message = "%s: records are delivered as ever, audits know less topic=%s"
            self.delivery.throttle.warn("manifest_failed", self.topic, message, cause, self.topic)


def _error(code: int) -> kafka.KafkaError:
    return kafka.for_code(code)(outcome_of(code).reason)


def _batch_of(manifests: list[Manifest]) -> bytes:
    """Return a Kafka batch without an identity."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, BATCH_BYTES)
    for offset, manifest in enumerate(manifests):
        builder.append(offset, manifest.time_ms, key_of(manifest), encode(manifest), [])
    return bytes(builder.build())
