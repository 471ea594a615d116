"""The benchmarks of the ring alone, for a moment each: everybody stores, is killed, and what was stored is found."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import child
from benchmarks.ring import backlog, commit, measure
from benchmarks.ring.contenders import APPEND, LEVELS, contenders
from benchmarks.setting import Setting
from tests.benchmarks import forked

SIZE = 160
SECONDS = 0.05
PUBLISHERS = 10
GIGABYTES = 0.02  # more than one slot: a part of one counts as a whole
CONTENDERS = [(level, name) for level in (APPEND, [*LEVELS][-1]) for name in contenders(level)]
QUANTILES = ("p50", "p99", "p99.9", "max")


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(None, rounds=1, records=None, gigabytes=GIGABYTES, directory=str(tmp_path), seconds=SECONDS)


@pytest.fixture(scope="module")
def forking() -> Iterator[None]:
    yield
    forked.stop()


@pytest.fixture
def quick(forking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (child, measure, commit):
        monkeypatch.setattr(module, "Child", forked.Forked)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("level", "name"), CONTENDERS, ids=[f"{level}: {name}" for level, name in CONTENDERS])
def test_whoever_is_measured_stores_and_what_was_stored_is_found(level: str, name: str, setting: Setting) -> None:
    figures = measure.one(setting, level, name, SIZE, SECONDS)
    assert 0 <= figures["settled"] <= figures["stored"]
    assert figures["records_s"] > 0
    assert 0 < figures["p50"] <= figures["max"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", commit.CONTENDERS)
def test_publishers_who_wait_for_the_disk_share_its_flushes(name: str, setting: Setting) -> None:
    figures = commit._one(setting, name, SIZE, PUBLISHERS)
    assert figures["stored"] > 0
    assert 1 < figures["records_a_sync"] <= PUBLISHERS


def test_a_backlog_is_stored_opened_read_and_settled(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in backlog.WAYS}
    backlog._one(setting, SIZE, rounds)
    for (figures,) in rounds.values():
        assert figures["bytes"] >= GIGABYTES * 1e9
        assert figures["bytes"] / 3 < figures["stored"] * SIZE < figures["bytes"]
        assert figures["records_s"] > 0
        assert {f"{what}_{name}" for what in ("step", "stall", "idle") for name in QUANTILES} <= figures.keys()
