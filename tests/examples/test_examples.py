"""Each example does what it says, and the first program of the README is one of them."""

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import TopicPartition

from aiorecover import Deduplicator, RecoverableProducer
from aiorecover.errors import WalFullError
from aiorecover.testing import MockCluster
from tests.examples.consumers import WITHIN_S, Consumer, environment, sell, sell_in_transactions, until_true
from tests.support.broker import Cluster, TopicFactory
from tests.support.example import EXAMPLES, loaded
from tests.support.oracle import Consumed, read_topic
from tests.support.published import NOWHERE

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=3)
        yield cluster


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("*.py"))
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.stem}' not in tests] == []


# --- the test of recovery


def test_the_test_of_recovery_passes_in_a_checkout_without_other_plugins() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "aiorecover.testing.plugin"]
    command.append(str(EXAMPLES / "test_recovery.py"))
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


# --- quickstart


def test_the_quickstart_is_the_program_of_the_readme() -> None:
    _, _, program = (EXAMPLES / "quickstart.py").read_text(encoding="utf-8").partition('"""\n\n')
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert readme.partition("```python\n")[2].startswith(f"{program}```")


def test_the_quickstart_publishes_and_tells_where_the_record_is(tmp_path: Path, cluster: MockCluster) -> None:
    text = (EXAMPLES / "quickstart.py").read_text(encoding="utf-8")
    program = text.replace("localhost:9092", cluster.bootstrap_servers)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(tmp_path, ""),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    assert re.fullmatch(r"accepted \w+/1/1\nin Kafka \d 0\n", done.stdout)
    assert _taken_by_the_readers(asyncio.run(read_topic(cluster.bootstrap_servers, "orders"))) == ([1], [("tea", 1)])


def test_every_example_publishes_the_order_of_the_quickstart() -> None:
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")]
    orders = [order for text in texts for order in re.findall(r'publish\(.*"orders"\)?, (\{.*?\})', text)]
    assert orders == ['{"id": 1, "item": "tea"}'] * 3


def _taken_by_the_readers(orders: list[Consumed]) -> tuple[list[int], list[tuple[str, int]]]:
    """Return the totals that etl_worker makes of the orders, and the counts of items that consumer_sqlite books."""
    totals = [loaded("etl_worker").transform(order.value)["total"] for order in orders]
    store = loaded("consumer_sqlite").Store(":memory:")
    for order in orders:
        store.book(TopicPartition("orders", order.partition), [order], Deduplicator())
    return totals, store._database.execute("SELECT item, count FROM sold").fetchall()


# --- the web service


@pytest.mark.asyncio
async def test_the_web_service_takes_orders_without_kafka_and_delivers_them_when_it_is_back(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL_DIR", str(tmp_path))
    monkeypatch.setenv("KAFKA", cluster.bootstrap_servers)
    service = loaded("web_service")
    cluster.broker_down()
    async with _client(service.app) as client:
        answers = [await client.post("/orders", json={"id": number, "item": "tea"}) for number in range(20)]
        assert {answer.status_code for answer in answers} == {202}
        assert (await client.post("/orders", json={"item": "tea"})).status_code == 422
        assert (await client.get("/live")).status_code == 200
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["delivering"], ready.json()["pending"]) == (200, False, 20)
        cluster.broker_up()
    found = await read_topic(cluster.bootstrap_servers, "orders")
    ids = {answer.json()["accepted"] for answer in answers}
    assert {dict(record.headers)["aiorecover-id"] for record in found} == {one.encode() for one in ids}
    assert _taken_by_the_readers(found) == ([1] * 20, [("tea", 20)])


@pytest.mark.asyncio
async def test_the_web_service_says_try_again_where_the_ring_is_full(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL_DIR", str(tmp_path))
    monkeypatch.setenv("KAFKA", cluster.bootstrap_servers)
    service = loaded("web_service")

    async def full(*_: object, **__: object) -> None:
        raise WalFullError("the ring is full")

    monkeypatch.setattr(RecoverableProducer, "publish", full)
    async with _client(service.app) as client:
        answer = await client.post("/orders", json={"id": 1, "item": "tea"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")


class _client:  # noqa: N801 - reads as the function that it stands for
    """A client of an application in this process, whose lifespan it brings about."""

    def __init__(self, app: Any) -> None:
        self._lifespan = app.router.lifespan_context(app)
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")

    async def __aenter__(self) -> httpx.AsyncClient:
        await self._lifespan.__aenter__()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        await self._lifespan.__aexit__(None, None, None)


# --- the login with tokens


def test_variables_that_the_login_with_tokens_lacks_are_named_in_one_line(tmp_path: Path) -> None:
    environ = environment(tmp_path, NOWHERE) | {"CLIENT_ID": "orders-service"}
    command = [sys.executable, str(EXAMPLES / "oauth_tokens.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    said = "set TOKEN_URL and CLIENT_SECRET, as your identity provider has given them to you\n"
    assert (done.returncode, done.stderr) == (1, said)


# --- the consumer that keeps a file


def test_the_consumer_passes_over_what_was_sent_again_also_after_a_restart(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    orders, out = topic(kafka, partitions=2), tmp_path / "out"
    environ = environment(tmp_path, kafka.bootstrap_servers) | {"ORDERS": orders, "STATE": str(tmp_path / "state")}
    for first, end in ((1, 501), (441, 1001)):  # the second time the last ones of the first come once more
        asyncio.run(sell(kafka, orders, first, end))
        with Consumer("consumer", environ, out) as consumer:
            until_true(partial(_has_lines, out, end - 1))
            time.sleep(1.0)  # whatever else comes
            consumer.end_well()
    counts = [json.loads(line.removeprefix("order "))["count"] for line in out.read_text().splitlines()]
    assert sorted(counts) == list(range(1, 1001))


def _has_lines(path: Path, count: int) -> bool:
    return path.read_text().count("\n") >= count


# --- all that read a topic


class Reading:
    """One example that reads orders, in an environment of its own, and what has come of them."""

    def __init__(self, kafka: Cluster, orders: str, totals: str, directory: Path) -> None:
        self._servers, self._totals = kafka.bootstrap_servers, totals
        self._out, self._database = directory / "out", directory / "orders.db"
        self._environ = environment(directory / "wal", kafka.bootstrap_servers) | {
            "ORDERS": orders,
            "TOTALS": totals,
            "STATE": str(directory / "state"),
            "DATABASE": str(self._database),
        }

    def process(self, example: str) -> Consumer:
        return Consumer(example, self._environ, self._out, arguments=["0", "1"] if example == "etl_worker" else [])

    def counts(self, example: str) -> list[int]:
        """Return the counts of the booked orders, sorted; an order that was booked twice has the double."""
        if example == "etl_worker":
            found = asyncio.run(read_topic(self._servers, self._totals))
            return sorted(json.loads(record.value or b"{}")["total"] for record in found)
        if example == "consumer":
            *lines, _ = self._out.read_text().split("\n")  # the last one may be written in part yet
            return sorted(json.loads(line.removeprefix("order "))["count"] for line in lines)
        with closing(sqlite3.connect(self._database, timeout=30)) as database, suppress(sqlite3.OperationalError):
            return sorted(count for (count,) in database.execute("SELECT count FROM sold"))
        return []  # its tables are not there yet


@pytest.mark.parametrize("example", ["etl_worker", "consumer", "consumer_sqlite"])
def test_nothing_comes_of_orders_whose_transaction_was_aborted(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, example: str
) -> None:
    orders, wanted = topic(kafka, partitions=2), list(range(1, 101))
    reading = Reading(kafka, orders, topic(kafka, partitions=2), tmp_path)
    sold = [(range(1, 51), False), (range(1, 51), True), (range(51, 61), False), (range(51, 101), True)]
    asyncio.run(sell_in_transactions(kafka, orders, *sold))
    with reading.process(example) as process:
        until_true(lambda: len(reading.counts(example)) >= len(wanted))
        time.sleep(1.0)  # whatever else comes
        process.end_well()
    assert reading.counts(example) == wanted
