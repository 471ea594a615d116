"""Publishes manifests (`delivery.manifest` says what they claim) to the topic that ``audit_topic`` names.

As often as checkpoints are made, where there is news. What they say is captured then, in one turn of the loop, from
what the rings and the dead letters know anyway: nothing is done for it when a record is published or delivered.

They go past the ring, over a session of their own, without an identity: what they say is said again. So an audit topic
that is not there, may not be written to, or does not answer, holds up nothing: one warning for each kind of trouble,
and one line when it is over.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress

from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from aiorecover.delivery.batch import CODECS, LaneBatch
from aiorecover.delivery.dead_letters import DeadLetters, Found
from aiorecover.delivery.frames import Named
from aiorecover.delivery.manifest import Claim, Ledger, News, encode, key_of
from aiorecover.delivery.partitioner import partition_for
from aiorecover.delivery.session import Session, SessionLostError
from aiorecover.delivery.sessions import Sessions
from aiorecover.errors import ClosedError
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.epochs import settled_in
from aiorecover.wal.losses import beside

log = logging.getLogger("aiorecover")

CONNECT_LIMIT = 10.0  # seconds for the session; what is told later is as good
SEND_LIMIT = 30.0  # seconds for one batch
FINISH_LIMIT = 2.0  # seconds of a stop's time: records have waited for theirs before
AT_ONCE = 8  # manifests between two turns of the loop: some 2 ms, if they are full
ROUNDS = 64
HEADER_BYTES = 512  # of a batch and of a record in it, beside key and value


class Manifests:
    """The loop that tells, and what it tells of."""

    def __init__(
        self,
        topic: str,
        interval: float,
        directory: Directory,
        dead: DeadLetters,
        sessions: Sessions,
        *,
        codec: str | None,
        batch_bytes: int,
    ) -> None:
        """``interval``: seconds between two looks for news; ``codec``: the compression type."""
        self._topic = topic
        self._interval = interval
        self._directory = directory
        self._dead = dead
        self._sessions = sessions
        self._codec = CODECS[codec]
        self._batch_bytes = batch_bytes
        self._session: Session | None = None  # before there is something to tell
        self._ledger = Ledger(directory.producer_id)
        self._owners = {fmt.parts(directory.ring.last_position)[0]: directory.producer_id}  # producer ids of epochs
        self._lasts: dict[int, int] = {}  # and the last sequence of each that is known of
        self._damage = self._copies_damage = 0  # places that were noted, in the main and in the retry ring
        self._trouble: str | None = None  # that was told of
        self._unread = True  # the dead ring has to be gone through
        self._looked = 0.0
        self.published = 0

    # -- what there is to tell ---------------------------------------------------------------------------------------

    def bury(self, named: Named) -> None:
        """A record became a dead letter."""
        self._note_dead(named.position, named.nonce)

    def _note_dead(self, position: int, nonce: int) -> None:
        if not nonce:  # it rotted: nobody knows its id
            return
        owner = fmt.producer_text(fmt.with_nonce(self._directory.checkpoint.producer_id, nonce))
        epoch, sequence = fmt.parts(position)
        self._ledger.note("dead_lettered", owner, epoch, sequence, sequence)

    def _capture(self, *, sealed: bool) -> None:
        """``sealed``: nothing is accepted any more."""
        self._ledger.claim(self._claims(sealed=sealed))
        if not self._ledger.full:  # else they are told later: they come only once
            self._note_gone()

    def _news(self) -> list[News]:
        """Some at a time: there may be megabytes, and others wait for the loop."""
        return self._ledger.news(time.time_ns() // 1_000_000, AT_ONCE)

    def _claims(self, *, sealed: bool) -> Iterator[Claim]:
        ring, settled_up_to = self._directory.ring, self._directory.settled_up_to()
        for producer_id, epoch, last, final in self._directory.epochs.look(ring.damage):
            owner = self._owners[epoch] = fmt.producer_text(producer_id)
            self._lasts[epoch] = last
            yield Claim(owner, epoch, last, settled_in(epoch, settled_up_to, last), final)
        settled = settled_in(ring.epoch, settled_up_to, ring.sequence)
        self._lasts[ring.epoch] = ring.sequence
        yield Claim(self._directory.producer_id, ring.epoch, ring.sequence, settled, sealed)

    def _note_gone(self) -> None:
        ring = self._directory.ring
        for epoch, sequence in map(fmt.parts, ring.take_skipped()):
            if epoch in self._owners:
                self._ledger.note("skipped", self._owners[epoch], epoch, sequence, sequence)
        for damage in ring.damage[self._damage :]:
            if damage.epoch in self._owners:
                self._ledger.note("damaged", self._owners[damage.epoch], damage.epoch, damage.first, damage.last)
        self._damage = len(ring.damage)
        copies = self._directory.retry.damage
        for damage in copies[self._copies_damage :]:
            self._note_copies(*beside(damage))
        self._copies_damage = len(copies)

    def _note_copies(self, after: int, before: int) -> None:
        """All that was accepted in between, of which some copies are gone; what was delivered stands in the topics."""
        up_to = before - 1 if before else self._directory.ring.moved_up_to
        for epoch, owner in self._owners.items():
            start = fmt.position(epoch, 0)
            first, last = max(1, after + 1 - start), min(self._lasts.get(epoch, 0), up_to - start)
            if first <= last:
                self._ledger.note("damaged", owner, epoch, first, last)

    # -- telling -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever: first what earlier processes left in the dead ring, then what comes."""
        while True:
            self._looked = asyncio.get_running_loop().time()
            if self._unread:
                await self._read_dead_letters()
            await self._tell(sealed=False)
            self._unread = self._unread or (self._ledger.left_out and not self._ledger.full)
            await asyncio.sleep(self._interval)

    async def finish(self) -> None:
        """Seal the epoch: nothing is accepted any more. Where that takes too long, the next opening does it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_LIMIT):
                await self._tell(sealed=True)

    async def _read_dead_letters(self) -> None:
        """Letters are read on as far as there is room for what they say; else all are, the next time."""
        self._ledger.left_out = False
        async with aclosing(self._dead.letters()) as letters:
            async for found in letters:
                self._note_found(found)
                if self._ledger.full or asyncio.get_running_loop().time() - self._looked >= self._interval:
                    self._looked = asyncio.get_running_loop().time()
                    await self._tell(sealed=False)
                if self._ledger.left_out:
                    return
        self._unread = False

    def _note_found(self, found: Found) -> None:
        if found.letter is not None:
            self._note_dead(found.position, found.nonce)

    async def _tell(self, *, sealed: bool) -> None:
        self._capture(sealed=sealed)
        if self._sessions.healthy.state != "connected":  # its own lines say why
            return
        try:
            for _ in range(ROUNDS):  # the rest is told the next time, should more come than goes
                if not (news := self._news()):
                    break
                await self._send(news)
        except ClosedError:  # what was not told is told by the next opening
            return
        except (KafkaError, OSError) as error:  # TimeoutError is an OSError
            self._tell_trouble(error)
        else:
            if self._trouble is not None:
                log.info("manifests are published again topic=%s", self._topic)
            self._trouble = None

    def _tell_trouble(self, error: Exception) -> None:
        """One line for each kind of trouble."""
        kind = type(error).__name__
        if kind != self._trouble:
            message = "no manifests are published, records are delivered as ever: check the audit topic"
            log.warning("%s audit_topic=%s error=%s", message, self._topic, repr(error))
        self._trouble = kind

    async def _send(self, news: Sequence[News]) -> None:
        session = self._connected_to()
        if not await session.connected_within(CONNECT_LIMIT):
            raise SessionLostError
        partitions = session.partitions(self._topic)
        if not partitions:
            await session.discover()
            partitions = session.partitions(self._topic)
        if not partitions:
            raise UnknownTopicOrPartitionError(self._topic)
        for partition, batch, part in self._batches(news, len(partitions)):
            async with asyncio.timeout(SEND_LIMIT):
                await session.send(batch, self._topic, partition)
            self._ledger.told(part)
            self.published += len(part)

    def _connected_to(self) -> Session:
        if self._session is None:
            self._session = self._sessions.beside("manifests")
            self._session.want(self._topic)
            self._session.start()
        return self._session

    def _batches(self, news: Sequence[News], count: int) -> Iterator[tuple[int, LaneBatch, list[News]]]:
        """Partition, batch and what it holds; of each key in the order of ``news``."""
        by_partition: dict[int, list[News]] = {}
        for one in news:
            by_partition.setdefault(partition_for(key_of(one.manifest), count), []).append(one)
        for partition, told in by_partition.items():
            while told:
                batch, taken = self._batch_of(told)
                yield partition, batch, told[:taken]
                del told[:taken]

    def _batch_of(self, news: Sequence[News]) -> tuple[LaneBatch, int]:
        """As many of them as fit, one at least, and how many."""
        first = news[0].manifest
        size = max(self._batch_bytes, len(encode(first)) + len(key_of(first)) + HEADER_BYTES)
        batch = LaneBatch(size, self._codec)
        for manifest, _, _ in news:
            if batch.add(batch.count, manifest.time_ms, key_of(manifest), encode(manifest), []) is None:
                break
            batch.count += 1
        batch.finish()
        return batch, batch.count
