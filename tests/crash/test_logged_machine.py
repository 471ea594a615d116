"""Exactly once where the power of a real file system goes (`logged_machine`); `make prove WHAT=cuts` does it longer."""

import pytest

from tests.power.proved import proved

CUTS = 6


@pytest.mark.timeout(300)
def test_after_power_cuts_in_steps_of_a_transaction_ext4_holds_what_the_position_covers() -> None:
    said, figures = proved("cuts", "--disk", "ext4", "--seed", "3", "--count", str(CUTS))
    assert figures["cuts"] == str(CUTS)
    assert figures["missing"] == figures["repeated"] == figures["out_of_order"] == "0"
    assert said.count("as it must") == 2
    assert int(figures["accepted"]) > 0
