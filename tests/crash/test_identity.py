"""Nothing twice, nothing out of order: twenty kills, while brokers and network fail (`make prove WHAT=identity`)."""

from collections import Counter

import pytest

from tests.prove.identity import prove, too_little
from tests.support.broker import KafkaCluster

CYCLES = 20
SEED = 7  # freezes a broker, kills one and freezes one, before anything else


@pytest.mark.timeout(600)
def test_nothing_is_missing_repeated_or_out_of_order_after_twenty_kills(mortal3: KafkaCluster) -> None:
    assert prove(mortal3, SEED, CYCLES) == 0


@pytest.mark.parametrize("quiet", ["resumed", "freeze", "kill", "late", "crashed", "kills", "accepted"])
def test_a_run_in_which_too_little_happens_proves_nothing(quiet: str) -> None:
    enough = Counter(resumed=CYCLES, freeze=1, kill=1, late=1, crashed=1, kills=CYCLES, accepted=1_000 * CYCLES)
    assert not too_little(enough, CYCLES)
    enough[quiet] = 0
    assert too_little(enough, CYCLES)


@pytest.mark.parametrize("quiet", ["kill all", "roll", "freeze", "kill", "late", "crashed"])
@pytest.mark.parametrize("cycles", [250, 500])
def test_a_long_run_has_killed_all_brokers_and_rolled_them_and_the_longer_it_is_the_more_went_wrong(
    cycles: int, quiet: str
) -> None:
    enough = Counter({"kill all": 1, "roll": 1})
    enough |= Counter(resumed=cycles, kills=cycles, accepted=1_000 * cycles)
    enough |= Counter(freeze=cycles // 10, kill=cycles // 25, late=cycles // 25, crashed=cycles // 20)
    assert not too_little(enough, cycles)
    enough[quiet] -= 1
    assert too_little(enough, cycles)
