"""What is in flight is sent again as it was, or not trusted; between two copies anything may be done."""

import pytest

from tests.protocols.batch_faults import PLANTED
from tests.protocols.batches import SMALL
from tests.protocols.explore import Explorer, Scenario
from tests.protocols.faults import Fault
from tests.protocols.oracle import ViolationError

BY_NAME = {scenario.name: scenario for scenario in SMALL}


@pytest.mark.parametrize("scenario", SMALL, ids=[scenario.name for scenario in SMALL])
def test_every_crash_around_a_batch_or_between_two_copies_keeps_the_promises(scenario: Scenario) -> None:
    count = Explorer(scenario).run()
    assert count.states >= count.moments > 0


@pytest.mark.parametrize(("fault", "name"), PLANTED.items(), ids=[fault.__name__ for fault in PLANTED])
def test_a_rule_about_batches_that_is_taken_away_is_missed(
    fault: Fault, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(ViolationError):
        Explorer(BY_NAME[name]).run()
