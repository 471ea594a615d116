"""Real rings, lived in by the library itself: several slots and epochs, sealed and open, settled and waiting."""

import dataclasses
import functools
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest import mock

from aiorecover.wal import format as fmt
from tests.wal.rig import Disk, Opened, Position, found, storing_fails, take

IMAGES = 24  # lives that differ enough; more cost a second of preparation each hundred
MAX_SLOTS = 8  # small, so that slots are recycled
_NOW_NS = 1_700_000_000_000_000_000


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a record stands in the ring file."""

    slot: int  # index of the slot
    word: int  # the settle word, counted in 32-bit words from the start of the slot


@dataclasses.dataclass
class Image:
    """The files of a directory as a process left them, and what that process knows of them."""

    ring: bytes = b""
    checkpoint: bytes = b""
    records: dict[Position, bytes] = dataclasses.field(default_factory=dict)
    places: dict[Position, Place] = dataclasses.field(default_factory=dict)
    settled: set[Position] = dataclasses.field(default_factory=set)
    last: dict[int, int] = dataclasses.field(default_factory=dict)  # epoch: its last sequence, skip frames included


@functools.cache
def image(number: int) -> Image:
    """One of the rings; the same number gives the same bytes."""
    chance = random.Random(f"image {number}")
    with repeatable(chance):
        return _lived_in(chance)


@contextmanager
def repeatable(chance: random.Random) -> Iterator[None]:
    """Salts, producer ids and the clock are the seed's."""
    with (
        mock.patch.object(secrets, "randbits", chance.getrandbits),
        mock.patch.object(time, "time_ns", return_value=_NOW_NS),
    ):
        yield


def _lived_in(chance: random.Random) -> Image:
    made = Image()
    opened = Opened(Disk(max_slots=MAX_SLOTS))
    lives = chance.randint(1, 4)
    for life in range(lives):
        for _ in range(chance.randint(1, 14)):
            chance.choices([_append, _settle, _checkpoint, _fail], [6, 4, 2, 1])[0](chance, opened, made)
        made.ring, made.checkpoint = opened.disk.ring.live(), opened.disk.checkpoint.live()
        opened, before = opened.dies() if life + 1 < lives else opened, opened
        before.directory.close()
    return made


def _append(chance: random.Random, opened: Opened, made: Image) -> None:
    size = chance.choice([0, 1, 30, 200, 200, 900, 4000, opened.ring.largest])
    for _ in range(chance.randint(1, 4) if size > 900 else chance.randint(1, 40)):
        if opened.ring.bytes_used >= (MAX_SLOTS - 1) * opened.ring.slot_bytes:
            return
        _store(_payload(chance, opened, size), opened, made)


def _payload(chance: random.Random, opened: Opened, size: int) -> bytes:
    if chance.random() < 0.05:  # bytes of the ring itself: they look like frames of this very slot
        return opened.disk.ring.live()[-size:][:size]
    return (b"%d/%d " % (opened.ring.epoch, opened.ring.sequence + 1) + chance.randbytes(size))[: max(size, 1)]


def _store(payload: bytes, opened: Opened, made: Image) -> None:
    word, sequence = opened.ring.append(payload, payload)
    position = opened.ring.epoch, sequence
    made.records[position] = payload
    made.places[position] = Place(opened.ring.live[-1].index, word)
    made.last[opened.ring.epoch] = sequence


def _settle(chance: random.Random, opened: Opened, made: Image) -> None:
    entries = take(opened.reader, chance.choice([1, 10, 1000]))
    done = [entry for entry in entries if chance.random() < chance.choice([0.5, 1.0, 1.0])]
    opened.settle(done)
    made.settled.update(position for position, _ in found(done))


def _checkpoint(_chance: random.Random, opened: Opened, _made: Image) -> None:
    opened.checkpoint()


def _fail(_chance: random.Random, opened: Opened, made: Image) -> None:
    """Storing fails in the middle: a skip frame stays."""
    if not opened.ring.live:
        return
    slot, payload = opened.ring.live[-1], b"never stored"
    if slot.map is None or slot.tail + fmt.FRAME_BYTES + len(payload) > slot.limit:
        return
    with storing_fails(InterruptedError()), suppress(InterruptedError):
        opened.ring.append(payload, payload)
    made.last[opened.ring.epoch] = opened.ring.sequence
