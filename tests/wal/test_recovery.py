"""What an opening makes of any bytes it finds: tables of slots and checkpoints. What it refuses: `test_refusals`."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Checkpoint, Copy, RingState
from aiorecover.wal.recovery import (
    LOST,
    UNTOLD,
    Plan,
    RingPlan,
    SlotFound,
    classify,
    first_headers,
    plan,
    slot_bytes_of,
)
from aiorecover.wal.suffix import Suspicion
from tests.wal.rig import SLOT

PRODUCER = fmt.with_nonce(77 << fmt.NONCE_BITS, 5)
SALT = 0x0100_0000  # and the ordinal
BLANK = bytes(fmt.RESERVED)
NOISE = bytes(range(1, fmt.RESERVED + 1))


def header(ordinal: int, epoch: int = 1, first: int = 1, producer_id: int = PRODUCER) -> fmt.SlotHeader:
    return fmt.SlotHeader(SLOT, producer_id, ordinal, epoch, SALT + ordinal, first, 0)


def reserved(ordinal: int, seal: fmt.Seal | None = None, *, salt: int | None = None) -> bytes:
    """One end of a slot: its header and, once it was left, its seal."""
    packed = fmt.pack_slot_header(header(ordinal))
    if seal is not None:
        packed += fmt.pack_seal(seal, SALT + ordinal if salt is None else salt)
    return packed.ljust(fmt.RESERVED, b"\0")


SEAL = fmt.Seal(count=3, tail=400, last_sequence=3)
NEW, OLD = reserved(9), reserved(2)
NEW_SEALED, OLD_SEALED = reserved(9, SEAL), reserved(2, SEAL)
HALF = reserved(9)[:32].ljust(fmt.RESERVED, b"\0")  # a header that was being stored
FRAME = fmt.FRAME.pack(3, 0, 1, fmt.open_word(SALT + 9))

LIVE = SlotFound(0, "live", header(9))
SEALED = SlotFound(0, "live", header(9), SEAL)
DAMAGED = SlotFound(0, "damaged")
EMPTY = SlotFound(0, "blank")

CLASSIFY = {
    "never used": (BLANK, BLANK, EMPTY),
    "both copies": (NEW, NEW, LIVE),
    "both copies, sealed": (NEW_SEALED, NEW_SEALED, SEALED),
    "sealed at the head only": (NEW_SEALED, NEW, SEALED),
    "sealed at the end only": (NEW, NEW_SEALED, SEALED),
    "head damaged": (NOISE, NEW, LIVE),
    "end damaged": (NEW, NOISE, LIVE),
    "head damaged, sealed": (NOISE, NEW_SEALED, SEALED),
    "end damaged, sealed": (NEW_SEALED, NOISE, SEALED),
    "end zero": (NEW, BLANK, LIVE),
    "first life begun, the end stored": (BLANK, NEW, LIVE),
    "first life begun, the end torn": (BLANK, HALF, SlotFound(0, "torn")),
    "next life begun, the end stored": (OLD_SEALED, NEW, LIVE),
    "next life begun, the end torn": (OLD_SEALED, HALF, SlotFound(0, "live", header(2), SEAL)),
    "next life begun, the head torn": (HALF, NEW, LIVE),
    "next life at the head only": (NEW, OLD_SEALED, LIVE),
    "seal of the life before": (reserved(9, SEAL, salt=SALT + 2), NEW, LIVE),
    "seal damaged at both ends": (NEW[:64] + NOISE[64:], NEW[:64] + NOISE[64:], LIVE),
    "nothing readable": (NOISE, NOISE, DAMAGED),
    "both copies torn": (HALF, HALF, DAMAGED),
    "one zero, one damaged, a frame": (BLANK + FRAME, HALF, DAMAGED),
    "one damaged, one zero, a frame": (HALF + FRAME, BLANK, DAMAGED),
    "one zero, one damaged, a seal": (BLANK, HALF[:64] + NEW_SEALED[64:], DAMAGED),
    "one zero, its seal, one damaged": (BLANK[:64] + NEW_SEALED[64:], HALF, DAMAGED),
    "both zero, a frame": (BLANK + FRAME, BLANK, EMPTY),
    "first life begun, the end torn, no frame": (BLANK + bytes(fmt.FRAME_BYTES), HALF, SlotFound(0, "torn")),
    "both copies, a frame": (NEW + FRAME, NEW, LIVE),
}


@pytest.mark.parametrize("case", CLASSIFY)
def test_a_slot_is_blank_live_or_damaged(case: str) -> None:
    head, end, expected = CLASSIFY[case]
    assert classify(0, head, end) == expected


@given(st.sampled_from([NEW, NEW_SEALED]), st.binary(min_size=1, max_size=64))
def test_no_damage_at_one_end_changes_what_the_other_says(other: bytes, noise: bytes) -> None:
    damaged = noise.ljust(fmt.RESERVED, b"\1")
    for head, end in ((damaged, other), (other, damaged)):
        slot = classify(0, head, end)
        assert slot.state == "live"
        assert slot.header == header(9)


@given(st.binary(min_size=fmt.RESERVED, max_size=fmt.RESERVED), st.binary(min_size=fmt.RESERVED, max_size=fmt.RESERVED))
def test_arbitrary_bytes_are_never_taken_for_a_life(head: bytes, end: bytes) -> None:
    assert classify(0, head, end).header is None


# -- plans -----------------------------------------------------------------------------------------------------------


def copy(generation: int, *, epoch: int = 1, watermark: int = 0, moved: int = 0, producer_id: int = PRODUCER) -> Copy:
    content = Checkpoint(producer_id=producer_id, epoch=epoch, main=RingState(watermark), slot_bytes=SLOT, moved=moved)
    return Copy("valid", generation, content)


FIVE, SEVEN = fmt.position(1, 5), fmt.position(1, 7)
NONE = Copy("blank")
BAD = Copy("damaged")


def life(index: int, ordinal: int, *, epoch: int = 1, first: int = 1, last: int | None = None) -> SlotFound:
    """``last`` None: a crash left it open."""
    seal = None if last is None else fmt.Seal(last - first + 1, 1000, last)
    return SlotFound(index, "live", header(ordinal, epoch, first), seal)


def ordinals(made: Plan) -> list[int]:
    return [alive.header.ordinal for alive in made.main.lives]


def test_an_empty_directory_begins_with_epoch_one_and_nothing() -> None:
    made = plan([NONE, NONE], [])
    assert (made.newest, made.producer_id, made.epoch, made.suspect) == (None, None, 1, Suspicion())
    assert made.main == made.retry == made.dead == RingPlan()


def test_lives_are_in_the_order_of_their_ordinals_wherever_they_stand() -> None:
    slots = [life(0, 4, first=31), life(1, 2, first=11, last=20), life(2, 3, first=21, last=30), life(3, 1, last=10)]
    for order in permutations(slots):
        made = plan([copy(1), copy(2)], order)
        assert ordinals(made) == [1, 2, 3, 4]
        assert [alive.index for alive in made.main.lives] == [3, 1, 2, 0]
        assert made.main.next_ordinal == 5


COVERED = {
    # watermark, last sequence of the seal (None: open): is the slot free?
    "one before its last": (9, 10, False),
    "its last": (10, 10, True),
    "beyond its last": (11, 10, True),
    "nothing settled": (0, 10, False),
    "open, whatever the watermark says": (10, None, False),
}


@pytest.mark.parametrize("how", ["watermark", "moved"])
@pytest.mark.parametrize("case", COVERED)
def test_a_slot_is_free_only_when_the_watermark_or_p_covers_its_last_position(case: str, how: str) -> None:
    mark, last, free = COVERED[case]
    found = plan([copy(1), copy(2, **{how: fmt.position(1, mark)})], [life(5, 7, last=last)])
    assert found.main.free == ([(5, SALT + 7)] if free else [])
    assert ordinals(found) == ([] if free else [7])
    assert found.main.next_ordinal == 8


def test_a_slot_of_a_later_epoch_is_not_covered_by_a_watermark_of_an_earlier_one() -> None:
    found = plan([copy(1, epoch=2, watermark=fmt.position(1, 999))], [life(0, 1, epoch=2, last=3)])
    assert ordinals(found) == [1]


def test_a_slot_without_a_seal_is_free_once_what_stands_before_the_next_one_is_covered() -> None:
    """Else its reader would have it end where a flush is known to, behind where the next one begins."""
    slots = [life(0, 1), life(1, 2, first=11, last=20)]
    for mark, free in ((9, []), (10, [(0, SALT + 1)]), (15, [(0, SALT + 1)])):
        assert plan([copy(1), copy(2, watermark=fmt.position(1, mark))], slots).main.free == free


def test_an_empty_slot_is_free_once_the_watermark_stands_before_it() -> None:
    empty = SlotFound(0, "live", header(3, 1, 11), fmt.Seal(0, fmt.FIRST_FRAME, 10))
    for mark, free in ((10, [(0, SALT + 3)]), (9, [])):
        assert plan([copy(1), copy(2, watermark=fmt.position(1, mark))], [empty]).main.free == free


@pytest.mark.parametrize(
    ("copies", "main", "others"),
    [
        ([copy(1), copy(2)], 0, 0),
        ([copy(1, watermark=FIVE), copy(2, watermark=SEVEN)], SEVEN, 0),
        ([copy(1, watermark=FIVE), BAD], fmt.position(1, 10), fmt.position(1, 10)),
        ([NONE, copy(1)], fmt.position(1, 10), fmt.position(1, 10)),
        ([BAD, BAD], fmt.position(1, 10), fmt.position(1, 10)),
    ],
)
def test_what_stood_before_the_oldest_slot_is_missed_only_where_both_copies_tell_what_was_recycled(
    copies: list[Copy], main: int, others: int
) -> None:
    slots = [life(0, 3, first=11, last=20), life(1, 4, first=21)]
    made = plan(copies, slots, slots, slots)
    assert [made.main.floor, made.retry.floor, made.dead.floor] == [main, others, others]


@pytest.mark.parametrize(("mark", "unsure"), [(8, True), (9, True), (10, False), (11, False)])
def test_where_a_copy_is_lost_it_is_said_that_some_may_be_gone_unless_the_other_one_covers_all_before(
    mark: int, *, unsure: bool
) -> None:
    slots = [life(0, 3, first=11, last=20), life(1, 4, first=21)]
    assert plan([copy(1, watermark=fmt.position(1, mark)), BAD], slots).main.unsure is unsure


def test_blank_slots_are_free_and_damaged_ones_are_reported_and_never_recycled() -> None:
    found = plan([copy(1), copy(2)], [SlotFound(0, "blank"), SlotFound(1, "damaged"), life(2, 1)])
    assert (found.main.free, found.main.damaged, ordinals(found)) == ([(0, 0)], [1], [1])


def test_a_number_that_a_damaged_slot_may_have_is_not_given_once_more() -> None:
    """All lives behind the last one that is known stand in damaged slots: what is recycled, a checkpoint knows."""
    damaged = [SlotFound(index, "damaged") for index in (1, 3)]
    assert plan([copy(1), copy(2)], [*damaged, life(2, 7)]).main.next_ordinal == 10


@pytest.mark.parametrize(
    ("copies", "mark"),
    [
        ([copy(4, watermark=SEVEN), copy(3, watermark=FIVE)], SEVEN),
        ([copy(3, watermark=FIVE), copy(4, watermark=SEVEN)], SEVEN),
        ([BAD, copy(3, watermark=FIVE)], FIVE),
        ([copy(4, watermark=SEVEN), BAD], SEVEN),
        ([copy(4, watermark=SEVEN), NONE], SEVEN),
        ([NONE, copy(4, watermark=SEVEN)], SEVEN),
        ([BAD, BAD], fmt.position(1, 0)),  # nothing is done
        ([BAD, NONE], fmt.position(1, 0)),
    ],
)
def test_the_valid_copy_with_the_higher_generation_counts(copies: list[Copy], mark: int) -> None:
    assert plan(copies, [life(0, 1)]).main.floor == mark


@given(
    st.lists(st.integers(0, 1000) | st.none(), min_size=2, max_size=2),
    st.lists(st.integers(0, 1000), max_size=6),
)
def test_the_epoch_is_one_above_everything_that_was_ever_seen(copies: list[int | None], headers: list[int]) -> None:
    """I5: any copy, any header, also the older copy and a slot that is free."""
    found = plan(
        [NONE if epoch is None else copy(generation, epoch=epoch) for generation, epoch in enumerate(copies, 1)],
        [life(index, index + 1, epoch=epoch, last=1) for index, epoch in enumerate(sorted(set(headers)))],
    )
    seen = [epoch for epoch in copies if epoch is not None] + headers
    untold = UNTOLD if copies == [None, None] and any(headers) else 0
    assert found.epoch == max(seen, default=0) + 1 + untold


@pytest.mark.parametrize("last", [1, 2])
def test_without_a_checkpoint_epochs_that_left_no_header_are_left_out_from_the_first_one_on(last: int) -> None:
    assert plan([NONE, NONE], [life(0, 1, epoch=last, last=1)]).epoch == last + 1 + UNTOLD


# -- the slot size ---------------------------------------------------------------------------------------------------


def test_the_stored_slot_size_wins_over_the_option() -> None:
    other = fmt.SlotHeader(4 * SLOT, PRODUCER, 1, 1, 5, 1, 0)
    assert slot_bytes_of([BAD, copy(1)], [other], default=8 * SLOT) == SLOT
    assert slot_bytes_of([BAD, NONE], [None, other], default=8 * SLOT) == 4 * SLOT
    assert slot_bytes_of([NONE, NONE], [None, None], default=8 * SLOT) == 8 * SLOT


@pytest.mark.parametrize("size", [fmt.SLOT_BYTES_MIN, 1 << 24, fmt.SLOT_BYTES_MAX])
def test_without_a_checkpoint_any_header_of_the_first_slot_or_the_second_tells_the_size(size: int) -> None:
    packed = fmt.pack_slot_header(fmt.SlotHeader(size, PRODUCER, 1, 1, 5, 1, 0))
    for place in (0, size - fmt.RESERVED, size):

        def read(offset: int, length: int, place: int = place) -> bytes:
            return packed if offset == place else bytes(length)

        assert slot_bytes_of([NONE, BAD], first_headers(read), default=2 * SLOT) == size


# -- the three rings -------------------------------------------------------------------------------------------------


def state(**fields: object) -> Copy:
    return Copy("valid", 2, Checkpoint(**{"producer_id": PRODUCER, "epoch": 1, "slot_bytes": SLOT} | fields))  # type: ignore[arg-type]


def test_each_ring_starts_from_its_own_watermark_and_ordinal() -> None:
    newest = state(main=RingState(9, 20, 8), retry=RingState(5, 30, 4), dead=RingState(2, 40, 1))
    slots = [life(0, 7, last=9), life(1, 8, first=10, last=12)]
    made = plan([newest, newest], slots, slots, slots)
    assert [ring.floor for ring in (made.main, made.retry, made.dead)] == [9, 5, 2]
    assert [ring.next_ordinal for ring in (made.main, made.retry, made.dead)] == [20, 30, 40]
    assert [ring.flushed for ring in (made.main, made.retry, made.dead)] == [8, 4, 1]
    made = plan([state(main=RingState(fmt.position(1, 9)))] * 2, slots, slots, slots)
    assert [len(ring.free) for ring in (made.main, made.retry, made.dead)] == [1, 0, 0]


def test_p_frees_slots_of_the_main_ring_only() -> None:
    copies = [state(moved=fmt.position(1, 10))] * 2
    made = plan(copies, [life(0, 1, last=10)], [life(0, 1, last=10)])
    assert (made.moved, len(made.main.free), len(made.retry.free)) == (fmt.position(1, 10), 1, 0)


def test_the_epoch_is_above_those_of_every_ring() -> None:
    made = plan([copy(1), copy(2)], [life(0, 1)], [life(0, 1, epoch=4)], [life(0, 1, epoch=6)])
    assert made.epoch == 7


def test_without_a_checkpoint_nothing_is_known_to_be_moved() -> None:
    main = [life(0, 9, epoch=3, first=21), life(1, 8, epoch=2, first=11, last=20)]
    assert plan([BAD, BAD], main, [life(0, 1)]).moved == 0


def test_without_a_checkpoint_and_a_main_ring_all_that_was_ever_accepted_may_be_moved_and_nothing_that_comes() -> None:
    """What is published from now on counts where it is stored, from the very first record on."""
    made = plan([state(epoch=3, retry=LOST)] * 2, [], [life(0, 1, epoch=2)])
    assert made.copies_up_to is None
    assert fmt.position(made.epoch - 1, fmt.SEQUENCE_MASK) <= made.moved_up_to < fmt.position(made.epoch, 1)


# -- which settle words are suspect ------------------------------------------------------------------------------------

ALL_OF_3 = fmt.position(3, fmt.SEQUENCE_MASK)
EARLIER = Suspicion(fmt.position(1, fmt.SEQUENCE_MASK), generation=2, since=2)

SUSPECT = {
    # the newest copy, the other one, what is suspect at this boot
    "killed, the same boot": (state(epoch=3, boot_id="now"), copy(1), Suspicion()),
    "another boot": (state(epoch=3, boot_id="before"), copy(1), Suspicion(ALL_OF_3, 4, 4)),
    "another boot after a clean end": (state(epoch=3, boot_id="before", closed=True), copy(1), Suspicion()),
    "a flush had failed": (state(epoch=3, boot_id="now", poisoned=True), copy(1), Suspicion(ALL_OF_3, 4, 4)),
    "one copy damaged": (state(epoch=3, boot_id="now"), BAD, Suspicion(ALL_OF_3, 4, 4)),
    "one copy missing": (state(epoch=3, boot_id="now"), NONE, Suspicion(ALL_OF_3, 4, 4)),
    "no copy, slots of epoch 3": (BAD, BAD, Suspicion(ALL_OF_3, 4 + UNTOLD, 1)),
    "killed while it was suspect": (state(epoch=3, boot_id="now", suspect=EARLIER), copy(1), EARLIER),
    "another boot while it was suspect": (
        state(epoch=3, boot_id="before", suspect=EARLIER),
        copy(1),
        Suspicion(ALL_OF_3, 4, since=2),
    ),
}


@pytest.mark.parametrize("case", SUSPECT)
def test_settle_words_are_suspect_after_anything_that_may_have_lost_some(case: str) -> None:
    newest, other, expected = SUSPECT[case]
    assert plan([newest, other], [life(0, 1, epoch=3)], boot_id="now").suspect == expected


def test_a_clean_end_of_an_epoch_that_is_not_the_last_one_counts_for_nothing() -> None:
    """The checkpoints of the last epoch are lost, and an older copy says that all was well."""
    newest = state(epoch=2, boot_id="before", closed=True)
    assert plan([newest, copy(1)], [life(0, 1, epoch=3)], boot_id="now").suspect == Suspicion(ALL_OF_3, 4, 4)
