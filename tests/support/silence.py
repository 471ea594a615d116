"""What asyncio complains of: exceptions in callbacks, tasks that were destroyed, errors that nobody retrieved."""

import gc

import pytest

__all__ = ["complaints"]


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The loop's own lines of this test; what nobody holds any more says so now."""
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.records]
    return [record.getMessage() for record in records if record.name == "asyncio"]
