"""What is at hand of a slot, and what becomes of places that cannot be read."""

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal import window as module
from aiorecover.wal.window import PAGE, READ_ATTEMPTS, Window
from tests.wal.memory import FaultyFile

SLOT = 20 * PAGE


def test_where_many_pages_cannot_be_read_the_rest_counts_as_zeros_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may take the disk half a minute; and what was read before must not stand for it."""
    monkeypatch.setattr(module, "BAD_PAGES", 3)
    file = FaultyFile("ring", b"\1" * SLOT + b"\2" * SLOT)
    file.stored.fail_reads(2 * PAGE, 10 * PAGE)
    window = Window(file)
    window.enter(SLOT)
    window.fill(0, SLOT, ahead=False)
    window.enter(0)
    for _ in range(READ_ATTEMPTS - 1):
        with pytest.raises(WalIOError):
            window.fill(0, SLOT, ahead=False)
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    file.before["read"] = count
    window.fill(0, SLOT, ahead=False)
    assert bytes(window.buffer[:SLOT]) == b"\1" * 2 * PAGE + bytes(SLOT - 2 * PAGE)
    assert reads == 1 + 2 + 3  # all at once, the two good ones, and as many bad ones as it may meet
