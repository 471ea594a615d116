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


@pytest.mark.parametrize("quiet", ["resumed", "freeze", "kill", "late", "crashed", "accepted"])
def test_a_run_in_which_too_little_happens_proves_nothing(quiet: str) -> None:
    enough = Counter(resumed=CYCLES, freeze=1, kill=1, late=1, crashed=1, accepted=1_000 * CYCLES)
    assert not too_little(enough, CYCLES)
    enough[quiet] = 0
    assert too_little(enough, CYCLES)
