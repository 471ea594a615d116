"""A power cut at one step of a transaction, in one process: the disk is as it is left, and nothing more is sent."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka.conn import AIOKafkaConnection

from tests.crash.crash_points import LOST_REQUESTS, ONCE, OPENINGS, TRANSACTION_OPENINGS, TRANSACTION_POINTS, Fuse
from tests.crash.late import Late
from tests.crash.machines import Machine

if TYPE_CHECKING:
    from tests.support.oracle import Accepted

__all__ = ["CUT_POINTS", "Cut", "PowerCut", "cuts_of"]

CUT_POINTS: Final[Mapping[str, Callable[[Fuse], None]]] = {
    **TRANSACTION_POINTS,
    **LOST_REQUESTS,
    **TRANSACTION_OPENINGS,
    **{point: OPENINGS[point] for point in ("before an opening is durable", "after an opening is durable")},
}
_FSYNC: Final = ("always", "interval", "never")

_LATE = 0.5  # of the requests that the power cut catches


@dataclass(frozen=True)
class Cut:
    """Where the power goes, when that is reached for the ``times``-th time."""

    point: str
    times: int
    fsync: str
    seed: int
    late: bool = False
    """What was to be written at that moment comes to the broker after all, in the next life."""


def cuts_of(seed: int, times: Sequence[int]) -> list[Cut]:
    """Each of the points once, in any order; ``times``: one of them, where a point is reached again and again."""
    rng = random.Random(f"cuts {seed}")
    return [
        Cut(
            point,
            1 if point in ONCE else rng.choice(times),
            rng.choice(_FSYNC),
            rng.randrange(1 << 32),
            late=point in LOST_REQUESTS and rng.random() < _LATE,
        )
        for point in rng.sample(list(CUT_POINTS), len(CUT_POINTS))
    ]


class PowerCut:
    """One of them: the machine is on until `strike`."""

    def __init__(self, machine: Machine, cut: Cut) -> None:
        self.gone = asyncio.Event()
        self.accepted: list[Accepted] = []
        self.surely = 0  # so many of these must be there
        self.late: Late | None = None
        self.rng = random.Random(cut.seed)
        self._machine = machine
        self._cut = cut
        self._off = False
        self._flushed = 0
        self._unanswered: list[asyncio.Future[Any]] = []
        self._loop = asyncio.get_running_loop()

    def strike(self) -> None:
        """In whichever thread: first nothing is written any more, and then the disk is as it is."""
        self._off = True
        self.surely = len(self.accepted) if self._cut.fsync == "always" else self._flushed
        self._machine.strike(self._cut.seed)
        self.accepted = list(self.accepted)
        self._loop.call_soon_threadsafe(self.gone.set)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """It strikes at its point; until this is over nothing of the old process reaches the broker."""
        fuse = Fuse(self._cut.times, self.strike)
        self._guard_connections(fuse)
        self._look_at_flushes(fuse)
        CUT_POINTS[self._cut.point](fuse)
        try:
            yield
        finally:
            fuse.restore()
            for answer in self._unanswered:  # what still waits has an end
                answer.cancel()

    def _guard_connections(self, fuse: Fuse) -> None:
        send = AIOKafkaConnection.send

        def written(connection: AIOKafkaConnection, request: Any, *arguments: Any, **more: Any) -> Any:
            def write() -> Any:
                return send(connection, request, *arguments, **more)  # type: ignore[no-untyped-call]

            if not self._off:
                return write()
            if self._cut.late and self.late is None:
                self.late = Late(connection, write)
            answer = self._loop.create_future()
            self._unanswered.append(answer)
            return answer

        fuse.put(AIOKafkaConnection, "send", written)

    def _look_at_flushes(self, fuse: Fuse) -> None:
        files = self._machine.file_class
        sync = files.sync

        def flushed(file: Any) -> None:
            by_now = len(self.accepted)
            sync(file)
            if file.path.name == "ring":
                self._flushed = max(self._flushed, by_now)

        fuse.put(files, "sync", flushed)
