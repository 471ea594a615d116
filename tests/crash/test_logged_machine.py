"""Exactly once where the power of a real file system goes (`logged_machine`); `make prove WHAT=cuts` does it longer."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.power.mounts import missing_facility, missing_installable

REPOSITORY = Path(__file__).parents[2]
CUTS = 6


@pytest.mark.timeout(300)
def test_after_power_cuts_in_steps_of_a_transaction_ext4_holds_what_the_position_covers() -> None:
    facility, installable = missing_facility(), missing_installable()
    if facility is not None:
        pytest.skip(facility)
    if installable is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(installable)
    command = [sys.executable, "-m", "tests.prove", "cuts", "--disk", "ext4", "--seed", "3", "--count", str(CUTS)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode == 2:  # a namespace or a mount is refused although everything is there
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    figures = dict(re.findall(r"(\w+)=(\d+)", done.stdout.splitlines()[-1]))
    assert figures["cuts"] == str(CUTS)
    assert figures["missing"] == figures["repeated"] == figures["out_of_order"] == "0"
    assert done.stdout.count("as it must") == 2
    assert int(figures["accepted"]) > 0
