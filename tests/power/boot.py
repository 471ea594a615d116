"""Another boot of the machine, as far as this process can tell: the power went, and came back.

The kernel gives each boot an id, by which the library knows that the memory of the last one is gone. Where a power cut
is replayed the kernel stays the same, so each opening behind one is told another id.
"""

import uuid
from pathlib import Path

from aiorecover.wal import storage

__all__ = ["another_boot", "boot_is"]


def another_boot(file: Path) -> None:
    """From here on the machine runs since its last power cut; ``file`` is where that stands, for other processes."""
    file.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    boot_is(file)


def boot_is(file: Path) -> None:
    """Believe what stands there."""
    storage.BOOT_ID = file
