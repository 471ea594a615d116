"""What was lost where frames do not hold any more: not what was settled before, nor what never counts."""

from aiorecover.wal import format as fmt
from tests.wal.test_stream import Life, positions, read


def test_a_copy_that_never_counted_is_no_loss_when_it_rots() -> None:
    life = Life()
    life.move()
    move = life.copy()
    copy = move.slot.copies.last
    assert copy is not None
    slot, place = copy
    move.abandon()
    life.directory.copies_from = None
    assert slot.words is not None
    assert slot.words[place] == slot.void_word
    life.opened.disk.retry.damage(slot.file_offset + (place + 1) * fmt.WORD + 20, b"rot")
    assert positions(read(life.first.back_to(0))) == life.waiting
    assert slot.ring.losses.missing == 0
