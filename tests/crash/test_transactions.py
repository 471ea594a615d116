"""Exactly once: killed in each step of a transaction, taken over by a copy, among brokers that fail.

What is committed is read by a plain consumer, and judged by record id.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient, CoordinationType
from confluent_kafka.admin import AdminClient

from aiorecover.cli.inspection import inspect
from tests.crash.crash_points import TRANSACTION_POINTS
from tests.crash.judgement import Verdict
from tests.crash.lives import Child
from tests.crash.scenario import FLUSH, Scenario
from tests.prove.transactions import prove, too_little
from tests.support import admin
from tests.support.broker import Cluster, KafkaCluster

pytestmark = pytest.mark.timeout(240)


LANES = 6
TIMES = (1, 4)
LEAST = 20  # records in three or four lives: hundreds and more
CYCLES = 10
LONG = 500  # of them: `make prove WHAT=transactions`
SEED = 640  # freezes a broker at once and kills one a second later
_DIES_WITHIN_S = 30.0  # it takes a fraction of a second
_FENCED_S = 30.0  # until it sees that it was taken over from; it takes a second
_THAWED_S = 0.5  # until a process that sees it has tried all it still can


def until(true: Callable[[], bool], limit: float) -> None:
    give_up_at = time.monotonic() + limit
    while not true():
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


@pytest.mark.parametrize("point", TRANSACTION_POINTS)
def test_killed_in_each_step_everything_is_committed_once_and_in_order(
    kafka3: Cluster, tmp_path: Path, point: str
) -> None:
    scenario = Scenario(kafka3, tmp_path, lanes=LANES, exactly_once=True)
    for times in TIMES:
        child = scenario.life(("publish", {"rate": 5_000}), crash=(point, times))
        assert child.wait_dead(_DIES_WITHIN_S), f"never reached: {point} {times} times"
        scenario.ledger.take(child)
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.accepted > LEAST


def test_nothing_is_missing_repeated_or_out_of_order_after_ten_kills(mortal3: KafkaCluster) -> None:
    assert prove(mortal3, SEED, CYCLES) == 0


@pytest.mark.parametrize("quiet", ["freeze", "kill", "kills", "recovered", "crashed", "accepted"])
def test_a_run_in_which_too_little_happens_proves_nothing(quiet: str) -> None:
    cycles = 2 * CYCLES
    enough = Counter(freeze=1, kill=1, kills=cycles, recovered=cycles, crashed=cycles, accepted=1_000 * cycles)
    assert not too_little(enough, cycles)
    enough[quiet] = 0
    assert too_little(enough, cycles)


@pytest.mark.parametrize("quiet", ["kill all", "roll", "freeze", "kill", "kills"])
def test_a_long_run_has_killed_all_brokers_and_rolled_them_and_the_longer_it_is_the_more_went_wrong(quiet: str) -> None:
    enough = Counter({"kill all": 1, "roll": 1, "freeze": LONG // 10, "kill": LONG // 25, "kills": LONG * 3 // 4})
    enough |= Counter(recovered=LONG, crashed=LONG, accepted=1_000 * LONG)
    assert not too_little(enough, LONG)
    enough[quiet] -= 1
    assert too_little(enough, LONG)


@pytest.mark.parametrize(("point", "times"), [("after the send", 8), ("when the commit is sent", 3)])
def test_a_process_that_a_copy_has_taken_over_from_commits_nothing_more(
    kafka3: Cluster, tmp_path: Path, point: str, times: int
) -> None:
    """Frozen with batches in a transaction; all that it held is committed by the copy, and by nobody else.

    What it accepts once it is thawed is committed by its own next start.
    """
    scenario = Scenario(kafka3, tmp_path, lanes=LANES, exactly_once=True)
    original = scenario.wal_dir
    zombie, held = taken_over(scenario, point, times)
    there = scenario.committed()
    zombie.go_on()
    zombie.tell()  # else, where its commit had come through, nothing is left for which it would ask Kafka
    log = tmp_path / "children.log"
    until(lambda: "another process delivers a copy of this directory" in log.read_text(), _FENCED_S)
    time.sleep(_THAWED_S)
    scenario.kill(zombie)
    assert scenario.committed() == there  # nor any of what it had accepted when the copy was made, or has since
    found = scenario.examine()
    assert found.repeated == 0, str(found)
    assert not found.out_of_order, str(found)
    assert held.isdisjoint(found.missing), str(found)
    scenario.use(original)  # what it had accepted since is in its ring, until its next start
    found = scenario.verdict()
    assert (found.missing, found.repeated, found.altered) == ([], 0, []), str(found)


def taken_over(scenario: Scenario, point: str, times: int) -> tuple[Child, set[str]]:
    """One that is frozen, whose copy has delivered all that it held and more; and the ids of what the copy held."""
    zombie = scenario.life(
        ("publish", {"count": 500}),
        FLUSH,
        ("publish", {"count": 5_000}),
        ("wait", {}),
        ("publish", {"count": 100}),
        ("wait", {}),
        still=(point, times),
    )
    zombie.wait_still()
    scenario.use(scenario.copy())
    held = {one["id"] for one in inspect(scenario.wal_dir, 100_000)[0]["records"]}
    scenario.finish(scenario.life(FLUSH, ("publish", {"count": 1_000}), FLUSH))
    return zombie, held


@pytest.mark.parametrize("coordinator", [CoordinationType.TRANSACTION, CoordinationType.GROUP])
def test_where_a_coordinator_dies_everything_is_committed_once(
    mortal3: KafkaCluster, tmp_path: Path, coordinator: int
) -> None:
    """Of the transaction, or of the position: right when it is asked; and with it leaders of partitions."""
    scenario = Scenario(mortal3, tmp_path, lanes=LANES, exactly_once=True)
    child = scenario.life(*(("publish", {"count": 300}), FLUSH) * 3, still=("when the commit is sent", 3))
    child.wait_still()
    found = admin.run(coordinator_of(mortal3, coordinator, group_in(scenario.wal_dir)))
    (node,) = (node for node in mortal3.nodes if node.node_id == found)
    node.kill()
    child.go_on()
    scenario.finish(child)
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)
    assert verdict.accepted == verdict.delivered == 900


def group_in(wal_dir: Path) -> str:
    """What the position is committed for: the directory, as it stands at the beginning of each of its ids."""
    return f"aiorecover-{inspect(wal_dir, 0)[0]['producer_id'][:7]}aaaaaa"


async def coordinator_of(cluster: Cluster, kind: int, name: str) -> int:
    client = AIOKafkaClient(bootstrap_servers=cluster.bootstrap_servers)
    await client.bootstrap()
    try:
        node_id: int = await client.coordinator_lookup(kind, name)
        return node_id
    finally:
        await client.close()


@pytest.mark.parametrize("dies", [None, "when a partition is added"])
def test_what_a_restored_copy_accepts_is_committed_though_the_original_went_on_and_it_dies_at_its_first_start(
    kafka: Cluster, tmp_path: Path, dies: str | None
) -> None:
    scenario = Scenario(kafka, tmp_path, lanes=LANES, exactly_once=True)
    scenario.finish(scenario.life(("publish", {"count": 500}), FLUSH))
    held = scenario.copy()
    for _ in range(2):
        scenario.finish(scenario.life(("publish", {"count": 1_000}), FLUSH))
    scenario.use(held)
    if dies is not None:
        child = scenario.life(("publish", {"rate": 5_000}), crash=(dies, 1))
        assert child.wait_dead(_DIES_WITHIN_S)
        scenario.ledger.take(child)
    scenario.finish(scenario.life(("publish", {"count": 100}), FLUSH))
    assert_each_once_and_in_the_order_of_its_opening(scenario)


@pytest.mark.parametrize("goes_on", [True, False], ids=["the original goes on first", "the original is lost"])
def test_a_snapshot_that_is_restored_on_another_machine_commits_each_record_once_and_in_order(
    kafka: Cluster, tmp_path: Path, goes_on: bool
) -> None:
    """Another path, other inodes and another boot, all at once; of what it held some is committed and not settled."""
    scenario = Scenario(kafka, tmp_path, lanes=LANES, exactly_once=True)
    for point in ("when the commit is sent", "after the send"):
        child = scenario.life(("publish", {"rate": 5_000}), crash=(point, 3), boot_id="here")
        assert child.wait_dead(_DIES_WITHIN_S)
        scenario.ledger.take(child)
    original, held = scenario.wal_dir, scenario.copy()
    assert (original / "0" / "ring").stat().st_ino != (held / "0" / "ring").stat().st_ino
    if goes_on:
        scenario.finish(scenario.life(("publish", {"count": 1_000}), FLUSH, boot_id="here"))
    shutil.rmtree(original)
    scenario.use(held)
    for point in ("when a partition is added", "when the commit is sent"):
        child = scenario.life(("publish", {"rate": 5_000}), crash=(point, 3), boot_id="there")
        assert child.wait_dead(_DIES_WITHIN_S)
        scenario.ledger.take(child)
    scenario.finish(scenario.life(("publish", {"count": 100}), FLUSH, boot_id="there"))
    found = assert_each_once_and_in_the_order_of_its_opening(scenario)
    assert goes_on or found.ok, str(found)


def assert_each_once_and_in_the_order_of_its_opening(scenario: Scenario) -> Verdict:
    """Record by record. Two that opened the same directory have no order between them: each has one of its own."""
    found = scenario.examine()
    faults = (found.missing, found.repeats, found.altered, found.phantoms, found.complaints)
    assert faults == ([], [], [], [], []), str(found)
    assert found.accepted == found.delivered > LEAST
    last: dict[tuple[int, str], int] = {}
    for record in scenario.committed():
        opening, _, sequence = (record.record_id or "").rpartition("/")
        assert int(sequence) > last.get((record.partition, opening), 0), record
        last[record.partition, opening] = int(sequence)
    return found


def test_what_a_copy_has_not_committed_when_it_dies_is_committed_by_the_next_one(
    kafka: Cluster, tmp_path: Path
) -> None:
    """The first heir has said that it is there, and dies; the second is restored from the same copy."""
    scenario = Scenario(kafka, tmp_path, lanes=LANES, exactly_once=True)
    scenario.finish(scenario.life(("publish", {"count": 500}), FLUSH))
    child = scenario.life(("publish", {"rate": 5_000}), crash=("when the group is added", 3))
    assert child.wait_dead(_DIES_WITHIN_S)
    scenario.ledger.take(child)
    held = scenario.copy()
    heir = scenario.life(crash=("when the group is added", 1))
    assert heir.wait_dead(_DIES_WITHIN_S)
    scenario.use(held)
    found = scenario.verdict()
    assert (found.missing, found.repeated) == ([], 0), str(found)


# -- conditions --------------------------------------------------------------------------------------------------------


def test_after_a_power_cut_in_a_transaction_everything_is_committed_once_and_in_order(
    kafka: Cluster, tmp_path: Path
) -> None:
    scenario = Scenario(kafka, tmp_path, lanes=LANES, exactly_once=True)
    for number, point in enumerate(("when the commit is sent", "after the send", "when the position is sent")):
        child = scenario.life(("publish", {"rate": 5_000}), crash=(point, 3), boot_id=f"boot-{number}")
        assert child.wait_dead(_DIES_WITHIN_S)
        scenario.ledger.take(child)
    verdict = scenario.verdict(boot_id="boot-last")
    assert verdict.ok, str(verdict)


def test_without_any_checkpoint_everything_is_committed_once_and_in_order(kafka: Cluster, tmp_path: Path) -> None:
    scenario = Scenario(kafka, tmp_path, lanes=LANES, exactly_once=True)
    for point in ("when the commit is sent", "when the group is added"):
        child = scenario.life(("publish", {"rate": 5_000}), crash=(point, 3))
        assert child.wait_dead(_DIES_WITHIN_S)
        scenario.ledger.take(child)
        checkpoint = scenario.wal_dir / "0" / "checkpoint"
        checkpoint.write_bytes(b"\xa5" * checkpoint.stat().st_size)
    found = scenario.verdict()
    assert (found.missing, found.repeated, found.out_of_order) == ([], 0, []), str(found)


def test_without_the_position_nothing_is_lost_and_a_line_says_so(kafka: Cluster, tmp_path: Path) -> None:
    scenario = Scenario(kafka, tmp_path, lanes=LANES, exactly_once=True)
    child = scenario.life(("publish", {"rate": 5_000}), crash=("when the group is added", 3))
    assert child.wait_dead(_DIES_WITHIN_S)
    scenario.ledger.take(child)
    forget_groups(kafka)
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)
    assert "kafka has no position of this directory any more" in (tmp_path / "children.log").read_text()


def forget_groups(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    for answer in admin.delete_consumer_groups([name for name in groups if name.startswith("aiorecover-")]).values():
        answer.result()


def test_what_is_committed_and_not_settled_does_not_expire_at_the_next_start(kafka: Cluster, tmp_path: Path) -> None:
    """Neither while no broker can be reached, nor later: whoever went by its letter would publish it again."""
    scenario = Scenario(kafka, tmp_path, lanes=LANES, exactly_once=True)
    age: dict[str, Any] = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 500}
    child = scenario.life(("publish", {"count": 300}), ("wait", {}), crash=("when the commit is sent", 2), **age)
    assert child.wait_dead(_DIES_WITHIN_S)
    scenario.ledger.take(child)
    time.sleep(1.5)
    away = scenario.life(("wait", {}), servers="127.0.0.1:1", stop_timeout_ms=100, **age)
    away.wait_for("wait")
    time.sleep(1)
    away.tell()
    letters = scenario.finish(away)["dead_lettered"]
    letters += scenario.finish(scenario.life(FLUSH, **age))["dead_lettered"]
    found = scenario.examine()
    assert (found.repeated, letters + found.delivered) == (0, found.accepted), f"{letters=} {found}"
