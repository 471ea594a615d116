"""What is older than ``delivery_timeout_ms`` becomes a dead letter, wherever it waits, and nothing else does."""

import asyncio
import contextlib
import itertools
import logging
import random
from collections import Counter
from typing import Any

import pytest
from aiokafka.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    PolicyViolationError,
    RequestTimedOutError,
)
from aiokafka.structs import RecordMetadata

from aiorecover import DeliveryReport, PermanentDeliveryError, Receipt, RecoverableProducer, WalFullError
from aiorecover.delivery import expiry as expiry_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.refusal import EXPIRED
from aiorecover.delivery.refused import Refused
from aiorecover.testing import MemoryDisk
from aiorecover.wal.format import SETTLE_WORD
from aiorecover.wal.moved import pack_moved
from tests.delivery.expiring import (
    LIMIT,
    Clock,
    Distant,
    adds_up,
    distant,
    failing,
    letters_of,
    producer_on,
    stored,
)
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Distant:
    return distant(monkeypatch, t=1, other=1, wide=4)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


async def test_an_outage_from_the_start_on_expires_what_is_too_old_and_delivers_the_rest_in_order(
    broker: Distant, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broker.away = True
    old, young = numbered("old", 3_000), numbered("young", 50)
    heard: list[DeliveryReport] = []
    async with producer_on(MemoryDisk(), on_delivery=heard.append) as producer:
        receipts = [await producer.publish("t", value, key=b"k") for value in old]
        await clock.age(producer)
        for value in young:
            await producer.publish("t", value, key=b"k")
        await until(lambda: producer.statistics().expired == len(old))
        adds_up(producer)
        assert producer.statistics().pending == len(young)
        with pytest.raises(PermanentDeliveryError, match="not delivered in time") as caught:
            await receipts[0].delivered()
        assert caught.value.persisted == "not"
        broker.come()
        await producer.flush(timeout_ms=20_000)
        letters = await letters_of(producer)
        adds_up(producer)
    assert broker.values("t") == young
    assert [letter.value for letter in letters] == old
    assert {(letter.error, letter.persisted, letter.attempts) for letter in letters} == {(EXPIRED, "not", 0)}
    assert [report.status for report in heard] == ["dead_lettered"] * len(old) + ["delivered"] * len(young)
    lines = [one for one in caplog.records if one.levelno >= logging.ERROR]
    told = [int(one.getMessage().partition("records=")[2].split()[0]) for one in lines]
    assert sum(told) == len(old), told
    assert len(told) <= 2, "the first second, and the rest at the stop"


async def test_without_the_option_nothing_expires(broker: Distant, clock: Clock) -> None:
    broker.away = True
    async with producer_on(MemoryDisk(), delivery_timeout_ms=None) as producer:
        await producer.publish("t", b"old", key=b"k")
        await clock.age(producer, 1_000 * LIMIT)
        await asyncio.sleep(0.2)
        assert producer.statistics().dead_lettered == 0
        broker.come()
        await producer.flush(timeout_ms=20_000)
    assert broker.values("t") == [b"old"]


async def test_nothing_expires_before_its_time(broker: Distant, clock: Clock) -> None:
    broker.away = True
    async with producer_on(MemoryDisk()) as producer:
        await producer.publish("t", b"old", key=b"k", timestamp_ms=1)  # the time of the event says nothing
        await clock.age(producer, LIMIT - 201)
        await asyncio.sleep(0.2)
        assert producer.statistics().dead_lettered == 0
        clock.ms += 201
        await until(lambda: producer.statistics().expired == 1)


@pytest.mark.parametrize(
    ("error", "persisted"), [(NotEnoughReplicasError, "not"), (NotEnoughReplicasAfterAppendError, "possibly")]
)
async def test_a_stuck_lane_parts_with_what_is_too_old_and_others_do_not_notice(
    broker: Distant, clock: Clock, error: type[BaseException], persisted: str
) -> None:
    broker.refuses = failing("t", error)
    old, young = numbered("old", 40), numbered("young", 40)
    async with producer_on(MemoryDisk(), max_batch_size=500) as producer:
        for value in old:
            await producer.publish("t", value, key=b"k")
            await producer.publish("other", value, key=b"k")
        await until(lambda: len(broker.values("other")) == len(old))
        await clock.age(producer)
        for value in young:
            await producer.publish("t", value, key=b"k")
            await producer.publish("other", value, key=b"k")
        await until(lambda: producer.statistics().expired == len(old))
        adds_up(producer)
        assert broker.values("t") == []
        before = producer.statistics()
        broker.refuses = lambda _: None
        await producer.flush(timeout_ms=20_000)
        letters = await letters_of(producer)
        adds_up(producer)
        assert producer.statistics().identities_renewed == before.identities_renewed, "a sequence was used wrongly"
    assert broker.values("t") == young
    assert broker.values("other") == old + young
    assert [letter.value for letter in letters] == old
    assert letters[0].persisted == persisted
    assert letters[0].attempts > 0
    epochs = [epoch for topic, _, (_, epoch, _), _ in broker.sends if topic == "t"]
    assert (epochs[-1] > epochs[0]) is (persisted == "possibly"), "the broker would take the next batch for a repeat"


async def publish_one_in_flight_and_two_behind(producer: RecoverableProducer, clock: Clock, first: bytes) -> None:
    """The two in one batch, half the limit apart."""
    await producer.publish("t", first, key=b"k")
    await asyncio.sleep(0.1)
    await producer.publish("t", b"old", key=b"k")  # in the open batch, behind the one in flight
    await asyncio.sleep(0.1)
    await clock.age(producer, LIMIT // 2)
    await producer.publish("t", b"young", key=b"k")


async def test_of_a_batch_only_what_is_too_old_goes(broker: Distant, clock: Clock) -> None:
    broker.refuses = failing("t", NotEnoughReplicasError)
    async with producer_on(MemoryDisk()) as producer:
        await publish_one_in_flight_and_two_behind(producer, clock, b"in flight")
        await clock.age(producer, LIMIT // 2)
        await until(lambda: producer.statistics().expired == 2)
        await asyncio.sleep(0.1)
        adds_up(producer)
        broker.refuses = lambda _: None
        await producer.flush(timeout_ms=20_000)
        assert [letter.value for letter in await letters_of(producer)] == [b"in flight", b"old"]
        adds_up(producer)
    assert broker.values("t") == [b"young"]


async def test_what_follows_in_a_batch_that_may_be_there_stands_twice_and_its_lane_is_counted(
    broker: Distant, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = broker.take

    def unanswered(batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        metadata = take(batch, topic, partition)
        if batch.count > 1:
            raise RequestTimedOutError
        return metadata

    monkeypatch.setattr(broker, "take", unanswered)
    broker.refuses = failing("t", NotEnoughReplicasError)
    async with producer_on(MemoryDisk()) as producer:
        await publish_one_in_flight_and_two_behind(producer, clock, b"first")
        await asyncio.sleep(0.1)
        broker.refuses = lambda _: None
        await until(lambda: broker.values("t") == [b"first", b"old", b"young"])
        assert producer.statistics().identities_renewed == 0
        await clock.age(producer, LIMIT // 2)
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
        adds_up(producer)
        assert producer.statistics().identities_renewed == 1
    assert (letter.value, letter.persisted) == (b"old", "possibly")
    assert broker.values("t") == [b"first", b"old", b"young", b"young"]


async def test_what_was_passed_over_expires_too_and_the_stalled_lane_goes_on_behind_it(
    broker: Distant, clock: Clock
) -> None:
    broker.refuses = failing("t", NotEnoughReplicasError)
    old, young = numbered("old", 600), numbered("young", 600)
    async with producer_on(MemoryDisk(), max_batch_size=500) as producer:
        for value in old:
            await producer.publish("t", value, key=b"k")
            await producer.publish("other", value, key=b"k")
        await until(lambda: producer.statistics().lanes_stalled == 1)
        await until(lambda: len(broker.values("other")) == len(old))
        await clock.age(producer)
        for value in young:
            await producer.publish("t", value, key=b"k")
            await producer.publish("other", value, key=b"k")
        await until(lambda: producer.statistics().expired == len(old))
        assert broker.values("t") == []
        await until(lambda: len(broker.values("other")) == len(old) + len(young))
        adds_up(producer)
        broker.refuses = lambda _: None
        await producer.flush(timeout_ms=20_000)
        assert [letter.value for letter in await letters_of(producer)] == old
        adds_up(producer)
    assert broker.values("t") == young


async def test_records_of_a_topic_that_does_not_exist_expire(broker: Distant, clock: Clock) -> None:
    async with producer_on(MemoryDisk()) as producer:
        for number in range(100):
            await producer.publish("nowhere", b"%d" % number, key=b"k")
            await producer.publish("other", b"%d" % number, key=b"k")
        await until(lambda: len(broker.values("other")) == 100)
        await clock.age(producer)
        await producer.publish("nowhere", b"young", key=b"k")
        await until(lambda: producer.statistics().expired == 100)
        assert producer.statistics().pending == 1
        broker.topics["nowhere"] = 1
        broker.come()
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
    assert broker.values("nowhere") == [b"young"]


async def test_flush_sees_what_expires_as_settled(broker: Distant, clock: Clock) -> None:
    broker.away = True
    async with producer_on(MemoryDisk()) as producer:
        for number in range(200):
            await producer.publish("t", b"%d" % number, key=b"k")
        waiting = asyncio.create_task(producer.flush(timeout_ms=20_000))
        await clock.age(producer)
        broker.come()  # a flush is over once what it waits for was dispatched, which needs Kafka's first answer
        await waiting
        assert producer.statistics().pending == 0
        adds_up(producer)


async def test_requeued_records_begin_a_new_age(broker: Distant, clock: Clock) -> None:
    broker.away = True
    async with producer_on(MemoryDisk()) as producer:
        await producer.publish("t", b"old", key=b"k")
        await clock.age(producer)
        await until(lambda: producer.statistics().expired == 1)
        assert await producer.dead_letters.requeue() == 1
        await clock.age(producer, LIMIT // 2)
        await asyncio.sleep(0.2)
        assert (producer.statistics().expired, producer.statistics().pending) == (1, 1)
        broker.come()
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
    assert broker.values("t") == [b"old"]


async def test_copies_for_the_dead_letter_topic_never_expire(broker: Distant, clock: Clock) -> None:
    broker.away = True
    broker.topics["dead"] = 1
    async with producer_on(MemoryDisk(), dead_letter_topic="dead") as producer:
        for number in range(10):
            await producer.publish("t", b"%d" % number, key=b"k")
        await clock.age(producer)
        await until(lambda: producer.statistics().accepted == 20)
        await clock.age(producer)
        await producer.publish("t", b"young", key=b"k")
        await clock.age(producer)
        await until(lambda: producer.statistics().expired == 11)
        await until(lambda: producer.statistics().accepted == 22)
        broker.come()
        await producer.flush(timeout_ms=20_000)
        assert (producer.statistics().expired, producer.statistics().pending) == (11, 0)
        adds_up(producer)
    assert broker.values("dead") == [*(b"%d" % number for number in range(10)), b"young"]
    assert broker.values("t") == []


async def test_without_room_for_letters_records_are_tried_on_and_no_lane_is_halted(
    broker: Distant, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    broker.refuses = failing("t", NotEnoughReplicasError)
    slot = 16 * 1024
    narrow = {"slot_bytes": slot, "wal_max_bytes": 6 * slot, "max_batch_size": 4_000, "on_full": "wait"}
    async with producer_on(MemoryDisk(), **narrow) as producer:
        dead = stored(producer).dead
        with contextlib.suppress(WalFullError):
            for number in itertools.count(1):
                dead.append(pack_moved(number, 0, 0, b"x" * 3_000), None)  # nobody purges these
                with contextlib.suppress(WalFullError):
                    dead.prepare_spare()
        for number in range(3):
            await producer.publish("t", b"%d" % number * 4_000, key=b"k")
        await clock.age(producer)
        await until(lambda: "no room for dead letters" in caplog.text)
        await asyncio.sleep(0.3)
        assert caplog.text.count("no room for dead letters") == 1
        now = producer.statistics()
        assert (now.lanes_halted, now.pending) == (0, 3 - now.expired)
        broker.refuses = lambda _: None
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
        assert len(broker.values("t")) == 3 - producer.statistics().expired > 0


async def test_after_a_crash_what_expired_is_a_dead_letter_once(
    broker: Distant, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when letters are durable and nothing is settled; the clock has gone back meanwhile."""
    broker.away = True
    disk, values = MemoryDisk(), numbered("old", 100)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(expiry_module.Expiry, "_settle", never)
        async with producer_on(disk) as producer:
            for value in values:
                await producer.publish("t", value, key=b"k")
            await clock.age(producer)
            await until(lambda: stored(producer).dead.accepted == len(values))
            left = disk.after_process_death()
    clock.ms -= 2 * LIMIT
    broker.come()
    async with producer_on(left) as producer:
        await producer.flush(timeout_ms=20_000)
        assert [letter.value for letter in await letters_of(producer)] == values
        adds_up(producer)
    assert broker.values("t") == []


async def test_a_process_that_is_killed_in_an_outage_leaves_word_of_ages(broker: Distant, clock: Clock) -> None:
    broker.away = True
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await until(lambda: producer.statistics().checkpoints > 0)  # from here on nothing is delivered
        await producer.publish("t", b"old", key=b"k")
        await clock.known(producer)
        left = disk.after_process_death()
    clock.ms += LIMIT
    async with producer_on(left) as producer:
        await until(lambda: producer.statistics().expired == 1)


async def test_what_was_in_flight_when_the_process_died_expires_as_possibly_there(
    broker: Distant, clock: Clock
) -> None:
    disk = MemoryDisk()
    broker.answers.clear()
    async with producer_on(disk) as producer:
        await producer.publish("t", b"in flight", key=b"k")
        await until(lambda: producer.statistics().in_flight == 1)
        await producer.publish("t", b"behind", key=b"k")
        await clock.known(producer)
        left = disk.after_process_death()
    broker.away = True
    broker.answers.set()
    clock.ms += 2 * LIMIT
    async with producer_on(left) as producer:
        await until(lambda: producer.statistics().expired == 2)
        adds_up(producer)
        await producer.publish("t", b"young", key=b"k")
        broker.come()
        await producer.flush(timeout_ms=20_000)
        letters = await letters_of(producer)
    assert {letter.value: letter.persisted for letter in letters} == {b"in flight": "possibly", b"behind": "not"}
    assert broker.values("t") == [b"young"]


@pytest.mark.parametrize("dies_again", [False, True])
@pytest.mark.parametrize("attempted", [False, True])
async def test_what_was_in_flight_when_the_process_died_cannot_come_behind_what_follows_it(
    broker: Distant, clock: Clock, *, attempted: bool, dies_again: bool
) -> None:
    """I6: the dead process's kernel may deliver it at any time; its age is up, so it is not sent again."""
    disk = MemoryDisk()
    broker.refuses = failing("t", RequestTimedOutError)  # it has no answer; in its place nothing is appended so far
    async with producer_on(disk) as producer:
        await producer.publish("t", b"old", key=b"k")
        await until(lambda: len(broker.sends) > 0)
        await clock.known(producer)
        left = disk.after_process_death()
    late = broker.sends[-1][2]
    clock.ms += 0 if attempted else 2 * LIMIT
    async with producer_on(left) as producer:
        if attempted:
            sent = len(broker.sends)
            await until(lambda: len(broker.sends) > sent)
            await clock.age(producer)
        await until(lambda: producer.statistics().expired == 1)
        assert [letter.persisted for letter in await letters_of(producer)] == ["possibly"]
        broker.refuses = lambda _: None
        if not dies_again:
            await producer.publish("t", b"young", key=b"k")
            await producer.flush(timeout_ms=20_000)
        left = left.after_process_death()
    if dies_again:
        async with producer_on(left) as producer:
            await producer.publish("t", b"young", key=b"k")
            await producer.flush(timeout_ms=20_000)
    assert broker.values("t") == [b"young"]
    producer_id, epoch, base = broker.sends[-1][2]
    assert producer_id == late[0], "another producer id refuses nothing of it"
    assert (epoch > late[1], base) == (True, 0)


async def test_after_a_power_cut_what_was_settled_is_no_dead_letter(broker: Distant, clock: Clock) -> None:
    """Settle words are suspect, so each record is judged first; where its word says that it waits, it expires."""
    disk = MemoryDisk()
    broker.refuses = failing("nowhere", NotEnoughReplicasError)
    async with producer_on(disk, fsync="always") as producer:
        for number in range(50):
            await producer.publish("t", b"%d" % number, key=b"k")
        await producer.flush(timeout_ms=20_000)
        await producer.publish("nowhere", b"waits", key=b"k")
        await clock.age(producer, 0)
        left = disk.after_power_cut(7)
    async with producer_on(left, recovery_check=False) as producer:
        await clock.age(producer)
        await until(lambda: producer.statistics().expired >= 1)
        await producer.flush(timeout_ms=20_000)
        letters = await letters_of(producer)
        adds_up(producer)
    waiting = [letter for letter in letters if letter.topic == "nowhere"]
    assert [letter.value for letter in waiting] == [b"waits"]
    assert all(letter.persisted == "possibly" for letter in letters)


async def test_tasks_cancelled_half_way_leave_one_letter_of_each(broker: Distant, clock: Clock) -> None:
    broker.refuses = failing("t", NotEnoughReplicasError)
    values, heard = numbered("old", 30), 0

    async def slowly(_: DeliveryReport) -> None:
        nonlocal heard
        heard += 1
        await asyncio.sleep(0.02)

    async with producer_on(MemoryDisk(), on_delivery=slowly) as producer:
        for value in values:
            await producer.publish("t", value, key=b"k")
        await asyncio.sleep(0.1)
        await clock.age(producer)
        for value in values:
            await producer.publish("nowhere", value, key=b"k")
        await clock.age(producer)
        for often in (5, 20, 40):
            await until(lambda often=often: heard >= often)  # type: ignore[misc]
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
        await until(lambda: producer.statistics().expired >= 2 * len(values))
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
        assert (producer.statistics().expired, producer.statistics().pending) == (2 * len(values), 0)
        assert stored(producer).ring.failure is None
        letters = await letters_of(producer)
    assert [letter.value for letter in letters if letter.topic == "t"] == values
    assert [letter.value for letter in letters if letter.topic == "nowhere"] == values


def rot(disk: MemoryDisk, producer: RecoverableProducer, receipt: Receipt) -> None:
    """In its payload; all stand in one slot."""
    slot = stored(producer).ring.slot_of(receipt.sequence)
    disk.file("0/ring").damage(slot.file_offset + 4 * receipt._place + 40, b"rot")


async def test_what_rots_in_a_lane_is_tried_on_instead_of_becoming_another_letter(
    broker: Distant, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """I2: its batch is whole, in memory; its frame is not."""
    broker.refuses = failing("t", NotEnoughReplicasError)
    disk, old = MemoryDisk(), numbered("old" * 20, 10)
    async with producer_on(disk) as producer:
        receipts = [await producer.publish("t", value, key=b"k") for value in old]
        await until(lambda: len(broker.sends) > 1)
        rot(disk, producer, receipts[0])
        await clock.age(producer)
        await until(lambda: "its dead letter would be another one" in caplog.text)
        sends = len(broker.sends)
        await until(lambda: len(broker.sends) > sends + 2)
        broker.refuses = lambda _: None
        await producer.flush(timeout_ms=20_000)
        assert broker.values("t") == old
        assert await letters_of(producer) == []


async def test_what_rots_behind_expired_records_is_tried_on_with_what_follows_it(
    broker: Distant, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes before it has expired; the rest is as whole as the batch was, in memory."""
    broker.refuses = failing("t", NotEnoughReplicasError)
    disk, old = MemoryDisk(), numbered("old" * 20, 10)
    async with producer_on(disk) as producer:
        receipts = [await producer.publish("t", value, key=b"k") for value in old]
        await until(lambda: len(broker.sends) > 1)
        rot(disk, producer, receipts[3])
        await clock.age(producer)
        await until(lambda: producer.statistics().expired == 3)
        sends = len(broker.sends)
        await until(lambda: len(broker.sends) > sends + 2)
        assert caplog.text.count("its dead letter would be another one") == 1
        assert producer.statistics().lanes_halted == 0
        adds_up(producer)
        broker.refuses = lambda _: None
        await producer.flush(timeout_ms=20_000)
        assert broker.values("t") == old[3:]
        assert [letter.value for letter in await letters_of(producer)] == old[:3]
        adds_up(producer)


@pytest.mark.parametrize("rotten", [bytes(40), b"\xff" * 40], ids=["zeros", "ones"])
async def test_what_rots_with_its_settle_word_counts_as_waiting_and_who_waits_for_it_is_told(
    broker: Distant, clock: Clock, rotten: bytes
) -> None:
    """One that is not settled for certain is not parted with; nor does its sequence say any more who it was."""
    broker.refuses = failing("t", NotEnoughReplicasError)
    disk, old, heard = MemoryDisk(), numbered("old" * 20, 5), list[DeliveryReport]()
    async with producer_on(disk, on_delivery=heard.append) as producer:
        receipts = [await producer.publish("t", value, key=b"k") for value in old]
        waiter = asyncio.create_task(receipts[0].delivered(timeout_ms=20_000))
        await until(lambda: len(broker.sends) > 1)
        slot = stored(producer).ring.slot_of(receipts[0].sequence)
        disk.file("0/ring").damage(slot.file_offset + 4 * (receipts[0]._place - SETTLE_WORD), rotten)
        await clock.age(producer)
        sends = len(broker.sends)
        await until(lambda: len(broker.sends) > sends + 2)
        broker.refuses = lambda _: None
        assert (await waiter).record_id == receipts[0].record_id
        await producer.flush(timeout_ms=20_000)
        assert broker.values("t") == old
        assert [report.record_id for report in heard] == [receipt.record_id for receipt in receipts]
        assert producer.statistics().pending == 0
        adds_up(producer)


async def test_a_batch_that_expires_whole_gives_the_loop_turns(
    broker: Distant, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_module, "STEP", 4)
    broker.refuses = failing("t", NotEnoughReplicasError)
    turns, stored_at = [0], []
    put_now = DeadLetters.put_now

    def counted(*args: Any) -> None:
        stored_at.append(turns[0])
        put_now(*args)

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(DeadLetters, "put_now", counted)
    async with producer_on(MemoryDisk()) as producer:
        for value in numbered("old", 40):
            await producer.publish("t", value, key=b"k")
        await until(lambda: len(broker.sends) > 1)
        task = asyncio.create_task(others())
        await clock.age(producer)
        await until(lambda: producer.statistics().expired == 40)
        task.cancel()
    assert len(stored_at) == 40
    assert max(Counter(stored_at).values()) <= 4


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_fails_and_however_time_goes_each_record_is_delivered_or_a_dead_letter_in_order(
    broker: Distant, clock: Clock, seed: int
) -> None:
    chance = random.Random(seed)
    topics = ["t", "other", "wide", "late"]
    stuck: set[str] = set()
    broker.refuses = lambda records: (
        chance.choice([NotEnoughReplicasError, NotEnoughReplicasAfterAppendError])()
        if records[0].topic in stuck
        else None
    )
    disk = MemoryDisk()
    published: list[tuple[str, bytes]] = []
    for life in range(3):
        async with producer_on(disk, max_batch_size=600, slot_bytes=16 * 1024) as producer:
            for turn in range(12):
                for _ in range(chance.randrange(60)):
                    value = f"{life}-{turn}-{len(published)}".encode()
                    topic = chance.choice(topics)
                    await producer.publish(topic, value, partition=0)
                    published.append((topic, value))
                stuck = {topic for topic in topics if chance.random() < 0.3}
                if chance.random() < 0.2:
                    broker.topics["late"] = 1
                clock.ms += chance.choice([0, 500, LIMIT // 4, LIMIT])
                await asyncio.sleep(chance.random() * 0.3)
                adds_up(producer)
            if life == 2:
                stuck = set()
                broker.topics["late"] = 1
                broker.come()
                await producer.flush(timeout_ms=20_000)
                adds_up(producer)
                letters = await letters_of(producer)
            else:
                broker.answers.clear()  # what this life does from here on does not count
                await asyncio.sleep(0.05)
                disk = disk.after_process_death()
        broker.answers.set()
    dead = {(letter.topic, letter.value): letter.persisted for letter in letters}
    assert len(dead) == len(letters)
    for topic in topics:
        log = broker.values(topic)
        there = set(log)
        assert len(there) == len(log), "delivered twice"
        assert log == [value for name, value in published if name == topic and value in there], "out of order"
        for name, value in published:
            if name == topic:
                assert (value in there) != ((name, value) in dead) or dead.get((name, value)) == "possibly"


@pytest.mark.parametrize(("byte", "bit"), [(8, 0x02), (12, 0x01), (14, 0x01)], ids=["another one's", "high", "higher"])
async def test_a_sequence_that_rots_while_kafka_is_away_gives_no_letter_another_name(
    broker: Distant, clock: Clock, byte: int, bit: int
) -> None:
    broker.away = True
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        values = numbered("old", 5)
        receipts = [await producer.publish("t", value, key=b"k") for value in values]
        await until(lambda: producer.statistics().pending == 5)
        await asyncio.sleep(0.1)  # read, and held
        slot = stored(producer).ring.slot_of(receipts[0].sequence)
        assert slot.map is not None
        slot.map[(receipts[0]._place - SETTLE_WORD) * 4 + byte] ^= bit
        await clock.age(producer)
        await until(lambda: producer.statistics().expired == 5)
        letters = {letter.record_id: letter.value for letter in await letters_of(producer)}
        assert letters == dict(zip((receipt.record_id for receipt in receipts), values, strict=True))
        broker.come()
        await producer.publish("other", b"young")
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
    assert (broker.values("t"), broker.values("other")) == ([], [b"young"])


async def test_what_was_cut_and_expires_before_a_part_of_it_is_sent_is_fenced_by_the_next_process(
    broker: Distant, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that it was cut from may be on its way to Kafka still."""
    answers: list[BaseException] = [NotEnoughReplicasAfterAppendError(), PolicyViolationError()]
    broker.refuses = lambda _: answers.pop(0) if answers else None
    disk = MemoryDisk()
    cut = Refused.cut

    async def slowly(self: Refused, *args: Any, **more: Any) -> int:
        largest = await cut(self, *args, **more)
        await clock.age(producer)
        await until(lambda: stored(producer).expired > 0)
        return largest

    monkeypatch.setattr(Refused, "cut", slowly)
    async with producer_on(disk, linger_ms=500) as producer:
        for value in (b"1", b"2"):
            producer.publish_nowait("t", value, key=b"k")
        await producer.flush(timeout_ms=20_000)
        assert [letter.error for letter in await letters_of(producer)] == [EXPIRED] * 2
        assert {identity for _, _, identity, _ in broker.sends} == {(1, 0, 0)}
        image = disk.after_process_death()
    broker.sends.clear()
    async with producer_on(image) as producer:
        await producer.publish("t", b"young", key=b"k")
        await producer.flush(timeout_ms=20_000)
    producer_id, epoch, base = broker.sends[0][2]
    assert (producer_id, epoch > 0, base) == (1, True, 0)
