"""Records that are in Kafka by the position committed there, though nobody has settled them: a crash came between."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from aiorecover.delivery.frames import name_at
from aiorecover.delivery.judge import words_of
from aiorecover.delivery.reports import Reports
from aiorecover.record import TOPIC
from aiorecover.supervised import Supervised
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.stream import Stream
from aiorecover.wal.suffix import Word

RUNS_MOST = 4  # that wait to be told of; a reader gives some hundred records at a time


class Covered:
    """Tells of them, and settles them, in the order of the ring."""

    def __init__(
        self,
        reports: Reports,
        reader: Stream,
        covered: Callable[[], int],
        on_room: Callable[[], None],
        undecodable: Callable[[Placed, object], None],
    ) -> None:
        """``covered``: the position up to which all is in Kafka; ``on_room``: `take` may be called again.

        ``undecodable``: of a frame that is no record, and why: it may have stayed in the ring, and is not in Kafka.
        """
        self._reports = reports
        self._reader = reader
        self._covered = covered
        self._on_room = on_room
        self._undecodable = undecodable
        self._runs: deque[Run] = deque()
        self._telling = Supervised("covered", self._tell)
        self.added = 0
        self.settled = 0

    def take(self, run: Run) -> int | None:
        """How many of the run's first records are covered: they are taken care of. None: too many wait already."""
        up_to = self._covered()
        if run.position(0) > up_to:
            return 0
        if len(self._runs) >= RUNS_MOST:
            return None
        count = sum(run.position(number) <= up_to for number in range(len(run)))
        self._dismiss(run, count)
        waiting = [number for number, word in zip(range(count), words_of(run), strict=False) if word is Word.WAITING]
        taken = run.pick([number for number in waiting if self._is_record(run.placed(number))])
        if taken is not None:
            self.added += len(taken)
            self._runs.append(taken)
            if not self._telling.running:
                self._telling.start()
        return count

    def _is_record(self, entry: Placed) -> bool:
        if type(entry[3]) is tuple:
            return True
        self._undecodable(entry, entry[3])
        return False

    def _dismiss(self, run: Run, count: int) -> None:
        """Those that were settled, as their words say, where these are asked for."""
        done = sum(word is not Word.WAITING for word in (run.words or ())[:count])
        self._reader.dismiss(run.slot, done)

    async def _tell(self) -> None:
        while self._runs:
            run = self._runs[0]
            for number in range(len(run)):
                slot, place, position, record = run.placed(number)
                named = name_at(slot, place, position)
                if named is not None:
                    await self._reports.announce_covered(named, record[TOPIC])
            run.slot.ring.settle(run.slot, run.places)
            self.settled += len(run)
            self._runs.popleft()
            self._on_room()
            await asyncio.sleep(0)

    @property
    def taken(self) -> Iterator[tuple[Slot, Sequence[int]]]:
        """Slot and places of those that are not settled yet."""
        return ((run.slot, run.places) for run in self._runs)

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled our task: it is begun again after a pause."""
        return self._telling.interrupted

    async def close(self) -> None:
        """End; what was not settled is covered at the next start, too."""
        await asyncio.gather(*self._telling.end(), return_exceptions=True)
