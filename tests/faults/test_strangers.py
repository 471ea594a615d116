"""Strangers among the files of a producer: removed, replaced, moved away, cut. What is promised, and no more."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aiorecover import DeliveryPendingError, RecoverableProducer, WalIOError
from aiorecover.testing import MockCluster
from tests.faults.ledger import NOWHERE, SLOT, SMALL, TOPIC, Ledger
from tests.faults.scene import play
from tests.support.eventually import until
from tests.support.oracle import Accepted, Verdict, judge, read_topic

GOES_ROUND: dict[str, Any] = {"wal_max_bytes": 40 * SLOT, "on_full": "wait"}  # of all rings: the main one does, soon
CLOSED_AT_ONCE: dict[str, Any] = {"stop_timeout_ms": 0}


@contextmanager
def kafka(*, down: bool = False) -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=2)
        if down:
            cluster.broker_down()
        yield cluster


def producer_on(wal: Path, kafka: MockCluster | str = NOWHERE, **options: Any) -> RecoverableProducer:
    servers = kafka if isinstance(kafka, str) else kafka.bootstrap_servers
    return RecoverableProducer(wal, bootstrap_servers=servers, **{**SMALL, **options})


# -- removed, replaced -----------------------------------------------------------------------------------------------


def remove_all(wal: Path) -> None:
    shutil.rmtree(wal)


def remove_the_instance(wal: Path) -> None:
    shutil.rmtree(wal / "0")


def remove_the_ring(wal: Path) -> None:
    (wal / "0" / "ring").unlink()


def remove_the_lock(wal: Path) -> None:
    (wal / "0" / "lock").unlink()


def replace_the_checkpoint(wal: Path) -> None:
    shutil.copy(wal / "0" / "checkpoint", wal / "0" / "copy")
    (wal / "0" / "copy").replace(wal / "0" / "checkpoint")


def replace_the_ring_by_nothing(wal: Path) -> None:
    (wal / "0" / "ring").unlink()
    (wal / "0" / "ring").touch()


def replace_by_a_copy(wal: Path) -> None:
    shutil.copytree(wal / "0", wal / "copy")
    shutil.rmtree(wal / "0")
    (wal / "copy").rename(wal / "0")


def move_away(wal: Path) -> None:
    (wal / "0").rename(wal.parent / "elsewhere")


def replace_by_a_file(wal: Path) -> None:
    shutil.rmtree(wal)
    wal.touch()


STRANGERS = [
    remove_all,
    remove_the_instance,
    remove_the_ring,
    remove_the_lock,
    replace_the_checkpoint,
    replace_the_ring_by_nothing,
    replace_by_a_copy,
    move_away,
    replace_by_a_file,
]


@pytest.mark.asyncio
@pytest.mark.parametrize("meddle", STRANGERS, ids=lambda call: call.__name__)
async def test_files_taken_from_under_a_producer_are_noticed_and_what_it_accepted_is_delivered_by_it(
    tmp_path: Path, meddle: Callable[[Path], None]
) -> None:
    """Nothing more is accepted; delivery needs only the files that are open, whatever they are called by now."""
    ledger, wal = Ledger(), tmp_path / "wal"
    with kafka(down=True) as cluster:
        async with producer_on(wal, cluster) as producer:
            await ledger.publish_all(producer, 60)
            meddle(wal)
            async with asyncio.timeout(20):
                while producer.state != "failed":
                    error = await ledger.publish(producer)
                    assert error is None or isinstance(error, WalIOError), "a slot more may not be had any more"
                    await asyncio.sleep(0.005)
            for _ in range(3):
                error = await ledger.publish(producer)
                assert isinstance(error, WalIOError)
                assert "let that be delivered before you stop, or put them back; then start anew path=" in str(error)
            before = producer.statistics().checkpoints
            cluster.broker_up()
            await producer.flush(timeout_ms=30_000)
            ledger.check_counts(producer)
            assert producer.statistics().checkpoints == before
        await ledger.check_kafka(cluster.bootstrap_servers)
        await start_anew(tmp_path, wal, cluster, ledger)
        await ledger.check_kafka(cluster.bootstrap_servers, repeats=meddle is replace_by_a_copy)


async def start_anew(place: Path, wal: Path, cluster: MockCluster, ledger: Ledger) -> None:
    """The remedy that the error names."""
    if wal.is_file():
        wal.unlink()
    if (place / "elsewhere").exists():
        (place / "elsewhere").rename(wal / "0")
    async with producer_on(wal, cluster) as producer:
        await ledger.publish_all(producer, 20)
        await producer.flush(timeout_ms=20_000)
        ledger.check_counts(producer)


@pytest.mark.asyncio
async def test_neither_flush_nor_stop_promises_that_records_in_files_that_are_gone_are_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, wal = Ledger(), tmp_path / "wal"
    producer = producer_on(wal)
    await producer.start()
    await ledger.publish_all(producer, 60)
    with pytest.raises(DeliveryPendingError, match="it stays in the ring, do not publish it again"):
        await producer.flush(timeout_ms=10)
    (wal / "0" / "ring").unlink()
    with pytest.raises(DeliveryPendingError, match=r"in files that were removed .*, do not publish it again") as told:
        await producer.flush(timeout_ms=10)
    assert "stays in the ring" not in str(told.value)
    assert await producer.stop(timeout_ms=100) == 60
    assert "delivered after the next start" not in caplog.text
    assert "records are left in files that were removed or replaced" in caplog.text


@pytest.mark.asyncio
async def test_of_a_directory_that_was_removed_nothing_is_told_that_a_next_start_would_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, wal = Ledger(), tmp_path / "wal"
    producer = producer_on(wal)
    await producer.start()
    await ledger.publish_all(producer, 6)
    shutil.rmtree(wal / "0")
    await until(lambda: producer.state == "failed")
    assert await producer.stop(timeout_ms=100) == 6
    assert "the files of the directory were removed or replaced" in caplog.text
    assert "next start" not in caplog.text


@pytest.mark.asyncio
async def test_records_in_a_directory_that_was_moved_away_are_delivered_once_it_is_back(tmp_path: Path) -> None:
    """A successor finds an empty place and takes it; the directory comes back as another instance."""
    ledger, wal = Ledger(), tmp_path / "wal"
    with kafka() as cluster:
        async with producer_on(wal, **CLOSED_AT_ONCE) as producer:
            await ledger.publish_all(producer, 60)
            move_away(wal)
            async with asyncio.timeout(20):
                while await ledger.publish(producer) is None:  # noqa: ASYNC110 - looked at from outside
                    await asyncio.sleep(0.005)
            async with producer_on(wal, cluster) as successor:
                await ledger.publish_all(successor, 20)
        (tmp_path / "elsewhere").rename(wal / "1")
        async with producer_on(wal, cluster, instance="1") as producer:
            await producer.flush(timeout_ms=20_000)
            ledger.check_counts(producer)
        await ledger.check_kafka(cluster.bootstrap_servers)


def remove_the_retry_ring(wal: Path) -> None:
    (wal / "0" / "retry").unlink()


def replace_the_ring_by_a_copy(wal: Path) -> None:
    shutil.copy(wal / "0" / "ring", wal / "copy")
    (wal / "copy").rename(wal / "0" / "ring")


HARMLESS = [remove_the_ring, remove_the_retry_ring, replace_the_ring_by_nothing, replace_the_ring_by_a_copy]


@pytest.mark.asyncio
@pytest.mark.parametrize("meddle", HARMLESS, ids=lambda call: call.__name__)
async def test_where_all_was_delivered_from_files_that_are_gone_the_next_start_misses_and_repeats_nothing(
    tmp_path: Path, meddle: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    ledger, wal = Ledger(), tmp_path / "wal"
    with kafka(down=True) as cluster:
        async with producer_on(wal, cluster) as producer:
            await ledger.publish_all(producer, 60)
            await until(lambda: producer.statistics().checkpoints > 1)
            meddle(wal)
            await until(lambda: producer.state == "failed")
            cluster.broker_up()
            await producer.flush(timeout_ms=20_000)
        caplog.clear()
        async with producer_on(wal, cluster) as producer:
            await ledger.publish_all(producer, 5)
            await producer.flush(timeout_ms=20_000)
            assert (producer.statistics().missing, producer.statistics().recovered) == (0, 0)
            assert [line.message for line in caplog.records if line.levelname != "INFO"] == []
        await ledger.check_kafka(cluster.bootstrap_servers)


# -- cut -------------------------------------------------------------------------------------------------------------


async def publish_on_a_cut_ring(place: Path, name: str, length: int) -> None:
    """A stranger cuts a file; go on publishing. What was accepted is told line by line, so that it outlives us."""
    ledger = Ledger()
    async with producer_on(place / "wal", **CLOSED_AT_ONCE) as producer:
        await ledger.publish_all(producer, 40)
        tell(ledger, 0)
        os.truncate(place / "wal" / "0" / name, length)
        for _ in range(200):
            before = len(ledger.accepted)
            await ledger.publish(producer)
            tell(ledger, before)
            await asyncio.sleep(0.002)
        await producer.stop(timeout_ms=0)


def tell(ledger: Ledger, since: int) -> None:
    for record in ledger.accepted[since:]:
        line = [record.record_id, (record.key or b"").decode(), (record.value or b"").decode()]
        os.write(1, json.dumps(line).encode() + b"\n")


def heard(output: str) -> list[Accepted]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    return [Accepted(record_id, key.encode(), value.encode()) for record_id, key, value in lines]


@pytest.mark.parametrize("length", [0, 100, SLOT // 2, SLOT, SLOT + 4096, 2 * SLOT, 3 * SLOT - 4096])
def test_a_ring_cut_under_a_running_producer_may_end_it_by_sigbus_and_the_next_start_delivers_what_is_left(
    tmp_path: Path, length: int
) -> None:
    """Promised: nothing wrong, nothing twice, everything in front of the cut. Not: that the process lives."""
    done = play(publish_on_a_cut_ring, tmp_path, "ring", length, status=(0, -signal.SIGBUS))
    accepted = heard(done.stdout)
    assert len(accepted) >= 40
    asyncio.run(deliver_what_is_left(tmp_path / "wal", accepted, length))


async def deliver_what_is_left(wal: Path, accepted: list[Accepted], length: int) -> None:
    ring = (wal / "0" / "ring").read_bytes()[:length]
    safe = [record for record in accepted if (record.value or b"") in ring]
    with kafka() as cluster:
        ledger = Ledger()
        async with producer_on(wal, cluster) as producer:
            await ledger.publish_all(producer, 20)
            await producer.flush(timeout_ms=20_000)
            figures = producer.statistics()
            assert figures.accepted + figures.recovered == figures.delivered + figures.pending
        consumed = await read_topic(cluster.bootstrap_servers, TOPIC)
        verdict = judge([*accepted, *ledger.accepted], consumed)
        assert [*verdict.wrong, *verdict.out_of_order, *verdict.foreign] == [], verdict
        assert verdict.repeated == 0, verdict
        assert set(verdict.missing).isdisjoint(record.record_id for record in safe), verdict
        assert set(verdict.missing).isdisjoint(record.record_id for record in ledger.accepted), verdict


@pytest.mark.parametrize(
    ("name", "length"),
    [
        *(("checkpoint", length) for length in (0, 512, 65536, 65536 + 100)),
        *(("retry", 0), ("dead", SLOT // 2), ("lanes", 100)),
    ],
)
def test_a_file_with_no_record_in_it_cut_under_a_running_producer_costs_nothing(
    tmp_path: Path, name: str, length: int
) -> None:
    """The checkpoint's copies are written again and again, and a directory with a readable ring can do without."""
    done = play(publish_on_a_cut_ring, tmp_path, name, length)
    accepted = heard(done.stdout)
    assert len(accepted) == 240
    asyncio.run(deliver_what_is_left(tmp_path / "wal", accepted, 1 << 30))


async def publish_beside_a_stalled_lane(place: Path, servers: str, name: str, length: int) -> None:
    """As above, once some of what waits for a partition without a leader was moved to the retry ring."""
    ledger = Ledger()
    async with producer_on(place / "wal", servers, **CLOSED_AT_ONCE, **GOES_ROUND) as producer:
        async with asyncio.timeout(40):
            while producer.statistics().slots_moved < 4:
                await publish_and_tell(producer, ledger, 10)
        os.write(1, b"cut\n")
        os.truncate(place / "wal" / "0" / name, length)
        await publish_and_tell(producer, ledger, 200)
        await producer.stop(timeout_ms=0)


async def publish_and_tell(producer: RecoverableProducer, ledger: Ledger, count: int) -> None:
    """Up to the first refusal."""
    for _ in range(count):
        before = len(ledger.accepted)
        if await ledger.publish(producer, size=300) is not None:
            return
        tell(ledger, before)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("name", "length"),
    [("retry", 0), ("retry", SLOT // 2), ("retry", SLOT + 4096), ("lanes", 0), ("lanes", 600)],
)
def test_the_retry_ring_or_the_lanes_cut_while_they_are_in_use_cost_at_most_what_stood_behind_the_cut(
    tmp_path: Path, name: str, length: int
) -> None:
    """Promised, and not promised, as above; but the mock cluster drops no repeats. No record stands in the lanes."""
    with kafka() as cluster:
        cluster.set_leader(TOPIC, 1, None)
        arguments = cluster.bootstrap_servers, name, length
        done = play(publish_beside_a_stalled_lane, tmp_path, *arguments, status=(0, -signal.SIGBUS))
        before, after = map(heard, done.stdout.split("cut\n"))
        cluster.set_leader(TOPIC, 1, 1)
        verdict, named = asyncio.run(delivered_by_the_next(tmp_path / "wal", cluster, [*before, *after]))
    assert [*verdict.wrong, *verdict.out_of_order, *verdict.foreign] == [], verdict
    assert set(verdict.missing) <= ({record.record_id for record in before} if name == "retry" else set()), verdict
    assert named >= len(verdict.missing), verdict
    assert verdict.missing or name == "lanes", "the retry ring was in use"


async def delivered_by_the_next(wal: Path, cluster: MockCluster, accepted: list[Accepted]) -> tuple[Verdict, int]:
    """And how many records it names as missing."""
    ledger = Ledger()
    async with producer_on(wal, cluster, **GOES_ROUND) as producer:
        await producer.flush(timeout_ms=20_000)
        await ledger.publish_all(producer, 20)
        await producer.flush(timeout_ms=20_000)
        figures = producer.statistics()
        assert figures.accepted + figures.recovered == figures.delivered + figures.pending + figures.lost
    return judge([*accepted, *ledger.accepted], await read_topic(cluster.bootstrap_servers, TOPIC)), figures.missing


@pytest.mark.asyncio
@pytest.mark.parametrize("cut", [1, 130, 500, 4096, SLOT // 2, SLOT - 200])
async def test_a_ring_cut_between_two_runs_delivers_what_is_left_and_counts_what_is_missing(
    tmp_path: Path, cut: int
) -> None:
    """Cut inside its last sealed slot: its seal and the last checkpoint tell how many there were."""
    ledger, wal = Ledger(), tmp_path / "wal"
    with kafka() as cluster:
        async with producer_on(wal, **CLOSED_AT_ONCE) as producer:
            await ledger.publish_all(producer, 100)
        path = wal / "0" / "ring"
        content = path.read_bytes()
        sealed = max(at for at in range(0, len(content), SLOT) if content[at + 64 : at + 68] != bytes(4)) + SLOT
        os.truncate(path, sealed - cut)
        left = [record for record in ledger.accepted if (record.value or b"") in content[: sealed - cut]]
        gone = [record for record in ledger.accepted if record not in left]
        async with producer_on(wal, cluster) as producer:
            await producer.flush(timeout_ms=20_000)
            figures = producer.statistics()
            assert (figures.recovered, figures.missing) == (len(left), len(gone))
            ledger.accepted = left
            await ledger.publish_all(producer, 20)
            await producer.flush(timeout_ms=20_000)
        await ledger.check_kafka(cluster.bootstrap_servers)
