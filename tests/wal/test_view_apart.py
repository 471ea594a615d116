"""A ring whose slots are listed once and read one by one, as Spark does it, misses what a walk through it misses.

The walk is the judge: whichever slots are gone when they are listed, or go behind that.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal.directory import RING_GONE, UNSURE, Directory
from aiorecover.wal.losses import Damage
from aiorecover.wal.moved import RING
from aiorecover.wal.reading import Reader
from aiorecover.wal.view import RecycledError, SlotView, frames_of, open_view
from tests.wal.rig import SLOT, Position, take
from tests.wal.stored import numbered, stored

EPOCHS = {1: 300, 2: 250, 3: 200}


def of_three_epochs(path: Path, *, settle: int = 0) -> Directory:
    """Several slots in each, all of it flushed, left by a process that died."""
    for count in EPOCHS.values():
        directory = stored(path, count, settle=settle)
        settle = 0
        directory.write_checkpoint(directory.next_checkpoint())
        directory.files.close()
    return directory


def zero(directory: Directory, slots: Iterable[SlotView]) -> None:
    with (directory.path / RING).open("r+b") as file:
        for slot in slots:
            file.seek(slot.file_offset)
            file.write(bytes(SLOT))


def named(damages: Iterable[Damage]) -> list[Position]:
    return sorted((one.epoch, number) for one in damages for number in range(one.first, one.last + 1))


def walked(path: Path) -> tuple[list[Position], list[Position]]:
    """What waits and what is missing, as a walk through the whole ring finds it."""
    with open_view(path) as view:
        waiting = [(frame.epoch, frame.sequence) for frame in view.frames()]
        return waiting, named(view.missing)


class Apart:
    """The slots that wait, and what the listing knew of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_view(path) as view:
            self.slots = [slot for slot in view.slots() if slot.header is not None and not slot.covered]
            self.ends = view.ends
            self.missing = view.gone_before(self.slots[0] if self.slots else None)
        self.waiting: list[Position] = []
        self.unknown: list[SlotView] = []

    def read(self) -> None:
        epoch = None
        for slot, following in itertools.zip_longest(self.slots, self.slots[1:]):
            last = 0
            try:
                for frame in frames_of(
                    slot, missing=self.missing, begins=slot.epoch != epoch, following=following, ends=self.ends
                ):
                    self.waiting.append((frame.epoch, frame.sequence))
                    last = frame.sequence
            except (RecycledError, WalIOError):
                self.look_for(slot, last + 1 if last else slot.first_sequence or 0, following)
            epoch = slot.epoch

    def look_for(self, slot: SlotView, begin: int, following: SlotView | None) -> None:
        with open_view(self.path) as view:
            view.slots()
            lost = view.lost(slot, begin, following, self.ends)
        if lost is None:
            self.unknown.append(slot)
        else:
            self.missing += lost


def subsets(path: Path) -> list[list[int]]:
    """Of the slots that hold something: each pair, each end, each beginning, each epoch, and all."""
    with open_view(path) as view:
        count = sum(slot.header is not None for slot in view.slots())
        epochs = [[at for at, slot in enumerate(view.slots()) if slot.epoch == epoch] for epoch in EPOCHS]
    cuts = [list(range(begin, end)) for begin in range(count) for end in range(begin + 1, count + 1)]
    return [*cuts, *map(list, itertools.combinations(range(count), 2)), *(epochs[0] + epochs[2] for _ in range(1))]


def test_slots_that_are_gone_when_they_are_listed_are_missed_as_by_a_walk(tmp_path: Path) -> None:
    directory = of_three_epochs(tmp_path)
    content = (directory.path / RING).read_bytes()
    with open_view(directory.path) as view:
        slots = view.slots()
    for gone in subsets(directory.path):
        (directory.path / RING).write_bytes(content)
        zero(directory, (slots[at] for at in gone))
        apart = Apart(directory.path)
        apart.read()
        waiting, missing = walked(directory.path)
        assert apart.waiting == waiting, gone
        assert named(apart.missing) == missing, gone
        assert missing, gone


def test_slots_that_go_behind_the_listing_are_missed_as_by_a_walk(tmp_path: Path) -> None:
    directory = of_three_epochs(tmp_path)
    content = (directory.path / RING).read_bytes()
    with open_view(directory.path) as view:
        slots = view.slots()
    for gone in subsets(directory.path):
        (directory.path / RING).write_bytes(content)
        apart = Apart(directory.path)
        zero(directory, (slots[at] for at in gone))
        apart.read()
        waiting, missing = walked(directory.path)
        assert apart.waiting == waiting, gone
        assert named(apart.missing) == missing, gone
        assert apart.unknown == [], gone


@pytest.mark.parametrize("removed", [False, True])
def test_what_is_settled_below_the_watermark_is_not_missed_when_its_slots_go(tmp_path: Path, *, removed: bool) -> None:
    directory = of_three_epochs(tmp_path, settle=150)
    apart = Apart(directory.path)
    if removed:
        (directory.path / RING).unlink()
    else:
        (directory.path / RING).write_bytes(b"")
    apart.read()
    _, missing = walked(directory.path)
    assert named(apart.missing) == missing
    assert apart.unknown == []


def test_a_slot_that_its_owner_has_recycled_since_is_not_missed(tmp_path: Path) -> None:
    directory = stored(tmp_path)
    apart = Apart(directory.path)
    reader = Reader(directory.ring, bytes)
    while entries := take(reader, 100):
        for slot, place, _, _ in entries:
            directory.ring.settle(slot, [place])
    reader.close()
    directory.write_checkpoint(directory.next_checkpoint())
    assert directory.recycle(directory.checkpoint) > 1
    for payload in numbered(600):
        directory.ring.append(payload, payload)
    apart.read()
    assert (apart.missing, apart.unknown) == ([], [])
    directory.close()


@pytest.mark.parametrize("removed", [False, True])
def test_a_slot_that_goes_and_of_which_no_flush_tells_is_known_to_be_gone(tmp_path: Path, *, removed: bool) -> None:
    directory = stored(tmp_path, 10)
    apart = Apart(directory.path)
    directory.files.close()
    if removed:
        (directory.path / RING).unlink()
    else:
        (directory.path / RING).write_bytes(b"")
    apart.read()
    assert apart.missing == []
    assert apart.unknown == apart.slots


def test_of_a_slot_that_holds_nothing_nothing_is_lost(tmp_path: Path) -> None:
    with open_view(stored(tmp_path).path) as view:
        view.slots()
        assert view.lost(SlotView(tmp_path, RING, 0, SLOT, "blank"), 1, None, view.ends) == []


def test_the_openings_that_the_checkpoint_remembers_are_known_by_their_epochs(tmp_path: Path) -> None:
    directory = of_three_epochs(tmp_path)
    with open_view(directory.path) as view:
        wanted = {slot.epoch: slot.producer_id for slot in view.slots() if slot.header is not None}
        assert view.producers == wanted
        assert len(set(wanted.values())) == 3
    (directory.path / "checkpoint").unlink()
    with open_view(directory.path) as view:
        assert view.producers == {}


def doubts(path: Path, *rings: str) -> list[str]:
    with open_view(path) as view:
        return view.doubts(rings)


def test_what_is_in_doubt_is_said_of_the_rings_that_are_asked_for(tmp_path: Path) -> None:
    directory = of_three_epochs(tmp_path)
    assert doubts(directory.path, "ring", "retry", "dead") == []
    (directory.path / RING).unlink()
    assert doubts(directory.path, "ring", "retry") == [RING_GONE]
    assert doubts(directory.path, "retry", "dead") == []
    with (directory.path / "checkpoint").open("r+b") as file:
        file.seek(64)
        file.write(b"damage")
    assert doubts(directory.path, "ring", "dead") == [RING_GONE, f"{UNSURE} rings=ring"]
    assert doubts(directory.path, "dead") == []
