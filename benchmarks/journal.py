"""What the lanes' journal costs: the same records delivered with it, and with nothing written down.

Without it is no way to run: the patch in here sends what no next process could recognise. Two runs differ by more than
the journal costs, whatever the machine; so the time spent in it is measured as well, by itself.
"""

import time
from dataclasses import replace
from typing import Any
from unittest import mock

from aiorecover.delivery.journaling import Journal
from benchmarks import throughput
from benchmarks.figures import spread
from benchmarks.pair import compare
from benchmarks.setting import Result, Setting

WITH = "with the journal"


def run(setting: Setting) -> Result:
    result = compare(setting, "journal", "Journal of the lanes", {WITH: journaled, "nothing written down": without})
    own = result.data["rounds"][WITH]
    shares = [{"share": 100 * one["journal_us"] / one["cpu_us"]} for one in own]
    share, each = spread(shares, "share").text(".2f"), spread(own, "journal_us").text(".3f")
    note = f"spent in the journal, % of all CPU: {share}; µs a record: {each}"
    table = replace(result.tables[0], notes=[*result.tables[0].notes, note])
    return replace(result, tables=[table])


async def journaled(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:
    """As `throughput.aiorecover`, and ``journal_us``: of this thread's CPU, spent in the journal, a record."""
    spent = 0
    enter = Journal.enter

    async def timed(*args: Any) -> bool:
        nonlocal spent
        began = time.thread_time_ns()
        entered = await enter(*args)  # it waits for a lane's first block only
        spent += time.thread_time_ns() - began
        return entered

    with mock.patch.object(Journal, "enter", timed):
        figures = await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir)
    return figures | {"journal_us": spent / 1000 / (records + throughput.WARM_UP)}


async def without(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:
    """As `throughput.aiorecover`, in a process of its own."""

    async def enter(*_: object) -> bool:
        return True

    with mock.patch.object(Journal, "enter", enter):
        return await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir)
