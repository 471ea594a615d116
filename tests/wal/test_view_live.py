"""The view of a directory whose owner, another process, writes, settles, recycles and reopens at full speed."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal import scan
from aiorecover.wal.view import View, open_view
from aiorecover.wal.walk import SlotWalk
from tests.wal.ledger import ViolationError, demand
from tests.wal.owner import payload_of

Patch = pytest.MonkeyPatch
ENOUGH = {"walks": 150, "held": 15, "recycled": 150, "opened": 40}  # each at least so often


class Owner:
    """The other process, and what it has said."""

    def __init__(self, process: subprocess.Popen[bytes], stdout: IO[bytes]) -> None:
        self.process = process
        self._stdout = stdout
        self._line = b""
        self.held: frozenset[int] = frozenset()
        self.said: Counter[str] = Counter()
        os.set_blocking(stdout.fileno(), False)

    def listen(self) -> None:
        """Take in what it has said up to now."""
        *lines, self._line = (self._line + (self._stdout.read() or b"")).split(b"\n")
        for line in lines:
            word, *numbers = line.split()
            self.said[word.decode()] += 1
            self.held = frozenset(map(int, numbers))
        demand(self.process.poll() is None, "the owner lives")


@contextmanager
def owner_of(path: Path) -> Iterator[Owner]:
    command = [sys.executable, "-m", "tests.wal.owner", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            owner = Owner(process, process.stdout)
            while not owner.said["release"]:
                owner.listen()
            yield owner
        finally:
            process.kill()


def walk_again_and_again(path: Path) -> Counter[str]:
    """Until there was enough of everything."""
    seen: Counter[str] = Counter()
    with owner_of(path) as owner, open_view(path / "0") as view:
        while any(seen[what] < count for what, count in ENOUGH.items()):
            owner.listen()
            held, releases = owner.held, owner.said["release"]
            waiting = walk(view, settled=bool(seen["walks"] % 2))
            owner.listen()
            if held and owner.said["release"] == releases:
                demand(held <= waiting, "what waits during the whole walk is in it", sorted(held - waiting))
                seen["held"] += 1
            seen["recycled"] += len(view.recycled)
            seen["walks"] += 1
            seen["opened"] = owner.said["opened"]
    return seen


def walk(view: View, *, settled: bool) -> set[int]:
    """One walk, every record held against what must stand at its position; the positions that wait."""
    waiting = set()
    last = 0
    for frame in view.frames(settled=settled):
        demand(frame.payload == payload_of(frame.position), "a record is what was stored there", frame)
        demand(frame.position > last, "positions are in order, none twice", frame.position, last)
        demand(settled or not frame.settled, "settled ones only when they are asked for")
        last = frame.position
        if not frame.settled:
            waiting.add(frame.position)
    demand(view.missing == [], "nothing is damaged", view.missing)
    demand(all(slot.state != "damaged" for slot in view.slots()), "no slot is damaged")
    return waiting


def test_every_walk_beside_an_owner_at_full_speed_is_right(tmp_path: Path) -> None:
    assert walk_again_and_again(tmp_path)["held"] >= ENOUGH["held"]


def do_not_look_again(patch: Patch) -> None:
    patch.setattr(SlotWalk, "_look_again", lambda self: self._seal)


def trust_every_checksum(patch: Patch) -> None:
    def holds(data: Any, at: int, length: int, check: int, sequence: int, salt: int, stop: int) -> bool:
        return at + fmt.FRAME_BYTES + (length & fmt.LENGTH_MASK) <= stop

    patch.setattr(scan, "holds", holds)


def pass_slots_in_which_records_wait(patch: Patch) -> None:
    slots = View.slots
    patch.setattr(View, "slots", lambda self: [slot for slot in slots(self) if slot.covered or slot.state != "live"])


@pytest.mark.parametrize("fault", [do_not_look_again, trust_every_checksum, pass_slots_in_which_records_wait])
def test_a_planted_fault_is_seen(fault: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(ViolationError):
        walk_again_and_again(tmp_path)
