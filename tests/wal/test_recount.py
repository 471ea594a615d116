"""Damage met in what a slot had counted: the slot is counted anew, and freed once the rest of it is settled."""

from collections.abc import Iterable
from contextlib import suppress

import pytest

from aiorecover.errors import WalCorruptError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory
from aiorecover.wal.moving import Move
from aiorecover.wal.reading import Reader
from aiorecover.wal.recount import Recount, Recounted
from aiorecover.wal.run import Entry, Placed
from aiorecover.wal.slot import Slot
from aiorecover.wal.window import PAGE
from tests.wal.rig import SLOT, Opened, found, missing, read, storing_fails, take
from tests.wal.test_stream import Life
from tests.wal.test_stream import read as read_stream

FRAME = 64
LARGE = 3000  # not kept in memory: read from the file at once


def counted_anew(directory: Directory, slot: Slot, held: Iterable[int] = ()) -> Recounted:
    recount = Recount(directory, slot)
    while not recount.step(7):
        pass
    return ended(recount, held)


def ended(recount: Recount, held: Iterable[int] = ()) -> Recounted:
    """What came of it; no page was lost meanwhile."""
    told = recount.finish(set(held))
    assert told is not None
    return told


def all_counted_anew(opened: Opened) -> int:
    """Every slot that asks for it; how many records were lost."""
    slots = [slot for ring in opened.directory.rings for slot in ring.losses.miscounted]
    lost = sum(counted_anew(opened.directory, slot).lost for slot in slots)
    assert not any(ring.losses.miscounted for ring in opened.directory.rings)
    return lost


def rot(opened: Opened, *sequences: int) -> None:
    """Of frames of `FRAME` bytes."""
    for sequence in sequences:
        opened.disk.ring.damage(fmt.FIRST_FRAME + FRAME * (sequence - 1) + 30, b"rot")


def unrot(opened: Opened, sequence: int, record: bytes) -> None:
    """A page that could not be read for a while can be read again."""
    opened.disk.ring.damage(fmt.FIRST_FRAME + FRAME * (sequence - 1) + fmt.FRAME_BYTES, record)


def rot_length(opened: Opened, sequence: int, end: int) -> None:
    """So that the frame seems to end there, counted from its beginning."""
    opened.disk.ring.damage(fmt.FIRST_FRAME + FRAME * (sequence - 1), (end - fmt.FRAME_BYTES).to_bytes(4, "little"))


def filled(opened: Opened, count: int = 40) -> list[Entry]:
    """Frames of `FRAME` bytes in one slot, read."""
    opened.append(*[b"%02d" % number * 22 for number in range(count)])
    return opened.read()


def is_freed(opened: Opened, slot: Slot) -> bool:
    """Once nobody stands in it."""
    opened.reader.close()
    opened.ring.go_on()
    opened.checkpoint()
    return slot not in opened.ring.live


def ends_well(opened: Opened, slot: Slot, there: Iterable[Entry]) -> None:
    """All that is there is settled: nothing is left in the slot, and it is freed."""
    opened.settle(there)
    assert opened.ring.pending() == 0
    assert is_freed(opened, slot)
    assert opened.ring.failure is None


@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_damaged_before_it_was_ever_read_does_not_keep_its_slot(*, sealed: bool) -> None:
    opened = Opened()
    opened.append(b"a" * LARGE, b"b" * LARGE, b"c" * LARGE)
    slot = opened.ring.live[0]
    opened.disk.ring.damage(fmt.FIRST_FRAME + LARGE + 200, b"rot")
    if sealed:
        opened.ring.go_on()
    entries = opened.read()
    assert [record[:1] for *_, record in entries] == [b"a", b"c"]
    assert opened.ring.pending() == 3
    assert all_counted_anew(opened) == 1
    assert (opened.ring.pending(), opened.ring.lost, missing(opened.ring)) == (2, 1, [(1, 2)])
    ends_well(opened, slot, entries)


def test_a_slot_is_not_freed_before_its_damaged_bytes_are_kept() -> None:
    opened = Opened()
    entries = filled(opened)
    slot = opened.ring.live[0]
    rot(opened, 11)
    read(opened.reader.behind(*entries[0][:3])).clear()
    opened.settle(entry for entry in entries if entry[2] != 11)
    assert all_counted_anew(opened) == 1
    captured = opened.directory.next_checkpoint()
    opened.directory.write_checkpoint(captured)
    opened.ring.go_on()
    assert slot.readers > 0
    assert opened.directory.recycle(captured) == 0


def second(opened: Opened, entry: Entry) -> list[Entry]:
    """What a second reader finds that begins there."""
    reader = opened.reader.behind(*entry[:3])
    entries = read(reader)
    reader.close()
    return entries


@pytest.mark.parametrize("earlier_epoch", [False, True])
def test_what_only_a_second_reader_misses_does_not_keep_its_slot(*, earlier_epoch: bool) -> None:
    opened = Opened()
    entries = filled(opened)
    if earlier_epoch:
        opened = opened.dies()
        entries = opened.read()
        opened.append(b"new")
        opened.settle(opened.read())
    slot = opened.ring.live[0]
    opened.settle(entries[10:20])
    rot(opened, 3, 4, 15, 30)  # 15 was settled before
    again = second(opened, entries[0])
    assert len(again) == 27
    assert opened.ring.pending() == 30
    assert all_counted_anew(opened) == 3
    ends_well(opened, slot, again)


@pytest.mark.parametrize("end", [FRAME + 1, 2 * FRAME - fmt.FRAME_BYTES + 1, 2 * FRAME, 2 * FRAME + 1, SLOT])
def test_a_length_that_rotted_has_no_word_looked_for_behind_what_is_lost(end: int) -> None:
    """``end``: where it says that the frame ends, of which the next one is lost, too."""
    opened = Opened()
    entries = filled(opened)
    opened.settle(entries[20:])
    rot(opened, 12)
    rot_length(opened, 11, end)
    assert len(second(opened, entries[0])) == 20 - 2
    assert missing(opened.ring) == [(1, 11), (1, 12)]


def test_frames_without_a_record_were_never_counted() -> None:
    opened = Opened()
    opened.append(b"first")
    with storing_fails(KeyboardInterrupt()):
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                opened.ring.append(b"-" * 44, None)
    opened.append(b"last")
    entries = opened.read()
    opened.disk.ring.damage(fmt.frame_end(fmt.FIRST_FRAME, 5), b"\xee" * 3 * FRAME)
    assert len(second(opened, entries[0])) == 2
    assert all_counted_anew(opened) == 0
    opened.settle(entries)
    assert opened.ring.pending() == 0
    assert opened.ring.failure is None


def test_a_record_that_somebody_has_in_hand_is_settled_as_any_other() -> None:
    """It was read before its bytes rotted."""
    opened = Opened()
    entries = filled(opened)
    slot = opened.ring.live[0]
    in_hand = entries[4]
    rot(opened, 5, 9)
    again = second(opened, entries[0])
    told = counted_anew(opened.directory, slot, held={in_hand[1]})
    assert told.lost == 1
    assert told.held == {in_hand[1]}
    assert told.first == fmt.position(1, 1)
    assert told.waiting == {fmt.position(1, entry[2]) for entry in again}
    assert opened.ring.losses.miscounted, "it is counted once more when that is done"
    opened.settle([*again, in_hand])
    assert opened.ring.pending() == 0
    assert all_counted_anew(opened) == 0
    assert is_freed(opened, slot)
    assert opened.ring.failure is None


def test_what_was_given_up_is_passed_though_it_can_be_read_again_and_found_by_the_next_opening() -> None:
    """Nobody waits for it: settled, it would make the slot pass for done, with another one waiting in it."""
    opened = Opened()
    entries = filled(opened)
    opened.ring.go_on()
    opened.append(b"next slot")
    opened.read()
    slot, ring = entries[0][0], opened.ring
    rot(opened, 11, 30)
    second(opened, entries[0])
    assert all_counted_anew(opened) == 2
    unrot(opened, 11, entries[10][3])
    again = [entry for entry in second(opened, entries[0]) if entry[0] is slot]
    assert [sequence for _, _, sequence, _ in again] == [one for one in range(1, 41) if one not in (11, 30)]
    assert counted_anew(opened.directory, slot).waiting == {fmt.position(1, one[2]) for one in again}
    opened.settle(again[1:])
    assert not slot.done, "the first one waits"
    after = opened.dies()
    assert [sequence for _, _, sequence, _ in after.read() if sequence < 41] == [1, 11]
    opened.settle(again[:1])
    assert [waiting.header.ordinal for waiting in ring.live if not waiting.done] == [slot.header.ordinal + 1]
    assert ring.failure is None


def test_what_is_stored_behind_a_count_is_read_and_counts() -> None:
    opened = Opened()
    entries = filled(opened)
    rot(opened, 11)
    second(opened, entries[0])
    assert all_counted_anew(opened) == 1
    unrot(opened, 11, entries[10][3])
    opened.append(b"new")
    again = second(opened, entries[0])
    assert [sequence for _, _, sequence, _ in again] == [one for one in range(1, 42) if one != 11]
    ends_well(opened, entries[0][0], [*again, *opened.read()][:40])


def test_what_is_in_hand_and_is_given_up_is_read_by_who_comes_later_if_it_can_be() -> None:
    opened = Opened()
    entries = filled(opened)
    rot(opened, 5, 11)
    second(opened, entries[0])
    found = counted_anew(opened.directory, entries[0][0], [entries[4][1]])
    assert (found.lost, len(found.held)) == (1, 1)
    for number in (5, 11):
        unrot(opened, number, entries[number - 1][3])
    again = second(opened, entries[0])
    assert [sequence for _, _, sequence, _ in again] == [one for one in range(1, 41) if one != 11]
    assert all_counted_anew(opened) == 0
    ends_well(opened, entries[0][0], again)


def test_what_was_in_hand_and_was_given_up_is_lost_after_all() -> None:
    opened = Opened()
    entries = filled(opened)
    rot(opened, 5)
    second(opened, entries[0])
    assert counted_anew(opened.directory, opened.ring.live[0], held={entries[4][1]}).lost == 0
    assert all_counted_anew(opened) == 1


def test_what_is_settled_or_published_while_a_slot_is_counted_is_counted_once() -> None:
    opened = Opened()
    entries = filled(opened)
    rot(opened, 20)
    second(opened, entries[0])
    recount = Recount(opened.directory, opened.ring.live[0])
    while not recount.step(4):
        opened.settle([entries.pop(0)])
        if len(opened.accepted) < 44:
            opened.append(b"more")
    opened.append(b"behind the end")
    assert ended(recount).lost == 1
    opened.settle([entry for entry in entries if entry[2] != 20] + opened.read())
    assert opened.ring.pending() == 0
    assert opened.ring.failure is None


def test_damage_that_is_met_while_a_slot_is_counted_is_not_forgotten() -> None:
    opened = Opened()
    entries = filled(opened)
    rot(opened, 20)
    second(opened, entries[0])
    recount = Recount(opened.directory, opened.ring.live[0])
    while not recount.step(4):
        pass
    rot(opened, 3)
    second(opened, entries[0])
    assert ended(recount).lost == 1
    assert all_counted_anew(opened) == 1


def test_what_is_only_met_while_a_slot_is_counted_is_named_too() -> None:
    opened = Opened()
    entries = filled(opened)
    rot(opened, 20)
    second(opened, entries[0])
    rot(opened, 3)
    assert all_counted_anew(opened) == 2
    assert missing(opened.ring) == [(1, 20), (1, 3)]


def test_a_place_that_cannot_be_read_for_long_keeps_no_slot() -> None:
    opened = Opened()
    entries = filled(opened, 200)
    slot = opened.ring.live[0]
    opened.disk.ring.stored.fail_reads(8192, 1)
    reader = opened.reader.behind(*entries[0][:3])
    again: list[Entry] = []
    for _ in range(200):
        try:
            while taken := take(reader, 100):
                again += taken
        except WalIOError:
            continue
        break
    reader.close()
    assert 100 < len(again) < 200
    recount, failures = Recount(opened.directory, slot), 0
    while True:
        try:
            if recount.step():
                break
        except WalIOError:
            failures += 1
    assert failures > 1
    assert ended(recount).lost == 200 - len(again)
    opened.settle(again)
    assert opened.ring.pending() == 0
    assert is_freed(opened, slot)


def test_a_slot_that_cannot_be_moved_for_damage_is_moved_once_it_is_counted_anew() -> None:
    """Nobody else would read it: its lanes are stalled."""
    life = Life()
    opened = life.opened
    slot = opened.ring.live[0]
    _, place, _, _ = life.left[3]
    opened.disk.ring.damage(place * 4 + 30, b"rot")
    move = Move(opened.ring, life.directory.retry, slot)
    while not move.step():
        pass
    with pytest.raises(WalCorruptError):
        move.check()
    move.abandon()
    assert all_counted_anew(opened) == 1
    opened.keep_damaged()
    copying = life.copy()
    copying.check()
    life.make(copying)
    assert slot not in opened.ring.live
    assert life.directory.retry.pending() == sum(one[0] is slot for one in life.left) - 1
    assert life.directory.pending() == len(life.left) - 1


def test_a_damaged_copy_keeps_neither_its_slot_nor_the_retry_ring_from_being_rewritten() -> None:
    life = Life()
    life.move()
    life.move()
    directory, retry = life.directory, life.directory.retry
    first = retry.live[0]
    moved = [one for one in life.left if one[0].moved]
    _, place, _ = first.marks[0]
    life.opened.disk.retry.damage(first.file_offset + place * 4 + 60, b"rot")  # the very first copy
    again = read_stream(life.first.back_to(life.waiting[0]))
    assert len(again) == len(life.left) - 1
    with pytest.raises(WalCorruptError):
        life.copy_anew().check()
    life = _without_copies(life)
    told = counted_anew(directory, first)
    assert told.lost == 1
    assert told.first == moved[0][2]
    assert moved[0][2] not in told.waiting
    assert told.waiting == {position for _, _, position, _ in moved[1:]}
    assert directory.pending() == len(life.left) - 1
    life.opened.keep_damaged()
    rewriting = life.copy_anew()
    rewriting.check()
    life.make_anew(rewriting)
    assert first not in retry.live
    again = read_stream(life.first.back_to(life.waiting[0]))
    for slot, place, _, _ in again:
        slot.ring.settle(slot, [place])
    assert directory.pending() == 0
    assert retry.failure is None


def _without_copies(life: Life) -> Life:
    """A rewriting was begun and cannot be made."""
    retry = life.directory.retry
    for slot in retry.live:
        while (copy := slot.copies.last) is not None:
            retry.take_back(*copy)
            slot.copies.drop_last()
    life.directory.copies_from = None
    return life


def test_it_is_known_of_a_record_that_it_is_lost_also_after_its_slot_is_free() -> None:
    opened = Opened()
    entries = filled(opened)
    rot(opened, 11)
    again = second(opened, entries[0])
    ring = opened.ring
    places = {sequence: place for _, place, sequence, _ in entries}
    assert not ring.is_lost(11, places[11]), "it is not found out yet"
    all_counted_anew(opened)
    assert [sequence for sequence in places if ring.is_lost(sequence, places[sequence])] == [11]
    opened.settle(again)
    assert is_freed(opened, entries[0][0])
    for whose in (ring, opened.directory):
        assert [sequence for sequence in places if whose.is_lost(sequence, places[sequence])] == [11]


def test_a_settlement_of_what_was_given_up_stands_for_no_other_record() -> None:
    opened = Opened()
    entries = filled(opened)
    rot(opened, 11)
    second(opened, entries[0])
    all_counted_anew(opened)
    slot, place, _, _ = entries[10]
    waiting = opened.ring.pending()
    opened.ring.settle(slot, [place])
    assert opened.ring.pending() == waiting == len(entries) - 1
    opened.settle(entries[:10] + entries[11:])
    assert opened.ring.failure is None
    assert is_freed(opened, slot)


def test_what_was_done_before_it_was_named_as_missing_is_not_lost() -> None:
    """Behind a damaged length nobody finds the words that say so: the second reader names what is settled, too."""
    opened = Opened()
    entries = filled(opened)
    opened.settle(entries[11:12])
    rot(opened, 12)
    rot_length(opened, 11, SLOT)
    second(opened, entries[0])
    assert missing(opened.ring) == [(1, 11), (1, 12)]
    assert all_counted_anew(opened) == 1
    assert [sequence for _, place, sequence, _ in entries if opened.ring.is_lost(sequence, place)] == [11]


def test_who_has_passed_everything_leaves_nothing_to_count() -> None:
    opened = Opened()
    assert found(filled(opened))
    assert not opened.ring.losses.miscounted
    assert isinstance(opened.reader, Reader)


def test_damage_among_the_copies_changes_nothing_of_what_is_known_of_those_behind_it() -> None:
    life = Life()
    for _ in range(3):
        life.move()
    moved = [one for one in life.left if one[0].moved]
    retry = life.directory.retry
    copied = read_stream(life.first.back_to(life.waiting[0]))[: len(moved)]
    settled = copied[5]
    retry.settle(settled[0], [settled[1]])
    for number, damage in ((1, b"rot"), (3, b"\xff" * 40)):  # its payload; its length and more
        slot, place, _, _ = copied[number]
        life.opened.disk.retry.damage(slot.file_offset + 4 * place + (30 if number == 1 else -16), damage)
    known = [life.directory.is_settled(position & fmt.SEQUENCE_MASK, place) for _, place, position, _ in moved]
    assert [number for number, one in enumerate(known) if one is not False] == [1, 3, 5]
    assert (known[1], known[3], known[5]) == (None, None, True)


def test_a_count_beside_a_rewriting_that_is_under_way_tells_of_all_records_of_its_slot() -> None:
    """The copies that do not count yet stand behind it, and begin with older records."""
    life = Life()
    life.move()
    life.move()
    slot = life.directory.retry.live[-1]
    copied = [one for one in read_stream(life.first.back_to(0)) if one[0] is slot]
    life.opened.disk.retry.damage(slot.file_offset + 4 * copied[3][1] + 60, b"rot")
    assert life.copy_anew().count
    told = counted_anew(life.directory, slot)
    assert told.lost == 1
    assert (told.first, told.last) == (copied[0][2], life.opened.ring.moved_up_to)
    assert copied[3][2] not in told.waiting


@pytest.mark.parametrize("number", [0, -1])
def test_an_original_that_rots_once_it_is_copied_is_not_lost_while_its_copy_waits(number: int) -> None:
    opened = Opened()
    for _ in range(4):
        opened.fill_slot()
    life = Life(opened)
    slot = life.opened.ring.live[0]
    copying = life.copy()
    _, place, position, _ = [one for one in life.left if one[0] is slot][number]
    sequence = position & fmt.SEQUENCE_MASK
    life.opened.disk.ring.damage(slot.file_offset + place * 4 + 30, b"rot")
    second(life.opened, (slot, place, sequence, b""))
    assert slot in life.opened.ring.losses.miscounted
    copying.check()
    life.opened.keep_damaged()
    life.make(copying)
    assert slot not in life.opened.ring.live
    assert not life.directory.is_lost(sequence, place)
    assert life.directory.is_settled(sequence, place) is False


def test_a_record_that_holds_is_not_lost() -> None:
    opened = Opened()
    opened.append(b"holds")
    ((_, place, sequence, _),) = opened.read()
    assert opened.directory.is_lost(sequence, place) is False


def rots(life: Life, slot: Slot, place: int) -> bytes:
    """What stood in the frame there."""
    at = slot.file_offset + fmt.WORD * place + 30
    before = life.opened.disk.ring.live()[at : at + 3]
    life.opened.disk.ring.damage(at, b"rot")
    return before


def goes_back(life: Life, first: Placed) -> None:
    """A second reader, from there on."""
    slot, place, position, record = first
    second(life.opened, (slot, place, position & fmt.SEQUENCE_MASK, record))


def test_a_slot_is_not_moved_while_a_frame_that_counts_has_no_copy_though_another_one_rots_that_has() -> None:
    """One could not be read while it was copied, and can be by now; another one has a copy, and was lost since."""
    life = Life()
    opened, slot = life.opened, life.opened.ring.live[0]
    (_, first, position, _), (_, copied, *_), (_, passed, *_) = [one for one in life.left if one[0] is slot][:3]
    whole = rots(life, slot, passed)
    copying = life.copy()
    opened.disk.ring.damage(slot.file_offset + fmt.WORD * passed + 30, whole)
    rots(life, slot, copied)
    goes_back(life, (slot, first, position, b""))
    assert counted_anew(opened.directory, slot)[:2] == (0, frozenset({copied}))
    assert len(slot.copies) == slot.unsettled - 1
    with pytest.raises(WalCorruptError, match="so it is not moved"):
        copying.check()


def copied_and_rotten() -> tuple[Life, Slot, list[Placed], Move]:
    """A slot whose frames have copies that do not count yet, those that wait, of which the third rots, the move."""
    life = Life()
    slot = life.opened.ring.live[0]
    originals = [one for one in life.left if one[0] is slot]
    copying = life.copy()
    rots(life, slot, originals[2][1])
    goes_back(life, originals[0])
    return life, slot, originals, copying


def test_what_was_copied_is_not_lost_though_its_slot_is_counted_before_the_copies_count() -> None:
    life, slot, originals, copying = copied_and_rotten()
    assert counted_anew(life.directory, slot)[:2] == (0, frozenset({originals[2][1]}))
    assert slot in life.opened.ring.losses.miscounted
    copying.check()
    life.opened.keep_damaged()
    life.make(copying)
    copies = read_stream(life.first.back_to(0))[: len(originals)]
    assert [position for _, _, position, _ in copies] == [position for _, _, position, _ in originals]
    assert life.directory.lost == 0
    assert life.directory.pending() == len(life.left)


def test_what_rots_once_it_is_copied_is_lost_where_the_copies_are_given_up() -> None:
    life, slot, _, copying = copied_and_rotten()
    assert not counted_anew(life.directory, slot).lost
    assert copying.abandon()
    assert all_counted_anew(life.opened) == 1
    assert life.directory.pending() == len(life.left) - 1


def to_the_end(recount: Recount) -> None:
    """As often as it takes until what cannot be read counts as damaged."""
    at_end = False
    while not at_end:
        with suppress(WalIOError):
            at_end = recount.step()


def lose_page(opened: Opened, slot: Slot, place: int) -> slice:
    """The disk cannot read the page with that settle word any more, and the system has given it up; its bytes."""
    start = place * fmt.WORD & -PAGE
    opened.disk.ring.stored.fail_reads(slot.file_offset + start, PAGE)
    assert slot.map is not None
    slot.map[start : start + PAGE] = bytes(PAGE)
    slot.lost_pages.append((start // fmt.WORD, (start + PAGE) // fmt.WORD))
    return slice(start, start + PAGE)


@pytest.mark.parametrize("between_steps", [False, True])
def test_what_was_settled_and_lost_its_page_while_it_was_counted_is_not_taken_for_waiting(
    *, between_steps: bool
) -> None:
    opened = Opened()
    entries = filled(opened, 150)
    opened.ring.go_on()
    opened.append(b"next slot")
    opened.settle(opened.read())
    slot, settled = entries[0][0], entries[100:120]
    rot(opened, 11)
    second(opened, entries[0])
    opened.keep_damaged()
    recount = Recount(opened.directory, slot)
    recount.step(50)
    if not between_steps:
        while not recount.step():
            pass
    opened.settle(settled)
    page = lose_page(opened, slot, settled[0][1])
    to_the_end(recount)
    assert recount.finish(frozenset()) is None
    assert slot.readers == 0
    opened.keep_damaged()
    again = Recount(opened.directory, slot)
    to_the_end(again)
    gone = [one for one in entries if page.start < fmt.WORD * one[1] < page.stop and one not in settled]
    assert ended(again).lost == 1 + len(gone)
    opened.keep_damaged()
    opened.settle(entry for entry in entries if entry not in settled and slot.waits(entry[1]))
    assert is_freed(opened, slot)


def test_a_page_that_is_lost_where_nothing_was_read_has_nothing_read_again() -> None:
    """Each round may take hours where a disk has lost much."""
    opened = Opened()
    entries = filled(opened, 150)
    opened.ring.go_on()
    opened.append(b"next slot")
    opened.settle(opened.read())
    slot = entries[0][0]
    start = entries[100][1] * fmt.WORD & -PAGE
    opened.disk.ring.stored.fail_reads(slot.file_offset + start, PAGE)
    recount = Recount(opened.directory, slot)
    to_the_end(recount)
    assert lose_page(opened, slot, entries[100][1]).start == start
    assert ended(recount).lost > 1
