"""A day of outages leaves nothing: some hours of it here, the whole of it in `make prove WHAT=day`."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.day import MEMORY, Day, run_day
from tests.crash.judgement import Verdict
from tests.crash.pace import Look
from tests.prove.day import too_little
from tests.support.broker import KafkaCluster

BEFORE = Look(
    at=0.0,
    calls=0,
    p50_us=0.0,
    p99_us=0.0,
    resident=50 << 20,
    delivered=0,
    waiting=0,
    allocated=5 << 20,
    descriptors=20,
    threads=3,
    tasks=17,
)
FINE = Verdict(
    accepted=1,
    delivered=1,
    confirmed=1,
    missing=[],
    repeated=0,
    repeats=[],
    out_of_order=[],
    altered=[],
    untold=0,
    phantoms=[],
    complaints=[],
)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({}, []),
        ({"resident": BEFORE.resident + MEMORY}, ["memory"]),
        ({"allocated": 20 << 20}, ["the ring's file"]),
        ({"descriptors": 21}, ["descriptors"]),
        ({"threads": 4}, ["threads"]),
        ({"tasks": 18}, ["tasks"]),
    ],
)
def test_what_is_left_of_a_day_is_seen(change: dict[str, int], left: list[str]) -> None:
    assert Day(FINE, BEFORE, replace(BEFORE, **change), 0, Counter()).left() == left


def test_a_run_in_which_nothing_was_accepted_is_not_ok() -> None:
    assert FINE.ok
    assert not replace(FINE, accepted=0, delivered=0, confirmed=0).ok


@pytest.mark.parametrize("quiet", ["kill all", "roll", "dark", "freeze", "kill", "accepted"])
def test_a_day_on_which_too_little_happens_proves_nothing(quiet: str) -> None:
    happened = Counter({"kill all": 1, "roll": 1, "dark": 4, "freeze": 12, "kill": 6, "accepted": 120_000})
    for enough in (happened, happened - Counter({quiet: 1})):
        faults = Counter({kind: times for kind, times in enough.items() if kind != "accepted"})
        day = Day(replace(FINE, accepted=enough["accepted"]), BEFORE, BEFORE, 0, faults)
        assert bool(too_little(day, 24)) == (enough is not happened), enough
        assert not too_little(day, 2), "it is over before all of that has come"


@pytest.mark.timeout(300)
def test_some_hours_of_traffic_and_outages_lose_and_repeat_nothing(mortal3: KafkaCluster, tmp_path: Path) -> None:
    day = run_day(mortal3, tmp_path, seed=3, hours=2, hour_s=4.0, rate=3_000, rest=1.0)
    assert day.verdict.ok, str(day)
    assert day.verdict.repeated == 0, str(day)
    assert day.verdict.accepted > 3_000
    assert day.faults["dark"] == 1
    assert "memory" not in day.left(), str(day)
