"""What a full disk may cost in an outage is judged; the outage is `make prove WHAT=full_disk`, in short `tests.faults`.

And what is refused is counted apart from what is accepted.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.full_disk import ACCEPTED_S, AGAIN_S, FILE, LEFT, FullDisk, Stretch, disk_bytes
from tests.crash.outages import MEMORY, RESUMED_S
from tests.crash.pace import looks
from tests.crash.scenario import SLOT_BYTES, Scenario
from tests.crash.test_day import FINE as ALL_THERE
from tests.support.broker import KafkaCluster

pytestmark = pytest.mark.timeout(240)

RATE = 5_000
MANY = 30 * RATE
SECONDS = 1.0  # of publishing: six slots of 16 KiB are full in a fraction of one
NOWHERE = "127.0.0.1:1"  # no broker listens there
STRETCHES = {
    "before": Stretch(MANY, 0),
    "alone": Stretch(MANY, 0),
    "stranger": Stretch(RATE, MANY),
    "freed": Stretch(MANY, MANY),
    "healed": Stretch(MANY, 0),
}
FINE = FullDisk(
    ALL_THERE,
    rate=RATE,
    seconds=300.0,
    disk=200 << 20,
    left=[0, LEFT[1] - 1],
    stretches=STRETCHES,
    told=["full the disk is full: wait for delivery to free space, or free space on the disk ring=ring"],
    accepted_s=0.2,
    resumed_s=0.5,
    again_s=5.0,
    memory=0,
    memory_left=0,
    file_most=150 << 20,
    file_left=0,
)


def with_stretch(name: str, accepted: int, refused: int) -> dict[str, Any]:
    return {"stretches": {**STRETCHES, name: Stretch(accepted, refused)}}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"memory": MEMORY}, "memory"),
        ({"memory_left": MEMORY}, "memory is left"),
        ({"file_left": FILE + 1}, "the file is not small again"),
        ({"accepted_s": ACCEPTED_S + 0.1}, "not accepted in time on a disk that was freed"),
        ({"accepted_s": float("inf")}, "not accepted in time on a disk that was freed"),
        ({"resumed_s": RESUMED_S + 0.1}, "not resumed in time"),
        ({"again_s": AGAIN_S + 0.1}, "not accepted in time when the brokers were back"),
        (with_stretch("before", MANY, 1), "refused although there was room: before"),
        (with_stretch("alone", MANY, 1), "refused although there was room: alone"),
        (with_stretch("healed", MANY, 1), "refused although there was room: healed"),
        ({"told": ["full the ring is full: wait for delivery to free space"]}, "not told that the disk is full"),
    ],
)
def test_what_a_full_disk_costs_is_judged(change: dict[str, Any], told: str) -> None:
    assert FINE.wrong() == []
    (wrong,) = replace(FINE, **change).wrong()
    assert told in wrong


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (with_stretch("stranger", MANY, 4 * RATE), "refused beside the stranger=20000 expected>=25000"),
        (with_stretch("freed", MANY, 4 * RATE), "refused behind him=20000"),
        (with_stretch("freed", 4 * RATE, MANY), "accepted behind him=20000"),
        (with_stretch("healed", 0, 0), "accepted once healed=0"),
        ({"left": [LEFT[0], 0]}, "the disk was not full"),
        ({"left": [0, LEFT[1]]}, "the disk was not full"),
    ],
)
def test_a_disk_that_was_hardly_full_proves_nothing(change: dict[str, Any], told: str) -> None:
    assert FINE.too_little() == []
    (little,) = replace(FINE, **change).too_little()
    assert told in little


def test_a_record_that_is_repeated_is_not_ok() -> None:
    assert FINE.ok
    assert not replace(FINE, verdict=replace(ALL_THERE, repeated=1)).ok


def test_a_longer_outage_has_a_larger_disk_which_it_fills() -> None:
    frames = 0.75 * 600.0 * RATE * 176  # without the stranger's quarter
    assert disk_bytes(300.0, RATE) < disk_bytes(600.0, RATE) < frames


def test_what_is_refused_is_counted_and_what_is_accepted_is_there_once(mortal: KafkaCluster, tmp_path: Path) -> None:
    scenario = Scenario(mortal, tmp_path, lanes=2)
    publish = "publish", {"rate": 2_000, "seconds": SECONDS, "may_fill": True}
    most = 6 * SLOT_BYTES
    child = scenario.life(publish, ("wait", {}), paced=True, servers=NOWHERE, wal_max_bytes=most)
    child.wait_for("wait")
    scenario.kill(child)
    verdict = scenario.verdict(wal_max_bytes=most)
    assert verdict.ok, str(verdict)
    assert sum(look.calls for look in looks(child.words)) <= verdict.accepted < most // 100
    assert sum(look.refused for look in looks(child.words)) > verdict.accepted
    assert len([line for line in child.words if line.startswith("full the ring is full")]) == 1
