"""Every small case is green, and with each rule taken away in turn, red; what is no rule may be done otherwise."""

import pytest

from tests.protocols.explore import Explorer, Scenario
from tests.protocols.faults import FREE, PLANTED, Fault
from tests.protocols.oracle import ViolationError
from tests.protocols.scenarios import SMALL

BY_NAME = {scenario.name: scenario for scenario in SMALL}


@pytest.mark.parametrize("scenario", SMALL, ids=[scenario.name for scenario in SMALL])
def test_every_crash_of_a_small_case_keeps_the_promises(scenario: Scenario) -> None:
    count = Explorer(scenario).run()
    assert count.states >= count.moments > 0


@pytest.mark.parametrize(("fault", "name"), PLANTED.items(), ids=[fault.__name__ for fault in PLANTED])
def test_a_rule_that_is_taken_away_is_missed(fault: Fault, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(ViolationError):
        Explorer(BY_NAME[name]).run()


@pytest.mark.parametrize(("otherwise", "name"), FREE.items(), ids=[otherwise.__name__ for otherwise in FREE])
def test_no_promise_relies_on_what_may_be_done_otherwise(
    otherwise: Fault, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    otherwise(monkeypatch)
    Explorer(BY_NAME[name]).run()
