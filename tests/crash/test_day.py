"""A day of outages leaves nothing: some hours of it here, the whole of it in `make prove WHAT=day`."""

from collections import Counter
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from tests.crash.day import MEMORY, Day, run_day, traffic_of
from tests.crash.judgement import Verdict
from tests.crash.pace import Look
from tests.prove.day import too_little
from tests.support.broker import KafkaCluster

TRAFFIC = [rate * 25 for rate in traffic_of(0, 24, 5_000)]  # records of each hour of `make prove WHAT=day`
LEAK = 12  # bytes of each: at the end of such a day less than `MEMORY`
OUTAGE = [50, 50, 90, 50, 90, 51]  # megabytes in six hours, two of them without a broker
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


@pytest.mark.parametrize("leak", [0, LEAK])
def test_what_is_lost_with_each_record_is_seen_though_the_day_ends_nearly_as_it_began(leak: int) -> None:
    lost = [leak * records for records in accumulate(TRAFFIC, initial=0)]
    assert lost[-1] < MEMORY
    after = replace(BEFORE, resident=BEFORE.resident + lost[-1])
    day = Day(FINE, BEFORE, after, 0, Counter(), [BEFORE.resident + each for each in lost[:-1]])
    assert day.left() == (["memory that creeps up"] if leak else [])


@pytest.mark.parametrize(
    "megabytes",
    [
        [41] * 8 + [43, 44, 44, 44, 46, 51, 51, 51, 51, 51, 50, 50, 50, 52, 52, 52],  # as it was, beside other work
        [50] * 18 + OUTAGE,
        [50] * 12 + OUTAGE + [50] * 6,
        [50] * 12 + [47] * 12,
        [50, 50, 90],  # too few hours to tell
        [],
    ],
)
def test_what_a_process_takes_until_it_is_warm_and_holds_for_some_hours_does_not_creep_up(megabytes: list[int]) -> None:
    assert Day(FINE, BEFORE, BEFORE, 0, Counter(), [each << 20 for each in megabytes]).left() == []


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
    """What else is left, connections of a session that is idle for a minute, is looked at by the proof alone."""
    day = run_day(mortal3, tmp_path, seed=3, hours=2, hour_s=4.0, rate=3_000, rest=4.0)
    assert day.verdict.ok, str(day)
    assert day.verdict.repeated == 0, str(day)
    assert day.verdict.accepted > 3_000
    assert day.faults["dark"] == 1
    assert not {"memory", "the ring's file", "threads"} & {*day.left()}, str(day)
