"""The statistics as metrics: what a scrape reads is what the producer says, and what is built on them fits."""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from aiorecover import RecoverableProducer, Statistics, WalFullError
from aiorecover.integrations import opentelemetry, prometheus
from aiorecover.integrations.metrics import STATES, TABLE, Kind
from aiorecover.testing import MemoryDisk, MockCluster
from tests.docs.test_operating import rows
from tests.support.eventually import until
from tests.support.example import EXAMPLES
from tests.test_readme import REPOSITORY

NAMES = {metric.prometheus_name for metric in TABLE}
SERVICES = (REPOSITORY / "docs" / "services.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((EXAMPLES / "ops" / "dashboard.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((EXAMPLES / "ops" / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
LABELS = {"wal_path", "state", "cluster_id", "job", "instance"}
NOT_RUNNING = {"created", "starting", "stopped", "forked"}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=3)
        yield cluster


def scraped(registry: CollectorRegistry) -> Samples:
    text = generate_latest(registry).decode()
    families = list(text_string_to_metric_families(text))
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def said(producer: RecoverableProducer, statistics: Statistics) -> Samples:
    """Return the samples that a producer has to have."""
    path = ("wal_path", str(producer.wal_path))
    return {
        (metric.prometheus_name, frozenset({path, *labels.items()})): value
        for metric in TABLE
        for labels, value in metric.values(statistics)
    }


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_table_has_each_field_and_each_state_under_a_name_of_its_own() -> None:
    assert sorted(metric.field for metric in TABLE) == sorted(Statistics.__struct_fields__)
    assert len({metric.name for metric in TABLE}) == len(NAMES) == len(TABLE)
    assert all(re.fullmatch(r"aiorecover(\.[a-z_]+)+", metric.name) and metric.help for metric in TABLE)
    assert set(STATES) | NOT_RUNNING == rows("States")


def test_the_page_has_a_row_for_each_metric() -> None:
    wanted = [
        f"| `{one.prometheus_name}` | {one.kind.value} | {one.unit.strip('{}')} | `{one.field}`: {one.help} |"
        for one in TABLE
    ]
    assert re.findall(r"^\| `aiorecover_.*$", SERVICES, re.MULTILINE) == wanted, "\n".join(wanted)


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_scrape_has_the_numbers_of_its_moment_for_each_producer_that_runs(
    tmp_path: Path, cluster: MockCluster
) -> None:
    registry = CollectorRegistry()
    one, two, again = (RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) for _ in range(3))
    for producer in (one, two, again):
        prometheus.watch(producer, registry)
    assert scraped(registry) == {}  # none is started
    async with one:
        for number in range(100):
            await one.publish("orders", b"%d" % number)
        await one.flush(10_000)
        await until(lambda: scraped(registry) == said(one, one.statistics()))  # a flush may end in between
        wal_path = frozenset({("wal_path", str(one.wal_path))})
        assert scraped(registry)["aiorecover_records_delivered_total", wal_path] == 100
        async with two:
            await until(lambda: scraped(registry) == said(one, one.statistics()) | said(two, two.statistics()))
            in_a_thread = await asyncio.to_thread(scraped, registry)
            assert in_a_thread.keys() == scraped(registry).keys()
            server, _ = start_http_server(0, "127.0.0.1", registry)  # in a thread of its own
            page = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{server.server_port}/metrics")
            server.shutdown()
            server.server_close()
            assert page.text.count("aiorecover_records_accepted_total{") == 2
            text = openmetrics.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
            assert len(list(parse_openmetrics(text))) == len(TABLE)  # type: ignore[no-untyped-call]
    async with again:  # in the directory of the first one, which is stopped
        await until(lambda: scraped(registry) == said(again, again.statistics()))
        assert again.wal_path == one.wal_path


@pytest.mark.asyncio
async def test_the_instruments_observe_the_same_numbers(tmp_path: Path, cluster: MockCluster) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    producers = [RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) for _ in range(2)]
    async with producers[0] as one, producers[1] as two:
        await one.publish("orders", b"one")
        await one.flush(10_000)
        for producer in producers:
            opentelemetry.watch(producer, provider)
        data = await asyncio.to_thread(reader.get_metrics_data)
        assert data is not None
        metrics = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
        observed = {
            (
                described.prometheus_name,
                frozenset((key, str(value)) for key, value in (point.attributes or {}).items()),
            ): (getattr(point, "value", None))
            for described in TABLE
            for point in metrics[described.name].data.data_points
        }
        wanted = said(one, one.statistics()) | said(two, two.statistics())
        assert observed.keys() == wanted.keys()
        records = [key for key in wanted if "_records_" in key[0]]
        assert [observed[key] for key in records] == [wanted[key] for key in records]
        assert sum(wanted[key] for key in records) == 2  # accepted and delivered
        for described in TABLE:
            metric = metrics[described.name]
            assert (metric.unit, metric.description) == (described.unit, described.help)
            assert isinstance(metric.data, Sum) == (described.kind is Kind.COUNTER)
    provider.shutdown()


@pytest.mark.asyncio
async def test_publish_runs_no_other_code_when_it_is_watched(tmp_path: Path) -> None:
    async def code_of(producer: RecoverableProducer) -> set[str]:
        """Return the files of what runs while records are published."""
        files = set[str]()

        def note(frame: FrameType, event: str, _: Any) -> None:
            files.add(frame.f_code.co_filename)

        sys.setprofile(note)
        try:
            for number in range(1000):
                await producer.publish("orders", b"%d" % number, key=b"one")
        finally:
            sys.setprofile(None)
        return files

    options: Any = {"bootstrap_servers": "localhost:1", "stop_timeout_ms": 0}
    async with RecoverableProducer(tmp_path, **options) as plain, RecoverableProducer(tmp_path, **options) as watched:
        provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
        prometheus.watch(watched, CollectorRegistry())
        opentelemetry.watch(watched, provider)
        assert vars(watched).keys() == vars(plain).keys()
        usual = await code_of(plain)
        assert any(file.endswith("aiorecover/producer.py") for file in usual)
        found = await code_of(watched) - {__file__}
        assert {file for file in found if re.search("integrations|prometheus|opentelemetry", file)} == set()
        provider.shutdown()


# -- what is built on them ---------------------------------------------------------------------------------------------


def named(expression: str) -> tuple[set[str], set[str]]:
    """Return the metrics and the labels that an expression names."""
    bare = re.sub(r'"[^"]*"', "", expression)
    labels = {label for inside in re.findall(r"{([^}]*)}", bare) for label in re.findall(r"(\w+)\s*[=!]", inside)}
    return set(re.findall(r"aiorecover_\w+", bare)), labels


def test_the_dashboard_shows_each_metric_and_no_other() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    expressions += [one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert set().union(*(named(one)[0] for one in expressions)) == NAMES
    assert set().union(*(named(one)[1] for one in expressions)) <= LABELS
    counters = {metric.prometheus_name for metric in TABLE if metric.kind is Kind.COUNTER}
    for expression in expressions:
        inside = set(re.findall(r"(?:rate|increase)\((aiorecover_\w+)", expression))
        assert inside <= counters, f"a rate of a gauge: {expression}"
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)


def test_each_alert_names_what_there_is_and_the_event_to_look_up() -> None:
    for rule in ALERTS:
        metrics, labels = named(rule["expr"])
        assert metrics
        assert metrics <= NAMES
        assert labels <= LABELS
        assert set(re.findall(r'state=~?"([^"]*)"', rule["expr"])) <= {"connecting", "failed|interrupted"}
        assert rule["annotations"]["event"] in rows("Log events")
        assert rule["labels"]["severity"] in {"warning", "critical"}
    assert {rule["alert"] for rule in ALERTS} == set(re.findall(r"`(Aiorecover\w+)`", SERVICES))


def firing(registry: CollectorRegistry) -> set[str]:
    """Return the alerts whose expression holds, however long ``for`` is, for expressions as simple as ours."""
    values = scraped(registry)

    def value_of(match: re.Match[str]) -> str:
        name, states = match[1], match[2]
        found = [
            value
            for (sample, labels), value in values.items()
            if sample == name and (states is None or re.fullmatch(states, dict(labels)["state"]))
        ]
        return str(max(found))

    fired = set()
    for rule in ALERTS:
        expression = re.sub(r"increase\((\w+)\[\w+\]\)", r"\1", rule["expr"])
        if eval(re.sub(r'(aiorecover_\w+)(?:{state=~?"([^"]*)"})?', value_of, expression)):  # noqa: S307 - our own text
            fired.add(rule["alert"])
    return fired


@pytest.mark.asyncio
async def test_alerts_fire_for_what_is_wrong_and_for_nothing_else(tmp_path: Path, cluster: MockCluster) -> None:
    registry, disk = CollectorRegistry(), MemoryDisk()
    options: Any = {"bootstrap_servers": cluster.bootstrap_servers, "fsync_interval_ms": 10, "stop_timeout_ms": 100}

    def fail(_: object) -> None:
        raise RuntimeError

    async with RecoverableProducer(disk, **options, wal_max_bytes=8 << 20, on_delivery=fail) as producer:
        prometheus.watch(producer, registry)
        await until(lambda: producer.state == "connected")
        assert firing(registry) == set()
        await producer.publish("orders", b"one")
        await producer.flush(10_000)
        assert firing(registry) == {"AiorecoverCallbackErrors"}
        cluster.broker_down()
        while not producer.statistics().full:
            with suppress(WalFullError):
                while True:
                    await producer.publish("orders", bytes(10_000))
            await asyncio.sleep(0.1)  # a refusal has a flush free what it can
        await until(lambda: producer.state == "connecting")
        away = {"AiorecoverCallbackErrors", "AiorecoverKafkaUnreachable", "AiorecoverRingFull", "AiorecoverRingFillsUp"}
        assert firing(registry) - {"AiorecoverPartitionInTrouble"} == away
        disk.failing = True
        await until(lambda: producer.state == "failed")
        assert firing(registry) >= {"AiorecoverDiskFailed", "AiorecoverDeliveryStopped"}
        disk.failing = False
