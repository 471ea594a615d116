"""A real Kafka for every test that asks for one, and what makes a run honest.

`kafka` has one node and `kafka3` three; each is started when the first test asks for it and serves the whole
session. Whatever a test does to a node, the next test finds the cluster whole. `topic` makes topics with
unique names.

Several processes share the tests (`make test`), as `tests.support.sharing` says.
"""

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from aiorecover import log
from tests.support.broker import BrokerUnavailableError, Cluster, TopicFactory, choose_cluster
from tests.support.jars import JarsError, spark_jars
from tests.support.sharing import Sharing, give_time, give_way, is_quick

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # a busy one is no fault

_SIZES = {"kafka": 1, "kafka3": 3}
_KERNEL = "Skipped: this kernel "  # what a machine does not grant (mounts, FUSE) cannot be installed
_CLUSTERS = pytest.StashKey[dict[str, Cluster]]()


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker."""
    yield from _started("kafka", request.config)


@pytest.fixture(scope="session")
def kafka3(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers: topics have three replicas, two of which must be in sync."""
    yield from _started("kafka3", request.config)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> TopicFactory:
    """`topic(kafka)`, `topic(kafka3, partitions=1, config={...})`: a new topic's name."""

    def create(
        cluster: Cluster,
        partitions: int = 6,
        *,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        test = re.sub(r"[^a-zA-Z0-9_-]", "-", request.node.name)[:60]  # what Kafka allows, and the name in its logs
        name = f"{test}-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(name, partitions, replication, config)
        return name

    return create


@pytest.fixture(autouse=True)
def _healed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for cluster in request.config.stash[_CLUSTERS].values():
        cluster.heal()


@pytest.fixture(autouse=True)
def _written() -> Iterator[None]:
    """Fail a test in which one of our log lines could not be formatted: `logging` itself raises nothing then."""
    log._told.clear()
    yield
    assert log._told == set(), "a line of the log could not be written: stderr says which"


def _started(name: str, config: pytest.Config) -> Iterator[Cluster]:
    cluster = choose_cluster(_SIZES[name])
    with cluster:
        config.stash[_CLUSTERS][name] = cluster
        yield cluster
        del config.stash[_CLUSTERS][name]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests that start neither Kafka nor Spark: a minute")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CLUSTERS] = {}
    give_way(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing:
    return Sharing(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out with ``--quick`` what takes long; what it imports, pyspark say, takes long, too."""
    quick = config.getoption("quick") and collection_path.suffix == ".py"
    return True if quick and not is_quick(collection_path.relative_to(config.rootpath).as_posix()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    give_time(config, items)


def pytest_report_collectionfinish(items: list[pytest.Item]) -> list[str]:
    """Say which Kafka it will be; missing jars are fetched now, before the tests' clocks tick."""
    wanted = {name for item in items for name in getattr(item, "fixturenames", ()) if name in _SIZES}
    try:
        if any("spark" in getattr(item, "fixturenames", ()) for item in items):
            spark_jars()
        return [f"broker: {choose_cluster(size).description}" for name, size in _SIZES.items() if name in wanted]
    except (BrokerUnavailableError, JarsError) as error:
        return [f"broker: {error}"]  # the tests that need it fail with the same words


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI everything is there: a test that was skipped for want of something is a failure (but for the kernel's)."""
    if session.config.pluginmanager.hasplugin("terminalreporter") and _skipped_in_ci(session.config):
        session.exitstatus = max(session.exitstatus, pytest.ExitCode.TESTS_FAILED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = _skipped_in_ci(config)
    if skipped:
        terminalreporter.write_line(f"CI is set: {skipped} skipped test(s) make this run a failure", red=True)


def _skipped_in_ci(config: pytest.Config) -> int:
    reporter = config.pluginmanager.getplugin("terminalreporter")
    skipped = reporter.stats.get("skipped", ()) if reporter and os.environ.get("CI") else ()
    return sum(1 for report in skipped if _KERNEL not in str(report.longrepr))
