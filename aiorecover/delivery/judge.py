"""What becomes of each record of an earlier epoch where its settle word does not tell all.

Two reasons to ask: the word may have been lost or be too young (`wal.suffix`), and the record may stand in Kafka
without one, as the recovery check has found (`in_kafka`).
"""

from collections.abc import Iterable
from enum import Enum, auto
from itertools import repeat

from aiorecover.delivery.frames import nonce_at
from aiorecover.delivery.in_kafka import InKafka, Place, content_of
from aiorecover.delivery.lane import Lane
from aiorecover.record import KEY, PARTITION, TOPIC, VALUE, Record
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.suffix import SuffixRule, Unfinished, Word


class Verdict(Enum):
    """What to do with a record."""

    SEND = auto()
    SETTLE = auto()  # it is in Kafka
    DISMISS = auto()  # its word is right


class Judge:
    """Goes through the records of each lane once, in order."""

    def __init__(self, in_kafka: InKafka) -> None:
        """``in_kafka`` is complete before the first record comes."""
        self._in_kafka = in_kafka
        self._rule = SuffixRule()
        self._expired_in: set[str] = set()  # topics in which one was given up before its lane was known

    def concerned(self, run: Run) -> bool:
        """Whether a record must not be sent without asking."""
        return run.words is not None or self._may_be_found(run)

    def _may_be_found(self, run: Run) -> bool:
        """Also what stands before a record that was found: if it is missing in Kafka, that one is sent again, too."""
        return self.may_find(run.position(0))

    def may_find(self, position: int) -> bool:
        """Whether the record there, or one behind it, may have been found in Kafka."""
        return bool(self._in_kafka) and position <= self._in_kafka.last

    def forget_found(self, run: Run) -> None:
        """Nobody comes back to records before this one: free what is known of them."""
        if self._in_kafka and not self._may_be_found(run):
            self._in_kafka.clear()

    def place(self, entry: Placed) -> Place | None:
        """Where a record stands in Kafka, if it was found there."""
        slot, place, position, record = entry
        if position not in self._in_kafka or type(record) is not tuple:
            return None
        nonce = nonce_at(slot, place)
        if nonce is None:  # its copy has rotted since: it is sent
            return None
        return self._in_kafka.place(record[TOPIC], position, nonce, content_of(record[KEY], record[VALUE]))

    def expired(self, entry: Placed, lane: Lane | None) -> None:
        """A record was given up: it may have been delivered again before, behind what followed it."""
        record = entry[3]
        if lane is None:
            self._expired_in.add(record[TOPIC])
        else:
            self._rule.needed(_order_of(record, lane), Word.WAITING)

    def outlives(self, entry: Placed, word: Word | Unfinished, lane: Lane | None) -> bool:
        """Whether a record that is passed over has to be delivered, though its word says that it was."""
        record = entry[3]
        if lane is None or word is Word.WAITING:
            return False
        return self._rule.outlives(_order_of(record, lane), word)

    def verdict(self, entry: Placed, word: Word | Unfinished, lane: Lane | None, place: Place | None) -> Verdict:
        """What becomes of a record. ``lane``: where it would go today; None where it cannot be decoded."""
        record = entry[3]
        if lane is None:
            return Verdict.SEND if word is Word.WAITING else Verdict.DISMISS
        name = _order_of(record, lane)
        there = place is not None and (name is None or place.partition == lane.partition)  # elsewhere is another order
        if record[TOPIC] in self._expired_in:
            self._rule.doubt(name)
        if self._rule.needed(name, word, there=there):
            return Verdict.SEND
        if there and (word is Word.WAITING or self._rule.counts_anew(name, word)):
            return Verdict.SETTLE
        return Verdict.DISMISS


def _order_of(record: Record, lane: Lane) -> tuple[str, int] | None:
    """In whose order it stands; None: it may stand anywhere, and counts for itself."""
    alone = record[KEY] is None and record[PARTITION] is None
    return None if alone else (lane.topic, lane.partition)


def words_of(run: Run) -> Iterable[Word | Unfinished]:
    """What the settle words say; where none is suspect, readers give only what waits."""
    return run.words if run.words is not None else repeat(Word.WAITING, len(run))
