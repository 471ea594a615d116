"""Where the copy of a record is found in the retry ring, whatever else stands there."""

import pytest

from aiorecover.wal import copies
from aiorecover.wal import format as fmt
from aiorecover.wal.recount import Recount
from aiorecover.wal.slot import Slot
from tests.wal.test_recount import counted_anew, ended
from tests.wal.test_stream import Life, positions, read, settle

SLOTS = 20


@pytest.fixture
def life() -> Life:
    """So much was moved that the retry ring has several slots."""
    made = Life(slots=SLOTS)
    for _ in range(SLOTS - 2):
        made.move()
    assert len(made.directory.retry.live) > 2
    return made


def test_where_nothing_was_moved_no_copy_is_looked_for() -> None:
    retry = Life(slots=3).directory.retry
    assert copies.stand_before(retry, 0, None) is None
    assert copies.waits(retry, 1, None) is False


def test_a_slot_counts_from_its_first_copy_on(life: Life) -> None:
    """Up to where copies count may be the first one of a slot, and of that slot no other."""
    retry = life.directory.retry
    for slot in retry.live:
        first, place, _ = slot.marks[0]
        stand = copies.stand_before(retry, first, slot.first_position)
        assert stand is not None
        assert stand[:2] == (slot, place)


def test_a_slot_without_copies_has_had_no_records(life: Life) -> None:
    slot = life.directory.retry.live[0]
    first, last = copies.span(life.directory.retry, slot, None)
    assert last is not None
    assert 0 < first < last
    slot.marks.clear()
    assert copies.span(life.directory.retry, slot, None) == (1, 0)


def gives_what_waits(life: Life, waiting: list[int]) -> None:
    """Whoever goes back to a record, or to where nothing waits any more, reads all from there on, once."""
    for start in (0, waiting[0] - 1, *waiting[::5]):
        other = life.first.back_to(start)
        assert positions(read(other, most=len(waiting))) == [position for position in waiting if position >= start]
        assert read(other, most=1) == []
        other.close()


def test_slots_in_which_nothing_waits_are_passed(life: Life) -> None:
    """Their settled copies are still there, and the next process finds nothing in them."""
    first = [one for one in life.left if one[2] < life.directory.retry.live[1].marks[0][0]]
    settle(first)
    following = life.dies()
    assert not following.directory.retry.live[0].marks
    gives_what_waits(following, life.waiting[len(first) :])


def test_copies_that_a_rewriting_has_made_do_not_count_before_its_checkpoint(life: Life) -> None:
    """They stand in slots of their own, in the same order as those that do count."""
    rewriting = life.copy_anew()
    assert rewriting.count
    gives_what_waits(life, life.waiting)


def test_slots_of_copies_that_never_counted_are_there_for_others_after_the_next_opening(life: Life) -> None:
    used = len(life.directory.retry.live)
    life.copy_anew()
    assert len(life.directory.retry.live) > used
    after = life.dies().directory.retry
    assert len(after.live) == used
    assert after.spares.free == after.spares.allocated - used


def test_what_a_reader_keeps_of_a_rewritten_ring_is_where_nobody_begins(life: Life) -> None:
    stands = life.first.back_to(0)
    read(stands, most=1)
    in_flight = read(life.first.back_to(0), limit=3, most=3)
    rewriting = life.copy_anew()
    settle(in_flight)
    life.make_anew(rewriting)
    assert any(slot.moved for slot in life.directory.retry.live)
    for start in (0, *life.waiting):
        stand = copies.stand_before(life.directory.retry, start, None)
        assert stand is not None
        assert not stand[0].moved
    gives_what_waits(life, life.waiting[3:])


def test_what_a_reader_keeps_of_a_rewritten_ring_does_not_stand_before_what_was_rewritten(life: Life) -> None:
    """Else damage at the beginning would be looked for behind the newest records."""
    read(life.first.back_to(0), most=1)
    life.make_anew(life.copy_anew())
    retry = life.directory.retry
    anew = next(slot for slot in retry.live if not slot.moved)
    assert anew is not retry.live[0]
    assert retry.live[0].marks
    assert copies.marked_before(retry, anew.first_position) == 0
    assert copies.marked_before(retry, anew.last_position) >= life.waiting[0]


def copies_in(life: Life, slot: Slot) -> list[tuple[int, int]]:
    """Position and place of each copy that waits there."""
    return [(position, place) for home, place, position, _ in read(life.first.back_to(0)) if home is slot]


def rot(life: Life, slot: Slot, place: int, words: int = 10, data: bytes = b"rot") -> None:
    """From so many words behind its settle word on."""
    life.opened.disk.retry.damage(slot.file_offset + 4 * (place + words), data)


def settled(life: Life) -> list[bool | None]:
    """Of each record that waited when the slots were moved."""
    known = {position: (position & fmt.SEQUENCE_MASK, place) for _, place, position, _ in life.left}
    moved = [position for position in known if position <= life.opened.ring.moved_up_to]
    return [life.directory.is_settled(*known[position]) for position in moved]


@pytest.mark.parametrize("number", [0, 3, -1])
def test_of_a_copy_that_rotted_it_is_not_known_that_it_is_settled_before_its_slot_is_counted_anew(
    life: Life, number: int
) -> None:
    slot = life.directory.retry.live[1]
    inside = copies_in(life, slot)
    position, place = inside[number]
    whole = life.opened.disk.retry.live()[slot.file_offset + 4 * (place + 10) :][:3]
    rot(life, slot, place)
    at = life.waiting.index(position)
    assert [where for where, known in enumerate(settled(life)) if known is not False] == [at]
    assert settled(life)[at] is None
    assert list(life.directory.retry.losses.miscounted) == [slot]
    told = counted_anew(life.directory, slot)
    assert (told.lost, position in told.waiting) == (1, False)
    assert not life.directory.retry.losses.miscounted
    assert settled(life)[at], "who asks is told of the damage by what was counted"
    assert not life.directory.retry.losses.miscounted, "nobody has it counted once more"
    rot(life, slot, place, data=whole)
    assert settled(life)[at], "nobody waits for it, though it can be read again"
    assert position not in positions(read(life.first.back_to(0)))


def test_what_is_settled_in_front_of_a_copy_that_rotted_or_behind_one_is_known_to_be(life: Life) -> None:
    slot = life.directory.retry.live[1]
    inside = copies_in(life, slot)
    one, other = life.waiting.index(inside[4][0]), life.waiting.index(inside[6][0])
    slot.ring.settle(slot, [inside[4][1], inside[6][1]])
    rot(life, slot, inside[5][1])
    assert settled(life)[one : other + 1] == [True, None, True]


def test_of_what_got_no_copy_it_is_not_known_that_it_was_settled_only_beside_one_that_rotted(life: Life) -> None:
    slot = life.directory.retry.live[1]
    inside = copies_in(life, slot)
    (before, _), (position, place), (behind, _) = inside[4:7]
    rot(life, slot, place)
    sequences = range((before & fmt.SEQUENCE_MASK) - 3, (behind & fmt.SEQUENCE_MASK) + 4)
    known = [life.directory.is_settled(sequence, 0) for sequence in sequences]
    assert None not in (*known[:4], *known[-4:])
    assert set(known[4:-4]) == {None}
    assert position & fmt.SEQUENCE_MASK in sequences


def test_what_was_settled_before_the_first_copy_is_known_to_be_whatever_rots_there(life: Life) -> None:
    """It got none, and no slot that is counted anew would tell of it."""
    slot = life.directory.retry.live[0]
    (first, place), *_ = copies_in(life, slot)
    earlier = [one for one in life.left if one[2] < life.directory.retry.live[1].marks[0][0]]
    settle(earlier)
    life.directory.recycle(life.directory.next_checkpoint())
    assert slot not in life.directory.retry.live
    following = life.directory.retry.live[0]
    rot(life, following, copies_in(life, following)[0][1])
    sequence = first & fmt.SEQUENCE_MASK
    assert life.directory.is_settled(sequence, place)
    assert not life.directory.retry.losses.miscounted


def test_a_settled_copy_that_rotted_leaves_nothing_to_count_where_its_word_still_says_so(life: Life) -> None:
    slot = life.directory.retry.live[1]
    position, place = copies_in(life, slot)[3]
    slot.ring.settle(slot, [place])
    rot(life, slot, place)
    assert settled(life)[life.waiting.index(position)]
    assert not life.directory.retry.losses.miscounted


def test_damage_beside_what_was_counted_as_damaged_has_the_slot_counted_once_more(life: Life) -> None:
    slot = life.directory.retry.live[1]
    inside = copies_in(life, slot)
    rot(life, slot, inside[5][1])
    counted_anew(life.directory, slot)
    rot(life, slot, inside[4][1])
    assert settled(life)[life.waiting.index(inside[4][0])] is None
    assert list(life.directory.retry.losses.miscounted) == [slot]


@pytest.mark.parametrize("number", [0, 3])
def test_what_a_checkpoint_covers_of_the_retry_ring_says_nothing_of_a_copy_behind_it_that_rotted(
    life: Life, number: int
) -> None:
    retry = life.directory.retry
    slot = retry.live[1]
    settle([one for one in life.left if one[2] < slot.marks[0][0]])
    life.opened.checkpoint()
    assert retry.live[0] is slot
    assert retry.floor > 0
    position, place = copies_in(life, slot)[number]
    rot(life, slot, place)
    assert settled(life)[life.waiting.index(position)] is None


@pytest.mark.parametrize("held", [False, True])
def test_what_rots_at_the_end_of_a_slot_and_is_in_hand_is_not_known_to_be_settled_before_it_is(
    life: Life, *, held: bool
) -> None:
    """Its length, and the word that tells whether it is settled."""
    slot = life.directory.retry.live[-1]
    position, place = copies_in(life, slot)[-1]
    rot(life, slot, place, -4, b"\xee" * 20)
    at = life.waiting.index(position)
    assert settled(life)[at] is None
    told = counted_anew(life.directory, slot, held={place} if held else ())
    assert told.lost == (not held)
    assert settled(life)[at] is (None if held else True)


def test_a_bit_of_a_settle_word_settles_no_copy(life: Life) -> None:
    slot = life.directory.retry.live[1]
    position, place = copies_in(life, slot)[3]
    life.opened.disk.retry.flip(8 * (slot.file_offset + 4 * place) + 5)
    assert settled(life)[life.waiting.index(position)] is False


def test_damage_that_comes_while_its_slot_is_counted_has_it_counted_once_more(life: Life) -> None:
    slot = life.directory.retry.live[1]
    inside = copies_in(life, slot)
    rot(life, slot, inside[5][1])
    settled(life)
    recount = Recount(life.directory, slot)
    while not recount.step():
        pass
    rot(life, slot, inside[2][1])
    settled(life)
    assert ended(recount).lost == 1
    assert counted_anew(life.directory, slot).lost == 1
    assert not life.directory.retry.losses.miscounted


def test_pages_that_were_looked_at_count_as_memory_only_until_the_next_look(life: Life) -> None:
    """Who asks for many records has the whole retry ring at hand."""
    oldest = life.directory.retry.live[0]
    while oldest.warm:
        life.directory.give_back_memory()
    _, place, position, _ = life.left[0]
    assert not life.directory.is_settled(position & fmt.SEQUENCE_MASK, place)
    assert oldest.warm


def test_a_copy_is_found_without_a_search_where_nothing_rots(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark tells where the copies of a slot begin: nothing is looked for in front of them."""
    retry = life.directory.retry
    copied = [position for slot in retry.live for position, _ in copies_in(life, slot)]
    assert len(copied) > len(retry.live)
    monkeypatch.setattr(copies, "next_frame", None)
    assert all(copies.waits(retry, position, None) for position in copied)


def test_marks_of_copies_that_never_count_are_forgotten_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "EVERY", 1)
    life = Life(slots=6)
    life.move()
    before = [list(slot.marks) for slot in life.directory.retry.live]
    assert sum(map(len, before)) > 0
    given_up = life.copy()
    assert [list(slot.marks) for slot in life.directory.retry.live] != before
    assert given_up.abandon()
    assert [list(slot.marks) for slot in life.directory.retry.live][: len(before)] == before
    assert not any(slot.marks for slot in life.directory.retry.live[len(before) :])
    life.directory.copies_from = None
    life.move()
    gives_what_waits(life, life.waiting)
