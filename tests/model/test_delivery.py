"""The model with the real delivery in CI: random walks find nothing, and every planted fault is seen."""

import pytest

from tests.model.delivering import modelled, walk
from tests.model.delivery_plants import PLANTS, Plant

WALKS = 200
WALKS_OF_A_PLANT = 600
BROKEN = ("RAISED AttributeError", "RAISED NameError", "RAISED TypeError", "RAISED UnboundLocalError")


def test_random_lives_with_the_real_delivery_break_no_rule() -> None:
    with modelled():
        for seed in range(WALKS):
            if walk(seed).error:
                found = walk(seed, tracing=True)
                pytest.fail("\n".join([found.error, f"seed {seed}", *found.trace]))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.rule} {plant.name}")
def test_a_fault_planted_in_delivery_is_seen(plant: Plant) -> None:
    with modelled(), plant.planted():
        errors = (walk(seed, plant.plan).error for seed in range(WALKS_OF_A_PLANT))
        error = next(filter(None, errors), "")
    assert error, "no walk has seen it"
    assert not error.startswith(BROKEN), "the plant itself is broken"
