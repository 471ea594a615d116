"""The tail of a lane: the numbers that each record reads and moves; the twin in C is loaded here."""

from importlib import import_module
from os import environ
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiorecover.ring.segments import Batch


def _load_twin() -> Any:
    """Return the module in C; None where it was not built, or ``AIORECOVER_PURE_PYTHON`` is set and not empty."""
    try:
        return None if environ.get("AIORECOVER_PURE_PYTHON") else import_module("aiorecover._speedups")
    except ImportError:
        return None


class Tail:
    """Where the next record goes.

    Attributes:
        batch: the open one.
        data, words: the mapping, as bytes and as numbers of 8 bytes.
        position, limit: places in ``data``: of the next record, and where the batch's room ends.
        commit: index in ``words`` of the batch's commit word, which is the position plus ``bias``.
        index: of the next record in the batch.
        stamp: time of the record before, in ms; ``prefix`` is what a record of that time begins with. -1: none.
        base, latest: the batch's base time, and the latest time of its records, in ms.

    """

    __slots__ = (
        "base", "batch", "bias", "commit", "data", "index", "latest", "limit", "position", "prefix", "stamp", "words",
    )  # fmt: skip

    batch: "Batch | None"
    data: Any
    words: Any
    position: int
    limit: int
    commit: int
    bias: int
    index: int
    stamp: int
    prefix: bytes
    base: int
    latest: int


PythonTail = Tail
twin = _load_twin()
if twin is not None and not TYPE_CHECKING:
    Tail = twin.Tail
