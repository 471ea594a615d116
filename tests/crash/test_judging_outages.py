"""What an outage may cost, and how long the ring's file is waited for; the outages themselves are `test_outages`."""

from dataclasses import replace
from typing import Any

import pytest

from tests.crash.outages import CUT_MOST, FILE, IDLE_LOOKS, MEMORY, Outage, Outcome, rest_s
from tests.crash.test_day import FINE

SLOT_BYTES = 16 << 20
OUTAGE = Outage(
    seconds=600.0, came=3_000_000.0, waiting=2_999_000, memory=0, resumed_s=0.2, slower_p50=1.0, slower_p99=0.8
)
OUTCOME = Outcome(FINE, [OUTAGE, OUTAGE], memory_left=0, file_left=0, file_most=2 * FILE)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"waiting": 2_600_000}, ["fewer records wait than came"]),
        ({"memory": MEMORY}, ["memory"]),
        ({"resumed_s": 1.1}, ["not resumed in time"]),
        ({"slower_p50": 1.3}, ["publish takes longer (p50)"]),
        ({"slower_p99": 1.3}, ["publish takes longer (p99)"]),
        ({"half_took_s": 60.0, "half_told_s": 40.0}, []),
        ({"half_took_s": 60.0, "half_told_s": 20.0}, ["it was told wrongly what catching up takes"]),
        ({"half_took_s": 20.0, "half_told_s": 60.0}, ["it was told wrongly what catching up takes"]),
        ({"half_took_s": 0.1, "half_told_s": 3.0}, []),
        ({"half_took_s": 1.0, "half_told_s": None}, []),
        ({"half_took_s": 60.0, "half_told_s": None}, ["it was told wrongly what catching up takes"]),
    ],
)
def test_what_an_outage_costs_is_judged(change: dict[str, Any], wrong: list[str]) -> None:
    outage = replace(OUTAGE, **change)
    assert outage.wrong() == wrong
    assert len(replace(OUTCOME, outages=[OUTAGE, outage]).wrong()) == len(wrong)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"file_left": None}, []),
        ({"memory_left": MEMORY}, ["memory is left"]),
        ({"file_left": FILE + SLOT_BYTES}, ["the file is not small again"]),
    ],
)
def test_what_outages_leave_is_judged(change: dict[str, Any], wrong: list[str]) -> None:
    assert replace(OUTCOME, **change).wrong() == wrong


def test_a_record_that_is_repeated_is_not_ok() -> None:
    assert OUTCOME.ok
    assert not replace(OUTCOME, verdict=replace(FINE, repeated=1)).ok


def test_a_large_file_is_waited_for_longer_than_a_small_one_and_all_for_twelve_looks_and_a_cut() -> None:
    small, large = rest_s(SLOT_BYTES, 5_000), rest_s(10 * CUT_MOST * SLOT_BYTES, 5_000)
    assert small > 5.0 * (IDLE_LOOKS + 1)
    assert large >= small + 10 * 5.0
    assert rest_s(SLOT_BYTES, 100) > small + 600  # the slot at the end of the file is left late
