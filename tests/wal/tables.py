"""The tables of `recovery`'s docstring, and what is left of a directory in each of their combinations."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from aiorecover.wal import recovery
from aiorecover.wal.moved import DEAD, RETRY, RING

SLOTS, COPIES, SETTLED = range(3)
"""The tables, in their order."""

CHECKPOINTS = {
    # the copies in the newer and the older place, or in the first and the second one
    "both": [("valid", "valid")],
    "one": [("valid", "damaged"), ("valid", "absent"), ("damaged", "valid"), ("absent", "valid")],
    "none": [("damaged", "damaged"), ("damaged", "absent")],
    "first": [("absent", "damaged")],
    "absent": [("absent", "absent")],
}
LOST = {"none", "first", "absent"}
RINGS = [RING, RETRY, DEAD]
OTHERS = ["yes", "elsewhere", "no"]
HEADERS = {
    # the copies at the front and at the end: of the newest life, of the one before, zero, damaged
    "newest": [
        ("newest", "newest"),
        *[("newest", other) for other in ("before", "zero", "damaged")],
        *[(other, "newest") for other in ("before", "zero", "damaged")],
    ],
    "before": [
        ("before", "before"),
        *[("before", other) for other in ("zero", "damaged")],
        *[(other, "before") for other in ("zero", "damaged")],
    ],
    "damaged": [("damaged", "damaged"), ("damaged", "zero"), ("zero", "damaged")],
    "zero": [("zero", "zero")],
}
TAILS = ["sealed", "open", "torn", "middle", "last", "page"]
WORDS = ["present", "lost", "earlier"]
MOVED = ["made", "just made", "in part", "not made"]


Slot = tuple[str, str, tuple[str, str], str]
"""What it holds, its header, the copies of that, its tail."""


@dataclass(frozen=True)
class Case:
    """A combination, by the names of the columns; what the values stand for is told below the tables.

    ``copies`` of the checkpoint, ``ends``, the slot's front and end, and ``beside``, whether a slot of the dead ring
    stands beside a main ring of which no other one does: the very ones of several that the tables do not tell apart.
    """

    ring: str
    checkpoint: str
    copies: tuple[str, str]
    others: str
    slot: str
    header: str
    ends: tuple[str, str]
    tail: str
    words: str
    moved: str
    beside: bool = False


# -- what can be ---------------------------------------------------------------------------------------------------


def cases(ring: str) -> Iterator[Case]:
    """All of a ring: each value of a column with all of the others, as far as they can be.

    What no row tells apart is drawn, the same at every call: the copies of the checkpoint, the tail of a slot whose
    header does not count, and the pair of header copies, which in the main ring meet everything else (in the other two
    the same code looks at them).
    """
    draw = random.Random(ring).choice
    for checkpoint, others, words, moved in product(CHECKPOINTS, OTHERS, WORDS, MOVED if ring == RETRY else [""]):
        if others == "no" and (moved not in {"", "made"} or (ring != RING and checkpoint in LOST)):
            continue  # the originals can be read; the main ring has to be
        if others == "elsewhere" and ring == RING:
            continue  # that is of the main ring
        for likes in _likes(ring):
            slot, header, ends, tail = draw(likes)
            if slot == "holds" or moved in {"", "made"}:
                copies = draw(CHECKPOINTS[checkpoint])
                made = moved if slot == "holds" else ""
                beside = ring == RING and others == "no" and draw([False, True])
                yield Case(ring, checkpoint, copies, others, slot, header, ends, tail, words, made, beside)


@cache
def _likes(ring: str) -> list[list[Slot]]:
    """What a slot may be left like, and with each what is drawn in its place."""
    likes: dict[object, list[Slot]] = {}
    for slot in _slots():
        _, header, ends, tail = slot
        at_the_ends = ends if ring == RING else None
        likes.setdefault((slot[:2], at_the_ends, tail if header == "newest" else None), []).append(slot)
    return list(likes.values())


def _slots() -> Iterator[Slot]:
    for header, pairs in HEADERS.items():
        for ends in pairs:
            yield from (("holds", header, ends, tail) for tail in TAILS if can_stand(ends, tail))
            yield "reused", header, ends, ""
            if "before" not in ends:
                yield "fresh", "torn" if header == "damaged" and "zero" in ends else header, ends, ""


def can_stand(ends: tuple[str, str], tail: str) -> bool:
    """With the page of the front the copy there is zero."""
    return tail != "page" or ends[0] == "zero"


# -- what comes of it ----------------------------------------------------------------------------------------------


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
    rows = [row for row in tables()[number] if matches(row, case)]
    assert len(rows) == 1, (case, rows)
    return list(rows[0].values())[-1]


def matches(row: dict[str, str], case: Case) -> bool:
    """An empty cell: whatever it is."""
    asked = list(row.items())[:-1]
    return all(not cell or getattr(case, column) in cell.split(", ") for column, cell in asked)
