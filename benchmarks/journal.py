"""What the lanes' journal costs: the same records delivered with it, and with nothing written down.

Without it is no way to run: the patch in here sends what no next process could recognise.
"""

from typing import Any
from unittest import mock

from aiorecover.delivery.journaling import Journal
from benchmarks import throughput
from benchmarks.pair import compare
from benchmarks.setting import Result, Setting


def run(setting: Setting) -> Result:
    ways = {"with the journal": throughput.aiorecover, "nothing written down": without}
    return compare(setting, "journal", "Journal of the lanes", ways)


async def without(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:
    """As `throughput.aiorecover`, in a process of its own."""

    async def enter(*_: object) -> bool:
        return True

    with mock.patch.object(Journal, "enter", enter):
        return await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir)
