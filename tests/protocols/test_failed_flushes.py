"""Each flush of a small case fails: the promises hold; with each rule about that taken away in turn, they do not."""

import pytest

from tests.protocols.explore import Explorer, Scenario
from tests.protocols.failed_flush_faults import PLANTED
from tests.protocols.failed_flushes import SMALL
from tests.protocols.faults import Fault
from tests.protocols.oracle import ViolationError

BY_NAME = {scenario.name: scenario for scenario in SMALL}


@pytest.mark.parametrize("scenario", SMALL, ids=[scenario.name for scenario in SMALL])
def test_every_crash_behind_a_flush_that_failed_keeps_the_promises(scenario: Scenario) -> None:
    count = Explorer(scenario).run()
    assert count.states >= count.moments > 0


@pytest.mark.parametrize(("fault", "name"), PLANTED.items(), ids=[fault.__name__ for fault in PLANTED])
def test_a_rule_about_failed_flushes_that_is_taken_away_is_missed(
    fault: Fault, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(ViolationError):
        Explorer(BY_NAME[f"{name}, failing"]).run()
