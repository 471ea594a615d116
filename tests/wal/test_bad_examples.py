"""What the model once found, by few steps that show it: green since, and red with the fault that it was.

An example whose steps have come to do something else, as the library goes on, is green with the fault.
"""

import pytest

from tests.protocols.faults import Fault, unfinished_generations_again, void_is_only_settled
from tests.wal.ledger import ViolationError
from tests.wal.machine import NEVER
from tests.wal.test_model_faults import (
    DEATH,
    leave_the_header_as_it_stands,
    leave_what_stands_in_a_piece_of_a_block,
    power_cut,
    settle_copies_again_when_a_move_is_abandoned,
)
from tests.wal.walk import Taken, run


def make_move(end: tuple[str, str] = NEVER, power: int | None = None) -> Taken:
    return "make_move", {"traffic": False, "end": end, "power": power, "fails": "", "sector": 512}


def deliver(lane: bytes) -> Taken:
    return "deliver", {"lane": lane, "part": 1.0}


def enter(lane: bytes) -> Taken:
    return "enter", {"lane": lane, "count": 1}


def send(lane: bytes) -> list[Taken]:
    return [enter(lane), ("acknowledge", {"lane": lane, "lost": False}), SETTLE]


SETTLE: Taken = ("settle", {"seed": 0, "part": 1.0})
CHECKPOINT: Taken = ("write_checkpoint", {"traffic": False, "end": NEVER, "power": None, "fails": "", "sector": 512})
ALL: Taken = ("read", {"limit": 55})
BAD: dict[str, tuple[Fault, list[Taken]]] = {
    "a record that is delivered while its slot is moved is not settled again when the move is abandoned": (
        settle_copies_again_when_a_move_is_abandoned,
        [
            *[("append", {"size": 1200, "count": 12})] * 2,
            *[ALL] * 2,
            ("begin_move", {}),
            ("step_move", {"limit": 2}),
            ("deliver", {"lane": b"", "part": 1.0}),  # the first two are of this lane
            ("settle", {"seed": 0, "part": 1.0}),
            ("abandon_move", {}),
        ],
    ),
    "a void copy does not come alive when a second power cut comes before the first is dealt with": (
        void_is_only_settled,
        [
            *[("append", {"size": 1200, "count": 12})] * 3,
            *[ALL] * 3,
            *[deliver(b"b"), SETTLE],  # so that there is room for more copies
            ("begin_move", {}),
            make_move(),
            ("recycle", {}),
            ("begin_move", {}),
            make_move(("checkpoint", "before"), power=3),  # its copies stand beside those of the first one
            *[ALL] * 3,
            ("begin_move", {}),
            make_move(),  # from here on, a checkpoint covers them
            power_cut(3),
            *[("read_retry", {"limit": 55})] * 2,
        ],
    ),
    "a second power cut does not bring a moved record again behind which all of its lane is covered": (
        unfinished_generations_again,
        [
            ("append", {"size": 1200, "count": 12}),
            ("append", {"size": 1200, "count": 2}),  # the last one is of lane c, and there is none of lane a
            *[ALL] * 2,
            *[deliver(b"b"), deliver(b""), SETTLE],
            *[("begin_move", {}), make_move(), ("recycle", {})],
            power_cut(3),
            *[("read_retry", {"limit": 55}), ALL, ALL],
            *[deliver(b"c"), SETTLE],  # the moved ones of lane a keep those of lane c where they are
            CHECKPOINT,
            power_cut(3),
            ("deliver_everything", {}),
        ],
    ),
    "what a power cut leaves in a piece of a block does not stand for what a lane has in flight later": (
        leave_what_stands_in_a_piece_of_a_block,
        [
            ("append", {"size": 30, "count": 12}),
            ALL,
            *send(b"a"),
            *send(b"a"),
            power_cut(13),  # the file ends in the middle of its first block
            ("deliver_everything", {}),
            ("append", {"size": 30, "count": 12}),
            ALL,
            enter(b"b"),
            DEATH,
        ],
    ),
    "what is in flight behind a flush that failed in an earlier life is known though the kernel gives pages up": (
        leave_the_header_as_it_stands,
        [
            ("append", {"size": 5000, "count": 3}),
            ALL,
            enter(b"b"),
            CHECKPOINT,
            power_cut(7),
            ("fail_checkpoint", {"file": "lanes", "traffic": False}),
            DEATH,
            ("fail_checkpoint", {"file": "lanes", "traffic": True}),  # nothing was stored there in this life
            ("evict", {"seed": 2877039249}),
            ALL,
            enter(b"a"),
            ("evict_and_die", {"seed": 2223726750, "sector": 4096}),
        ],
    ),
}


@pytest.mark.parametrize("promise", BAD)
def test_a_bad_example_of_the_model_is_good_by_now(promise: str) -> None:
    assert run(BAD[promise][1]) is None


@pytest.mark.parametrize("promise", BAD)
def test_a_bad_example_of_the_model_is_bad_with_its_fault(promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, steps = BAD[promise]
    fault(monkeypatch)
    assert isinstance(run(steps), ViolationError)
