"""Damage costs what it spans: many damaged places in a large slot do not hold up the loop."""

from pathlib import Path

import pytest

from aiorecover.wal.losses import Damage
from aiorecover.wal.resynchronising import FIRST_PIECE
from aiorecover.wal.view import View
from aiorecover.wal.window import WINDOW
from tests.wal.memory import FaultyFile
from tests.wal.rig import Disk, Opened, found, missing

LARGE_SLOT = 4 * 1024 * 1024
HOLES = 200


class CountingFile(FaultyFile):
    bytes_read = 0
    largest = 0

    def read_into(self, buffer: memoryview, offset: int) -> int:
        count = super().read_into(buffer, offset)
        self.bytes_read += count
        self.largest = max(self.largest, count)
        return count


def lived_in(size: int) -> Opened:
    opened = Opened(Disk(CountingFile("ring"), max_slots=2, slot_bytes=LARGE_SLOT))
    opened.fill_slot(b"x" * size)
    return opened


def test_two_hundred_holes_in_a_slot_cost_a_small_piece_each_beside_reading_the_slot() -> None:
    opened = lived_in(500)
    step = LARGE_SLOT // (HOLES + 1)
    for hole in range(HOLES):
        opened.disk.ring.damage(1000 + hole * step, bytes(64))
    with opened.dies() as following:
        came = {position for position, _ in found(following.read())}
        assert came | set(missing(following.ring)) == set(opened.accepted)
        assert HOLES <= len(missing(following.ring)) <= 2 * HOLES
        assert isinstance(following.disk.ring, CountingFile)
        assert following.disk.ring.bytes_read <= LARGE_SLOT + WINDOW + HOLES * 2 * FIRST_PIECE


@pytest.mark.parametrize("place", [128, 148], ids=["length", "payload"])
def test_who_looks_from_outside_passes_damage_and_comes_to_the_end_window_by_window(place: int) -> None:
    file = CountingFile("ring")
    opened = Opened(Disk(file, max_slots=2, slot_bytes=LARGE_SLOT))
    opened.append(b"damaged", b"whole")
    file.damage(place, b"rot")
    with View(Path("/memory"), "ring", lambda name: file if name == "ring" else None) as view:
        assert [frame.payload for frame in view.frames()] == [b"whole"]
        assert view.missing == [Damage(1, 1, 1, 1, 128)]
    assert file.largest == WINDOW


def test_the_next_frame_is_found_wherever_it_stands_to_the_pieces_that_are_read() -> None:
    """Its header may lie across the edge of two pieces, and its payload may be larger than any."""
    for gap in range(FIRST_PIECE - 40, FIRST_PIECE + 40, 4):
        for size in (10, 3 * WINDOW):
            opened = Opened(Disk(max_slots=2, slot_bytes=LARGE_SLOT))
            lost, kept = opened.append(b"l" * gap, b"k" * size)
            opened.disk.ring.damage(128, bytes(20))
            with opened.dies() as following:
                assert [position for position, _ in found(following.read())] == [kept]
                assert missing(following.ring) == [lost]
