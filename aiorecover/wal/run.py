"""Frames as a reader hands them out."""

from collections.abc import Sequence
from typing import Any

from aiorecover.wal.slot import Slot
from aiorecover.wal.suffix import Word

Entry = tuple[Slot, int, int, Any]
"""slot, place (index of the frame's settle word in ``slot.words``), sequence, record"""


class Run:
    """Frames of one slot, in order, as parallel lists: nothing is allocated for a frame alone. Never empty."""

    __slots__ = ("places", "records", "sequences", "slot", "words")

    def __init__(
        self,
        slot: Slot,
        sequences: Sequence[int],
        places: list[int],
        records: list[Any],
        words: list[Word] | None = None,
    ) -> None:
        """``places``: indices of the frames' settle words in ``slot.words``; ``words``: None when all wait."""
        self.slot = slot
        self.sequences = sequences
        self.places = places
        self.records = records
        self.words = words

    def __len__(self) -> int:
        """How many frames."""
        return len(self.records)

    def entry(self, number: int) -> Entry:
        """One frame of it."""
        return self.slot, self.places[number], self.sequences[number], self.records[number]

    def behind(self, number: int) -> "Run | None":
        """What follows the first ``number`` frames."""
        if number == len(self):
            return None
        words = None if self.words is None else self.words[number:]
        return Run(self.slot, self.sequences[number:], self.places[number:], self.records[number:], words)

    def pick(self, numbers: Sequence[int]) -> "Run | None":
        """Only these of its frames."""
        if not numbers:
            return None
        sequences, places, records = self.sequences, self.places, self.records
        words = None if self.words is None else [self.words[n] for n in numbers]
        return Run(
            self.slot,
            [sequences[n] for n in numbers],
            [places[n] for n in numbers],
            [records[n] for n in numbers],
            words,
        )
