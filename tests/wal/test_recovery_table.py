"""Every combination of what may be left of checkpoint, slot header, tail and settle words, as the tables say it."""

from dataclasses import dataclass, field
from itertools import product

import pytest

from aiorecover.errors import WalCorruptError
from aiorecover.wal.checkpoint import COPY_BYTES
from aiorecover.wal.directory import Directory
from aiorecover.wal.moved import DEAD, RETRY, RING, Moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.suffix import SuffixRule, Word
from tests.wal.played import copy_of
from tests.wal.remains import MADE_IN_PART, OLDER, PER_SLOT, build, payload, settled
from tests.wal.rig import SLOT, Disk, Opened, missing
from tests.wal.tables import (
    CHECKPOINTS,
    COPIES,
    HEADERS,
    RINGS,
    SETTLED,
    SLOTS,
    TAILS,
    Case,
    can_stand,
    cases,
    matches,
    outcome,
    tables,
)


@dataclass
class Came:
    """``delivered``, ``missing``: by the ring's own numbers. ``originals``: delivered from the main ring instead.

    ``used``: slots that are not free. ``new``: nothing was known of an earlier life.
    """

    delivered: list[int] = field(default_factory=list)
    originals: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    damaged_slots: list[int] = field(default_factory=list)
    new: bool = False
    refused: bool = False
    used: list[int] = field(default_factory=list, compare=False)


# -- what comes of it ----------------------------------------------------------------------------------------------


def look(disk: Disk, name: str = RING) -> Came:
    """Open with the real code, and deliver as the dispatcher does: by the lane suffix rule, all of one lane."""
    try:
        opened = Opened(disk)
    except WalCorruptError:
        return Came(refused=True)
    with opened:
        directory, rule = opened.directory, SuffixRule()
        ring = {RING: opened.ring, RETRY: directory.retry, DEAD: directory.dead}[name]
        assert [other.spares.empty for other in (directory.retry, directory.dead)] == [False] * 2, "one is reserved"
        used = [slot.index for slot in ring.live] + ring.damaged_slots
        kept = [(index, content(ring, index)) for index in ring.damaged_slots]
        delivered = given(ring, rule, suspects=name != DEAD)
        originals = [number - 1 for number in given(opened.ring, rule, suspects=True)] if name == RETRY else []
        gone = [sequence for _, sequence in missing(ring)]
        take_slots(directory)
        assert [(index, content(ring, index)) for index in ring.damaged_slots] == kept, "they are left as they are"
        return Came(delivered, originals, gone, ring.damaged_slots, new=ring.epoch == 1, used=used)


def given(ring: Ring, rule: SuffixRule, *, suspects: bool) -> list[int]:
    """What has to be delivered, by the ring's own numbers."""
    reader, numbers = Reader(ring, copy_of if ring.holds_copies else bytes, suspects=suspects), []
    while (run := reader.take(100)) is not None:
        words = run.words or [Word.WAITING] * len(run)
        for number, word, record in zip(run.sequences, words, run.records, strict=True):
            if isinstance(record, Moved):
                assert (record.sequence, bytes(record.payload)) == (number + 1, payload(number))
            if rule.needed("lane", word):
                numbers.append(number)
    return numbers


def content(ring: Ring, index: int) -> bytes:
    """All of a slot."""
    buffer = bytearray(SLOT)
    ring.file.read_into(memoryview(buffer), index * SLOT)
    return bytes(buffer)


def take_slots(directory: Directory) -> None:
    """Each ring goes on in a slot in which nothing stands."""
    for ring in directory.rings:
        taken = {slot.index for slot in ring.live} | set(ring.damaged_slots)
        ring.append(b"what comes next", None)
        assert ring.live[-1].index not in taken


# -- what must come of it ------------------------------------------------------------------------------------------


def expected(case: Case) -> Came:
    """As the tables say it."""
    of_slot, of_settled = outcome(SLOTS, case), outcome(SETTLED, case)
    if of_slot == "refused":
        return Came(refused=True)
    known = case.checkpoint in {"both", "one"}
    first = PER_SLOT + 1
    before = list(range(first, first + PER_SLOT)) if case.others == "yes" else []
    inside = list(range(first + len(before), first + len(before) + PER_SLOT)) if case.slot != "fresh" else []
    count = {"all": inside, "the first": inside[:MADE_IN_PART], "none": []}[count_of(case)]
    comes, gone = of_the_slot(of_slot, case, inside, count if known else inside)
    copies = before + [number for number in comes if number in count]
    originals = [number for number in inside if number not in count] if case.slot == "holds" else []
    again = delivered(sorted({*copies, *originals}), of_settled, waits=case.slot != "reused")
    if case.slot == "reused" and known:
        again = []
    slot = 1 + len(before) // PER_SLOT
    return Came(
        [number for number in again if number not in originals],
        [number for number in again if number in originals],
        gone,
        [slot] if "kept" in of_slot else [],
    )


def count_of(case: Case) -> str:
    return outcome(COPIES, case) if case.moved else "all"


def of_the_slot(of_slot: str, case: Case, inside: list[int], told: list[int]) -> tuple[list[int], list[int]]:
    """Which of its frames come, and which are missing; ``told``: of those that do not hold, which would be missed."""
    damaged = {"middle": inside[3:4], "last": inside[4:], "page": inside}.get(case.tail, [])
    holds = [number for number in inside if number not in damaged]
    missed = [number for number in damaged if number in told]
    return {
        "all comes": (inside, []),
        "the rest comes": (holds, missed),
        "the rest, one unknown": (holds, []),
        "kept and missing": ([], told),
        "kept": ([], []),
        "missing": ([], told),
        "unknown": ([], []),
        "nothing": (inside if case.header == "before" else [], []),
        "false alarm": ([], OLDER if case.slot == "holds" else inside),
    }[of_slot]


def delivered(there: list[int], of_settled: str, *, waits: bool) -> list[int]:
    """Of frames of one lane; not ``waits``: all are settled."""
    waiting = [number for number in there if waits and not settled(number)]
    suffix = [number for number in there if waiting and number >= waiting[0]]
    return {"stay": waiting, "suffix": suffix, "again": there}[of_settled]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("header", [*HEADERS, "torn"])
@pytest.mark.parametrize("ring", RINGS)
def test_every_combination_has_one_row_and_comes_to_what_it_says(ring: str, header: str, checkpoint: str) -> None:
    chosen = [case for case in cases(ring) if (case.checkpoint, case.header) == (checkpoint, header)]
    assert len(chosen) >= len(CHECKPOINTS[checkpoint])
    for case in chosen:
        came = look(build(case), ring)
        assert came == expected(case), case
        if header != "damaged" and checkpoint in {"both", "one"} and count_of(case) == "none":
            assert len(came.used) == (case.others == "yes"), case


def test_what_only_the_copy_that_is_lost_had_covered_may_be_named_as_missing_behind_an_older_slot() -> None:
    opened = Opened()
    slots = [opened.fill_slot() for _ in range(4)]
    opened.checkpoint()  # else the next one would be the first to tell of something, and stand in both copies
    opened.settle(opened.read()[: -len(slots[3])])
    assert opened.checkpoint() == 3
    opened.append(b"where the third one stood" * 400)
    disk = opened.disk.after_death()
    newer = max((0, 1), key=lambda copy: int.from_bytes(disk.checkpoint.read(copy * COPY_BYTES + 16, 8), "little"))
    disk.checkpoint.damage(newer * COPY_BYTES + 40, b"\xee\xee")
    following = Opened(disk)
    came = [sequence for *_, sequence, _ in following.read()]
    assert came == [sequence for _, sequence in slots[3]] + [opened.ring.sequence]
    assert missing(following.ring) == slots[2]


def test_no_row_is_idle() -> None:
    every = [case for ring in RINGS for case in cases(ring)]
    for table in tables():
        for row in table:
            assert any(matches(row, case) for case in every), row


@pytest.mark.parametrize("ring", RINGS)
def test_what_the_tables_do_not_tell_apart_comes_all_the_same(ring: str) -> None:
    every = list(cases(ring))
    pairs = {ends for of_header in HEADERS.values() for ends in of_header}
    held = {(case.ends, case.tail) for case in every if case.slot == "holds"}
    assert {tail for _, tail in held} == set(TAILS)
    if ring == RING:
        assert held == {(ends, tail) for ends, tail in product(pairs, TAILS) if can_stand(ends, tail)}
    for slot in ("holds", "reused"):
        assert {case.ends for case in every if case.slot == slot} == pairs
    copies = {(checkpoint, pair) for checkpoint, of_checkpoint in CHECKPOINTS.items() for pair in of_checkpoint}
    for header in HEADERS:
        assert {(case.checkpoint, case.copies) for case in every if case.header == header} == copies


def test_what_is_refused_is_not_changed() -> None:
    refused = [case for case in cases(RING) if outcome(SLOTS, case) == "refused" and case.words == "present"]
    assert len(refused) > 30
    for case in refused:
        disk = build(case)
        before = [file.live() for file in disk._files]
        assert look(disk).refused
        assert [file.live() for file in disk._files] == before
