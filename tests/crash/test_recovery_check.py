"""Where no identity can be trusted, the tails of the lanes are read back: nothing that came through is sent again."""

import json
from pathlib import Path

import pytest

from tests.crash.flights import LANES, die_unanswered
from tests.crash.scenario import FLUSH, Scenario, Step
from tests.crash.test_directory_conditions import consumed
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour
from tests.support.suffixes import torn_suffixes

pytestmark = pytest.mark.timeout(240)

MORE: list[Step] = [("publish", {"count": 600, "rate": 3_000}), FLUSH]


@pytest.fixture
def scenario(detoured: KafkaCluster, detour: Detour, tmp_path: Path) -> Scenario:
    return Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers)


@pytest.mark.parametrize("check", [True, False])
def test_after_another_boot_nothing_stands_twice_with_the_check_and_something_without(
    scenario: Scenario, detour: Detour, check: bool
) -> None:
    die_unanswered(scenario, detour)
    child = scenario.life(*MORE, boot_id="another", recovery_check=check)
    scenario.finish(child)
    (stopped,) = [line for line in child.words if line.startswith("stopped ")]
    found = json.loads(stopped.removeprefix("stopped "))["recovered_in_kafka"]
    verdict = scenario.verdict(boot_id="another", once=False)
    print(verdict, f"found={found}")
    assert verdict.ok, str(verdict)
    assert (verdict.repeated == 0) == check
    assert (found > 0) == check
    assert torn_suffixes(consumed(scenario)) == []
