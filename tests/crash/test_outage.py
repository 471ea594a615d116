"""An outage of all brokers costs nothing but disk; ten minutes of it are `make prove WHAT=outages`."""

from pathlib import Path

import pytest

from tests.crash.outage import run_outage
from tests.support.broker import Cluster, TopicFactory

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

RATE = 3000


async def test_publishing_goes_on_in_flat_memory_and_delivery_resumes_at_once(
    kafka3: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    outage = await run_outage(kafka3, topic(kafka3), tmp_path, seconds=5, rate=RATE)
    assert outage.wrong() == []
    assert outage.verdict.accepted > 8 * RATE
