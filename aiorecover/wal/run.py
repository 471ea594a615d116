"""Frames as a reader hands them out."""

from collections.abc import Sequence
from typing import Any

from aiorecover.wal import format as fmt
from aiorecover.wal.slot import Slot
from aiorecover.wal.suffix import Unfinished, Word

Entry = tuple[Slot, int, int, Any]
"""slot, place (index of the frame's settle word in ``slot.words``), sequence, record"""
Placed = tuple[Slot, int, int, Any]
"""slot, place, position that the record was accepted with, record"""


class Run:
    """Frames of one slot, in order, as parallel lists: nothing is allocated for a frame alone. Never empty.

    Copies in the retry ring have the ``sequences`` that their records were accepted with, all in one ``epoch``.
    """

    __slots__ = ("epoch", "id_prefix", "places", "records", "sequences", "slot", "words")

    def __init__(
        self,
        slot: Slot,
        sequences: Sequence[int],
        places: list[int],
        records: list[Any],
        words: Sequence[Word | Unfinished] | None = None,
        origin: tuple[int, bytes] | None = None,
    ) -> None:
        """``places``: indices of the frames' settle words in ``slot.words``; ``words``: None when all wait.

        ``origin``: of copies, the epoch of their records and the beginning of their ids; None: the slot's own.
        """
        self.slot = slot
        self.sequences = sequences
        self.places = places
        self.records = records
        self.words = words
        self.epoch, self.id_prefix = origin or (slot.header.epoch, slot.id_prefix)

    def __len__(self) -> int:
        """How many frames."""
        return len(self.records)

    def entry(self, number: int) -> Entry:
        """One frame of it."""
        return self.slot, self.places[number], self.sequences[number], self.records[number]

    def position(self, number: int) -> int:
        """That one of its records was accepted with."""
        return fmt.position(self.epoch, self.sequences[number])

    def placed(self, number: int) -> Placed:
        """As `entry`, with the record's position."""
        return self.slot, self.places[number], self.position(number), self.records[number]

    def behind(self, number: int) -> "Run | None":
        """What follows the first ``number`` frames."""
        if number == len(self):
            return None
        words = None if self.words is None else self.words[number:]
        sequences, places, records = self.sequences[number:], self.places[number:], self.records[number:]
        return Run(self.slot, sequences, places, records, words, (self.epoch, self.id_prefix))

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
            (self.epoch, self.id_prefix),
        )
