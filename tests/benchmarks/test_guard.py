"""The speed is guarded: ratios of processor time, measured in turns, do not fall by 30 %. The one test with a clock."""

from pathlib import Path

import pytest

from benchmarks import guard
from benchmarks.child import call


def test_a_ratio_that_fell_by_more_than_thirty_percent_is_named() -> None:
    expected = {"append": 2.0, "publish": 0.5, "deliver": 1.0}
    assert guard.fallen({"append": 1.41, "publish": 5.0, "deliver": 0.71}, expected) == []
    assert [
        line.split(":")[0] for line in guard.fallen({"append": 1.39, "publish": 0.5, "deliver": 0.69}, expected)
    ] == [
        "append",
        "deliver",
    ]


@pytest.mark.parametrize("pure", ["", "1"], ids=["C", "Python"])
def test_no_ratio_to_what_does_not_change_fell_by_thirty_percent(
    pure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIORECOVER_PURE_PYTHON", pure)
    expected = guard.expected()
    found = call(guard.measure, directory=str(tmp_path), stored=expected)
    assert guard.fallen(found["ratios"], expected[found["language"]]) == [], found
