"""What the model once found, by few steps that show it: green since, and red with the fault that it was.

An example whose steps have come to do something else, as the library goes on, is green with the fault.
"""

import pytest

from tests.protocols.faults import Fault, void_is_only_settled
from tests.wal.ledger import ViolationError
from tests.wal.machine import NEVER
from tests.wal.test_model_faults import power_cut, settle_copies_again_when_a_move_is_abandoned
from tests.wal.walk import Taken, run


def make_move(end: tuple[str, str] = NEVER, power: int | None = None) -> Taken:
    return "make_move", {"traffic": False, "end": end, "power": power, "fails": "", "sector": 512}


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
}


@pytest.mark.parametrize("promise", BAD)
def test_a_bad_example_of_the_model_is_good_by_now(promise: str) -> None:
    assert run(BAD[promise][1]) is None


@pytest.mark.parametrize("promise", BAD)
def test_a_bad_example_of_the_model_is_bad_with_its_fault(promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, steps = BAD[promise]
    fault(monkeypatch)
    assert isinstance(run(steps), ViolationError)
