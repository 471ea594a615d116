"""What the proof from `publish` to the table counts as proved: `make prove WHAT=pipeline` runs it."""

from collections import Counter
from dataclasses import replace

from tests.crash.judgement import Verdict
from tests.crash.workers import Outcome as Served
from tests.prove.pipeline import too_little
from tests.spark.pipeline import Outcome


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
