"""How large the rings may be: who may have one more slot, when a ring is full, and what it gives back. Pure.

One limit bounds the three rings together, and a part of it is kept for each (`Shares`). What counts is what a ring
uses: a slot that holds nothing can be given up for another ring's.

Full and not full any more are two marks (`Room`). A ring that accepted as soon as one slot is free would be full again
a moment later, and every publisher would see errors and successes in turn.

Why nothing waits for room for ever: delivering and settling take no room, but for a block of each new lane (`lanes`),
which gets it in the place of free slots, beyond those that the other rings have to have ready, and else takes turns
with the others; so all that is not stalled leaves the main ring by itself. What stands in its way leaves it through the
retry or the dead ring, and for each of these a slot is ready before the main ring takes its last one. A retry ring at
its limit is emptied by delivery, too; a dead ring by whoever purges it, which takes no room either. So no ring waits
for another one that waits for it.

A retry ring is freed oldest first as well: beside one lane that does not come back, what all others have delivered
would stay in it. Then it is rewritten, which takes room before it gives any. So moves leave that much room in its
share, and the main ring leaves it, too; on a disk that has no more, of what is free in the rings. All that a rewriting
takes is had before it begins: one that stood still without room would keep moves waiting, for what it has taken itself.
(With fewer than nine slots there is no such room, and one slot of moved records stays until the last of them is
delivered.)
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

MAIN, RETRY, DEAD = range(3)
KEPT = (4, 1, 1)  # slots kept for each ring. Main: one written, one read, one waiting for its checkpoint, one ready
SLOTS_LEAST = sum(KEPT)
RETRY_SHARE = 2  # at most one in so many is the retry ring's: what is moved is under half of what the main ring used
DEAD_SHARE = 4  # … and the dead ring's: letters stay until somebody purges them, an outage must find room all the same
UNUSED_SHARE = 8  # one byte in so many of a slot may stay unused at its end, where the next record does not fit
LOW_MARK_SHARE = 32  # of the slots, one in so many has to be free before a full ring accepts again …
LOW_MARK_MOST = 8  # … but never more: 128 MiB of ordinary slots, a second of publishing at full speed
KEEP_FREE = 4  # slots that stay when a ring shrinks: the next burst finds them ready
IDLE_LOOKS = 12  # so many looks in a row must find a slot superfluous: a minute of ordinary checkpoints
CUT_MOST = 16  # slots given back at once: whoever needs the next slot meanwhile waits for the file system


class Way(Enum):
    """How a ring gets its next slot."""

    FREE = "a free one of its own"
    GROW = "a new one"
    EXCHANGE = "a new one, for a free one that another ring gives up"


@dataclass(frozen=True, slots=True)
class Holding:
    """What a ring has on the disk, in slots: ``ready`` ones of those ``used`` wait for their first frame."""

    used: int
    ready: int
    free: int

    @property
    def allocated(self) -> int:
        """Used or free."""
        return self.used + self.free


@dataclass(frozen=True, slots=True)
class Shares:
    """What of ``slots`` each ring may use; holdings are those of main, retry and dead ring, in this order."""

    slots: int

    def kept(self, ring: int) -> int:
        """Slots that a ring may use whatever the others do, also where there is more than ``slots`` already."""
        if ring == MAIN:
            return max(1, min(KEPT[MAIN], self.slots - KEPT[RETRY] - KEPT[DEAD]))
        return KEPT[ring]

    def most(self, ring: int) -> int:
        """Slots that a ring may use at most, however little the others do."""
        others = sum(self.kept(other) for other in (MAIN, RETRY, DEAD) if other != ring)
        share = {RETRY: self.slots // RETRY_SHARE, DEAD: self.slots // DEAD_SHARE}.get(ring, self.slots)
        return max(self.kept(ring), min(share, self.slots - others))

    def wanted(self, ring: int, holding: Holding) -> int:
        """What the retry or the dead ring should have: a slot ready beside what it holds, and room for a rewriting."""
        then = holding.used - holding.ready + 1
        room = rewriting_takes(then) if ring == RETRY else 0
        return max(holding.used, min(then + room, self.most(ring)))

    def moves_may_take(self, holding: Holding, more: int) -> bool:
        """Whether the retry ring may hold one slot more: there has to be room for a rewriting then.

        So moves fill seven elevenths of what it may have. What is settled later on in any order, beside a lane that
        does not come back, would else stay there, and there would be room for nothing any more.

        ``more``: slots that it can get beside what it has.
        """
        then = holding.used - holding.ready + 1
        return then == 1 or then + rewriting_takes(then) <= min(self.most(RETRY), holding.used + more)

    def left(self, ring: int, holdings: Sequence[Holding]) -> int:
        """How many slots more ``ring`` may use.

        The main ring leaves the others what they want, and they leave it what is kept for it. Every ring may have what
        is kept for it: beyond ``slots`` that is only where a directory was opened with a lower limit than it had.
        """
        used = holdings[ring].used
        claims = sum(self._claim(other, holdings[other], ring) for other in (MAIN, RETRY, DEAD) if other != ring)
        may = max(self.slots - claims, self.kept(ring))
        return max(0, min(may, self.most(ring)) - used)

    def lacking(self, ring: int, holdings: Sequence[Holding]) -> int:
        """Slots that the other rings want and do not have on the disk: room there that ``ring`` must not take."""
        if ring != MAIN:
            return 0
        return sum(max(0, self.wanted(other, holdings[other]) - holdings[other].allocated) for other in (RETRY, DEAD))

    def given(self, ring: int, holdings: Sequence[Holding]) -> int:
        """Free slots that the other rings can give up: to the main ring those that they do not want themselves."""
        others = [(other, holdings[other]) for other in (MAIN, RETRY, DEAD) if other != ring]
        if ring != MAIN:
            return sum(holding.free for _, holding in others)
        return sum(max(0, holding.allocated - self.wanted(other, holding)) for other, holding in others)

    def excess(self, holdings: Sequence[Holding]) -> int:
        """Slots on the disk beyond ``slots``: to be given back as soon as they hold nothing."""
        return max(0, sum(holding.allocated for holding in holdings) - self.slots)

    def _claim(self, other: int, holding: Holding, ring: int) -> int:
        if ring == MAIN:
            return self.wanted(other, holding)
        return max(holding.used, self.kept(other))


def rewriting_takes(slots: int) -> int:
    """Slots that rewriting a retry ring of so many takes at most: under half of it waits, and copies begin a slot.

    (With records larger than an eighth of a slot it may be more, and then there has to be that room.)
    """
    if slots < 2:  # noqa: PLR2004 - one slot is not rewritten
        return 0
    return copies_take(slots, 2)


def pays(moved: int, slot_bytes: int) -> bool:
    """Whether a slot of the main ring gives more room than copies of ``moved`` bytes take with room to rewrite them."""
    return moved * (3 * UNUSED_SHARE - 2) < slot_bytes * 2 * (UNUSED_SHARE - 1)


def copies_take(waiting: int, slot_bytes: int) -> int:
    """Slots that copies of so many bytes take at most, unless records are larger than an eighth of a slot."""
    return waiting * UNUSED_SHARE // (slot_bytes * (UNUSED_SHARE - 1)) + 1


@dataclass(slots=True)
class Room:
    """The marks of one ring."""

    ring: int
    shares: Shares
    full: bool = False
    by_limit: bool = False  # the shares are what there is no room in; else the disk
    _spare: deque[int] = field(default_factory=lambda: deque(maxlen=IDLE_LOOKS))  # what the last looks found

    def take(self, holdings: Sequence[Holding], *, disk: int, exchange: bool = True) -> Way | None:
        """Where the next slot comes from; None when there is no room.

        There is none either where the ring was full and has not come down to the low mark.

        Args:
            holdings: of main, retry and dead ring.
            disk: slots that the file system still has room for, as far as its guard allows.
            exchange: what is free in another ring can be given up.

        """
        mine = holdings[self.ring]
        needed = self._low(mine.allocated) if self.full else 1
        self.full = not self.has(needed, holdings, disk=disk, exchange=exchange)
        if self.full:
            return None
        if mine.free:
            return Way.FREE
        given = self.shares.given(self.ring, holdings) if exchange else 0
        return Way.EXCHANGE if given and not self._new(holdings, disk) else Way.GROW

    def has(self, count: int, holdings: Sequence[Holding], *, disk: int, exchange: bool) -> bool:
        """Whether there is room for so many slots more; `by_limit` says what there is none in."""
        left = self.shares.left(self.ring, holdings)
        within = self.shares.slots - sum(holding.allocated for holding in holdings)
        self.by_limit = left < count or within <= 0
        return self.more(holdings, disk=disk, exchange=exchange) >= count

    def more(self, holdings: Sequence[Holding], *, disk: int, exchange: bool) -> int:
        """Slots more that the ring can get now, those among them that it has free."""
        shares, mine = self.shares, holdings[self.ring]
        lacking = shares.lacking(self.ring, holdings)
        given = shares.given(self.ring, holdings) if exchange else 0
        owed = max(0, lacking - disk) if exchange else 0
        grows = max(self._new(holdings, disk) + given, self._kept(mine, max(0, disk - lacking)))
        return min(shares.left(self.ring, holdings), self._own(mine, owed) + grows)

    def _new(self, holdings: Sequence[Holding], disk: int) -> int:
        """Slots by which the file may grow with nothing given up for them."""
        within = self.shares.slots - sum(holding.allocated for holding in holdings)
        return max(0, min(within, disk - self.shares.lacking(self.ring, holdings)))

    def _own(self, mine: Holding, owed: int) -> int:
        """Free slots that the ring may use: not those it ``owed`` the others, but for what is kept for it."""
        kept = max(0, self.shares.kept(self.ring) - mine.used)
        return max(mine.free - owed, min(mine.free, kept))

    def superfluous(self, *, free: int, used: int) -> int:
        """How many free slots may be cut off after this look: no look of the last minute has found fewer."""
        self._spare.append(max(0, free - max(KEEP_FREE, used)))
        return min(CUT_MOST, *self._spare) if len(self._spare) == IDLE_LOOKS else 0

    def _kept(self, mine: Holding, disk: int) -> int:
        """Slots by which the file may grow beyond the limit, up to what is kept for the ring.

        What is kept for the retry and the dead ring makes room: if it has to be, it is taken from what the guard of the
        disk would leave for others, too.
        """
        kept = max(0, self.shares.kept(self.ring) - mine.allocated)
        return min(kept, disk) if self.ring == MAIN else kept

    def _low(self, allocated: int) -> int:
        """Whoever makes room takes what there is; whoever fills it waits for some."""
        if self.ring != MAIN:
            return 1
        return max(1, min(LOW_MARK_MOST, allocated // LOW_MARK_SHARE))
