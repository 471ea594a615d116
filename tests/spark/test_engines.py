"""The audit in this process and the one on Spark give the same answer for the same topics."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from typer.testing import CliRunner

from aiorecover.cli.app import app
from tests.spark.feed import manifest
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory

CLEAN, GAPS, REPEATED, FORWARDED, HELD, MIXED, LETTERS, GONE, FAR = (f"{letter:a<13}" for letter in "cgrfhmdnz")

pytestmark = pytest.mark.usefixtures("shared_session")


def rows(producer_id: str, epoch: int, sequences: Iterable[int]) -> list[tuple[str, bytes]]:
    return [(f"{producer_id}/{epoch}/{sequence}", b"value %d" % sequence) for sequence in sequences]


RECORDS = [
    *rows(CLEAN, 1, range(1, 101)),
    *rows(CLEAN, 2, range(1, 11)),
    *rows(GAPS, 1, [*range(1, 40), *range(42, 61), 70]),
    *rows(REPEATED, 1, [1, 2, 3, 4, 5, 3, 4, 4, 6]),
    *rows(FORWARDED, 1, range(1, 6)),
    # A forwarder kept the headers, and changed the values.
    (f"{FORWARDED}/1/2", b"value 2, translated"),
    (f"{FORWARDED}/1/3", b"value 3, translated"),
    (f"{FORWARDED}/1/4", b"value 4"),
    *rows(MIXED, 3, [1, 3, 2, 5, 4, 8]),
    *rows(MIXED, 2, [1]),
    *rows(LETTERS, 1, [1, 2, 5]),
    *rows(FAR, 1, [1, 40_000, 65_537]),
    *rows(HELD, 1, [1, 2, 3]),
]
MANIFESTS = [
    manifest(CLEAN, 1, last=100, settled=100, sealed=True),
    manifest(CLEAN, 2, last=10, settled=10),
    manifest(GAPS, 1, last=75, settled=65, sealed=True, damaged=[[41, 41]]),
    manifest(LETTERS, 1, last=9, settled=6, dead_lettered=[[3, 4]]),
    manifest(HELD, 1, last=40, settled=40),
    (b"foreign", b"no manifest"),
]


@asynccontextmanager
async def published_records(cluster: Cluster, topic: str, other: str, audit_topic: str) -> AsyncIterator[None]:
    """Publish all records, the last 27 after the first one of a transaction that stays open until the end."""
    servers = cluster.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for record_id, value in RECORDS:
            await producer.send(topic, value, partition=0, headers=[("aiorecover-id", record_id.encode())])
        await producer.send(topic, b"foreign", partition=1)
        await producer.send(topic, b"foreign", partition=1, headers=[("aiorecover-id", b"nonsense/1/1")])
        forwarded = [("aiorecover-id", f"{FORWARDED}/1/5".encode())]
        await producer.send(other, b"value 5", partition=0, headers=forwarded)
        for key, value in MANIFESTS:
            await producer.send(audit_topic, value, key=key, partition=0)
        await producer.flush()
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"foreign-{topic}") as foreign:
        await foreign.begin_transaction()
        await foreign.send_and_wait(topic, b"open", partition=0)
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for record_id, value in rows(HELD, 1, range(4, 31)):
                await producer.send(topic, value, partition=0, headers=[("aiorecover-id", record_id.encode())])
            await producer.flush()
        yield


def audit_with(engine: str, *words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["audit", "--engine", engine, "--json", *words])
    assert done.exit_code in {0, 1}, done.output
    return done.exit_code, json.loads(done.stdout)


def test_both_engines_give_the_same_answer_on_the_same_topics(kafka: Cluster, topic: TopicFactory) -> None:
    name, other, manifests = topic(kafka, partitions=2), topic(kafka, partitions=1), topic(kafka, partitions=1)
    words = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", name, "--topic", other]
    words += ["--manifests", manifests, "--last", f"{GONE}/4/3", "--last", f"{FAR}/1/65600"]

    async def answers() -> list[tuple[int, dict[str, Any]]]:
        async with published_records(kafka, name, other, manifests):
            return [await asyncio.to_thread(audit_with, engine, *words) for engine in ("local", "spark")]

    local, spark = admin.run(answers())
    status, found = local
    for part, answer in spark[1].items():
        assert found[part] == answer, part
    assert local == spark
    totals = found["totals"]
    assert status == 1
    assert (totals["records"], totals["without_id"], totals["repeated"], totals["conflicts"]) == (
        len(RECORDS) + 3,
        2,
        7,
        3,
    )
    assert (totals["held_offsets"], totals["behind_open_transaction"]) == (28, 27)
    assert [(one["first"], one["last"]) for one in found["conflicts"]] == [(2, 3), (5, 5)]
    verdicts = {(one["producer_id"], one["first"], one["last"]): one["verdict"] for one in found["manifests"]["ranges"]}
    assert verdicts[HELD, 4, 30] == "behind_open_transaction"
    assert verdicts[HELD, 31, 40] == "lost"
    assert verdicts[GAPS, 40, 40] == "lost"
    assert verdicts[GONE, 1, 3] == "untold"
    assert verdicts[LETTERS, 3, 4] == "dead_lettered"
