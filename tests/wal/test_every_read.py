"""Whatever cannot be read: each page of each file for good, and each read of an opening, a walk and the moves for once.

Promised: an opening is refused and has changed nothing, or all that can be read is there, also once it was moved, and
what is not is named.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TypeVar

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal import opening
from aiorecover.wal.moved import unpack_moved
from aiorecover.wal.moving import Move
from aiorecover.wal.reading import Reader
from aiorecover.wal.recovery import SlotFound
from aiorecover.wal.run import Run
from aiorecover.wal.storage import PAGE
from tests.wal.memory import FaultyFile, broken
from tests.wal.rig import SLOT, Disk, Opened, Position, found, missing, read
from tests.wal.specimen import Specimen, main_specimen, retry_specimen

T = TypeVar("T")
Make = Callable[[], Specimen]

FILES = ("checkpoint", "ring", "retry", "dead")
PATIENCE = 500  # failed reads in a row: a place is asked for 5 times before it counts as damaged


class PatientReader(Reader):
    """Asks again, as delivery does."""

    def take(self, limit: int) -> Run | None:
        return patiently(partial(super().take, limit))


def patiently(call: Callable[[], T]) -> T:
    for _ in range(PATIENCE):
        with suppress(WalIOError):
            return call()
    raise AssertionError("it never ends")


def disk_of(specimen: Specimen) -> Disk:
    files = {name: FaultyFile(name, image) for name, image in specimen.images.items()}
    return Disk(files["ring"], files["checkpoint"], files["retry"], files["dead"])


def opened_from(disk: Disk, specimen: Specimen) -> Opened | None:
    """None: it was refused, and nothing has changed."""
    try:
        return Opened(disk)
    except WalIOError:
        changed = [name for name in FILES if getattr(disk, name).live() != specimen.images[name]]
        assert changed == [], "refused, and changed all the same"
        return None


def wrong_in(opened: Opened, specimen: Specimen, file: str = "", page: int = 0) -> list[str]:
    """What is not as promised, if this page of this file cannot be read."""
    expected: dict[int, bytes] = {}
    wrong: list[str] = []
    for name, ring in (("ring", opened.ring), ("retry", opened.directory.retry)):
        frames, floor = specimen.frames[name], specimen.floor[name]
        bad = range(page, page + PAGE) if name == file else range(0)
        hit = {at for at, frame in frames.items() if frame.start < bad.stop and frame.end > bad.start}
        waiting = {at for at, frame in frames.items() if not frame.settled and fmt.position(*at) > floor}
        came = found(read(PatientReader(ring, bytes)))
        told = missing(ring)
        complaints: dict[str, set[Position]] = {
            "wrong": {at for at, payload in came if frames[at].payload != payload},
            "lost, and can be read": waiting - {at for at, _ in came} - hit,
            "lost, and not named": waiting - {at for at, _ in came} - set(told),
            "named, and can be read": set(told) - hit,
            "twice, or not in order": set() if came == sorted(dict(came).items()) else {at for at, _ in came},
        }
        wrong += (f"{name}: {what}: {sorted(which)}" for what, which in complaints.items() if which)
        expected |= _by_position(name, came)
    if wrong:
        return wrong
    move_all(opened)
    left: dict[int, bytes] = {}
    for name, ring in (("ring", opened.ring), ("retry", opened.directory.retry)):
        left |= _by_position(name, found(read(PatientReader(ring, bytes, primary=False))))
    return [] if left == expected else [f"lost by the moves: {sorted(expected.items() - left.items())}"]


def _by_position(ring: str, came: list[tuple[Position, bytes]]) -> dict[int, bytes]:
    """As the records were accepted."""
    if ring == "ring":
        return {fmt.position(*at): payload for at, payload in came}
    copies = [unpack_moved(memoryview(payload)) for _, payload in came]
    return {copy.position: bytes(copy.payload) for copy in copies}


def move_all(opened: Opened) -> None:
    """All but the newest slot; the background has read what it is moved to, and kept what was damaged."""
    directory = opened.directory
    directory.prepare_spares()
    opened.keep_damaged()
    while len(opened.ring.live) > 1:
        slot = opened.ring.live[0]
        move = Move(opened.ring, directory.retry, slot)
        while not patiently(move.step):
            pass
        move.check()
        directory.write_checkpoint(move.captured(directory))
        move.finish()
        assert directory.recycle(directory.checkpoint) >= 1


# -- each page, for good ---------------------------------------------------------------------------------------------


def wrong_without(make: Make, file: str, page: int) -> list[str] | None:
    """None: the opening was refused."""
    specimen = make()
    disk = disk_of(specimen)
    getattr(disk, file).stored.fail_reads(page, 1)
    opened = opened_from(disk, specimen)
    return None if opened is None else wrong_in(opened, specimen, file, page)


def pages(make: Make, file: str) -> range:
    return range(0, len(make().images[file]), PAGE)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("make", [main_specimen, retry_specimen])
def test_without_any_page_an_opening_is_refused_or_all_else_is_there_and_what_is_not_is_named(
    make: Make, file: str
) -> None:
    wrong = {page: wrong_without(make, file, page) for page in pages(make, file)}
    assert [complaints for complaints in wrong.values() if complaints] == []
    headers = {page for page in wrong if page % SLOT in {0, SLOT - PAGE}}
    assert {page for page, complaints in wrong.items() if complaints is None} == (
        wrong.keys() if file == "checkpoint" else headers
    )


# -- each read, once or three times ----------------------------------------------------------------------------------


def wrong_when_reads_fail(make: Make, first: int, times: int) -> list[str] | None:
    """The reads with these numbers; None: there are not so many."""
    specimen = make()
    disk = disk_of(specimen)
    numbers = count(1)

    def read_once() -> None:
        if first <= next(numbers) < first + times:
            broken()

    for name in (*FILES, "lanes"):
        getattr(disk, name).before["read"] = read_once
    opened = None
    while opened is None:  # refused, it can be repeated
        opened = opened_from(disk, specimen)
    wrong = wrong_in(opened, specimen)
    return wrong if next(numbers) > first else None


def each_read(make: Make, times: int) -> Iterator[list[str]]:
    for first in count(1):
        wrong = wrong_when_reads_fail(make, first, times)
        if wrong is None:
            return
        yield wrong


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("make", [main_specimen, retry_specimen])
def test_whichever_read_fails_for_a_moment_all_is_there_once_the_opening_is_not_refused(make: Make, times: int) -> None:
    wrong = list(each_read(make, times))
    assert [complaints for complaints in wrong if complaints] == []
    assert len(wrong) > 30


# -- planted faults --------------------------------------------------------------------------------------------------


def test_a_page_that_a_reader_passes_in_silence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "_report", lambda *_, **__: None)
    for make, file in ((main_specimen, "ring"), (retry_specimen, "retry")):
        wrong = [wrong_without(make, file, page) for page in pages(make, file)]
        assert any("lost, and not named" in complaint for complaints in wrong for complaint in complaints or ())


def test_a_reader_that_takes_what_it_cannot_read_for_the_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Reader.look

    def look_once(reader: Reader, *limits: int) -> Run | None:
        try:
            return look(reader, *limits)
        except WalIOError:
            return None

    monkeypatch.setattr(Reader, "look", look_once)
    for make in (main_specimen, retry_specimen):
        wrong = each_read(make, 1)
        assert any("lost, and not named" in complaint for complaints in wrong for complaint in complaints)


def test_a_move_that_leaves_out_what_it_cannot_read_at_once_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Move._look

    def look_once(move: Move, limit: int) -> bool:
        try:
            return look(move, limit)
        except WalIOError:
            move._to_read.clear()
            return False

    monkeypatch.setattr(Move, "_look", look_once)
    monkeypatch.setattr(Move, "check", lambda _: None)
    assert any(
        "lost by the moves" in complaint for complaints in each_read(main_specimen, 1) for complaint in complaints
    )


def test_an_opening_that_begins_before_it_has_read_everything_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = opening._scan

    def grow_and_scan(ring: FaultyFile, slot_bytes: int) -> Iterator[SlotFound]:
        ring.allocate(ring.size(), slot_bytes)
        return scan(ring, slot_bytes)

    monkeypatch.setattr(opening, "_scan", grow_and_scan)
    with pytest.raises(AssertionError, match="refused, and changed all the same"):
        wrong_without(main_specimen, "ring", SLOT)
    with pytest.raises(AssertionError, match="refused, and changed all the same"):
        list(each_read(main_specimen, 1))
