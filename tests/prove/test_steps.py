"""When a run in which processes were to die at drawn steps proves something."""

from collections import Counter

import pytest

from tests.crash.steps import KINDS
from tests.prove.steps import too_little

ROUNDS = 40
ENOUGH = Counter({**dict.fromkeys(KINDS, 1), "crashed": ROUNDS * 3 // 4, "accepted": ROUNDS * 500})


@pytest.mark.parametrize("what", ENOUGH)
def test_a_run_in_which_too_few_died_where_they_should_proves_nothing(what: str) -> None:
    assert too_little(ENOUGH, ROUNDS) == []
    (told,) = too_little(ENOUGH - Counter({what: 1}), ROUNDS)
    assert told.startswith(f"{what}=")


def test_a_short_run_does_not_come_to_all_scenarios_and_one_round_repeats_what_it_was() -> None:
    happened = Counter(crashed=10, accepted=5_000)
    assert too_little(happened, 10) == []
    assert too_little(Counter(), 1) == []
