"""One Spark session for all tests here: its start is the slowest part by far."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.session import start_spark, stop_spark
from tests.spark.settings import PLAIN

_HERE = Path(__file__).parent
_TIMEOUT_S = 600  # the first test starts Spark: seconds on an idle machine, minutes on a busy one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))
            # pyspark passes data through sockets that it leaves to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def _collect_sockets() -> Iterator[None]:
    """Collect pyspark's sockets here: a later test of something else would be blamed for them."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark tries a task twice.
    session = start_spark(tmp_path_factory.mktemp("spark"), "aiorecover tests", master="local[2, 2]", settings=PLAIN)
    yield session
    stop_spark(session)


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the session of the tests alive: a command in this process gets it, and would stop it."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("module")
