"""The log's lines about refused records, and about lanes: a few in a minute, and no more.

A topic that refuses whatever comes would else write thousands a second.
"""

import asyncio
import logging
from collections.abc import Callable

from aiorecover.delivery.lane import Lane
from aiorecover.delivery.refusal import Refusal

log = logging.getLogger("aiorecover.delivery")
letters_log = logging.getLogger("aiorecover.delivery.dead_letters")
"""For lines that send people to `producer.dead_letters`; who runs a producer that nobody else sees tells it his way."""

INTERVAL = 60.0  # seconds, as between two lines about records that have expired
GATHERED = 1.0  # seconds: a broker takes all its lanes with it, within as many attempts as there are requests
MOST = 20  # lines in it: a few poison records are told of one by one


class Lines:
    """Writes them."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self._timer: asyncio.TimerHandle | None = None  # of the interval that has begun
        self._told = 0
        self._untold = 0
        self._last = ""

    def tell(self, record_id: str, topic: str, partition: int | None, refusal: Refusal) -> None:
        """One more was refused."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._end_interval)
            self._told = 0
        if self._told >= MOST:
            self._untold += 1
            self._last = f"last={record_id} topic={topic} partition={partition} error={refusal}"
            return
        self._told += 1
        letters_log.error(
            "a record became a dead letter: look at producer.dead_letters "
            "record_id=%s topic=%s partition=%s attempts=%d error=%s",
            record_id,
            topic,
            partition,
            refusal.attempts,
            refusal,
        )

    def _end_interval(self) -> None:
        self._timer = None
        if self._untold:
            letters_log.error(
                "more records became dead letters: look at producer.dead_letters records=%d %s",
                self._untold,
                self._last,
            )
        self._untold = 0

    def close(self) -> None:
        """Tell what was not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_interval()


class LaneLines:
    """Lines of one kind about lanes: of each one a minute, and of all together `MOST`. Pure: times are handed in."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self._told: dict[Lane, float] = {}

    def may_tell(self, lane: Lane, now: float) -> bool:
        """Whether a line about ``lane`` may be written now, in seconds of any clock; it counts as written then."""
        self._told = {told: then for told, then in self._told.items() if now - then < INTERVAL}
        if lane in self._told or len(self._told) >= MOST:
            return False
        self._told[lane] = now
        return True


class GatheredLines:
    """Lines about lanes that change together: one a minute, for all that did since the last one."""

    def __init__(self, write: Callable[[dict[Lane, str]], None]) -> None:
        """``write`` the line about these lanes, in the order of what became of them, and why."""
        self._write = write
        self._timer: asyncio.TimerHandle | None = None  # until the next line may be written
        self._lanes: dict[Lane, str] = {}  # not told of yet: why

    def tell(self, lane: Lane, why: str = "") -> None:
        """Of ``lane``, too."""
        self._lanes.pop(lane, None)
        self._lanes[lane] = why
        if self._timer is None:
            self._wait(GATHERED)

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end_interval)

    def _end_interval(self) -> None:
        self._timer = None
        if self._lanes:
            self._tell_all()
            self._wait(INTERVAL)

    def _tell_all(self) -> None:
        lanes, self._lanes = self._lanes, {}
        self._write(lanes)

    def close(self) -> None:
        """Tell what was not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lanes:
            self._tell_all()


class SuspectLines:
    """Lines about lanes that are sent apart, and about those that are well again."""

    def __init__(self, suspect: Callable[[], int]) -> None:
        """``suspect``: how many lanes are apart now."""
        self._suspect = suspect
        self._apart = GatheredLines(self._write_apart)
        self._well = GatheredLines(self._write_well)

    def tell(self, lane: Lane, why: str) -> None:
        """``lane`` is sent apart, for the error ``why``."""
        self._apart.tell(lane, why)

    def tell_well(self, lane: Lane) -> None:
        """``lane`` is sent with the others again."""
        self._well.tell(lane)

    def close(self) -> None:
        """Tell what was not told yet."""
        self._apart.close()
        self._well.close()

    def _write_apart(self, lanes: dict[Lane, str]) -> None:
        """No warning if all are well again: many new partitions keep a healthy broker busy for a second, too."""
        suspect = self._suspect()
        lane, why = next(reversed(lanes.items()))
        log.log(
            logging.WARNING if suspect else logging.INFO,
            "lanes without an answer in time, or with errors while others got through, have a session apart until they "
            "are well: nothing to do unless it goes on, then look at the brokers that lead them "
            "lanes=%d lanes_suspect=%d topic=%s partition=%d error=%s",
            len(lanes),
            suspect,
            lane.topic,
            lane.partition,
            why,
        )

    def _write_well(self, lanes: dict[Lane, str]) -> None:
        lane = next(reversed(lanes))
        log.info(
            "lanes are well again lanes=%d lanes_suspect=%d topic=%s partition=%d",
            len(lanes),
            self._suspect(),
            lane.topic,
            lane.partition,
        )
