"""Adoption: what processes that are gone have left is delivered by their neighbours, and by one of them only."""

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.errors import PolicyViolationError

from aiorecover import DeliveryReport, RecoverableProducer
from aiorecover.cli.inspection import inspect
from aiorecover.testing import MockClusterProcess
from tests.stand_in import Broker, put_in_place
from tests.support.census import Census
from tests.support.eventually import until
from tests.support.oracle import Accepted, Verdict, judge, read_topic
from tests.test_fork import Child, refusal

pytestmark = pytest.mark.asyncio

NOWHERE = "127.0.0.1:1"  # no broker listens there
TOPIC = "t"
SHORT: dict[str, Any] = {"slot_bytes": 1 << 16, "max_batch_size": 4096, "wal_min_free_bytes": 0}
NEVER = 3_600_000  # ms


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[MockClusterProcess]:
    async with MockClusterProcess() as cluster:
        await cluster.create_topic(TOPIC, partitions=3)
        yield cluster


@asynccontextmanager
async def worker(wal: Path, cluster: MockClusterProcess, **options: Any) -> AsyncIterator[RecoverableProducer]:
    given = {"instance": "worker", "adoption_grace_ms": 0, **SHORT, **options}
    servers = f"{cluster.bootstrap_servers},{NOWHERE}"  # where those that reached no broker looked for one, too
    async with RecoverableProducer(wal, bootstrap_servers=servers, **given) as producer:
        yield producer


async def orphan(wal: Path, home: str = "0", count: int = 300, **options: Any) -> list[Accepted]:
    """What a process that never reached a broker has accepted, and left."""
    given = {"instance": home, "adoption_grace_ms": None, **SHORT, **options}
    producer = RecoverableProducer(wal, bootstrap_servers=NOWHERE, **given)
    await producer.start()
    accepted = []
    for number in range(count):
        key, value = b"k%d" % (number % 7), b"%s-%d" % (home.encode(), number)
        receipt = await producer.publish(TOPIC, value, key=key)
        accepted.append(Accepted(receipt.record_id, key, value))
    await producer.stop(timeout_ms=0)
    return accepted


async def adopted(producer: RecoverableProducer, count: int = 1) -> None:
    await until(lambda: producer.statistics().directories_adopted >= count)


async def verdict(cluster: MockClusterProcess, accepted: list[Accepted]) -> Verdict:
    return judge(accepted, await read_topic(cluster.bootstrap_servers, TOPIC), whole_lanes=True)


def waiting(wal: Path) -> dict[str, tuple[str, bool | None]]:
    """What stands in a wal_dir, looked at from outside."""
    return {Path(one["path"]).name: (one["state"], waits(one)) for one in inspect(wal, 0)}


def waits(one: dict[str, Any]) -> bool | None:
    """In the main ring; None: that cannot be read."""
    return next((ring["waiting"] > 0 for ring in one["rings"] if ring["ring"] == "ring"), None)


def slots_on_disk(directory: Path) -> float:
    """Of the three rings, without holes."""
    rings = [directory / name for name in ("ring", "retry", "dead")]
    return sum(ring.stat().st_blocks * 512 for ring in rings) / int(SHORT["slot_bytes"])


async def test_what_an_outage_has_filled_is_given_back_to_the_disk_by_who_delivers_it(
    cluster: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("gone", "worker")
    accepted = [one for name in names for one in await orphan(tmp_path, name, 15_000)]
    before = [slots_on_disk(tmp_path / name) for name in names]
    async with worker(tmp_path, cluster) as producer:
        await adopted(producer)
        await producer.flush(timeout_ms=20_000)
    slots = [slots_on_disk(tmp_path / name) for name in names]
    assert min(before) > 15
    assert slots[0] <= 0.1 + len(("ring", "retry", "dead")), (
        "each has one ready, the first one where there was time for it"
    )
    assert slots[1] <= 1.1 + 4 + len(("retry", "dead")), "what was written last, and what the next burst needs"
    assert waiting(tmp_path) == dict.fromkeys(names, ("free", False))
    caplog.clear()
    async with worker(tmp_path, cluster, instance="gone") as producer:
        receipt = await producer.publish(TOPIC, b"again", key=b"k")
        await producer.flush(timeout_ms=20_000)
        assert producer.statistics().missing == 0
    accepted.append(Accepted(receipt.record_id, b"k", b"again"))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert (await verdict(cluster, accepted)).ok


async def test_what_a_process_has_left_is_delivered_by_its_neighbour_under_its_own_ids(
    cluster: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiorecover")
    accepted = [*await orphan(tmp_path, "0"), *await orphan(tmp_path, "fixed-home")]
    async with worker(tmp_path, cluster) as producer:
        await adopted(producer, 2)
        receipt = await producer.publish(TOPIC, b"its own", key=b"k")
        accepted.append(Accepted(receipt.record_id, b"k", b"its own"))
        await producer.flush(timeout_ms=20_000)
        counts = producer.statistics()
        assert (counts.directories_adopted, counts.records_adopted, counts.adoption_pending) == (2, 600, 0)
        assert (counts.accepted, counts.delivered, counts.pending) == (1, 1, 0)
        assert waiting(tmp_path) == {"0": ("free", False), "fixed-home": ("free", False), "worker": ("locked", False)}
    found = await verdict(cluster, accepted)
    assert found.ok, str(found)
    assert (found.delivered, found.repeated, found.foreign) == (601, 0, [])
    for name in ("0", "fixed-home"):
        lines = [record.getMessage() for record in caplog.records if f"directory={name}" in record.getMessage()]
        assert [line.split(" directory=")[0] for line in lines] == [
            "a directory without an owner is adopted",
            "the adopted directory is delivered and let go",
        ]


async def test_nothing_is_adopted_before_the_grace_period_is_over(cluster: MockClusterProcess, tmp_path: Path) -> None:
    await orphan(tmp_path)
    began = asyncio.get_running_loop().time()
    async with worker(tmp_path, cluster, adoption_grace_ms=1_000) as producer:
        await adopted(producer)
        assert asyncio.get_running_loop().time() - began >= 1.0


async def test_none_adopts_nothing(cluster: MockClusterProcess, tmp_path: Path) -> None:
    await orphan(tmp_path)
    async with worker(tmp_path, cluster, adoption_grace_ms=None) as producer:
        await (await producer.publish(TOPIC, b"v")).delivered(timeout_ms=20_000)
        assert "aiorecover-adoption" not in {task.get_name() for task in asyncio.all_tasks()}
    assert waiting(tmp_path)["0"] == ("free", True)


async def test_several_workers_deliver_each_orphan_once(cluster: MockClusterProcess, tmp_path: Path) -> None:
    accepted = [record for name in ("a", "b", "c", "d") for record in await orphan(tmp_path, name, 200)]
    async with (
        worker(tmp_path, cluster, instance=None) as one,
        worker(tmp_path, cluster, instance=None) as two,
        worker(tmp_path, cluster, instance=None) as three,
    ):
        workers = (one, two, three)
        await until(lambda: sum(each.statistics().directories_adopted for each in workers) >= 4)
        assert sum(each.statistics().records_adopted for each in workers) == len(accepted)
    found = await verdict(cluster, accepted)
    assert found.ok, str(found)
    assert (found.delivered, found.repeated) == (800, 0)


async def test_junk_is_told_once_and_does_not_stop_the_others(
    cluster: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await orphan(tmp_path, "a-junk")
    for name in ("checkpoint", "ring"):
        (tmp_path / "a-junk" / name).write_bytes(b"junk" * 10_000)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a-junk").iterdir() if path.is_file()}
    accepted = await orphan(tmp_path, "b")
    async with worker(tmp_path, cluster) as producer:
        await adopted(producer)
        await asyncio.sleep(0.5)  # some looks more
    told = [record.getMessage() for record in caplog.records if "directory=a-junk" in record.getMessage()]
    assert len(told) == 1
    assert "restore the files" in told[0]
    assert {path.name: path.read_bytes() for path in (tmp_path / "a-junk").iterdir() if path.is_file()} == before
    assert (await verdict(cluster, accepted)).ok


async def test_what_cannot_be_opened_is_told_once_and_does_not_stop_the_others(
    cluster: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiorecover.orphans.PAUSE_FIRST", 0.05)
    await orphan(tmp_path, "a")
    (tmp_path / "a" / "lanes").unlink()
    (tmp_path / "a" / "lanes").mkdir()  # opening fails, looking does not
    await orphan(tmp_path, "b")
    async with worker(tmp_path, cluster) as producer:
        await adopted(producer)
        await asyncio.sleep(0.5)
    assert sum("could not be adopted" in record.getMessage() for record in caplog.records) == 1
    assert waiting(tmp_path)["a"] == ("free", True)


async def test_what_belongs_to_another_name_is_told_once_and_never_opened(
    cluster: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await orphan(tmp_path, "a", name="bills")
    before = (tmp_path / "a" / "checkpoint").read_bytes()
    await orphan(tmp_path, "b", name="orders")
    async with worker(tmp_path, cluster, name="orders") as producer:
        await adopted(producer)
        await asyncio.sleep(0.5)
    assert sum("another producer name" in record.getMessage() for record in caplog.records) == 1
    assert (tmp_path / "a" / "checkpoint").read_bytes() == before


async def test_a_stop_in_the_middle_lets_go_in_its_time_and_leaves_nothing_behind(
    cluster: MockClusterProcess, tmp_path: Path
) -> None:
    accepted = await orphan(tmp_path, count=2_000)
    async with worker(tmp_path, cluster, adoption_grace_ms=None) as warm:
        await (await warm.publish(TOPIC, b"v", key=b"v")).delivered(timeout_ms=20_000)
    held = Census(tmp_path)
    await cluster.round_trip_ms(200)  # 2,000 records in batches of 4 KiB take seconds
    async with worker(tmp_path, cluster) as producer:
        await until(lambda: producer.statistics().records_adopted > 0)
        began = asyncio.get_running_loop().time()
        await producer.stop(timeout_ms=2_000)
        assert asyncio.get_running_loop().time() - began < 2.5
    settled = producer.statistics().records_adopted
    assert 0 < settled < len(accepted)
    assert held.left_since() == []
    assert waiting(tmp_path)["0"] == ("free", True)
    await cluster.round_trip_ms(0)
    async with worker(tmp_path, cluster, instance="0", adoption_grace_ms=None) as owner:
        await owner.flush(timeout_ms=20_000)
        assert owner.statistics().delivered <= len(accepted) - settled + 100  # what was in flight at the end
    found = await verdict(cluster, accepted)  # the mock recognises no repeats: tests/crash has a real broker
    assert found.ok, str(found)


async def test_cancelling_all_tasks_lets_go_of_the_directory_and_the_adoption_goes_on_later(
    cluster: MockClusterProcess, tmp_path: Path
) -> None:
    accepted = await orphan(tmp_path, count=2_000)
    await cluster.round_trip_ms(100)
    async with worker(tmp_path, cluster) as producer:
        await until(lambda: producer.statistics().records_adopted > 0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await until(lambda: waiting(tmp_path)["0"][0] == "free")
        await cluster.round_trip_ms(0)
        await adopted(producer)
        assert producer.statistics().adoption_pending == 0
    found = await verdict(cluster, accepted)  # the mock recognises no repeats: tests/crash has a real broker
    assert found.ok, str(found)


async def test_without_a_broker_nothing_is_opened(tmp_path: Path) -> None:
    await orphan(tmp_path)
    before = (tmp_path / "0" / "checkpoint").read_bytes()
    options = {"instance": "worker", "adoption_grace_ms": 0, **SHORT}
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, **options)
    await producer.start()
    await asyncio.sleep(0.5)
    await producer.stop(timeout_ms=0)
    assert (tmp_path / "0" / "checkpoint").read_bytes() == before


async def test_dead_letters_and_reports_are_those_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(t=1)
    broker.refuses = lambda records: (
        PolicyViolationError("no such schema") if any(one.value.endswith(b"-7") for one in records) else None
    )
    put_in_place(broker, monkeypatch)
    reports: list[DeliveryReport] = []
    options = {"on_delivery": reports.append, "retry_backoff_ms": 1, "adoption_grace_ms": 0, **SHORT}
    accepted = await orphan(tmp_path, count=0)
    producer = RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, instance="0", **options)
    broker.answers.clear()
    await producer.start()
    for number in range(10):
        receipt = await producer.publish(TOPIC, b"v-%d" % number, key=b"k")
        accepted.append(Accepted(receipt.record_id, b"k", b"v-%d" % number))
    await producer.stop(timeout_ms=0)
    broker.answers.set()
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, instance="worker", **options) as worker:
        await adopted(worker)
        assert [letter async for letter in worker.dead_letters.list()] == []
        assert worker.statistics().records_adopted == 10
    assert {report.record_id: report.status for report in reports} == {
        one.record_id: "dead_lettered" if one.value == b"v-7" else "delivered" for one in accepted
    }
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, instance="0", **options) as owner:
        assert [letter.value async for letter in owner.dead_letters.list()] == [b"v-7"]


async def test_a_halted_lane_keeps_nobody_from_the_directory_and_the_next_orphan_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(t=3)
    broker.refuses = lambda records: (
        PolicyViolationError("no such schema") if any(one.value == b"a-7" for one in records) else None
    )
    accepted = [await orphan(tmp_path, name) for name in ("a", "b")]
    put_in_place(broker, monkeypatch)
    options = {"on_permanent_error": "halt", "retry_backoff_ms": 1, "adoption_grace_ms": 0, **SHORT}
    async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, instance="worker", **options) as worker:
        await adopted(worker)
        await until(lambda: waiting(tmp_path)["a"] == ("free", True))
        left = worker.statistics().adoption_pending
        assert 0 < left < len(accepted[0])
        assert worker.state == "connected"
        assert worker.statistics().records_adopted == 600 - left


async def test_a_forked_child_keeps_nothing_of_an_adopted_directory(
    cluster: MockClusterProcess, tmp_path: Path
) -> None:
    accepted = await orphan(tmp_path, count=2_000)
    await cluster.round_trip_ms(100)
    async with worker(tmp_path, cluster) as producer:
        await until(lambda: producer.statistics().records_adopted > 0)

        def held() -> list[str]:
            told = refusal(lambda: producer.publish_nowait(TOPIC, b"v"))
            maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
            links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
            return [one for one in [*links, *maps] if str(tmp_path) in one] + ([] if "parent" in told else [told])

        with Child(held) as child:
            assert child.result() == []
            await cluster.round_trip_ms(0)
            await adopted(producer)
            assert waiting(tmp_path)["0"] == ("free", False)
    assert (await verdict(cluster, accepted)).ok


async def test_a_directory_that_is_removed_is_forgotten(cluster: MockClusterProcess, tmp_path: Path) -> None:
    await orphan(tmp_path)
    async with worker(tmp_path, cluster, adoption_grace_ms=NEVER) as producer:
        await (await producer.publish(TOPIC, b"v")).delivered(timeout_ms=20_000)
        shutil.rmtree(tmp_path / "0")
        await asyncio.sleep(0.3)
        assert producer.statistics().adoption_pending == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker"]


async def test_what_belongs_to_another_cluster_is_told_once_and_never_opened(
    cluster: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with MockClusterProcess() as other:
        await other.create_topic(TOPIC, partitions=3)
        async with worker(tmp_path, other, instance="a", adoption_grace_ms=None) as theirs:
            await (await theirs.publish(TOPIC, b"v")).delivered(timeout_ms=20_000)
        await orphan(tmp_path, "a")  # more of theirs, accepted while no broker could be reached
        before = (tmp_path / "a" / "checkpoint").read_bytes()
        accepted = await orphan(tmp_path, "b")
        async with worker(tmp_path, cluster) as producer:
            await adopted(producer)
            await asyncio.sleep(0.7)
            assert waiting(tmp_path) == {"a": ("free", True), "b": ("free", False), "worker": ("locked", False)}
        assert sum("another kafka cluster" in record.getMessage() for record in caplog.records) == 1
        assert (tmp_path / "a" / "checkpoint").read_bytes() == before
    assert (await verdict(cluster, accepted)).delivered == 300


async def test_what_never_reached_a_cluster_and_looked_for_it_elsewhere_is_not_adopted(
    cluster: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await orphan(tmp_path, "a")
    accepted = await orphan(tmp_path, "b", name="orders")
    async with RecoverableProducer(
        tmp_path,
        bootstrap_servers=cluster.bootstrap_servers,
        **{"instance": "worker", "adoption_grace_ms": 0, **SHORT},
    ) as producer:
        await until(lambda: any("nothing tells to which kafka" in record.getMessage() for record in caplog.records))
        assert producer.statistics().directories_adopted == 0
    async with RecoverableProducer(
        tmp_path,
        bootstrap_servers=cluster.bootstrap_servers,
        **{"instance": "worker-2", "name": "orders", "adoption_grace_ms": 0, **SHORT},
    ) as producer:
        await adopted(producer)
    assert {name: one for name, one in waiting(tmp_path).items() if "worker" not in name} == {
        "a": ("free", True),
        "b": ("free", False),
    }
    assert (await verdict(cluster, accepted)).delivered == 300


async def test_while_another_cluster_answers_nothing_is_adopted(cluster: MockClusterProcess, tmp_path: Path) -> None:
    async with worker(tmp_path, cluster, adoption_grace_ms=None) as producer:
        await (await producer.publish(TOPIC, b"v")).delivered(timeout_ms=20_000)
    await orphan(tmp_path, "a")
    before = (tmp_path / "a" / "checkpoint").read_bytes()
    async with MockClusterProcess() as other, worker(tmp_path, other) as producer:
        await until(lambda: producer.state == "wrong_cluster")
        await asyncio.sleep(1)
        assert producer.statistics().directories_adopted == 0
    assert (tmp_path / "a" / "checkpoint").read_bytes() == before


async def test_a_copy_in_the_wal_dir_is_told_once_and_never_opened(
    cluster: MockClusterProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await orphan(tmp_path, "a")
    shutil.copytree(tmp_path / "a", tmp_path / "a.bak")
    accepted = await orphan(tmp_path, "b")
    async with worker(tmp_path, cluster) as producer:
        await adopted(producer)
        await asyncio.sleep(0.7)
        assert producer.statistics().directories_adopted == 1
    assert sum("move the copy out of wal_dir" in record.getMessage() for record in caplog.records) == 2  # one for each
    assert [waiting(tmp_path)[name] for name in ("a", "a.bak")] == [("free", True)] * 2
    assert (await verdict(cluster, accepted)).delivered == 300


@pytest.mark.parametrize("full_timeout_ms", [1_000, 2_000])
async def test_also_an_owner_that_waits_for_a_short_time_gets_its_directory(
    cluster: MockClusterProcess, tmp_path: Path, full_timeout_ms: int
) -> None:
    await orphan(tmp_path, "pod-3", count=8_000)
    await cluster.round_trip_ms(20)  # a batch takes so long: the adopter is never done meanwhile
    async with worker(tmp_path, cluster, full_timeout_ms=full_timeout_ms) as neighbour:
        await until(lambda: neighbour.statistics().records_adopted > 0)
        for _ in range(3):
            async with worker(
                tmp_path, cluster, instance="pod-3", adoption_grace_ms=None, full_timeout_ms=full_timeout_ms
            ) as owner:
                await owner.publish(TOPIC, b"v", key=b"k")
                await owner.stop(timeout_ms=0)
            begun = neighbour.statistics().records_adopted
            await until(lambda begun=begun: neighbour.statistics().records_adopted > begun)  # type: ignore[misc]
        await cluster.round_trip_ms(0)


async def test_letters_that_are_owed_are_published_by_who_adopts_also_where_nothing_else_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(t=1, dead=1)
    broker.refuses = lambda records: (
        PolicyViolationError("no such schema") if any(one.topic == TOPIC for one in records) else None
    )
    put_in_place(broker, monkeypatch)
    options = {"dead_letter_topic": "dead", "retry_backoff_ms": 1, "adoption_grace_ms": None, **SHORT}

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr("aiorecover.delivery.dead_letter_topic.DeadLetterTopic.run", never)
        async with RecoverableProducer(tmp_path, bootstrap_servers=NOWHERE, instance="a", **options) as owner:
            for number in range(50):
                await owner.publish(TOPIC, b"v-%d" % number, key=b"k")
            await owner.flush(timeout_ms=20_000)
            assert (owner.statistics().dead_lettered, broker.values("dead")) == (50, [])
    del options["adoption_grace_ms"]
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=NOWHERE, instance="plain", adoption_grace_ms=0, **SHORT
    ) as without:
        await asyncio.sleep(1)
        assert without.statistics().directories_adopted == 0
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=NOWHERE, instance="worker", adoption_grace_ms=0, **options
    ) as adopter:
        await adopted(adopter)
        assert broker.values("dead") == [b"v-%d" % number for number in range(50)]
        await asyncio.sleep(1)
        assert adopter.statistics().directories_adopted == 1
    assert waiting(tmp_path)["a"] == ("free", False)


async def publish(producer: RecoverableProducer, count: int) -> list[Accepted]:
    accepted = []
    for number in range(count):
        key, value = b"k%d" % (number % 7), b"%s-%d-%d" % (producer.producer_id.encode(), producer.epoch, number)
        receipt = await producer.publish(TOPIC, value, key=key)
        accepted.append(Accepted(receipt.record_id, key, value))
    return accepted


async def test_in_a_rolling_restart_each_home_is_handed_over_and_order_is_kept_across_it(
    cluster: MockClusterProcess, tmp_path: Path
) -> None:
    accepted = []
    await cluster.round_trip_ms(100)
    pods = {name: await _started(tmp_path, cluster, name) for name in ("a-0", "a-1")}
    for pod in pods.values():
        accepted += await publish(pod, 2_000)
    for name, old in pods.items():
        async with asyncio.TaskGroup() as group:
            coming = group.create_task(_started(tmp_path, cluster, name))  # it waits for its home
            began = asyncio.get_running_loop().time()
            left = await old.stop(timeout_ms=500)  # as at SIGTERM
            assert asyncio.get_running_loop().time() - began < 2
        assert left > 0
        pods[name] = coming.result()
        accepted += await publish(pods[name], 1_000)
        assert pods[name].statistics().accepted == 1_000
    await cluster.round_trip_ms(0)
    for pod in pods.values():
        await pod.flush(timeout_ms=20_000)
        assert await pod.stop() == 0
    found = await verdict(cluster, accepted)  # the mock recognises no repeats: tests/crash has a real broker
    assert found.ok, str(found)


async def _started(wal: Path, cluster: MockClusterProcess, name: str) -> RecoverableProducer:
    producer = RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, instance=name, **SHORT)
    await producer.start()
    return producer


async def test_in_an_overlapping_restart_what_the_old_one_leaves_is_adopted_by_the_new_one(
    cluster: MockClusterProcess, tmp_path: Path
) -> None:
    await cluster.round_trip_ms(100)
    old = await _numbered(tmp_path, cluster)
    accepted = await publish(old, 2_000)
    new = await _numbered(tmp_path, cluster)
    accepted += await publish(new, 100)
    left = await old.stop(timeout_ms=500)
    assert left > 0
    assert waiting(tmp_path) == {"0": ("free", True), "1": ("locked", True)}
    await cluster.round_trip_ms(0)
    await adopted(new)
    await new.flush(timeout_ms=20_000)
    assert await new.stop() == 0
    assert waiting(tmp_path) == {"0": ("free", False), "1": ("free", False)}
    found = await verdict(cluster, accepted)  # the mock recognises no repeats: tests/crash has a real broker
    assert found.ok, str(found)


async def _numbered(wal: Path, cluster: MockClusterProcess) -> RecoverableProducer:
    options = {"adoption_grace_ms": 500, **SHORT}
    producer = RecoverableProducer(wal, bootstrap_servers=cluster.bootstrap_servers, **options)
    await producer.start()
    return producer


async def test_while_something_waits_checkpoints_go_on_as_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour on a machine that does not see our lock takes us for living by them."""
    monkeypatch.setattr("aiorecover.background.BEAT", 0.05)
    options: dict[str, Any] = {"checkpoint_interval_ms": 60_000, "stop_timeout_ms": 100}
    async with RecoverableProducer(tmp_path, bootstrap_servers="localhost:1", **options) as producer:
        await asyncio.sleep(0.5)
        assert producer.statistics().checkpoints == 0
        await producer.publish("topic", b"waits")
        await until(lambda: producer.statistics().checkpoints >= 3, 30)


async def test_what_is_delivered_while_its_turn_is_closed_is_delivered_to_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cluster: MockClusterProcess
) -> None:
    async def never(_self: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("aiorecover.opened.Opened.drain", never)
    accepted = await orphan(tmp_path)
    async with worker(tmp_path, cluster, full_timeout_ms=300) as producer:
        await adopted(producer)
        assert producer.statistics().records_adopted == len(accepted)
    assert waiting(tmp_path)["0"] == ("free", False)
