"""A slice of what the long fuzzing does (`python -m tests.prove fuzz`), by seeded random numbers; and that it sees."""

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal import lanes, opening, reading, recovery, scan
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from tests.fuzz.directories import open_damaged_directories
from tests.fuzz.files import BrokenPromiseError, open_arbitrary_files
from tests.fuzz.frames import read_arbitrary_frames

Target = Callable[[bytes, Counter[str]], None]
Patch = pytest.MonkeyPatch

FOUND = {  # inputs that broke something once, and what it was
    "a header of slot size zero": "d632c925a690",
    "the first slots of an epoch gone": "b7c8ee4778db173fb63882f7",
    "a prefix of the oldest epoch gone": "4cf0fca13eb3",
}


def inputs(seed: int, count: int) -> Iterator[bytes]:
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        yield chance.randbytes(chance.choice([3, 6, 9, 12, 20, 40, 80]))


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


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_damaged_in_a_directory_what_comes_out_was_put_in(seed: int) -> None:
    tally = run_all(open_damaged_directories, inputs(seed, 300))
    assert tally.total() == 300
    ends = ("whole", "damage reported", "whole, in flight", "damage reported, in flight")
    assert min(tally[end] for end in ends) > 4, tally


@pytest.mark.parametrize("data", FOUND.values(), ids=FOUND)
def test_what_broke_once_holds(data: str) -> None:
    open_arbitrary_files(bytes.fromhex(data), Counter())


def every_frame_holds(patch: Patch) -> None:
    patch.setattr(scan, "holds", lambda *_: True)


def nothing_is_reported(patch: Patch) -> None:
    patch.setattr(Reader, "_report", lambda *_: None)


def frames_behind_damage_are_lost(patch: Patch) -> None:
    patch.setattr(reading, "next_frame", lambda *_: None)


def any_header_will_do(patch: Patch) -> None:
    patch.setattr(fmt, "header_fits", lambda header: True)
    patch.setattr(fmt, "possible_slot_bytes", lambda size: True)


def an_epoch_is_used_again(patch: Patch) -> None:
    plan = recovery.plan

    def without_epoch(*arguments: Any, **options: Any) -> recovery.Plan:
        found = plan(*arguments, **options)
        return dataclasses.replace(found, epoch=max(1, found.epoch - 1))

    patch.setattr(opening, "plan", without_epoch)


def copies_of_unmade_moves_count(patch: Patch) -> None:
    patch.setattr(opening, "void_copies", lambda *_: None)


def every_entry_holds(patch: Patch) -> None:
    def unpack(data: bytes) -> Any:
        _, epoch, generation, length, _ = lanes.ENTRY.unpack_from(data)
        body = data[lanes.ENTRY.size : lanes.ENTRY.size + length]
        return lanes._Copy("whole" if length else "blank", generation, epoch, body)

    patch.setattr(lanes, "unpack_entry", unpack)


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
    (read_arbitrary_frames, every_frame_holds),
    (read_arbitrary_frames, nothing_is_reported),
    (read_arbitrary_frames, frames_behind_damage_are_lost),
]


@pytest.mark.parametrize(("target", "fault"), FAULTS, ids=[f"{t.__name__}-{f.__name__}" for t, f in FAULTS])
def test_a_planted_fault_is_found(target: Target, fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises((BrokenPromiseError, ArithmeticError, ValueError, TypeError)):
        run_all(target, inputs(1, 3000))
