"""One Spark session for all tests here: starting it is the slowest part by far."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.settings import PLAIN
from tests.spark.started import ended, started

_HERE = Path(__file__).parent
_TIMEOUT_S = 600  # the first test starts Spark: seconds by itself, minutes where the machine does much else


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))
            # What pyspark hands over goes through sockets that it leaves to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def _sockets_collected() -> Iterator[None]:
    """Here, and not in a later test of something else, which would be blamed."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # A task is tried twice.
    session = started(tmp_path_factory.mktemp("spark"), "aiorecover tests", master="local[2, 2]", settings=PLAIN)
    yield session
    ended(session)


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the session of the tests alive in commands, which get this one and would stop it."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("module")
