"""What is written down of a batch, and when it is trusted."""

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.delivery.batch import ENTRY_WORDS, GROUPS_MOST, RESERVED_WORDS, LaneBatch
from aiorecover.delivery.identity_life import LONGEST_MS
from aiorecover.delivery.journal import (
    MAIN,
    RETRY,
    Doubt,
    Entry,
    Group,
    decode,
    doubt_of,
    encode,
    lanes_twice,
)
from aiorecover.delivery.lane import SEQUENCE_MODULUS, Identity
from aiorecover.wal import format as fmt
from aiorecover.wal.lanes import BODY_MOST
from aiorecover.wal.moved import MOVED_BYTES
from aiorecover.wal.slot import Slot

GOLDEN = bytes.fromhex(
    "8877665544332211 0300 0200 05000000 0a000000 03000000 2b00000000000000 e803000000000000 0200 0000"
    "c3a4"
    "0100000000000000 0000 0000 02000000 24000000 40000000"
    "0900000000000000 0100 0000 01000000 24000000"
)
ENTRY = Entry(
    topic="ä",
    partition=5,
    identity=Identity(0x1122334455667788, 3),
    base_sequence=10,
    count=3,
    offset=43,
    at_ms=1000,
    groups=(Group(MAIN, 1, array("I", [36, 64])), Group(RETRY, 9, array("I", [36]))),
)


def entry_of(*counts: int, topic: str = "t", base: int = 0) -> Entry:
    """An entry with groups of so many frames."""
    groups = tuple(Group(MAIN, number + 1, array("I", range(36, 36 + count))) for number, count in enumerate(counts))
    return Entry(topic, 0, Identity(1, 0), base, sum(counts), -1, 0, groups)


def test_the_bytes_of_an_entry_never_change() -> None:
    assert encode(ENTRY) == GOLDEN
    assert decode(GOLDEN) == ENTRY


groups = st.lists(st.lists(st.integers(36, (1 << 28) - 1), min_size=1, max_size=20), min_size=1, max_size=5)


@given(
    topic=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=60),
    partition=st.integers(0, (1 << 31) - 1),
    identity=st.builds(Identity, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 15) - 1)),
    base=st.integers(0, SEQUENCE_MODULUS - 1),
    offset=st.integers(-1, (1 << 63) - 1),
    at_ms=st.integers(0, (1 << 62)),
    places=groups,
    number=st.integers(0, (1 << 16) - 1),
)
def test_every_entry_comes_back_as_it_was(
    topic: str,
    partition: int,
    identity: Identity,
    base: int,
    offset: int,
    at_ms: int,
    places: list[list[int]],
    number: int,
) -> None:
    found = tuple(Group(number % 2, (number + 1) << 30, array("I", of_slot)) for number, of_slot in enumerate(places))
    entry = Entry(topic, partition, identity, base, sum(map(len, places)), offset, at_ms, found, number)
    assert decode(encode(entry)) == entry


def test_an_entry_that_is_cut_off_or_has_something_behind_it_is_none() -> None:
    for cut in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="an entry of the lanes"):
            decode(GOLDEN[:cut])
    with pytest.raises(ValueError, match="does not add up"):
        decode(GOLDEN + b"\0")


def test_an_entry_without_records_is_none() -> None:
    with pytest.raises(ValueError, match="does not add up"):
        decode(encode(entry_of()))


@pytest.mark.parametrize("wrong", [Group(MAIN, 3, []), Group(2, 3, [34]), Group(0xFFFF, 3, [34])])
def test_an_entry_with_a_group_of_nothing_or_of_a_ring_that_is_none_is_none(wrong: Group) -> None:
    groups = (*ENTRY.groups, wrong)
    count = sum(len(group.places) for group in groups)
    with pytest.raises(ValueError, match="does not add up"):
        decode(encode(replace(ENTRY, groups=groups, count=count)))


def test_an_entry_says_that_its_batch_was_parted_with() -> None:
    parted = replace(ENTRY, parted=True)
    assert decode(encode(parted)) == parted
    assert not parted.moved_from(ENTRY)


@pytest.mark.parametrize("parted", [False, True])
def test_an_entry_says_that_it_was_doubted(*, parted: bool) -> None:
    doubted = replace(ENTRY, doubted=True, parted=parted)
    assert decode(encode(doubted)) == doubted


@pytest.mark.parametrize("per_slot", [1, 7, 5000])
def test_the_largest_batch_fits_its_place(per_slot: int) -> None:
    """Whatever number of slots its records come from, and with the longest topic that Kafka knows."""
    batch = LaneBatch(1 << 20, 0)
    places: list[int] = []
    counts: list[int] = []
    while batch.count < batch.most:  # as the dispatcher asks before each record
        if batch.count % per_slot == 0:
            header = fmt.SlotHeader(1 << 14, 0, len(counts) + 1, 1, 1 << 16, 1, 0)
            places = batch.start_group(Slot(len(counts), header))
            counts.append(0)
        places.append(36)
        counts[-1] += 1
        batch.count += 1
    words = batch.count + RESERVED_WORDS * len(counts)
    assert ENTRY_WORDS - 2 * RESERVED_WORDS <= words <= ENTRY_WORDS
    spread = [[(count + more) // GROUPS_MOST for more in range(GROUPS_MOST)] for count in counts]
    moved = [count for parts in spread for count in parts if count]
    assert sum(moved) == batch.count
    for groups in (counts, moved):
        assert len(encode(entry_of(*groups, topic="t" * 249))) <= BODY_MOST


@pytest.mark.parametrize(
    ("slot_bytes", "payload", "share"), [(64 << 10, 16, 20), (64 << 10, 40, 50), (1 << 20, 100, 200)]
)
def test_the_largest_batch_fits_its_place_when_all_its_slots_are_moved(
    slot_bytes: int, payload: int, share: int
) -> None:
    """Every ``share``-th record is of its lane, and all of them wait; each copy says where it comes from."""
    main, retry = Packed(slot_bytes, 0), Packed(slot_bytes, MOVED_BYTES)
    batch, homes = LaneBatch(1 << 20, 0), [0]
    while batch.count < batch.most:
        for _ in range(share):
            main.add(payload)
            retry.add(payload)
        if len(batch.frames) == 0 or batch.slot is not main.slot:
            batch.start_group(main.slot)
        if homes[-1] != retry.slots:
            homes.append(retry.slots)
        batch.places.append(36)
        batch.count += 1
    before, after = len(batch.frames), len(homes) - 1
    assert before < after <= GROUPS_MOST * before
    counts = [1] * (after - 1) + [batch.count - after + 1]
    assert len(encode(entry_of(*counts, topic="t" * 249))) <= BODY_MOST


class Packed:
    """Slots of a ring that frames of one size fill one after the other."""

    def __init__(self, slot_bytes: int, more: int) -> None:
        self._room = slot_bytes - 2 * fmt.RESERVED
        self._more = more
        self._used = self._room
        self.slots = 0

    def add(self, payload: int) -> None:
        size = fmt.aligned(fmt.FRAME_BYTES + self._more + payload)
        if self._used + size > self._room:
            self.slots += 1
            self._used = 0
            self.slot = Slot(self.slots, fmt.SlotHeader(1 << 14, 0, self.slots, 1, 1 << 16, 1, 0))
        self._used += size


# -- trusted or not --------------------------------------------------------------------------------------------------

NOW = 10 * LONGEST_MS


def doubt(
    entry: Entry | None = ENTRY,
    *,
    known: bool = True,
    damaged: bool = False,
    twice: bool = False,
    age_ms: int = 0,
    cluster_number: int = 0,
) -> Doubt | None:
    now = NOW if entry is None else entry.at_ms + age_ms
    return doubt_of(entry, known=known, damaged=damaged, twice=twice, now_ms=now, cluster_number=cluster_number)


def test_an_entry_that_nothing_speaks_against_is_trusted() -> None:
    assert doubt() is None
    assert doubt(age_ms=LONGEST_MS) is None


def test_each_thing_that_speaks_against_an_entry_is_a_doubt() -> None:
    assert doubt(known=False) is Doubt.ELSEWHERE
    assert doubt(damaged=True) is Doubt.DAMAGED
    assert doubt(None) is Doubt.DAMAGED
    assert doubt(twice=True) is Doubt.TWICE
    assert doubt(cluster_number=1) is Doubt.MOVED
    assert doubt(replace(ENTRY, doubted=True)) is Doubt.BEFORE
    assert doubt(age_ms=LONGEST_MS + 1) is Doubt.OLD
    assert doubt(age_ms=-1) is Doubt.OLD


def test_what_was_stored_elsewhere_is_that_before_all_else() -> None:
    assert doubt(None, known=False, damaged=True) is Doubt.ELSEWHERE


def test_a_lane_with_two_entries_is_found() -> None:
    def lanes(*topics: str) -> Sequence[Entry]:
        return [entry_of(1, topic=topic) for topic in topics]

    assert lanes_twice(lanes("a", "b", "c")) == set()
    assert lanes_twice(lanes("a", "b", "a", "a")) == {("a", 0)}
    assert lanes_twice([*lanes("a", "b"), *(replace(entry, doubted=True) for entry in lanes("a"))]) == set()
