"""What an opening makes of any bytes it finds: tables of slots and checkpoints, and what is refused."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Checkpoint, Copy
from aiorecover.wal.recovery import Plan, SlotFound, classify, plan, slot_bytes_of
from tests.wal.rig import SLOT

PRODUCER = 77
BLANK = bytes(fmt.RESERVED)
NOISE = bytes(range(1, fmt.RESERVED + 1))


def header(ordinal: int, epoch: int = 1, first: int = 1, producer_id: int = PRODUCER) -> fmt.SlotHeader:
    return fmt.SlotHeader(SLOT, producer_id, ordinal, epoch, 1000 + ordinal, first, 0)


def reserved(ordinal: int, seal: fmt.Seal | None = None, *, salt: int | None = None) -> bytes:
    """One end of a slot: its header and, once it was left, its seal."""
    packed = fmt.pack_slot_header(header(ordinal))
    if seal is not None:
        packed += fmt.pack_seal(seal, 1000 + ordinal if salt is None else salt)
    return packed.ljust(fmt.RESERVED, b"\0")


SEAL = fmt.Seal(count=3, tail=400, last_sequence=3)
NEW, OLD = reserved(9), reserved(2)
NEW_SEALED, OLD_SEALED = reserved(9, SEAL), reserved(2, SEAL)
HALF = reserved(9)[:32].ljust(fmt.RESERVED, b"\0")  # a header that was being stored

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
    "first life begun, the end torn": (BLANK, HALF, EMPTY),
    "next life begun, the end stored": (OLD_SEALED, NEW, LIVE),
    "next life begun, the end torn": (OLD_SEALED, HALF, SlotFound(0, "live", header(2), SEAL)),
    "next life begun, the head torn": (HALF, NEW, LIVE),
    "next life at the head only": (NEW, OLD_SEALED, LIVE),
    "seal of the life before": (reserved(9, SEAL, salt=1002), NEW, LIVE),
    "seal damaged at both ends": (NEW[:64] + NOISE[64:], NEW[:64] + NOISE[64:], LIVE),
    "nothing readable": (NOISE, NOISE, DAMAGED),
    "both copies torn": (HALF, HALF, DAMAGED),
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
    content = Checkpoint(producer_id=producer_id, epoch=epoch, watermark=watermark, slot_bytes=SLOT, moved=moved)
    return Copy("valid", generation, content)


NONE = Copy("blank")
BAD = Copy("damaged")


def life(index: int, ordinal: int, *, epoch: int = 1, first: int = 1, last: int | None = None) -> SlotFound:
    """``last`` None: a crash left it open."""
    seal = None if last is None else fmt.Seal(last - first + 1, 1000, last)
    return SlotFound(index, "live", header(ordinal, epoch, first), seal)


def ordinals(made: Plan) -> list[int]:
    return [alive.header.ordinal for alive in made.lives]


def test_an_empty_directory_begins_with_epoch_one_and_nothing() -> None:
    assert plan([NONE, NONE], []) == Plan(None, epoch=1, watermark=0, moved=0, next_ordinal=1)


def test_lives_are_in_the_order_of_their_ordinals_wherever_they_stand() -> None:
    slots = [life(0, 4, first=31), life(1, 2, first=11, last=20), life(2, 3, first=21, last=30), life(3, 1, last=10)]
    for order in permutations(slots):
        made = plan([copy(1), copy(2)], order)
        assert ordinals(made) == [1, 2, 3, 4]
        assert [alive.index for alive in made.lives] == [3, 1, 2, 0]
        assert made.next_ordinal == 5


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
    assert found.free == ([(5, 1007)] if free else [])
    assert ordinals(found) == ([] if free else [7])
    assert found.next_ordinal == 8


def test_a_slot_of_a_later_epoch_is_not_covered_by_a_watermark_of_an_earlier_one() -> None:
    found = plan([copy(1, epoch=2, watermark=fmt.position(1, 999))], [life(0, 1, epoch=2, last=3)])
    assert ordinals(found) == [1]


def test_an_empty_slot_is_free_once_the_watermark_stands_before_it() -> None:
    empty = SlotFound(0, "live", header(3, 1, 11), fmt.Seal(0, fmt.FIRST_FRAME, 10))
    assert plan([copy(1, watermark=fmt.position(1, 10)), NONE], [empty]).free == [(0, 1003)]
    assert ordinals(plan([copy(1, watermark=fmt.position(1, 9)), NONE], [empty])) == [3]


def test_blank_slots_are_free_and_damaged_ones_are_reported_and_never_recycled() -> None:
    found = plan([copy(1), copy(2)], [SlotFound(0, "blank"), SlotFound(1, "damaged"), life(2, 1)])
    assert (found.free, found.damaged, ordinals(found)) == ([(0, 0)], [1], [1])


@pytest.mark.parametrize(
    ("copies", "mark"),
    [
        ([copy(4, watermark=7), copy(3, watermark=5)], 7),
        ([copy(3, watermark=5), copy(4, watermark=7)], 7),
        ([BAD, copy(3, watermark=5)], 5),
        ([copy(4, watermark=7), BAD], 7),
        ([copy(4, watermark=7), NONE], 7),
        ([NONE, copy(4, watermark=7)], 7),
        ([BAD, BAD], 0),
        ([BAD, NONE], 0),
    ],
)
def test_the_valid_copy_with_the_higher_generation_counts(copies: list[Copy], mark: int) -> None:
    assert plan(copies, [life(0, 1)]).watermark == mark


@given(
    st.lists(st.integers(0, 1000) | st.none(), min_size=2, max_size=2),
    st.lists(st.integers(0, 1000), max_size=6),
)
def test_the_epoch_is_one_above_everything_that_was_ever_seen(copies: list[int | None], headers: list[int]) -> None:
    """I5: any copy, any header, also the older copy and a slot that is free."""
    found = plan(
        [BAD if epoch is None else copy(generation, epoch=epoch) for generation, epoch in enumerate(copies, 1)],
        [life(index, index + 1, epoch=epoch, last=1) for index, epoch in enumerate(headers)],
    )
    seen = [epoch for epoch in copies if epoch is not None] + headers
    assert found.epoch == max(seen, default=0) + 1


# -- refused ---------------------------------------------------------------------------------------------------------


def test_slots_of_two_producers_are_refused() -> None:
    foreign = SlotFound(1, "live", header(2, producer_id=PRODUCER + 1))
    with pytest.raises(WalCorruptError, match=r"files of several producers: restore each .* producers=2$"):
        plan([copy(1), copy(2)], [life(0, 1), foreign])


def test_a_ring_under_another_producer_s_checkpoint_is_refused() -> None:
    with pytest.raises(WalCorruptError, match="files of several producers"):
        plan([copy(1, producer_id=1), NONE], [life(0, 1)])


def test_one_ordinal_in_two_slots_is_refused() -> None:
    with pytest.raises(WalCorruptError, match="one slot twice"):
        plan([copy(1), copy(2)], [life(0, 5), life(1, 5, first=9)])


# -- the slot size ---------------------------------------------------------------------------------------------------


def test_the_stored_slot_size_wins_over_the_option() -> None:
    other = fmt.SlotHeader(4 * SLOT, PRODUCER, 1, 1, 5, 1, 0)
    assert slot_bytes_of([BAD, copy(1)], [other], default=8 * SLOT) == SLOT
    assert slot_bytes_of([BAD, NONE], [None, other], default=8 * SLOT) == 4 * SLOT
    assert slot_bytes_of([NONE, NONE], [None, None], default=8 * SLOT) == 8 * SLOT
