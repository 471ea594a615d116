"""What an opening refuses, because going on would mean guessing about records that people cannot get back. Pure.

Files with something in them of which nothing can be read; slots of two sizes; an ordinal that stands twice in a ring,
or a later one with earlier records; lives of two producers in one directory, or of two openings with one epoch. Nothing
was changed by then. Each says what to do.
"""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import NamedTuple

from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import Copy
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.traces import Traces

_TOLD = ("live", "torn", "damaged")
_MIXED = (
    "it was copied together from several states, or the disk has put a page into the place of another one: restore the "
    "directory from one copy, or move it away and keep it; nothing was changed"
)


class Span(NamedTuple):
    """A slot that was begun: its ordinal, its first position, and the one behind all that is known to stand in it."""

    ordinal: int
    first: int
    end: int


def check_readable(copies: Sequence[Copy], rings: Sequence[AbstractSet[str]], traces: Traces) -> None:
    """Files with something in them of which nothing can be read are never taken for new, and never written over.

    Nor is a directory that was in use: what waited in its ring is gone, and nothing tells what that was. No copy of the
    checkpoint holds; ``rings``: in which states there are slots, of each ring.

    Raises:
        WalCorruptError: it would be.

    """
    live, torn, damaged = ([state in ring for ring in rings] for state in _TOLD)
    damaged_copy = any(copy.state == "damaged" for copy in copies)
    # Both copies are durable before the first slot. The very first one goes into the second place: cut off there, it
    # leaves the first one blank, and no slots.
    begun = copies[0].state == "damaged" or traces.in_use or any(map(any, (live, torn, damaged)))
    if (begun and not live[0]) or (damaged_copy and any(damaged)):
        raise WalCorruptError(_unreadable(live, damaged, damaged_copy=damaged_copy))


def _unreadable(live: Sequence[bool], damaged: Sequence[bool], *, damaged_copy: bool) -> str:
    """Which files are at fault, and what can be done; where the ring itself is whole the rest may be given up."""
    names = [name for name, one in zip((RING, RETRY, DEAD), damaged, strict=True) if one]
    files = ",".join(["checkpoint", *(names or ([] if live[0] else [RING]))])
    if live[0] and not damaged[0]:
        message = (
            "the checkpoint cannot be read, nor what stands beside the ring, which is whole: restore the directory"
        )
        message += " from a copy, or move these files out of it and keep them, and what is in the ring is delivered"
    elif names:
        message = "both the checkpoint and the ring are damaged: restore them from a copy, or move the directory away"
        message += " and keep it"
    elif damaged_copy:
        message = "the checkpoint cannot be read, and the ring holds nothing that can: restore them from a copy, or"
        message += " move the directory away and keep it"
    else:
        message = "the checkpoint and the ring are gone or hold nothing, and the directory was in use: put them back,"
        message += " or move the directory away and keep it"
    return f"{message}; nothing was changed files={files}"


def check_one_size(copies: Iterable[Copy], headers: Iterable[fmt.SlotHeader]) -> None:
    """Slots of one directory are of one size.

    Raises:
        WalCorruptError: they are not.

    """
    sizes = {header.slot_bytes for header in headers}
    sizes |= {copy.checkpoint.slot_bytes for copy in copies if copy.checkpoint is not None}
    if len(sizes) > 1:
        message = "the directory mixes files with slots of several sizes: restore each from its own copy"
        raise WalCorruptError(f"{message} slot_bytes={sorted(sizes)}")


def check_order(spans: Sequence[Span]) -> None:
    """The slots of a ring, by their ordinals: none stands there twice, and what is later holds what came later.

    Raises:
        WalCorruptError: it is not so.

    """
    if any(later.ordinal == one.ordinal for one, later in pairwise(spans)):
        raise WalCorruptError(f"the ring holds one slot twice: {_MIXED}")
    if any(later.first < one.end for one, later in pairwise(spans)):
        raise WalCorruptError(f"the slots of the ring are in no order: {_MIXED}")


def check_one_directory(openings: Collection[tuple[int, int]], traces: Traces) -> None:
    """All openings that are known, by epoch and producer id, are of one directory.

    And where it was copied since, all of one copy: so the checkpoint remembers also those of which nothing waits, or
    that published nothing.

    Raises:
        WalCorruptError: they are not.

    """
    producers = {fmt.directory_of(producer_id) for _, producer_id in openings}
    if len(producers) > 1:
        message = "the directory mixes files of several producers: restore each from its own copy"
        raise WalCorruptError(f"{message} producers={len(producers)}")
    if producers and traces.directory_id not in {None, *producers}:
        message = "the directory mixes files of several producers: put its own lanes back, or move these away and keep"
        raise WalCorruptError(f"{message} them files=lanes")
    if len({epoch for epoch, _ in openings}) < len(openings):
        message = "the files were copied together from several states of the directory: restore all from one copy, or"
        raise WalCorruptError(f"{message} move the directory away and keep it; nothing was changed")
