import pytest

from tests.power.proved import proved

STATES = 60


@pytest.mark.timeout(400)
def test_no_acknowledged_record_is_lost_in_a_power_cut_and_faults_are_found_out() -> None:
    said, figures = proved("power", "--seed", "11", "--count", str(STATES))
    assert figures["states"] == str(STATES)
    assert figures["lost"] == "0"
    assert said.count("as it must") == 4
    for name in ("acknowledged", "looked_for", "flushes", "pending_writes", "moved"):
        assert int(figures[name]) > 0, said
