"""Killed while a topic refuses some records: each of these is a dead letter once, the others arrive once, in order."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aiorecover import RecoverableProducer
from tests.kafka.kills import Lives
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, judge, read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

COMPACTED = {"cleanup.policy": "compact"}  # no record without a key
COPY_OF = "aiorecover-dlq-id"
CYCLES = 4
POISON = 1500  # one record in so many: each is found by halving its batch, with two flushes a step


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_killed_again_and_again_every_poison_record_is_a_letter_and_the_others_arrive_once_and_in_order(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, guarantee: str
) -> None:
    name, copies_to, servers = topic(kafka, 3, config=COMPACTED), topic(kafka, 1), kafka.bootstrap_servers
    options: dict[str, Any] = {"dead_letter_topic": copies_to, "guarantee": guarantee}
    lives, chance = Lives(kafka, name, tmp_path, keyless=POISON, **options), random.Random(7)
    for seed in range(CYCLES):
        victim = await asyncio.to_thread(lives.start, seed)
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        lives.kill(victim)
    await lives.verdict()
    async with RecoverableProducer(lives.wal_dir, bootstrap_servers=servers, **options) as producer:
        await producer.flush(60_000)
        letters = Counter([letter.record_id async for letter in producer.dead_letters.list()])
    accepted = [line.split(" ", 2) for line in lives.log.read_text().splitlines() if not line.startswith("#")]
    poison = {record_id for record_id, key, _ in accepted if not key}
    good = [Accepted(record_id, key.encode(), value.encode()) for record_id, key, value in accepted if key]
    arrived = judge(good, await read_topic(servers, name, isolation_level="read_committed"))
    assert arrived.ok, arrived
    assert arrived.repeated == 0
    assert poison
    assert poison <= letters.keys()
    assert max(letters.values()) == 1
    assert len(letters) <= len(poison) + CYCLES  # what was accepted as the process died is in no log
    copies = await read_topic(servers, copies_to, isolation_level="read_committed")
    copied = Counter(dict(copy.headers)[COPY_OF] or b"" for copy in copies)
    assert {record_id.decode() for record_id in copied} == set(letters)
    assert len(copies) <= len(letters) + CYCLES
    assert max(Counter(copy.record_id for copy in copies).values()) == 1
