"""A disk in memory, under `aiorecover.ring`: kill -9 and power cuts at every line of 64 bytes that is stored.

The page cache is a bytearray, what is durable another one; between them lies a journal of stores, in order. A store of
several lines is as many steps, and a crash may come at each of them. After kill -9 the page cache is there as it was.
After a power cut every unit (a line, a sector or a page) is as it was at some moment since the last completed fdatasync
began, each one by itself. A failed fdatasync leaves lines old on the disk and calls them clean.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from aiorecover.errors import WalFullError, WalIOError
from aiorecover.ring.files import Files, Mapping
from aiorecover.ring.format import LINE, PAGE
from aiorecover.testing.memory_disk import choose_survivors

MOST_BYTES = 3 << 20  # of the ring; a walk that needs more of it leaks segments
LOCK, RING = 3, 4  # descriptors
VOLUME = 1 << 30

Piece = tuple[int, bytes]  # place, contents


class Crash(BaseException):
    """The process dies here."""


class BadError(Exception):
    """The model has found something."""


class Disk:
    """Contents of the ring, with what a power cut may make of them."""

    def __init__(self, rng: random.Random, unit: int = LINE) -> None:
        self.rng, self.unit = rng, unit
        self.cache = bytearray(MOST_BYTES)
        self.durable = bytearray(MOST_BYTES)
        self.journal: list[Piece] = []
        self.dropped = 0  # entries before those of the journal
        self.stale: set[int] = set()  # lines older on the disk than in the cache, which the kernel calls clean
        self.steps = 0
        self.crash_at = 1 << 60
        self.reserved: set[int] = set()  # pages that have disk space

    def step(self) -> None:
        """Count a step that stores nothing."""
        self.steps += 1
        if self.steps >= self.crash_at:
            raise Crash

    def store(self, place: int, data: bytes) -> None:
        """Store in the page cache, line by line."""
        size = len(data)
        lines = ((place + size - 1) >> 6) - (place >> 6) + 1
        if self.steps + lines >= self.crash_at:
            whole = self.crash_at - self.steps - 1  # lines
            cut = (((place >> 6) + whole) << 6) - place if whole else 0
            rest = min(size - cut, LINE - (place + cut) % LINE)
            cut += self.rng.randint(0, rest >> 3) << 3 if rest > 7 else 0
            self._put(place, data[:cut])
            self.steps = self.crash_at
            raise Crash
        self.steps += lines
        self._put(place, data)

    def _put(self, place: int, data: bytes) -> None:
        end = place + len(data)
        self.cache[place:end] = data
        if self.stale:
            for line in range(place >> 6, ((end - 1) >> 6) + 1):
                if line in self.stale:  # dirty again, as a whole
                    self.stale.discard(line)
                    self.journal.append((line << 6, bytes(self.cache[line << 6 : (line + 1) << 6])))
        self.journal.append((place, data))

    def capture(self) -> int:
        """Where an fdatasync that begins now ends."""
        return self.dropped + len(self.journal)

    def synced(self, upto: int) -> None:
        """An fdatasync that began at ``upto`` has completed."""
        number = max(0, upto - self.dropped)
        durable = self.durable
        for place, data in self.journal[:number]:
            durable[place : place + len(data)] = data
        del self.journal[:number]
        self.dropped += number

    def failed(self, upto: int) -> None:
        """An fdatasync that began at ``upto`` has failed."""
        number = max(0, upto - self.dropped)
        before, self.journal = self.journal[:number], self.journal[number:]
        self.dropped += number
        again = {line for place, data in self.journal for line in range(place >> 6, ((place + len(data) - 1) >> 6) + 1)}
        for line, pieces in _split(before, LINE).items():
            upto = len(pieces)
            if line not in again and self.rng.random() < 0.6:
                upto = self.rng.randrange(upto)
                self.stale.add(line)
            self._apply(pieces[:upto])

    def power_cut(self) -> None:
        """Lose what is not durable, in one of the ways that have been seen to matter."""
        units = _split(self.journal, self.unit)
        pick = choose_survivors(self.rng, list(units), self.unit)
        for unit, pieces in units.items():
            self._apply(pieces[: pick(unit, len(pieces))])
        self.dropped += len(self.journal)
        self.journal.clear()
        self.stale.clear()
        self.cache[:] = self.durable

    def _apply(self, pieces: list[Piece]) -> None:
        for place, data in pieces:
            self.durable[place : place + len(data)] = data

    def damage(self, place: int) -> None:
        """Change a byte, on the disk as in the cache."""
        self.cache[place] ^= 0x15
        self.durable[place] ^= 0x15

    def give_back(self, place: int, size: int) -> None:
        """Make a hole: durable at once, or later."""
        self.step()
        for page in range(place // PAGE, (place + size) // PAGE):
            self.reserved.discard(page)
        if self.rng.random() < 0.5:
            self._put(place, bytes(size))
            return
        self.cache[place : place + size] = self.durable[place : place + size] = bytes(size)
        self.journal = [
            (place, b"") if place <= at < place + size else (at, data) for at, data in self.journal
        ]  # the numbers of entries stay


def _split(journal: list[Piece], unit: int) -> dict[int, list[Piece]]:
    """Return the stores of each unit, line by line, in order."""
    units: dict[int, list[Piece]] = {}
    for place, data in journal:
        at, end = place, place + len(data)
        while at < end:
            upto = min(end, (at | 63) + 1)
            units.setdefault(at // unit, []).append((at, data[at - place : upto - place]))
            at = upto
    return units


class MemoryMapping:
    """A mapped part of the ring; a store to a page without disk space, or after `close`, is found."""

    def __init__(self, disk: Disk, base: int, size: int) -> None:
        self.disk, self.base, self.size = disk, base, size
        self.view = memoryview(disk.cache)[base : base + size].toreadonly()
        self.data = _Slices(self)
        self.words = _Words(self)
        self.closed = False

    def store(self, at: int, data: bytes) -> None:
        place, disk = self.base + at, self.disk
        if not at + len(data) <= self.size or self.closed:
            raise BadError(f"SEGV: a store outside of a mapping at={at}")
        if place >> 12 not in disk.reserved or (place + len(data) - 1) >> 12 not in disk.reserved:
            raise BadError(f"SIGBUS: a store to a page without disk space place={place}")
        disk.store(place, data)

    def forget(self, start: int, size: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True
        self.view.release()


class _Slices:
    def __init__(self, mapping: MemoryMapping) -> None:
        self._mapping = mapping

    def __setitem__(self, where: slice, data: bytes) -> None:
        if where.stop - where.start != len(data):
            raise BadError("a store of another length than its slice")
        self._mapping.store(where.start, data)

    def __getitem__(self, where: slice) -> bytes:
        return bytes(self._mapping.view[where])


class _Words:
    def __init__(self, mapping: MemoryMapping) -> None:
        self._mapping = mapping

    def __setitem__(self, index: int, word: int) -> None:
        self._mapping.store(index << 3, word.to_bytes(8, "little"))


class MemoryFiles(Files):
    """The operating system, as far as an open directory needs it.

    Attributes:
        during: called while an fdatasync is under way: what the loop does meanwhile.
        before: called as a flush begins, before its sync points are stored.
        fail: how the next fdatasync ends.
        replacing: called with each checkpoint before it is stored.

    """

    def __init__(self, rng: random.Random, unit: int) -> None:
        super().__init__()
        self.rng = rng
        self.disk = Disk(rng, unit)
        self.length = 0
        self.word = b""  # contents of `lock`
        self.files: dict[str, bytes] = {}
        self.unsure: dict[str, bytes | None] = {}  # what a power cut may bring back instead
        self.boot = 1
        self.clock_ms = 60_000
        self.booted_ms = 0
        self.during: Callable[[], None] | None = None
        self.before: Callable[[], None] | None = None
        self.fail = False
        self.failed = False  # the last one has
        self.flushes = 0  # that have succeeded
        self.no_room = 0  # checkpoints that do not fit
        self.replacing: Callable[[bytes], None] | None = None

    def power_cut(self) -> None:
        self.disk.power_cut()
        for name, old in self.unsure.items():
            if self.rng.random() < 0.5:
                if old is None:
                    self.files.pop(name, None)
                else:
                    self.files[name] = old
        self.unsure.clear()
        self.word = self.rng.choice((b"", self.word))
        self.boot += 1
        self.clock_ms += 60_000
        self.booted_ms = self.clock_ms

    def close(self, fd: int) -> None:
        pass

    def size(self, fd: int) -> int:
        return self.length

    def links(self, fd: int) -> int:
        return 1

    def identity(self, fd: int) -> tuple[int, int]:
        return 1, fd

    def same_file(self, fd: int, path: Path) -> bool:
        return True

    def read(self, fd: int, offset: int, size: int) -> bytes:
        if fd == LOCK:
            return self.word[offset : offset + size]
        return bytes(self.disk.cache[offset : min(offset + size, self.length)])

    def write(self, fd: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        if fd == LOCK:
            if not self.failed:  # the opening's word follows its failed flush at once: no death in between
                self.disk.step()
            self.failed = False
            self.word = bytes(data) + self.word[len(data) :]
            if self.before is not None:
                self.before()
        else:
            self.disk.store(offset, bytes(data))

    def set_size(self, fd: int, size: int) -> None:
        self.disk.step()
        if size > MOST_BYTES:
            raise BadError("LEAK: the file grows and grows")
        self.length = size  # durable at once: a shorter file after a power cut holds no segment that a flush covered

    def allocate(self, fd: int, offset: int, size: int) -> None:
        self.disk.step()
        self.disk.reserved.update(range(offset // PAGE, -(-(offset + size) // PAGE)))

    def give_back(self, fd: int, offset: int, size: int) -> bool:
        self.disk.give_back(offset, size)
        return True

    def flush(self, fd: int) -> None:
        self.disk.step()
        upto = self.disk.capture()
        fail, self.fail = self.fail, False
        if self.during is not None:
            self.during()
        if fail:
            self.disk.failed(upto)
            self.failed = True
            raise WalIOError(5, "the disk has failed")
        self.disk.synced(upto)
        self.flushes += 1
        self.disk.step()

    def map(self, fd: int, offset: int, size: int) -> Mapping:
        return cast("Mapping", MemoryMapping(self.disk, offset, size))

    def read_file(self, path: Path) -> bytes | None:
        return self.files.get(str(path))

    def replace_file(self, path: Path, data: bytes) -> None:
        name = str(path)
        if self.replacing is not None and path.name == "checkpoint":
            self.replacing(data)
        self.disk.step()
        if self.no_room:
            self.no_room -= 1
            raise WalFullError("no room to write the file")
        self.unsure[name] = self.files.get(name)
        self.files[name] = data
        self.disk.step()
        del self.unsure[name]

    def make_directory(self, path: Path) -> None:
        pass

    def names(self, path: Path) -> list[str]:
        return [name for name in self.files if Path(name).parent == path]

    def volume(self, path: Path) -> tuple[int, int]:
        return VOLUME, VOLUME

    def boot_id(self) -> str:
        return f"{self.boot:032x}"

    def boot_ms(self) -> int:
        return self.clock_ms - self.booted_ms

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.clock_ms

    def monotonic(self) -> float:
        return self.clock_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.clock_ms += int(seconds * 1000)

    def random(self, size: int) -> Any:
        return self.rng.randbytes(size)
