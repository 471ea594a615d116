"""When a transaction ends: how long it waits for more. Pure."""

SHORTEST = 0.1  # seconds from one commit to the next: each costs the brokers a write for every partition in it
LONGEST = 0.5  # seconds, where the ring holds more than is sent meanwhile: readers of committed records wait so long


class Pace:
    """Longer transactions while there is a backlog, short ones else."""

    longest = LONGEST

    def __init__(self) -> None:
        """Begin with short ones."""
        self.interval = SHORTEST
        self._ended = float("-inf")

    def is_over(self, now: float, began: float, *, idle: bool, urgent: bool) -> bool:
        """Whether the transaction that has held something since ``began`` shall end, all times in seconds.

        ``idle``: nothing is to be read, or under way. ``urgent``: somebody waits for it, or for room.
        """
        if urgent:
            return True
        if idle:
            return now - self._ended >= SHORTEST
        return now - began >= self.interval

    def ended(self, now: float, *, more: bool) -> None:
        """A transaction was committed; ``more``: there is more to be read."""
        self._ended = now
        self.interval = min(LONGEST, 2 * self.interval) if more else SHORTEST
