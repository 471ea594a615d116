"""Small directories whose every byte is known, and what comes of them when one bit flips or the file is cut.

`CASES` numbers every such change: of the main ring, of the checkpoint, of the retry ring; each cut, then each bit. The
bytes are the same in every run, so a number says all about a case. `why_wrong` opens what is left with the real code,
reads everything and says what broke: a wrong record, a loss that is not named, an opening that was refused.
"""

import mmap
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from unittest import mock

from aiorecover.errors import WalError
from aiorecover.wal import format as fmt
from aiorecover.wal import opening
from aiorecover.wal.directory import Directory, Files, Options
from aiorecover.wal.losses import Damage
from aiorecover.wal.moving import Move
from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from aiorecover.wal.storage import FileSystem, StorageFile
from tests.wal.rig import MAX_SLOTS, SLOT, Machine, Opened, Position, found, missing, read

SAMPLE = 61  # of bytes that stand for nothing alone, how many are passed: a prime, so that every bit has its turn
BITS = 8
LARGE = 4000  # bytes of a record that takes a quarter of a slot


@dataclass(frozen=True)
class Frame:
    """Where a record stands in its ring's file, and whether it waits; ``slot``: ordinal."""

    slot: int
    start: int
    end: int
    payload: bytes
    settled: bool

    @property
    def settle_word(self) -> int:
        return self.start + fmt.SETTLE_WORD * fmt.WORD


@dataclass(frozen=True)
class Specimen:
    """The files, and what stands in the two rings; ``floor``: of each, what the newest checkpoint covers."""

    images: dict[str, bytes]
    frames: dict[str, dict[Position, Frame]]
    floor: dict[str, int]


class BytesFile(StorageFile):
    """As quick as a file can be: openings are counted by the million. What is mapped is a copy."""

    def __init__(self, name: str, image: bytes | bytearray) -> None:
        self.path = Path("/memory") / name
        self.image = bytearray(image)
        self._fd = -1

    def size(self) -> int:
        return len(self.image)

    def disk_bytes(self) -> int:
        return len(self.image)

    def punch(self, offset: int, length: int) -> bool:
        return False

    def allocate(self, offset: int, length: int) -> None:
        self.image.extend(bytes(max(0, offset + length - len(self.image))))

    def map(self, offset: int, length: int) -> mmap.mmap:
        mapping = mmap.mmap(-1, length)
        mapping[:] = bytes(self.image[offset : offset + length])
        return mapping

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.image[offset : offset + length])

    def read_into(self, buffer: memoryview, offset: int) -> int:
        part = self.image[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def write(self, data: bytes, offset: int) -> None:
        self.allocate(offset, 0)
        self.image[offset : offset + len(data)] = data

    def rewrite(self, offset: int, length: int) -> None:
        pass

    def read_ahead(self, offset: int, length: int) -> None:
        pass

    def sync(self) -> None:
        pass

    def identity(self) -> tuple[int, int]:
        return 0, 0


# -- two directories -----------------------------------------------------------------------------------------------


@cache
def main_specimen() -> Specimen:
    """Two sealed slots and one that a killed process left open; some frames are settled."""
    with _the_same_every_time():
        opened = Opened()
        _fill(opened, 3)
        opened.settle(entry for entry in opened.read() if _settled(entry[2]))
        return _specimen(opened)


@cache
def retry_specimen() -> Specimen:
    """The same in the retry ring: everything there was moved; one slot of the main ring has not been."""
    with _the_same_every_time():
        opened = Opened()
        _fill(opened, 4)
        for _ in range(3):
            _move(opened)
        reader = Reader(opened.directory.retry, bytes)
        for slot, place, sequence, _ in read(reader):
            if _settled(sequence):
                opened.directory.retry.settle(slot, [place])
        reader.close()
        return _specimen(opened)


def _settled(sequence: int) -> bool:
    return sequence <= 2 or sequence % 5 == 0


@contextmanager
def _the_same_every_time() -> Iterator[None]:
    chance = random.Random(4)
    with (
        mock.patch("secrets.randbits", chance.getrandbits),
        mock.patch.object(FileSystem, "wall_ms", return_value=1),
        mock.patch.object(FileSystem, "since_boot_ms", return_value=1),
    ):
        yield


def _fill(opened: Opened, slots: int) -> None:
    """Records of many sizes, one of them large, until so many slots are begun; the last one holds a few."""
    number = 0
    while len(opened.ring.live) < slots:
        number += 1
        opened.append(b"%d/" % number * (number * 7 % 60) + (b"x" * 4000 if number % 16 == 9 else b""))
    opened.append(b"last but one", b"", b"last" * 11)


def _move(opened: Opened) -> None:
    directory = opened.directory
    slot = opened.ring.live[0]
    move = Move(opened.ring, directory.retry, slot)
    while not move.step():
        pass
    directory.write_checkpoint(directory.next_checkpoint(moved=slot.last_position))
    move.finish()
    directory.recycle(directory.checkpoint)


def _specimen(opened: Opened) -> Specimen:
    """Checkpointed, so that everything is durable, then killed."""
    directory = opened.directory
    opened.checkpoint()
    disk = opened.disk.after_death()
    rings = {"ring": directory.ring, "retry": directory.retry}
    images = {name: getattr(disk, name).live() for name in ("checkpoint", "ring", "retry", "dead")}
    return Specimen(
        images=images,
        frames={name: _frames(ring, images[name]) for name, ring in rings.items()},
        floor={
            "ring": max(directory.checkpoint.main.watermark, directory.checkpoint.moved),
            "retry": directory.checkpoint.retry.watermark,
        },
    )


def _frames(ring: Ring, image: bytes) -> dict[Position, Frame]:
    frames = {}
    for slot in ring.live:
        at = slot.file_offset + fmt.FIRST_FRAME
        last = slot.last_sequence if slot.sealed else ring.sequence
        for sequence in range(slot.header.first_sequence, last + 1):
            length, _, stored, word = fmt.FRAME.unpack_from(image, at)
            assert stored == sequence
            payload = image[at + fmt.FRAME_BYTES : at + fmt.FRAME_BYTES + length]
            end, settled = at + fmt.FRAME_BYTES + length, fmt.mark_of(word, slot.salt) is not None
            frames[slot.header.epoch, sequence] = Frame(slot.header.ordinal, at, end, payload, settled)
            at = fmt.frame_end(at, length)
    return frames


# -- every change --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """One file of a specimen."""

    make: Callable[[], Specimen]
    file: str

    @property
    def size(self) -> int:
        return len(self.make().images[self.file])

    @property
    def count(self) -> int:
        """Each cut, then each bit."""
        return self.size + self.size * BITS

    def changed(self, number: int) -> bytes:
        """The file with the change of this number."""
        image = self.make().images[self.file]
        if number < len(image):
            return image[:number]
        place, bit = divmod(number - len(image), BITS)
        return image[:place] + bytes([image[place] ^ 1 << bit]) + image[place + 1 :]

    def named(self, number: int) -> str:
        if number < self.size:
            return f"{self.file} cut at {number}"
        return f"{self.file} bit {(number - self.size) % BITS} of byte {(number - self.size) // BITS}"


TARGETS = (Target(main_specimen, "ring"), Target(main_specimen, "checkpoint"), Target(retry_specimen, "retry"))


def cases() -> int:
    """How many there are."""
    return sum(target.count for target in TARGETS)


def case(number: int) -> tuple[Target, int]:
    """The target and the number within it."""
    for target in TARGETS:
        if number < target.count:
            return target, number
        number -= target.count
    raise IndexError(number)


def sample(target: Target) -> Iterator[int]:
    """Every bit of every header, seal and telling frame's header, each cut there; of the rest each 61st byte, one bit.

    Of the headers of the other frames a bit of every byte, in turn, so that every bit of a header has its turn in some
    frame of each slot; of the checkpoint a bit of every byte of what its copies hold, and each cut there.
    """
    meant = _meant(target)
    others = _others(target)
    for place in sorted(meant | others.keys() | set(range(0, target.size, SAMPLE))):
        if place not in others:
            yield place
        every = place in meant and target.file != "checkpoint"
        for bit in range(BITS) if every else [others.get(place, place) % BITS]:
            yield target.size + place * BITS + bit


def _meant(target: Target) -> set[int]:
    specimen = target.make()
    if target.file == "checkpoint":
        image = specimen.images["checkpoint"]
        return {place for place in range(len(image)) if any(image[place - place % 8 : place - place % 8 + 16])}
    meant: set[int] = set()
    for start in range(0, target.size, SLOT):
        for end in (start, start + SLOT - fmt.RESERVED):
            meant |= set(range(end, end + fmt.SEAL_OFFSET + fmt.SEAL_BYTES))
    telling = _telling(list(specimen.frames[target.file].values()))
    return meant.union(*(_header(frame) for frame in telling))


def _header(frame: Frame) -> range:
    return range(frame.start, frame.start + fmt.FRAME_BYTES)


def _telling(frames: Sequence[Frame]) -> list[Frame]:
    """Of each slot the first frame and the last two, the first settled one, and large records with their successors."""
    chosen: list[Frame] = []
    for _, group in groupby(frames, key=lambda frame: frame.start // SLOT):
        slot = list(group)
        near = {0, len(slot) - 2, len(slot) - 1}
        near |= {at + by for at, frame in enumerate(slot) if len(frame.payload) >= LARGE for by in (0, 1)}
        near.add(next(at for at, frame in enumerate(slot) if frame.settled))
        chosen += [frame for at, frame in enumerate(slot) if at in near]
    return chosen


def _others(target: Target) -> dict[int, int]:
    """The places in the headers of all other frames, and which bit has its turn there."""
    if target.file == "checkpoint":
        return {}
    frames = list(target.make().frames[target.file].values())
    telling = _telling(frames)
    rest = [frame for frame in frames if frame not in telling]
    return {place: place + number for number, frame in enumerate(rest) for place in _header(frame)}


# -- what comes of it ----------------------------------------------------------------------------------------------


def why_wrong(target: Target, number: int) -> str | None:
    """What is not as it should be; None when all is."""
    specimen = target.make()
    images = specimen.images | {target.file: target.changed(number)}
    files = {name: BytesFile(name, images[name]) for name in ("checkpoint", "ring", "retry", "dead")}
    files["lanes"] = BytesFile("lanes", b"")
    options = Options(Path("/"), SLOT, MAX_SLOTS * SLOT, min_free_bytes=0, file_system=Machine())
    try:
        directory = opening.recover(Path("/"), Files(BytesFile("lock", b""), **files), options)
    except WalError as error:  # so little damage is never a reason to refuse
        return f"refused: {error}"
    complaints = [wrong for name in ("ring", "retry") for wrong in _wrong_in(specimen, target, number, name, directory)]
    directory.close()
    return next(iter(complaints), None)


def _wrong_in(specimen: Specimen, target: Target, number: int, name: str, directory: Directory) -> Iterator[str]:
    ring: Ring = getattr(directory, name)
    frames, floor = specimen.frames[name], specimen.floor[name]
    standing = [slot.header.ordinal for slot in ring.live]
    got = found(read(Reader(ring, bytes)))
    came = [position for position, _ in got]
    told = missing(ring)
    waiting = {at for at, frame in frames.items() if not frame.settled and fmt.position(*at) > floor}
    lost = waiting - set(came)
    hit = _hit(frames, target, number) if name == target.file else set()
    complaints = {
        "a wrong record": {at for at, payload in got if at not in frames or frames[at].payload != payload},
        "not in order, or twice": came if came != sorted(set(came)) else (),
        "told to be missing twice": told if len(told) != len(set(told)) else (),
        "told to be missing, and it is there or never was": set(told) - (set(frames) - set(came)),
        "lost and not named": {at for at in lost - set(told) if frames[at].start // SLOT not in ring.damaged_slots},
        "lost, though its bytes are whole": lost - hit,
        "named as lost, though its bytes are whole": set(told) - hit,
        "named at another place": _misplaced(ring, frames, standing),
        "settled, and delivered again": set(came)
        - waiting
        - {at for at in hit if _settles(frames[at], target, number)},
    }
    return (f"{what}: {sorted(which)}" for what, which in complaints.items() if which)


def _misplaced(ring: Ring, frames: dict[Position, Frame], standing: Sequence[int]) -> list[str]:
    """What is reported at another place than `Damage` promises."""
    return [
        f"{damage}, and not {place}"
        for damage in ring.damage
        if (damage.epoch, damage.first) in frames
        and (place := _place(frames, standing, damage)) != (damage.slot, damage.file_offset)
    ]


def _place(frames: dict[Position, Frame], standing: Sequence[int], damage: Damage) -> tuple[int, int]:
    """Slot and file offset of the first that is missing; where its slot is gone, the end of the one before it.

    A flipped bit takes no slot away, its header stands twice; and what a cut takes away was behind all that is left.
    """
    frame = frames[damage.epoch, damage.first]
    if frame.slot in standing:
        return frame.slot, frame.start
    before = max((slot for slot in standing if slot < frame.slot), default=None)
    if before is None:
        return 0, 0
    return before, max(fmt.aligned(frame.end) for frame in frames.values() if frame.slot == before)


def _hit(frames: dict[Position, Frame], target: Target, number: int) -> set[Position]:
    """The records with a byte that was changed or is gone."""
    if number < target.size:
        return {at for at, frame in frames.items() if frame.end > number}
    place = (number - target.size) // BITS
    return {at for at, frame in frames.items() if frame.start <= place < frame.end}


def _settles(frame: Frame, target: Target, number: int) -> bool:
    """Whether its settle word was hit where it tells settled from waiting, and nothing else of it."""
    if number >= target.size:
        return frame.settle_word + 2 <= (number - target.size) // BITS < frame.settle_word + fmt.WORD
    image = target.make().images[target.file]
    left = image[:number].ljust(len(image), b"\0")  # a file that was cut inside a slot gets its length back
    here = slice(frame.start, frame.settle_word), slice(frame.settle_word + fmt.WORD, frame.end)
    return all(left[part] == image[part] for part in here)
