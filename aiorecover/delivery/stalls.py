"""When a lane is passed over because it does not get through, and when it is gone back for. Pure: times are handed in.

What is passed over is read twice, so a lane that is merely busy holds up the dispatcher, as it must: somebody has to
wait where Kafka takes less than is published. A lane is stalled when attempts to send what it has in flight have failed
for a second, each by itself (a session that was lost says nothing of the lane), and nothing more fits into it. So it is
where the disk has no room to write it down first (`journaling`): nobody else is to wait for that. (What stands in the
retry ring was passed over by an earlier process: there nobody waits for a busy lane either, see `stalled`.)

Where nobody gets through, nothing is gained by passing over: the ring is the queue. But while the dispatcher is held up
nobody else has anything to send, and so nobody gets through. So one lane is passed over on trial; if another one gets
through then, all that are stalled are; if not, the next trial comes later each time.
"""

from collections.abc import Callable, Iterable

from aiorecover.delivery.backoff import Backoff
from aiorecover.delivery.lane import Lane

STALLED_AFTER = 1.0  # seconds of failures; a leader moves in a few hundred ms, a request is given up after a second
OTHERS_AFTER = 0.5  # seconds of failures behind which others have to get through: at first some are still under way
FIRST_TRIAL = 1.0  # seconds from one trial to the next; then twice as long each time
LONGEST_TRIAL = 60.0  # seconds: in an hour in which nobody gets through some 65 lanes are passed over
STEADY = 60.0  # seconds that a lane has to be well until a stall is a first one
FIRST_REST = 1.0  # seconds until a lane that stalled again is gone back for; then twice as long each time
LONGEST_REST = 30.0  # seconds: each return of a lane that stalls again holds up those that are caught up beside it


class Stalls:
    """Which lanes are failing, and which of them are passed over. Bounded by the number of lanes."""

    def __init__(self, spread: Callable[[float, float], float]) -> None:
        """``spread(low, high)`` picks a number in between at random."""
        self._spread = spread
        self._since: dict[Lane, float] = {}  # when the attempt began that failed first
        self._rests: dict[Lane, Backoff] = {}
        self._returned: dict[Lane, float] = {}
        self._through = float("-inf")  # when somebody got through last
        self._trial = float("-inf")  # when the next one may begin
        self._trials = Backoff(FIRST_TRIAL, LONGEST_TRIAL, lambda *_: 1.0)

    def __bool__(self) -> bool:
        """Whether a lane is failing."""
        return bool(self._since)

    def failed(self, lane: Lane, began: float) -> None:
        """An attempt to send what ``lane`` has in flight, or to write it down, begun at ``began``, failed by itself."""
        self._since.setdefault(lane, began)
        lane.failing = True

    def unknown(self, lane: Lane) -> None:
        """An attempt failed for another reason: what there was before it is no sign of a stall any more."""
        self._since.pop(lane, None)
        lane.failing = False

    def begin_anew(self) -> None:
        """Another session is connected: attempts that failed before it are no sign of a stall."""
        for lane in list(self._since):
            self.unknown(lane)

    def through(self, lane: Lane, now: float) -> None:
        """``lane`` got something through."""
        self._through = now
        self._trial = float("-inf")
        self._trials.reset()
        self.unknown(lane)

    def choose(self, now: float, *, full: bool) -> list[Lane]:
        """The lanes to be passed over from now on. ``full``: all lanes together have no room, so each is in the way."""
        stalled = [
            lane
            for lane, since in self._since.items()
            if now - since >= STALLED_AFTER and not lane.passed_over and (full or lane.blocked)
        ]
        chosen = [lane for lane in stalled if self._through >= self._since[lane] + OTHERS_AFTER]
        if not chosen and stalled and now >= self._trial:
            chosen = stalled[:1]
            self._trial = now + self._trials.next()
        return chosen

    def rest(self, lane: Lane, now: float) -> float:
        """Seconds until a lane that is passed over, and gets through again, is gone back for."""
        returned = self._returned.get(lane)
        self._forget(now)
        if returned is None or now - returned >= STEADY:
            return 0.0
        return self._rests.setdefault(lane, Backoff(FIRST_REST, LONGEST_REST, self._spread)).next()

    def returned(self, lane: Lane, now: float) -> None:
        """It is gone back for."""
        self._returned[lane] = now

    def _forget(self, now: float) -> None:
        for lane in _older(self._returned, now - STEADY):
            del self._returned[lane]
            self._rests.pop(lane, None)


def _older(times: dict[Lane, float], then: float) -> Iterable[Lane]:
    return [lane for lane, time in times.items() if time <= then]
