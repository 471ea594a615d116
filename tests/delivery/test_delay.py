"""Who has waited in vain is told what holds the record up: topic, partition where it is known, and the last error."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import NotEnoughReplicasError, PolicyViolationError

from aiorecover import DeliveryPendingError, Receipt, RecoverableProducer, WalFullError
from aiorecover.delivery import delay as module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery.partitioner import partition_for
from aiorecover.testing import MemoryDisk
from aiorecover.wal.ring import Ring
from tests.delivery.refusing import Broker, Sent
from tests.delivery.test_dispatcher import publish_to_any_partition
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio

KEY = b"k"
PARTITIONS = 3


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker(t=PARTITIONS, other=1)
    monkeypatch.setattr(sessions_module, "Session", made.session())
    return made


def stuck(records: list[Sent]) -> BaseException | None:
    return NotEnoughReplicasError("one of three") if records[0].topic == "t" else None


def producer_on(disk: MemoryDisk | None = None, **options: Any) -> RecoverableProducer:
    given: dict[str, Any] = {"retry_backoff_ms": 1, "stop_timeout_ms": 0, "bootstrap_servers": "127.0.0.1:1", **options}
    return RecoverableProducer(disk or MemoryDisk(), **given)


async def told(receipt: Receipt, timeout_ms: int = 50) -> str:
    with pytest.raises(DeliveryPendingError) as raised:
        await receipt.delivered(timeout_ms=timeout_ms)
    message = str(raised.value)
    beginning = f"accepted as {receipt.record_id} and not delivered yet, do not publish it again: "
    assert message.startswith(beginning)
    assert message.endswith(f" timeout_ms={timeout_ms}")
    return message.removeprefix(beginning).removesuffix(f" timeout_ms={timeout_ms}")


async def told_by_flush(producer: RecoverableProducer) -> str:
    with pytest.raises(DeliveryPendingError) as raised:
        await producer.flush(timeout_ms=50)
    return str(raised.value)


def is_stuck(producer: RecoverableProducer) -> Callable[[], bool]:
    return lambda: any(
        lane.in_flight is not None and bool(lane.in_flight.trouble)
        for lane in producer._opened.delivery.router.lanes()  # type: ignore[union-attr]
    )


async def test_where_kafka_is_not_reached_the_last_error_on_the_way_is_told() -> None:
    async with producer_on() as producer:
        receipt = await producer.publish("t", b"0", key=KEY)
        named = await producer.publish("t", b"1", key=KEY, partition=2)
        await until(lambda: producer._opened.delivery.session.trouble != "")  # type: ignore[union-attr]
        why = await told(receipt)
        assert why.startswith("kafka is not reached topic=t error=")
        assert "127.0.0.1" in why
        assert (await told(named)).startswith("kafka is not reached topic=t partition=2 error=")
        flushed = await told_by_flush(producer)
        assert "do not publish it again: kafka is not reached error=" in flushed
        assert flushed.endswith(" pending=2")


@pytest.mark.parametrize("where", [{"key": KEY}, {"partition": 1}, {}])
async def test_of_a_partition_that_does_not_get_through_its_last_error_is_told(
    broker: Broker, where: dict[str, Any]
) -> None:
    broker.refuses = stuck
    async with producer_on() as producer:
        receipt = await producer.publish("t", b"0", **where)
        await until(is_stuck(producer))
        behind = await producer.publish("t", b"1", **where)
        partition = where.get("partition", partition_for(KEY, PARTITIONS) if "key" in where else 0)
        expected = f"the partition does not get through topic=t partition={partition} error={stuck_error()}"
        assert await told(receipt) == expected
        if where:  # of records without a key the next run goes elsewhere
            assert await told(behind) == expected
        assert f"do not publish it again: {expected} pending=2" in await told_by_flush(producer)
        broker.refuses = lambda _: None
        await receipt.delivered(timeout_ms=20_000)


def stuck_error() -> str:
    return repr(NotEnoughReplicasError("one of three"))


async def test_a_flush_tells_of_the_partition_that_has_been_tried_most_often(broker: Broker) -> None:
    broker.refuses = stuck
    async with producer_on() as producer:
        first = await producer.publish("t", b"0", partition=2)
        await until(is_stuck(producer))
        await asyncio.sleep(0.1)
        await producer.publish("t", b"1", partition=0)
        await producer.publish("other", b"2")
        await told(first)
        assert f"topic=t partition=2 error={stuck_error()}" in await told_by_flush(producer)


async def test_a_topic_or_a_partition_that_is_not_there_is_told(broker: Broker) -> None:
    async with producer_on() as producer:
        nowhere = await producer.publish("nowhere", b"0", key=KEY)
        assert await told(nowhere) == "the topic is not known yet topic=nowhere"
        assert "the topic is not known yet topic=nowhere pending=1" in await told_by_flush(producer)
        publish_to_any_partition(producer)
        beyond = await producer.publish("other", b"2", partition=5)
        assert await told(beyond) == "the partition does not exist topic=other partition=5"


async def test_a_flush_tells_of_a_partition_that_does_not_exist(broker: Broker) -> None:
    async with producer_on() as producer:
        publish_to_any_partition(producer)
        beyond = await producer.publish("other", b"0", partition=5)
        told_of = "the partition does not exist topic=other partition=5"
        assert await told(beyond) == told_of
        assert f"do not publish it again: {told_of} pending=1" in await told_by_flush(producer)


async def test_a_partitioner_that_fails_is_told(broker: Broker) -> None:
    def fails(*_: Any) -> int:
        raise LookupError

    async with producer_on(partitioner=fails) as producer:
        assert await told(await producer.publish("t", b"0", key=KEY)) == "the partitioner fails topic=t"
        assert "the partitioner fails topic=t" in await told_by_flush(producer)


async def test_a_lane_without_room_for_a_dead_letter_is_told_with_what_to_do(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.refuses = lambda records: PolicyViolationError("no") if records[0].topic == "t" else None
    append = Ring.append

    def full(self: Ring, *given: Any) -> Any:
        if self.file.path.name == "dead":
            raise WalFullError("full")
        return append(self, *given)

    monkeypatch.setattr(Ring, "append", full)
    async with producer_on() as producer:
        receipt = await producer.publish("t", b"0", partition=1)
        await until(lambda: producer.state == "halted")
        why = await told(receipt)
        assert why.startswith("the lane is halted: export producer.dead_letters and purge them")
        assert "topic=t partition=1 error=no room for a dead letter" in why


async def test_where_nothing_is_wrong_that_is_told(broker: Broker) -> None:
    broker.answers.clear()
    async with producer_on() as producer:
        receipt = await producer.publish("t", b"0", key=KEY)
        partition = partition_for(KEY, PARTITIONS)
        await until(lambda: broker.held == 1)
        assert await told(receipt) == f"it takes its turn topic=t partition={partition}"
        assert "do not publish it again: it is under way pending=1" in await told_by_flush(producer)


async def test_send_and_wait_tells_it_too(broker: Broker) -> None:
    broker.refuses = stuck
    async with producer_on(request_timeout_ms=200) as producer:
        with pytest.raises(DeliveryPendingError) as raised:
            await producer.send_and_wait("t", b"0", partition=1)
        message = str(raised.value)
        assert message.startswith(f"accepted as {producer._opened.directory.producer_id}/1/1 and not delivered yet, ")  # type: ignore[union-attr]
        why = f"the partition does not get through topic=t partition=1 error={stuck_error()}"
        assert message.endswith(f"do not publish it again: {why} request_timeout_ms=200")


async def test_a_record_without_a_key_is_looked_for_in_no_more_lanes_than_are_quick_to_look_through(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.answers.clear()
    async with producer_on() as producer:
        first = await producer.publish("t", b"0")
        await until(lambda: broker.held == 1)
        await producer.publish("t", b"1")
        assert await told(first) == "it takes its turn topic=t partition=0"
        monkeypatch.setattr(module, "LANES_MOST", 0)
        assert await told(first) == "it takes its turn topic=t"


async def test_what_rots_meanwhile_is_no_other_error(broker: Broker) -> None:
    broker.answers.clear()
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        receipt = await producer.publish("t", b"0" * 100, key=KEY)
        await until(lambda: broker.held == 1)
        ring = disk.file("0/ring")
        ring.damage(ring.live().index(b"0" * 100), b"rot")
        assert await told(receipt) == "it takes its turn topic=t"
