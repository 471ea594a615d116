"""Topics that Kafka does not let us write to, where all goes in transactions, and how long until it is asked again.

One that is refused ends the transaction, and with it the session: what it was given of the others has used up sequences
there. Were the records sent anew, the next one would end in the same way, and so on. So it is asked for the right alone
(`transaction.may_write`), with a transaction that holds nothing, which ends well whatever the answer is.
"""

from collections.abc import Iterable

from aiorecover.delivery.backoff import Backoff


class TopicRights:
    """Pure: who knows what was refused, and granted, says so."""

    def __init__(self, pauses: Backoff) -> None:
        """``pauses``: from one question to the next."""
        self._pauses = pauses
        self._refused: dict[str, None] = {}  # in the order in which they were

    def refused(self, topics: Iterable[str]) -> list[str]:
        """Kafka did so; those of which that is news."""
        news = [topic for topic in topics if topic not in self._refused]
        self._refused.update(dict.fromkeys(news))
        return news

    def granted(self, topic: str) -> None:
        """Kafka lets us write there, or nothing is to be written there any more."""
        self._refused.pop(topic, None)

    def committed(self) -> None:
        """Records got through: the next refusal is a first one."""
        self._pauses.reset()

    def pause(self) -> float:
        """Seconds until Kafka is asked, once more."""
        return self._pauses.next()

    @property
    def topics(self) -> list[str]:
        """What to ask for."""
        return list(self._refused)

    @property
    def missing(self) -> str:
        """What to do about it; "" where nothing is missing."""
        return f"grant Write on the topic {' and on '.join(self._refused)}" if self._refused else ""
