"""A check that never goes red proves nothing: each fault is planted, seen, and not seen where it was not planted.

Every scenario is made so that its fault cannot hide: what must be in flight is held there by a paused broker, what
must be left in the ring has no broker to go to.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.flights import die_before_a_paused_broker
from tests.crash.judgement import Verdict
from tests.crash.lives import ChildFailedError
from tests.crash.planted import FAULTS
from tests.crash.scenario import FLUSH, SLOT_BYTES, Scenario, Step
from tests.support import admin
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour

pytestmark = pytest.mark.timeout(240)

NOWHERE = "127.0.0.1:1"  # no broker listens there
AGE_MS = 70_000  # of a timestamp: more than a minute, and it was wrong from the start; else its record would wait
TOO_OLD_MS = AGE_MS + 2_800  # a request without an answer is given up after 3 s: then its batch is, and others are not
COUNTED_WITHIN_S = 20.0  # it is looked at many times a second
HEEDED_S = 1.0  # until a broker heeds a topic's new configuration


def in_flight_when_everything_dies(scenario: Scenario, fault: str | None) -> Verdict:
    """Handed over, never acknowledged: the publisher dies, and the broker with all that its sockets held."""
    node = scenario.cluster.nodes[0]
    child = scenario.life(
        ("publish", {"count": 100}),
        FLUSH,
        ("wait", {}),
        ("publish", {"count": 500}),
        ("wait_in_flight", {}),
        ("wait", {}),
        fault=fault,
    )
    child.wait_for("wait")
    node.pause()
    child.tell()
    child.wait_for("wait", times=2)
    scenario.kill(child)
    node.kill()
    node.start()
    scenario.cluster.wait_ready()
    return scenario.verdict()


def delivered_before_the_kill(scenario: Scenario, fault: str | None) -> Verdict:
    """Delivered, and told: by settle words alone, for there is no checkpoint in between."""
    steps: list[Step] = [("publish", {"count": 70}), FLUSH, ("publish", {"count": 1}), FLUSH, ("wait", {})]
    child = scenario.life(*steps, fault=fault, checkpoint_interval_ms=600_000)
    child.wait_for("wait")
    scenario.kill(child)
    return scenario.verdict()


def waiting_in_slots_that_are_left(scenario: Scenario, fault: str | None) -> Verdict:
    """Nothing can be delivered, slot after slot is left: none may be taken again."""
    recycled: Step = ("wait_used_below", {"limit": 3 * SLOT_BYTES, "seconds": 0.5 if fault is None else 30.0})
    child = scenario.life(*[("publish", {"count": 1_000}), recycled] * 3, ("wait", {}), fault=fault, servers=NOWHERE)
    child.wait_for("wait")
    scenario.kill(child)
    return scenario.verdict()


def behind_the_end_of_a_slot_that_was_used_before(scenario: Scenario, fault: str | None) -> Verdict:
    """The slot that a kill left open holds few frames, and behind them those of an earlier life."""
    recycled: Step = ("wait_used_below", {"limit": 3 * SLOT_BYTES, "seconds": 30.0})
    scenario.finish(scenario.life(*[("publish", {"count": 1_000}), FLUSH, recycled] * 2))
    # Some 90 fit a slot: two are filled, for the first may be one that was never used, and the third is begun.
    child = scenario.life(("publish", {"count": 200}), ("wait", {}), servers=NOWHERE)
    child.wait_for("wait")
    scenario.kill(child)
    scenario.finish(scenario.life(FLUSH, fault=fault))
    return scenario.verdict()


def an_opening_after_another(scenario: Scenario, fault: str | None) -> Verdict:
    scenario.finish(scenario.life(("publish", {"count": 50}), FLUSH))
    scenario.finish(scenario.life(("publish", {"count": 50}), FLUSH, fault=fault))
    return scenario.examine()  # all was flushed; and a next opening would refuse what the fault leaves


def many_batches_of_one_lane(scenario: Scenario, fault: str | None) -> Verdict:
    """A paused broker holds one batch while others become ready behind it."""
    node = scenario.cluster.nodes[0]
    child = scenario.life(
        ("publish", {"count": 10}),
        FLUSH,
        ("wait", {}),
        ("publish", {"count": 2_000}),
        ("wait", {}),
        FLUSH,
        fault=fault,
    )
    child.wait_for("wait")
    node.pause()
    child.tell()
    child.wait_for("wait", times=2)
    node.resume()
    child.tell()
    scenario.finish(child)
    return scenario.verdict()


def batches_of_one_record_each(scenario: Scenario, fault: str | None) -> Verdict:
    scenario.finish(scenario.life(*[("publish", {"count": 1}), FLUSH] * 10, fault=fault))
    return scenario.verdict()


def refused_after_it_was_appended(scenario: Scenario, fault: str | None) -> Verdict:
    """The answer to a batch is lost, and when it is sent again the topic has become stricter: too old.

    The broker looks at a timestamp before it looks whether it has the batch already. Those that follow are as long as
    the one that was refused.
    """
    cluster = scenario.cluster
    assert isinstance(cluster, KafkaCluster)
    with Detour(cluster.detour_routes) as detour:
        child = scenario.life(
            ("publish", {"count": 10}),
            FLUSH,
            ("wait", {}),
            *[("publish", {"count": 1, "age_ms": AGE_MS}), FLUSH] * 4,
            ("wait", {}),
            fault=fault,
            servers=cluster.detour_servers,
        )
        child.wait_for("wait")
        strict = {"message.timestamp.before.max.ms": str(TOO_OLD_MS)}
        admin.run(admin.configure_topic(cluster.bootstrap_servers, scenario.topic, strict))
        time.sleep(HEEDED_S)
        detour.deafen()
        child.tell()
        child.wait_for("wait", times=2)
        child.tell()
        scenario.finish(child)
    return scenario.verdict()


def in_flight_when_the_publisher_dies(scenario: Scenario, fault: str | None) -> Verdict:
    die_before_a_paused_broker(scenario, fault=fault)
    scenario.finish(scenario.life(FLUSH, fault=fault))
    return scenario.verdict()


def a_copied_directory(scenario: Scenario, fault: str | None) -> Verdict:
    """The original and its copy both go on from the same entry, each with a record of its own.

    The copy is opened twice more, so that it has an epoch, and ids, of its own.
    """
    scenario.finish(scenario.life(("publish", {"count": 1}), FLUSH))
    copied = scenario.copy()
    scenario.finish(scenario.life(("publish", {"count": 1}), FLUSH, fault=fault))
    scenario.use(copied)
    for _ in range(2):
        scenario.finish(scenario.life(fault=fault))
    scenario.finish(scenario.life(("publish", {"count": 1}), FLUSH, fault=fault))
    return scenario.verdict()


def beside_a_worker_that_publishes(scenario: Scenario, fault: str | None) -> Verdict:
    """It always has some records that are not delivered, because it lingers; what the fault makes of it is killed."""
    neighbour = scenario.life(("wait", {}), fault=fault, instance="b", adoption_grace_ms=0)
    neighbour.wait_for("wait")
    flushed = [FLUSH] if fault is None else []
    steps: list[Step] = [("publish", {"rate": 1_000, "count": 4_000}), *flushed, ("wait", {})]
    owner = scenario.life(*steps, instance="a", linger_ms=200)
    owner.wait_for("wait")
    scenario.kill(owner)
    scenario.kill(neighbour)
    return scenario.verdict()


SCENARIOS: dict[str, tuple[Callable[[Scenario, str | None], Verdict], str]] = {
    "settle_at_hand_over": (in_flight_when_everything_dies, "missing"),
    "count_what_is_delivered_twice": (batches_of_one_record_each, "complaints"),
    "forget_to_settle": (delivered_before_the_kill, "repeats"),
    "recycle_what_waits": (waiting_in_slots_that_are_left, "missing"),
    "trust_every_frame": (behind_the_end_of_a_slot_that_was_used_before, "phantoms"),
    "open_without_a_new_epoch": (an_opening_after_another, "altered"),
    "send_the_newest_batch_first": (many_batches_of_one_lane, "out_of_order"),
    "stand_still_in_the_sequence": (batches_of_one_record_each, "missing"),
    "give_every_refused_sequence_back": (refused_after_it_was_appended, "missing"),
    "write_down_after_the_send": (in_flight_when_the_publisher_dies, "repeats"),
    "go_on_from_every_entry": (a_copied_directory, "missing"),
    "forget_what_was_in_flight": (in_flight_when_the_publisher_dies, "repeats"),
    "adopt_what_is_locked": (beside_a_worker_that_publishes, "repeats or missing"),
}
ON_THREE = ("go_on_from_every_entry", "give_every_refused_sequence_back")  # the third one is in test_delayed_batches
NOTICED = {"open_without_a_new_epoch": "a settle came for an earlier life of a slot"}


def test_every_fault_has_its_scenario() -> None:
    elsewhere = {
        "use_identities_of_another_cluster",  # both in test_other_cluster
        "send_to_any_cluster",
        "follow_without_a_fence",  # in test_delayed_batches
        "let_copies_count_that_were_not_made",  # in test_rewriting
        "stand_still_when_one_is_gone_back_for",  # in test_stalled
        "bury_behind_settling",  # both in test_letters
        "leave_letters_of_what_came_through",
        "commit_the_position_apart",  # these in test_transactions
        "settle_before_the_commit",
        "commit_without_the_answers",
        "go_on_beside_a_copy",
        "wait_less_for_transactions",
        "fail_a_flush",  # in test_crash_points
        "close_idle_sessions_soon",  # in test_day
        "commit_without_a_flush",  # both in test_cuts
        "tell_before_the_flush",
        "remember_a_source_too_many",  # both in test_etl
        "forget_sources_behind_the_checkpoint",
    }
    assert SCENARIOS.keys() | elsewhere == FAULTS.keys()


@pytest.mark.parametrize("fault", SCENARIOS)
def test_a_planted_fault_is_seen(mortal: KafkaCluster, tmp_path: Path, fault: str) -> None:
    scenario, kinds = SCENARIOS[fault]
    try:
        verdict = scenario(Scenario(mortal, tmp_path), fault)
    except ChildFailedError as error:  # a life that sees by itself that something is wrong
        if fault not in NOTICED or NOTICED[fault] not in str(error):
            raise
        return
    print(verdict)
    assert not verdict.ok
    assert any(getattr(verdict, kind) for kind in kinds.split(" or ")), str(verdict)


@pytest.mark.parametrize("fault", SCENARIOS)
def test_without_the_fault_the_same_scenario_is_green(mortal: KafkaCluster, tmp_path: Path, fault: str) -> None:
    scenario, _ = SCENARIOS[fault]
    verdict = scenario(Scenario(mortal, tmp_path), None)
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.accepted == verdict.delivered > 0


@pytest.mark.parametrize("fault", [None, "count_what_is_delivered_twice"])
def test_counts_that_do_not_add_up_are_seen_in_a_life_that_is_killed(
    mortal: KafkaCluster, tmp_path: Path, fault: str | None
) -> None:
    """It never tells its last ones."""
    scenario = Scenario(mortal, tmp_path)
    child = scenario.life(("publish", {"count": 50}), FLUSH, ("wait", {}), fault=fault)
    child.wait_for("wait" if fault is None else "uneven", COUNTED_WITHIN_S)
    scenario.kill(child)
    verdict = scenario.verdict()
    assert bool(verdict.complaints) is (fault is not None), str(verdict)


@pytest.mark.parametrize("planted", [True, False])
@pytest.mark.parametrize("fault", ON_THREE)
def test_the_journal_s_faults_are_seen_on_three_brokers_too(
    mortal3: KafkaCluster, tmp_path: Path, fault: str, planted: bool
) -> None:
    """Where repeats and identities are replicated, and two replicas have to be in sync."""
    scenario, kind = SCENARIOS[fault]
    verdict = scenario(Scenario(mortal3, tmp_path), fault if planted else None)
    print(verdict)
    assert verdict.ok != planted, str(verdict)
    assert bool(getattr(verdict, kind)) == planted, str(verdict)
