"""A slice of what the long fuzzing does (`python -m tests.prove fuzz`), by seeded random numbers; and that it sees."""

import dataclasses
import logging
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from aiorecover.delivery import journal
from aiorecover.wal import format as fmt
from aiorecover.wal import lanes, opening, reading, recovery, scan
from aiorecover.wal.moved import Moved
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from tests.fuzz.directories import open_damaged_directories
from tests.fuzz.files import BrokenPromiseError, open_arbitrary_files, open_files, watermark_of
from tests.fuzz.forged import open_forged_directories
from tests.fuzz.frames import read_arbitrary_frames
from tests.fuzz.images import IMAGES, Image, image
from tests.wal.rig import SLOT

Files = tuple[Image, bytes, bytes]
"""What a process had left, and ring and checkpoint as they are opened."""
Target = Callable[[bytes, Counter[str]], None]
Patch = pytest.MonkeyPatch


SIZES = (3, 6, 9, 12, 20, 40, 80)  # of inputs
FORGED_SIZES = (20, 40, 80, 160, 250)  # a forgery takes more of it than a flipped bit


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Each damage is logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def inputs(seed: int, count: int, sizes: Sequence[int] = SIZES) -> Iterator[bytes]:
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        yield chance.randbytes(chance.choice(sizes))


def run_all(target: Target, data: Iterable[bytes]) -> Counter[str]:
    tally: Counter[str] = Counter()
    for one in data:
        target(one, tally)
    return tally


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_files_hold_nothing_wrong_comes_out_and_what_is_lost_is_reported(seed: int) -> None:
    tally = run_all(open_arbitrary_files, inputs(seed, 400))
    assert tally.total() == 400
    assert min(tally[end] for end in ("whole", "damage reported", "forged", "WalCorruptError")) > 4, tally


@pytest.mark.parametrize("seed", range(2))
def test_whatever_the_frames_hold_the_reader_gives_what_the_simple_one_gives(seed: int) -> None:
    tally = run_all(read_arbitrary_frames, inputs(seed, 1000))
    assert tally.total() == 1000
    assert min(tally[f"{state} records missing"] for state in ("open", "sealed")) > 4, tally


def test_copies_that_do_not_count_end_in_each_slot_that_they_are_in() -> None:
    """Found by chance: an open slot with another one of its epoch behind it, and copies in both beyond the flush."""
    found = "ee8cf36708bdc51df53f87318bc49e9291c846b60e6d449c32645934d4e8201d55818b1d98de2fb9"
    open_forged_directories(bytes.fromhex(found), Counter())


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_damaged_in_a_directory_what_comes_out_was_put_in(seed: int) -> None:
    tally = run_all(open_damaged_directories, inputs(seed, 300))
    assert tally.total() == 300
    ends = ("whole", "damage reported", "whole, in flight", "damage reported, in flight")
    assert min(tally[end] for end in ends) > 4, tally


def test_whatever_is_forged_in_a_directory_nothing_comes_out_that_does_not_stand_in_its_files() -> None:
    tally = run_all(open_forged_directories, inputs(5, 300, FORGED_SIZES))
    assert tally.total() == 300
    ends = ("records", "letters", "in flight", "built", "doubted", "WalCorruptError")
    assert min(sum(count for end, count in tally.items() if word in end) for word in ends) > 20, tally


def every_frame_holds(patch: Patch) -> None:
    patch.setattr(scan, "holds", lambda *_: True)


def nothing_is_reported(patch: Patch) -> None:
    patch.setattr(Reader, "_report", lambda *_: None)


def frames_behind_damage_are_lost(patch: Patch) -> None:
    patch.setattr(reading, "next_frame", lambda *_: None)


def any_header_will_do(patch: Patch) -> None:
    patch.setattr(fmt, "header_fits", lambda header: True)
    patch.setattr(fmt, "possible_slot_bytes", lambda size: True)


def whole_slots_are_not_missed(patch: Patch) -> None:
    patch.setattr(reading, "unjoined", lambda *_: None)


def an_epoch_is_used_again(patch: Patch) -> None:
    plan = recovery.plan

    def without_epoch(*arguments: Any, **options: Any) -> recovery.Plan:
        found = plan(*arguments, **options)
        return dataclasses.replace(found, epoch=max(1, found.epoch - 1), openings=())

    patch.setattr(opening, "plan", without_epoch)


def copies_of_unmade_moves_count(patch: Patch) -> None:
    patch.setattr(opening, "void_copies", lambda *_: None)


def every_entry_holds(patch: Patch) -> None:
    def unpack(data: bytes) -> Any:
        _, epoch, generation, length, _ = lanes.ENTRY.unpack_from(data)
        body = data[lanes.ENTRY.size : lanes.ENTRY.size + length]
        return lanes._Copy("whole" if length else "blank", generation, epoch, body)

    patch.setattr(lanes, "unpack_entry", unpack)


def entries_of_any_boot_are_known(patch: Patch) -> None:
    patch.setattr(lanes.Header, "same_place", lambda *_: True)


def any_group_will_do(patch: Patch) -> None:
    """Of a ring that is none, or of no frames."""
    patch.setattr(journal, "all", lambda _: True, raising=False)


def what_is_built_of_copies_crashes(patch: Patch) -> None:
    """Behind all checksums: a batch in flight of which a part was moved is built again."""

    def build(_: Moved, header: fmt.SlotHeader) -> int:
        raise struct.error(header)

    patch.setattr(Moved, "producer_id", build)


def what_is_in_flight_is_read_too(patch: Patch) -> None:
    patch.setattr(Ring, "claim", lambda *_: None)


FAULTS: list[tuple[Target, Callable[[Patch], None]]] = [
    (open_arbitrary_files, every_frame_holds),
    (open_arbitrary_files, nothing_is_reported),
    (open_arbitrary_files, frames_behind_damage_are_lost),
    (open_arbitrary_files, any_header_will_do),
    (open_arbitrary_files, an_epoch_is_used_again),
    (open_damaged_directories, every_frame_holds),
    (open_damaged_directories, copies_of_unmade_moves_count),
    (open_damaged_directories, every_entry_holds),
    (open_damaged_directories, what_is_in_flight_is_read_too),
    (open_forged_directories, copies_of_unmade_moves_count),
    (open_forged_directories, what_is_in_flight_is_read_too),
    (open_forged_directories, entries_of_any_boot_are_known),
    (open_forged_directories, any_group_will_do),
    (open_forged_directories, what_is_built_of_copies_crashes),
    (read_arbitrary_frames, every_frame_holds),
    (read_arbitrary_frames, nothing_is_reported),
    (read_arbitrary_frames, frames_behind_damage_are_lost),
]


NOTICED = (BrokenPromiseError, ArithmeticError, ValueError, TypeError, LookupError, RecursionError, struct.error)


@pytest.mark.parametrize(("target", "fault"), FAULTS, ids=[f"{t.__name__}-{f.__name__}" for t, f in FAULTS])
def test_a_planted_fault_is_found(target: Target, fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(NOTICED):
        run_all(target, inputs(1, 3000, FORGED_SIZES if target is open_forged_directories else SIZES))


# -- what broke something once ---------------------------------------------------------------------------------------


def a_header_of_slot_size_zero() -> Files:
    """At both ends of the first slot, with a checksum that holds; and no checkpoint tells the size."""
    base = image(0)
    ring = bytearray(base.ring)
    header = fmt.unpack_slot_header(base.ring)
    assert header is not None
    forged = fmt.pack_slot_header(dataclasses.replace(header, slot_bytes=0))
    for start in (0, SLOT - fmt.RESERVED):
        assert ring[start : start + fmt.HEADER_BYTES] == base.ring[: fmt.HEADER_BYTES] != forged
        ring[start : start + fmt.HEADER_BYTES] = forged
    return base, bytes(ring), b""


def the_first_slots_of_an_epoch_gone() -> Files:
    """And slots of an epoch before it are there."""
    return next(filter(None, (_without_first_slots(image(number), oldest=False) for number in range(IMAGES))))


def the_first_slots_of_the_oldest_epoch_gone() -> Files:
    """And the checkpoint tells that they were not recycled."""
    return next(filter(None, (_without_first_slots(image(number), oldest=True) for number in range(IMAGES))))


def _without_first_slots(base: Image, *, oldest: bool) -> Files | None:
    """Zeros in the place of all slots of an epoch but its last one; None: there is no such epoch in which any wait."""
    slots = [base.ring[start : start + SLOT] for start in range(0, len(base.ring), SLOT)]
    headers = [fmt.unpack_slot_header(slot) for slot in slots]
    epochs = sorted({header.epoch for header in headers if header is not None})
    watermark = watermark_of(base.checkpoint)
    for epoch in epochs[:1] if oldest else epochs[1:]:
        first = {
            index: one.first_sequence for index, one in enumerate(headers) if one is not None and one.epoch == epoch
        }
        kept = max(first, key=lambda index: first[index])
        gone = [at for at in base.records if at[0] == epoch and at[1] < first[kept] and fmt.position(*at) > watermark]
        if set(gone) - base.settled and (watermark or not oldest):
            zeroed = (bytes(SLOT) if index in first and index != kept else slot for index, slot in enumerate(slots))
            return base, b"".join(zeroed), base.checkpoint
    return None


FOUND: dict[Callable[[], Files], Callable[[Patch], None]] = {  # and a fault with which it does again
    a_header_of_slot_size_zero: any_header_will_do,
    the_first_slots_of_an_epoch_gone: whole_slots_are_not_missed,
    the_first_slots_of_the_oldest_epoch_gone: whole_slots_are_not_missed,
}


@pytest.mark.parametrize("files", FOUND, ids=[files.__name__ for files in FOUND])
def test_what_broke_once_holds(files: Callable[[], Files]) -> None:
    tally: Counter[str] = Counter()
    open_files(*files(), tally)
    assert tally == {"damage reported": 1}


@pytest.mark.parametrize(("files", "fault"), FOUND.items(), ids=[files.__name__ for files in FOUND])
def test_what_broke_once_breaks_with_its_fault(
    files: Callable[[], Files], fault: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    with pytest.raises((BrokenPromiseError, ArithmeticError)):
        open_files(*files(), Counter())
