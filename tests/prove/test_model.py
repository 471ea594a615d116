"""A run of the model that was stopped is gone on with, and what it finds is named by its seed and walk."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.prove import model
from tests.wal.walk import Taken

STEPS = 80  # of a walk
SEED = 7


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    before = logging.root.manager.disable
    yield
    logging.disable(before)


def walks(patch: pytest.MonkeyPatch, fails: Callable[[str], bool] = lambda _: False) -> list[str]:
    """Which are taken; nothing happens in them."""
    names: list[str] = []

    def walk(name: str) -> tuple[list[Taken], Exception | None]:
        names.append(name)
        return [("step", {})] * STEPS, ValueError(name) if fails(name) else None

    patch.setattr(model, "KINDS", (walk,))
    patch.setattr(model, "smallest", lambda taken: taken[:1])
    patch.setattr(model, "run", lambda _: None)
    return names


def test_a_run_goes_on_where_the_one_with_its_file_stopped_and_says_how_many_steps_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, file = walks(monkeypatch), str(tmp_path / "kept" / "progress")
    for seed in (["--seed", str(SEED)], []):
        assert model.main([*seed, "--count", "200", "--resume", file]) == 0
    assert names == [f"{SEED}/{number}" for number in range(6)]
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("proved"))
    assert f"seed={SEED} ran=240 steps=240 " in first
    assert f"seed={SEED} ran=240 steps=480 " in second
    assert model.main(["--seed", "8", "--count", "1", "--resume", file]) == 0
    assert names[-1] == "8/0"


def test_without_a_file_each_run_begins_with_the_first_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    names = walks(monkeypatch)
    for _ in range(2):
        assert model.main(["--seed", str(SEED), "--count", str(2 * STEPS)]) == 0
    assert names == [f"{SEED}/0", f"{SEED}/1"] * 2


def test_a_walk_that_finds_something_ends_the_run_says_how_it_is_repeated_and_is_taken_again_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, file = walks(monkeypatch, lambda name: name == f"{SEED}/2"), str(tmp_path / "progress")
    assert model.main(["--seed", str(SEED), "--count", str(2 * STEPS), "--resume", file]) == 0
    for _ in range(2):
        assert model.main(["--count", "1000", "--resume", file]) == 1
        assert names[-1] == f"{SEED}/2"
        told = capsys.readouterr().out
        assert f"repeat: python -m tests.prove model --seed {SEED} --walk 2" in told
        assert "proved" not in told.partition("seed=7 steps so far=160")[2]
    assert model.main(["--seed", str(SEED), "--walk", "2"]) == 1
    assert model.main(["--seed", str(SEED), "--walk", "3"]) == 0
