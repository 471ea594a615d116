"""Pages of a slot that the disk cannot read any more, written anew before a life of the slot begins.

A store through a mapping has the page read first; where that fails the process ends by a signal (SIGBUS), and it would
on every lap of the ring. Writing a whole page needs no reading, and a disk that cannot read a sector any more puts
another one in its place when it is written.

Nothing in such a page is needed: it is written to in slots only that no life stands in. A durable checkpoint covers
what an earlier life left there (I1), and what of it was damaged was copied to ``damaged/`` before (`kept`). What an
opening finds in a life that counts is never written to here, readable or not.

All of a slot that an earlier process left is read before it is used, as the stores into it would have read it anyway;
and all of each slot again once a read of its file has failed (`spares`). Reading every slot on every lap would cost 5
ms for 16 MiB: a page that is lost and that nobody has read since is met by the prefault, which goes on in another slot.
An opening has no time for it, either: what it reserves is read by the keeper's thread within a second. Reading needs no
lock of the interpreter, so that the loop goes on meanwhile.
"""

import errno
from collections.abc import Iterable
from typing import Protocol

from aiorecover.errors import WalIOError
from aiorecover.wal.storage import PAGE

STEP = 1 << 20  # bytes read at a time: 0.3 ms; with each one less the loop's thread is asked for its turn once more


class Pages(Protocol):
    """What mending needs of a file."""

    def read_into(self, buffer: memoryview, offset: int) -> int: ...  # noqa: D102
    def write(self, data: bytes, offset: int) -> None: ...  # noqa: D102


def unreadable(file: Pages, offset: int, length: int) -> list[int]:
    """Read a part of ``file``; the offsets of the pages that cannot be."""
    buffer = memoryview(bytearray(min(STEP, length)))
    end = offset + length
    found: list[int] = []
    for start in range(offset, end, STEP):
        stop = min(start + STEP, end)
        if not _can_be_read(file, buffer[: stop - start], start):
            found += [page for page in range(start, stop, PAGE) if not _can_be_read(file, buffer[:PAGE], page)]
    return found


def mend(file: Pages, pages: Iterable[int]) -> None:
    """Write zeros over each of these whole pages, in a part of ``file`` that nobody needs.

    Raises:
        WalIOError: one of them cannot be written either.
        WalFullError: a page needs room that the disk does not have.

    """
    for page in pages:
        file.write(bytes(PAGE), page)


def _can_be_read(file: Pages, buffer: memoryview, offset: int) -> bool:
    try:
        file.read_into(buffer, offset)
    except WalIOError as error:
        return error.errno == errno.EBADF  # closed: that says nothing of the disk, and whoever maps it will be told
    return True
