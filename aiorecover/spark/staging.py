"""Where files are written until they are renamed, whole: what killed attempts have left there is cleared away.

A start that holds the lock of its checkpoint knows that nobody else writes, and clears all of it. Without it, another
one may be writing: then only what is old goes, which is tidied up for the room on the disk, and for nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorecover.spark.files import Files

__all__ = ["ABANDONED_AFTER_S", "STAGING", "clear_staging"]

STAGING = "_staging"
"""What it is called, wherever it stands."""
ABANDONED_AFTER_S = 24 * 3600
"""No batch takes a day, and no two clocks differ by one."""


def clear_staging(files: Files, above: str, *, is_locked: bool) -> None:
    """``above``: the directory that it stands in; ``is_locked``: nobody else works there.

    Raises:
        ConfigError: something may not be removed.

    """
    if is_locked:
        files.delete(f"{above}/{STAGING}")
    else:
        files.delete_unchanged(f"{above}/{STAGING}", ABANDONED_AFTER_S)
