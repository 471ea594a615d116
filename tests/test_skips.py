"""A skipped test makes a run in CI red, unless this kernel does not grant what it needs."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SKIPPING = """\
import pytest
def test_one(): pytest.skip("this kernel has no such thing")
def test_two(): pytest.skip("a program is not installed, and this kernel does nothing for it")
def test_three(): pytest.importorskip("no_such_module")
"""


def counted_against(*words: str) -> int:
    """Return how many skipped tests make a run in CI red."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    environment = {**os.environ, "CI": "true"}
    ran = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    said = [line for line in ran.stdout.splitlines() if line.startswith("CI is set: ")]
    assert bool(said) == bool(ran.returncode), ran.stdout + ran.stderr
    return int(said[0].split()[3]) if said else 0


def test_all_that_is_skipped_counts_but_what_the_kernel_does_not_grant(tmp_path: Path) -> None:
    file = tmp_path / "test_skipping.py"
    file.write_text(SKIPPING)
    assert counted_against("-p", "tests.conftest", str(file)) == 2
