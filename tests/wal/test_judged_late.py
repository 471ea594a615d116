"""After a power cut, a life that has not judged all that is suspect yet makes a checkpoint, and ends.

What was done again is covered then, and with it goes what told that the rest of its lane has to follow: settle words
that nobody has looked at yet.
"""

from collections.abc import Iterator

import pytest

from aiorecover.wal.reading import Reader
from aiorecover.wal.ring import Ring
from tests.wal.half_done import half_done
from tests.wal.ledger import LANES
from tests.wal.rig import Opened
from tests.wal.test_model_faults import DEATH, power_cut
from tests.wal.walk import Taken, run

CUTS = 8
NEVER = {"end": ("never", ""), "power": None, "fails": "", "sector": 512}
STOP: Taken = ("close", {**NEVER, "then": None})


def delivered() -> Iterator[Taken]:
    """Whatever was read is delivered, and settled."""
    yield from (("deliver", {"lane": lane, "part": 1.0}) for lane in LANES)
    yield "settle", {"seed": 0, "part": 1.0}


def read_to_the_end() -> Iterator[Taken]:
    yield from [("read", {"limit": 55})] * 9


def begins_again(frames: int) -> Iterator[Taken]:
    """The first frames are delivered again where they have to be, and what they stood in comes free."""
    yield from [("read", {"limit": 1})] * frames
    yield from delivered()
    yield "write_checkpoint", {"traffic": False, **NEVER}
    yield "recycle", {}


def lives(cut: int, frames: int, end: Taken, *, twice: bool) -> Iterator[Taken]:
    """``twice``: all is delivered again after a first power cut, and then there is another one."""
    yield "append", {"size": 5000, "count": 12}
    yield "append", {"size": 5000, "count": 9}
    yield "sync", {"fails": False}
    for again in range(1 + twice):
        yield from read_to_the_end()
        yield from delivered()
        yield power_cut(40 * again + cut)
    yield from begins_again(frames)
    yield end
    yield "deliver_everything", {}


@pytest.mark.parametrize("end", [DEATH, STOP, power_cut(7)], ids=["killed", "stopped", "power cut"])
@pytest.mark.parametrize("twice", [False, True], ids=["one power cut", "two"])
def test_what_follows_in_a_lane_is_done_again_though_what_was_before_it_is_recycled(end: Taken, *, twice: bool) -> None:
    found = {(cut, frames): run(lives(cut, frames, end, twice=twice)) for cut in range(CUTS) for frames in (7, 13)}
    assert {at: error for at, error in found.items() if error is not None} == {}


LIVES = 60  # `python -m tests.prove model` has many more


def test_lives_that_end_before_all_is_done_again_keep_the_order() -> None:
    found = {number: error for number in range(LIVES) if (error := half_done(f"ci/{number}")[1]) is not None}
    assert found == {}


def test_they_show_what_covering_before_all_is_judged_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "judged", True)
    assert any(half_done(f"ci/{number}")[1] is not None for number in range(LIVES))


@pytest.mark.parametrize(("name", "waits"), [("ring", True), ("dead", False)])
def test_nothing_is_covered_before_all_is_judged_but_dead_letters_whose_words_are_taken_as_they_stand(
    name: str, *, waits: bool
) -> None:
    disk = Opened().disk
    for _ in range(2):  # each life begins a slot
        opened = Opened(disk)
        for _ in range(2):
            getattr(opened.directory, name).append(b"record", b"record")
        opened.directory.sync()
        for ring in opened.directory.rings:
            ring.sync()
        disk = opened.disk.after_power_cut(1)
    ring = getattr(Opened(disk).directory, name)
    reader = Reader(ring, bytes, suspects=True)
    came = [one for one in (reader.take(1) for _ in range(3)) if one is not None]
    assert [one.slot is came[0].slot for one in came] == [True, True, False]
    for one in came[:2]:
        ring.settle(one.slot, one.places)
    assert (ring.watermark() < came[0].slot.last_position) is waits
