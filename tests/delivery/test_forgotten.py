"""A batch that may be in Kafka for longer than Kafka remembers it, while the process lives."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    PolicyViolationError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)
from aiokafka.structs import RecordMetadata

from aiorecover import RecoverableProducer
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.identity_life import DAY_MS, is_forgotten
from aiorecover.delivery.lane import EPOCH_LIMIT, Identity
from aiorecover.delivery.lines import MOST
from aiorecover.testing import MemoryDisk
from tests.delivery.expiring import Clock, Distant, adds_up, producer_on
from tests.support.eventually import until

HOUR_MS = 3_600_000
TOLD_MS = 3_000
PATIENT: dict[str, Any] = {"delivery_timeout_ms": None, "retry_backoff_max_ms": 5}


class Lossy(Distant):
    """A broker whose answers are lost as long as ``loses``."""

    def __init__(self) -> None:
        super().__init__(t=1, many=2 * MOST)
        self.loses = True
        self.forbids = False  # also what it has already
        self.lanes: set[tuple[str, int]] = set()
        self.tries: list[tuple[int, int, int] | None] = []  # under which identity

    def take(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        self.tries.append(batch.identity)
        self.lanes.add((topic, partition))
        if self.forbids:
            raise PolicyViolationError
        metadata = super().take(batch, topic, partition)
        if self.loses:
            raise RequestTimedOutError
        return metadata

    @property
    def identities(self) -> list[tuple[int, int, int] | None]:
        """Under which it was sent something, in order."""
        return list(dict.fromkeys(self.tries))

    async def tried_on(self) -> None:
        """Some attempts more."""
        tried = len(self.tries)
        await until(lambda: len(self.tries) >= tried + 3)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Lossy:
    broker = Lossy()
    monkeypatch.setattr(sessions_module, "Session", broker.session())
    return broker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def tell(producer: RecoverableProducer, expiration_ms: int | None) -> None:
    """As a session would have it from a broker."""
    assert producer._opened is not None
    cluster = producer._opened.delivery.cluster
    cluster.destination = msgspec.structs.replace(cluster.destination, expiration_ms=expiration_ms)


def renewed(producer: RecoverableProducer) -> int:
    return producer.statistics().identities_renewed


def written_down(producer: RecoverableProducer) -> int:
    """Batches that stand in the journal and are not acknowledged."""
    assert producer._opened is not None
    in_flight = [lane.in_flight for lane in producer._opened.delivery.router.lanes()]
    return sum(batch is not None and batch.entered is not None for batch in in_flight)


def test_brokers_are_given_all_of_their_time_and_a_day_where_they_say_nothing() -> None:
    told = 7 * DAY_MS
    assert [is_forgotten(age, told) for age in (told, told + 1)] == [False, True]
    assert [is_forgotten(age, None) for age in (24 * HOUR_MS, 24 * HOUR_MS + 1)] == [False, True]


@pytest.mark.asyncio
@pytest.mark.parametrize(("told", "remembered_ms"), [(None, DAY_MS), (TOLD_MS, TOLD_MS)])
async def test_what_may_be_there_for_longer_than_the_brokers_remember_goes_under_a_fresh_identity_and_is_counted(
    broker: Lossy, clock: Clock, told: int | None, remembered_ms: int
) -> None:
    async with producer_on(MemoryDisk(), **PATIENT) as producer:
        tell(producer, told)
        await producer.publish("t", b"a", key=b"k")
        await broker.tried_on()
        clock.ms += remembered_ms
        await broker.tried_on()
        assert (broker.identities, renewed(producer)) == ([(1, 0, 0)], 0), "they remember it"
        clock.ms += 1
        await until(lambda: renewed(producer) == 1)
        await broker.tried_on()
        clock.ms += remembered_ms
        await broker.tried_on()
        assert (broker.identities, renewed(producer)) == ([(1, 0, 0), (1, 1, 0)], 1), "it has the same time once more"
        broker.loses = False
        await producer.publish("t", b"b", key=b"k")
        await producer.flush(timeout_ms=20_000)
        assert (broker.identities[2:], renewed(producer)) == ([(1, 1, 1)], 1)
        adds_up(producer)
    assert broker.values("t") == [b"a", b"a", b"b"]


@pytest.mark.asyncio
async def test_many_lanes_that_outlast_it_are_counted_and_told_of_in_few_lines(
    broker: Lossy, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with producer_on(MemoryDisk(), **PATIENT) as producer:
        for partition in range(2 * MOST):
            await producer.publish("many", b"v", partition=partition)
        await until(lambda: len(broker.lanes) == 2 * MOST)
        await broker.tried_on()
        clock.ms += DAY_MS + 1
        await until(lambda: renewed(producer) == 2 * MOST)
        broker.loses = False
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
    assert sum("longer than kafka may remember" in line for line in caplog.messages) == MOST


@pytest.mark.asyncio
async def test_what_was_refused_all_the_while_keeps_its_identity(broker: Lossy, clock: Clock) -> None:
    broker.refuses = lambda _: NotEnoughReplicasError()
    async with producer_on(MemoryDisk(), **PATIENT) as producer:
        await producer.publish("t", b"a", key=b"k")
        await broker.tried_on()
        clock.ms += 2 * DAY_MS
        await broker.tried_on()
        broker.refuses, broker.loses = lambda _: None, False
        await producer.flush(timeout_ms=20_000)
        assert (broker.identities, renewed(producer)) == ([(1, 0, 0)], 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [NotEnoughReplicasError, LeaderNotAvailableError, TopicAuthorizationFailedError])
async def test_the_time_of_what_was_refused_for_long_begins_with_the_attempt_that_may_have_come_through(
    broker: Lossy, clock: Clock, error: type[KafkaError]
) -> None:
    """Kafka remembers that one from a moment ago: under a fresh identity it would be there twice."""
    broker.refuses = lambda _: error()
    async with producer_on(MemoryDisk(), **PATIENT) as producer:
        await producer.publish("t", b"a", key=b"k")
        await broker.tried_on()
        clock.ms += 2 * DAY_MS
        await broker.tried_on()
        broker.refuses = lambda _: None
        await broker.tried_on()
        broker.loses = False
        await producer.flush(timeout_ms=20_000)
        assert (broker.identities, renewed(producer)) == ([(1, 0, 0)], 0)
    assert broker.values("t") == [b"a"]


@pytest.mark.asyncio
async def test_what_may_have_come_through_once_is_renewed_once_however_long_it_is_refused_from_then_on(
    broker: Lossy, clock: Clock
) -> None:
    async with producer_on(MemoryDisk(), **PATIENT) as producer:
        await producer.publish("t", b"a", key=b"k")
        await broker.tried_on()
        broker.refuses = lambda _: NotEnoughReplicasError()
        for _ in range(5):
            clock.ms += DAY_MS + 1
            await broker.tried_on()
        assert renewed(producer) == 1
        broker.refuses, broker.loses = lambda _: None, False
        await producer.flush(timeout_ms=20_000)
    assert broker.identities == [(1, 0, 0), (1, 1, 0)]


@pytest.mark.asyncio
async def test_what_waited_for_a_broker_all_the_while_has_its_time_from_its_first_attempt_on(
    broker: Lossy, clock: Clock
) -> None:
    async with producer_on(MemoryDisk(), **PATIENT) as producer:
        broker.loses = False
        await producer.publish("t", b"a", key=b"k")
        await producer.flush(timeout_ms=20_000)
        broker.away = broker.loses = True
        for session in broker.sessions:
            session._connected.clear()
        await producer.publish("t", b"b", key=b"k")
        await until(lambda: written_down(producer) == 1)
        clock.ms += 2 * DAY_MS
        broker.come()
        await broker.tried_on()
        assert (broker.identities, renewed(producer)) == ([(1, 0, 0), (1, 0, 1)], 0)


@pytest.mark.asyncio
async def test_while_there_is_no_session_it_is_found_out_too_and_costs_one_identity(
    broker: Lossy, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "CONNECT_LOOK", 0.01)
    async with producer_on(MemoryDisk(), **PATIENT) as producer:
        await producer.publish("t", b"a", key=b"k")
        await broker.tried_on()
        for session in broker.sessions:
            session._connected.clear()
        clock.ms += 10 * DAY_MS
        await until(lambda: renewed(producer) == 1)
        clock.ms += 10 * DAY_MS
        broker.loses = False
        broker.come()
        await producer.flush(timeout_ms=20_000)
        assert (broker.identities, renewed(producer)) == ([(1, 0, 0), (1, 1, 0)], 1)


async def left_in_flight(broker: Lossy, told: int | None) -> MemoryDisk:
    disk = MemoryDisk()
    async with producer_on(disk, **PATIENT) as producer:
        tell(producer, told)
        await producer.publish("t", b"a", key=b"k")
        await broker.tried_on()
        return disk.after_process_death()


@pytest.mark.asyncio
async def test_what_the_last_process_had_in_flight_has_its_time_from_that_one_s_attempt_on(
    broker: Lossy, clock: Clock
) -> None:
    """And goes on under an epoch of that process's producer id that no copy of the directory takes, too."""
    left = await left_in_flight(broker, None)
    clock.ms += 11 * HOUR_MS
    async with producer_on(left, **PATIENT) as producer:
        await broker.tried_on()
        assert (producer.statistics().batches_resumed, renewed(producer)) == (1, 0)
        assert broker.identities == [(1, 0, 0)]
        clock.ms += 13 * HOUR_MS + 1
        await until(lambda: renewed(producer) == 1)
        await broker.tried_on()
        broker.loses = False
        await producer.flush(timeout_ms=20_000)
    before, after = broker.identities
    assert before == (1, 0, 0)
    assert after is not None
    producer_id, epoch, sequence = after
    assert (producer_id, sequence) == (1, 0)
    assert 1 <= epoch < EPOCH_LIMIT
    assert broker.values("t") == [b"a", b"a"]


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["expired", "refused"])
async def test_what_was_parted_with_after_long_is_fenced_by_the_next_process_as_its_last_attempt_was_a_moment_ago(
    broker: Lossy, clock: Clock, how: str
) -> None:
    hours = 13  # more than an entry is trusted for
    limit = {"delivery_timeout_ms": hours * HOUR_MS + HOUR_MS // 4} if how == "expired" else {}
    disk = MemoryDisk()
    async with producer_on(disk, **{**PATIENT, **limit}) as producer:
        await producer.publish("t", b"old", key=b"k")
        await broker.tried_on()
        await clock.age(producer, hours * HOUR_MS)
        await broker.tried_on()
        assert broker.identities == [(1, 0, 0)]
        broker.forbids = how == "refused"
        if how == "expired":
            await clock.age(producer, HOUR_MS)
        await until(lambda: producer.statistics().dead_lettered == 1)
        left = disk.after_process_death()
    broker.forbids, broker.loses, tried = False, False, len(broker.tries)
    async with producer_on(left, **PATIENT) as producer:
        await producer.publish("t", b"young", key=b"k")
        await producer.flush(timeout_ms=20_000)
    first = broker.tries[tried]
    assert first is not None
    assert (first[0], first[1] > 0) == (1, True), "what is left of it on its way could come behind what followed"


def attempted() -> tuple[LaneBatch, Callable[[int], int | None]]:
    batch = LaneBatch(1_000, 0)
    batch.identify(1, 0, 0)

    def tried(at_ms: int) -> int | None:
        batch.begin_attempt(1, at_ms)
        return batch.unsure_since_ms

    return batch, tried


def test_the_first_attempt_under_an_identity_counts_that_may_have_come_through() -> None:
    batch, tried = attempted()
    assert [tried(5), tried(6)] == [None, None]
    batch.possibly = True
    assert [tried(7), tried(8)] == [6, 6]
    identity = Identity(1, 1)
    batch.identify(identity.producer_id, identity.epoch, 0)
    batch.possibly = True
    assert batch.unsure_since_ms is None, "nothing was sent under that"
    assert [tried(9), tried(10)] == [None, None]
    batch.possibly = True
    assert (tried(11), batch.possibly) == (10, True)


def test_in_a_transaction_no_identity_is_old() -> None:
    batch = LaneBatch(1_000, 0, transactional=True)
    batch.identify(1, 0, 0)
    batch.begin_attempt(1, 5)
    batch.possibly = True
    assert batch.unsure_since_ms is None
