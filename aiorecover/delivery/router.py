"""Which lane a record belongs to: explicit partition, the key's partition, or the sticky one.

A topic is open once its partitions are known, and among them those for which the last process has left something in
flight; or once these count as gone (`gone`), and what was in flight there has found another lane (`rehoming`). While it
is not, where a record names a partition that does not exist, and where the user's partitioner fails, its records are
passed over: the dispatcher remembers where the topic fell behind and reads it again later. A guess in the partitioner's
place could put a key into two partitions.

The user's partitioner is asked once for a record: its answer stays the key's, or that of the run of records without a
key, also while that lane takes nothing. Only where the topic has grown meanwhile is it asked anew: then the record is
in no batch, and goes to one lane all the same. Where it fails it is asked again.
"""

import logging
import operator
import time
from collections.abc import Callable

from aiokafka.errors import KafkaError

from aiorecover.delivery.behind import KEY_CACHE, Behind
from aiorecover.delivery.gone import GONE_AFTER, Gone, numbers
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.partitioner import partition_for

log = logging.getLogger("aiorecover.delivery")

Partitioner = Callable[[bytes | None, list[int], list[int]], int]


class Topic:
    """What the dispatcher knows of a topic. ``count`` is 0 while its partitions are unknown."""

    __slots__ = (
        "by_key",
        "chosen",
        "closed",
        "count",
        "gone",
        "lanes",
        "name",
        "partitions",
        "spread",
        "sticky",
        "unplaced",
    )

    def __init__(self, name: str) -> None:
        """Start unknown."""
        self.name = name
        self.count = 0
        self.closed = False  # what was in flight to partitions that are gone goes first
        self.gone: frozenset[int] = frozenset()  # partitions with lanes that wait, and that count as gone
        self.partitions: list[int] = []
        self.spread: tuple[int, ...] = ()  # the same; one object for a thousand gaps, so that they are told apart fast
        self.lanes: dict[int, Lane] = {}
        self.by_key: dict[bytes | None, Lane] = {}  # that take what comes; None: records without a key, at the moment
        self.chosen: dict[bytes, Lane] = {}  # what was answered for a key, whether that lane takes anything or not
        self.sticky: Lane | None = None
        self.unplaced = False  # the user's partitioner failed, and nothing has been placed since

    @property
    def is_open(self) -> bool:
        """Records may go to its lanes."""
        return self.count > 0 and not self.closed


class Router:
    """Topics and their lanes."""

    def __init__(
        self,
        partitions: Callable[[str], frozenset[int]],
        available: Callable[[str], frozenset[int]],
        want: Callable[[str], None],
        partitioner: Partitioner | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The first three ask the session; ``partitioner`` has aiokafka's signature; ``clock``: in seconds."""
        self._partitions = partitions
        self._available = available
        self._want = want
        self._partitioner = partitioner
        self._clock = clock
        self._gone = Gone()
        self.topics: dict[str, Topic] = {}

    @property
    def spreads_by_key(self) -> bool:
        """Kafka's partitioner: a key's lane follows from the key and the number of partitions alone."""
        return self._partitioner is None

    def topic(self, name: str) -> Topic:
        """The topic, with its partitions if they are known by now."""
        topic = self._named(name)
        if topic.count == 0 and name not in self._gone:  # there only answers decide, and this is asked for each record
            self._learn(topic)
        return topic

    def _named(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name)
            self._want(name)
        return topic

    def refresh(self) -> bool:
        """Look at the metadata again, as an answer came; True when a topic became known or larger."""
        now = self._clock()
        return sum(self._learn(topic, now) for topic in self.topics.values()) > 0  # every topic is looked at

    @property
    def undecided(self) -> bool:
        """Partitions are lacking, and whether they are gone takes more answers."""
        return bool(self._gone)

    @property
    def deciding(self) -> bool:
        """And that should be over within a bounded time: not in an outage, nor where each answer is another one."""
        return self._gone.ends_soon(self._clock())

    def lanes(self) -> list[Lane]:
        """Every lane there is."""
        return [lane for topic in self.topics.values() for lane in topic.lanes.values()]

    def resumed(self, name: str, partition: int) -> Lane:
        """The lane that the last process had, whatever is known of the topic today."""
        return self._lane_of(self._named(name), partition)

    def lane(self, topic: Topic, key: bytes | None, partition: int | None) -> Lane | None:
        """The record's lane; None while it has none: topic not open, missing partition, failing partitioner."""
        return self.place(topic, key, partition) if topic.is_open else None

    def place(self, topic: Topic, key: bytes | None, partition: int | None) -> Lane | None:
        """As `lane`, once the partitions are known: also while the topic is closed for all others."""
        if partition is not None:
            lane = topic.lanes.get(partition)  # first: with 1,000 partitions the list below takes 10 us to search
            if lane is not None and partition < topic.count:
                return lane
            return self._lane_of(topic, partition) if partition in topic.partitions else None
        if key is None:
            return self._sticky(topic)
        lane = topic.chosen.get(key)
        if lane is None or lane.gone:
            chosen = self._choose(topic, key)
            if chosen is None:
                return None
            lane = self._lane_of(topic, chosen)
            if len(topic.chosen) >= KEY_CACHE:
                topic.chosen.clear()
            topic.chosen[key] = lane
        return lane

    def decided(self, topic: Topic, key: bytes) -> int | None:
        """The partition of a key's records, unless somebody would have to be asked for it."""
        lane = topic.chosen.get(key)
        if lane is not None:
            return lane.partition
        return self._choose(topic, key) if self.spreads_by_key and topic.count else None

    @staticmethod
    def remember(topic: Topic, key: bytes | None, lane: Lane) -> None:
        """Records with this key go to ``lane`` without a further question: none of them is behind."""
        if len(topic.by_key) >= KEY_CACHE:
            topic.by_key.clear()
        topic.by_key[key] = lane

    def _sticky(self, topic: Topic) -> Lane | None:
        """One partition for a run of records without a key: until its batch is full, as Kafka's own clients do.

        What Kafka's partitioner has chosen is left where it does not get through. The user's is not asked again: the
        next answer may be a lane that is worse off, and a record would go to and fro between the two.
        """
        lane = topic.sticky
        if lane is None or (not _takes(lane) if self.spreads_by_key else lane.gone):
            lane = topic.sticky = self._next_sticky(topic)
        return lane

    def forget(self, *lanes: Lane) -> None:
        """These lanes take nothing: their records are looked at one by one. One pass over the keys does for all."""
        gone = set(lanes)
        for name in {lane.topic for lane in lanes}:
            topic = self.topics[name]
            topic.by_key = {key: kept for key, kept in topic.by_key.items() if kept not in gone}

    def forget_covered(self, gap: Behind) -> None:
        """So are those that are behind."""
        if gap.lane is not None:
            self.forget(gap.lane)
        elif gap.topic in self.topics:
            self.topics[gap.topic].by_key.clear()

    def avoid(self, lane: Lane) -> None:
        """The lane does not get through at the moment: records without a key go elsewhere."""
        topic = self.topics[lane.topic]
        if topic.sticky is lane:
            topic.by_key.pop(None, None)

    def rotate(self, lane: Lane) -> None:
        """A lane's batch is closed: records without a key go on to the next partition."""
        topic = self.topics[lane.topic]
        if topic.sticky is lane:
            topic.by_key.pop(None, None)
            topic.sticky = self._next_sticky(topic)

    def _next_sticky(self, topic: Topic) -> Lane | None:
        if self._partitioner is not None:
            chosen = self._choose(topic, None)
            return None if chosen is None else self._lane_of(topic, chosen)
        available = sorted(self._available(topic.name)) or topic.partitions
        start = topic.sticky.partition if topic.sticky is not None else -1
        order = [p for p in available if p > start] + [p for p in available if p <= start]
        healthy = [p for p in order if p not in topic.lanes or _takes(topic.lanes[p])]
        open_ones = healthy or [p for p in order if not topic.lanes[p].passed_over]
        lasting = open_ones or [p for p in order if not topic.lanes[p].gone]
        return self._lane_of(topic, (lasting or order)[0])  # one that is halted for good refuses what another will take

    def _choose(self, topic: Topic, key: bytes | None) -> int | None:
        """The partition for a key; None when the user's partitioner fails, or names no partition of the topic."""
        if self._partitioner is None:
            return topic.partitions[partition_for(key or b"", topic.count)]
        available = sorted(self._available(topic.name))
        every = list(topic.partitions)  # the partitioner may do with its lists what it likes
        try:
            chosen = _answered(self._partitioner(key, every, available or list(every)), topic.partitions)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # whatever class it makes of its own, a cancelled lookup among them
            if not topic.unplaced:
                log.warning(
                    "the partitioner failed: the topic's records wait in the ring, and it is asked again topic=%s",
                    topic.name,
                    exc_info=True,
                )
            topic.unplaced = True
            return None
        topic.unplaced = False
        return chosen

    def _lane_of(self, topic: Topic, partition: int) -> Lane:
        lane = topic.lanes.get(partition)
        if lane is None:
            lane = topic.lanes[partition] = Lane(topic.name, partition)
        return lane

    def _learn(self, topic: Topic, now: float | None = None) -> bool:
        """Take what the metadata says; ``now``: when the answer came, None: it may be an old one."""
        try:
            known = self._partitions(topic.name)
        except KafkaError:
            return False
        lacking = self._lacking(topic, known)
        if lacking and not self._are_gone(topic, known, lacking, now) and topic.count == 0:
            return False
        if len(known) <= topic.count:
            return False
        topic.partitions = sorted(known)
        topic.spread = tuple(topic.partitions)
        topic.count = len(known)
        topic.by_key.clear()  # keys are spread over more partitions from now on
        topic.chosen.clear()
        return True

    def _lacking(self, topic: Topic, known: frozenset[int]) -> frozenset[int]:
        """Partitions that Kafka does not name, while something waits in their lanes."""
        topic.gone -= known
        lacking = frozenset(
            number
            for number, lane in topic.lanes.items()
            if number not in known and number not in topic.gone and not lane.holds_nothing and lane.halted is None
        )
        if not known or not lacking:
            self._gone.is_back(topic.name)
            return frozenset()
        return lacking

    def _are_gone(self, topic: Topic, known: frozenset[int], lacking: frozenset[int], now: float | None) -> bool:
        """Whether they count as gone, as far as that is decided; what was in flight there leaves its lanes then.

        Once the topic is open that is left to the next start: records behind a lane would have to leave with it.
        """
        if now is None:
            return False
        if topic.name not in self._gone:
            message = "kafka names fewer partitions than were sent to: asking for %.0f s whether that lasts"
            log.warning(f"{message} topic=%s lacking=%s", GONE_AFTER, topic.name, numbers(lacking))  # noqa: G004
        if not self._gone.lasts(topic.name, known, now):
            return False
        topic.gone |= lacking
        if topic.count == 0:
            topic.closed = True
            for number in lacking:
                topic.lanes[number].leaves = True
            what = "what was in flight to them is routed anew, but for records that name their partition"
        else:
            what = (
                "their records wait in the ring. stop and start anew, and they are routed anew, but for those that "
                "name their partition; or add partitions; or set delivery_timeout_ms to have them as dead letters"
            )
        message = "the topic was made anew with fewer partitions: %s topic=%s gone=%s partitions=%d"
        log.error(message, what, topic.name, numbers(lacking), len(known))
        return True


def _takes(lane: Lane) -> bool:
    return not (lane.passed_over or lane.blocked or lane.failing)


def _answered(answer: object, partitions: list[int]) -> int:
    """The partition that the user's partitioner named. Nothing is guessed: a number that is none is its mistake."""
    number = operator.index(answer)  # type: ignore[arg-type]  # a TypeError tells what it is instead
    if isinstance(answer, bool) or number not in partitions:
        message = "the partitioner must answer one of all_partitions"
        raise ValueError(f"{message} answer={answer!r:.100} partitions={len(partitions)}")
    return number
