"""A short run of the proof from `publish` to the table."""

from pathlib import Path

import pytest

from tests.spark.pipeline import run_pipeline
from tests.support.cluster import Cluster


@pytest.mark.timeout(600)
def test_nothing_is_missing_in_the_table_when_workers_and_drivers_die_and_what_is_left_out_is_named(
    kafka: Cluster, tmp_path: Path
) -> None:
    outcome = run_pipeline(kafka, tmp_path, seed=4, rounds=5, kills=1, report=print)
    print(outcome)
    assert outcome.ok, str(outcome)
    assert (outcome.kills, outcome.hits) == (1, 1)
    assert outcome.served.verdict.kills > 0
    assert outcome.consumed > 500
