"""How far a turn of an adopter comes, and whether it is cut off in the middle of its reading. Pure: counts are given.

What waits is read from its front, and what does not get through stays there: the next turn has to read all of it again,
some 5 us a record, before it comes to anything that this one did not. Beside a partition that was stuck for hours that
may be more than fits into a turn, and what stands behind it, for others, would wait as long as the partition.

Cut off is who has not come to the end, was still reading, and delivered little of what he read. Where more of it is
delivered the next turn comes as much further, in the same time, and an owner waits no longer for it. And who stood
still lacks no time: where nobody gets through, or where Kafka takes less than is read, which at first goes into memory,
and then no faster than it is taken.
"""

SHARE = 8
"""Of what was read, the part that is little. Who reads on reads half of it in half of the time, or a quarter as others
need the machine. Who reads ahead of a Kafka that takes less reads no more in the second half than is delivered in it:
if that is an eighth of all, a quarter of all is delivered."""


class Headway:
    """Of one turn, by how many records no reader has reached."""

    def __init__(self, unread: int) -> None:
        """It begins with so many."""
        self._at_first = unread
        self._at_half: int | None = None

    def half_over(self, unread: int) -> None:
        """Half of its time is."""
        self._at_half = unread

    def cut_off(self, unread: int, settled: int, *, checking: bool = False) -> bool:
        """Whether it lacked time; not one that ended in its first half. ``settled``: so many of those that it read.

        ``checking``: it was about to find something out, which the next one begins anew.
        """
        if self._at_half is None:
            return False
        if checking:
            return True
        if unread <= 0:
            return False
        read, late = self._at_first - unread, self._at_half - unread
        return SHARE * settled < read <= SHARE * late
