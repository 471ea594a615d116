"""A proof on a logged disk, run by a test."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.power.mounts import missing_facility, missing_installable

__all__ = ["proved"]

_REPOSITORY = Path(__file__).parents[2]


def proved(*arguments: str) -> tuple[str, dict[str, str]]:
    """What ``python -m tests.prove`` said, and the figures in its last line; skipped where no disk can be logged."""
    facility, installable = missing_facility(), missing_installable()
    if facility is not None:
        pytest.skip(facility)
    if installable is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(installable)
    command = [sys.executable, "-m", "tests.prove", *arguments]
    done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode == 2:  # a namespace or a mount is refused although everything is there
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, dict(re.findall(r"(\w+)=(\d+)", done.stdout.splitlines()[-1]))
