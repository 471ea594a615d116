"""The benchmarks of the ring, for a moment each, in this process: each runs, and its result has its shape."""

import asyncio
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from benchmarks import child
from benchmarks.ring import append, commit, memory, opening
from benchmarks.setting import Result, Setting


def call_here(function: Callable[..., Any], /, **arguments: Any) -> dict[str, Any]:
    """As `child.call`, without the half second of another process."""
    result = function(**json.loads(json.dumps(arguments)))
    if inspect.iscoroutine(result):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(result)
    found: dict[str, Any] = json.loads(json.dumps(result))
    return found


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr(child, "call", call_here)
    monkeypatch.setattr(os, "fdatasync", os.fdatasync)  # a benchmark counts its calls, and so replaces it
    monkeypatch.setattr(append, "CHUNK", 1024)
    monkeypatch.setattr(append, "LANES", (6,))
    monkeypatch.setattr(commit, "PUBLISHERS", (10,))
    monkeypatch.setattr(memory, "REST_S", 0.0)
    return Setting(None, rounds=1, records=1000, gigabytes=0.02, directory=str(tmp_path), seconds=0.02)


@pytest.mark.parametrize(
    ("run", "rows"),
    [(append.run, (3, 6)), (commit.run, (2,)), (opening.run, (3,)), (memory.run, (3,))],
    ids=["append", "commit", "opening", "memory"],
)
def test_a_benchmark_of_the_ring_runs_and_fills_its_tables(
    run: Callable[[Setting], Result], rows: tuple[int, ...], setting: Setting
) -> None:
    result = run(setting)
    assert tuple(len(table.rows) for table in result.tables) == rows
    for table in result.tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert json.loads(json.dumps(result.data))["rounds"]
