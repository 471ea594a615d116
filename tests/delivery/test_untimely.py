"""Timestamps that were right when their records were accepted, and that Kafka refuses by now: nobody is at fault."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import InvalidTimestampError

from aiorecover import PermanentDeliveryError, RecoverableProducer
from aiorecover.delivery.refusal import EXPIRED
from aiorecover.delivery.session import Session
from aiorecover.delivery.untimely import Untimely
from aiorecover.errors import WalCorruptError
from aiorecover.testing import MemoryDisk
from aiorecover.testing.memory_file_system import MemoryFileSystem
from tests.delivery.expiring import LIMIT, Clock, Distant, adds_up, distant, letters_of, stored
from tests.delivery.expiring import producer_on as producer_of
from tests.delivery.refusing import Sent
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
REFUSED = "kafka refuses timestamps that were right when the records were accepted"
TAKEN = "kafka takes the timestamps again"


class Clocks(Clock):
    """Both clocks of the machine; the one on the wall may be set, the broker's is right."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        self._ahead = time.time_ns() // 1_000_000 - self.ms
        self.wrong = 0
        patch.setattr(MemoryFileSystem, "wall_ms", lambda _: self.now + self.wrong)

    @property
    def now(self) -> int:
        return self.ms + self._ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Distant:
    return distant(monkeypatch, t=1, other=1)


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why sessions were."""
    reasons: list[str] = []
    monkeypatch.setattr(Session, "give_up", lambda _, reason: reasons.append(reason))
    return reasons


def taking(
    clock: Clocks, before_ms: int = 100 * YEAR, after_ms: int = HOUR
) -> Callable[[list[Sent]], BaseException | None]:
    """As a broker whose topic ``t`` has these limits."""

    def judge(records: list[Sent]) -> BaseException | None:
        ages = [clock.now - record.timestamp_ms for record in records if record.topic == "t"]
        return InvalidTimestampError() if any(not -after_ms <= age <= before_ms for age in ages) else None

    return judge


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    return producer_of(disk, **{"delivery_timeout_ms": None, "retry_backoff_max_ms": 20, **options})


def numbered(count: int, prefix: bytes = b"") -> list[bytes]:
    return [b"%b%d" % (prefix, number) for number in range(count)]


def told(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


async def test_after_a_long_outage_old_timestamps_wait_for_the_topic_to_take_them_and_make_no_dead_letters(
    broker: Distant, clock: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    broker.away = True
    broker.refuses = taking(clock, before_ms=HOUR)
    old, young = numbered(6_000, b"old"), numbered(100, b"young")
    async with producer_on(MemoryDisk()) as producer:
        for value in old:
            await producer.publish("t", value, key=b"k")
        await clock.age(producer, 2 * HOUR)
        for value in young:
            await producer.publish("t", value, key=b"k", timestamp_ms=clock.now)
        broker.come()
        other = await producer.publish("other", b"1", timestamp_ms=clock.now)
        await other.delivered(timeout_ms=20_000)
        await until(lambda: sum(topic == "t" for topic, *_ in broker.sends) > 20)
        sends = [send for send in broker.sends if send[0] == "t"]
        assert len(set(sends)) == 1, "the same batch, under the same identity, in one piece"
        assert await letters_of(producer) == []
        assert broker.values("t") == []
        assert told(caplog, REFUSED) == 1
        (line,) = (record for record in caplog.records if REFUSED in record.getMessage())
        assert line.levelno == logging.ERROR
        assert "raise message.timestamp.before.max.ms" in line.getMessage()
        broker.refuses = taking(clock, before_ms=24 * HOUR)
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
        adds_up(producer)
    assert broker.values("t") == old + young
    assert told(caplog, TAKEN) == 1
    assert "looking for the record at fault" not in caplog.text


@pytest.mark.parametrize("rotten", [0, 1])
async def test_a_batch_of_which_a_frame_rots_is_judged_by_what_was_sent_and_no_session_is_lost_for_it(
    broker: Distant, clock: Clocks, given_up: list[str], caplog: pytest.LogCaptureFixture, rotten: int
) -> None:
    """I2: what it was filled with tells, in memory; with the session all other lanes would begin anew."""
    broker.answers.clear()
    broker.refuses = taking(clock, before_ms=HOUR)
    disk, values = MemoryDisk(), [b"%d" % number * 60 for number in range(3)]
    async with producer_on(disk) as producer:
        receipts = [await producer.publish("t", value, key=b"k") for value in values]
        await producer.publish("t", b"poison", key=b"k", timestamp_ms=clock.now - YEAR)
        await until(lambda: producer.statistics().in_flight == 4)
        slot = stored(producer).ring.slot_of(1)
        disk.file("0/ring").damage(slot.file_offset + 4 * receipts[rotten]._place + 40, b"rot")
        await clock.age(producer, 2 * HOUR)
        broker.answers.set()
        await until(lambda: len(broker.sends) > 20)
        assert given_up == []
        assert told(caplog, REFUSED) == 1
        broker.refuses = taking(clock, before_ms=24 * HOUR)
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
        adds_up(producer)
    assert letter.value == b"poison"
    assert broker.values("t") == values


async def test_an_error_of_the_ring_while_a_batch_is_sent_halts_its_lane_and_costs_no_session(
    broker: Distant, given_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def judged(*_: Any) -> Any:
        raise WalCorruptError("something does not hold any more")

    monkeypatch.setattr(Untimely, "judged", judged)
    broker.refuses = lambda records: InvalidTimestampError() if records[0].topic == "t" else None
    async with producer_on(MemoryDisk()) as producer:
        await producer.publish("t", b"1", key=b"k")
        with pytest.raises(PermanentDeliveryError, match=r"stop and start anew .* does not hold any more") as caught:
            await producer.flush(timeout_ms=20_000)
        assert caught.value.persisted == "possibly"
        await (await producer.publish("other", b"past it")).delivered(20_000)
        assert producer.statistics().lanes_halted == 1
        assert (len(broker.sends), given_up) == (2, [])


async def test_the_others_go_on_while_a_whole_ring_waits_for_its_timestamps(
    broker: Distant, clock: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    broker.away = True
    broker.refuses = taking(clock, before_ms=HOUR)
    old = [b"%d" % number + b"x" * 1000 for number in range(500)]
    limits = {"max_batch_size": 16 * 1024, "max_request_size": 32 * 1024}
    async with producer_on(MemoryDisk(), **limits) as producer:
        for value in old:
            await producer.publish("t", value, key=b"k")
        await clock.age(producer, 2 * HOUR)
        broker.come()
        for number in range(100):
            await producer.publish("other", b"%d" % number, key=b"k")
        await until(lambda: len(broker.values("other")) == 100)
        assert producer.statistics().lanes_stalled == 1
        broker.refuses = taking(clock)
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
    assert broker.values("t") == old


@pytest.mark.parametrize("wrong", [-YEAR, YEAR], ids=["past", "future"])
async def test_a_timestamp_that_was_wrong_from_the_start_is_a_dead_letter_as_ever(
    broker: Distant, clock: Clocks, wrong: int
) -> None:
    broker.refuses = taking(clock, before_ms=HOUR)
    async with producer_on(MemoryDisk()) as producer:
        await producer.publish("t", b"1")
        await producer.publish("t", b"poison", timestamp_ms=clock.now + wrong)
        await producer.publish("t", b"2")
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
    assert (letter.value, letter.error) == (b"poison", "InvalidTimestampError")
    assert broker.values("t") == [b"1", b"2"]


@pytest.mark.parametrize("at", [0, 250, 500, 999])
async def test_of_old_ones_and_one_that_was_wrong_from_the_start_only_that_is_a_dead_letter(
    broker: Distant, clock: Clocks, at: int
) -> None:
    broker.away = True
    broker.refuses = taking(clock, before_ms=HOUR)
    values = numbered(1_000)
    async with producer_on(MemoryDisk()) as producer:
        for number, value in enumerate(values):
            wrong = clock.now - YEAR if number == at else None
            await producer.publish("t", value, key=b"k", timestamp_ms=wrong)
        await clock.age(producer, 2 * HOUR)
        broker.come()
        await until(lambda: len(broker.sends) > 50)
        assert len(set(broker.sends)) < 25, "cut no further than to the one that was wrong"
        assert len(await letters_of(producer)) <= 1
        broker.refuses = taking(clock, before_ms=24 * HOUR)
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
        adds_up(producer)
    assert letter.value == values[at]
    assert broker.values("t") == [value for value in values if value != values[at]]


async def test_with_a_delivery_timeout_they_become_dead_letters_for_their_age(broker: Distant, clock: Clocks) -> None:
    broker.away = True
    broker.refuses = taking(clock, before_ms=LIMIT // 4)
    async with producer_on(MemoryDisk(), delivery_timeout_ms=LIMIT) as producer:
        await producer.publish("t", b"1")
        await clock.age(producer, LIMIT // 2)
        broker.come()
        await until(lambda: len(broker.sends) > 3)
        assert await letters_of(producer) == []
        await clock.age(producer)
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
    assert (letter.error, letter.persisted) == (EXPIRED, "not")


async def test_halt_halts_for_what_was_wrong_from_the_start_and_not_for_an_outage(
    broker: Distant, clock: Clocks
) -> None:
    broker.away = True
    broker.refuses = taking(clock, before_ms=HOUR)
    async with producer_on(MemoryDisk(), on_permanent_error="halt") as producer:
        await producer.publish("t", b"1")
        await clock.age(producer, 2 * HOUR)
        broker.come()
        await until(lambda: len(broker.sends) > 3)
        assert producer.state == "connected"
        broker.refuses = taking(clock, before_ms=24 * HOUR)
        await producer.flush(timeout_ms=20_000)
        await producer.publish("t", b"2", timestamp_ms=1)
        with pytest.raises(PermanentDeliveryError, match="InvalidTimestampError"):
            await producer.flush(timeout_ms=20_000)
        assert producer.state == "halted"
    assert broker.values("t") == [b"1"]


async def test_where_the_machine_s_clock_was_ahead_its_records_wait_until_they_may_pass_also_once_it_is_set(
    broker: Distant, clock: Clocks
) -> None:
    broker.refuses = taking(clock, after_ms=HOUR)
    clock.wrong = 3 * HOUR
    values = numbered(200)
    async with producer_on(MemoryDisk(), linger_ms=1) as producer:
        for value in values[:100]:
            await producer.publish("t", value, key=b"k", timestamp_ms=clock.now + clock.wrong)
        await until(lambda: len(broker.sends) > 3)
        await clock.age(producer, HOUR // 2)
        for value in values[100:]:
            await producer.publish("t", value, key=b"k", timestamp_ms=clock.now + clock.wrong)
        await clock.age(producer, 0)
        clock.wrong = 0
        await asyncio.sleep(0.1)
        assert broker.values("t") == []
        await clock.age(producer, HOUR + HOUR // 2)
        await until(lambda: len(broker.values("t")) == 100)
        await asyncio.sleep(0.1)
        assert len(broker.values("t")) == 100
        await clock.age(producer, HOUR // 2)
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
    assert broker.values("t") == values


async def test_of_timestamps_that_lie_ahead_of_the_clock_the_line_names_the_topic_s_limit_for_those(
    broker: Distant, clock: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    broker.away = True
    broker.refuses = taking(clock, after_ms=HOUR)
    clock.wrong = 3 * HOUR
    async with producer_on(MemoryDisk()) as producer:
        for value in numbered(2):
            await producer.publish("t", value, key=b"k", timestamp_ms=clock.now + clock.wrong)
        await clock.age(producer, 0)
        clock.wrong = 0
        broker.come()
        await until(lambda: len(broker.sends) > 3)
        (line,) = (record.getMessage() for record in caplog.records if REFUSED in record.getMessage())
        broker.refuses = taking(clock, after_ms=24 * HOUR)
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
    assert "they were stamped by a clock that was fast" in line
    assert "raise message.timestamp.after.max.ms of the topic" in line
    assert "before.max.ms" not in line
    assert broker.values("t") == numbered(2)


@pytest.mark.parametrize("running", [True, False], ids=["set while it ran", "set while nobody ran"])
async def test_behind_a_restart_what_a_fast_clock_stamped_is_a_dead_letter_that_requeue_can_stamp_anew(
    broker: Distant, clock: Clocks, *, running: bool
) -> None:
    broker.away = True
    broker.refuses = taking(clock, after_ms=HOUR)
    disk = MemoryDisk()
    clock.wrong = 3 * HOUR
    async with producer_on(disk, stop_timeout_ms=0) as producer:
        for value in numbered(2):
            await producer.publish("t", value, key=b"k", timestamp_ms=clock.now + clock.wrong)
        await clock.age(producer, 0)
        if running:
            clock.wrong = 0
            await clock.age(producer, 1_000)
    clock.wrong = 0
    broker.away = False
    async with producer_on(disk) as producer:
        await producer.flush(timeout_ms=20_000)
        assert [letter.error for letter in await letters_of(producer)] == ["InvalidTimestampError"] * 2
        assert await producer.dead_letters.requeue() == 2
        await producer.flush(timeout_ms=20_000)
        assert len(await letters_of(producer)) == 2  # under their own timestamps they are refused again
        assert await producer.dead_letters.requeue(restamp=True) == 2
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
    assert broker.values("t") == numbered(2)


@pytest.mark.parametrize("known", [True, False], ids=["a checkpoint knew them", "no checkpoint knew them"])
async def test_what_a_dead_process_left_waits_too_however_long_nobody_was_there(
    broker: Distant, clock: Clocks, *, known: bool
) -> None:
    broker.away = True
    disk = MemoryDisk()
    options = {"checkpoint_interval_ms": 20 if known else 60_000}
    producer = producer_on(disk, **options)
    await producer.start()
    for value in numbered(100):
        await producer.publish("t", value, key=b"k")
    if known:
        await clock.known(producer)
    image = disk.after_process_death()
    await producer.stop()
    clock.ms += 2 * HOUR
    broker.away = False
    broker.refuses = taking(clock, before_ms=HOUR)
    async with producer_on(image, **options) as producer:
        await until(lambda: len(broker.sends) > 3)
        assert await letters_of(producer) == []
        broker.refuses = taking(clock)
        await producer.flush(timeout_ms=20_000)
    assert broker.values("t") == numbered(100)


async def test_a_lane_whose_batches_are_refused_and_taken_in_turn_is_told_of_once_a_minute(
    broker: Distant, clock: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    turn = [0]

    def every_second(_: list[Sent]) -> BaseException | None:
        turn[0] += 1
        return InvalidTimestampError() if turn[0] % 2 else None

    broker.refuses = every_second
    async with producer_on(MemoryDisk()) as producer:
        for value in numbered(20):
            await producer.publish("t", value)
            await producer.flush(timeout_ms=20_000)
    assert len(broker.sends) == 40
    assert (told(caplog, REFUSED), told(caplog, TAKEN)) == (1, 1)
