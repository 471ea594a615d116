"""When a run in which destinations were to be gone proves something."""

from collections import Counter

import pytest

from tests.crash.destinations import KINDS
from tests.prove.destinations import too_little

ROUNDS = 10
ENOUGH = Counter({**dict.fromkeys(KINDS, ROUNDS // 2), "kills": 2 * ROUNDS, "accepted": 1_000 * ROUNDS})


@pytest.mark.parametrize("what", ENOUGH)
def test_a_run_in_which_too_little_happened_proves_nothing(what: str) -> None:
    assert too_little(ENOUGH, ROUNDS) == []
    (told,) = too_little(ENOUGH - Counter({what: 1}), ROUNDS)
    assert told.startswith(f"{what}=")


def test_one_round_repeats_what_it_was() -> None:
    assert too_little(Counter(topic=1, kills=2, accepted=1_000), 1) == []
