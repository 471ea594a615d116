"""One life of a slot: where a frame counts; and headers taken away: at any end it is free, or what it was before."""

import mmap
from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.recovery import HEAD_BYTES, SlotFound, classify
from aiorecover.wal.slot import Slot
from tests.wal.test_stream import Life, settle

SLOT = fmt.SLOT_BYTES_MIN
END = SLOT - fmt.RESERVED
HEADER = fmt.SlotHeader(SLOT, 77 << fmt.NONCE_BITS, 9, 1, 0x0100_0009, 1, 0)
SEAL = fmt.Seal(count=3, tail=400, last_sequence=3)


class Stores(mmap.mmap):
    """A mapping that notes down what is stored, and in which order."""

    stores: list[tuple[int, bytes]]

    def __setitem__(self, place: Any, stored: Any) -> None:
        self.stores.append((place.start or 0, bytes(stored)))
        super().__setitem__(place, stored)


def filled(*, sealed: bool) -> Stores:
    """A slot with three frames."""
    mapping = Stores(-1, SLOT)
    mapping.stores = []
    slot = Slot(0, HEADER)
    slot.attach(mapping)
    slot.store_header()
    frame = fmt.FRAME.pack(100, fmt.frame_crc(b"f" * 100, HEADER.salt, 1), 1, fmt.open_word(HEADER.salt)) + b"f" * 100
    for number in range(3):
        start = fmt.FIRST_FRAME + number * len(frame)
        mapping[start : start + len(frame)] = frame
    if sealed:
        slot.count, slot.tail, slot.last_sequence = SEAL.count, SEAL.tail, SEAL.last_sequence
        slot.store_seal()
    return mapping


def blanked(*, sealed: bool, other: tuple[int, bytes] = (0, b"")) -> tuple[bytes, list[tuple[int, bytes]]]:
    """What a slot held before its headers were taken away, and what was stored for that, in order.

    ``other``: where something else stands in it, and what.
    """
    mapping = filled(sealed=sealed)
    mapping[other[0] : other[0] + len(other[1])] = other[1]
    slot = Slot(0, HEADER)
    slot.attach(mapping)
    before = mapping[:]
    mapping.stores.clear()
    slot.blank()
    return before, mapping.stores


def moments(before: bytes, stores: list[tuple[int, bytes]]) -> Iterator[tuple[bytes, list[bytes]]]:
    """The slot behind each byte that is stored, and as it stood before each store up to there."""
    content, stood = bytearray(before), [before]
    for start, stored in stores:
        for number, byte in enumerate(stored):
            content[start + number] = byte
            yield bytes(content), list(stood)
        stood.append(bytes(content))


def found(front: bytes, end: bytes) -> SlotFound:
    return classify(0, front[:HEAD_BYTES], end[END:])


OLD = fmt.SlotHeader(SLOT, 77 << fmt.NONCE_BITS, 2, 1, 0x0200_0002, 1, 0)
EARLIER = (fmt.pack_slot_header(OLD) + fmt.pack_seal(SEAL, OLD.salt)).ljust(fmt.RESERVED, b"\0")
ENDS = {
    "both ends": (0, b""),
    "front of the life before": (0, EARLIER),
    "end of the life before": (END, EARLIER),
    "front damaged": (0, b"\x5a" * fmt.RESERVED),
    "end damaged": (END, b"\x5a" * fmt.RESERVED),
}


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "open"])
@pytest.mark.parametrize("ends", ENDS)
def test_whenever_the_process_dies_a_slot_is_free_or_what_it_was(ends: str, *, sealed: bool) -> None:
    """Damaged it would be for ever; and behind a seal frames that are gone would be missed."""
    before, stores = blanked(sealed=sealed, other=ENDS[ends])
    states = []
    for content, _ in moments(before, stores):
        now = found(content, content)
        states.append(now.state)
        if now.state == "live":
            assert now.header == HEADER
            assert now.seal is None or content[fmt.FIRST_FRAME : END] == before[fmt.FIRST_FRAME : END]
    assert set(states) == {"live", "torn", "blank"}
    assert states[-1] == "blank"


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "open"])
def test_whichever_sectors_a_power_cut_takes_a_slot_is_free_or_what_it_was(*, sealed: bool) -> None:
    """Its two ends are as they stood between any two stores, or one as it is in the middle of the last one."""
    before, stores = blanked(sealed=sealed)
    for content, stood in moments(before, stores):
        for front, end in [*product([content], stood), *product(stood, [content]), *product(stood, stood)]:
            now = found(front, end)
            assert (now.state, now.header) in [("live", HEADER), ("torn", None), ("blank", None)]
            assert now.seal in {None, SEAL}


def test_a_frame_counts_where_it_stands_until_its_copy_does_and_then_in_the_newest_copy_of_it() -> None:
    life = Life()
    (slot, first, *_), (_, second, *_) = life.left[:2]
    move = life.copy()
    assert slot.counts_at(second) == (slot, second)
    life.make(move)
    home, there = slot.counts_at(second)
    assert (home, there) == slot.copies[second]
    life.make_anew(life.copy_anew())
    assert slot.counts_at(second) == home.copies[there]
    settle(life.left[:1])
    assert slot.counts_at(first)[0].ring is life.opened.ring, "a settled one has no copy"


@pytest.mark.parametrize("counted", [None, [10, 20, 30, 40]])
def test_which_of_many_frames_wait_is_what_each_of_them_says(counted: list[int] | None) -> None:
    slot = Slot(0, HEADER)
    assert slot.which_wait([10, 20]) == []
    slot.attach(mmap.mmap(-1, SLOT))
    assert slot.words is not None
    assert slot.which_wait([]) == []
    words = (
        slot.open_word,
        slot.open_word ^ 1 << 20,
        slot.done_word,
        slot.void_word,
        0,
        slot.open_word,
        slot.done_word,
    )
    places = range(10, 80, 10)
    for place, word in zip(places, words, strict=True):
        slot.words[place] = word
    if counted is not None:
        slot.counted, slot.counted_to = array("I", counted), 50
    found = slot.which_wait(places)
    assert found == [number for number, place in enumerate(places) if slot.waits(place)]
    assert found == ([0, 1, 4, 5] if counted is None else [0, 1, 5])


def test_nothing_waits_in_a_slot_that_is_not_mapped() -> None:
    slot = Slot(0, HEADER)
    assert not slot.waits(40)
    assert slot.which_wait([40]) == []


# -- pages at hand -----------------------------------------------------------------------------------------------------


class Pages:
    """A slot of sixteen pages that were given back, and which of them are had back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        size = 16 * mmap.PAGESIZE
        self.slot = Slot(0, replace(HEADER, slot_bytes=size))
        self.slot.attach(mmap.mmap(-1, size))
        assert self.slot.warm
        self.slot.sealed = True
        self.slot.drop_pages()
        self.had: list[range] = []
        monkeypatch.setattr(Slot, "_populate", self._populate)

    def _populate(self, start: int, stop: int) -> bool:
        assert start % mmap.PAGESIZE == stop % mmap.PAGESIZE == 0
        self.had.append(range(start // mmap.PAGESIZE, stop // mmap.PAGESIZE))
        return True

    def reach(self, *words: tuple[int, int]) -> list[range]:
        """Settle words, by their page and where in it; the pages that were had back for them."""
        self.had = []
        self.slot.reach([page * (mmap.PAGESIZE // fmt.WORD) + place for page, place in words])
        return self.had


LAST = mmap.PAGESIZE // fmt.WORD - 1  # of the words of a page


def test_a_page_is_had_back_before_a_settle_word_in_it_is_touched_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(monkeypatch)
    warm = [pages.slot.warm]
    assert pages.reach((3, 100)) == [range(3, 4)]
    assert [*warm, pages.slot.warm] == [False, True]
    assert pages.reach((3, 100), (3, LAST)) == []
    assert pages.reach((5, 2)) == [range(4, 6)], "a frame that begins in the page before"


def test_what_stands_between_two_pages_that_were_had_back_is_not_taken_for_at_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = Pages(monkeypatch)
    for page, other in ((3, 9), (9, 3)):
        pages.reach((page, 100))
        assert pages.reach((other, 100)) == [range(other, other + 1)]
        assert pages.reach((6, 100)) == [range(6, 7)]


def test_neighbouring_pages_are_at_hand_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(monkeypatch)
    for page in (4, 5, 3):
        assert pages.reach((page, 100)) == [range(page, page + 1)]
    assert pages.reach((3, 100), (4, 100), (5, LAST)) == []


def test_frames_far_apart_are_had_back_one_by_one_and_close_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(monkeypatch)
    assert pages.reach((1, 100), (12, 100)) == [range(1, 2), range(12, 13)]
    assert pages.reach((4, 100), (6, 100)) == [range(4, 7)]


def test_a_slot_is_known_to_hold_what_was_read_of_it() -> None:
    slot = Slot(0, HEADER)
    assert slot.reached == HEADER.first_position - 1
    slot.passed = 3, 400
    assert slot.reached == HEADER.first_position + 2


def test_nothing_is_stored_in_a_slot_that_is_not_mapped() -> None:
    slot = Slot(0, HEADER)
    for store in (slot.store_header, slot.store_seal, slot.blank):
        with pytest.raises(ValueError, match=f"slot is not mapped ordinal={HEADER.ordinal}"):
            store()
