"""`producer.dead_letters` and the dead-letter topic, with a stand-in for Kafka."""

import asyncio
import base64
import errno
import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import InvalidTimestampError, PolicyViolationError

from aiorecover import (
    ClosedError,
    ConfigError,
    DeadLetter,
    DeliveryReport,
    RecoverableProducer,
    RecoverError,
    WalFullError,
    WalIOError,
)
from aiorecover import record as rec
from aiorecover.config import Config
from aiorecover.dead_letters import REQUEUED_HEADER
from aiorecover.testing import MemoryDisk
from tests.stand_in import Recording, Sent, put_in_place
from tests.support.eventually import until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Recording:
    made = Recording(t=1, dead=1)
    made.refuses = refusing
    put_in_place(made, monkeypatch)
    return made


def refusing(records: list[Sent]) -> BaseException | None:
    poison = any(record.topic == "t" and record.value.startswith(b"poison") for record in records)
    return PolicyViolationError("no such schema") if poison else None


def refusing_everywhere(records: list[Sent]) -> BaseException | None:
    return refusing([Sent("t", record.value, 0) for record in records])


def producer_on(disk: MemoryDisk | Path, **options: Any) -> RecoverableProducer:
    given = {"wal_min_free_bytes": 0, "slot_bytes": 256 * 1024, "retry_backoff_ms": 1, **options}
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


async def letters_of(producer: RecoverableProducer) -> list[DeadLetter]:
    return [letter async for letter in producer.dead_letters.list()]


async def bury(producer: RecoverableProducer, *values: bytes, **fields: Any) -> None:
    for value in values:
        await producer.publish("t", value, key=b"k", **fields)
    await producer.flush(timeout_ms=20_000)


async def test_requeued_records_arrive_once_the_topic_takes_them_with_their_old_ids(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison1", b"poison2", headers=[("h", b"1")], context={"a": 1}, timestamp_ms=7)
        old = [letter.record_id for letter in await letters_of(producer)]
        broker.refuses = lambda _: None
        assert await producer.dead_letters.requeue() == 2
        assert await letters_of(producer) == []
        await producer.flush(timeout_ms=20_000)
        now = producer.statistics()
        assert (now.accepted, now.delivered, now.dead_lettered, now.pending) == (4, 2, 2, 0)
    assert broker.values("t") == [b"poison1", b"poison2"]
    for record, record_id in zip(broker.records["t"], old, strict=True):
        assert record[rec.HEADERS] == [("h", b"1"), (REQUEUED_HEADER, record_id.encode())]
        assert (record[rec.KEY], record[rec.TIMESTAMP], record[rec.CONTEXT]) == (b"k", 7, {"a": 1})


async def test_only_what_was_refused_for_its_timestamp_is_stamped_anew(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison", timestamp_ms=7)
        broker.refuses = lambda records: InvalidTimestampError() if records[0].timestamp_ms == 8 else None
        await bury(producer, b"refused", timestamp_ms=8)
        broker.refuses = lambda _: None
        began = time.time_ns() // 1_000_000
        assert await producer.dead_letters.requeue(restamp=True) == 2
        await producer.flush(timeout_ms=20_000)
    kept, anew = (record[rec.TIMESTAMP] for record in broker.records["t"])
    assert kept == 7
    assert anew in range(began, time.time_ns() // 1_000_000 + 1)


async def test_requeueing_what_is_refused_again_ends_and_keeps_it(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison1", b"poison2")
        assert await producer.dead_letters.requeue() == 2
        await producer.flush(timeout_ms=20_000)
        assert [letter.value for letter in await letters_of(producer)] == [b"poison1", b"poison2"]


async def test_requeueing_that_is_cancelled_anywhere_publishes_each_record_once(broker: Recording) -> None:
    poison = [b"poison%d" % number for number in range(8)]
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, *poison)
        broker.refuses = lambda _: None
        for turns in range(30):
            task = asyncio.create_task(producer.dead_letters.requeue())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        await producer.dead_letters.requeue()
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
    assert sorted(broker.values("t")) == poison


@pytest.mark.parametrize("call", ["requeue", "export", "purge"])
async def test_what_is_under_way_when_the_producer_stops_ends(broker: Recording, tmp_path: Path, call: str) -> None:
    for turns in range(0, 60, 3):
        async with producer_on(MemoryDisk()) as producer:
            await bury(producer, b"poison1", b"poison2", b"poison3")
            given: dict[str, tuple[Any, ...]] = {"export": (tmp_path / "letters",), "purge": ("all",), "requeue": ()}
            task = asyncio.create_task(getattr(producer.dead_letters, call)(*given[call]))
            for _ in range(turns):
                await asyncio.sleep(0)
            await producer.stop(timeout_ms=1000)
            async with asyncio.timeout(10):
                with suppress(ClosedError, WalIOError):
                    await task
    assert {path.name for path in tmp_path.iterdir()} <= {"letters"}


async def died_before_settling() -> MemoryDisk:
    """As a process leaves it that dies when a letter is durable, and its record not settled."""
    disk = MemoryDisk()
    told = asyncio.Event()

    async def hangs(_: DeliveryReport) -> None:
        told.set()
        await asyncio.Event().wait()

    async with producer_on(disk, on_delivery=hangs, stop_timeout_ms=0) as producer:
        await producer.publish("t", b"poison", key=b"k")
        await told.wait()
        assert await producer.dead_letters.requeue() == 0
        assert len(await letters_of(producer)) == 1
        return disk.after_process_death()


@pytest.mark.parametrize("mended", [False, True])
async def test_what_may_still_be_sent_itself_is_not_requeued_beside_it(broker: Recording, *, mended: bool) -> None:
    disk = await died_before_settling()
    broker.forget()
    broker.refuses = (lambda _: None) if mended else refusing
    async with producer_on(disk) as producer:
        assert await producer.dead_letters.requeue() == 0
        await producer.flush(timeout_ms=20_000)
        broker.refuses = lambda _: None
        assert await producer.dead_letters.requeue() == (0 if mended else 1)
        await producer.flush(timeout_ms=20_000)
        assert await letters_of(producer) == []
    assert broker.values("t") == [b"poison"]


async def test_letters_of_an_earlier_process_are_requeued_though_another_topic_waits_since_then(
    broker: Recording,
) -> None:
    disk = MemoryDisk()
    async with producer_on(disk, stop_timeout_ms=0) as producer:
        await producer.publish("unknown", b"waits", key=b"k")
        await producer.publish("t", b"poison", key=b"k")
        await until(lambda: producer.statistics().dead_lettered == 1)
    broker.forget()
    broker.refuses = lambda _: None
    async with producer_on(disk, stop_timeout_ms=0) as producer:
        await (await producer.publish("t", b"young", key=b"k")).delivered(20_000)
        assert await producer.dead_letters.requeue() == 1
        assert await letters_of(producer) == []


async def test_letters_of_an_earlier_process_are_requeued_at_once_where_nothing_waits(broker: Recording) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await bury(producer, b"poison")
    broker.answers.clear()
    async with producer_on(disk, stop_timeout_ms=0) as producer:
        assert await producer.dead_letters.requeue() == 1


async def test_one_is_requeued_by_its_id_and_the_others_stay(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison1", b"poison2", b"poison3")
        letters = await letters_of(producer)
        broker.refuses = lambda _: None
        assert await producer.dead_letters.requeue(letters[1].record_id) == 1
        await producer.flush(timeout_ms=20_000)
        assert [letter.value for letter in await letters_of(producer)] == [b"poison1", b"poison3"]
    assert broker.values("t") == [b"poison2"]


async def test_a_letter_keeps_the_id_of_its_receipt_over_starts_and_is_found_by_it(broker: Recording) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as first:
        refused = await first.publish("t", b"poison1", key=b"k")
        await first.flush(timeout_ms=20_000)
        broker.topics.pop("t")  # nobody knows the topic: it waits
        left = await first.publish("t", b"poison2", key=b"k")
        await first.stop(timeout_ms=0)
    broker.topics["t"] = 1
    async with producer_on(disk) as second:
        await second.flush(timeout_ms=20_000)
        assert second.producer_id != refused.record_id.partition("/")[0]
        assert [letter.record_id for letter in await letters_of(second)] == [refused.record_id, left.record_id]
    async with producer_on(disk) as third:
        assert [letter.record_id for letter in await letters_of(third)] == [refused.record_id, left.record_id]
        of_a_copy = f"{third.producer_id}/1/1"  # the same epoch and sequence
        assert await third.dead_letters.purge(of_a_copy) == await third.dead_letters.requeue(of_a_copy) == 0
        assert await third.dead_letters.purge(refused.record_id) == 1
        broker.refuses = lambda _: None
        assert await third.dead_letters.requeue(left.record_id) == 1
        await third.flush(timeout_ms=20_000)
        assert await letters_of(third) == []
    assert [record[rec.HEADERS] for record in broker.records["t"]] == [[(REQUEUED_HEADER, left.record_id.encode())]]


async def test_a_full_ring_refuses_to_requeue_and_the_letters_stay(broker: Recording) -> None:
    slot = 16 * 1024
    async with producer_on(MemoryDisk(), slot_bytes=slot, wal_max_bytes=6 * slot) as producer:
        await bury(producer, b"poison" + b"x" * 9000)
        broker.topics.pop("dead")
        while producer.statistics().accepted < 5:  # they wait: nobody knows the topic
            with suppress(WalFullError):
                await producer.publish("dead", b"x" * 9000)
        with pytest.raises(WalFullError):
            await producer.dead_letters.requeue()
        assert len(await letters_of(producer)) == 1


@pytest.mark.parametrize(
    "record_id", ["", "x", "a/b/c", "somebody/1/1", "{mine}/1", "{mine}/1/x", "{mine}/1/1/1", "{mine}a/1/1", 7]
)
async def test_what_is_no_id_of_ours_is_refused_by_name(broker: Recording, record_id: Any) -> None:
    async with producer_on(MemoryDisk()) as producer:
        given = record_id.format(mine=producer.producer_id) if isinstance(record_id, str) else record_id
        for call in (producer.dead_letters.purge, producer.dead_letters.requeue):
            with pytest.raises(RecoverError, match="take the id from"):
                await call(given)


async def test_exported_lines_say_everything(broker: Recording, tmp_path: Path) -> None:
    target = tmp_path / "dead.jsonl"
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison\xff", context={"a": 1})
        await bury(producer, b"poison2", context={b"bytes": 1})
        assert (await producer.dead_letters.export(target)).letters == 2
        assert len(await letters_of(producer)) == 2
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert base64.b64decode(lines[0]["value"]) == b"poison\xff"
    assert (lines[0]["topic"], lines[0]["partition"], lines[0]["context"]) == ("t", 0, {"a": 1})
    assert (lines[0]["error"], lines[0]["attempts"]) == ("PolicyViolationError", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["dead.jsonl"]


async def test_what_is_no_path_is_refused_by_name(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        with pytest.raises(ConfigError, match="named by a str or a path path=5"):
            await producer.dead_letters.export(5)  # type: ignore[arg-type]


async def test_an_export_that_fails_leaves_what_was_there(broker: Recording, tmp_path: Path) -> None:
    target = tmp_path / "dead.jsonl"
    target.write_text("before")
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison")
        with pytest.raises(WalIOError):
            await producer.dead_letters.export(tmp_path / "nowhere" / "x")
    assert target.read_text() == "before"


@pytest.mark.parametrize(
    ("path", "told", "code"),
    [
        ("{here}", "the path is a directory: name a file in it", errno.EISDIR),
        ("", "the path is a directory: name a file in it", errno.EISDIR),
        ("{here}/no/x.jsonl", "the file's directory is not there: make it, or choose another path", errno.ENOENT),
        ("{here}/file/x.jsonl", "what should be the file's directory is a file: choose another path", errno.ENOTDIR),
        ("{here}/" + "x" * 300, "the file cannot be written: make room or give the right", errno.ENAMETOOLONG),
    ],
)
async def test_a_path_that_cannot_be_written_is_named_as_it_was_given(
    broker: Recording, tmp_path: Path, path: str, told: str, code: int
) -> None:
    (tmp_path / "file").touch()
    given = Path(path.format(here=tmp_path))
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison")
        with pytest.raises(WalIOError, match=told) as caught:
            await producer.dead_letters.export(given)
    assert (caught.value.errno, caught.value.filename) == (code, str(given))
    assert f"path={given}" in str(caught.value)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


async def test_an_export_takes_the_place_of_a_file_with_its_rights_wherever_a_link_leads(
    broker: Recording, tmp_path: Path
) -> None:
    target, link = tmp_path / "there.jsonl", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o600)
    link.symlink_to(target)
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison")
        exported = await producer.dead_letters.export(link)
        assert (exported.path, exported.letters) == (link, 1)
    assert link.is_symlink()
    assert json.loads(target.read_text())["topic"] == "t"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize("linked", [False, True])
async def test_what_is_no_file_stays_in_its_place(broker: Recording, tmp_path: Path, linked: bool) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison")
        with pytest.raises(WalIOError, match="the path is a device or a pipe, which stays as it is"):
            await producer.dead_letters.export(link if linked else pipe)
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


async def test_who_purges_what_is_no_letter_is_told_what_can_be_purged(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        with pytest.raises(RecoverError, match=r'or pass "all", or what export\(\) has returned .*record_id=.al.$'):
            await producer.dead_letters.purge("al")


@pytest.mark.parametrize("name", ["dead.jsonl", "0/dead.jsonl", "new/dead.jsonl", "../{wal}/dead.jsonl", "", "link"])
async def test_an_export_into_the_directories_of_producers_is_refused(
    broker: Recording, tmp_path: Path, name: str
) -> None:
    """Nobody could start there any more."""
    wal = tmp_path / "wal"
    link = tmp_path / "link"
    async with producer_on(wal) as producer:
        await bury(producer, b"poison")
        link.symlink_to(wal / "0")
        target = link / "dead.jsonl" if name == "link" else wal / name.format(wal="wal")
        before = sorted(wal.rglob("*"))
        with pytest.raises(ConfigError, match=r"lie in wal_dir.*choose another path"):
            await producer.dead_letters.export(target)
        assert sorted(wal.rglob("*")) == before
        assert (await producer.dead_letters.export(tmp_path / "wal.jsonl")).letters == 1
    async with producer_on(wal):
        pass


async def test_a_long_list_is_walked_while_others_come_and_go(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, *[b"poison%d" % number for number in range(300)])
        seen = []
        async for letter in producer.dead_letters.list():
            seen.append(letter.value)
            if len(seen) == 10:
                await bury(producer, b"poison-late")
                await producer.dead_letters.purge(letter.record_id)
        assert seen == [b"poison%d" % number for number in range(300)]


@pytest.mark.parametrize("topic", ["dead", None])
async def test_what_is_exported_and_purged_while_copies_are_published_is_in_the_file_once_or_still_here(
    broker: Recording, tmp_path: Path, topic: str | None
) -> None:
    async with producer_on(MemoryDisk(), dead_letter_topic=topic) as producer:
        for number in range(20):
            values = [b"poison%d-%d." % (number, letter) for letter in range(3)]
            await bury(producer, *values)
            for _ in range(number % 7):
                await asyncio.sleep(0)
            exported = await producer.dead_letters.export(tmp_path / "dead.jsonl")
            await bury(producer, b"poison-between")
            lines = [json.loads(line) for line in exported.path.read_text().splitlines()]
            assert sorted(base64.b64decode(line["value"]) for line in lines) == values
            assert exported.letters == 3
            assert await producer.dead_letters.purge(exported) == 3
            assert [letter.value for letter in await letters_of(producer)] == [b"poison-between"]
            assert await producer.dead_letters.purge(exported) == 0
            assert await producer.dead_letters.purge("all") == 1


async def test_only_what_is_named_is_purged(broker: Recording, tmp_path: Path) -> None:
    disk = MemoryDisk()
    async with producer_on(disk) as producer:
        await bury(producer, b"poison")
        exported = await producer.dead_letters.export(tmp_path / "dead.jsonl")
    async with producer_on(disk) as producer:
        with pytest.raises(RecoverError, match=r"exported before the start.*by their ids"):
            await producer.dead_letters.purge(exported)
        with pytest.raises(TypeError):
            await producer.dead_letters.purge()  # type: ignore[call-arg]
        assert await producer.dead_letters.purge((await letters_of(producer))[0].record_id) == 1


async def test_an_exported_file_is_on_the_disk_before_it_can_be_purged(
    broker: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").resolve().name
        synced.append((name, [path.name for path in tmp_path.iterdir()]))

    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, b"poison")
        monkeypatch.setattr(os, "fsync", fsync)
        await producer.dead_letters.export(tmp_path / "dead.jsonl")
        monkeypatch.undo()
    (file, before), (directory, after) = synced
    assert before == [file]
    assert file.startswith(".dead.jsonl.")
    assert (directory, after) == (tmp_path.name, ["dead.jsonl"])


async def test_what_was_purged_meanwhile_is_not_listed(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, *[b"poison%d" % number for number in range(20)])
        seen = []
        async for letter in producer.dead_letters.list():
            seen.append(letter.value)
            if len(seen) == 5:
                await producer.dead_letters.purge("all")
    assert seen == [b"poison%d" % number for number in range(5)]


async def test_requeueing_twice_at_the_same_time_publishes_once(broker: Recording) -> None:
    values = [b"poison%d" % number for number in range(20)]
    async with producer_on(MemoryDisk()) as producer:
        await bury(producer, *values)
        broker.refuses = lambda _: None
        counts = await asyncio.gather(producer.dead_letters.requeue(), producer.dead_letters.requeue())
        await producer.flush(timeout_ms=20_000)
    assert sum(counts) == 20
    assert broker.values("t") == values


async def test_a_producer_that_does_not_run_has_no_dead_letters(broker: Recording) -> None:
    producer = producer_on(MemoryDisk())
    with pytest.raises(ClosedError):
        await producer.dead_letters.purge("all")
    async with producer:
        pass
    with pytest.raises(ClosedError):
        await letters_of(producer)


async def test_a_dead_letter_goes_to_its_topic_with_what_it_was(broker: Recording) -> None:
    async with producer_on(MemoryDisk(), dead_letter_topic="dead") as producer:
        await bury(producer, b"poison", headers=[("h", b"1")], timestamp_ms=7, context={"a": 1})
        (letter,) = await letters_of(producer)
        await until(lambda: broker.values("dead") == [b"poison"])
        await producer.flush(timeout_ms=20_000)
    ((topic, key, value, _, timestamp_ms, headers, context, _),) = broker.records["dead"]
    assert (topic, key, value, context) == ("dead", b"k", b"poison", None)
    assert timestamp_ms > 1_700_000_000_000, "the old timestamp may be what was refused"
    told = dict(headers or ())
    assert told["h"] == b"1"
    assert told["__connect.errors.topic"] == b"t"
    assert told["__connect.errors.partition"] == b"0"
    assert told["__connect.errors.exception.class.name"] == b"PolicyViolationError"
    assert b"no such schema" in (told["__connect.errors.exception.message"] or b"")
    assert told["aiorecover-dlq-id"] == letter.record_id.encode()
    assert told["aiorecover-dlq-timestamp"] == b"7"
    assert told["aiorecover-dlq-attempts"] == b"1"
    assert abs(int(told["aiorecover-dlq-time"] or b"0") - timestamp_ms) < 60_000


async def test_a_copy_that_is_refused_is_a_dead_letter_and_no_copy_is_made_of_it(broker: Recording) -> None:
    async with producer_on(MemoryDisk(), dead_letter_topic="t") as producer:
        await bury(producer, b"poison")
        await asyncio.sleep(0.2)
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().dead_lettered == 1
    broker.topics["u"] = 1
    broker.refuses = refusing_everywhere
    async with producer_on(MemoryDisk(), dead_letter_topic="u") as producer:
        await bury(producer, b"poison")
        await until(lambda: producer.statistics().dead_lettered == 2)
        await asyncio.sleep(0.2)
        await producer.flush(timeout_ms=20_000)
        assert {letter.topic for letter in await letters_of(producer)} == {"t", "u"}


async def test_what_is_owed_to_the_topic_is_published_by_the_next_life(broker: Recording) -> None:
    disk = MemoryDisk()
    images: list[MemoryDisk] = []
    async with producer_on(
        disk, dead_letter_topic="dead", on_delivery=lambda _: images.append(disk.after_process_death())
    ) as producer:
        await bury(producer, b"poison")
    broker.records.clear()
    async with producer_on(images[0], dead_letter_topic="dead") as producer:
        await until(lambda: "dead" in broker.records)
        await asyncio.sleep(0.2)
        await producer.flush(timeout_ms=20_000)
        assert len(await letters_of(producer)) == 1
        last = images[0]
    broker.records.clear()
    async with producer_on(last, dead_letter_topic="dead") as producer:
        await asyncio.sleep(0.2)
        await producer.flush(timeout_ms=20_000)
        assert len(await letters_of(producer)) == 1
    assert broker.records.get("dead") is None, "it was published already"


async def test_who_drains_without_a_topic_for_dead_letters_waits_as_a_flush_does(broker: Recording) -> None:
    async with producer_on(MemoryDisk()) as producer:
        await producer.publish("t", b"poison", key=b"k")
        await producer.publish("t", b"good", key=b"k")
        await producer.drain(timeout_ms=20_000)
        assert (producer.statistics().dead_lettered, producer.statistics().delivered) == (1, 1)


async def test_more_than_can_be_noted_are_published_all(broker: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorecover.delivery.dead_letters.OWED_MOST", 2)
    values = [b"poison%d" % number for number in range(50)]
    async with producer_on(MemoryDisk(), dead_letter_topic="u") as producer:
        await bury(producer, *values)
        broker.topics["u"] = 1
        await until(lambda: len(broker.records.get("u", ())) == 50)
        assert sorted(letter.value or b"" for letter in await letters_of(producer)) == sorted(values)
    assert sorted(broker.values("u")) == sorted(values)


async def test_a_topic_that_kafka_would_refuse_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="dead_letter_topic must be a topic's name"):
        Config.from_options("wal", "localhost:1", {"dead_letter_topic": "no/slash"})
