"""What the readers meet of records that have expired: it goes to the dead letters, and not to its lane."""

import asyncio
from collections.abc import Callable, Sequence

from aiorecover.delivery.behind import Behind, place_of
from aiorecover.delivery.drain import GoingBack
from aiorecover.delivery.expiry import STEP, Expiry
from aiorecover.delivery.frames import waits_at
from aiorecover.delivery.judge import Judge, words_of
from aiorecover.delivery.router import Router
from aiorecover.delivery.telling import Where
from aiorecover.record import KEY, PARTITION, TOPIC
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.suffix import Unfinished, Word

NOWHERE = -1  # in the place of a partition: of records that may go to any


class Burial:
    """Takes records out of runs. ``going``: the second reader that has the run; None: the first one."""

    def __init__(
        self,
        expiry: Expiry,
        judge: Judge,
        router: Router,
        *,
        is_behind: Callable[[Placed, GoingBack | None], bool],
        fall_behind: Callable[[Placed, GoingBack | None], None],
        wake: Callable[[], None],
        contiguous: bool = False,
    ) -> None:
        """``is_behind``: somebody else comes for the record; ``fall_behind``: have it so; ``wake``: there is more.

        ``contiguous``: of transactions: nothing falls behind.
        """
        self._expiry = expiry
        self._judge = judge
        self._router = router
        self._is_behind = is_behind
        self._fall_behind = fall_behind
        self._wake = wake
        self._contiguous = contiguous

    def look(self, run: Run) -> tuple[int, bool]:
        """As `Expiry.leading`; nothing of a run in which each record has to be judged first."""
        return (0, False) if self._judge.concerned(run) else self._expiry.leading(run)

    def bury(self, run: Run, count: int, going: GoingBack | None) -> int | None:
        """Have the first ``count`` records of a run made dead letters; how many before one had to wait.

        They wait for a flush, or for room to be told of; `on_change` of the expiry tells. None: there is no room for
        letters, so nothing expires.
        """
        entries = [run.placed(number) for number in range(count)]
        stored = self.store(entries, going)
        if not stored:
            return None
        for number in range(stored):
            if not self.bury_one(entries[number], going):
                return number
        return stored

    def store(self, entries: Sequence[Placed], going: GoingBack | None) -> int:
        """Have letters stored, up to one that finds no room, or that had better wait for the loop's next turn."""
        stored = 0
        for number, entry in enumerate(entries):
            if self._expiry.has_letter(entry[2]) or self._is_behind(entry, going):
                continue
            if stored == STEP:
                asyncio.get_running_loop().call_soon(self._wake)
                return number
            if not self._expiry.store(entry):
                return number
            stored += 1
        return len(entries)

    def bury_one(self, entry: Placed, going: GoingBack | None) -> bool:
        """False: it has to wait. What is behind is left to who comes for it."""
        if self._is_behind(entry, going):
            return True
        if not self._expiry.store(entry) or not self._expiry.is_durable(entry[2]):
            return False
        record = entry[3]
        where = self._where(record[TOPIC], record[KEY], record[PARTITION])
        if self._expiry.take(entry, where):
            return True
        if self._contiguous or not self._expiry.keeps_waiting(where):
            return False
        self._fall_behind(entry, going)
        return True

    def _where(self, topic: str, key: bytes | None, partition: int | None) -> Where:
        """Among whom a record is told of. The partition as Kafka's partitioner chooses, as far as that can be known."""
        if partition is not None or not self._spreads(topic):
            return topic, partition
        return topic, NOWHERE if key is None else place_of(key, self._router.topics[topic].spread)

    def bury_judged(self, run: Run, number: int, word: Word | Unfinished, going: GoingBack | None) -> bool | None:
        """As `bury_one`, of a run whose records are judged one by one; None: this one does not expire.

        Of those behind it letters are stored, too: one flush does for all.
        """
        entry = run.placed(number)
        if not self._has_expired(entry, word):
            return None
        if self.bury_one(entry, going):
            return True
        if not self._has_expired(entry, word):  # there is no room for letters: it is tried on
            return None
        words = enumerate(words_of(run))
        behind = [(run.placed(later), word) for later, word in words if later > number]
        self.store([entry for entry, word in behind if self._has_expired(entry, word)], going)
        return False

    def _has_expired(self, entry: Placed, word: Word | Unfinished) -> bool:
        """And is not in Kafka."""
        _, _, position, record = entry
        if word is not Word.WAITING or type(record) is not tuple or not self._expiry.is_due(position, record[TOPIC]):
            return False
        return self._judge.place(entry) is None

    def has_begun(self, gap: Behind) -> bool:
        """Whether to go back for what was passed over; not where it has to be judged first, without its lane.

        Nor while older records of its lane wait for the end of an attempt: letters stand in the order of the lane then.
        """
        settled = gap.start is not None and not waits_at(*gap.start)  # by its word, which is suspect
        if settled or self._judge.may_find(gap.at) or not self._expiry.is_due(gap.at, gap.topic):
            return False
        lane = gap.lane
        if lane is None or lane.holds_nothing:
            return True
        return lane.first is not None and not self._expiry.has_due(lane, lane.first)

    def keeps_waiting(self, gap: Behind) -> bool:
        """Its first record has expired, and is behind because somebody is slow to be told.

        Not that of a topic whose partitions are known by now: of it only that partition stays behind.
        """
        if not self._expiry.is_due(gap.at, gap.topic) or (gap.whole and self._spreads(gap.topic)):
            return False
        return self._expiry.keeps_waiting(self._where(gap.topic, gap.key, gap.named))

    def _spreads(self, name: str) -> bool:
        """Whether the partition of a key is known."""
        topic = self._router.topics.get(name)
        return topic is not None and topic.count > 0 and self._router.spreads_by_key
