"""Batches whose timestamps Kafka refuses, though they were right when the records were accepted (`timestamps`).

A long outage would else turn what waited into dead letters, in a topic that takes nothing older than an hour. Such a
batch is not cut: none of its records is at fault. Its lane does not get through, as with too few replicas in sync: the
very same batch is tried on, until the topic takes it, or ``delivery_timeout_ms`` makes dead letters of its records. Of
a batch with others among them only those parts are cut that hold one.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from aiokafka.errors import InvalidTimestampError, KafkaError

from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.lines import LaneLines
from aiorecover.delivery.outcomes import UntimelyError
from aiorecover.delivery.timestamps import was_right
from aiorecover.wal.ages import Acceptance

log = logging.getLogger("aiorecover.delivery")

OLD = (
    "raise message.timestamp.before.max.ms of the topic, or set delivery_timeout_ms to have them as dead letters; if "
    "they have not waited, set this machine's clock, or the broker's"
)
AHEAD = (
    "they were stamped by a clock that was fast: raise message.timestamp.after.max.ms of the topic, or wait until "
    "their time has come; where you stop before that, the next start makes dead letters of them"
)
"""What to do about a timestamp that is ahead of the clock."""

STEP = 256  # records looked at between two turns of the loop: about 1 ms of work


class Untimely:
    """Tells them from those that hold a record at fault."""

    def __init__(self, accepted: Callable[[int], Acceptance], wall_ms: Callable[[], int]) -> None:
        """``accepted``: when the record at a position was; ``wall_ms``: the clock on the wall, ms since 1970."""
        self._accepted = accepted
        self._wall_ms = wall_ms
        self._told: set[Lane] = set()
        self._lines = LaneLines()

    async def judged(self, lane: Lane, batch: LaneBatch, error: KafkaError) -> KafkaError:
        """What Kafka's answer means: `UntimelyError` where it refuses timestamps that were right, and else itself."""
        if not isinstance(error, InvalidTimestampError):
            return error
        batch.sound = batch.sound or await self._is_sound(batch)
        if not batch.sound:
            return error
        self._tell(lane, batch)
        return UntimelyError()

    async def _is_sound(self, batch: LaneBatch) -> bool:
        for number, record in enumerate(batch.records(), start=1):
            if not was_right(record.timestamp_ms, self._accepted(record.position)):
                return False
            if number % STEP == 0:
                await asyncio.sleep(0)
        return True

    def _tell(self, lane: Lane, batch: LaneBatch) -> None:
        if lane in self._told or not self._lines.may_tell(lane, time.monotonic()):
            return
        self._told.add(lane)
        first = next(batch.records())
        log.error(
            "kafka refuses timestamps that were right when the records were accepted: they wait in the ring, in order, "
            "and are tried on. %s topic=%s partition=%d timestamp_ms=%d waited_ms=%d",
            AHEAD if first.timestamp_ms > self._wall_ms() else OLD,
            lane.topic,
            lane.partition,
            first.timestamp_ms,
            self._accepted(first.position).waited_ms,
        )

    def through(self, lane: Lane) -> None:
        """A batch of the lane is in Kafka."""
        if lane in self._told:
            self._told.discard(lane)
            log.warning("kafka takes the timestamps again topic=%s partition=%d", lane.topic, lane.partition)
