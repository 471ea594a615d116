"""One directory's files in memory, the real opening over them, and the few words that the tests are written in."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Self

from aiorecover.wal import format as fmt
from aiorecover.wal import opening
from aiorecover.wal import ring as ring_module
from aiorecover.wal.directory import Directory, Files, Options
from aiorecover.wal.reading import Reader
from aiorecover.wal.recovery import Plan
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Entry, Run
from aiorecover.wal.storage import FileSystem
from aiorecover.wal.view import View
from tests.wal.memory import SECTOR, FaultyFile

SLOT = 16 * 1024  # small, so that rolling and recycling happen all the time
MAX_SLOTS = 64
RESERVED = 2  # slots that are kept for the retry and the dead ring: the others are for the ring

Position = tuple[int, int]
"""epoch, sequence"""


class Machine(FileSystem):
    """A file system that knows how often the machine was booted, how full no disk is, and what was kept of damage."""

    def __init__(self, boots: int = 1):
        self.boots = boots
        self.kept: dict[str, FaultyFile] = {}

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def free_bytes(self, path: Path) -> int:
        return 1 << 60

    def exists(self, path: Path) -> bool:
        return True

    def is_symlink(self, path: Path) -> bool:
        return False

    def names(self, path: Path) -> list[str]:
        return list(self.kept)

    def sync_directory(self, path: Path) -> None:
        pass

    def open(self, path: Path) -> FaultyFile:
        return self.kept.setdefault(path.name, FaultyFile(path.name))


class Disk:
    """What is left of a directory when nobody has it open."""

    def __init__(
        self,
        ring: FaultyFile | None = None,
        checkpoint: FaultyFile | None = None,
        retry: FaultyFile | None = None,
        dead: FaultyFile | None = None,
        lanes: FaultyFile | None = None,
        *,
        max_slots: int = MAX_SLOTS,
        slot_bytes: int = SLOT,
        boots: int = 1,
    ):
        self.ring = ring or FaultyFile("ring")
        self.checkpoint = checkpoint or FaultyFile("checkpoint")
        self.retry = retry or FaultyFile("retry")
        self.dead = dead or FaultyFile("dead")
        self.lanes = lanes or FaultyFile("lanes")
        self.max_slots = max_slots
        self.slot_bytes = slot_bytes
        self.boots = boots

    def open(self, *, name: str | None = None) -> Directory:
        """Recover and open, as `open_directory` does once it has the lock."""
        size = self.slot_bytes
        options = Options(
            Path("/"),
            size,
            (self.max_slots + RESERVED) * size,
            min_free_bytes=0,
            name=name,
            file_system=Machine(self.boots),
        )
        files = Files(FaultyFile("lock"), self.checkpoint, self.ring, self.retry, self.dead, self.lanes)
        return opening.recover(Path("/"), files, options)

    def after_death(self) -> "Disk":
        """The process was killed."""
        return self._with([file.after_death() for file in self._files], self.boots)

    def after_power_cut(self, seed: int, sector: int = SECTOR) -> "Disk":
        """The machine went down; the seed chooses which sectors came through."""
        files = [
            file.after_power_cut(len(self._files) * seed + number, sector) for number, file in enumerate(self._files)
        ]
        return self._with(files, self.boots + 1)

    @property
    def _files(self) -> list[FaultyFile]:
        return [self.ring, self.checkpoint, self.retry, self.dead, self.lanes]

    def _with(self, files: list[FaultyFile], boots: int) -> "Disk":
        return Disk(*files, max_slots=self.max_slots, slot_bytes=self.slot_bytes, boots=boots)


class Opened:
    """An open directory with its reader, and what was accepted by it: a dictionary outside of the library."""

    def __init__(self, disk: Disk | None = None, *, name: str | None = None, directory: Directory | None = None):
        """``directory``: of the disk, opened in another way."""
        self.disk = disk or Disk()
        self.directory = directory or self.disk.open(name=name)
        self.ring: Ring = self.directory.ring
        self.reader = Reader(self.ring, bytes)
        self.accepted: dict[Position, bytes] = {}

    def append(self, *payloads: bytes) -> list[Position]:
        """Store records; where they stand."""
        places = []
        for payload in payloads:
            _, sequence = self.ring.append(payload, payload)
            place = (self.ring.epoch, sequence)
            assert place not in self.accepted
            self.accepted[place] = payload
            places.append(place)
        return places

    def fill_slot(self, payload: bytes = b"f" * 500) -> list[Position]:
        """Append until the next record of this size would go to another slot."""
        places = self.append(payload)
        slot = self.ring.live[-1]
        while slot.tail + fmt.FRAME_BYTES + len(payload) <= slot.limit:
            places += self.append(payload)
        return places

    def read(self, limit: int = 100) -> list[Entry]:
        """Everything that the reader has not given yet."""
        return read(self.reader, limit)

    def settle(self, entries: Iterable[Entry]) -> None:
        """One by one, in the order given."""
        for slot, place, _, _ in entries:
            self.ring.settle(slot, [place])

    def checkpoint(self) -> int:
        """Capture, make durable, recycle; how many slots became free."""
        self.keep_damaged()
        captured = self.directory.next_checkpoint()
        self.directory.write_checkpoint(captured)
        return self.directory.recycle(captured)

    def keep_damaged(self) -> None:
        """As the background does it, before anything is recycled."""
        stretches = self.directory.take_damaged()
        self.directory.keep_damaged(stretches)
        self.directory.release_damaged(stretches)

    def dies(self) -> "Opened":
        """The process is killed; another one opens the directory."""
        return self._next(self.disk.after_death())

    def loses_power(self, seed: int) -> "Opened":
        """The machine goes down and comes up again."""
        return self._next(self.disk.after_power_cut(seed))

    def _next(self, disk: Disk) -> "Opened":
        following = Opened(disk)
        following.accepted = self.accepted.copy()
        return following

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.directory.close()


def read(reader: Reader, limit: int = 100) -> list[Entry]:
    """All that there is to read."""
    entries: list[Entry] = []
    while taken := take(reader, limit):
        assert len(taken) <= limit
        entries += taken
    return entries


@contextmanager
def storing_fails(error: BaseException) -> Iterator[None]:
    """Whatever is appended meets ``error`` instead of its place in the ring."""
    before = ring_module._FRAMES, ring_module._frame

    def store(*_: object) -> NoReturn:
        raise error

    def frame(length: int) -> tuple[Callable[..., None], int]:
        return store, fmt.frame_end(0, length)

    ring_module._FRAMES, ring_module._frame = [frame(length) for length in range(len(before[0]))], frame
    try:
        yield
    finally:
        ring_module._FRAMES, ring_module._frame = before


def take(reader: Reader, limit: int) -> list[Entry]:
    """One `Reader.take` as tuples; empty when there is nothing more at the moment."""
    return entries_of(reader.take(limit))


def entries_of(run: Run | None) -> list[Entry]:
    """What a reader gave, as tuples."""
    return [] if run is None else [run.entry(number) for number in range(len(run))]


def found(entries: Iterable[Entry]) -> list[tuple[Position, bytes]]:
    """Positions and payloads."""
    return [((slot.header.epoch, sequence), record) for slot, _, sequence, record in entries]


def of_the_epoch_before(made: Plan) -> Plan:
    """What an opening starts from that goes on with the epoch of the one before."""
    return of_epoch(made, max(1, made.epoch - 1))


def of_epoch(made: Plan, epoch: int) -> Plan:
    """What an opening starts from that takes another epoch, as a checkpoint can say it."""
    suspect = made.suspect
    then = replace(suspect, generation=min(suspect.generation, epoch), since=min(suspect.since, epoch))
    openings = tuple(opening for opening in made.openings if opening[0] < epoch)
    return replace(made, epoch=epoch, suspect=then, openings=openings)


def missing(ring: Ring) -> list[Position]:
    """Every sequence that the ring reports as not there, as often as it is reported."""
    return [(damage.epoch, number) for damage in ring.damage for number in range(damage.first, damage.last + 1)]


def seen(disk: Disk) -> set[Position]:
    """What a look from outside names as missing in the ring."""
    files = {"ring": disk.ring, "checkpoint": disk.checkpoint}
    view = View(Path("/"), "ring", files.get, f"boot {disk.boots}")
    list(view.frames())
    return {(one.epoch, each) for one in view.missing for each in range(one.first, one.last + 1)}
