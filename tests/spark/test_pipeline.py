"""A short run of the proof from `publish` to the table."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.judgement import Verdict
from tests.crash.workers import Outcome as Served
from tests.prove.pipeline import too_little
from tests.spark.pipeline import Outcome, run_pipeline
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


def test_a_run_in_which_too_little_happens_proves_nothing() -> None:
    verdict = Verdict(10_000, 10_000, 0, [], 0, [], [], [], 0, [], [], kills=50)
    enough = Outcome(Served(verdict, 0, 0, Counter()), 10, 5, 10_000, [], [], {}, "")
    faults = Counter(kill=4, freeze=5, roll=1)
    assert too_little(enough, faults, 100) == []
    assert len(too_little(replace(enough, hits=4), faults, 100)) == 1
    assert len(too_little(enough, Counter(kill=3, freeze=5, roll=1), 100)) == 1
    assert too_little(enough, Counter(kill=5, freeze=5), 100) == ["rolls of the brokers=0 expected>=1"]
    for less in (replace(verdict, accepted=9_999), replace(verdict, kills=49)):
        assert len(too_little(replace(enough, served=replace(enough.served, verdict=less)), faults, 100)) == 1
