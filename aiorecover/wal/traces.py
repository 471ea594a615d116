"""What openings leave in a directory beside its checkpoint.

An opening has both copies of the checkpoint durable before any other file has a length. So where another one has, the
directory was in use, whatever became of what stood there: it is never taken for a new one.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from aiorecover.errors import WalIOError
from aiorecover.wal.lanes import SECTOR, LanesFileLike, unpack_header


class Sized(Protocol):
    """A file, as far as it matters here."""

    def size(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Traces:
    """``in_use``: there are some. ``directory_id``: whose the file `lanes` is, a producer id without nonce."""

    in_use: bool = False
    directory_id: int | None = None


NO_TRACES = Traces()


def traces(rings: Iterable[Sized | None], lanes: LanesFileLike | None) -> Traces:
    """Of the three rings' files and `lanes`; None: it is not there.

    Raises:
        WalFormatError: a newer version wrote `lanes`.

    """
    in_use = any(file is not None and file.size() > 0 for file in (*rings, lanes))
    header = None
    if lanes is not None:
        with suppress(WalIOError):  # it is a journal and no more: what cannot be read keeps no directory closed
            header = unpack_header(lanes.read(0, SECTOR))
    return Traces(in_use, None if header is None else header.directory_id)
