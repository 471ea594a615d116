"""Which of the timestamps that Kafka refuses were right when their records were accepted."""

import pytest

from aiorecover.delivery.timestamps import SLACK, was_right
from aiorecover.wal.ages import Acceptance

SECOND, HOUR, YEAR = 1000, 3_600_000, 31_536_000_000
NOW = 60 * YEAR


def accepted(waited_ms: int, doubt_ms: int = 0) -> Acceptance:
    """So long ago; ``doubt_ms``: it may have been that much later."""
    return Acceptance(NOW - waited_ms, NOW - waited_ms + doubt_ms, waited_ms)


@pytest.mark.parametrize(
    ("timestamp_ms", "when", "right"),
    [
        pytest.param(NOW, accepted(0), True, id="of its acceptance, just now: somebody's clock is wrong"),
        pytest.param(NOW - 2 * HOUR, accepted(2 * HOUR), True, id="of its acceptance, before an outage"),
        pytest.param(NOW - 2 * HOUR - SLACK, accepted(2 * HOUR), True, id="a little before it"),
        pytest.param(NOW - SLACK, accepted(SECOND), True, id="a little before it, without an outage"),
        pytest.param(NOW - SLACK - SECOND, accepted(0), False, id="more than that before it"),
        pytest.param(NOW + SLACK, accepted(0), True, id="a little ahead of it"),
        pytest.param(NOW + SLACK + 1, accepted(0), False, id="more than that ahead of it"),
        pytest.param(NOW + SECOND, accepted(2 * HOUR), False, id="far ahead of it, and right by now"),
        pytest.param(NOW - 4 * HOUR, accepted(2 * HOUR), True, id="as long before it as it has waited since"),
        pytest.param(NOW - 4 * HOUR - 1, accepted(2 * HOUR), False, id="longer before it than it has waited since"),
        pytest.param(1, accepted(2 * HOUR), False, id="1970"),
        pytest.param(NOW + YEAR, accepted(2 * HOUR), False, id="years ahead"),
        pytest.param(NOW - HOUR, accepted(5 * HOUR, doubt_ms=5 * HOUR), True, id="accepted at any time of five hours"),
        pytest.param(NOW + HOUR, accepted(5 * HOUR, doubt_ms=5 * HOUR), False, id="ahead of all of them"),
    ],
)
def test_a_timestamp_was_right_near_its_acceptance(timestamp_ms: int, when: Acceptance, *, right: bool) -> None:
    assert was_right(timestamp_ms, when) is right
