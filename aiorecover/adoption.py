"""Adoption: a producer delivers what a process that is gone has left in the same ``wal_dir``.

Each quarter of ``adoption_grace_ms`` (0.1 to 5 s) a producer looks at the other directories; looking takes no lock. It
adopts one where

* no process had it at any look for the grace period, and none opened it in between;
* records wait in it, dead letters aside;
* its ``name`` and ``guarantee`` are ours, and so is the cluster that it remembers. A directory that never reached a
  cluster remembers none: then ``name`` and ``guarantee`` decide alone, also where both have no name;
* no other directory here has its producer id: a copy would send the same records again;
* our own delivery is connected.

It is opened as its own process would open it, and accepts nothing: its records keep their ids and their order, its dead
letters stay in it. One directory is delivered at a time, for a turn: a third of ``full_timeout_ms``, 10 s at most, so
that a process which waits for it by name gets it. The next turn comes half a second later, or, where a turn brought
nothing, after a pause of 10 s, which doubles up to 600 s.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from aiorecover.config import Config
from aiorecover.errors import WalError, WalLockedError
from aiorecover.kafka.delivery import Delivery
from aiorecover.ring import inspect
from aiorecover.ring.checkpoint import Checkpoint, load
from aiorecover.ring.directory import CHECKPOINT, instances
from aiorecover.ring.ring import Ring

LOOK_SHARE, LOOK_LEAST_S, LOOK_MOST_S = 0.25, 0.1, 5.0  # of the grace period
TURN_SHARE, TURN_LEAST_S, TURN_MOST_S = 1 / 3, 0.2, 10.0  # of an owner's wait; less would not do to open and connect
BUSY_S = 60.0  # that a turn may take beyond, to read what is there, or to look in Kafka: the next one would begin anew
STEP_S = 0.1  # between two looks whether it does
RETAKE_S = 0.5  # free before any turn: an owner that waits by name looks each 50 ms
PAUSE_FIRST_S, PAUSE_MOST_S = 10.0, 600.0  # after a turn that brought nothing

log = logging.getLogger("aiorecover")


class Opened(Protocol):
    """A `Runtime`, as far as adoption knows it: ours, or that of an adopted directory."""

    ring: Ring
    delivery: Delivery

    def start(self) -> None:
        """Begin to deliver."""

    async def drained(self, limit_s: float | None) -> None:
        """Wait until what is in the ring now is done."""

    async def close(self) -> int:
        """Let go of the directory; return the number of records left."""


@dataclass(slots=True)
class Neighbour:
    """A directory that no process has."""

    checkpoint: Checkpoint
    free_since: float
    records: int | None = None  # that wait; None: not looked at yet
    copied: bool = False
    begun: bool = False  # a turn of it has begun
    not_before: float = 0.0
    pause_s: float = 0.0

    def back_off(self, now: float) -> None:
        """Try again after a pause, longer than the last one."""
        self.pause_s = min(max(2 * self.pause_s, PAUSE_FIRST_S), PAUSE_MOST_S)
        self.not_before = now + self.pause_s


class Adoption:
    """Look after the other directories of the ``wal_dir`` of a started producer.

    Attributes:
        directories: number of those that were delivered to the end.

    """

    def __init__(self, config: Config, own: Opened, open_: Callable[[Config], Awaitable[Opened]]) -> None:
        """Make it in the loop; ``open_`` opens the directory that its options name."""
        self._config = replace(config, adoption_grace_ms=None, full_timeout_ms=0)
        self._own, self._open = own, open_
        grace_s = (config.adoption_grace_ms or 0) / 1000
        self._look_s = min(max(grace_s * LOOK_SHARE, LOOK_LEAST_S), LOOK_MOST_S)
        self._grace_s = max(grace_s, RETAKE_S)
        self._turn_s = min(max(config.full_timeout_ms / 1000 * TURN_SHARE, TURN_LEAST_S), TURN_MOST_S)
        self.directories = self._records = 0
        self._known: dict[str, Neighbour] = {}
        self._told: set[tuple[str, str]] = set()
        self._adopted: Opened | None = None
        self._turn: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._ending = self._loop.create_future()

    @property
    def records(self) -> int:
        """Records of adopted directories that were delivered, or became dead letters."""
        return self._records + (0 if self._adopted is None else _done(self._adopted))

    async def run(self) -> None:
        """Look again and again."""
        pause_s = self._look_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = await self.look()

    async def stop(self) -> None:
        """End the turn that is under way, and let go of its directory."""
        if not self._ending.done():
            self._ending.set_result(None)
        if self._turn is not None:
            await asyncio.wait({self._turn})

    async def look(self) -> float:
        """Look at the other directories, and deliver one that is due; return the seconds to the next look."""
        try:
            self._remember(await asyncio.to_thread(self._survey))
        except WalError as error:
            self._refuse("", str(error))
            return self._look_s
        now = self._loop.time()
        due = [(max(one.free_since + self._grace_s, one.not_before), name) for name, one in self._known.items()]
        for at, name in sorted(due):
            if at <= now and self._ready and await self._waits(name, self._known[name]) and self._ready:
                await self._have_turn(name, self._known[name])
                return RETAKE_S
        return self._look_s

    @property
    def _ready(self) -> bool:
        delivery = self._own.delivery
        reached = delivery.connection.connected and delivery.connection.cause is None
        return reached and delivery.failure is None and not self._ending.done()

    # -- which one -----------------------------------------------------------------------------------------------------

    def _survey(self) -> dict[str, tuple[bool, Checkpoint]]:
        """Return which directories have an owner, and what their checkpoints say; blocks."""
        files, found = self._own.ring.files, {}
        for path, locked, *_ in instances(self._config.wal_dir, files=files):
            try:
                data = files.read_file(path / CHECKPOINT)
                if data is not None:  # else nothing was ever stored in its ring (R1)
                    found[path.name] = locked, load(data, path / CHECKPOINT)
            except WalError as error:
                self._refuse(path.name, str(error))
        return found

    def _remember(self, found: dict[str, tuple[bool, Checkpoint]]) -> None:
        known, self._known = self._known, {}
        ids = Counter(checkpoint.producer_id for _, checkpoint in found.values())
        for name, (locked, checkpoint) in found.items():
            if locked or name == self._own.ring.directory.instance:
                continue
            one = known.get(name)
            if one is None or one.checkpoint.epoch != checkpoint.epoch:
                one = Neighbour(checkpoint, self._loop.time())
            one.copied = ids[checkpoint.producer_id] > 1
            self._known[name] = one

    async def _waits(self, name: str, one: Neighbour) -> bool:
        """Whether records wait in a directory that are ours to deliver."""
        if one.records is None:
            try:
                view = await asyncio.to_thread(inspect.look, self._config.wal_dir / name, self._own.ring.files)
            except WalError as error:
                self._refuse(name, str(error))
                one.back_off(self._loop.time())
                return False
            one.records = view.records
        wrong = self._wrong(one) if one.records else None
        if wrong is not None:
            self._refuse(name, wrong)
        return one.records > 0 and wrong is None

    def _wrong(self, one: Neighbour) -> str | None:
        ours, its = self._own.ring.checkpoint, one.checkpoint
        if one.copied:
            return f"another directory has its producer id: move the copy out of wal_dir producer_id={its.producer_id}"
        for option, stored, own in (
            ("name", its.name, ours.name),
            ("guarantee", its.guarantee, ours.guarantee),
            ("cluster_id", its.cluster_id, its.cluster_id and ours.cluster_id),
        ):
            if stored != own:
                message = "its records go elsewhere: start a producer for them, with this folder as instance"
                return f"{message} {option}={stored!r} own={own!r}"
        return None

    def _refuse(self, name: str, why: str) -> None:
        if (name, why) not in self._told:
            self._told.add((name, why))
            log.warning("adoption_refused %s path=%s", why, self._config.wal_dir / name)

    # -- delivering it -------------------------------------------------------------------------------------------------

    async def _have_turn(self, name: str, one: Neighbour) -> None:
        """Deliver a directory for a turn, in a task of its own: a caller that is cancelled leaves it to its end."""
        self._turn = self._loop.create_task(self._take_turn(name, one), name="aiorecover-adoption")
        await asyncio.wait({self._turn})
        error = None if self._turn.cancelled() else self._turn.exception()
        if isinstance(error, WalLockedError):  # another process was faster
            self._known.pop(name, None)
        elif error is not None:
            self._refuse(name, str(error) or repr(error))
            one.back_off(self._loop.time())

    async def _take_turn(self, name: str, one: Neighbour) -> None:
        adopted = await self._open(replace(self._config, instance=name))
        path = adopted.ring.directory.path
        if not one.begun:
            log.info("adopted a directory that no process has is delivered path=%s records=%s", path, one.records)
        self._adopted, one.begun = adopted, True
        try:
            adopted.start()
            await self._deliver(adopted)
        finally:
            left = await adopted.close()
            done, self._adopted = _done(adopted), None
            self._records += done
            one.checkpoint = adopted.ring.checkpoint
            one.records = left
            if not one.records:
                self.directories += 1
                log.info("adoption_done the directory is delivered and let go path=%s", path)
            elif done:
                one.pause_s = 0.0
                one.not_before = self._loop.time() + RETAKE_S
            else:
                one.back_off(self._loop.time())

    async def _deliver(self, adopted: Opened) -> None:
        """Deliver until all is done, the turn is over, or our producer stops."""
        drained = asyncio.ensure_future(adopted.drained(None))
        until = self._loop.time() + self._turn_s
        try:
            while not (drained.done() or self._ending.done()):
                busy = adopted.ring.recovering or adopted.delivery.checker.reading
                if self._loop.time() >= until + (BUSY_S if busy else 0.0):
                    break
                await asyncio.wait({drained, self._ending}, timeout=STEP_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            drained.cancel()
            await asyncio.gather(drained, return_exceptions=True)  # it fails where delivery stops; its log says so


def _done(adopted: Opened) -> int:
    return adopted.delivery.delivered + adopted.delivery.dead_lettered
