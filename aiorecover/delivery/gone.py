"""When a partition counts as gone: its topic was deleted, and made anew with fewer. Pure: times are handed in.

Kafka never takes a partition away from a topic, so everything in one that is gone is gone, too. But metadata may be
stale: a broker that was cut off from its controller tells of fewer partitions than there are, until it has caught up.
So nothing is decided on one answer, nor on a topic of which Kafka tells nothing.
"""

from collections.abc import Collection

GONE_AFTER = 20.0
"""Seconds for which every answer has to name the same partitions. Answers come from any broker, and one that is cut off
is fenced by its controller after 9 s (18 s with ZooKeeper): by then others were asked, too. Seen at the first look
behind it, some 23 s after the first answer: who adopts a directory keeps it for up to 26 s until then, and its owner
waits for 30 s."""
LOOK_MOST = 5.0
"""Seconds between two answers until it is decided: looks are twice as far apart each time, and the one behind
`GONE_AFTER` comes 22.5 s after the first."""
UNANSWERED = 30.0
"""Seconds without an answer behind which it is asked anew: it is asked every 5 s, each time for 10 s at most. Else the
last answer before an outage and the first one behind it would decide, both of the same broker perhaps."""
SOON = 30.0
"""Seconds from the first answer within which it is decided, if Kafka answers, and always the same."""


class Gone:
    """Since when the metadata of topics lacks partitions for which something waits."""

    def __init__(self) -> None:
        """Nothing is lacking."""
        self._since: dict[str, tuple[frozenset[int], float]] = {}  # the partitions that were told of, and since when
        self._answered: dict[str, float] = {}  # when they were told of last
        self._began: dict[str, float] = {}  # when any was lacking first

    def __bool__(self) -> bool:
        """Whether of some topic it is not decided yet."""
        return bool(self._since)

    def __contains__(self, topic: str) -> bool:
        """Whether of this one it is not."""
        return topic in self._since

    def lasts(self, topic: str, known: frozenset[int], now: float) -> bool:
        """An answer came that names only ``known``: whether all of them have for long enough. Then it is decided."""
        before, since = self._since.setdefault(topic, (known, now))
        self._began.setdefault(topic, now)
        unanswered = now - self._answered.get(topic, now)
        self._answered[topic] = now
        if before != known or unanswered >= UNANSWERED:
            self._since[topic] = known, now
        elif now - since >= GONE_AFTER:
            self.is_back(topic)
            return True
        return False

    def ends_soon(self, now: float) -> bool:
        """Whether of some topic it is not decided, and should be within `SOON`: not where nobody answers any more."""
        return any(now - began < SOON for began in self._began.values())

    def is_back(self, topic: str) -> None:
        """Nothing is lacking any more, or Kafka tells nothing of the topic."""
        for known in (self._since, self._answered, self._began):
            known.pop(topic, None)


def numbers(partitions: Collection[int]) -> str:
    """For the log: a topic may have lost a thousand."""
    first = ",".join(map(str, sorted(partitions)[:10]))
    return first if len(partitions) <= 10 else f"{first},... ({len(partitions)} of them)"  # noqa: PLR2004
