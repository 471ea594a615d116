"""`producer.dead_letters` and `dead_letter_topic`: what was refused stays, can be dealt with, and loses nothing."""

import asyncio
import base64
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aiorecover import (
    ClosedError,
    ConfigError,
    DeadLetter,
    PermanentDeliveryError,
    Receipt,
    RecoverableProducer,
    WalFullError,
    WalIOError,
)
from aiorecover.dead_letters import REQUEUED_HEADER
from aiorecover.testing import ApiKey, MemoryDisk, MockCluster
from tests.support.eventually import until
from tests.support.oracle import Consumed, read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

WITHIN_MS = 20_000
INVALID_RECORD = 87
COPY_OF = "aiorecover-dlq-id"


@pytest.fixture
def cluster() -> Any:
    """A broker whose topics have one partition: ``t``, ``dead``, and ``away``, which has no leader."""
    with MockCluster(brokers=1) as made:
        for name in ("t", "dead", "away"):
            made.create_topic(name)
        made.set_leader("away", 0, None)
        yield made


def producer_on(cluster: MockCluster, wal_dir: Any, **options: Any) -> RecoverableProducer:
    given = {"wal_min_free_bytes": 0, "adoption_grace_ms": None, **options}
    return RecoverableProducer(wal_dir, bootstrap_servers=cluster.bootstrap_servers, **given)


async def bury(
    cluster: MockCluster, producer: RecoverableProducer, *values: bytes, topic: str = "t", **fields: Any
) -> list[Receipt]:
    """Publish records, each of which the topic refuses once."""
    receipts = []
    for value in values:
        cluster.push_partition_errors(topic, 0, ApiKey.PRODUCE, INVALID_RECORD)
        receipts.append(await producer.publish(topic, value, **{"key": b"k", **fields}))
        with pytest.raises(PermanentDeliveryError, match="validation refuses the record"):
            await receipts[-1].delivered(WITHIN_MS)
    return receipts


async def letters_of(producer: RecoverableProducer) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters.list()]


async def values_of(producer: RecoverableProducer) -> list[bytes | None]:
    return [letter.value for letter in await letters_of(producer)]


async def arrived(cluster: MockCluster, topic: str = "t") -> list[Consumed]:
    return await read_topic(cluster.bootstrap_servers, topic)


def adds_up(producer: RecoverableProducer) -> None:
    now = producer.statistics()
    assert now.accepted + now.recovered == now.delivered + now.dead_lettered + now.damaged + now.pending, now


async def test_a_letter_says_all_of_its_record_and_is_requeued_with_it_after_a_restart(
    cluster: MockCluster, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"headers": [("h", b"1")], "context": {"a": 1}, "timestamp_ms": 1_700_000_000_007}
    async with producer_on(cluster, tmp_path) as producer:
        (refused,) = await bury(cluster, producer, b"v", **fields)
    async with producer_on(cluster, tmp_path) as producer:
        (letter,) = await letters_of(producer)
        assert (letter.record_id, letter.topic, letter.partition) == (refused.record_id, "t", 0)
        assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", b"v", 1_700_000_000_007)
        assert (letter.headers, letter.context) == (
            [("h", b"1"), ("aiorecover-id", refused.record_id.encode())],
            {"a": 1},
        )
        assert "validation refuses the record" in letter.error
        cluster.push_partition_errors("t", 0, ApiKey.PRODUCE, INVALID_RECORD)
        assert await producer.dead_letters.requeue() == 1
        await producer.flush(WITHIN_MS)
        (again,) = await letters_of(producer)  # it was refused once more
        assert again.context == {"a": 1}
        assert await producer.dead_letters.requeue() == 1
        await producer.flush(WITHIN_MS)
        assert await letters_of(producer) == []
        now = producer.statistics()
        assert (now.accepted, now.recovered, now.delivered, now.dead_letters, now.pending) == (2, 0, 1, 0, 0)
    (record,) = await arrived(cluster)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"v", 1_700_000_000_007)
    assert dict(record.headers)["h"] == b"1"
    assert [value for name, value in record.headers if name == REQUEUED_HEADER] == [again.record_id.encode()]
    assert len({refused.record_id, again.record_id, record.record_id}) == 3


async def test_one_is_requeued_or_purged_by_its_id_and_the_others_stay(cluster: MockCluster, tmp_path: Path) -> None:
    async with producer_on(cluster, tmp_path) as producer:
        one, two, _, _ = await bury(cluster, producer, b"1", b"2", b"3", b"4")
        assert await producer.dead_letters.requeue(two.record_id) == 1
        assert await producer.dead_letters.purge(one.record_id) == 1
        assert await producer.dead_letters.purge(one.record_id) == 0
        await producer.flush(WITHIN_MS)
        assert await values_of(producer) == [b"3", b"4"]
        adds_up(producer)
    async with producer_on(cluster, tmp_path) as producer:
        assert await values_of(producer) == [b"3", b"4"]
        assert await producer.dead_letters.purge("all") == 2
        adds_up(producer)
    async with producer_on(cluster, tmp_path) as producer:
        assert await letters_of(producer) == []
    assert [record.value for record in await arrived(cluster)] == [b"2"]


async def test_a_wrong_record_id_is_refused(cluster: MockCluster, tmp_path: Path) -> None:
    wrong: list[Any] = ["", "x", "a/b/c", "abcdefghijklm/1", "abcdefghijklm/1/x", 7]
    async with producer_on(cluster, tmp_path) as producer:
        for call in (producer.dead_letters.purge, producer.dead_letters.requeue):
            for one in wrong:
                with pytest.raises(ConfigError, match="take it from a letter or a receipt"):
                    await call(one)


async def expired(wal_dir: Any, *values: bytes, topic: str = "t") -> None:
    """Leave a batch of dead letters that was never delivered in time."""
    options: dict[str, Any] = {"delivery_timeout_ms": 300, "request_timeout_ms": 200, "stop_timeout_ms": 100}
    async with RecoverableProducer(wal_dir, bootstrap_servers="127.0.0.1:1", **options) as producer:
        for value in values:
            await producer.publish(topic, value, key=b"k")
        await until(lambda: producer.statistics().dead_letters == len(values))


async def test_requeueing_that_is_cancelled_anywhere_publishes_each_letter_once(
    cluster: MockCluster, tmp_path: Path
) -> None:
    values = [b"%d" % number for number in range(5)]
    await expired(tmp_path, *values)
    async with producer_on(cluster, tmp_path) as producer:
        await bury(cluster, producer, b"5", b"6", b"7")
        for turns in range(0, 40, 2):
            task = asyncio.create_task(producer.dead_letters.requeue())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        await producer.dead_letters.requeue()
        await producer.flush(WITHIN_MS)
        assert await letters_of(producer) == []
        adds_up(producer)
    assert [record.value for record in await arrived(cluster)] == [*values, b"5", b"6", b"7"]


async def test_whenever_the_process_dies_a_requeued_letter_is_a_letter_still_or_waits(cluster: MockCluster) -> None:
    disk = MemoryDisk()
    await expired(disk, b"1", b"2", b"3", topic="away")
    for turns in range(0, 60, 6):
        alive = disk.after_process_death()
        async with producer_on(cluster, alive, stop_timeout_ms=0) as producer:
            letters = await letters_of(producer)
            task = asyncio.create_task(producer.dead_letters.requeue(letters[1].record_id))
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            image = alive.after_process_death()
            await task
        async with producer_on(cluster, image, stop_timeout_ms=0) as producer:
            left, waits = await values_of(producer), producer.statistics().pending
            assert (left, waits) in (([b"1", b"2", b"3"], 0), ([b"1", b"2", b"3"], 1), ([b"1", b"3"], 1))


@pytest.mark.parametrize("call", ["requeue", "export", "purge"])
async def test_work_on_dead_letters_ends_when_the_producer_stops(
    cluster: MockCluster, tmp_path: Path, call: str
) -> None:
    await expired(tmp_path / "wal", *(b"%d" % number for number in range(200)))
    for turns in range(0, 20, 4):
        async with producer_on(cluster, tmp_path / "wal", stop_timeout_ms=0) as producer:
            given: dict[str, tuple[Any, ...]] = {"export": (tmp_path / f"{turns}",), "purge": ("all",), "requeue": ()}
            task = asyncio.create_task(getattr(producer.dead_letters, call)(*given[call]))
            for _ in range(turns):
                await asyncio.sleep(0)
            await producer.stop(timeout_ms=0)
            async with asyncio.timeout(10):
                with suppress(ClosedError):
                    await task
    async with producer_on(cluster, tmp_path / "wal") as producer:
        await producer.flush(WITHIN_MS)
        left = set(await values_of(producer))
    if call != "purge":
        assert len(left | {record.value for record in await arrived(cluster)}) == 200


async def test_a_full_ring_refuses_to_requeue_and_what_was_not_published_stays(
    cluster: MockCluster, tmp_path: Path
) -> None:
    await expired(tmp_path, *(b"%d" % number + b"x" * 60_000 for number in range(28)), topic="away")
    async with producer_on(cluster, tmp_path, wal_max_bytes=8 << 20, stop_timeout_ms=0) as producer:
        with suppress(WalFullError):
            while True:
                await producer.publish("away", b"x" * 50_000, key=b"k")
        accepted = producer.statistics().accepted
        with pytest.raises(WalFullError):
            await producer.dead_letters.requeue()
        left = len(await letters_of(producer))
        assert left == 28 - (producer.statistics().accepted - accepted) > 0
        adds_up(producer)


async def test_exported_lines_say_everything_in_a_new_file(cluster: MockCluster, tmp_path: Path) -> None:
    target, taken = tmp_path / "letters.jsonl", tmp_path / "taken"
    taken.write_text("before")
    async with producer_on(cluster, tmp_path / "wal") as producer:
        await bury(cluster, producer, b"v\xff", context={"a": 1})
        await bury(cluster, producer, b"w")
        assert await producer.dead_letters.export(target) == 2
        for path in (taken, tmp_path, tmp_path / "nowhere" / "file"):
            with pytest.raises(WalIOError, match="name a new file"):
                await producer.dead_letters.export(path)
        for nothing in (None, 1, b"letters"):
            with pytest.raises(ConfigError, match="name a new file: pass a path as str or Path path="):
                await producer.dead_letters.export(nothing)  # type: ignore[arg-type]
        assert len(await letters_of(producer)) == 2
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert base64.b64decode(lines[0]["value"]) == b"v\xff"
    assert (lines[0]["topic"], lines[0]["partition"], lines[0]["context"]) == ("t", 0, {"a": 1})
    assert taken.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"letters.jsonl", "taken", "wal"}


async def test_a_lane_halts_loudly_once_dead_letters_hold_a_quarter_of_the_ring(
    cluster: MockCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"wal_max_bytes": 8 << 20, "stop_timeout_ms": 0}
    async with producer_on(cluster, tmp_path, **options) as producer:
        letter = 0
        while producer.state != "halted":
            cluster.push_partition_errors("t", 0, ApiKey.PRODUCE, INVALID_RECORD)
            await producer.publish("t", b"%d" % letter + b"x" * 60_000, key=b"k")
            letter += 1
            await until(lambda: producer.state == "halted" or producer.statistics().dead_letters == letter)  # noqa: B023
        assert letter in range(10, 40)  # 2 MiB, in segments of 64 KiB and of 1 MiB
        assert "lane_halted dead letters hold a quarter of the ring: purge some, or requeue them" in caplog.text
        await producer.publish("dead", b"another topic", key=b"k")
        await until(lambda: producer.statistics().delivered == 1)
        await producer.dead_letters.purge("all")
    async with producer_on(cluster, tmp_path, **options) as producer:
        await producer.flush(WITHIN_MS)
        assert await letters_of(producer) == []
    assert len(await arrived(cluster)) == 1


# -- dead_letter_topic -------------------------------------------------------------------------------------------------


async def test_a_letter_is_published_to_its_topic_once_and_stopping_waits_for_that(
    cluster: MockCluster, tmp_path: Path
) -> None:
    async with producer_on(cluster, tmp_path, dead_letter_topic="dead") as producer:
        cluster.push_partition_errors("t", 0, ApiKey.PRODUCE, INVALID_RECORD)
        receipt = await producer.publish("t", b"v", key=b"k", headers=[("h", None)], timestamp_ms=7)
        assert await producer.stop() == 0
    (copy,) = await arrived(cluster, "dead")
    headers = dict(copy.headers)
    assert (copy.key, copy.value) == (b"k", b"v")
    assert headers.pop("aiorecover-id") == (copy.record_id or "").encode() != receipt.record_id.encode()
    assert (headers.pop("__connect.errors.exception.message") or b"").startswith(b"the broker's validation refuses")
    assert headers == {
        "h": None,
        "__connect.errors.topic": b"t",
        "__connect.errors.partition": b"0",
        "aiorecover-dlq-id": receipt.record_id.encode(),
        "aiorecover-dlq-timestamp": b"7",
    }


async def test_late_records_are_copied_and_a_copy_that_is_refused_is_not_copied_again(
    cluster: MockCluster, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"delivery_timeout_ms": 1000, "request_timeout_ms": 900, "dead_letter_topic": "dead"}
    async with producer_on(cluster, tmp_path, **options) as producer:
        late = [await producer.publish("away", b"%d" % number, key=b"k") for number in range(3)]
        await until(lambda: producer.statistics().lanes_in_trouble == 1)
        await until(lambda: producer.statistics().dead_letters == 3)
        await producer.flush(WITHIN_MS)
        assert producer.statistics().lanes_in_trouble == 0, "nothing waits for the leader any more"
        (refused,) = await bury(cluster, producer, b"refused", topic="dead")
        await producer.flush(WITHIN_MS)
        letters = await letters_of(producer)
        assert [letter.topic for letter in letters] == [*3 * ["away"], "dead"]
        assert "not delivered within delivery_timeout_ms" in letters[0].error
        adds_up(producer)
    copies = [dict(copy.headers)[COPY_OF] for copy in await arrived(cluster, "dead")]
    assert copies == [receipt.record_id.encode() for receipt in late]
    assert refused.record_id.encode() not in copies


async def test_a_copy_that_is_refused_too_is_a_letter_of_its_own_topic(cluster: MockCluster, tmp_path: Path) -> None:
    async with producer_on(cluster, tmp_path, dead_letter_topic="dead") as producer:
        cluster.push_partition_errors("dead", 0, ApiKey.PRODUCE, INVALID_RECORD)
        (receipt,) = await bury(cluster, producer, b"v")
        await until(lambda: producer.statistics().dead_letters == 2)
        record, copy = await letters_of(producer)
        assert (record.record_id, record.topic) == (receipt.record_id, "t")
        assert (copy.topic, copy.value, dict(copy.headers)[COPY_OF]) == ("dead", b"v", receipt.record_id.encode())
        await producer.dead_letters.requeue(copy.record_id)  # what refused it is mended
        await producer.flush(WITHIN_MS)
        assert [letter.topic for letter in await letters_of(producer)] == ["t"]
        adds_up(producer)
    assert [dict(one.headers)[COPY_OF] for one in await arrived(cluster, "dead")] == [receipt.record_id.encode()]
    assert await arrived(cluster) == []


async def test_a_copy_that_finds_no_room_is_one_error_and_the_letter_stays(
    cluster: MockCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"delivery_timeout_ms": 2000, "request_timeout_ms": 900, "stop_timeout_ms": 0}
    options |= {"wal_max_bytes": 8 << 20, "dead_letter_topic": "dead"}
    async with producer_on(cluster, tmp_path, **options) as producer:
        with suppress(WalFullError):
            while True:
                await producer.publish("away", b"x" * 50_000, key=b"k")
        await until(lambda: producer.statistics().dead_letters > 0)
        adds_up(producer)
        await until(lambda: "dead_letter_copy_failed" in caplog.text)
    errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert any(one.startswith("dead_letter_copy_failed ") and "the ring is full" in one for one in errors)
