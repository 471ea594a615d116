"""What an opening refuses rather than guess, and what looks like it and is not refused."""

import pytest

from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Copy
from aiorecover.wal.recovery import SlotFound, plan
from tests.wal.rig import SLOT
from tests.wal.test_recovery import BAD, DAMAGED, EMPTY, LIVE, NONE, PRODUCER, copy, header, life, ordinals

ANOTHER = PRODUCER + (1 << fmt.NONCE_BITS)


def test_slots_of_two_producers_are_refused() -> None:
    foreign = SlotFound(1, "live", header(2, producer_id=ANOTHER))
    with pytest.raises(WalCorruptError, match=r"files of several producers: restore each .* producers=2$"):
        plan([copy(1), copy(2)], [life(0, 1), foreign])


def test_a_ring_under_another_producer_s_checkpoint_is_refused() -> None:
    with pytest.raises(WalCorruptError, match="files of several producers"):
        plan([copy(1, producer_id=ANOTHER), NONE], [life(0, 1)])


def test_what_several_openings_of_a_directory_left_is_one_directory() -> None:
    nonces = [3, 1, 2]
    lives = [
        SlotFound(number, "live", header(number, epoch=number, producer_id=fmt.with_nonce(PRODUCER, nonce)))
        for number, nonce in enumerate(nonces, 1)
    ]
    for newest in (Copy("blank"), copy(1, epoch=4)):
        found = plan([newest, NONE], lives)
        assert found.producer_id is not None
        assert fmt.directory_of(found.producer_id) == fmt.directory_of(PRODUCER)


def test_two_openings_under_one_epoch_are_two_copies_of_a_directory_and_refused() -> None:
    other = SlotFound(1, "live", header(2, producer_id=PRODUCER ^ 1))
    with pytest.raises(WalCorruptError, match="copied together from several states of the directory: restore all"):
        plan([copy(1, epoch=2), NONE], [life(0, 1), other])
    with pytest.raises(WalCorruptError, match="copied together from several states"):
        plan([copy(1, producer_id=PRODUCER ^ 1), NONE], [], [life(0, 1)])


def test_one_ordinal_in_two_slots_is_refused() -> None:
    with pytest.raises(WalCorruptError, match="one slot twice"):
        plan([copy(1), copy(2)], [life(0, 5), life(1, 5, first=9)])


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (life(0, 5, epoch=2), life(1, 6, epoch=1)),
        (life(0, 5, first=4), life(1, 6, first=3)),
        (life(0, 5, first=4, last=7), life(1, 6, first=7)),
    ],
)
def test_a_later_slot_with_earlier_records_is_refused(older: SlotFound, newer: SlotFound) -> None:
    """Where the copies end that count is told by position: behind such a slot those would count that never did."""
    with pytest.raises(WalCorruptError, match="in no order"):
        plan([copy(1), copy(2)], [], [older, newer])


def test_a_later_slot_may_begin_where_one_without_records_did() -> None:
    made = plan([copy(1), copy(2)], [life(0, 5, first=400, last=399), life(1, 6, first=400), life(2, 7, first=400)])
    assert ordinals(made) == [5, 6, 7]


def test_files_of_two_producers_are_refused_whichever_ring_they_stand_in() -> None:
    foreign = SlotFound(1, "live", header(2, producer_id=ANOTHER))
    for rings in ([[life(0, 1)], [foreign]], [[], [life(0, 1)], [foreign]]):
        with pytest.raises(WalCorruptError, match="several producers"):
            plan([copy(1), copy(2)], *rings)


UNREADABLE = {
    # copies, slots, is it refused?
    "nothing at all": ([NONE, NONE], [], False),
    "only blank slots": ([NONE, NONE], [EMPTY], False),  # what the length of their file says is not asked here
    "the very first checkpoint cut off": ([NONE, BAD], [EMPTY], False),
    "the first copy damaged, no slots": ([BAD, NONE], [], True),
    "both copies damaged, no slots": ([BAD, BAD], [EMPTY], True),
    "no checkpoint, a damaged slot": ([NONE, NONE], [DAMAGED], True),
    "no checkpoint, a live slot": ([NONE, NONE], [LIVE], False),
    "both copies damaged, a live slot": ([BAD, BAD], [LIVE], False),
    "a copy damaged, a live and a damaged slot": ([BAD, NONE], [LIVE, SlotFound(1, "damaged")], True),
    "no copy, a live and a damaged slot": ([NONE, NONE], [LIVE, SlotFound(1, "damaged")], False),
    "a valid copy, only damaged slots": ([copy(1), BAD], [DAMAGED], False),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_files_of_which_nothing_can_be_read_are_never_taken_for_new(case: str) -> None:
    copies, slots, refused = UNREADABLE[case]
    if not refused:
        plan(copies, slots)
        return
    with pytest.raises(WalCorruptError, match="restore them from a copy, or move the directory away and keep it"):
        plan(copies, slots)


def test_slots_of_two_sizes_are_refused() -> None:
    other = SlotFound(1, "live", fmt.SlotHeader(4 * SLOT, PRODUCER, 2, 1, 5, 11, 0))
    for rings in ([[life(0, 1), other]], [[], [other]]):
        with pytest.raises(WalCorruptError, match=rf"slots of several sizes: .* slot_bytes=\[{SLOT}, {4 * SLOT}\]$"):
            plan([copy(1), copy(2)], *rings)
