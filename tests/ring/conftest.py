"""The two writers, in Python and in C. With AIORECOVER_PURE_PYTHON set there is one."""

from collections.abc import Callable
from importlib import import_module
from os import environ
from typing import Any

import pytest

from aiorecover.ring import writer

PURE = bool(environ.get("AIORECOVER_PURE_PYTHON"))
NAMES = ["Python"] if PURE else ["Python", "C"]

collect_ignore = ["test_speedups.py"] if PURE else []


def functions_of(name: str) -> tuple[Any, Callable[..., None]]:
    """The class, and `append_raw`. Where the module in C was not built, this fails."""
    if name == "Python":
        return writer.PythonWriter, writer.append_raw_in_python
    module: Any = import_module("aiorecover._speedups")
    return module.Writer, module.append_raw


@pytest.fixture(params=NAMES)
def each_writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that opens rings runs with each writer."""
    monkeypatch.setattr(writer, "Writer", functions_of(request.param)[0])
