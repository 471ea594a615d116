"""An outage's slots are mapped, and do not count as memory of the process."""

import re
from pathlib import Path

import pytest

from aiorecover.wal import resident
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.resident import Resident
from aiorecover.wal.slot import Slot
from tests.wal.rig import Opened

SLOT_BYTES = 1024 * 1024
RECORD = bytes(1000)
AT_HAND = 64 * 1024 + 4096  # what is made ready ahead of the tail, and the page that is written to


def resident_bytes(path: Path) -> int:
    """Of this process, in mappings of the file."""
    sizes = re.findall(rf"^[0-9a-f]+-.*{re.escape(str(path))}\n(?:.*\n)??Rss: +(\d+) kB", smaps(), re.MULTILINE)
    return sum(int(size) for size in sizes) * 1024


def smaps() -> str:
    """One header and the Rss of each mapping."""
    lines = Path("/proc/self/smaps").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("Rss:") or re.match("[0-9a-f]+-", line))


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return open_directory(Options(tmp_path / "wal", SLOT_BYTES, 64 * SLOT_BYTES, 0))


def fill(directory: Directory, slots: int) -> None:
    while len(directory.ring.live) <= slots:
        directory.ring.append(RECORD, RECORD)


def test_what_waits_in_an_outage_counts_as_memory_only_until_the_next_look(directory: Directory) -> None:
    path = directory.path / "ring"
    fill(directory, 5)
    assert resident_bytes(path) > 5 * SLOT_BYTES
    directory.give_back_memory()
    directory.give_back_memory()  # one look is bounded
    assert resident_bytes(path) <= AT_HAND
    directory.close()


def test_what_was_given_back_is_read_and_settled_as_before(directory: Directory) -> None:
    fill(directory, 3)
    directory.give_back_memory()
    reader, settled = Reader(directory.ring, bytes), 0
    while (run := reader.look(512)) is not None or reader.moved:
        if run is None:
            continue
        assert set(run.records) == {RECORD}
        directory.ring.settle(run.slot, run.places)
        settled += len(run.places)
        directory.give_back_memory()
    assert settled == directory.ring.sequence
    assert directory.ring.pending() == 0
    reader.close()
    directory.close()


def test_pages_that_settling_had_back_are_given_back_once_more(directory: Directory) -> None:
    path = directory.path / "ring"
    fill(directory, 2)
    directory.give_back_memory()
    little = resident_bytes(path)
    first = directory.ring.live[0]
    reader = Reader(directory.ring, bytes)
    run = reader.look(512)
    assert run is not None
    directory.ring.settle(run.slot, run.places[::4])
    assert run.slot is first
    assert resident_bytes(path) > little
    directory.give_back_memory()
    assert resident_bytes(path) <= little
    reader.close()
    directory.close()


def test_pages_that_copies_had_back_that_never_count_are_given_back_once_more() -> None:
    with Opened() as opened:
        opened.fill_slot()
        opened.append(b"behind")
        assert opened.ring.give_back_memory() == 2
        assert opened.ring.give_back_memory() == 1  # the one that is written to
        opened.ring.mark_void(opened.ring.live[0], opened.ring.recent_places[1:2])
        assert opened.ring.give_back_memory() == 2


def test_one_look_is_bounded_and_the_next_goes_on_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with Opened() as opened:
        for _ in range(resident.DROPPED * 2 + 3):
            opened.fill_slot()
        slots, current = opened.ring.live, opened.ring.live[-1]
        seen: list[Slot] = []

        def drop_pages(slot: Slot) -> None:
            seen.append(slot)

        monkeypatch.setattr(Slot, "drop_pages", drop_pages)
        look = Resident()
        assert look.look(slots, current) == resident.DROPPED
        assert look.look(slots, current) == resident.DROPPED
        assert look.look(slots, current) == 3
        assert seen == slots


def test_slots_without_anything_at_hand_are_passed_quickly() -> None:
    with Opened() as opened:
        for _ in range(4):
            opened.fill_slot()
        assert opened.ring.give_back_memory() == 4
        assert opened.ring.give_back_memory() == 1  # the one that is written to


def test_a_slot_that_nobody_has_mapped_yet_has_nothing_to_give_back() -> None:
    opened = Opened()
    opened.fill_slot()
    opened.ring.go_on()
    opened.append(b"of the life before")
    ring = opened.dies().ring
    assert [slot.map for slot in ring.live] == [None, None]
    assert ring.give_back_memory() == 0
