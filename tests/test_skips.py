"""What may be skipped in CI: only what the kernel does not grant; all else is installed there, or the run is red."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
DROPS_PACKETS = "tests/crash/test_dropped_packets.py"
SKIPPING = """\
import pytest
def test_one(): pytest.skip("this kernel has no such thing")
def test_two(): pytest.skip("a program is not installed, and this kernel does nothing for it")
def test_three(): pytest.importorskip("no_such_module")
"""


def counted_against(*words: str, path: str) -> int:
    """How many skipped tests make a run in CI red; ``path``: where it looks for programs."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    environment = {**os.environ, "CI": "true", "PATH": path}
    ran = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    said = [line for line in ran.stdout.splitlines() if line.startswith("CI is set: ")]
    assert bool(said) == bool(ran.returncode), ran.stdout + ran.stderr
    return int(said[0].split()[3]) if said else 0


def path_without(folder: Path, program: str) -> str:
    """A ``PATH`` on which every program is found but this one."""
    for place in map(Path, os.environ["PATH"].split(os.pathsep)):
        for found in place.glob("*"):
            link = folder / found.name
            if found.name != program and not link.is_symlink():
                link.symlink_to(found)
    return str(folder)


def test_a_missing_program_that_drops_packets_is_not_the_kernel_s_doing(tmp_path: Path) -> None:
    assert counted_against(DROPS_PACKETS, path=path_without(tmp_path, "ip")) == 2


def test_all_that_is_skipped_counts_but_what_the_kernel_does_not_grant(tmp_path: Path) -> None:
    file = tmp_path / "test_skipping.py"
    file.write_text(SKIPPING)
    assert counted_against("-p", "tests.conftest", str(file), path=os.environ["PATH"]) == 2
