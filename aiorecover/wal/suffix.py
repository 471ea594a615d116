"""The lane suffix rule: what counts as unsettled where settle words may have been lost. Pure.

A power cut (or a flush that failed) leaves settle words behind in any order: of two records of a lane, the older one's
word may be lost and the newer one's not. Sent again alone, the older value would stand behind the newer one in Kafka,
and stay there in a compacted topic. So within a lane everything behind the first unsettled frame counts as unsettled.

What is delivered again under this rule is settled with the mark of the present generation, so that the rule also holds
when the process dies in the middle of it: a frame with the present mark was done again, and what follows it in its lane
still has to be. A generation is the epoch in which it began.

When a second power cut comes before the first one is dealt with, marks of the unfinished generation may be lost, too.
In a lane they were stored in order, from its first unsettled frame on. So as far as they follow there upon one another,
that much was done again, and only what comes behind has to be. It must not be done once more: what followed may be
settled for good and recycled (a moved record stands in the retry ring, in front of what a watermark of the main ring
covers). Behind a gap they prove nothing. Of several unfinished generations each goes on where the one before had
stopped, so marks may rise from frame to frame, but not fall.

All of this is decided before anything of that time is covered by a watermark: a frame that was done again tells of
those behind it, whose words look true. So watermarks stay where they are until a reader has judged all that
is suspect (`ring`), and the word of a frame that it has to pass over goes where something before it was done again
(`SuffixRule.outlives`). A frame that is given up instead of being delivered (it has expired) counts as done again.

Who has looked may know that a frame without a word is ``there``: at its destination, and behind everything that comes
before it in the ring. Then it is done, but a frame that is there and stands behind one that is not has to be delivered
again with it. And settle words count no longer in that lane: the frame may have been delivered a second time, behind
what its lane's later words speak of. Only what is there, too, need not be delivered then, and is marked anew.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum

from aiorecover.wal import format as fmt


class Word(IntEnum):
    """What a frame's settle word says."""

    WAITING = 0
    SETTLED = 1  # in a generation that was dealt with: true, unless something before it in the lane was lost
    AGAIN = 2  # in the present generation


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The word was stored in an earlier generation that is not dealt with; ``again``: the frame is older than that."""

    generation: int
    again: bool


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Up to which position settle words may be lost (0: none), and the generations that are not dealt with."""

    up_to: int = 0
    generation: int = 0  # the present one
    since: int = 0  # the first one that is not dealt with

    def word(self, epoch: int, mark: int) -> Word | Unfinished:
        """What the ``mark`` of a settled frame of ``epoch`` says; marks are epochs modulo `format.MARKS`."""
        began = self.generation - (self.generation - mark) % fmt.MARKS
        if began == self.generation:
            return Word.AGAIN
        return Unfinished(began, again=epoch < began) if began >= self.since else Word.SETTLED


class SuffixRule:
    """Goes through frames in order; remembers the lanes in which something unsettled was seen.

    Bounded by the number of lanes.
    """

    def __init__(self) -> None:
        """Nothing was seen."""
        self._broken: set[Hashable] = set()
        self._looked: set[Hashable] = set()  # something without a word is there
        self._redone: dict[Hashable, int] = {}  # up to here, and last in this unfinished generation

    def needed(self, lane: Hashable | None, word: Word | Unfinished, *, there: bool = False) -> bool:
        """Whether a frame has to be delivered; ``lane`` None: a record without key and partition counts for itself."""
        if lane is None:
            return word is Word.WAITING and not there
        if lane in self._broken:
            return word is not Word.AGAIN
        if isinstance(word, Unfinished) and self._goes_on(lane, word):
            return False
        settled = word is Word.SETTLED and lane not in self._redone
        if there:
            if not settled:
                self._looked.add(lane)
            return False
        if settled and lane not in self._looked:
            return False
        self._broken.add(lane)
        return word is not Word.AGAIN

    def counts_anew(self, lane: Hashable | None, word: Word | Unfinished) -> bool:
        """Whether a frame that is there has to bear the present mark, because words before it in its lane do."""
        return (word is Word.SETTLED or isinstance(word, Unfinished)) and lane in self._looked

    def doubt(self, lane: Hashable | None) -> None:
        """Settle words do not count in this lane: something may have been done again, of which nothing is left."""
        if lane is not None:
            self._looked.add(lane)

    def outlives(self, lane: Hashable | None, word: Word | Unfinished) -> bool:
        """Whether a frame that is passed over unjudged has to be delivered all the same, whatever its word says.

        What came before it in its lane was done again, and may be recycled before anybody comes back for it.
        """
        if word is Word.AGAIN or lane is None:
            return False
        if lane in self._broken or lane in self._looked:
            return True
        return lane in self._redone and not (isinstance(word, Unfinished) and word.generation >= self._redone[lane])

    def _goes_on(self, lane: Hashable, word: Unfinished) -> bool:
        """Whether it was done behind all that comes before it in its lane."""
        last = self._redone.get(lane, 0)
        if lane in self._looked or word.generation < last:
            return False
        if word.again or last:
            self._redone[lane] = word.generation
        return True
