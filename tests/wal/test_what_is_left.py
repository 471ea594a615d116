"""Whole files that are gone, beside each state of the checkpoint: what waited in them is named, told of, or refused."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import pytest

from aiorecover.errors import WalCorruptError
from aiorecover.wal.checkpoint import COPY_BYTES
from aiorecover.wal.directory import UNSURE
from aiorecover.wal.moved import DEAD, RETRY, RING
from aiorecover.wal.reading import Reader
from tests.wal.memory import FaultyFile
from tests.wal.rig import Disk, Opened, Position, missing, read

RINGS = (RING, RETRY, DEAD)
LANES = "lanes"
FILES = (*RINGS, LANES)
GONE: dict[str, Callable[[FaultyFile], None]] = {
    "cut": lambda file: file.cut(0),
    "zeros": lambda file: file.damage(0, bytes(file.size())),
}
CHECKPOINTS = {
    # the newer copy, the older one
    "both": ("stands", "stands"),
    "newer rots": ("rots", "stands"),
    "older rots": ("stands", "rots"),
    "newer zero": ("zero", "stands"),
    "older zero": ("stands", "zero"),
    "both rot": ("rots", "rots"),
    "newer rots, older zero": ("rots", "zero"),
    "both zero": ("zero", "zero"),
    "gone": ("gone", "gone"),
}


# -- what there was ------------------------------------------------------------------------------------------------


@dataclass
class Used:
    """``stored``: in each ring, all of it waits. ``known``: of that, what each of the last two checkpoints knew."""

    opened: Opened = field(default_factory=Opened)
    stored: dict[str, list[Position]] = field(default_factory=lambda: {name: [] for name in RINGS})

    def store(self, *names: str) -> None:
        rings = dict(zip(RINGS, self.opened.directory.rings, strict=True))
        for name in names:
            for number in range(3):
                _, sequence = rings[name].append(b"%d" % number * 90, None)
                self.stored[name].append((rings[name].epoch, sequence))

    def dies(self) -> None:
        self.opened = self.opened.dies()


def begun() -> Used:
    """One checkpoint knows of all, and only the opening's stands beside it."""
    used = Used()
    used.opened.directory.lanes.store(0, b"in flight")
    used.store(*RINGS)
    used.opened.checkpoint()
    return used


def gone_on() -> Used:
    """The newest checkpoint knows more than the one before."""
    used = begun()
    used.store(RING, DEAD)
    used.opened.checkpoint()
    return used


def opened_again() -> Used:
    """Nothing was in flight, and another process has opened it since."""
    used = Used()
    used.store(*RINGS)
    used.opened.checkpoint()
    used.dies()
    used.store(RING)
    used.opened.checkpoint()
    return used


def ended() -> Used:
    """Cleanly, with all that waits."""
    used = gone_on()
    directory = used.opened.directory
    directory.write_checkpoint(directory.next_checkpoint(closed=True))
    return used


HISTORIES = [begun, gone_on, opened_again, ended]


# -- what happens to it --------------------------------------------------------------------------------------------


def left(used: Used, copies: tuple[str, str], gone: dict[str, str]) -> Disk:
    """The files of a process that died; ``gone``: by name, and how."""
    disk = used.opened.disk.after_death()
    newer = max((0, 1), key=lambda copy: int.from_bytes(disk.checkpoint.read(copy * COPY_BYTES + 16, 8), "little"))
    for place, state in zip((newer, 1 - newer), copies, strict=True):
        if state == "rots":
            byte = disk.checkpoint.read(place * COPY_BYTES + 40, 1)[0]
            disk.checkpoint.damage(place * COPY_BYTES + 40, bytes([byte ^ 1]))
        elif state == "zero":
            disk.checkpoint.damage(place * COPY_BYTES, bytes(COPY_BYTES))
        elif state == "gone":
            disk.checkpoint.cut(0)
    for name, how in gone.items():
        GONE[how](getattr(disk, name))
    return disk


@dataclass
class Came:
    """``told``: rings of which the log says that records may be missing."""

    delivered: dict[str, list[Position]]
    missing: dict[str, list[Position]]
    told: list[str]
    new: bool


def look(disk: Disk, caplog: pytest.LogCaptureFixture) -> Came:
    caplog.clear()
    with Opened(disk) as opened:
        rings = dict(zip(RINGS, opened.directory.rings, strict=True))
        given = {
            name: [(slot.header.epoch, sequence) for slot, _, sequence, _ in read(Reader(ring, bytes))]
            for name, ring in rings.items()
        }
        lost = {name: sorted(missing(ring)) for name, ring in rings.items()}
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        told = [name for line in lines if line.startswith(UNSURE) for name in line.rpartition("rings=")[2].split(",")]
        return Came(given, lost, told, new=opened.directory.checkpoint.epoch == 1)


# -- what must come of it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_whatever_is_gone_is_named_or_told_or_refused(
    history: Callable[[], Used], checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    copies, used = CHECKPOINTS[checkpoint], history()
    for number, stands in enumerate(product([True, False], repeat=len(FILES))):
        hows = [list(GONE)[(number + place) % 2] for place in range(len(FILES))]
        gone = {name: how for name, how, there in zip(FILES, hows, stands, strict=True) if not there}
        disk = left(used, copies, gone)
        case = (checkpoint, gone)
        before = [file.live() for file in disk._files]
        if "stands" not in copies and RING in gone:
            with pytest.raises(WalCorruptError, match=r"restore them from a copy|put them back"):
                look(disk, caplog)
            assert [file.live() for file in disk._files] == before, case
            continue
        came = look(disk, caplog)
        assert not came.new, case
        for name in RINGS:
            stored = used.stored[name]
            if name not in gone:
                assert (came.delivered[name], came.missing[name]) == (stored, []), case
                continue
            assert came.delivered[name] == [], case
            unnamed = set(stored) - set(came.missing[name])
            assert set(came.missing[name]) <= set(stored), case
            assert not unnamed or name in came.told, (case, name)
            if copies[0] == "stands" or (history is begun and "stands" in copies):
                assert not unnamed, (case, name)


@pytest.mark.parametrize("how", GONE)
def test_where_nothing_is_left_but_the_length_of_files_the_directory_is_refused(how: str) -> None:
    """Zeros were something: a first opening has both copies of the checkpoint durable before it has anything else."""
    used = begun()
    disk = left(used, ("zero", "zero"), dict.fromkeys(FILES, how))
    if how == "cut":
        assert Opened(disk).ring.epoch == 1
    else:
        with pytest.raises(WalCorruptError, match="put them back"):
            Opened(disk)


@pytest.mark.parametrize("one", FILES)
@pytest.mark.parametrize("how", ["stands", "zeros"])
def test_one_file_in_which_an_opening_has_left_something_is_enough(one: str, how: str) -> None:
    """Also where nobody has published, moved or sent anything yet."""
    used = Used()
    used.opened.directory.prepare_spares()
    gone = {name: "cut" for name in FILES if name != one} | ({} if how == "stands" else {one: how})
    with pytest.raises(WalCorruptError, match="put them back"):
        Opened(left(used, ("gone", "gone"), gone))


def test_wherever_a_first_opening_ends_the_next_one_goes_on() -> None:
    """Killed, or by a power cut: nothing was accepted by then, so nothing is missed, told or refused."""
    disk = Disk()
    ends: list[Disk] = []

    def end() -> None:
        ends.extend([disk.after_death(), *(disk.after_power_cut(seed) for seed in range(4))])

    for file in disk._files:
        file.before = dict.fromkeys(("sync", "allocate", "write"), end)
        file.after = dict.fromkeys(("sync", "allocate", "write"), end)
    with Opened(disk):
        end()
    assert len(ends) > 80
    for left_there in ends:
        with Opened(left_there) as opened:
            assert opened.read() == []
            assert missing(opened.ring) == []


# -- of another directory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", [Used, begun])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_lanes_of_another_directory_are_refused_and_its_own_are_welcome_back(
    history: Callable[[], Used], checkpoint: str
) -> None:
    """Also empty ones: where its own went, what was in flight went with them."""
    another, used = history().opened.disk.after_death(), begun()
    disk = left(used, CHECKPOINTS[checkpoint], {})
    own, disk.lanes = disk.lanes, another.lanes
    before = [file.live() for file in disk._files]
    with pytest.raises(WalCorruptError, match=r"several producers: put its own lanes back.* files=lanes"):
        Opened(disk)
    assert [file.live() for file in disk._files] == before
    disk.lanes = own
    with Opened(disk) as opened:
        assert [block.bodies for block in opened.directory.lanes.found] == [(b"in flight",)]


def test_a_copy_of_a_directory_may_have_the_lanes_of_the_other_one() -> None:
    """Nothing that stands there is known to this file: a copy's batches are never sent in the other one's name."""
    used = begun()
    one, other = used.opened.disk.after_death(), used.opened.disk.after_death()
    with Opened(other):
        pass
    one.lanes = FaultyFile(LANES, other.lanes.live())
    with Opened(one) as opened:
        assert [block.known for block in opened.directory.lanes.found] == [False]


def test_lanes_whose_header_is_damaged_are_nobody_s_and_none_of_their_entries_is_known() -> None:
    another, disk = begun().opened.disk.after_death(), left(begun(), CHECKPOINTS["both"], {})
    disk.lanes = another.lanes
    disk.lanes.damage(20, b"\xee")
    with Opened(disk) as opened:
        assert [block.known for block in opened.directory.lanes.found] == [False]
