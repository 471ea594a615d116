"""Pages of a mapping that the disk cannot give back: zeros stand there, and nobody stores a frame into them."""

import pytest

from aiorecover.wal.slot import Slot
from aiorecover.wal.storage import PAGE
from tests.wal.rig import Opened, found


def losing(monkeypatch: pytest.MonkeyPatch, opened: Opened, lost: int, place: int) -> Slot:
    """The slot that is written to, when a frame is asked for and that page is lost."""
    slot = opened.ring._slot

    def populate(_: Slot, start: int, stop: int) -> bool:
        return not start <= lost < stop

    opened.ring.give_back_memory()
    slot.hot_from, slot.had_back = slot.header.slot_bytes, (0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Slot, "_populate", populate)
        slot.reach((place,))
    return slot


def test_no_frame_comes_to_a_page_that_stands_for_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened()
    opened.append(b"lost")
    slot = losing(monkeypatch, opened, 0, opened.ring.recent_places[1])
    assert slot.replaced == {0}
    opened.append(b"goes to another slot")
    assert opened.ring._slot is not slot
    opened.ring.sync()
    assert [record for _, record in found(opened.dies().read())][-1] == b"goes to another slot"


def test_where_the_page_of_the_tail_is_well_the_slot_is_written_on(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened()
    opened.append(b"lost", b"f" * 2 * PAGE)
    slot = losing(monkeypatch, opened, 0, opened.ring.recent_places[1])
    opened.append(b"goes to the same")
    assert opened.ring._slot is slot


def test_what_is_settled_in_a_lost_page_counts_and_the_rest_of_it_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened()
    opened.append(b"settled", b"waits", b"f" * 2 * PAGE)
    first, second = opened.ring.recent_places[1:3]
    slot = losing(monkeypatch, opened, 0, first)
    assert (slot.waits(first), slot.waits(second), slot.is_settled(first)) == (True, True, False)
    opened.ring.settle(slot, [first])
    opened.ring.give_back_memory()
    assert (slot.waits(first), slot.waits(second), slot.is_settled(first)) == (False, True, True)
    assert opened.ring.pending() == 2
