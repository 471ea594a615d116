"""Runs of frames: what follows the first ones, and a choice of them, with the words that belong to each."""

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.suffix import Word

SLOT = Slot(0, fmt.SlotHeader(16384, 1, 1, 1, 1, 1, 0))
WORDS = [Word.WAITING, Word.SETTLED, Word.AGAIN]


def parts(run: Run | None) -> object:
    return run and (list(run.sequences), list(run.places), run.records, run.words)


@pytest.mark.parametrize("words", [None, WORDS])
def test_a_part_of_a_run_keeps_what_belongs_to_each_frame(words: list[Word] | None) -> None:
    run = Run(SLOT, range(7, 10), [4, 8, 12], ["a", "b", "c"], words)
    assert parts(run.behind(0)) == parts(run)
    assert parts(run.behind(2)) == ([9], [12], ["c"], words and words[2:])
    assert run.behind(3) is None
    assert parts(run.pick([0, 2])) == ([7, 9], [4, 12], ["a", "c"], words and [words[0], words[2]])
    assert run.pick([]) is None
