"""After a power cut: in each partition the newest value stands last, whichever settle words were lost.

Real producers on disks in memory, and an embedded broker. Everything was delivered; then the machine goes down with any
part of the settle words. What the next life sends again is in each partition a whole suffix of what stood there, also
when that life is killed in the middle of it.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.delivery import judge as judge_module
from aiorecover.testing import MemoryDisk, MockCluster
from aiorecover.wal.suffix import SuffixRule, Word
from aiorecover.wal.view import View
from tests.support.oracle import Consumed, read_topic

TOPIC = "values"
PARTITIONS = 3
RECORDS = 120
SEEDS = 6

OnDelivery = Callable[[DeliveryReport], None]


def service(
    disk: MemoryDisk, cluster: MockCluster, on_delivery: OnDelivery | None = None, *, check: bool = False
) -> RecoverableProducer:
    return RecoverableProducer(
        disk,
        bootstrap_servers=cluster.bootstrap_servers,
        on_delivery=on_delivery,
        fsync="never",
        checkpoint_interval_ms=600_000,  # no checkpoint of its own: every settle word may be lost
        slot_bytes=16 * 1024,
        max_request_size=8 * 1024,
        max_batch_size=2 * 1024,  # several batches a lane
        linger_ms=0,
        retry_backoff_ms=10,
        recovery_check=check,
    )


async def publish_everything(cluster: MockCluster, disk: MemoryDisk, seed: int) -> MemoryDisk:
    """Records durable, settle words not; the machine goes down when all is delivered."""
    cluster.broker_down()
    first = service(disk, cluster)
    await first.start()
    for number in range(RECORDS):
        key = b"key %d" % (number % 7) if number % 10 else None
        partition = number % PARTITIONS if number % 10 == 5 else None
        await first.publish(TOPIC, b"%d" % number, key=key, partition=partition)
    assert first._opened is not None
    first._opened.directory.ring.sync()
    cluster.broker_up()
    await first.flush(timeout_ms=20_000)
    first._opened.directory.lanes.sync()  # so the recovery check, where it is on, knows where to look
    disk.write_back(seed)
    left = disk.after_power_cut(seed)
    await first.stop(timeout_ms=0)
    return left


async def deliver(cluster: MockCluster, disk: MemoryDisk, *, check: bool) -> None:
    async with service(disk, cluster, check=check) as successor:
        await successor.flush(timeout_ms=20_000)
        counts = successor.statistics()
        assert counts.accepted + counts.recovered == counts.delivered + counts.pending


async def interrupted(
    cluster: MockCluster, disk: MemoryDisk, end: Callable[[MemoryDisk], MemoryDisk], *, check: bool
) -> MemoryDisk:
    """The successor has settled some of it when its end comes."""
    enough = asyncio.Event()
    reports = itertools.count(1)

    def count(_: DeliveryReport) -> None:
        if next(reports) == RECORDS // 4:  # those of the batches before are settled
            enough.set()

    async with service(disk, cluster, count, check=check) as successor:
        waiting = {asyncio.ensure_future(enough.wait()), asyncio.ensure_future(successor.flush(timeout_ms=20_000))}
        _, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        left = end(disk)
        for future in pending:
            future.cancel()
    return left


def partitions_of(consumed: list[Consumed]) -> list[list[int]]:
    ordered = sorted(consumed, key=lambda record: (record.partition, record.offset))
    return [
        [int(record.value or b"") for record in records]
        for _, records in itertools.groupby(ordered, key=lambda record: record.partition)
    ]


def keyless(number: int) -> bool:
    return number % 10 == 0


def judge(consumed: list[Consumed]) -> int:
    """The number of repeats; each partition's first and last appearances are in order."""
    repeats = 0
    seen: set[int] = set()
    for stood in partitions_of(consumed):
        ordered = [number for number in stood if not keyless(number)]
        first = list(dict.fromkeys(ordered))
        last = list(dict.fromkeys(reversed(ordered)))[::-1]
        assert first == sorted(first), "first appearances in order"
        assert last == sorted(last), "an old value stands behind a newer one"
        repeats += len(ordered) - len(first)
        seen |= set(stood)
    assert seen == set(range(RECORDS)), "everything is there"
    return repeats


def killed(disk: MemoryDisk) -> MemoryDisk:
    return disk.after_process_death()


def powerless(disk: MemoryDisk) -> MemoryDisk:
    disk.write_back(7)
    return disk.after_power_cut(7)


def run(*ends: Callable[[MemoryDisk], MemoryDisk], check: tuple[bool, bool] = (False, False)) -> int:
    """Behind the power cut a life for each of the ``ends``, and one that comes through.

    ``check``: whether the lives that are interrupted, and the last one, read back what is in Kafka.
    """
    repeats = 0
    for seed in range(SEEDS):
        with MockCluster() as cluster:
            cluster.create_topic(TOPIC, PARTITIONS)

            async def lives(cluster: MockCluster = cluster, seed: int = seed) -> list[Consumed]:
                left = await publish_everything(cluster, MemoryDisk(), seed)
                for end in ends:
                    left = await interrupted(cluster, left, end, check=check[0])
                await deliver(cluster, left, check=check[1])
                return await read_topic(cluster.bootstrap_servers, TOPIC)

            repeats += judge(asyncio.run(lives()))
    return repeats


def test_the_newest_value_stands_last_whichever_settle_words_were_lost() -> None:
    assert run() > 0  # some words were lost, or this proves nothing


def test_the_newest_value_stands_last_when_the_next_life_is_killed_in_the_middle() -> None:
    assert run(killed) > 0


def test_the_newest_value_stands_last_when_the_power_goes_again_in_the_middle() -> None:
    assert run(powerless) > 0
    assert run(powerless, killed, powerless) > 0


def test_what_is_read_back_is_not_sent_again() -> None:
    assert run(check=(True, True)) == 0
    assert run(killed, check=(True, True)) == 0
    assert run(powerless, check=(True, True)) == 0


def test_the_newest_value_stands_last_when_only_one_of_two_lives_reads_back() -> None:
    assert run(killed, check=(False, True)) > 0
    run(killed, check=(True, False))


def test_without_the_rule_an_old_value_stands_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuffixRule, "needed", lambda self, lane, word, **_: word is Word.WAITING)
    with pytest.raises(AssertionError, match="an old value stands behind a newer one"):
        run()


def settled_on(disk: MemoryDisk) -> set[str]:
    """Ids of the records whose settle words the power cut has left."""
    files, path = disk.file_system, disk.path / "0"
    with View(path, "ring", lambda name: files.open_foreign(path / name), files.boot_id()) as view:
        return {f"{one.producer_id}/{one.epoch}/{one.sequence}" for one in view.frames(settled=True) if one.settled}


def sent_again_though_settled(seed: int) -> set[str]:
    """Ids of records without key and partition."""
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)

        async def lives() -> set[str]:
            left = await publish_everything(cluster, MemoryDisk(), seed)
            settled = settled_on(left)
            await deliver(cluster, left, check=False)
            stood = await read_topic(cluster.bootstrap_servers, TOPIC)
            times = Counter(record.record_id for record in stood if keyless(int(record.value or b"")))
            return {name for name in settled if times[name] > 1}

        return asyncio.run(lives())


def test_a_record_without_key_and_partition_is_sent_again_only_where_its_own_word_was_lost() -> None:
    assert [seed for seed in range(SEEDS) if sent_again_though_settled(seed)] == []


def test_counted_to_its_lane_it_would_be_sent_again_with_what_stands_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "_order_of", lambda _, lane: (lane.topic, lane.partition))
    assert any(map(sent_again_though_settled, range(SEEDS)))
