"""What two sessions cost: every other lane in the session of the suspects, against all of them in one.

The lanes are well: the patch in here calls them suspect, so that nothing but the second session is measured.
"""

from typing import Any
from unittest import mock

from aiokafka.structs import RecordMetadata

from aiorecover.delivery.lane import Lane
from aiorecover.delivery.sessions import Sessions
from aiorecover.delivery.suspicion import Suspicion
from benchmarks import throughput
from benchmarks.pair import compare
from benchmarks.setting import Result, Setting


def run(setting: Setting) -> Result:
    return compare(setting, "sessions", "Two sessions", {"in two sessions": apart, "in one": throughput.aiorecover})


class Lasting(Suspicion):
    """Of a lane that never counts as well again."""

    def __init__(self) -> None:
        super().__init__()
        self.suspect = True

    def acknowledged(self, now: float, began: float) -> bool:  # noqa: ARG002
        return False

    def forgotten(self, now: float) -> bool:  # noqa: ARG002
        return False


async def apart(bootstrap_servers: str, topic: str, records: int, wal_dir: str) -> dict[str, Any]:
    """As `throughput.aiorecover`, in a process of its own."""
    send = Sessions.send

    async def suspecting(self: Sessions, lane: Lane, *of_it: Any) -> RecordMetadata:
        if lane.partition % 2:
            self._suspicions.setdefault(lane, Lasting())
        return await send(self, lane, *of_it)

    with mock.patch.object(Sessions, "send", suspecting):
        return await throughput.aiorecover(bootstrap_servers, topic, records, wal_dir)
