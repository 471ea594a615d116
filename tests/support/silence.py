"""The complaints of asyncio: exceptions in callbacks, tasks that were destroyed, errors that were never retrieved."""

import gc

import pytest

__all__ = ["complaints"]


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the loop's own lines of this test, after a collection: objects that are collected complain then."""
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.records]
    return [record.getMessage() for record in records if record.name == "asyncio"]
