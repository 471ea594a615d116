"""One or two partitions of 51 stuck for minutes, under steady load: what that costs the others, and the disk.

Why they are stuck: `stuck`. A record for every partition comes so many times a second, by the clock and not by what is
delivered. There are five phases, one right behind the other:

    before     nothing is harmed
    moving     from the harm on: the lanes that are stuck move to a session of their own
    stuck      until the brokers are mended, which begins the next one
    caught up  until nothing waits for them any more, in whole spans of ten seconds: also where that takes two
    healed     all of them are well

In spans of some seconds each what the slowest of the others and all of them together got through is held against what
was published then. Nothing is chosen among the spans but before and behind all harm: there the first one counts in
which everything kept its pace, as a machine that is too busy for that can tell nothing. What stood still within a span,
and caught up in it, is not seen at its end; so several times a second is looked how long the oldest record of the
others has waited: once the lanes have moved, never so long that anybody would be below the rate in any ten seconds.

As often the size of the ring and of the retry ring is held against what waits for the partitions that are stuck. (While
that is caught up, against what waited for them when the brokers were mended: a slot is freed by the checkpoint behind
the acknowledgement.) At last everything is read back and judged by record id.
"""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import uvloop

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.record import encode
from tests.crash.counts import uneven
from tests.crash.stuck import IN_SYNC, Cause
from tests.support import admin
from tests.support.admin import View
from tests.support.broker import KafkaCluster
from tests.support.eventually import until
from tests.support.oracle import Accepted, Verdict, judge, read_topic

__all__ = ["KEPT", "PARTITIONS", "SLOTS_BESIDE", "SLOT_BYTES", "Sample", "Span", "Stall", "run_stalled"]

PARTITIONS = 51
KEPT = 0.9  # of what is published meanwhile
TIMES = 2  # what waits may take so many times its bytes in the two rings …
SLOTS_BESIDE = 4  # … and so many slots
SLOT_BYTES = 1 << 19
RATE = 40  # records a second, of each partition: two cores carry that easily, and four slots are more than their pauses
SPAN_S = 10.0  # seconds of each span at most: of a busy machine, too, half a second is not a tenth
_HELD_UP_MOST_S = 8.0  # at any moment: twice what it took lanes to get a session apart
_BEHIND_MOST_S = SPAN_S * (1 - KEPT)  # who is further behind got through less than it may in the ten seconds until then
_BESIDE_HARM = ("stuck", "caught up")  # phases in which that is so at any moment: the lanes have moved
_SPANS_AT_PACE = 6  # beside no harm: a machine that is too busy for all of them proves nothing
_TICK_S = 0.125  # some records of each partition at once, which make a batch: the brokers share the cores with us
_LOOK_S = 0.25
_FREED_S = 1.0  # seconds from the last acknowledgement on in which a checkpoint frees what it had kept
_FILLER = b"x" * 180
_FRAME_BYTES = 20  # of a record in the ring, beside what it is; its end is aligned to 8
_BACK_WITHIN_S = 60.0  # and as long as it lasted: that much waits
_TOLD_WITHIN_S = 30.0
_FLUSH_MS = 120_000
_READ_WITHIN_S = 300.0
_EXAMPLES = 5
_MOVED = 3  # of so many slots that were filled while it was stuck, one at least has to be moved, or nothing is proved


@dataclass(frozen=True)
class Span:
    """Some seconds of a phase; shares of what was published in them."""

    phase: str
    slowest: float
    """Of the partitions that are well."""
    total: float
    published: float = 1.0
    """Of what was to be published then: a busy machine comes late, and makes up for it in the next span."""

    @property
    def kept(self) -> bool:
        """Whether the partitions that are well kept their rate, and records came at their pace."""
        return min(self.slowest, self.total, self.published) >= KEPT

    def __str__(self) -> str:
        return f"{self.phase}: slowest={self.slowest:.3f} total={self.total:.3f} published={self.published:.3f}"


@dataclass(frozen=True)
class Sample:
    """The two rings, at a moment; ``at``: seconds since the harm."""

    at: float
    waiting: int
    """Bytes of the frames that wait for the partitions that are stuck, as the others are while no broker answers."""
    rings: int
    """Bytes of the slots of both rings that hold something."""
    allocated: int
    """Bytes of the files."""
    behind_s: float = 0.0
    """For how long the oldest record had waited that one of the other partitions had not got through."""
    phase: str = "moving"
    """In which that was, up to the beginning of the next one."""

    @property
    def over(self) -> int:
        """Bytes beyond what they may be; negative where they are below."""
        return self.rings - TIMES * self.waiting - SLOTS_BESIDE * SLOT_BYTES


@dataclass(frozen=True)
class Stall:
    """What became of the records, of the other partitions' rate, and of the rings."""

    verdict: Verdict
    cause: Cause
    seconds: float
    """For which it lasted."""
    came: int
    """Records that were published meanwhile for the partitions that were stuck."""
    waiting: int
    """Records that waited for them in the end."""
    filled: int
    """Bytes that were published meanwhile."""
    moved: int
    """Slots."""
    caught_up_s: float
    """From the moment when the brokers served again until nothing waited for them any more."""
    unlike: Sequence[str] = ()
    """What the brokers told of these partitions at the end of it that is not of its cause."""
    complaints: Sequence[str] = ()
    """Counts of the process that did not add up (I9)."""
    spans: Sequence[Span] = ()
    samples: Sequence[Sample] = field(default=(), repr=False)

    def __str__(self) -> str:
        rates = " ".join(
            f"{phase}: slowest={min(one.slowest for one in spans):.3f} total={min(one.total for one in spans):.3f} "
            f"published={_mean(spans):.3f} held_up_s={self._held_up_s(phase):.2f}"
            for phase, spans in self._phases().items()
        )
        worst = max(self.samples, key=lambda sample: sample.over)
        largest = max(self.samples, key=lambda sample: sample.rings)
        return (
            f"{self.verdict} {self.cause.name}_s={self.seconds:.0f} stuck={len(self.cause.places)} "
            f"came={self.came} waiting={self.waiting} filled_mb={self.filled / 1e6:.1f} "
            f"slots_moved={self.moved} caught_up_s={self.caught_up_s:.1f} shares of each span: {rates} "
            f"most_over_slots={worst.over / SLOT_BYTES:.1f} at={worst.at:.1f}s waiting_kb={worst.waiting / 1e3:.0f} "
            f"rings_mb_most={largest.rings / 1e6:.2f} for_waiting_mb={largest.waiting / 1e6:.2f} "
            f"files_mb_most={max(sample.allocated for sample in self.samples) / 1e6:.1f} "
            f"held_up_s={self._held_up_s():.1f} samples={len(self.samples)}"
        )

    def _held_up_s(self, *phases: str) -> float:
        """How long at the most a neighbour was held up in these, without any: at all."""
        return max((one.behind_s for one in self.samples if not phases or one.phase in phases), default=0.0)

    def _phases(self) -> dict[str, list[Span]]:
        return {span.phase: [one for one in self.spans if one.phase == span.phase] for span in self.spans}

    def wrong(self) -> list[str]:
        """Which promise was broken, and what there was too little of to prove anything, in words."""
        found = [
            f"a neighbour below {KEPT} of the rate: {one}" for one in self.spans if min(one.slowest, one.total) < KEPT
        ]
        found += [
            f"published below {KEPT} of the pace: {phase}"
            for phase, spans in self._phases().items()
            if _mean(spans) < KEPT
        ]
        if self._held_up_s() > _HELD_UP_MOST_S:
            found.append(f"a neighbour was held up for {self._held_up_s():.1f} s")
        found += [
            f"a neighbour below {KEPT} of the rate for ten seconds: {phase}: held up for {self._held_up_s(phase):.1f} s"
            for phase in _BESIDE_HARM
            if self._held_up_s(phase) > _BEHIND_MOST_S
        ]
        over = [sample for sample in self.samples if sample.over > 0]
        if over:
            most = max(over, key=lambda sample: sample.over)
            found.append(f"rings beyond their bound in {len(over)} of {len(self.samples)} looks, at the most {most}")
        if not self.verdict.ok or self.verdict.repeated or self.verdict.foreign:
            found.append(str(self.verdict))
        found += [*self.complaints, *self.unlike, *self.cause.too_short(self.seconds)]
        if not self.came or self.waiting < KEPT * self.came:
            found.append(f"too little was stuck: waiting={self.waiting} came={self.came}")
        if self.filled <= _bound(self.samples) or self.moved * SLOT_BYTES * _MOVED < self.filled:
            found.append(f"too little was moved: slots_moved={self.moved} filled={self.filled}")
        return found


def _mean(spans: Sequence[Span]) -> float:
    """Of the pace, how much was published."""
    return fmean(one.published for one in spans)


def _bound(samples: Sequence[Sample]) -> int:
    return max((sample.rings - sample.over for sample in samples), default=0)


def run_stalled(
    cluster: KafkaCluster, directory: Path, cause: Cause, *, seconds: float, around: float = SPAN_S
) -> Stall:
    """Let the partitions be stuck for so many ``seconds``; ``around``: before it and behind it."""
    nodes = [node.node_id for node in cluster.nodes]
    topic, well = f"stalled-{os.urandom(4).hex()}", itertools.cycle([nodes[:2], nodes[1::-1]])
    replicas = {partition: next(well)[: cause.replicas] for partition in range(PARTITIONS)}
    replicas |= {partition: [nodes[number] for number in places] for partition, places in cause.places.items()}
    in_sync = {"min.insync.replicas": str(IN_SYNC)}
    admin.run(admin.create_placed_topic(cluster.bootstrap_servers, topic, replicas, in_sync))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Run(cluster, directory, topic, cause).through(seconds, around))


class _Run:
    """One of them."""

    def __init__(self, cluster: KafkaCluster, directory: Path, topic: str, cause: Cause) -> None:
        self._cluster = cluster
        self._topic = topic
        self._cause = cause
        self._well = [lane for lane in range(PARTITIONS) if lane not in cause.places]
        self._delivered: Counter[int | None] = Counter()
        self._published = 0  # of each partition
        self._published_at: list[float] = []  # each of these
        self._phase = "before"
        self._accepted: list[Accepted] = []
        self._spans: list[Span] = []
        self._samples: list[Sample] = []
        self._complaints: list[str] = []
        self._harmed = float("inf")  # when
        self._silenced = 0  # so many records of all partitions have waited for a broker that answers
        self._came_back = 0  # so many records waited then, until they are caught up
        self._producer = RecoverableProducer(
            directory / "wal",
            bootstrap_servers=cluster.bootstrap_servers,
            on_delivery=self._on_delivery,
            slot_bytes=SLOT_BYTES,
            max_batch_size=16 * 1024,
        )
        record = (topic, None, _value(0), PARTITIONS - 1, time.time_ns() // 1_000_000, None, None, None)
        self._frame_bytes = -(-(_FRAME_BYTES + len(encode(record))) // 8) * 8

    async def through(self, seconds: float, around: float) -> Stall:
        """Phase after phase."""
        async with self._producer as producer:
            await self._warm_up()
            async with self._at_work(self._publish), self._at_work(self._look):
                await self._measure_at_pace("before", around)
                published, moved = self._published, producer.statistics().slots_moved
                began = self._harmed = time.monotonic()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._measure("moving", self._cause.moving_s))
                    await asyncio.to_thread(self._cause.harm, self._cluster.nodes[-1])
                await self._measure("stuck", seconds - self._cause.moving_s)
                unlike = await self._unlike()
                moved = producer.statistics().slots_moved - moved
                waiting, published = self._waiting(), self._published - published
                self._came_back, lasted = waiting, time.monotonic() - began
                async with asyncio.TaskGroup() as tasks:
                    catching_up = tasks.create_task(self._catch_up(lasted))
                    while not catching_up.done():
                        await self._measure("caught up", SPAN_S)
                await self._measure_at_pace("healed", around)
            await producer.flush(_FLUSH_MS)
        return Stall(
            await self._judged(),
            self._cause,
            lasted,
            published * len(self._cause.places),
            waiting,
            published * PARTITIONS * self._frame_bytes,
            moved,
            catching_up.result(),
            unlike=unlike,
            complaints=self._complaints[:_EXAMPLES],
            spans=self._spans,
            samples=self._samples,
        )

    async def _catch_up(self, lasted: float) -> float:
        """Mend the brokers; how long what waits takes from then on."""
        await asyncio.to_thread(self._cluster.heal)
        back = time.monotonic()
        await until(lambda: self._waiting() <= RATE * len(self._cause.places), _BACK_WITHIN_S + lasted)
        caught_up = time.monotonic()
        await asyncio.sleep(_FREED_S)
        self._came_back = 0
        return caught_up - back

    async def _unlike(self) -> list[str]:
        """What a node that is well tells of the partitions that are stuck."""

        async def ask() -> View | None:
            views = await admin.ask_every_node(self._cluster.bootstrap_servers, self._topic)
            return next((view for view in views.values() if view.leaders), None)

        try:
            asking = admin.until(ask, timeout_s=_TOLD_WITHIN_S, what="nobody tells of the partitions")
            view = await asyncio.to_thread(admin.run, asking)
        except TimeoutError as error:
            return [str(error)]
        return self._cause.unlike(view, [node.node_id for node in self._cluster.nodes])

    async def _warm_up(self) -> None:
        """Fresh partitions are slow at first."""
        for _ in range(RATE):
            await self._publish_each()
        await self._producer.flush(_FLUSH_MS)

    @asynccontextmanager
    async def _at_work(self, work: Callable[[], Any]) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(work())
            yield
            working.cancel()

    async def _publish(self) -> None:
        """By the clock: what a late turn has missed follows at once."""
        began, first = time.monotonic(), self._published
        while True:
            while self._published - first < (time.monotonic() - began) * RATE:
                await self._publish_each()
            await asyncio.sleep(_TICK_S)

    async def _publish_each(self) -> None:
        self._published += 1
        self._published_at.append(time.monotonic())
        for partition in range(PARTITIONS):
            value = _value(len(self._accepted))
            receipt = await self._producer.publish(self._topic, value, partition=partition)
            self._accepted.append(Accepted(receipt.record_id, None, value[:_DIGITS], partition))

    def _on_delivery(self, report: DeliveryReport) -> None:
        self._delivered[report.partition] += 1

    async def _measure_at_pace(self, phase: str, seconds: float) -> None:
        """Where nothing is harmed, and nothing caught up: what counts is the first span that the machine has time for.

        Elsewhere a span in which a neighbour is slow is what is looked for, and none is measured in its stead.
        """
        for _ in range(_SPANS_AT_PACE):
            self._spans = [one for one in self._spans if one.phase != phase]
            await self._measure(phase, seconds)
            if all(one.kept for one in self._spans if one.phase == phase):
                return

    async def _measure(self, phase: str, seconds: float) -> None:
        """Span by span."""
        self._phase = phase
        for _ in range(max(1, round(seconds / SPAN_S))):
            before, published, began = self._delivered.copy(), self._published, time.monotonic()
            await asyncio.sleep(min(seconds, SPAN_S))
            wanted, published = (time.monotonic() - began) * RATE, self._published - published
            got = [self._delivered[lane] - before[lane] for lane in self._well]
            slowest, total = (got_so / max(1, published) for got_so in (min(got), sum(got) / len(got)))
            self._spans.append(Span(phase, slowest, total, published / wanted))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            at = time.monotonic() - self._harmed
            now = self._producer.statistics()
            self._complaints += uneven(msgspec.structs.asdict(now))
            rings = now.bytes_ring + now.bytes_retry
            waiting = max(self._held_up(at), self._waiting(), self._came_back) * self._frame_bytes
            self._samples.append(Sample(at, waiting, rings, now.bytes_allocated, self._behind_s(), self._phase))

    def _behind_s(self) -> float:
        slowest = min(self._delivered[lane] for lane in self._well)
        return time.monotonic() - self._published_at[slowest] if slowest < self._published else 0.0

    def _held_up(self, at: float) -> int:
        """Records of all partitions that waited at most while no broker answers; as for those that come back."""
        if not self._cause.silent or not 0 <= at < self._cause.moving_s:
            return 0
        self._silenced = max(self._silenced, self._published * PARTITIONS - self._delivered.total())
        return self._silenced

    def _waiting(self) -> int:
        return sum(self._published - self._delivered[lane] for lane in self._cause.places)

    async def _judged(self) -> Verdict:
        servers = self._cluster.bootstrap_servers
        there = await read_topic(servers, self._topic, timeout_s=_READ_WITHIN_S)
        numbered = (one._replace(value=one.value[:_DIGITS] if one.value is not None else None) for one in there)
        return judge(self._accepted, numbered, whole_lanes=True)


_DIGITS = 10


def _value(number: int) -> bytes:
    """All are of one size."""
    return b"%0*d:%b" % (_DIGITS, number, _FILLER)
