"""A worker from topic to topic that is killed: each record exactly once; 200 kills are `make prove WHAT=etl`."""

import json
from pathlib import Path

import pytest

from tests.crash.etl import Life, Outcome, run_workers, verdict
from tests.crash.orders import key_of, total_of
from tests.support.broker import Cluster
from tests.support.oracle import Consumed

pytestmark = pytest.mark.timeout(240)

KILLS = 4
RECORDS = 8_000
GUARANTEES = ["at_least_once", "exactly_once"]


def made(
    number: int, *, total: int | None = None, key: bytes | None = None, partition: int = 0, at: int = 0
) -> Consumed:
    body = json.dumps({"id": number, "total": total_of(number) if total is None else total}).encode()
    return Consumed(partition, number, key_of(number) if key is None else key, body, (), at, None)


# -- the judgement -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        ([*range(301)], ([], [], [])),
        ([0, *range(2, 301)], ([1], [], [])),
        ([0, 1, 1, *range(2, 301)], ([], [1], [])),
        ([300, *range(300)], ([], [], ["0 behind 300"])),
    ],
    ids=["nothing", "missing", "repeated", "out of order"],
)
def test_the_judgement_sees_what_is_missing_repeated_and_out_of_order(
    found: list[int], faults: tuple[list[int], list[int], list[str]]
) -> None:
    outcome = verdict(Outcome(301, source=301), [made(number) for number in found], [], 1)
    assert (outcome.missing, outcome.repeated, outcome.out_of_order) == faults
    assert not outcome.wrong
    assert outcome.ok == (faults == ([], [], []))


@pytest.mark.parametrize(
    "odd",
    [made(0, total=5), made(0, key=b"7"), made(2), made(1, key=key_of(0), partition=1)],
    ids=["another total", "another key", "of no order", "another partition"],
)
def test_the_judgement_sees_what_was_never_to_be_made(odd: Consumed) -> None:
    assert verdict(Outcome(2), [made(0), made(1), odd], [], 1).wrong


@pytest.mark.parametrize(
    ("life", "moving"),
    [
        (Life(1, 1_000, 2_100), True),
        (Life(1, 1_000, 9_000), False),  # it had had nothing to do for long
        (Life(1, 2_050, 2_100), False),  # it had only just begun
        (Life(0, 1_000, 2_100), False),  # it was the other one that was moving
    ],
)
def test_a_kill_counts_that_hits_a_worker_which_is_moving(life: Life, moving: bool) -> None:
    found = [made(0, at=500), made(1, partition=1, at=2_000)]
    outcome = verdict(Outcome(2, kills=1), found, [life], 2)
    assert outcome.moving == moving
    assert ("moving=0 expected>=1" in outcome.too_little) != moving


def test_one_kill_in_ten_may_hit_a_worker_that_is_not_moving_and_each_has_hundreds_of_records_come_through() -> None:
    assert not Outcome(kills=10, moving=9, landed=5_000).too_little
    for quiet in (Outcome(kills=10, moving=8, landed=5_000), Outcome(kills=10, moving=9, landed=4_999), Outcome()):
        assert quiet.too_little


def test_as_many_as_were_to_be_moved_have_to_be() -> None:
    assert not Outcome(kills=10, moving=10, wanted=50_000, landed=50_000).too_little
    assert Outcome(kills=10, moving=10, wanted=50_000, landed=49_999).too_little


@pytest.mark.parametrize("source", [1, 3], ids=["fewer", "more"])
def test_a_source_that_holds_another_number_than_was_accepted_is_seen(source: int) -> None:
    assert not verdict(Outcome(2, source=source), [made(0), made(1)], [], 1).ok


# -- a slice of it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_workers_that_are_killed_move_each_record_exactly_once(kafka: Cluster, tmp_path: Path, guarantee: str) -> None:
    outcome = run_workers(kafka, tmp_path, seed=1, kills=KILLS, records=RECORDS, guarantee=guarantee)
    print(outcome)
    assert outcome.ok, str(outcome)
    assert not outcome.too_little, str(outcome)
    assert outcome.kills >= KILLS
    assert outcome.stopped == 2, "it ends well when it is asked to"
