"""Adoption: what a process that is gone has left is delivered by one neighbour, once and in order."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.errors import WalError
from aiorecover.ring.directory import instances
from aiorecover.ring.inspect import look
from aiorecover.testing import MockClusterProcess
from tests.kafka.kills import Lives
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import Accepted, Verdict, judge, read_topic
from tests.support.published import NOWHERE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

TOPIC = "t"
WITHIN_MS = 20_000


@pytest_asyncio.fixture
async def mock() -> AsyncIterator[MockClusterProcess]:
    async with MockClusterProcess() as cluster:
        await cluster.create_topic(TOPIC, partitions=3)
        yield cluster


@asynccontextmanager
async def worker(wal: Path, servers: str, **options: Any) -> AsyncIterator[RecoverableProducer]:
    given = {"instance": "worker", "adoption_grace_ms": 0, "stop_timeout_ms": 2_000, **options}
    async with RecoverableProducer(wal, bootstrap_servers=servers, **given) as producer:
        yield producer


async def publish(producer: RecoverableProducer, count: int) -> list[Accepted]:
    accepted = []
    for number in range(count):
        key, value = b"k%d" % (number % 7), b"%s-%d" % (producer.producer_id.encode(), number)
        receipt = await producer.publish(TOPIC, value, key=key)
        accepted.append(Accepted(receipt.record_id, key, value))
    return accepted


async def orphan(wal: Path, home: str, count: int = 300, servers: str = NOWHERE, **options: Any) -> list[Accepted]:
    """Leave what a process that never reached a broker has accepted."""
    async with worker(wal, servers, instance=home, adoption_grace_ms=None, stop_timeout_ms=0, **options) as producer:
        return await publish(producer, count)


async def adopted(producer: RecoverableProducer, count: int = 1) -> None:
    await until(lambda: producer.statistics().directories_adopted >= count)


async def verdict(servers: str, accepted: list[Accepted]) -> Verdict:
    return judge(accepted, await read_topic(servers, TOPIC), whole_lanes=True)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "adoption_refused" in record.getMessage()]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_records_of_a_killed_process_are_delivered_once_and_in_order_after_the_grace_period(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Real kills: in the middle of delivery, and before any broker was reached; the neighbour runs all the time."""
    caplog.set_level(logging.INFO, "aiorecover")
    options: dict[str, Any] = {"guarantee": guarantee, "adoption_grace_ms": 1_000}
    lives = Lives(kafka, topic(kafka), tmp_path, instance="gone", **options)
    async with worker(lives.wal_dir, kafka.bootstrap_servers, **options) as neighbour:
        expected = 0
        for seed, servers in enumerate((None, NOWHERE), 1):
            victim = await asyncio.to_thread(lives.start, seed, servers=servers)
            await asyncio.sleep(0.5)
            assert neighbour.statistics().directories_adopted == expected
            lives.kill(victim)
            killed_at = asyncio.get_running_loop().time()
            if look(lives.wal_dir / "gone").records:
                expected += 1
                await adopted(neighbour, expected)
                assert asyncio.get_running_loop().time() - killed_at >= 1.0
        counts = neighbour.statistics()
        assert expected > 0
        assert counts.records_adopted > 0
        assert (counts.accepted, counts.recovered, counts.delivered, counts.pending) == (0, 0, 0, 0)
        assert look(lives.wal_dir / "gone").records == 0
        found = await lives.verdict()
        assert found.ok, found
        assert found.repeated == 0
    lines = [record.getMessage().split()[0] for record in caplog.records]
    assert (lines.count("adopted"), lines.count("adoption_done")) == (expected, expected)


async def test_a_directory_whose_process_lives_is_left_alone(mock: MockClusterProcess, tmp_path: Path) -> None:
    async with worker(tmp_path, NOWHERE, instance="owner", adoption_grace_ms=None, stop_timeout_ms=0) as owner:
        accepted = await publish(owner, 300)
        async with worker(tmp_path, mock.bootstrap_servers) as neighbour:
            await asyncio.sleep(2)
            assert neighbour.statistics().directories_adopted == 0
            await owner.stop()
            await adopted(neighbour)
    assert (await verdict(mock.bootstrap_servers, accepted)).delivered == 300


def _copy(wal: Path) -> None:
    shutil.copytree(wal / "a", wal / "z")


def _damage(wal: Path) -> None:
    (wal / "a" / "checkpoint").write_bytes(b"junk" * 100)


def _nothing(_: Path) -> None:
    """Leave the directory as it is."""


@pytest.mark.parametrize(
    ("options", "change", "why"),
    [
        ({"name": "bills"}, _nothing, "name='bills'"),
        ({"guarantee": "exactly_once"}, _nothing, "guarantee='exactly_once'"),
        ({"cluster_id": "another"}, _nothing, "cluster_id="),
        ({}, _copy, "move the copy out of wal_dir"),
        ({}, _damage, "the checkpoint is damaged"),
    ],
    ids=["name", "guarantee", "cluster", "copy", "damaged"],
)
async def test_a_directory_that_may_not_be_adopted_is_named_once_and_never_opened(
    mock: MockClusterProcess,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    change: Callable[[Path], None],
    why: str,
) -> None:
    if options.pop("cluster_id", None):
        async with MockClusterProcess() as other:
            await other.create_topic(TOPIC)
            async with worker(tmp_path, other.bootstrap_servers, instance="a", adoption_grace_ms=None) as theirs:
                await (await theirs.publish(TOPIC, b"v")).delivered(WITHIN_MS)
    await orphan(tmp_path, "a", **options)
    change(tmp_path)
    accepted = await orphan(tmp_path, "b")
    before = (tmp_path / "a" / "checkpoint").read_bytes()
    async with worker(tmp_path, mock.bootstrap_servers) as producer:
        await adopted(producer)
        await asyncio.sleep(0.7)  # some looks more
        assert producer.statistics().directories_adopted == 1
    about = [line for line in refusals(caplog) if f"path={tmp_path / 'a'}" in line]
    assert len(about) == 1
    assert why in about[0]
    assert (tmp_path / "a" / "checkpoint").read_bytes() == before
    found = await verdict(mock.bootstrap_servers, accepted)
    assert (found.ok, found.foreign) == (True, []), found


async def test_dead_letters_stay_in_the_directory_and_reports_go_to_the_adopter(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """A topic that is compacted refuses records without a key."""
    name, reports = topic(kafka, 1, config={"cleanup.policy": "compact"}), list[DeliveryReport]()
    async with worker(tmp_path, NOWHERE, instance="gone", adoption_grace_ms=None, stop_timeout_ms=0) as gone:
        good = await gone.publish(name, b"good", key=b"k", context={"n": 1})
        bad = await gone.publish(name, b"bad")
    async with worker(tmp_path, kafka.bootstrap_servers, on_delivery=reports.append) as neighbour:
        await adopted(neighbour)
        assert neighbour.statistics().records_adopted == 2
        assert [letter async for letter in neighbour.dead_letters.list()] == []
        assert {report.record_id: (report.status, report.context) for report in reports} == {
            good.record_id: ("delivered", {"n": 1}),
            bad.record_id: ("dead_lettered", None),
        }
        await asyncio.sleep(1)  # a directory with dead letters alone is not adopted again
        assert neighbour.statistics().directories_adopted == 1
    async with worker(tmp_path, kafka.bootstrap_servers, instance="gone") as owner:
        assert [letter.record_id async for letter in owner.dead_letters.list()] == [bad.record_id]


async def test_an_owner_that_comes_back_gets_its_directory_in_time(mock: MockClusterProcess, tmp_path: Path) -> None:
    await orphan(tmp_path, "pod-3", 30_000)
    await mock.round_trip_ms(300)  # the adopter is never done meanwhile
    quick: dict[str, Any] = {"full_timeout_ms": 2_000, "max_batch_size": 4096, "max_request_size": 4096}
    async with worker(tmp_path, mock.bootstrap_servers, **quick) as neighbour:
        for _ in range(3):
            await until(lambda: look(tmp_path / "pod-3").records > 0 and taken(tmp_path / "pod-3"))
            async with worker(tmp_path, NOWHERE, instance="pod-3", adoption_grace_ms=None, **quick) as owner:
                await owner.publish(TOPIC, b"v", key=b"k")
                await owner.stop(timeout_ms=0)
        assert neighbour.statistics().directories_adopted == 0
        began = asyncio.get_running_loop().time()
        await until(lambda: taken(tmp_path / "pod-3"))
        await neighbour.stop(timeout_ms=1_000)
        assert asyncio.get_running_loop().time() - began < 5
        assert not taken(tmp_path / "pod-3")


def taken(path: Path) -> bool:
    return next(one.locked for one in instances(path.parent) if one.path == path)


async def test_a_removed_lock_never_makes_two_owners(
    mock: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker is down; A accepts 5,000; its lock is removed; B starts; the broker is back."""
    await mock.broker_down()
    quick: dict[str, Any] = {"instance": None, "stop_timeout_ms": 500}
    async with worker(tmp_path, mock.bootstrap_servers, **quick) as one:
        accepted = await publish(one, 5_000)
        (tmp_path / "0" / "lock").unlink()
        async with worker(tmp_path, mock.bootstrap_servers, **quick) as two:
            assert two.wal_path == tmp_path / "1"
            await until(lambda: one.state == "failed")
            await mock.broker_up()
            with pytest.raises(WalError, match=r"^\[Errno 116\] .* was removed"):
                await publish(one, 1_000)
            accepted += await publish(two, 100)
            await two.flush(WITHIN_MS)
            assert two.statistics().directories_adopted == 0
            assert await one.stop() == 5_000
            await adopted(two)
    found = await verdict(mock.bootstrap_servers, accepted)
    assert (found.ok, found.delivered, found.repeated) == (True, 5_100, 0), found
