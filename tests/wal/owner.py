"""The process that owns the directory which `test_view_live` looks at: it writes, settles, recycles and reopens.

`python -m tests.wal.owner DIRECTORY`; it ends when it is killed or its standard input ends. What it says, one line at
once for each thing:

    opened                 the directory is open once more
    hold <position> ...    these records are stored, and stay unsettled until
    release                said before the first of them is settled

Nothing is flushed: durability plays no part here, and a disk would only make it slower.
"""

import itertools
import random
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

from aiorecover.errors import WalFullError
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.storage import StorageFile
from tests.wal.rig import take

SLOT_BYTES = 16 * 1024
MAX_BYTES = 24 * SLOT_BYTES
WALK_SECONDS = 0.05  # the slots stay as they are so long while records are held: a walk should fit sometimes


def payload_of(position: int) -> bytes:
    """What stands at a position and nowhere else; the length is told by the sequence, so that epochs lie alike."""
    sequence = position & fmt.SEQUENCE_MASK
    word = b"%d." % position
    return (word * 12)[: 30 + sequence % 7 * 12]


def main(path: Path) -> None:
    """Live until told to end."""
    StorageFile.sync = lambda self: None  # type: ignore[method-assign]
    chance = random.Random(1)
    for _ in itertools.count():
        run_long_life(path)
        for _ in range(6):
            run_short_life(path, chance.randrange(5, 60))


def opened(path: Path) -> Directory:
    say("opened")
    return open_directory(Options(path, SLOT_BYTES, MAX_BYTES, 0, instance="0"))


def run_long_life(path: Path) -> None:
    """At full speed through the slots, and now and then with records that wait."""
    owner = Owner(opened(path))
    for _ in range(5):
        owner.publish(4000)
        owner.hold()
        with suppress(WalFullError):
            owner.publish(1500)
        time.sleep(WALK_SECONDS)
        owner.release()
    owner.close()


def run_short_life(path: Path, count: int) -> None:
    """A few records: behind them still stand those of the epoch before, at the same places with the same sequences."""
    owner = Owner(opened(path))
    owner.publish(count)
    time.sleep(WALK_SECONDS / 10)
    owner.close()


class Owner:
    """An open directory in which everything but what is held is settled soon."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.ring = directory.ring
        self.reader = Reader(self.ring, bytes)
        self.held: set[int] = set()
        self.unsettled: list[tuple[object, int]] = []

    def publish(self, count: int) -> None:
        for number in range(count):
            self.append()
            if number % 20 == 0:
                self.settle()
        self.settle()

    def append(self) -> int:
        position = fmt.position(self.ring.epoch, self.ring.sequence + 1)
        payload = payload_of(position)
        self.ring.append(payload, payload)
        return position

    def hold(self) -> None:
        self.held = {self.append() for _ in range(5)}
        say("hold", *sorted(self.held))

    def release(self) -> None:
        say("release")
        for slot, place in self.unsettled:
            self.ring.settle(slot, [place])  # type: ignore[arg-type]
        self.unsettled.clear()
        self.held.clear()
        self.settle()

    def settle(self) -> None:
        for slot, place, sequence, _ in take(self.reader, 100):
            if fmt.position(slot.header.epoch, sequence) in self.held:
                self.unsettled.append((slot, place))
            else:
                self.ring.settle(slot, [place])
        if self.ring.recyclable:
            self.checkpoint()
        if select.select([sys.stdin], [], [], 0)[0]:
            raise SystemExit

    def checkpoint(self) -> None:
        captured = self.directory.next_checkpoint()
        self.directory.write_checkpoint(captured)
        self.directory.recycle(captured)

    def close(self) -> None:
        while self.ring.pending():
            self.settle()
        self.checkpoint()
        self.directory.close()


def say(word: str, *numbers: int) -> None:
    sys.stdout.write(" ".join([word, *map(str, numbers)]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
