import logging

import pytest


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each power cut that takes a record is logged, some ten thousand times."""
    caplog.set_level(logging.CRITICAL, logger="aiorecover")
