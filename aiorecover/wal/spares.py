"""The slots of a ring that hold nothing: free ones, and the next one, allocated and mapped ahead of need.

The loop's thread takes from here when it goes on to the next slot; the keeper's thread prepares the next one and cuts
off what is superfluous. One lock is between them, for all rings of a directory, which share one limit (`Quota`). It is
re-entrant because a signal handler may publish while its own thread holds it.

Who takes a slot stores into it through its mapping, so each page of it was read once by this process before the slot is
first given out, and is again after any read of the file has failed (`mending`): of one that is ready by the keeper's
thread, without the lock. The loop's does not wait for it: it takes the slot, read or not.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from aiorecover.errors import WalError, WalFullError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.mending import mend, unreadable
from aiorecover.wal.recovery import HEAD_BYTES, classify
from aiorecover.wal.room import CUT_MOST, KEEP_FREE, MAIN, Holding, Room, Shares, Way, pays
from aiorecover.wal.slot import Slot

log = logging.getLogger("aiorecover.wal")

NAMES = ("ring", "retry ring", "dead ring")
DELIVERY = "wait for delivery to free space"
REMEDIES = (DELIVERY, DELIVERY, "export the dead letters and purge them")  # nothing else takes them out

Spare = tuple[int, int, Any]
"""index, salt of the life before, mapping"""


class RingFile(Protocol):
    """What a ring needs of storage."""

    path: Path
    failed_reads: int

    def size(self) -> int: ...  # noqa: D102
    def allocate(self, offset: int, length: int) -> None: ...  # noqa: D102
    def truncate(self, size: int) -> None: ...  # noqa: D102
    def punch(self, offset: int, length: int) -> bool: ...  # noqa: D102
    def disk_bytes(self) -> int: ...  # noqa: D102
    def map(self, offset: int, length: int) -> Any: ...  # noqa: D102 - an mmap, or memory in tests
    def read_into(self, buffer: memoryview, offset: int) -> int: ...  # noqa: D102
    def write(self, data: bytes, offset: int) -> None: ...  # noqa: D102
    def read_ahead(self, offset: int, length: int) -> None: ...  # noqa: D102
    def sync(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the rings may grow together; ``free_bytes`` asks the file system, and None does not ask."""

    slot_bytes: int
    max_bytes: int
    min_free_bytes: int = 0
    free_bytes: Callable[[], int] | None = None


class Quota:
    """What the rings of a directory share: their limits, the lock, and who has how many slots."""

    def __init__(self, limits: Limits) -> None:
        """Nobody has any."""
        self.limits = limits
        self.shares = Shares(limits.max_bytes // limits.slot_bytes)
        self.lock = threading.RLock()
        self.exchange = True  # the file system can take slots back from the middle of a file
        self.members: list[Spares] = []
        self.poison: Callable[[WalError], None] | None = None  # nothing is accepted any more, by none of the rings
        self.preparing = False  # the keeper's thread may have slots in hand

    def holdings(self) -> Sequence[Holding]:
        """Of main, retry and dead ring."""
        return [member.holding for member in self.members]

    def excess(self) -> int:
        """Slots on the disk beyond the limit."""
        return self.shares.excess(self.holdings())

    def slots_within(self, free_bytes: int | None) -> int:
        """Slots that the guard of the file system still allows."""
        if free_bytes is None:
            return self.shares.slots
        return max(0, free_bytes - self.limits.min_free_bytes) // self.limits.slot_bytes

    def make_way(self, ring: int) -> bool:
        """Have the other ring with the most free slots give one up; False where that cannot be."""
        others = [member for member in self.members if member.ring != ring]
        giver = max(others, key=lambda member: member.holding.free)
        return giver.give_up(1) > 0

    def make_room(self, size: int) -> bool:
        """Have as many free slots given back to the disk, for another file, as take ``size`` bytes (the keeper's).

        The next slots of retry and dead ring come first: what is in the way of all others leaves through them.

        False: nothing was, as there are not so many; or less than that, where the file system makes no holes.
        """
        count = -(-size // self.limits.slot_bytes)
        with self.lock:
            frees = sum(member.holding.free for member in self.members)
            first = sum(member.empty for member in self.members if member.ring != MAIN)
            return frees >= count + first and all(self._give_back_one() for _ in range(count))

    def _give_back_one(self) -> bool:
        return max(self.members, key=lambda member: member.holding.free).give_back_one()


class Spares:
    """Where a ring takes its next slot from, and where it puts those that it has recycled."""

    def __init__(self, quota: Quota, ring: int, file: RingFile, free: list[tuple[int, int]]) -> None:
        """Join ``quota``: the main ring first, then the retry ring, then the dead ring.

        ``free``: index and last salt of the slots that an opening found free. Where the file has holes, those of them
        that nothing was ever stored in are taken for such: their room may be gone.
        """
        self.ring = ring
        self.quota = quota
        self.slot_bytes = quota.limits.slot_bytes
        self._file = file
        self._room = Room(ring, quota.shares)
        size = file.size()
        self._slots = size // self.slot_bytes
        holes = file.disk_bytes() < size
        self._unallocated: list[tuple[int, int]] = []  # not on the disk, or not any more
        self._free: list[tuple[int, int]] = []
        for slot in free:  # once through: a directory may have 100,000 of them
            (self._unallocated if holes and not slot[1] else self._free).append(slot)
        # Allocated here, or no copy with holes: other slots are allocated again before they are used, live ones, too.
        self._whole = set() if holes else set(range(self._slots)) - {index for index, _ in self._free}
        self._sound: set[int] = set()  # every page of them was read, or nothing of them is on the disk to be read
        self._failed_reads = 0  # of the file, when that was true
        self._ready: list[Spare] = []
        self._taking = 0  # how many are looking for a slot: a signal handler may come in between
        self._lock = quota.lock
        quota.members.append(self)

    @property
    def wanted(self) -> bool:
        """The next slot is not ready yet, or not every page of it was read since a read of the file has failed."""
        if self._failed_reads != self._file.failed_reads:
            return True
        return all(index not in self._sound for index, _, _ in self._ready[-1:])

    @property
    def empty(self) -> bool:
        """No slot is ready."""
        return not self._ready

    @property
    def full(self) -> bool:
        """There was no room for another slot, and is none yet."""
        return self._room.full

    @property
    def allocated(self) -> int:
        """Slots that the file has."""
        return self._slots - len(self._unallocated)

    @property
    def free(self) -> int:
        """Slots of the file that hold nothing."""
        return len(self._free) + len(self._ready)

    @property
    def holding(self) -> Holding:
        """What the ring has, for the limits."""
        ready, free = len(self._ready), len(self._free)
        return Holding(used=self.allocated - free, ready=ready, free=free)

    def check_move(self, moved: int) -> None:
        """Whether the retry ring may take a slot for so many bytes that are moved (the keeper's thread).

        On a full disk there may not be the room for a rewriting yet, as the main ring had taken it before: then what
        pays makes some, unless the main ring is so small that it may take that back.

        Raises:
            WalFullError: it would not leave the room that a rewriting needs.

        """
        quota, limits = self.quota, self.quota.limits
        shares = quota.shares
        with self._lock:
            free_bytes, holdings = self._free_bytes(), quota.holdings()
            more = self._room.more(holdings, disk=quota.slots_within(free_bytes), exchange=quota.exchange)
        holding = holdings[self.ring]
        makes_room = holdings[MAIN].used > shares.kept(MAIN) and pays(moved, self.slot_bytes)
        if not shares.moves_may_take(holding, shares.slots):
            message = f"the {NAMES[self.ring]} is full: {DELIVERY}, or raise wal_max_bytes"
            raise WalFullError(f"{message} used={holding.used * self.slot_bytes} wal_max_bytes={limits.max_bytes}")
        if not makes_room and not shares.moves_may_take(holding, more + quota.exchange):  # what is moved gives a slot
            raise self._disk_full(free_bytes)

    def secure(self, count: int) -> bool:
        """Have one more slot ready of the ``count`` that are to be; whether all of them are (the keeper's thread).

        Raises:
            WalFullError: there is no room for all of them. Those that are ready stay so, see `let_go`.
            WalIOError: as in `prepare`.

        """
        quota = self.quota
        with self._preparing():
            missing = count - len(self._ready)
            if missing <= 0:
                return True
            free_bytes = self._free_bytes()
            disk = quota.slots_within(free_bytes)
            if not self._room.has(missing, quota.holdings(), disk=disk, exchange=quota.exchange):
                raise self._no_room(free_bytes)
            self._ready.append(self._acquire())
            return missing == 1

    def let_go(self) -> None:
        """Only the next slot is to be ready, the others are free (the keeper's thread)."""
        with self._preparing():
            while len(self._ready) > 1:
                index, salt, mapping = self._ready.pop(0)
                mapping.close()
                self._free.append((index, salt))

    def prepare(self) -> None:
        """Have the next slot ready (the keeper's thread).

        Raises:
            WalFullError: the ring or the disk is full.
            WalIOError: the slot cannot be had; where a page can be neither read nor written, nothing is accepted any
                more, by none of the rings.

        """
        with self._preparing():
            if not self._ready:
                self._ready.append(self._acquire())
                return
        self._mend_ready()

    def reserve(self) -> None:
        """As `prepare`, at an opening, which has no time to read a slot (1 GiB perhaps): the keeper's thread will.

        Raises:
            WalFullError: as in `prepare`.
            WalIOError: the slot cannot be had.

        """
        with self._preparing():
            self._ready.append(self._acquire(mended=False))

    def look(self) -> None:
        """Have `full` say by now what somebody would be told who takes the next slot."""
        with self._lock:
            self._taking += 1
            try:
                self._way(self._free_bytes())
            finally:
                self._taking -= 1

    def take(self) -> Spare:
        """The next slot.

        Raises:
            WalFullError: the ring or the disk is full.
            WalIOError: as in `prepare`.

        """
        with suppress(IndexError):  # first without the lock: the keeper may be growing another ring
            return self._ready.pop()
        with self._lock:
            with suppress(IndexError):
                return self._ready.pop()
            return self._acquire()

    def give_back(self, spare: Spare) -> None:
        """Not needed after all."""
        self._ready.append(spare)

    def release(self, index: int, salt: int) -> None:
        """A slot was recycled."""
        self._free.append((index, salt))

    def take_up(self, live: list[Slot], damaged: Sequence[int]) -> None:
        """Slots that are nobody's are free again (the loop's thread, while it takes none): there are ``live`` ones.

        A signal handler that raises may end who was just taking one. From the look at the keeper's thread to the last
        list there is no call, so none of them is on its way from one to another.
        """
        preparing, slots, used = self.quota.preparing, self._slots, live[:]
        free, gone, ready = self._free[:], self._unallocated[:], self._ready[:]
        if preparing or slots == sum(map(len, (used, damaged, free, gone, ready))):
            return
        somebodys = {slot.index for slot in used}.union(
            damaged, *(map(itemgetter(0), had) for had in (free, gone, ready))
        )
        for index in sorted({*range(slots)} - somebodys):
            with suppress(WalIOError):  # what it held last cannot be read: looked at again
                self._free.append((index, self._last_salt(index)))

    def _last_salt(self, index: int) -> int:
        """Of the life that its headers tell of; 0: none."""
        parts = [bytearray(HEAD_BYTES), bytearray(fmt.RESERVED)]
        for part, offset in zip(parts, (0, self.slot_bytes - fmt.RESERVED), strict=True):
            self._file.read_into(memoryview(part), index * self.slot_bytes + offset)
        header = classify(index, *map(bytes, parts)).header
        return 0 if header is None else header.salt

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        with self._lock:
            self.quota.preparing = True
            try:
                yield
            finally:
                self.quota.preparing = False

    def distrust(self) -> None:
        """A page that was sound is none any more: all are read again, each slot's before its next life."""
        self._sound.clear()

    def shrink(self) -> int:
        """Give superfluous slots back to the disk (the keeper's thread); how many.

        Those that nobody needed for long, some at a time, and those beyond the limit at once: from the end of the file,
        and where that is in use, as behind an outage, from anywhere, as holes. Only free ones: a durable checkpoint
        covers them, knows an ordinal above theirs, and nothing maps them.
        """
        with self._preparing():
            before = len(self._free)
            count = self._room.superfluous(free=before, used=self.allocated - self.free)
            self._cut_end(max(count, min(self.quota.excess(), CUT_MOST)))
            left = count - (before - len(self._free))
            self.give_up(max(left, min(self.quota.excess(), CUT_MOST)))
            return before - len(self._free)

    def give_back_free(self, keep: int | None) -> int:
        """At the end of a life, give free slots back to the disk that it would have to itself (the keeper's thread).

        Some at a time; how many. ``keep``: so many stay; None: as many as `shrink` leaves. As in `shrink`, but who
        opens the directory next may be long in coming, or nobody: so also from anywhere in the file.
        """
        with self._preparing():
            before = len(self._free)
            stay = max(KEEP_FREE, self.allocated - self.free) if keep is None else keep
            count = max(0, min(CUT_MOST, before - stay))
            self._cut_end(count)
            self.give_up(count - (before - len(self._free)))
            return before - len(self._free)

    def give_back_one(self) -> bool:
        """Give a free slot back to the disk, as `give_up` (the keeper's thread); False where that cannot be."""
        with self._preparing():
            return self.give_up(1) > 0

    def give_up(self, count: int) -> int:
        """Give so many free slots back to the disk, those at the end of the file first; how many it could.

        As in `shrink`, but the file keeps its length: this also runs while a signal handler may let it grow.
        """
        given = 0
        while given < count and self._free and self.quota.exchange:
            slot = max(self._free)
            with suppress(ValueError):  # a signal handler took it meanwhile
                self._free.remove(slot)
                given += self._punch(slot)
        return given

    def _punch(self, slot: tuple[int, int]) -> bool:
        place = self._free
        self._whole.discard(slot[0])  # also where that fails half-way: it is allocated again before it is used
        try:
            if self._file.punch(slot[0] * self.slot_bytes, self.slot_bytes):
                place = self._unallocated
            else:
                self.quota.exchange = False
        finally:
            place.append(slot)
        return place is self._unallocated

    def close(self) -> None:
        """Drop the mappings."""
        with self._lock:
            self.abandon()

    def abandon(self) -> None:
        """As `close`, in a forked child, where the parent's other thread may have held the lock."""
        for _, _, mapping in self._ready:
            mapping.close()
        self._ready.clear()

    def _cut_end(self, count: int) -> None:
        """Shorten the file by up to so many free slots, and by those that are not on the disk anyway."""
        free, gone = ({index for index, _ in slots} for slots in (self._free, self._unallocated))
        last = self._slots
        while last and (last - 1 in gone or (count and last - 1 in free)):
            last -= 1
            count -= last in free
        if last < self._slots:
            self._cut(last)

    def _cut(self, slots: int) -> None:
        for found in (self._free, self._unallocated):  # in place: the loop's thread may add to it
            for slot in [slot for slot in found if slot[0] >= slots]:
                found.remove(slot)
        self._slots = slots
        self._file.truncate(slots * self.slot_bytes)

    def _acquire(self, *, mended: bool = True) -> Spare:
        self._taking += 1
        try:
            index, salt = self._claim()
        finally:
            self._taking -= 1
        try:
            return index, salt, self._map(index, mended=mended)
        except BaseException:
            self._free.append((index, salt))
            raise

    def _claim(self) -> tuple[int, int]:
        while True:
            free_bytes = self._free_bytes()
            way = self._way(free_bytes)
            if way is None:
                raise self._no_room(free_bytes)
            if way is Way.FREE:
                with suppress(IndexError, ValueError):  # a signal handler took it meanwhile: look again
                    slot = self._next_free()
                    if self._is_whole(slot):
                        return slot
            elif way is Way.GROW or self.quota.make_way(self.ring):
                return self._grow()

    def _free_bytes(self) -> int | None:
        ask = self.quota.limits.free_bytes
        return None if ask is None else ask()

    def _way(self, free_bytes: int | None) -> Way | None:
        """Where the next slot comes from; whoever looks for one below us in the stack counts as if he had it."""
        quota = self.quota
        holdings = list(quota.holdings())
        mine, others = holdings[self.ring], self._taking - 1
        holdings[self.ring] = Holding(mine.used + others, mine.ready, max(0, mine.free - others))
        return self._room.take(holdings, disk=quota.slots_within(free_bytes) - others, exchange=quota.exchange)

    def _next_free(self) -> tuple[int, int]:
        """The slot freed last: its pages are still in memory. Of many the first in the file, so that it can shrink."""
        if len(self._free) <= KEEP_FREE:
            return self._free.pop()
        first = min(self._free)
        self._free.remove(first)
        return first

    def _is_whole(self, slot: tuple[int, int]) -> bool:
        """Where the file may have holes a free slot is allocated first; one without room is none, and others may be."""
        if slot[0] in self._whole:
            return True
        try:
            self._allocate(slot[0])
        except WalFullError:
            self._unallocated.append(slot)
            return False
        except BaseException:
            self._free.append(slot)
            raise
        return True

    def _mend_ready(self) -> None:
        """It was reserved, or a page was lost since. While it is read it can be taken: a bad disk takes its time."""
        with self._preparing():
            doubted = [index for index, _, _ in self._ready[-1:] if self._begins_reading(index)]
        for index in doubted:
            try:
                lost = unreadable(self._file, index * self.slot_bytes, self.slot_bytes)
                if lost and not self._mend_if_ready(index, lost):
                    self._sound.discard(index)
            except BaseException:
                self._sound.discard(index)
                raise

    def _mend_if_ready(self, index: int, lost: list[int]) -> bool:
        """Nobody can take the slot, and store into it, meanwhile; False: somebody has."""
        with self._preparing():
            try:
                spare = self._ready.pop()
            except IndexError:
                return False
            try:
                if spare[0] == index:
                    self._mend(lost)
                return spare[0] == index
            finally:
                self._ready.append(spare)

    def _map(self, index: int, *, mended: bool) -> Any:
        if mended:
            self._make_sound(index)
        return self._file.map(index * self.slot_bytes, self.slot_bytes)

    def _make_sound(self, index: int) -> None:
        """Have every page of a slot that no life stands in at hand for stores, whatever the disk has lost of it."""
        if not self._begins_reading(index):
            return
        try:
            self._mend(unreadable(self._file, index * self.slot_bytes, self.slot_bytes))
        except BaseException:
            self._sound.discard(index)
            raise

    def _begins_reading(self, index: int) -> bool:
        """Whether it has to be read. It counts as sound at once: who distrusts it meanwhile has it read once more."""
        if self._failed_reads != self._file.failed_reads:
            self._failed_reads = self._file.failed_reads
            self.distrust()
        if index in self._sound:
            return False
        self._sound.add(index)
        return True

    def _mend(self, lost: list[int]) -> None:
        """Have these pages be zeros that can be read."""
        try:
            mend(self._file, lost)
        except WalIOError as error:
            if self.quota.poison is not None:
                self.quota.poison(error)
            raise
        if lost:
            message = "pages of the ring could not be read and were written anew, nothing in them was needed"
            log.warning("%s: check the disk path=%s pages=%d offset=%d", message, self._file.path, len(lost), lost[0])

    def _grow(self) -> tuple[int, int]:
        index, salt = self._claim_index()
        try:
            self._allocate(index)
        except WalFullError:
            self._unallocated.append((index, salt))
            self._room.full = True  # whatever the file system said before
            raise
        except BaseException:
            self._unallocated.append((index, salt))
            raise
        return index, salt

    def _allocate(self, index: int) -> None:
        self._file.allocate(index * self.slot_bytes, self.slot_bytes)
        self._whole.add(index)

    def _claim_index(self) -> tuple[int, int]:
        with suppress(IndexError):
            return self._unallocated.pop()
        index = self._slots
        self._slots = index + 1  # no call in between: a signal handler claims the next one
        self._sound.add(index)
        return index, 0

    def _no_room(self, free_bytes: int | None) -> WalFullError:
        name, remedy, limits = NAMES[self.ring], REMEDIES[self.ring], self.quota.limits
        holdings = list(self.quota.holdings())
        if self._room.by_limit or free_bytes is None:
            message = f"the {name} is full: {remedy}, or raise wal_max_bytes"
            used = sum(holding.used for holding in holdings) * self.slot_bytes
            return WalFullError(f"{message} used={used} wal_max_bytes={limits.max_bytes}")
        return self._disk_full(free_bytes)

    def _disk_full(self, free_bytes: int | None) -> WalFullError:
        name, remedy, limits = NAMES[self.ring], REMEDIES[self.ring], self.quota.limits
        message = f"the disk is full: {remedy}, or free space on the disk"
        if limits.min_free_bytes and (free_bytes or 0) >= self.slot_bytes:  # else the guard is not what is in the way
            message += ", or lower wal_min_free_bytes"
        elif all(holding.used == holding.ready for holding in self.quota.holdings()):  # nothing to wait for
            remedy = "free space on it, or begin another directory with a lower slot_bytes: this one keeps its own"
            message = f"the disk has no room for a slot of {self.slot_bytes} bytes: {remedy}"
        return WalFullError(f"{message} ring={name} free={free_bytes} wal_min_free_bytes={limits.min_free_bytes}")
