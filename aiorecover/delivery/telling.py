"""Whoever wants to know of expired records is told, partition by partition; only then they are settled.

A callback that is slow so keeps its own partition waiting, and no other. Where more wait for it than one queue holds,
the reader that has them waits for a moment; then it passes over what comes of that partition (`burial`), and somebody
comes back for it once half of the queue is done.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

from aiorecover.delivery.dead_record import DeadRecord
from aiorecover.delivery.flush import Queue
from aiorecover.supervised import Supervised
from aiorecover.wal.slot import Slot

STEP = 64  # records between two turns of the loop: about 2 ms of work
MOST = 1024  # records of one partition that wait, 150 KB: two runs of a reader, so that both sides have work
ALL = 65_536  # of all partitions together, 12 MB; with more than 64 of them each has its share, and FEWEST at least
FEWEST = 64
HOLD = 1.0  # seconds that a reader waits for a full queue: as long as a lane has to fail to be passed over

Where = tuple[str, int | None]
"""A topic and its partition, as far as that is known."""


class Telling:
    """The queues of those who wait to be told of."""

    def __init__(self, settle: Callable[[DeadRecord], Awaitable[None]], on_change: Callable[[], None]) -> None:
        """``settle``: tell, then settle one; ``on_change``: some were, or one waits for too long."""
        self._settle = settle
        self._on_change = on_change
        self._queues: dict[Where, _Queue] = {}

    def add(self, where: Where, taken: DeadRecord) -> bool:
        """Have one told of behind those that came before it; False without room."""
        queue = self._queue(where)
        if queue is None:
            queue = self._queues[where] = _Queue()
            queue.work = Supervised("expiry-telling", partial(self._work, where, queue))
            queue.work.start()
        elif len(queue.taken) >= self._most:
            if queue.full_since is None:
                loop = asyncio.get_running_loop()
                queue.full_since = loop.time()
                queue.timer = loop.call_later(HOLD, self._on_change)
            return False
        queue.taken.append(taken)
        return True

    def keeps_waiting(self, where: Where) -> bool:
        """Its queue is full for so long that nobody should wait for it."""
        queue = self._queue(where)
        if queue is None or queue.full_since is None:
            return False
        return asyncio.get_running_loop().time() >= queue.full_since + HOLD

    @property
    def queues(self) -> Iterable[Queue]:
        """Of the records that are not settled yet."""
        return self._queues.values()

    @property
    def taken(self) -> Iterator[tuple[Slot, int]]:
        """Slot and place of the records that are not settled yet."""
        return ((one.named.slot, one.named.place) for queue in self._queues.values() for one in queue.taken)

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled a task of ours: it is begun again after a pause."""
        return any(queue.work.interrupted for queue in self._queues.values() if queue.work is not None)

    @property
    def _most(self) -> int:
        """Records of one partition that wait."""
        return min(MOST, max(FEWEST, ALL // len(self._queues)))

    def _queue(self, where: Where) -> "_Queue | None":
        """That of the whole topic, while there is one from the time before its partitions were known: for the order."""
        return self._queues.get((where[0], None)) or self._queues.get(where)

    async def _work(self, where: Where, queue: "_Queue") -> None:
        number = 0
        while queue.taken:
            await self._settle(queue.taken[0])
            queue.taken.popleft()
            queue.settled += 1
            if queue.full_since is not None and len(queue.taken) <= self._most // 2:
                queue.has_room()
                self._on_change()
            number += 1
            if number % STEP == 0:
                await asyncio.sleep(0)
        del self._queues[where]
        self._on_change()

    async def close(self) -> None:
        """End; what was not settled is found again by the next start."""
        ending: set[asyncio.Task[None]] = set()
        for queue in self._queues.values():
            queue.has_room()
            if queue.work is not None:
                ending |= queue.work.end()
        await asyncio.gather(*ending, return_exceptions=True)


class _Queue:
    __slots__ = ("full_since", "settled", "taken", "timer", "work")

    def __init__(self) -> None:
        self.taken: deque[DeadRecord] = deque()
        self.settled = 0
        self.full_since: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.work: Supervised | None = None

    @property
    def added(self) -> int:
        return self.settled + len(self.taken)

    def has_room(self) -> None:
        self.full_since = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
