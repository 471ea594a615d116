"""A worker from topic to topic that is killed: each record exactly once; 200 kills are `make prove WHAT=etl`."""

import json
from pathlib import Path

import pytest

from tests.crash.etl import Outcome, run_workers, verdict
from tests.support.broker import Cluster
from tests.support.oracle import Consumed


def total(number: int, value: int | None = None, key: bytes = b"k") -> Consumed:
    body = json.dumps({"id": number, "total": 3 * number if value is None else value}).encode()
    return Consumed(0, number, key, body, (), 0, None)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([0, 1, 2], {}),
        ([0, 2], {"missing": [1]}),
        ([0, 1, 1, 2], {"repeated": [1]}),
        ([0, 2, 1], {"out_of_order": ["1 behind 2"]}),
    ],
)
def test_the_judgement_sees_what_is_missing_repeated_and_out_of_order(
    found: list[int], wrong: dict[str, object]
) -> None:
    assert verdict(Outcome(3), [total(number) for number in found]) == Outcome(3, **wrong)  # type: ignore[arg-type]


def test_the_judgement_sees_what_was_altered() -> None:
    assert verdict(Outcome(1), [total(0, value=5)]).altered == [0]


@pytest.mark.timeout(300)
def test_workers_that_are_killed_move_each_record_exactly_once(kafka: Cluster, tmp_path: Path) -> None:
    outcome = run_workers(kafka, tmp_path, seed=1, kills=8, records=20_000)
    assert outcome.ok, str(outcome)
    assert outcome.kills >= 8
    assert outcome.stopped == 2, "it ends well when it is asked to"
