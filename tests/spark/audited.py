"""`aiorecover audit --json`, run as a user runs it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.spark.settings import command_words

__all__ = ["audited"]

_WITHIN_S = 1800.0


def audited(
    directory: Path,
    *,
    table: Path | str | None = None,
    bootstrap_servers: str | None = None,
    topics: Sequence[str] = (),
    manifests: str | None = None,
) -> dict[str, Any]:
    """Audit the table, the topics, or both; ``directory`` takes what Spark needs meanwhile."""
    told = {"--table": table, "--bootstrap-servers": bootstrap_servers, "--manifests": manifests}
    words = [str(word) for name, value in told.items() if value is not None for word in (name, value)]
    for topic in topics:
        words += ["--topic", topic]
    words += command_words(directory)
    done = subprocess.run(
        [sys.executable, "-m", "aiorecover", "audit", "--json", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
