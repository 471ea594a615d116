"""A process dies at each step of a refusal: each good record stands in Kafka once, of each poison one letter or record.

The steps are those of `Sender` and `Refused`. Once with answers to all, and once so that the first attempt of every
batch is lost on its way: then it may reach the broker late, before the next process begins or when it is done. The
topic is still strict by then, or was mended.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka.errors import KafkaError, PolicyViolationError, RequestTimedOutError
from aiokafka.record.memory_records import MemoryRecords

from aiorecover import DeadLetter, RecoverableProducer
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.journaling import Journal
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.refused import Refused
from aiorecover.testing import MemoryDisk
from aiorecover.wal.directory import Directory
from aiorecover.wal.ring import Ring
from tests.delivery.remembering import Broker
from tests.support.eventually import until

pytestmark = pytest.mark.timeout(120)

BATCHES = [[b"0"], [b"1", b"poison 2", b"3"], [b"poison 4"], [b"5"]]
CUT = {"behind the letter is put", "behind it is settled"}  # there the power is cut, too
POWER_CUTS = 10  # at each of them
STEPS: dict[str, tuple[type, str]] = {
    "it is taken back": (Lane, "take_back"),
    "it is cut": (Refused, "cut"),
    "it is written down": (Journal, "enter"),
    "the letter is put": (DeadLetters, "put"),
    "the letter is flushed": (DeadLetters, "durable"),
    "it is written down as parted with": (Journal, "part_with"),
    "it is settled": (Ring, "settle"),
    "a checkpoint": (Directory, "next_checkpoint"),
}


@dataclass
class Moment:
    """A process that died: what it left, and what it may have had on the way."""

    step: str
    disk: MemoryDisk
    power_cuts: list[MemoryDisk]
    broker: Broker
    accepted: list[bytes]
    late: bytes | None
    forgotten: bool
    """What is on the way stands in the journal no more: it was parted with, and nothing has followed perhaps."""


class Life:
    """One producer that is watched at every step."""

    def __init__(self, *, loses: bool = False, power_cuts: int = 0) -> None:
        self.loses = loses
        self.power_cuts = power_cuts
        self.disk = MemoryDisk()
        self.broker = Broker(1)
        self.broker.refuses = refusing_poison
        self.accepted: list[bytes] = []
        self.moments: list[Moment] = []
        self._lost: list[bytes] = []
        self._entered: tuple[int, int, int] | None = None  # the identity that stands in the journal

    def note(self, step: str, late: bytes | None = None) -> None:
        late = late or (self._lost[-1] if self._lost else None)
        self.moments.append(
            Moment(
                step,
                self.disk.after_process_death(),
                [self.disk.after_power_cut(seed) for seed in range(self.power_cuts if step in CUT else 0)],
                self.broker.snapshot(),
                self.accepted.copy(),
                late,
                late is not None and identity_of(late) != self._entered,
            )
        )

    async def told(self, step: str, data: bytes) -> None:
        if self.loses and data not in self._lost:
            self._lost.append(data)
            raise RequestTimedOutError
        self.note(step, data if step == "before it is appended" else None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for step, (owner, name) in STEPS.items():
                patch.setattr(owner, name, self._watched(step, getattr(owner, name)))
            yield

    def _watched(self, step: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def before() -> None:
            self.note(f"before {step}")

        def behind(given: Sequence[Any]) -> None:
            if step == "it is written down":
                self._entered = next(one.identity for one in given if isinstance(one, LaneBatch))
            if step == "it is written down as parted with":
                self._entered = None
            self.note(f"behind {step}")

        async def awaited(*given: Any, **more: Any) -> Any:
            before()
            done = await whole(*given, **more)
            behind(given)
            return done

        def called(*given: Any, **more: Any) -> Any:
            before()
            done = whole(*given, **more)
            behind(given)
            return done

        return awaited if asyncio.iscoroutinefunction(whole) else called


def refusing_poison(values: list[bytes]) -> BaseException | None:
    return PolicyViolationError() if any(map(is_poison, values)) else None


def identity_of(data: bytes) -> tuple[int, int, int]:
    found: Any = MemoryRecords(data).next_batch()
    return found.producer_id, found.producer_epoch, found.base_sequence


def is_poison(value: bytes) -> bool:
    return value.startswith(b"poison")


def producer_of(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    chosen = {"slot_bytes": 1 << 14, "linger_ms": 1, "retry_backoff_ms": 1, "recovery_check": False, **options}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **chosen)


async def lives(life: Life) -> None:
    with pytest.MonkeyPatch.context() as patch, life.watched():
        patch.setattr(sessions_module, "Session", life.broker.session(life.told))
        async with producer_of(life.disk, checkpoint_interval_ms=100) as producer:
            for batch in BATCHES:
                for value in batch:
                    producer.publish_nowait("t", value, partition=0)
                life.accepted += batch
                await producer.flush(timeout_ms=10_000)
            written = producer.statistics().checkpoints
            await until(lambda: producer.statistics().checkpoints > written)


async def lives_by_the_disk(life: Life) -> None:
    """What is accepted is durable; no checkpoint makes anything else so."""
    with pytest.MonkeyPatch.context() as patch, life.watched():
        patch.setattr(sessions_module, "Session", life.broker.session(life.told))
        async with producer_of(life.disk, fsync="always", checkpoint_interval_ms=600_000) as producer:
            for batch in BATCHES:
                await asyncio.gather(*(producer.publish("t", value, partition=0) for value in batch))
                life.accepted += batch
                await producer.flush(timeout_ms=10_000)


async def goes_on(disk: MemoryDisk, broker: Broker) -> list[DeadLetter]:
    """Another process; what the dead ring holds in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions_module, "Session", broker.session())
        async with producer_of(disk) as producer:
            await producer.publish("t", b"new", partition=0)
            await producer.flush(timeout_ms=10_000)
            return [letter async for letter in producer.dead_letters.list()]


def arrives(late: bytes | None, broker: Broker) -> bool:
    """The dead process's last batch, from its socket: the connection has nobody to tell. Whether it is appended."""
    before = len(broker.logs[0])
    try:
        if late is not None:
            broker.take(0, late)
    except KafkaError:
        return False
    return len(broker.logs[0]) > before


def dies(moment: Moment, *, early: bool, mended: bool) -> bool:
    """Exactly once; False where that cannot be, as a batch that was parted with came early: then it is in order.

    ``early``: what was on the way arrives before the next process begins, and else when that is done.
    """
    broker = moment.broker.snapshot()
    if mended:
        broker.refuses = lambda _: None
    appended = early and arrives(moment.late, broker)
    letters = asyncio.run(goes_on(moment.disk.after_process_death(), broker))
    log, accepted = broker.logs[0], [*moment.accepted, b"new"]
    dead = {letter.value: letter.persisted for letter in letters}
    where = moment.step, early, mended, log, dead
    assert len(dead) == len(letters), where
    if appended and moment.forgotten:
        newest = list(dict.fromkeys(reversed(log)))[::-1]
        assert newest == [value for value in accepted if value in log], where
        assert {*log, *dead} == set(accepted), where
        assert all(dead[value] == "possibly" for value in log if value in dead), where
        return False
    assert log == [value for value in accepted if value not in dead], where
    assert all(is_poison(value or b"") for value in dead), where
    assert not arrives(moment.late, broker), where
    return True


@pytest.mark.parametrize("mended", [False, True], ids=["strict", "mended"])
@pytest.mark.parametrize("loses", [False, True], ids=["answered", "lost at first"])
def test_wherever_a_process_dies_each_good_record_stands_once_and_each_poison_is_one_letter_or_record(
    *, loses: bool, mended: bool
) -> None:
    life = Life(loses=loses)
    asyncio.run(lives(life))
    parted = {f"{when} it is written down as parted with" for when in ("before", "behind")}
    steps = {f"{when} {step}" for step in STEPS for when in ("before", "behind")}
    assert {moment.step for moment in life.moments} >= (steps if loses else steps - parted)
    assert all(dies(moment, early=False, mended=mended) for moment in life.moments)
    late = [moment for moment in life.moments if moment.late is not None]
    assert len(late) > (40 if loses else 5)
    once = [dies(moment, early=True, mended=mended) for moment in late]
    assert all(once) is not (loses and mended)


def lost(life: Life) -> list[bytes]:
    """Of what was accepted, what stands neither in Kafka nor in the dead ring after a power cut at some step."""
    missing: list[bytes] = []
    for moment in life.moments:
        for disk in moment.power_cuts:
            broker = moment.broker.snapshot()
            letters = asyncio.run(goes_on(disk, broker))
            there = {*broker.logs[0], *(letter.value for letter in letters)}
            missing += [value for value in moment.accepted if value not in there]
    return missing


def test_wherever_the_power_is_cut_nothing_is_lost() -> None:
    life = Life(power_cuts=POWER_CUTS)
    asyncio.run(lives_by_the_disk(life))
    assert lost(life) == []


def test_settled_before_the_letter_is_durable_a_power_cut_takes_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests would see."""

    async def at_once(_: DeadLetters) -> None:
        pass

    monkeypatch.setattr(DeadLetters, "durable", at_once)
    life = Life(power_cuts=POWER_CUTS)
    asyncio.run(lives_by_the_disk(life))
    monkeypatch.undo()
    missing = lost(life)
    assert missing
    assert all(map(is_poison, missing))
