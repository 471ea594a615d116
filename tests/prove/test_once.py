"""The exit status and the last line of a proof of a single run."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.prove.once import Judged, prove_once
from tests.support.broker import BrokerUnavailableError


@contextmanager
def brokers() -> Iterator[Any]:
    yield SimpleNamespace(description="none")


def no_brokers() -> AbstractContextManager[Any]:
    raise BrokerUnavailableError("there is no Java")


def ended(judge: Callable[[], Judged], kafka: Callable[[], Any] = brokers) -> tuple[int, list[Path]]:
    """The exit status, and the directory if it was kept."""
    used: list[Path] = []

    def run(_: Any, directory: Path, seed: int) -> Judged:
        assert seed == 5
        used.append(directory)
        return judge()

    status = prove_once("nothing", kafka, 5, run)
    return status, [directory for directory in used if directory.exists()]


def failing(error: Exception) -> Callable[[], Judged]:
    def judge() -> Judged:
        raise error

    return judge


def test_a_proof_that_holds_leaves_nothing_and_ends_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(lambda: Judged(ok=True, told="records=1")) == (0, [])
    assert "proved: seed=5 records=1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (lambda: Judged(ok=False, told="missing=1"), "NOT OK: seed=5 missing=1"),
        (lambda: Judged(ok=True, told="", wrong=["nobody was killed"]), "nobody was killed"),
        (failing(AssertionError("a publisher ended")), "NOT OK: seed=5 a publisher ended"),
    ],
    ids=["broken", "too little", "publisher"],
)
def test_a_proof_that_fails_keeps_its_directory_names_it_and_ends_with_status_1(
    capsys: pytest.CaptureFixture[str], judge: Callable[[], Judged], said: str
) -> None:
    status, kept = ended(judge)
    out = capsys.readouterr().out
    assert (status, len(kept)) == (1, 1)
    assert said in out
    assert f"kept: {kept[0]}" in out
    kept[0].rmdir()


def test_without_brokers_it_cannot_run_and_says_why_with_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert ended(lambda: Judged(ok=True, told=""), no_brokers) == (2, [])
    assert "there is no Java" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
