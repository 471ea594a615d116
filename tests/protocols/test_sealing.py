"""Why a slot is sealed before the next header is stored: nobody has to read what a killed process left to count it.

No record needs that order (`tests.protocols.test_protocols`); what is told before anything is read does.
"""

import pytest

from tests.protocols.explore import Scenario, ways
from tests.protocols.faults import no_seal, sealed_behind_the_next_header
from tests.protocols.oracle import ViolationError, demand
from tests.protocols.world import Moment, State, World, disk_of
from tests.wal.planted import Fault, Patch

MAX_SLOTS = 8


def publish(world: World) -> None:
    """Two records fill a slot."""
    world.open()
    world.append("a1", "b1", "a2", "b2", "a3")


def killed_at_each_moment() -> int:
    """How many moments there are."""
    (world,) = ways(Scenario("publish", [publish], max_slots=MAX_SLOTS), State(), 0)
    for moment, label in world.moments.items():
        _judge(moment, label)
    return len(world.moments)


def _judge(moment: Moment, label: str) -> None:
    with_nothing_read = disk_of([span.live for span in moment.spans], boots=1, max_slots=MAX_SLOTS).open()
    try:
        ring = with_nothing_read.ring
        newest = ring.live[-1:]
        still_open = [slot for slot in ring.live if not slot.sealed]
        demand(still_open in ([], newest), "only the newest slot is open", label, len(still_open))
        told, left = ring.unread(), sum(slot.count for slot in ring.live if slot not in still_open)
        accepted = len(moment.facts.accepted)
        begun = told - left  # of the open one the first frame alone, as the opening looks at it
        known = left >= accepted - 2 and 0 <= begun <= len(still_open)
        demand(known, "what stands in the others is known unread", label, told, left, accepted)
    finally:
        with_nothing_read.close()


def test_of_a_killed_process_only_the_newest_slot_is_open() -> None:
    assert killed_at_each_moment() > 30


@pytest.mark.parametrize("fault", [no_seal, sealed_behind_the_next_header])
def test_a_slot_that_is_sealed_late_or_never_is_missed(fault: Fault, monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(ViolationError):
        killed_at_each_moment()
