"""The crash model in CI: random walks over the package find nothing, and every planted fault is seen."""

import pytest

from tests.model.plants import PLANTS, Plant
from tests.model.walk import Plan, shortest, small, walk

WALKS = 1000
WALKS_OF_A_PLANT = 1500
BROKEN = ("RAISED AttributeError", "RAISED NameError", "RAISED TypeError", "RAISED UnboundLocalError")


def test_random_lives_and_crashes_break_no_rule() -> None:
    with small():
        for seed in range(WALKS):
            found = walk(seed)
            if found.error:
                shown = shortest(found, Plan())
                pytest.fail("\n".join([shown.error, f"seed {shown.seed}, {shown.plan}", *shown.trace]))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.rule} {plant.name}")
def test_a_planted_fault_is_seen(plant: Plant) -> None:
    with small(), plant.planted():
        seeds = range(plant.seed, plant.seed + WALKS_OF_A_PLANT)
        error = next(filter(None, (walk(seed, plant.plan).error for seed in seeds)), "")
    assert error, "no walk has seen it"
    assert not error.startswith(BROKEN), "the plant itself is broken"
