"""What an attempt's producer logs of its dead letters: held back, for nobody has that producer to look at them.

The attempt tells in one line of its own how many there are and where they stand.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiorecover.delivery.lines import letters_log

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["letter_lines_held_back"]


class _HeldBack(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - as logging calls it
        return False


@contextmanager
def letter_lines_held_back() -> Iterator[None]:
    """In this process: a worker of Spark has one task at a time, and no other producers."""
    mine = _HeldBack()
    letters_log.addFilter(mine)
    try:
        yield
    finally:
        letters_log.removeFilter(mine)
