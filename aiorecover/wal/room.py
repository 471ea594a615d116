"""How large a ring may be: when it is full, when it accepts again, and what it gives back to the disk. Pure.

Full and not full any more are two marks. A ring that accepted as soon as one slot is free would be full again a moment
later, and every publisher would see errors and successes in turn.
"""

from dataclasses import dataclass

LOW_MARK_SHARE = 32  # of the slots, one in so many has to be free before a full ring accepts again …
LOW_MARK_MOST = 8  # … but never more: 128 MiB of ordinary slots, a second of publishing at full speed
KEEP_FREE = 4  # slots that stay when a ring shrinks: the next burst finds them ready
IDLE_LOOKS = 12  # so many looks in a row must find a slot superfluous: a minute of ordinary checkpoints
CUT_MOST = 16  # slots cut off at once: whoever needs the next slot meanwhile waits for the file system


@dataclass(slots=True)
class Room:
    """The marks of one ring, in slots; ``disk`` arguments are what the file system and its guard still allow."""

    most: int
    full: bool = False
    _superfluous: int = 0  # slots that every look since `_looks` began has found superfluous
    _looks: int = 0

    def take(self, *, allocated: int, free: int, disk: int) -> bool | None:
        """Whether the next slot is a new one (True) or a free one (False); None when there is no room.

        There is none either where the ring was full and has not come down to the low mark.

        Args:
            allocated: slots that the file has.
            free: those of them that wait to be used again.
            disk: slots that the file system still has room for.

        """
        growable = max(0, min(self.most - allocated, disk))
        self.full = free + growable < (self._low(allocated) if self.full else 1)
        return None if self.full else free == 0

    def superfluous(self, *, free: int, used: int) -> int:
        """How many free slots may be cut off after this look; 0 until enough looks in a row agree."""
        spare = max(0, free - max(KEEP_FREE, used))
        if spare == 0:
            self._looks = 0
            return 0
        self._superfluous = spare if self._looks == 0 else min(self._superfluous, spare)
        self._looks += 1
        if self._looks < IDLE_LOOKS:
            return 0
        self._looks = IDLE_LOOKS - 1  # the next look may go on cutting
        return min(self._superfluous, CUT_MOST)

    @staticmethod
    def _low(allocated: int) -> int:
        return max(1, min(LOW_MARK_MOST, allocated // LOW_MARK_SHARE))
