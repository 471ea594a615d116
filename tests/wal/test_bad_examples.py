"""What the model once found, by the fewest steps that show it: green since."""

import pytest

from tests.wal.walk import Taken, run

BAD: dict[str, list[Taken]] = {
    "a record that is delivered while its slot is moved is not settled again when the move is abandoned": [
        ("end", {"stopped": True, "power": 6, "sector": 512, "slot_bytes": 32768, "name": "shop"}),
        ("append", {"size": 1, "count": 9}),
        ("append", {"size": 5000, "count": 6}),
        ("write_checkpoint", {"traffic": True, "end": ("never", ""), "power": 5, "fails": "", "sector": 512}),
        ("read", {"limit": 30}),
        ("read", {"limit": 46}),
        ("begin_move", {}),
        ("step_move", {"limit": 2}),
        ("deliver", {"lane": b"a", "part": 0.1}),
        ("settle", {"seed": 280823156, "part": 1.0}),
        ("abandon_move", {}),
    ],
    "a void copy does not come alive when a second power cut comes before the first is dealt with": [
        ("append", {"size": 30, "count": 9}),
        (
            "write_checkpoint",
            {"traffic": True, "end": ("checkpoint", "before"), "power": 4, "fails": "", "sector": 512},
        ),
        ("append", {"size": 1200, "count": 3}),
        ("read", {"limit": 52}),
        ("read", {"limit": 33}),
        ("begin_move", {}),
        ("make_move", {"traffic": False, "end": ("checkpoint", "before"), "power": 5, "fails": "", "sector": 4096}),
        ("append", {"size": 2100, "count": 3}),
        ("end", {"stopped": True, "power": 5, "sector": 4096, "slot_bytes": 16384, "name": "shop"}),
        ("read_retry", {"limit": 12}),
    ],
}


@pytest.mark.parametrize("promise", BAD)
def test_a_bad_example_of_the_model_is_good_by_now(promise: str) -> None:
    assert run(BAD[promise]) is None
