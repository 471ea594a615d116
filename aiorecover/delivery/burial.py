"""What the readers meet of records that have expired: it goes to the dead letters, and not to its lane."""

from collections.abc import Callable

from aiorecover.delivery.behind import Behind
from aiorecover.delivery.drain import GoingBack
from aiorecover.delivery.expiry import Expiry
from aiorecover.delivery.frames import waits_at
from aiorecover.delivery.judge import Judge
from aiorecover.record import TOPIC
from aiorecover.wal.run import Placed, Run


class Burial:
    """Takes records out of runs. ``going``: the second reader that has the run; None: the first one."""

    def __init__(self, expiry: Expiry, judge: Judge, is_behind: Callable[[Placed, GoingBack | None], bool]) -> None:
        """``is_behind``: somebody else comes for the record."""
        self._expiry = expiry
        self._judge = judge
        self._is_behind = is_behind

    def look(self, run: Run) -> tuple[int, bool]:
        """As `Expiry.leading`; nothing of a run in which each record has to be judged first."""
        return (0, False) if self._judge.concerned(run) else self._expiry.leading(run)

    def bury(self, run: Run, count: int, going: GoingBack | None) -> int | None:
        """Have the first ``count`` records of a run made dead letters; how many before one had to wait.

        None: there is no room for letters, so nothing expires.
        """
        for number in range(count):
            if not self.bury_one(run.placed(number), going):
                return number or (0 if self._expiry.up_to else None)
        return count

    def bury_one(self, entry: Placed, going: GoingBack | None) -> bool:
        """False without room. What is behind is left to who comes for it."""
        return self._is_behind(entry, going) or self._expiry.take(entry)

    def has_expired(self, entry: Placed) -> bool:
        """Whether a record of a run that is judged one by one has."""
        _, _, position, record = entry
        return type(record) is tuple and self._expiry.is_due(position, record[TOPIC])

    def has_begun(self, gap: Behind) -> bool:
        """Whether to go back for what was passed over; not where it has to be judged first, without its lane.

        Nor while older records of its lane wait for the end of an attempt: letters stand in the order of the lane then.
        """
        settled = gap.start is not None and not waits_at(*gap.start)  # by its word, which is suspect
        if settled or self._judge.may_find(gap.at) or not self._expiry.is_due(gap.at, gap.topic):
            return False
        lane = gap.lane
        if lane is None or lane.holds_nothing:
            return True
        return lane.first is not None and not self._expiry.has_due(lane, lane.first)
