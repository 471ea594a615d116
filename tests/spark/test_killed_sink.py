"""What the proof of the sink counts as proved: `make prove WHAT=sink` runs it."""

from collections import Counter
from dataclasses import replace

from tests.prove.sink import too_little
from tests.spark.killed_sink import Outcome


def test_an_outcome_is_well_only_when_each_row_is_once_everywhere_and_no_id_is_twice() -> None:
    rows = Counter(range(3))
    totals = {"records": 3, "found": 3, "expected": 3, "missing": 0, "repeated": 0}
    well = Outcome(3, 2, 2, 5, 5, rows, rows, 1, totals)
    assert (well.ok, too_little(well)) == (True, [])
    assert not replace(well, ids=4).ok
    for wrong in (Counter(range(2)), Counter([0, 0, 1, 2]), Counter([0, 1, 3])):
        assert not replace(well, counting=wrong).ok
        assert not replace(well, landed=wrong).ok
    for name, count in totals.items():
        assert not replace(well, totals=totals | {name: count + 1}).ok, name
    assert len(too_little(replace(well, hits=0))) == 1
    assert len(too_little(replace(well, sent=3))) == 1
