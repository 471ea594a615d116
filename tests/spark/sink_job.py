"""A job of Spark that writes through the sink, several times, and whose executors are killed meanwhile.

`python -m tests.spark.sink_job '{"directory": ..., "options": {...}, "rows": ..., "writes": ...}'` writes so many rows
each time, numbered through, and says when a write is begun and when it is done.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark.driver import Driver
from tests.spark.machines import MASTER, Machines
from tests.spark.started import started

__all__ = ["SinkJob"]

_TASKS = 6  # of a write: three for each executor's core


@dataclass(frozen=True)
class SinkJob:
    """What the driver is told."""

    options: Mapping[str, str]
    directory: Path
    machines: Machines
    rows: int
    """Of a write."""
    writes: int

    @property
    def log(self) -> Path:
        """What the driver says."""
        return self.directory / "sink.log"

    def start(self) -> Driver:
        """Start it; it ends when all is written."""
        told = {"directory": str(self.directory), "options": dict(self.options), "rows": self.rows}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps({**told, "writes": self.writes})],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | self.machines.environment,
                start_new_session=True,  # so that Java and its executors are found, and die with it
                stdout=log,
                stderr=log,
            )
        return Driver(self, process)

    def begun(self) -> int:
        """The last write that was begun; -1: none."""
        return self._last("begun")

    def done(self) -> int:
        """The last write that was done; -1: none."""
        return self._last("done")

    def _last(self, what: str) -> int:
        told = re.findall(rf"^{what} (\d+)$", self.log.read_text(errors="replace"), re.MULTILINE)
        return int(told[-1]) if told else -1


def _main(told: dict[str, Any]) -> None:
    spark = started(Path(told["directory"]), "aiorecover sink job", master=MASTER)
    for number in range(told["writes"]):
        print(f"begun {number}", flush=True)
        rows = spark.range(number * told["rows"], (number + 1) * told["rows"], 1, _TASKS)
        values = rows.selectExpr("cast(id as string) as value")
        values.write.format("aiorecover").options(**told["options"]).mode("append").save()
        print(f"done {number}", flush=True)
    spark.stop()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
