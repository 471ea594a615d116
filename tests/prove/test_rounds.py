"""Into which rounds a proof of `kill -9` is cut, and how each of them is repeated."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.judgement import Verdict
from tests.crash.test_day import FINE
from tests.prove.rounds import ROUND, prove_rounds

SEED = 7


class Plays:
    """What was played."""

    def __init__(self, verdict: Verdict = FINE) -> None:
        self.seen: list[tuple[int, int]] = []
        self.directories: list[Path] = []
        self._verdict = verdict

    def __call__(self, seed: int, cycles: int, directory: Path, _: Counter[str]) -> tuple[Verdict, str]:
        self.seen.append((seed, cycles))
        self.directories.append(directory)
        return self._verdict, ""


def test_a_run_is_cut_into_rounds_each_with_a_seed_and_a_directory_of_its_own() -> None:
    plays = Plays()
    assert prove_rounds("nothing", plays, SEED, 2 * ROUND + 1) == 0
    assert plays.seen == [(SEED, ROUND), (SEED + 1, ROUND), (SEED + 2, 1)]
    assert len(set(plays.directories)) == 3
    assert not any(directory.exists() for directory in plays.directories)


def test_a_proof_may_do_all_of_it_in_one_directory() -> None:
    plays = Plays()
    assert prove_rounds("nothing", plays, SEED, 200, size=200) == 0
    assert plays.seen == [(SEED, 200)]


def test_a_round_that_fails_ends_the_run_and_says_how_it_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    plays = Plays(replace(FINE, missing=["one"]))
    assert prove_rounds("nothing", plays, SEED, 200, size=200, flags=" --most 20") == 1
    assert "repeat: python -m tests.prove nothing --seed 7 --count 200 --most 20" in capsys.readouterr().out
    (kept,) = plays.directories
    kept.rmdir()
