"""Where no identity can be trusted, the tails of the lanes are read back: nothing that came through is sent again."""

from pathlib import Path
from typing import Any

import pytest

from tests.crash.flights import LANES, die_unanswered
from tests.crash.scenario import FLUSH, Scenario, Step
from tests.crash.test_directory_conditions import consumed
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour
from tests.support.suffixes import torn_suffixes

pytestmark = pytest.mark.timeout(240)

NOBODY = "127.0.0.1:9"  # who listens there
MORE: list[Step] = [("publish", {"count": 600, "rate": 3_000}), FLUSH]


@pytest.fixture
def scenario(detoured: KafkaCluster, detour: Detour, tmp_path: Path) -> Scenario:
    return Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers)


CONDITIONS: dict[str, dict[str, Any]] = {
    "another boot": {"boot_id": "another"},
    "too long a pause": {"hours_later": 25},  # what Kafka keeps an identity, and an hour
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("check", [True, False])
def test_where_no_identity_is_trusted_nothing_stands_twice_with_the_check_and_something_without(
    scenario: Scenario, detour: Detour, check: bool, condition: str
) -> None:
    die_unanswered(scenario, detour)
    statistics = scenario.finish(scenario.life(*MORE, recovery_check=check, **CONDITIONS[condition]))
    verdict = scenario.verdict(once=False, **CONDITIONS[condition])
    print(verdict, statistics)
    assert verdict.ok, str(verdict)
    assert (verdict.repeated == 0) == check
    assert (statistics["recovered_in_kafka"] > 0) == check
    assert statistics["identities_renewed"] == LANES
    assert torn_suffixes(consumed(scenario)) == []


def test_without_the_check_what_kafka_still_remembers_is_sent_as_it_was_and_recognised(
    scenario: Scenario, detour: Detour
) -> None:
    """With it the same pause is too long: half of what Kafka keeps is left for a broker to come back."""
    die_unanswered(scenario, detour)
    statistics = scenario.finish(scenario.life(*MORE, recovery_check=False, hours_later=13))
    verdict = scenario.verdict()
    print(verdict, statistics)
    assert verdict.ok, str(verdict)
    assert (statistics["identities_renewed"], statistics["batches_resumed"]) == (0, LANES)


def test_a_start_that_dies_before_it_has_looked_leaves_it_to_the_next_one(scenario: Scenario, detour: Detour) -> None:
    """As a service in a loop of crashes does after too long a pause."""
    die_unanswered(scenario, detour)
    for _ in range(2):
        child = scenario.life(("wait", {}), hours_later=13, servers=NOBODY)
        child.wait_for("wait")
        scenario.kill(child)
    statistics = scenario.finish(scenario.life(*MORE, hours_later=13))
    assert (statistics["identities_renewed"], statistics["batches_resumed"]) == (LANES, 0)
    assert statistics["recovered_in_kafka"] > 0
    assert scenario.finish(scenario.life(*MORE, hours_later=13))["identities_renewed"] == 0, "all of it is settled"
    verdict = scenario.verdict(hours_later=13)
    print(verdict)
    assert verdict.ok, str(verdict)
