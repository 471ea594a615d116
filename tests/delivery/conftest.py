"""What tests of delivery reports begin with."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from aiorecover.delivery.reports import Reports
from aiorecover.wal.directory import Directory
from tests.delivery.stored import open_at


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    opened = open_at(tmp_path / "wal")
    yield opened
    opened.close()


@pytest_asyncio.fixture
async def reports(directory: Directory) -> AsyncIterator[Reports]:
    made = Reports(directory, None)
    yield made
    made.close()
