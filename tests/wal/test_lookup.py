"""Frames by their places: found where they hold, in this life of the slot, and never anywhere else (I2)."""

from unittest import mock

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.lookup import WINDOW, Lookup
from aiorecover.wal.slot import Slot
from tests.wal.memory import broken
from tests.wal.rig import SLOT, Disk, Opened


def looked_up(opened: Opened, places: list[int]) -> list[tuple[int, bytes, bool, bool] | None]:
    """What stands at each place of the first slot."""
    lookup, slot = Lookup(opened.ring), opened.ring.live[0]
    frames = (lookup.frame(slot, place) for place in places)
    return [frame and (frame.sequence, bytes(frame.payload), frame.settled, frame.void) for frame in frames]


def stored(*payloads: bytes) -> tuple[Opened, list[int]]:
    """A directory with these records, and their places."""
    opened = Opened()
    opened.append(*payloads)
    return opened, opened.ring.recent_places[1 : len(payloads) + 1]


def counted(opened: Opened) -> list[int]:
    """One number for each time that the ring file is read from now on."""
    reads: list[int] = []
    opened.disk.ring.before["read"] = lambda: reads.append(1)
    return reads


def test_a_frame_is_found_by_its_place_and_says_whether_it_is_settled() -> None:
    opened, places = stored(b"a", b"bb", b"")
    slot = opened.ring.live[0]
    opened.ring.settle(slot, places[1:2])
    assert looked_up(opened, places) == [(1, b"a", False, False), (2, b"bb", True, False), (3, b"", False, False)]


def test_a_copy_that_never_counts_says_so() -> None:
    opened, places = stored(b"a", b"b")
    opened.ring.take_back(opened.ring.live[0], places[0])
    assert looked_up(opened, places) == [(1, b"a", True, True), (2, b"b", False, False)]


def test_what_stands_behind_the_end_of_a_slot_never_counts_either() -> None:
    """Copies that were never made to count are not marked one by one: the slot ends before them."""
    opened, places = stored(b"a", b"b", b"c")
    with Opened(opened.disk.after_death()) as following:
        following.ring.end_at(following.ring.live[0], 2)
        assert looked_up(following, places) == [
            (1, b"a", False, False),
            (2, b"b", False, False),
            (3, b"c", True, True),
        ]


def test_what_a_durable_watermark_covers_is_settled_whatever_its_word_says() -> None:
    opened, places = stored(b"a", b"b", b"c")
    opened.ring.recycle(fmt.position(1, 2))
    assert [frame and frame[2] for frame in looked_up(opened, places)] == [True, True, False]


def test_no_other_place_gives_a_frame() -> None:
    opened, places = stored(*(bytes([number]) * 40 for number in range(9)))
    words = range(-8, SLOT // fmt.WORD + 8)
    found = {place: frame for place, frame in zip(words, looked_up(opened, list(words)), strict=True) if frame}
    assert sorted(found) == places
    assert [frame[0] for _, frame in sorted(found.items())] == list(range(1, 10))


def test_a_frame_that_rotted_is_not_found() -> None:
    opened, places = stored(b"before", b"rotten", b"behind")
    slot = opened.ring.live[0]
    assert slot.map is not None
    slot.map[(places[1] + 1) * fmt.WORD] ^= 1
    assert [frame and frame[1] for frame in looked_up(opened, places)] == [b"before", None, b"behind"]


@pytest.mark.parametrize("length", [SLOT - 2 * fmt.RESERVED - fmt.FRAME_BYTES + 1, 1 << 20])
def test_a_length_that_rotted_has_nothing_read_beyond_the_slot(length: int) -> None:
    """It may say two gigabytes."""
    opened, places = stored(b"rotten", b"behind")
    opened.disk.ring.damage((places[0] - fmt.SETTLE_WORD) * fmt.WORD, length.to_bytes(4, "little"))
    asked: list[int] = []
    read_into = opened.disk.ring.read_into

    def read(buffer: memoryview, offset: int) -> int:
        asked.append(offset + len(buffer))
        return read_into(buffer, offset)

    with mock.patch.object(opened.disk.ring, "read_into", read):
        assert [frame and frame[1] for frame in looked_up(opened, places)] == [None, b"behind"]
    assert max(asked) <= SLOT - fmt.RESERVED


def test_a_frame_of_an_earlier_life_is_not_found() -> None:
    opened, places = stored(b"a")
    slot = opened.ring.live[0]
    header = fmt.SlotHeader(SLOT, slot.header.producer_id, 2, 1, slot.salt ^ 0x5A5A_0000, 1, 0)
    lookup = Lookup(opened.ring)
    assert lookup.frame(slot, places[0]) is not None
    assert lookup.frame(Slot(slot.index, header), places[0]) is None


def test_a_frame_without_a_record_is_not_found() -> None:
    opened, places = stored(b"a", b"b")
    slot = opened.ring.live[0]
    assert slot.map is not None
    start = (places[0] - fmt.SETTLE_WORD) * fmt.WORD
    length = 1 | fmt.SKIP_BIT
    fmt.FRAME.pack_into(slot.map, start, length, fmt.skip_crc(length, slot.salt, 1), 1, slot.salt)
    assert [frame and frame[0] for frame in looked_up(opened, places)] == [None, 2]


@pytest.mark.parametrize("size", [0, 1, *range(WINDOW - fmt.FRAME_BYTES - 1, WINDOW - fmt.FRAME_BYTES + 2), 3 * WINDOW])
def test_frames_smaller_and_larger_than_what_is_read_at_a_time_are_found(size: int) -> None:
    opened = Opened(Disk(slot_bytes=4 * WINDOW))
    opened.append(b"x" * size, b"behind")
    places = opened.ring.recent_places[1:3]
    assert looked_up(opened, places) == [(1, b"x" * size, False, False), (2, b"behind", False, False)]


@pytest.mark.parametrize("last", [0, 1000])
def test_the_last_frame_of_a_full_slot_is_found(last: int) -> None:
    """In the retry ring, which has no margin at its slots' ends."""
    retry = Opened().directory.retry
    retry.append(b"x" * (retry.largest - fmt.FRAME_BYTES - last), None)
    place, _ = retry.append(b"y" * last, None)
    slot = retry.live[0]
    assert slot.tail == SLOT - fmt.RESERVED
    frame = Lookup(retry).frame(slot, place)
    assert frame is not None
    assert frame.payload == b"y" * last


def test_frames_close_to_each_other_are_read_at_once() -> None:
    opened, places = stored(*(b"%03d" % number for number in range(100)))
    reads = counted(opened)
    assert [frame and frame[0] for frame in looked_up(opened, places)] == list(range(1, 101))
    assert len(reads) == 1


def test_a_frame_before_the_last_one_or_far_behind_it_is_found_as_well() -> None:
    opened = Opened()
    opened.append(*[b"z" * 3000] * 12)
    lookup = Lookup(opened.ring)
    for sequence in [4, 1, 3, 2, 12, 5, 11, 1]:
        frame = lookup.frame(opened.ring.slot_of(sequence), opened.ring.recent_places[sequence])
        assert frame is not None
        assert frame.sequence == sequence


def test_a_place_that_cannot_be_read_is_an_error_and_is_read_again_when_it_can() -> None:
    opened, places = stored(b"a")
    lookup, slot = Lookup(opened.ring), opened.ring.live[0]
    opened.disk.ring.before["read"] = broken
    with pytest.raises(WalIOError):
        lookup.frame(slot, places[0])
    del opened.disk.ring.before["read"]
    assert lookup.frame(slot, places[0]) is not None


def test_nothing_is_found_behind_the_end_of_a_file_that_was_cut() -> None:
    opened, places = stored(b"a" * 100, b"b" * 100)
    disk = opened.disk.after_death()
    with Opened(disk) as following:
        disk.ring.cut((places[1] + 2) * fmt.WORD)
        slot, lookup = following.ring.live[0], Lookup(following.ring)
        assert lookup.frame(slot, places[0]) is not None
        assert lookup.frame(slot, places[1]) is None
        disk.ring.cut(fmt.FIRST_FRAME)
        assert Lookup(following.ring).frame(slot, places[0]) is None


def test_a_frame_of_which_any_bit_is_flipped_is_not_found_or_is_the_same() -> None:
    opened, places = stored(b"before", b"a record", b"behind")
    slot, place, file = opened.ring.live[0], places[1], opened.disk.ring
    start, whole = (place - fmt.SETTLE_WORD) * fmt.WORD, fmt.FRAME_BYTES + len(b"a record")
    before = file.read(start, whole)
    for bit in range(8 * whole):
        flipped = bytearray(before)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write(bytes(flipped), start)
        found = Lookup(opened.ring).frame(slot, place)
        assert found is None or (found.sequence, bytes(found.payload)) == (2, b"a record"), bit
