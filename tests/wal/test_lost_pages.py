"""Pages that the disk cannot give back, or gives back as they were: zeros or older bytes stand there.

Nobody stores a frame into those of the first kind; those of the second kind are left by a flush that failed.
"""

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.slot import Slot
from aiorecover.wal.storage import PAGE
from tests.wal.rig import Opened, found, missing


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
    assert slot.words is not None
    assert not any(slot.words[: PAGE // fmt.WORD]), "zeros stand for it"
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


def test_a_lost_page_is_told_by_its_place_in_the_file(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Opened()
    opened.fill_slot()
    opened.append(b"f" * PAGE, b"lost")
    slot = losing(monkeypatch, opened, PAGE, opened.ring.recent_places[opened.ring.sequence])
    assert slot.file_offset > 0
    assert caplog.messages[-1].endswith(f"slot=2 pages=1 offset={slot.file_offset + PAGE}")


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


def test_what_a_failed_flush_has_lost_and_memory_has_no_longer_is_named_and_all_else_is_read() -> None:
    lost = 0
    for seed in range(10):
        opened = Opened()
        durable = opened.append(*[b"durable %d" % number for number in range(4)])
        opened.directory.sync()
        opened.append(*[b"%d" % number * 1500 for number in range(10, 30)])
        opened.disk.ring.stored.fail_syncs()
        with pytest.raises(WalIOError):
            opened.directory.sync()
        opened.disk.ring.stored.evict(seed)
        read = dict(found(opened.read()))
        assert set(durable) <= read.keys()
        assert sorted([*read, *missing(opened.ring)]) == sorted(opened.accepted)
        assert all(opened.accepted[position] == record for position, record in read.items())
        lost += len(opened.accepted) - len(read)
        opened.directory.close()
    assert lost > 0
