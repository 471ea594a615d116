import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.power.mounts import missing_facility, missing_installable

REPOSITORY = Path(__file__).parents[2]
STATES = 60


@pytest.mark.timeout(400)
def test_no_acknowledged_record_is_lost_in_a_power_cut_and_faults_are_found_out() -> None:
    facility, installable = missing_facility(), missing_installable()
    if facility is not None:
        pytest.skip(facility)
    if installable is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(installable)
    command = [sys.executable, "-m", "tests.prove", "power", "--seed", "11", "--count", str(STATES)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode == 2:  # a namespace or a mount is refused although everything is there
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    figures = dict(re.findall(r"(\w+)=(\d+)", done.stdout.splitlines()[-1]))
    assert figures["states"] == str(STATES)
    assert figures["lost"] == "0"
    assert done.stdout.count("as it must") == 4
    for name in ("acknowledged", "looked_for", "flushes", "pending_writes", "moved"):
        assert int(figures[name]) > 0, done.stdout
