"""``aiorecover demo --exactly-once``: in transactions on a real broker, and only what is committed counts."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from rich.console import Console

from aiorecover.cli import demo as demo_command
from aiorecover.cli.demo_verdict import ID_HEADER, Seen, present_ends, read_back
from aiorecover.cli.demo_view import choose_view
from tests.cli.test_demo import count_in_row, run_cli

if TYPE_CHECKING:
    import pathlib
    from collections.abc import AsyncIterator

    from tests.support.broker import Cluster, TopicFactory

pytestmark = pytest.mark.timeout(120)

RECORDS = 3_000
RATE = 1_000
PARTITIONS = 6
A_WHILE = 2.0  # seconds: somebody who does not wait would have read by then


def test_without_a_kafka_to_use_one_sentence_says_what_is_needed(tmp_path: pathlib.Path) -> None:
    done = run_cli("demo", "--exactly-once", directory=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("--exactly-once needs a Kafka of yours, --bootstrap-servers")
    assert done.stderr.count("\n") == 1


def test_killed_again_and_again_each_record_is_committed_once_and_the_demo_says_so(
    kafka: Cluster, topic: TopicFactory, tmp_path: pathlib.Path
) -> None:
    name = topic(kafka, PARTITIONS)
    options = ["--exactly-once", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", name]
    done = run_cli("demo", *options, "--records", str(RECORDS), "--rate", str(RATE), directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert count_in_row(done.stdout, "accepted") == count_in_row(done.stdout, "delivered") == RECORDS
    for bad in ("missing", "out of order", "altered", "repeated"):
        assert count_in_row(done.stdout, bad) == 0
    assert "killed with SIGKILL in mid-stream" in done.stdout
    assert "killed with SIGKILL soon after its start" in done.stdout
    assert "Every accepted record is committed in Kafka, once and in order." in done.stdout
    untold = count_in_row(done.stdout, "accepted without word")
    assert asyncio.run(places_taken(kafka, name)) > RECORDS + untold, "there are no marks of transactions between them"
    assert list(tmp_path.iterdir()) == []


async def places_taken(kafka: Cluster, name: str) -> int:
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
    await consumer.start()
    try:
        return sum((await consumer.end_offsets([TopicPartition(name, at) for at in range(PARTITIONS)])).values())
    finally:
        await consumer.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("exactly_once", [True, False])
async def test_only_where_it_was_asked_for_the_committed_records_are_read(
    kafka: Cluster, monkeypatch: pytest.MonkeyPatch, *, exactly_once: bool
) -> None:
    asked: list[str] = []

    async def nothing_happens(_: object) -> None:
        return

    async def nothing_there(_: str, __: str, ___: object, isolation: str) -> tuple[list[Seen], int]:
        asked.append(isolation)
        return [], 0

    monkeypatch.setattr(demo_command, "_play", nothing_happens)
    monkeypatch.setattr(demo_command, "read_back", nothing_there)
    options = demo_command.Options(1, 1, kafka.bootstrap_servers, None, None, seed=1, exactly_once=exactly_once)
    with choose_view(Console(file=io.StringIO()), 1) as view:
        outcome = await demo_command.run(options, view)
    assert outcome.exactly_once is exactly_once
    assert asked == ["read_committed" if exactly_once else "read_uncommitted"]


@contextlib.asynccontextmanager
async def transactional(kafka: Cluster) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=f"demo-{random.randrange(1 << 30)}"
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(producer: AIOKafkaProducer, name: str, number: int) -> None:
    value = json.dumps({"run": 1, "number": number}).encode()
    header = (ID_HEADER, f"someproducer/1/{number + 1}".encode())
    await producer.send_and_wait(name, value, key=b"k", partition=0, headers=[header])


@pytest.mark.asyncio
async def test_what_a_transaction_holds_that_was_given_up_does_not_count(kafka: Cluster, topic: TopicFactory) -> None:
    name = topic(kafka, 1)
    async with transactional(kafka) as producer:
        for number in range(3):
            await producer.begin_transaction()
            await send(producer, name, number)
            await (producer.abort_transaction() if number == 1 else producer.commit_transaction())
    found = {}
    for isolation in ("read_committed", "read_uncommitted"):
        seen, cut_off = await read_back(kafka.bootstrap_servers, name, {0: 0}, isolation)
        assert cut_off == 0
        found[isolation] = [record.ordinal.number for record in seen]
    assert found == {"read_committed": [0, 2], "read_uncommitted": [0, 1, 2]}


@pytest.mark.asyncio
async def test_a_commit_that_is_under_way_is_waited_for(kafka: Cluster, topic: TopicFactory) -> None:
    name = topic(kafka, 1)
    begin = await present_ends(kafka.bootstrap_servers, name)
    async with transactional(kafka) as producer:
        await producer.begin_transaction()
        await send(producer, name, 0)
        reading = asyncio.create_task(read_back(kafka.bootstrap_servers, name, begin, "read_committed"))
        await asyncio.sleep(A_WHILE)
        assert not reading.done()
        await producer.commit_transaction()
        seen, _ = await reading
    assert [record.ordinal.number for record in seen] == [0]
