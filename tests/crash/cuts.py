"""Power cuts in the steps of a transaction: what the disk has kept is opened by the next process.

A chain of lives of one `Machine`, with a real broker. In each of them a worker makes records from a stream of
numbers (the `source` of each), until the power goes at one step of a transaction. The next life has what a power cut
leaves of the disk, by a seed, and nothing that the old one would still write reaches the broker: a request was written
and arrives, or it is never written, or the network held it up and it comes while the new life has long begun
(`crash_points.LOST_REQUESTS`). That one goes on with the number that `source_positions` says. The last one delivers to
the end; then a plain consumer that reads what is committed tells:

    missing      nothing that a flush had covered; with ``fsync="always"`` nothing that was accepted
    repeated     no record; and a number of the stream only where the power took some before it, and left its record:
                 what was committed and is gone from the ring would be made once more, under another id (I11)
    left out     no number: behind what the power took all is made again
    positions    none given to two records (I5)
    order        that of the ids, for each key
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from aiokafka import TopicPartition

from aiorecover import RecoverableProducer
from tests.crash.machines import Machine, MemoryMachine
from tests.crash.power_cut import Cut, PowerCut
from tests.support.broker import Cluster
from tests.support.oracle import Accepted, Consumed, judge, read_topic

if TYPE_CHECKING:
    from tests.crash.late import Late

__all__ = ["PARTITIONS", "Verdict", "play"]

PARTITIONS = 6
_KEYS = 17
_SOURCE: Final = TopicPartition("numbers", 0)
_BURST = 10  # records between two pauses
_PAUSE_S = 0.003
_WRITTEN_BACK = 0.02  # of the bursts: the kernel writes something
_LATE_S = (0.0, 0.4)  # the next life has read the position in the middle of that
_LAST = 50  # numbers of the last life
_OFTEN_MS = 20
_REACHED_WITHIN_S = 30.0
_FLUSH_MS = 60_000
_EXAMPLES = 5


@dataclass
class Verdict:
    """What became of the records of all lives."""

    cuts: int = 0
    accepted: int = 0
    delivered: int = 0
    missing: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: int = 0
    """Accepted, covered by no flush, and gone with the power: allowed."""
    late: int = 0
    """Requests that came in the life after theirs."""

    @property
    def ok(self) -> bool:
        """Nothing missing, repeated, out of order or otherwise wrong."""
        return not (self.missing or self.repeated or self.out_of_order or self.wrong)

    def __add__(self, other: "Verdict") -> "Verdict":
        """Of both together."""
        return Verdict(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def __str__(self) -> str:
        counts = f"cuts={self.cuts} accepted={self.accepted} delivered={self.delivered} missing={len(self.missing)} "
        counts += (
            f"repeated={len(self.repeated)} out_of_order={len(self.out_of_order)} lost={self.lost} late={self.late}"
        )
        examples = [*self.missing, *self.repeated, *self.out_of_order, *self.wrong][:_EXAMPLES]
        return "\n  ".join([f"{'ok' if self.ok else 'NOT OK'}: {counts}", *examples])


async def play(cluster: Cluster, topic: str, cuts: Sequence[Cut], machine: Machine | None = None) -> Verdict:
    """One life after the other, each ended by a cut, and a last one; the topic is new.

    ``machine``: which has an empty disk; None: one with a disk in memory.
    """
    chain = Chain(cluster.bootstrap_servers, topic, machine or MemoryMachine())
    for cut in cuts:
        await chain.live(cut)
    await chain.live_on()
    chain.close()
    return chain.judge(await read_topic(cluster.bootstrap_servers, topic, isolation_level="read_committed"))


class Chain:
    """Lives on one disk."""

    def __init__(self, servers: str, topic: str, machine: Machine) -> None:
        self._servers = servers
        self._topic = topic
        self._machine = machine
        self._accepted: list[Accepted] = []
        self._surely: set[str] = set()  # ids
        self._left: set[str] = set()  # ids that no flush had covered, and a power cut has left
        self._made = 0  # of the stream, by the last life
        self._cuts = 0
        self._late: list[Late] = []

    async def live(self, cut: Cut) -> None:
        power = PowerCut(self._machine, cut)
        often = "checkpoint" in cut.point or cut.seed % 3 == 0
        producer = self._producer(fsync=cut.fsync, **({"checkpoint_interval_ms": _OFTEN_MS} if often else {}))
        with power.armed():
            work = asyncio.create_task(self._work(producer, power))
            gone = asyncio.create_task(power.gone.wait())
            await asyncio.wait({work, gone}, timeout=_REACHED_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            reached = power.gone.is_set()
            for task in (work, gone):
                task.cancel()
            ended = await asyncio.gather(work, gone, return_exceptions=True)
            await producer.stop(timeout_ms=0)
        assert reached, f"never reached: {cut} {ended}"
        self._take(power)

    def _take(self, power: PowerCut) -> None:
        self._cuts += 1
        self._machine.restart()
        self._accepted += power.accepted
        self._surely.update(record.record_id for record in power.accepted[: power.surely])
        self._left |= self._machine.ids() - self._surely
        if power.late is not None:
            self._late.append(power.late)
            asyncio.get_running_loop().call_later(power.rng.uniform(*_LATE_S), power.late.arrive)

    async def live_on(self) -> None:
        """Work some more, and deliver all."""
        async with self._producer() as producer:
            first = await self._first(producer)
            for number in range(first, first + _LAST):
                self._accepted.append(await self._make(producer, number))
            await producer.flush(timeout_ms=_FLUSH_MS)
        self._made = first + _LAST
        self._surely.update(record.record_id for record in self._accepted[-_LAST:])

    def _producer(self, **options: Any) -> RecoverableProducer:
        return RecoverableProducer(
            self._machine.wal_dir,
            bootstrap_servers=self._servers,
            guarantee="exactly_once",
            wal_min_free_bytes=0,
            slot_bytes=1 << 14,
            linger_ms=1,
            **options,
        )

    async def _work(self, producer: RecoverableProducer, power: PowerCut) -> None:
        accepted, rng = power.accepted, power.rng
        await producer.start()
        for number in count(await self._first(producer)):
            accepted.append(await self._make(producer, number))
            if number % _BURST == 0:
                await asyncio.sleep(_PAUSE_S)
                if rng.random() < _WRITTEN_BACK:
                    self._machine.write_back(rng.randrange(1 << 32))

    async def _first(self, producer: RecoverableProducer) -> int:
        return (await producer.source_positions()).get(_SOURCE, 0)

    async def _make(self, producer: RecoverableProducer, number: int) -> Accepted:
        key, value = b"k%d" % (number % _KEYS), b"%d" % number
        receipt = await producer.publish(self._topic, value, key=key, source=(*_SOURCE, number))
        return Accepted(receipt.record_id, key, value)

    def close(self) -> None:
        for late in self._late:
            late.close()

    # -- the judgement ------------------------------------------------------------------------------------------------

    def judge(self, consumed: Sequence[Consumed]) -> Verdict:
        found = judge(self._accepted, consumed)
        lost = set(found.missing) - self._surely
        there = Counter(_number(record) for record in consumed)
        names = Counter(record.record_id for record in consumed)
        once = {record.record_id: record for record in consumed}
        again = Counter(_number(record) for name, record in once.items() if name not in self._left)
        return Verdict(
            cuts=self._cuts,
            accepted=found.accepted,
            delivered=found.delivered,
            missing=[f"missing: {name}" for name in found.missing if name in self._surely],
            repeated=[
                *(f"repeated: {name}, {times} times" for name, times in names.items() if times > 1),
                *(f"repeated: number {number}, {times} times" for number, times in again.items() if times > 1),
            ],
            out_of_order=[f"out of order: {late}" for late in found.out_of_order],
            wrong=[
                *map(str, found.wrong),
                *(f"left out: number {number}" for number in range(self._made) if number not in there),
                *self._shared_positions(consumed),
            ],
            lost=len(lost),
            late=sum(late.arrived for late in self._late),
        )

    def _shared_positions(self, consumed: Sequence[Consumed]) -> Iterator[str]:
        names: dict[str, set[str]] = defaultdict(set)
        for name in (
            *(record.record_id for record in self._accepted),
            *(record.record_id or "" for record in consumed),
        ):
            names[name.partition("/")[2]].add(name)
        yield from (f"one position, two records: {sorted(found)}" for found in names.values() if len(found) > 1)


def _number(record: Accepted | Consumed) -> int:
    return int(record.value or b"")
