"""What mapped slots count as memory of the process, and giving it back.

A slot stays mapped from its first frame until nothing waits in it. In an outage those are all slots, and the kernel
counts every page that was stored into as resident memory of the process, although it is page cache: a service with a
memory limit would look as if it grew with its backlog. So the pages are taken out of the mapping again and again. They
stay in the page cache, dirty or not; who settles a record in them has them back for a page fault.
"""

from aiorecover.wal.slot import Slot

LOOKED_AT = 512  # slots in one look: 30 us; 8 GB of the default size a look
DROPPED = 4  # of them, given back in one look: 0.25 to 0.7 ms for each of 16 MiB, while the loop waits; 640 MB a second


class Resident:
    """Goes round the slots of a ring, a bounded number at a time."""

    def __init__(self) -> None:
        """Begin with the oldest."""
        self._next = 0

    def look(self, slots: list[Slot], current: Slot) -> int:
        """Give back what the next of ``slots`` have at hand; how many had something. ``current``: is written to."""
        dropped, seen = 0, slots[self._next : self._next + LOOKED_AT]
        for slot in seen:
            if dropped == DROPPED:
                break
            self._next += 1
            if slot.warm or slot is current:
                slot.drop_pages()
                dropped += 1
        if self._next >= len(slots):
            self._next = 0
        return dropped
