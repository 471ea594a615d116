"""Where a lane's identity cannot be trusted: nothing is lost, and what stands twice is a whole suffix of its lane.

Another boot, a copied or restored directory, a damaged `lanes`, an identity that the broker has forgotten. In each the
first process dies with batches in flight in every lane: appended, with their answers lost.
"""

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorecover import Deduplicator
from tests.crash.child import digest
from tests.crash.conftest import SWEPT_EVERY_MS
from tests.crash.flights import BATCHES_BYTES, LANES, die_unanswered, ready, take_off
from tests.crash.judgement import Verdict
from tests.crash.lives import Child
from tests.crash.scenario import FLUSH, Scenario, Step
from tests.support import admin
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour
from tests.support.oracle import Consumed, read_topic
from tests.support.suffixes import steps_back, torn_suffixes

pytestmark = pytest.mark.timeout(240)

MORE: list[Step] = [("publish", {"count": 600, "rate": 3_000}), FLUSH]
EXPIRES_MS = 3_000
TWO_DAYS_MS = 2 * 24 * 3600 * 1000
LANES_FILE = Path("0", "lanes")
DAMAGES = ["flipped", "cut", "blank", "removed"]


@pytest.fixture
def scenario(detoured: KafkaCluster, detour: Detour, tmp_path: Path) -> Scenario:
    return Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers)


def consumed(scenario: Scenario) -> list[Consumed]:
    return admin.run(read_topic(scenario.cluster.bootstrap_servers, scenario.topic))


def assert_only_whole_suffixes(scenario: Scenario, verdict: Verdict) -> None:
    print(verdict)
    assert verdict.ok, str(verdict)
    assert torn_suffixes(consumed(scenario)) == []


def test_another_boot(scenario: Scenario, detour: Detour) -> None:
    die_unanswered(scenario, detour)
    statistics = scenario.finish(scenario.life(*MORE, boot_id="another"))
    assert statistics["identities_renewed"] == LANES
    assert_only_whole_suffixes(scenario, scenario.verdict(boot_id="another", once=False))


@pytest.mark.parametrize(("damage", "check"), [*((kind, True) for kind in DAMAGES), ("flipped", False)])
def test_damaged_lanes(scenario: Scenario, detour: Detour, damage: str, check: bool) -> None:
    """``check``: what stands in Kafka is looked for there; without it all that was in flight is repeated."""
    die_unanswered(scenario, detour)
    path = scenario.wal_dir / LANES_FILE
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        rng = random.Random(damage)
        for at in range(0, len(data), 512):
            data[at + rng.randrange(min(512, len(data) - at))] ^= 1 << rng.randrange(8)
    elif damage == "cut":
        del data[len(data) // 64 :]
    elif damage == "blank":
        data[:] = bytes(len(data))
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(data)  # the same inode: nothing but the bytes tells
    statistics = scenario.finish(scenario.life(*MORE, recovery_check=check))
    renewed = statistics["identities_renewed"]
    print(damage, renewed)
    assert renewed == LANES if damage == "cut" else renewed > 0
    verdict = scenario.verdict(once=False)
    assert_only_whole_suffixes(scenario, verdict)
    assert verdict.repeated > 0 or check, "nothing was in doubt"


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("inodes", ["others", "the same"])
def test_a_directory_that_is_restored_as_it_once_was(
    scenario: Scenario, detour: Detour, inodes: str, in_flight: bool
) -> None:
    """What was published since is gone from it and stands in Kafka; what is published from now on must arrive.

    Its lanes speak of batches that are long past, and the broker knows others under the numbers that follow them. The
    inodes do not tell: a file system gives them out again, `cp -a` to a backup, `rm -r` and `cp -a` back will do.
    """
    if in_flight:
        die_unanswered(scenario, detour, count=10 * LANES)
    else:
        scenario.finish(scenario.life(*one_batch_in_each_lane(3)))
    backup = Path(shutil.copytree(scenario.wal_dir, scenario.wal_dir.with_name("backup")))
    scenario.finish(scenario.life(*one_batch_in_each_lane(3)))
    restore(backup, scenario.wal_dir, same_inodes=inodes == "the same")
    child = scenario.life(*one_batch_in_each_lane(3))
    child.finish()
    assert_values_arrived(scenario, child)


def one_batch_in_each_lane(times: int) -> list[Step]:
    """So many batches of ten records in each lane: all alike, so that one could be taken for another."""
    return [("publish", {"count": 10 * LANES}), FLUSH] * times


def restore(backup: Path, place: Path, *, same_inodes: bool) -> None:
    """As `rsync --inplace` would, or `cp` on a file system that gives inodes out again; or with new inodes."""
    if same_inodes:
        for old in backup.rglob("*"):
            if old.is_file():
                (place / old.relative_to(backup)).write_bytes(old.read_bytes())
    else:
        place.rename(place.with_name("replaced"))  # it keeps its inodes: none of them is given out again
        shutil.copytree(backup, place)


@pytest.mark.parametrize("check", [True, False])
def test_a_copy_that_is_opened_alone_repeats_nothing_that_it_may_look_for(
    scenario: Scenario, detour: Detour, check: bool
) -> None:
    """The original may be running somewhere, for all that it knows: it does not speak in its name."""
    die_unanswered(scenario, detour)
    scenario.use(scenario.copy())
    statistics = scenario.finish(scenario.life(*MORE, recovery_check=check))
    assert (statistics["batches_resumed"], statistics["identities_renewed"]) == (0, LANES)
    verdict = scenario.verdict(once=False)
    assert_only_whole_suffixes(scenario, verdict)
    assert (verdict.repeated > 0) is not check
    assert (statistics["recovered_in_kafka"] > 0) is check


@pytest.mark.parametrize("moment", ["dead", "publishing"])
def test_two_copies_of_one_directory_running_at_once_lose_nothing(
    scenario: Scenario, detour: Detour, moment: str
) -> None:
    copy = scenario.wal_dir.with_name("copy")
    first: Child | None = None
    if moment == "dead":
        die_unanswered(scenario, detour)
        shutil.copytree(scenario.wal_dir, copy)
    else:
        first = scenario.life(("publish", {"rate": 5_000, "seconds": 3.0}), FLUSH)
        first.wait_for("publish")
        time.sleep(1)
        shutil.copytree(scenario.wal_dir, copy)
    children = [scenario.life(*MORE * 3, wal_dir=copy)]
    children.append(first or scenario.life(*MORE * 3))
    renewed = [child.finish()["identities_renewed"] for child in children]
    assert moment != "dead" or renewed == [LANES, 0], "the copy must not speak in the original's name"
    assert_values_arrived(scenario, *children)
    left = [scenario.life(FLUSH, wal_dir=path) for path in (scenario.wal_dir, copy)]
    assert [child.finish()["left"] for child in left] == [0, 0]


def assert_values_arrived(scenario: Scenario, *children: Child) -> None:
    """By their values, each of which was published once, for a reader that drops repeats by their ids."""
    first: dict[str | None, Consumed] = {}
    for record in (records := consumed(scenario)):
        first.setdefault(record.record_id, record)
    had = Deduplicator()
    assert [record for record in records if had.add(record.record_id)] == [*first.values()]
    there = {digest(record.value) for record in first.values()}
    told = [record.value for record in scenario.ledger.accepted[0]]
    told += [report[4] for child in children for report in child.reports if report[0] == b"A"]
    missing = [value for value in told if value not in there]
    assert not missing, f"missing ({len(missing)} of {len(told)}): {missing[:5]}"


# -- an identity that the broker forgets -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    """Brokers that forget a Kafka producer after a moment."""
    settings = {
        "producer.id.expiration.ms": str(EXPIRES_MS),
        "producer.id.expiration.check.interval.ms": str(SWEPT_EVERY_MS),
    }
    with KafkaCluster(3, settings, detour_host="127.0.0.1") as cluster:
        yield cluster


@pytest.fixture
def forgotten(forgetful: KafkaCluster, tmp_path: Path) -> Iterator[tuple[Scenario, Detour]]:
    with Detour(forgetful.detour_routes) as detour:
        yield Scenario(forgetful, tmp_path, lanes=LANES, servers=forgetful.detour_servers), detour


def forget() -> None:
    time.sleep(2 * EXPIRES_MS / 1000)


def test_an_identity_that_the_broker_forgot_between_two_lives(forgotten: tuple[Scenario, Detour]) -> None:
    scenario, detour = forgotten
    die_unanswered(scenario, detour)
    forget()
    statistics = scenario.finish(scenario.life(*MORE))
    assert (statistics["batches_resumed"], statistics["identities_renewed"]) == (0, LANES)
    assert statistics["recovered_in_kafka"] > 0, "nothing had come through"
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)


def test_an_identity_that_the_broker_forgot_where_nothing_may_be_read_back(
    forgotten: tuple[Scenario, Detour],
) -> None:
    scenario, detour = forgotten
    die_unanswered(scenario, detour)
    forget()
    statistics = scenario.finish(scenario.life(*MORE, recovery_check=False))
    assert (statistics["batches_resumed"], statistics["identities_renewed"]) == (0, LANES)
    verdict = scenario.verdict(once=False)
    assert_only_whole_suffixes(scenario, verdict)
    assert verdict.repeated > 0, "the brokers remembered it"


def test_an_identity_that_the_broker_forgot_while_its_lane_had_nothing_to_send(
    forgotten: tuple[Scenario, Detour],
) -> None:
    """Also in the life after it: the journal's last entry is spent, and only gives the next number."""
    scenario, _ = forgotten
    child = scenario.life(*MORE, ("wait", {}), *MORE)
    child.wait_for("wait")
    forget()
    child.tell()
    scenario.finish(child)
    forget()
    scenario.finish(scenario.life(*MORE))
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("stands", ["the process", "the brokers"])
def test_an_identity_that_the_broker_forgot_while_the_process_lives(
    forgetful: KafkaCluster, tmp_path: Path, stands: str
) -> None:
    """Appended, with the answers lost: nothing tells whether what is sent again is known there. Each suffix counts.

    The topic stamps its records itself: else what was appended late would count as old again, and be forgotten at once.
    """
    topic = f"forgotten-alive-{stands.replace(' ', '-')}"
    forgetful.create_topic(topic, LANES, config={"message.timestamp.type": "LogAppendTime"})
    with Detour(forgetful.detour_routes) as detour:
        scenario = Scenario(forgetful, tmp_path, lanes=LANES, servers=forgetful.detour_servers, topic=topic)
        child = in_flight_unanswered(scenario, detour)
        if stands == "the process":
            child.suspend(2 * EXPIRES_MS / 1000)
        else:
            stand_still(forgetful)
        child.tell()
        renewed = scenario.finish(child)["identities_renewed"]
        verdict = scenario.verdict(once=False)
    assert_only_whole_suffixes(scenario, verdict)
    repeats = steps_back(consumed(scenario))
    print(f"{renewed=} {repeats=}")
    assert 0 < repeats <= renewed, "some are not counted"


def in_flight_unanswered(scenario: Scenario, detour: Detour) -> Child:
    """Told, it publishes more."""
    child = ready(scenario, then=[FLUSH, *MORE])
    detour.deafen()
    carried = detour.count()
    take_off(child)
    detour.wait_carried(carried + BATCHES_BYTES)
    time.sleep(0.3)  # until it is appended
    return child


def stand_still(cluster: KafkaCluster) -> None:
    for node in cluster.nodes:
        node.pause()
    forget()
    for node in cluster.nodes:
        node.resume()
    cluster.wait_ready()


# -- records that are older than a broker remembers --------------------------------------------------------------------


@pytest.mark.parametrize("stamped_by", ["CreateTime", "LogAppendTime"])
def test_records_of_two_days_ago_that_were_in_flight_are_not_repeated(
    detoured: KafkaCluster, detour: Detour, tmp_path: Path, stamped_by: str
) -> None:
    """A broker counts its day from the newest timestamp of a producer's last batch, not from when that came."""
    topic = f"stamped-by-{stamped_by}"
    detoured.create_topic(topic, LANES, config={"message.timestamp.type": stamped_by})
    scenario = Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers, topic=topic)
    die_unanswered(scenario, detour, age_ms=TWO_DAYS_MS)
    time.sleep(10 * SWEPT_EVERY_MS / 1000)
    statistics = scenario.finish(scenario.life(*MORE))
    assert (statistics["batches_resumed"], statistics["identities_renewed"]) == (0, LANES)
    assert statistics["recovered_in_kafka"] > 0
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)
