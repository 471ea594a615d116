"""When a partition counts as gone: its topic was deleted, and made anew with fewer. Pure: times are handed in.

Kafka never takes a partition away from a topic, so everything in one that is gone is gone, too. But metadata may be
stale: a broker that was cut off from its controller tells of fewer partitions than there are, until it has caught up.
So nothing is decided on one answer, nor on a topic of which Kafka tells nothing.
"""

from collections.abc import Collection

GONE_AFTER = 20.0
"""Seconds for which every answer has to name the same partitions. Answers come from any broker, and one that is cut off
is fenced by its controller after 9 s (18 s with ZooKeeper): by then others were asked, too. Seen at the first look
behind it, some 26 s after the first answer: who adopts a directory keeps it for that, and its owner waits for 30 s."""


class Gone:
    """Since when the metadata of topics lacks partitions for which something waits."""

    def __init__(self) -> None:
        """Nothing is lacking."""
        self._since: dict[str, tuple[frozenset[int], float]] = {}  # the partitions that were told of, and since when

    def __bool__(self) -> bool:
        """Whether of some topic it is not decided yet."""
        return bool(self._since)

    def __contains__(self, topic: str) -> bool:
        """Whether of this one it is not."""
        return topic in self._since

    def lasts(self, topic: str, known: frozenset[int], now: float) -> bool:
        """An answer came that names only ``known``: whether all of them have for long enough. Then it is decided."""
        before, since = self._since.setdefault(topic, (known, now))
        if before != known:
            self._since[topic] = known, now
        elif now - since >= GONE_AFTER:
            del self._since[topic]
            return True
        return False

    def is_back(self, topic: str) -> None:
        """Nothing is lacking any more, or Kafka tells nothing of the topic."""
        self._since.pop(topic, None)


def numbers(partitions: Collection[int]) -> str:
    """For the log: a topic may have lost a thousand."""
    first = ",".join(map(str, sorted(partitions)[:10]))
    return first if len(partitions) <= 10 else f"{first},... ({len(partitions)} of them)"  # noqa: PLR2004
