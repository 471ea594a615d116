"""What is at hand of a slot, and what becomes of places that cannot be read."""

from functools import partial

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal import window as module
from aiorecover.wal.window import BAD_PAGES, OUTAGE_ATTEMPTS, PAGE, READ_ATTEMPTS, WINDOW, Window
from tests.wal.memory import FaultyFile
from tests.wal.rig import Disk, Opened, missing, take

SLOT = 20 * PAGE


def test_where_many_pages_cannot_be_read_the_rest_counts_as_zeros_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may take the disk half a minute; and what was read before must not stand for it."""
    monkeypatch.setattr(module, "BAD_PAGES", 3)
    file = FaultyFile("ring", b"\1" * SLOT + b"\2" * SLOT)
    file.stored.fail_reads(2 * PAGE, 10 * PAGE)
    window = Window(file)
    window.enter(SLOT)
    window.fill(0, SLOT, 1, ahead=False)
    window.enter(0)
    for _ in range(READ_ATTEMPTS - 1):
        with pytest.raises(WalIOError):
            window.fill(0, SLOT, 1, ahead=False)
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    file.before["read"] = count
    window.fill(0, SLOT, 1, ahead=False)
    assert bytes(window.buffer[:SLOT]) == b"\1" * 2 * PAGE + bytes(SLOT - 2 * PAGE)
    assert reads == 1 + 2 + 3  # all at once, the two good ones, and as many bad ones as it may meet


def test_where_not_a_single_page_can_be_read_the_device_is_away_for_long_before_it_counts_as_zeros() -> None:
    file = FaultyFile("ring", b"\1" * SLOT)
    file.stored.fail_reads(0, SLOT)
    window = Window(file)
    window.enter(0)
    for _ in range(OUTAGE_ATTEMPTS - 1):
        with pytest.raises(WalIOError):
            window.fill(0, SLOT, 1, ahead=False)
    window.fill(0, SLOT, 1, ahead=False)
    assert bytes(window.buffer[:SLOT]) == bytes(SLOT)


def test_each_visit_of_a_slot_is_patient_anew() -> None:
    """What could not be read for a while may be readable by now."""
    file = FaultyFile("ring", b"\1" * SLOT)
    file.stored.fail_reads(0, PAGE)
    window = Window(file)
    for _ in range(2):
        window.enter(0)
        for _ in range(READ_ATTEMPTS - 1):
            with pytest.raises(WalIOError):
                window.fill(0, SLOT, 1, ahead=False)


@pytest.mark.parametrize("header", [fmt.FRAME_BYTES, fmt.FRAME_BYTES - 4, 4])
def test_a_frame_whose_header_is_not_whole_at_hand_is_read_again(header: int) -> None:
    """A frame without a payload, of which so many bytes are at hand."""
    window = Window(FaultyFile("ring", bytes(2 * WINDOW)))
    window.fill(0, 2 * WINDOW, 1, ahead=False)
    place = WINDOW - header
    window.fill(place, 2 * WINDOW, 0, ahead=False)
    assert window.start == (0 if header == fmt.FRAME_BYTES else place)


def test_a_frame_without_a_record_is_as_long_as_it_says_and_no_more_is_read_for_it() -> None:
    skipped = fmt.FRAME.pack(fmt.SKIP_BIT | 100, 0, 1, 0)
    window = Window(FaultyFile("ring", skipped + bytes(4 * WINDOW)))
    window.fill(0, 4 * WINDOW, 1, ahead=False)
    assert (window.start, window.stop) == (0, WINDOW)


LARGE = 3 * WINDOW
FRAME = fmt.FRAME.pack(LARGE, 0, 7, 0)


def test_a_frame_that_is_larger_than_the_window_is_at_hand_and_its_room_is_given_back_behind_it() -> None:
    window = Window(FaultyFile("ring", FRAME + bytes(8 * WINDOW)))
    limit = 8 * WINDOW
    window.fill(0, limit, 7, ahead=False)
    end = fmt.frame_end(0, LARGE)
    assert (window.start, window.stop) == (0, end)
    assert len(window.buffer) == end
    window.fill(0, limit, 7, ahead=False)
    assert window.stop == end, "it is still at hand"
    window.fill(end, limit, 8, ahead=False)
    assert len(window.buffer) == WINDOW


@pytest.mark.parametrize(("sequence", "limit"), [(8, 8 * WINDOW), (7, fmt.frame_end(0, LARGE) - 4)])
def test_the_length_of_a_frame_that_cannot_be_the_next_one_is_not_believed(sequence: int, limit: int) -> None:
    """It has another sequence, or would reach beyond the end of its slot."""
    window = Window(FaultyFile("ring", FRAME + bytes(8 * WINDOW)))
    for _ in range(2):
        window.fill(0, limit, sequence, ahead=False)
        assert (window.start, window.stop, len(window.buffer)) == (0, WINDOW, WINDOW)


def test_a_read_that_fails_leaves_nothing_at_hand() -> None:
    file = FaultyFile("ring", FRAME + b"\1" * 8 * WINDOW)
    window = Window(file)
    window.fill(0, 8 * WINDOW, 7, ahead=False)
    file.stored.fail_reads(0, 8 * WINDOW)
    for offset in (7 * WINDOW, WINDOW):
        with pytest.raises(WalIOError):
            window.fill(offset, 8 * WINDOW, 8, ahead=False)


def test_a_rotten_length_costs_its_frame_and_no_memory_for_good() -> None:
    opened = Opened(Disk(slot_bytes=64 * WINDOW))
    opened.append(*[b"x" * 100 for _ in range(10)])
    opened.fill_slot(b"f" * 100_000)
    disk = opened.disk.after_death()
    disk.ring.stored.flip((fmt.FIRST_FRAME + 3 * 120 + 2) * 8 + 5)  # it is 2 MiB longer now
    following, sizes = Opened(disk), set[int]()
    while take(following.reader, 1):
        sizes.add(len(following.reader._window.buffer))
    assert missing(following.ring) == [(1, 4)]
    assert sizes == {WINDOW}


def test_who_has_no_patience_meets_no_error_and_few_bad_pages_however_long_the_stretch() -> None:
    """What stands before and behind it is at hand, but for the rest of the last piece."""
    file = FaultyFile("ring", b"\1" * 100 * WINDOW)
    file.stored.fail_reads(WINDOW + PAGE, 90 * WINDOW)
    window, reads = Window(file, patient=False), list[int]()
    window.enter(0)
    file.before["read"] = partial(reads.append, 1)
    for offset in range(0, 100 * WINDOW, WINDOW):
        window.fill(offset, 100 * WINDOW, 1, ahead=False)
        good = {0: WINDOW, WINDOW: PAGE}.get(offset, 0 if offset < 92 * WINDOW else WINDOW)
        assert bytes(window.buffer[:WINDOW]) == b"\1" * good + bytes(WINDOW - good)
    assert len(reads) == 100 + WINDOW // PAGE + BAD_PAGES
    assert window.given_up(0) == WINDOW + PAGE
    file.stored.fail_reads(95 * WINDOW, 1)
    window.fill(95 * WINDOW, 100 * WINDOW, 1, ahead=False)
    assert bytes(window.buffer[:WINDOW]) == bytes(PAGE) + b"\1" * (WINDOW - PAGE), "another stretch, page by page"


def test_who_has_no_patience_may_meet_a_bad_page_with_the_first_read() -> None:
    file = FaultyFile("ring", b"\1" * SLOT)
    file.stored.fail_reads(0, PAGE)
    window = Window(file, patient=False)
    window.enter(0)
    window.fill(0, SLOT, 1, ahead=False)
    assert bytes(window.buffer[:SLOT]) == bytes(PAGE) + b"\1" * (SLOT - PAGE)
