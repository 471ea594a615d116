"""Refused batches with a stand-in for Kafka: who is found, after how many sends, and what becomes of the lane."""

import asyncio
import math
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import (
    MessageSizeTooLargeError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    PolicyViolationError,
)

from aiorecover import (
    DeadLetter,
    DeliveryPendingError,
    DeliveryReport,
    PermanentDeliveryError,
    Receipt,
    RecoverableProducer,
)
from aiorecover import recounting as recounting_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery import size_limit as size_limit_module
from aiorecover.delivery.batch import CODECS
from aiorecover.delivery.dead_letters import DeadLetters
from aiorecover.delivery.flush import Flush
from aiorecover.delivery.lane import MAKE_ROOM, MEND_TOPIC
from aiorecover.delivery.reports import Reports
from aiorecover.delivery.session import SessionLostError
from aiorecover.errors import WalIOError
from aiorecover.testing import MemoryDisk
from aiorecover.wal.directory import Directory
from tests.delivery.refusing import Broker, Sent
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

POISON = b"poison"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(t=1, other=1, wide=4)
    monkeypatch.setattr(sessions_module, "Session", made.session())
    return made


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given = {
        "wal_min_free_bytes": 0,
        "slot_bytes": 256 * 1024,
        "linger_ms": 500,  # what a test publishes at once is one batch: `flush` hands it over
        "retry_backoff_ms": 1,
        **options,
    }
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


def narrow(**options: Any) -> dict[str, Any]:
    """Four slots for the dead ring, a big record each."""
    slot = 16 * 1024
    return {
        "slot_bytes": slot,
        "wal_max_bytes": 4 * 4 * slot,  # a quarter of it is the dead ring's
        "max_batch_size": 2000,
        "linger_ms": 1,
        "on_full": "wait",
        **options,
    }


def refusing_poison(records: list[Sent]) -> BaseException | None:
    return PolicyViolationError() if any(record.value.startswith(POISON) for record in records) else None


def refusing_above(limit: int) -> Callable[[list[Sent]], BaseException | None]:
    def judge(records: list[Sent]) -> BaseException | None:
        size = sum(len(record.value) for record in records)
        return MessageSizeTooLargeError() if size > limit else None

    return judge


async def letters_of(producer: RecoverableProducer) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters.list()]


def adds_up(producer: RecoverableProducer) -> None:
    """I9."""
    now = producer.statistics()
    assert now.accepted + now.recovered == now.delivered + now.dead_lettered + now.pending, now


async def publish_batch(producer: RecoverableProducer, topic: str, values: list[bytes]) -> list[Any]:
    """One batch: nothing is awaited in between."""
    return [producer.publish_nowait(topic, value, key=b"k") for value in values]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 33, 100, 1000])
async def test_one_poison_record_anywhere_costs_at_most_two_log_n_and_two_sends(broker: Broker, count: int) -> None:
    broker.refuses = refusing_poison
    for at in sorted({0, count // 3, count // 2, count - 1}):
        broker.sends.clear()
        broker.log.clear()
        values = [POISON if number == at else b"%d" % number for number in range(count)]
        async with producer_on(MemoryDisk()) as producer:
            await publish_batch(producer, "t", values)
            await producer.flush(timeout_ms=20_000)
            (letter,) = await letters_of(producer)
            adds_up(producer)
        assert broker.sends[0][3] == count, "not one batch: the count below says nothing"
        assert len(broker.sends) <= 2 * math.log2(count) + 2
        assert broker.values("t") == [value for value in values if value != POISON]
        assert (letter.value, letter.error, letter.topic, letter.partition) == (POISON, "PolicyViolationError", "t", 0)


async def test_a_policy_refuses_one_record_in_ten_thousand_and_the_others_arrive_in_order(broker: Broker) -> None:
    """Of the kinds that Kafka has for good, the one that no broker of ours can be made to say."""
    broker.refuses = refusing_poison
    values = [POISON if number == 3333 else b"%d" % number for number in range(10_000)]
    async with producer_on(MemoryDisk()) as producer:
        receipts = await publish_batch(producer, "t", values)
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
        adds_up(producer)
    assert (letter.record_id, letter.error) == (receipts[3333].record_id, "PolicyViolationError")
    assert broker.values("t") == [value for value in values if value != POISON]
    refused = max(count for _, _, _, count in broker.sends)
    batches = math.ceil(len(values) / refused)
    assert len(broker.sends) <= batches + 2 * math.log2(refused) + 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 33, 1100])
async def test_one_record_above_the_limit_costs_at_most_two_log_n_and_two_sends(broker: Broker, count: int) -> None:
    broker.refuses = refusing_above(50_000)
    for at in sorted({0, count // 3, count - 1}):
        broker.sends.clear()
        broker.log.clear()
        values = [b"%d" % number + (b"x" * 60_000 if number == at else b"x" * 100) for number in range(count)]
        async with producer_on(MemoryDisk()) as producer:
            await publish_batch(producer, "t", values)
            await producer.flush(timeout_ms=20_000)
            (letter,) = await letters_of(producer)
        assert broker.sends[0][3] == count
        assert len(broker.sends) <= 2 * math.log2(count) + 2
        assert broker.values("t") == [value for value in values if len(value) < 60_000]
        assert (letter.value or b"")[: len(b"%d" % at)] == b"%d" % at


async def test_a_limit_below_the_batch_size_makes_smaller_batches_and_no_dead_letter(broker: Broker) -> None:
    broker.refuses = refusing_above(10_000)
    values = [b"%05d" % number + b"x" * 95 for number in range(1000)]
    async with producer_on(MemoryDisk()) as producer:
        await publish_batch(producer, "t", values)
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
        adds_up(producer)
    assert broker.values("t") == values


async def test_a_limit_below_the_batch_size_is_found_once_and_kept_to(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    limit, refused = refusing_above(10_000), []

    def counting(records: list[Sent]) -> BaseException | None:
        answer = limit(records)
        if answer is not None:
            refused.append(len(records))
        return answer

    broker.refuses = counting
    values = [b"%05d" % number + b"x" * 95 for number in range(10_000)]
    async with producer_on(MemoryDisk(), max_batch_size=64 * 1024, linger_ms=5) as producer:
        for value in values:
            await producer.publish("t", value, key=b"k")
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
        adds_up(producer)
    assert broker.values("t") == values
    assert len(refused) <= 4, "half of it until it is small enough, once"
    assert len(broker.sends) <= len(refused) + 10_000 / 35, "smaller than they must be by a half at most"
    assert caplog.text.count("kafka refused a batch as too large: sending smaller ones topic=t partition=0") == 1


async def test_a_limit_that_was_raised_is_found_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limit_module, "FIRST_PROBE", 0.01)
    broker.refuses = refusing_above(10_000)
    values = [b"%05d" % number + b"x" * 95 for number in range(20_000)]
    async with producer_on(MemoryDisk(), max_batch_size=64 * 1024, linger_ms=5) as producer:
        for value in values[:2_000]:
            await producer.publish("t", value, key=b"k")
        await producer.flush(timeout_ms=20_000)
        broker.refuses = lambda _: None
        for value in values[2_000:]:
            await producer.publish("t", value, key=b"k")
        await producer.flush(timeout_ms=20_000)
    assert broker.values("t") == values
    assert max(count for _, _, _, count in broker.sends[-20:]) * 100 > 32 * 1024


async def test_a_record_that_is_too_large_by_itself_makes_no_smaller_batches_of_the_others(broker: Broker) -> None:
    broker.refuses = refusing_above(50_000)
    async with producer_on(MemoryDisk()) as producer:
        await publish_batch(producer, "t", [b"x" * 100] * 40 + [b"x" * 60_000] + [b"x" * 100] * 360)
        await producer.flush(timeout_ms=20_000)
        await publish_batch(producer, "t", [b"x" * 100] * 450)
        await producer.flush(timeout_ms=20_000)
        assert len(await letters_of(producer)) == 1
    assert broker.sends[-1][3] == 450


async def test_poison_in_every_batch_is_a_line_a_minute(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.refuses = refusing_poison
    async with producer_on(MemoryDisk()) as producer:
        for _ in range(10):
            await publish_batch(producer, "t", [b"1", POISON, b"2"])
            await producer.flush(timeout_ms=20_000)
        assert len(await letters_of(producer)) == 10
    assert caplog.text.count("looking for the record at fault") == 1


async def test_only_poison_becomes_dead_letters_in_order_with_fewer_than_two_sends_each(broker: Broker) -> None:
    broker.refuses = refusing_poison
    values = [b"%b%d" % (POISON, number) for number in range(200)]
    async with producer_on(MemoryDisk()) as producer:
        await publish_batch(producer, "t", values)
        await producer.flush(timeout_ms=20_000)
        assert [letter.value for letter in await letters_of(producer)] == values
        assert producer.statistics().dead_lettered == 200
        adds_up(producer)
    assert len(broker.sends) < 400
    assert broker.values("t") == []


async def test_the_refused_sequence_is_the_next_batch_s_where_nothing_was_possibly_persisted(broker: Broker) -> None:
    broker.refuses = refusing_poison
    async with producer_on(MemoryDisk()) as producer:
        await publish_batch(producer, "t", [b"1", POISON, b"2"])
        await producer.flush(timeout_ms=20_000)
        await publish_batch(producer, "t", [b"3"])
        await producer.flush(timeout_ms=20_000)
    assert {identity[:2] for _, _, identity, _ in broker.sends} == {(1, 0)}
    assert broker.values("t") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("records", [[POISON], [b"1", POISON, b"2"]])
async def test_a_batch_that_was_possibly_persisted_is_followed_under_a_fresh_identity(
    broker: Broker, records: list[bytes]
) -> None:
    answers: list[BaseException] = [NotEnoughReplicasAfterAppendError(), NotEnoughReplicasError()]
    broker.refuses = lambda batch: answers.pop(0) if answers else refusing_poison(batch)
    async with producer_on(MemoryDisk()) as producer:
        await publish_batch(producer, "t", records)
        await producer.flush(timeout_ms=20_000)
        await publish_batch(producer, "t", [b"3"])
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
        assert producer.statistics().identities_renewed == 1
    first = [identity for _, _, identity, _ in broker.sends[:3]]
    assert first == [(1, 0, 0)] * 3
    assert {identity[:2] for _, _, identity, _ in broker.sends[3:]} == {(1, 1)}
    assert broker.sends[3][2] == (1, 1, 0)
    assert letter.persisted == "possibly"
    assert letter.attempts == 3 + (len(records) > 1)


async def test_a_session_lost_with_the_batch_leaves_it_possibly_persisted(broker: Broker) -> None:
    lost: list[BaseException] = [SessionLostError()]
    broker.refuses = lambda batch: lost.pop() if lost else refusing_poison(batch)
    async with producer_on(MemoryDisk()) as producer:
        await publish_batch(producer, "t", [POISON])
        await producer.flush(timeout_ms=20_000)
        await publish_batch(producer, "t", [b"1"])
        await producer.flush(timeout_ms=20_000)
    assert [identity for _, _, identity, _ in broker.sends] == [(1, 0, 0), (1, 0, 0), (1, 1, 0)]


async def test_what_is_too_large_is_not_cut_further_than_it_must_be(broker: Broker) -> None:
    """That one half is small enough says nothing of the other one."""
    broker.refuses = refusing_above(5_000)
    async with producer_on(MemoryDisk()) as producer:
        await publish_batch(producer, "t", [b"x" * 100] * 100)
        await producer.flush(timeout_ms=20_000)
    assert [count for _, _, _, count in broker.sends] == [100, 50, 50]


async def test_an_answer_that_rules_out_the_append_costs_no_fresh_identity(broker: Broker) -> None:
    answers: list[BaseException] = [NotEnoughReplicasError(), NotEnoughReplicasError()]
    broker.refuses = lambda batch: answers.pop(0) if answers else refusing_poison(batch)
    async with producer_on(MemoryDisk()) as producer:
        await publish_batch(producer, "t", [POISON])
        await publish_batch(producer, "t", [b"3"])
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
        assert producer.statistics().identities_renewed == 0
    assert {identity[:2] for _, _, identity, _ in broker.sends} == {(1, 0)}
    assert letter.persisted == "not"


async def test_who_waits_and_who_asks_later_are_told_and_on_delivery_hears_it_before(broker: Broker) -> None:
    broker.refuses = refusing_poison
    heard: list[DeliveryReport] = []
    async with producer_on(MemoryDisk(), on_delivery=heard.append) as producer:
        receipt = await producer.publish("t", POISON, context={"order": 1})
        with pytest.raises(PermanentDeliveryError, match="dead letter") as told:
            await receipt.delivered(timeout_ms=20_000)
        with pytest.raises(PermanentDeliveryError, match="PolicyViolationError"):
            await receipt.delivered(timeout_ms=0)
        assert told.value.persisted == "not"
        with pytest.raises(PermanentDeliveryError, match=receipt.record_id):
            await receipt.delivered()
    (report,) = heard
    assert (report.status, report.offset, report.context) == ("dead_lettered", None, {"order": 1})
    assert report.record_id == receipt.record_id
    assert "PolicyViolationError" in (report.error or "")


async def test_a_letter_tells_everything_of_its_record_and_of_its_end(broker: Broker) -> None:
    broker.refuses = lambda _: PolicyViolationError("no such schema")
    async with producer_on(MemoryDisk()) as producer:
        await producer.source_positions()
        receipt = await producer.publish(
            "t",
            POISON,
            key=b"k",
            timestamp_ms=1_700_000_000_000,
            headers=[("h", None)],
            context=[1],
            source=("in", 3, 4),
        )
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
    assert (letter.record_id, letter.topic, letter.partition) == (receipt.record_id, "t", 0)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", POISON, 1_700_000_000_000)
    assert (letter.headers, letter.context, letter.source) == ([("h", None)], [1], ["in", 3, 4])
    assert (letter.error, letter.persisted, letter.attempts) == ("PolicyViolationError", "not", 1)
    assert "no such schema" in letter.message
    assert 1_700_000_000_000 < letter.first_ms <= letter.last_ms


async def test_halting_halves_too_and_stops_at_the_record_at_fault(broker: Broker) -> None:
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    async with producer_on(disk, on_permanent_error="halt") as producer:
        receipts = await publish_batch(producer, "t", [b"1", b"2", POISON, b"3", b"4"])
        other = await producer.publish("other", b"fine")
        with pytest.raises(PermanentDeliveryError, match=f"halted and its .*: {MEND_TOPIC} topic"):
            await producer.flush(timeout_ms=20_000)
        assert (await other.delivered(20_000)).offset == 0
        assert producer.state == "halted"
        with pytest.raises(PermanentDeliveryError, match="PolicyViolation"):
            await receipts[2].delivered(timeout_ms=1000)
        assert await letters_of(producer) == []
        assert await producer.stop() == 3
    assert broker.values("t") == [b"1", b"2"]
    broker.refuses = lambda _: None
    broker.log.clear()
    async with producer_on(disk) as producer:
        await producer.flush(timeout_ms=20_000)
    assert broker.values("t") == [POISON, b"3", b"4"]


async def test_what_stands_behind_the_record_that_halts_a_lane_is_not_refused_and_not_to_be_published_again(
    broker: Broker,
) -> None:
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    async with producer_on(disk, on_permanent_error="halt") as producer:
        receipts = await publish_batch(producer, "t", [b"1", POISON, b"2", b"3"])
        early = asyncio.ensure_future(receipts[3].delivered(timeout_ms=20_000))
        await until(lambda: producer.state == "halted")
        later = await producer.publish("t", b"4")
        remedy = f"do not publish it again, it is delivered after the next start: {MEND_TOPIC} topic=t partition=0"
        for told in (early, receipts[2].delivered(timeout_ms=20_000), later.delivered(timeout_ms=20_000)):
            with pytest.raises(DeliveryPendingError, match=re.escape(remedy)) as caught:
                await told
            assert caught.value.persisted == "not"
        with pytest.raises(PermanentDeliveryError, match="PolicyViolation"):
            await receipts[1].delivered(timeout_ms=20_000)
        assert await producer.stop() == 4
    broker.refuses = lambda _: None
    async with producer_on(disk, on_permanent_error="halt") as producer:
        await producer.flush(timeout_ms=20_000)
    assert broker.values("t") == [b"1", POISON, b"2", b"3", b"4"]


async def test_a_halted_lane_is_left_by_a_start_that_makes_dead_letters(broker: Broker) -> None:
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    async with producer_on(disk, on_permanent_error="halt") as producer:
        await publish_batch(producer, "t", [b"1", POISON, b"2"])
        await until(lambda: producer.state == "halted")
        assert await producer.stop() == 2
    async with producer_on(disk) as producer:
        await producer.flush(timeout_ms=20_000)
        assert [letter.value for letter in await letters_of(producer)] == [POISON]
        assert producer.state == "connected"
    assert broker.values("t") == [b"1", b"2"]


async def test_a_full_dead_ring_halts_its_lane_alone_until_there_is_room(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.refuses = refusing_poison
    big = POISON + b"x" * 10_000  # one in a slot
    async with producer_on(MemoryDisk(), **narrow()) as producer:
        for _ in range(4):
            await producer.publish("t", big, key=b"k")
            await producer.flush(timeout_ms=20_000)
        await producer.publish("t", big, key=b"k")
        await until(lambda: producer.state == "halted")
        with pytest.raises(PermanentDeliveryError, match=MAKE_ROOM):
            await producer.flush(timeout_ms=20_000)
        values = [b"%d" % number for number in range(100)]
        for value in values:  # far more than a lane's two batches hold
            await producer.publish("t", value, key=b"k")
            await producer.publish("t", value + b"e", partition=0)
            await (await producer.publish("other", value, key=b"k")).delivered(20_000)
        assert broker.values("other") == values
        assert broker.values("t") == []
        adds_up(producer)
        assert await producer.dead_letters.purge("all") == 4
        await producer.flush(timeout_ms=20_000)
        assert [letter.value for letter in await letters_of(producer)] == [big]
        assert producer.state == "connected"
        adds_up(producer)
    assert broker.values("t") == [value + end for value in values for end in (b"", b"e")]
    assert f"the lane is halted and its records stay in the ring: {MAKE_ROOM} topic=t partition=0" in caplog.text
    assert (
        "error=no room for a dead letter: the dead ring is full: export the dead letters and purge them, or "
        in caplog.text
    )


@pytest.mark.parametrize("halts", [False, True])
async def test_a_stop_delivers_what_waits_for_others_than_halted_lanes(broker: Broker, *, halts: bool) -> None:
    broker.refuses = refusing_poison
    big = POISON + b"x" * 10_000
    on_error = "halt" if halts else "dead_letter"
    producer = producer_on(MemoryDisk(), **narrow(on_permanent_error=on_error, stop_timeout_ms=60_000))
    await producer.start()
    for _ in range(0 if halts else 4):
        await producer.publish("t", big, key=b"k")
        await producer.flush(timeout_ms=20_000)
    await producer.publish("t", big, key=b"k")
    await until(lambda: producer.state == "halted")
    broker.answers.clear()
    values = [b"%d" % number for number in range(100)]
    for value in values:
        await producer.publish("t", value, key=b"k")
        await producer.publish("other", value, key=b"k")
    stopping = asyncio.create_task(producer.stop())
    await asyncio.sleep(0.1)
    assert not stopping.done()
    broker.answers.set()
    async with asyncio.timeout(20):
        assert await stopping == len(values) + 1
    assert broker.values("other") == values
    adds_up(producer)


async def test_records_without_a_key_go_past_a_halted_lane_and_wait_where_all_are_halted(broker: Broker) -> None:
    broker.refuses = refusing_poison
    big = POISON + b"x" * 10_000
    async with producer_on(MemoryDisk(), **narrow()) as producer:
        for _ in range(4):
            await producer.publish("t", big)
            await producer.flush(timeout_ms=20_000)
        await producer.publish("wide", big, partition=1)
        await producer.publish("t", big)
        await until(lambda: producer.statistics().lanes_halted == 2)
        for number in range(20):
            await (await producer.publish("wide", b"%d" % number)).delivered(20_000)
        waiting = [await producer.publish("t", b"%d" % number) for number in range(20)]
        await (await producer.publish("other", b"past them")).delivered(20_000)
        assert await producer.dead_letters.purge("all") == 4
        for receipt in waiting:
            await receipt.delivered(20_000)
        await producer.flush(timeout_ms=20_000)
    assert broker.values("t") == [b"%d" % number for number in range(20)]
    assert sorted(v for p in range(4) for v in broker.values("wide", p)) == sorted(b"%d" % n for n in range(20))


async def test_behind_a_partitioner_of_the_user_s_the_whole_topic_waits_and_nothing_is_lost(broker: Broker) -> None:
    broker.refuses = refusing_poison
    turn = [0]
    big = POISON + b"x" * 10_000

    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        turn[0] += 1
        return turn[0] % len(every)

    async with producer_on(MemoryDisk(), **narrow(partitioner=partitioner)) as producer:
        for _ in range(4):
            await producer.publish("t", big, key=b"k")
            await producer.flush(timeout_ms=20_000)
        await producer.publish("wide", big, key=b"k")
        await until(lambda: producer.statistics().lanes_halted == 1)
        values = [b"%d" % number for number in range(50)]
        for value in values:
            await producer.publish("wide", value, key=value)
        await (await producer.publish("other", b"past them")).delivered(20_000)
        assert await producer.dead_letters.purge("all") == 4
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
    assert sorted(v for p in range(4) for v in broker.values("wide", p)) == sorted(values)


async def test_a_death_between_the_letter_and_settling_leaves_one_letter(broker: Broker) -> None:
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    dead: list[MemoryDisk] = []

    def die(report: DeliveryReport) -> None:  # called when the letter is durable, before the record is settled
        dead.append(disk.after_process_death())

    async with producer_on(disk, on_delivery=die) as producer:
        receipt = await producer.publish("t", POISON)
        await producer.flush(timeout_ms=20_000)
    async with producer_on(dead[0]) as producer:
        await producer.flush(timeout_ms=20_000)
        statistics = producer.statistics()
        assert (statistics.recovered, statistics.dead_lettered, statistics.pending) == (1, 1, 0)
        (letter,) = await letters_of(producer)
        assert letter.record_id == receipt.record_id


@pytest.mark.parametrize("values", [[POISON], [b"1", POISON], [POISON + b"1", POISON + b"2"]])
async def test_no_letter_is_left_of_a_record_that_kafka_takes_from_the_next_process(
    broker: Broker, values: list[bytes]
) -> None:
    """The topic was mended in between: else it would be delivered, and once more when its letter is requeued."""
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    dead: list[MemoryDisk] = []

    def die(report: DeliveryReport) -> None:  # called when the letter is durable, before the record is settled
        if report.status == "dead_lettered":
            dead.append(disk.after_process_death())

    async with producer_on(disk, on_delivery=die) as producer:
        await publish_batch(producer, "other", [POISON])
        await producer.flush(timeout_ms=20_000)
        dead.clear()
        await publish_batch(producer, "t", values)
        await producer.flush(timeout_ms=20_000)
    broker.refuses = lambda _: None
    before = broker.values("t").copy()
    async with producer_on(dead[-1]) as producer:
        await producer.flush(timeout_ms=20_000)
        assert broker.values("t") == [*before, values[-1]]
        buried = [letter.value for letter in await letters_of(producer)]
        assert buried == [POISON, *(value for value in values[:-1] if value.startswith(POISON))]
        assert producer.statistics().pending == 0
        adds_up(producer)


def rot(disk: MemoryDisk, producer: RecoverableProducer, receipt: Receipt) -> None:
    """In its payload."""
    assert producer._opened is not None
    slot = producer._opened.directory.ring.slot_of(receipt.sequence)
    disk.file("0/ring").damage(slot.file_offset + 4 * receipt._place + 60, b"rot")


@pytest.mark.parametrize("codec", CODECS)
async def test_a_refused_batch_of_which_a_frame_rots_is_cut_all_the_same_and_what_is_sent_is_as_it_was(
    broker: Broker, codec: str | None
) -> None:
    """I2: its bytes are whole, in memory; a frame may have left memory since it was read."""
    broker.refuses = refusing_poison
    broker.answers.clear()
    disk, whole = MemoryDisk(), [b"whole" * 20, b"", b"too"]
    async with producer_on(disk, compression_type=codec) as producer:
        first, *_ = await publish_batch(producer, "t", [*whole, POISON])
        await until(lambda: producer.statistics().in_flight == 4)
        rot(disk, producer, first)
        broker.answers.set()
        await producer.flush(timeout_ms=20_000)
        assert broker.values("t") == whole
        assert [letter.value for letter in await letters_of(producer)] == [POISON]
        adds_up(producer)
        assert producer.statistics().pending == 0


async def test_a_batch_that_has_outgrown_its_lane_is_cut_though_a_frame_of_it_rots(broker: Broker) -> None:
    broker.refuses = refusing_above(5_000)
    broker.answers.clear()
    disk, values = MemoryDisk(), [b"%02d" % number * 500 for number in range(20)]
    async with producer_on(disk, max_batch_size=10_000, linger_ms=1) as producer:
        receipts = await publish_batch(producer, "t", values)
        await until(lambda: producer.statistics().in_flight > 0)
        rot(disk, producer, receipts[12])
        broker.answers.set()
        await producer.flush(timeout_ms=20_000)
        assert broker.values("t") == values
        assert [records for *_, records in broker.sends if records > 5] == [9], "the second one was not cut unsent"
        adds_up(producer)


async def test_a_refused_record_that_rots_halts_its_lane_alone_and_is_never_buried_as_another(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """I2: its letter would hold what stands in its frame. The next start tells of it as missing."""
    broker.refuses = refusing_poison
    broker.answers.clear()
    disk, poison = MemoryDisk(), POISON * 20
    async with producer_on(disk, stop_timeout_ms=500) as producer:
        *_, last = await publish_batch(producer, "t", [b"1", b"2", poison])
        await until(lambda: producer.statistics().in_flight == 3)
        rot(disk, producer, last)
        broker.answers.set()
        with pytest.raises(
            PermanentDeliveryError, match=r"stop and start anew .*does not hold any more: check the disk"
        ):
            await producer.flush(timeout_ms=20_000)
        await (await producer.publish("other", b"past it")).delivered(20_000)
        assert broker.values("t") == [b"1", b"2"]
        assert await letters_of(producer) == []
        assert [line.getMessage()[:18] for line in caplog.records if line.levelname == "ERROR"] == [
            "the lane is halted"
        ]
        image = disk.after_process_death()
    async with producer_on(image) as producer:
        await producer.publish("t", b"3", key=b"k")
        await producer.flush(timeout_ms=20_000)
        assert broker.values("t") == [b"1", b"2", b"3"]
        assert await letters_of(producer) == []
        assert producer.statistics().missing == 1


async def test_a_letter_survives_a_power_cut_before_its_record_is_settled(broker: Broker) -> None:
    """I3: whatever of the settle word reaches the disk, the letter has."""
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    cut: list[MemoryDisk] = []

    def die(report: DeliveryReport) -> None:
        cut.extend(disk.after_power_cut(seed) for seed in range(20))

    async with producer_on(disk, on_delivery=die, fsync="always") as producer:
        await producer.publish("t", POISON)
        await producer.flush(timeout_ms=20_000)
    for image in cut:
        async with producer_on(image) as producer:
            await producer.flush(timeout_ms=20_000)
            assert len(await letters_of(producer)) == 1


async def test_a_record_waits_and_nobody_hears_of_it_until_its_letter_is_durable(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3."""
    broker.refuses = refusing_poison
    begun, go_on = threading.Event(), threading.Event()
    heard: list[DeliveryReport] = []
    flush = Directory.sync_dead

    def slow(directory: Directory) -> None:
        begun.set()
        assert go_on.wait(20)
        flush(directory)

    monkeypatch.setattr(Directory, "sync_dead", slow)
    async with producer_on(MemoryDisk(), on_delivery=heard.append) as producer:
        await publish_batch(producer, "t", [POISON, b"1"])
        producer._opened.delivery.dispatcher.begin_flush(Flush(-1))  # type: ignore[union-attr]
        await until(begun.is_set)
        await asyncio.sleep(0.1)
        assert producer.statistics().pending == 2
        assert (heard, broker.values("t")) == ([], [])
        go_on.set()
        await producer.flush(timeout_ms=20_000)
        assert [report.status for report in heard] == ["dead_lettered", "delivered"]


@pytest.mark.parametrize("undecodable", [False, True])
async def test_a_dead_ring_that_cannot_be_flushed_settles_nothing(
    broker: Broker, caplog: pytest.LogCaptureFixture, *, undecodable: bool
) -> None:
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    async with producer_on(disk, checkpoint_interval_ms=60_000, fsync="never") as producer:
        assert producer._opened is not None
        await (await producer.publish("other", b"1")).delivered(20_000)
        disk.file("0/dead").fail_syncs()
        if undecodable:
            producer._opened.directory.ring.append(b"\xc1no record", None)
            await (await producer.publish("other", b"2")).delivered(20_000)
        else:
            await publish_batch(producer, "t", [POISON])
        await until(lambda: producer.state == "failed")
        await asyncio.sleep(0.1)
        statistics = producer.statistics()
        assert (statistics.dead_lettered, statistics.pending) == (0, 1)
        if undecodable:
            with pytest.raises(WalIOError) as caught:
                await producer.flush(timeout_ms=20_000)
            kept = len(caught.traceback)
            with pytest.raises(WalIOError) as caught:
                await producer.flush(timeout_ms=20_000)
            assert len(caught.traceback) == kept, "it keeps whoever was told"
        adds_up(producer)
    assert "dead" in caplog.text


async def test_a_batch_that_the_last_process_had_in_flight_is_possibly_persisted_when_it_is_refused(
    broker: Broker,
) -> None:
    broker.refuses = refusing_poison
    broker.answers.clear()
    disk = MemoryDisk()
    async with producer_on(disk, stop_timeout_ms=500) as producer:
        await publish_batch(producer, "t", [b"1", POISON, b"2"])
        with pytest.raises(DeliveryPendingError):
            await producer.flush(timeout_ms=1000)
        image = disk.after_process_death()
    broker.answers.set()
    broker.sends.clear()
    async with producer_on(image) as producer:
        await producer.flush(timeout_ms=20_000)
        (letter,) = await letters_of(producer)
        adds_up(producer)
    assert broker.sends[0] == ("t", 0, (1, 0, 0), 3), "not the very same batch"
    producer_id, epoch, base = broker.sends[1][2]
    assert (producer_id, epoch > 0, base) == (1, True, 0), "its sequence was given back"
    assert (letter.value, letter.persisted) == (POISON, "possibly")
    assert broker.values("t") == [b"1", b"2"]


@pytest.mark.parametrize("records", [[POISON], [POISON, POISON + b"2"]])
async def test_what_was_possibly_persisted_and_is_a_dead_letter_is_fenced_by_the_next_process(
    broker: Broker, records: list[bytes]
) -> None:
    """It may be on its way to Kafka still, and must not come behind what is newer (I6)."""
    answers: list[BaseException] = [NotEnoughReplicasAfterAppendError()]
    broker.refuses = lambda batch: answers.pop(0) if answers else refusing_poison(batch)
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await publish_batch(producer, "t", records)
        await producer.flush(timeout_ms=20_000)
        image = disk.after_process_death()
    before = max(identity[1] for _, _, identity, _ in broker.sends)
    broker.sends.clear()
    async with producer_on(image) as producer:
        await publish_batch(producer, "t", [b"2"])
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
    producer_id, epoch, base = broker.sends[0][2]
    assert (producer_id, epoch > before, base) == (1, True, 0)
    assert broker.values("t") == [b"2"]


async def test_what_was_possibly_persisted_and_refused_is_sent_as_it_was_until_it_is_settled(
    broker: Broker,
) -> None:
    """It may be there: only the very same batch is recognised, should the topic have been mended meanwhile."""
    answers: list[BaseException] = [NotEnoughReplicasAfterAppendError(), PolicyViolationError()]
    broker.refuses = lambda _: answers.pop(0) if answers else None
    disk = MemoryDisk()
    images: list[MemoryDisk] = []

    def die(_: DeliveryReport) -> None:  # called when the letter is durable, before the record is settled
        images.append(disk.after_process_death())

    async with producer_on(disk, on_delivery=die) as producer:
        await publish_batch(producer, "t", [b"1"])
        await producer.flush(timeout_ms=20_000)
    sent = broker.sends[0]
    broker.sends.clear()
    async with producer_on(images[0]) as producer:
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
        adds_up(producer)
    assert broker.sends == [sent]


async def test_after_a_dead_letter_the_next_process_goes_on_in_order(broker: Broker) -> None:
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await publish_batch(producer, "t", [b"1", POISON])
        await producer.flush(timeout_ms=20_000)
        image = disk.after_process_death()
    async with producer_on(image) as producer:
        await publish_batch(producer, "t", [b"2"])
        await producer.flush(timeout_ms=20_000)
        adds_up(producer)
    assert broker.values("t") == [b"1", b"2"]


async def test_letters_of_earlier_lives_are_listed_and_purged_and_their_slots_are_freed(broker: Broker) -> None:
    broker.refuses = refusing_poison
    disk = MemoryDisk()
    for life in range(3):
        async with producer_on(disk) as producer:
            await producer.publish("t", b"%b%d" % (POISON, life))
            await producer.flush(timeout_ms=20_000)
    async with producer_on(disk) as producer:
        letters = await letters_of(producer)
        assert [letter.value for letter in letters] == [b"%b%d" % (POISON, life) for life in range(3)]
        assert await producer.dead_letters.purge(letters[1].record_id) == 1
        assert await producer.dead_letters.purge(letters[1].record_id) == 0
        assert [letter.record_id for letter in await letters_of(producer)] == [letters[n].record_id for n in (0, 2)]
        used = producer.statistics().bytes_used
        assert await producer.dead_letters.purge("all") == 2
        assert producer.statistics().bytes_used < used
    async with producer_on(disk) as producer:
        assert await letters_of(producer) == []


async def test_a_frame_that_holds_and_is_no_record_is_a_dead_letter(broker: Broker) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        assert producer._opened is not None
        await producer.publish("t", b"1")
        producer._opened.directory.ring.append(b"\xc1no record", b"not kept in memory")
        producer._opened.directory.ring.append(b"\xc1nor this", None)
        await producer.publish("t", b"2")
        await producer.flush(timeout_ms=20_000)
        letters = await letters_of(producer)
        adds_up(producer)
        assert producer.statistics().dead_lettered == 2
        assert await producer.dead_letters.requeue() == 0, "there is nothing to publish"
    assert [letter.payload for letter in letters] == [b"\xc1no record", b"\xc1nor this"]
    assert {(letter.topic, letter.error) for letter in letters} == {(None, "Undecodable")}
    assert broker.values("t") == [b"1", b"2"]


async def test_the_others_go_on_whatever_is_met_as_the_end_of_a_lane_is_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("as nobody expected")

    broker.refuses = refusing_poison
    async with producer_on(
        MemoryDisk(), on_permanent_error="halt", linger_ms=1, max_batch_size=2000, stop_timeout_ms=0
    ) as producer:
        await producer.publish("other", b"0", key=b"k")
        with monkeypatch.context() as patch:
            patch.setattr(Reports, "refuse", refuse)
            await producer.publish("t", POISON, key=b"k")
            await until(lambda: producer.statistics().lanes_halted == 1)
        for number in range(1, 30):
            await producer.publish("t", b"-" * 300, key=b"k")
            await (await producer.publish("other", b"%d" % number, key=b"k")).delivered(20_000)
        assert broker.values("other") == [b"%d" % number for number in range(30)]


async def test_what_cannot_be_decoded_and_rots_is_lost_and_keeps_no_letter_behind_it_waiting(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I2, and I9: nothing tells any more what it was, and nobody has it in hand."""
    monkeypatch.setattr(recounting_module, "PAUSE", 0.01)
    monkeypatch.setattr(recounting_module, "READ_PAUSE", 0.01)
    gate, durable = asyncio.Event(), DeadLetters.durable

    async def gated(self: DeadLetters) -> None:
        await gate.wait()
        await durable(self)

    monkeypatch.setattr(DeadLetters, "durable", gated)
    disk = MemoryDisk()
    async with producer_on(disk, checkpoint_interval_ms=20) as producer:
        assert producer._opened is not None
        ring = producer._opened.directory.ring
        ring.append(b"\xc1first" * 20, None)  # its letter waits for a flush, and the others for it
        place, sequence = ring.append(b"\xc1rotten" * 20, None)
        ring.append(b"\xc1last" * 20, None)
        await (await producer.publish("t", b"1")).delivered(20_000)
        disk.file("0/ring").damage(ring.slot_of(sequence).file_offset + 4 * place + 60, b"rot")
        gate.set()
        await producer.flush(timeout_ms=20_000)
        await until(lambda: producer.statistics().pending == 0)
        statistics = producer.statistics()
        assert (statistics.delivered, statistics.dead_lettered, statistics.lost) == (1, 2, 1)
        assert statistics.accepted == statistics.delivered + statistics.dead_lettered + statistics.lost
        assert [letter.payload for letter in await letters_of(producer)] == [b"\xc1first" * 20, b"\xc1last" * 20]
        assert caplog.text.count("an undecodable record is lost") == 1
        assert await producer.stop() == 0


async def test_a_failure_that_is_over_is_told_no_more_of_what_cannot_be_decoded(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, durable = [WalIOError(5, "once")], DeadLetters.durable

    async def failing(self: DeadLetters) -> None:
        await asyncio.sleep(0.05)  # a flush meanwhile asks why the letters are not there
        if failures:
            raise failures.pop()
        await durable(self)

    monkeypatch.setattr(DeadLetters, "durable", failing)
    async with producer_on(MemoryDisk()) as producer:
        assert producer._opened is not None
        ring = producer._opened.directory.ring
        ring.append(b"\xc1first", None)
        await (await producer.publish("t", b"1")).delivered(20_000)
        with pytest.raises(WalIOError):
            await producer.flush(timeout_ms=20_000)
        ring.append(b"\xc1second", None)
        await producer.publish("t", b"2")
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().dead_lettered == 2
        adds_up(producer)


async def test_what_cannot_be_decoded_stays_in_the_ring_under_halt(broker: Broker) -> None:
    async with producer_on(MemoryDisk(), on_permanent_error="halt") as producer:
        assert producer._opened is not None
        producer._opened.directory.ring.append(b"\xc1no record", None)
        await (await producer.publish("t", b"2")).delivered(20_000)
        statistics = producer.statistics()
        assert (statistics.undeliverable, statistics.pending, statistics.dead_lettered) == (1, 1, 0)
        assert await producer.stop() == 1
