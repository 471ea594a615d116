"""Every combination of what may be left of checkpoint, slot header, tail and settle words, as the tables say it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
from msgspec.structs import replace

from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal import recovery
from aiorecover.wal.checkpoint import COPY_BYTES
from aiorecover.wal.reading import Reader
from aiorecover.wal.suffix import SuffixRule, Suspicion, Word
from tests.wal.rig import SLOT, Disk, Opened, missing

COPIES = {
    # the copies in the newer and the older place, or in the first and the second one
    "both": [("valid", "valid")],
    "one": [("valid", "damaged"), ("valid", "absent"), ("damaged", "valid"), ("absent", "valid")],
    "none": [("damaged", "damaged"), ("damaged", "absent")],
    "first": [("absent", "damaged")],
    "absent": [("absent", "absent")],
}
OTHERS = ["yes", "no"]
HEADERS = ["same", "front", "end", "old", "damaged", "zero", "begun", "torn", "next", "half"]
TAILS = ["sealed", "open", "torn", "middle", "last"]
WORDS = ["present", "lost", "earlier"]
HELD = {"same", "front", "end", "old"}
RECYCLED = {"next", "half"}

OLD_ORDINAL = 1  # of a life before all others

PER_SLOT = 5  # frames: settled, waiting, settled, waiting, waiting; all of one lane
NOISE = b"\xee" * fmt.HEADER_BYTES


@dataclass(frozen=True)
class Case:
    checkpoint: str
    copies: tuple[str, str]
    others: str
    header: str
    tail: str
    words: str


def cases() -> Iterator[Case]:
    for checkpoint, others, header, tail, words in product(COPIES, OTHERS, HEADERS, TAILS, WORDS):
        for copies in COPIES[checkpoint]:
            yield Case(checkpoint, copies, others, header, tail, words)


# -- the tables ----------------------------------------------------------------------------------------------------


@cache
def tables() -> list[list[dict[str, str]]]:
    """Each table of the docstring: a row is its cells by the names of the columns."""
    found: list[list[dict[str, str]]] = []
    columns: list[str] = []
    for line in (recovery.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("│").split("│")]
        if "┌" in line:
            found.append([])
            columns = []
        elif "│" in line and not columns:
            columns = cells
        elif "│" in line:
            found[-1].append(dict(zip(columns, cells, strict=True)))
    return found


def outcome(number: int, case: Case) -> str:
    """The last cell of the one row of the table that the case is in."""
    rows = [row for row in tables()[number] if _matches(row, case)]
    assert len(rows) == 1, (case, rows)
    return list(rows[0].values())[-1]


def _matches(row: dict[str, str], case: Case) -> bool:
    asked = list(row.items())[:-1]
    return all(not cell or getattr(case, column) in cell.split(", ") for column, cell in asked)


# -- the bytes -----------------------------------------------------------------------------------------------------


def build(case: Case) -> Disk:
    """A slot before, if there are others; then the slot that the case is about; then what happened to both."""
    opened = Opened()
    opened.ring.next_ordinal = OLD_ORDINAL + 1
    if case.others == "yes":
        store(opened)
        seal(opened)
    empty = case.header in {"begun", "torn"}
    if not empty:
        store(opened)
    entries = opened.read()
    recycled = case.header in RECYCLED
    opened.settle(entry for entry in entries if recycled or settled(entry[2]))
    if recycled or (case.tail == "sealed" and not empty):
        seal(opened)
    captured = opened.directory.next_checkpoint()
    if recycled:
        captured = replace(captured, main=replace(captured.main, watermark=opened.ring.last_position))
    if case.words == "earlier":
        captured = replace(captured, epoch=2, suspect=Suspicion(fmt.position(1, fmt.SEQUENCE_MASK), 2, 2))
    for _ in range(2):
        opened.directory.write_checkpoint(captured)
    disk = opened.disk.after_death()
    index = 1 if case.others == "yes" else 0
    change_words(disk, opened, case.words)
    if not empty and not recycled:
        change_tail(disk, opened, index, case.tail)
    change_header(disk, opened, index, case.header)
    change_copies(disk, case)
    if case.words != "present":
        disk.boots += 1
    return disk


def settled(sequence: int) -> bool:
    return (sequence - 1) % PER_SLOT in {0, 2}


def store(opened: Opened) -> None:
    opened.append(*[b"record %d" % number for number in range(PER_SLOT)])


def seal(opened: Opened) -> None:
    opened.ring._seal(opened.ring.live[-1])


def change_words(disk: Disk, opened: Opened, words: str) -> None:
    for slot in opened.ring.live:
        for place in places(slot.file_offset):
            word = int.from_bytes(disk.ring.read(place, fmt.WORD), "little")
            if fmt.mark_of(word, slot.salt) is not None and words != "present":
                new = slot.open_word if words == "lost" else fmt.done_word(slot.salt, 2)
                disk.ring.damage(place, new.to_bytes(fmt.WORD, "little"))


def places(start: int) -> list[int]:
    """Of the settle words of a slot."""
    size = fmt.frame_end(0, len(b"record 1"))
    return [start + fmt.FIRST_FRAME + number * size + fmt.SETTLE_WORD * fmt.WORD for number in range(PER_SLOT)]


def change_tail(disk: Disk, opened: Opened, index: int, tail: str) -> None:
    behind = [place + fmt.WORD for place in places(index * SLOT)]  # where the payloads are
    if tail == "middle":
        disk.ring.damage(behind[3], b"rot")
    elif tail == "last":
        disk.ring.damage(behind[4], b"rot")
    elif tail == "torn":
        slot = opened.ring.live[-1]
        sequence = opened.ring.sequence + 1
        frame = fmt.FRAME.pack(500, fmt.frame_crc(b"t" * 500, slot.salt, sequence), sequence, slot.open_word)
        disk.ring.damage(index * SLOT + slot.tail, frame + b"t" * 100)


def change_header(disk: Disk, opened: Opened, index: int, header: str) -> None:
    front, end = index * SLOT, (index + 1) * SLOT - fmt.RESERVED
    whole = fmt.pack_slot_header(
        fmt.SlotHeader(SLOT, opened.ring.producer_id, 9, 1, 0xABC0DEF, opened.ring.sequence + 1, 1)
    )
    life = fmt.SlotHeader(SLOT, opened.ring.producer_id, OLD_ORDINAL, 1, 0xABC0DEF, 1, 1)
    old = fmt.pack_slot_header(life) + fmt.pack_seal(fmt.Seal(1, 1000, 1), life.salt)
    half = whole[:30] + bytes(fmt.HEADER_BYTES - 30)
    if disk.ring.size() < end + fmt.RESERVED:
        disk.ring.damage(front, bytes(SLOT))
    changes = {
        "same": {},
        "front": {end: NOISE},
        "end": {front: NOISE},
        "old": {end: old},
        "damaged": {front: NOISE, end: NOISE},
        "zero": {front: bytes(fmt.RESERVED), end: bytes(fmt.RESERVED)},
        "begun": {end: whole},
        "torn": {end: half},
        "next": {end: whole + bytes(fmt.RESERVED - len(whole))},
        "half": {end: half},
    }
    for place, data in changes[header].items():
        disk.ring.damage(place, data)


def change_copies(disk: Disk, case: Case) -> None:
    generations = [int.from_bytes(disk.checkpoint.read(copy * COPY_BYTES + 16, 8), "little") for copy in (0, 1)]
    order = [0, 1]
    if case.checkpoint == "one":  # by age, not by place
        order.sort(key=lambda copy: -generations[copy])
    for copy, state in zip(order, case.copies, strict=True):
        if state == "damaged":
            disk.checkpoint.damage(copy * COPY_BYTES + 40, b"\xee\xee")
        elif state == "absent":
            length = len(disk.checkpoint.read(copy * COPY_BYTES, COPY_BYTES))
            disk.checkpoint.damage(copy * COPY_BYTES, bytes(length))


# -- what must come of them ----------------------------------------------------------------------------------------


@dataclass
class Came:
    """``new``: nothing was known of an earlier life."""

    delivered: list[int]
    missing: list[int]
    damaged_slots: list[int]
    new: bool
    refused: bool = False


def look(disk: Disk) -> Came:
    """Open with the real code, and deliver as the dispatcher does: by the lane suffix rule, all of one lane."""
    try:
        opened = Opened(disk)
    except WalCorruptError:
        return Came([], [], [], new=False, refused=True)
    with opened:
        reader, rule, delivered = Reader(opened.ring, bytes, suspects=True), SuffixRule(), []
        while (run := reader.take(100)) is not None:
            words = run.words or [Word.WAITING] * len(run)
            delivered += [n for n, word in zip(run.sequences, words, strict=True) if rule.needed("lane", word)]
        gone = [sequence for _, sequence in missing(opened.ring)]
        return Came(delivered, gone, opened.ring.damaged_slots, new=opened.ring.epoch == 1)


def expected(case: Case) -> Came:
    """As the two tables say it."""
    of_slot, of_settled = outcome(0, case), outcome(1, case)
    if of_slot in {"refused", "new"}:
        return Came([], [], [], new=of_slot == "new", refused=of_slot == "refused")
    before = list(range(1, PER_SLOT + 1)) if case.others == "yes" else []
    inside = list(range(len(before) + 1, len(before) + PER_SLOT + 1))
    index = len(before) // PER_SLOT
    damaged = {"middle": inside[3:4], "last": inside[4:]}.get(case.tail, []) if case.header in HELD else []
    comes, gone = {
        "all comes": (inside, []),
        "one missing": (inside, damaged),
        "one unknown": (inside, []),
        "kept and missing": ([], inside),
        "kept": ([], []),
        "missing": ([], inside),
        "unknown": ([], []),
        "nothing": ([], []),
        "false alarm": ([], inside),
    }[of_slot]
    there = before + [n for n in comes if n not in damaged]
    if case.header in RECYCLED:
        covered = case.checkpoint in {"both", "one"}
        left = before + (inside if case.header == "half" else [])
        return Came([] if covered or of_settled != "again" else left, gone, [], new=False)
    return Came(delivered(there, of_settled), gone, [index] if "kept" in of_slot else [], new=False)


def delivered(there: list[int], of_settled: str) -> list[int]:
    """Of frames of one lane."""
    waiting = [n for n in there if not settled(n)]
    suffix = [n for n in there if waiting and n >= waiting[0]]
    return {"stay": waiting, "suffix": suffix, "again": there}[of_settled]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("checkpoint", COPIES)
def test_every_combination_has_one_row_and_comes_to_what_it_says(checkpoint: str, header: str) -> None:
    chosen = [case for case in cases() if (case.checkpoint, case.header) == (checkpoint, header)]
    assert len(chosen) == len(COPIES[checkpoint]) * len(OTHERS) * len(TAILS) * len(WORDS)
    for case in chosen:
        assert look(build(case)) == expected(case), case


def test_what_only_the_copy_that_is_lost_had_covered_may_be_named_as_missing_behind_an_older_slot() -> None:
    opened = Opened()
    slots = [opened.fill_slot() for _ in range(4)]
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
    for table in tables():
        for row in table:
            assert any(_matches(row, case) for case in cases()), row


def test_what_is_refused_is_not_changed() -> None:
    refused = [case for case in cases() if outcome(0, case) == "refused" and case.words == "present"]
    assert len(refused) > 30
    for case in refused:
        disk = build(case)
        before = [file.live() for file in (disk.ring, disk.checkpoint)]
        assert look(disk).refused
        assert [file.live() for file in (disk.ring, disk.checkpoint)] == before
