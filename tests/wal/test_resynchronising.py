"""What was lost where frames do not hold any more: not what was settled before, nor what never counts."""

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.resynchronising import FIRST_PIECE
from tests.wal.rig import Opened, found
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


@pytest.mark.parametrize("inside", range(0, fmt.FRAME_BYTES + fmt.WORD, fmt.WORD))
def test_a_frame_is_found_whose_header_stands_on_the_edge_of_what_is_looked_through_at_a_time(inside: int) -> None:
    """``inside``: so much of it is in the first piece."""
    opened = Opened()
    opened.append(b"f" * (FIRST_PIECE - fmt.FRAME_BYTES - inside), b"found")
    disk = opened.disk.after_death()
    disk.ring.damage(fmt.FIRST_FRAME, b"rot" * 8)
    with Opened(disk) as following:
        assert found(following.read()) == [((1, 2), b"found")]
