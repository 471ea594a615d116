"""Questions to a cluster through plain aiokafka: its nodes, the leaders of partitions; and topics that are made.

Each one is a coroutine with a connection of its own. `run` makes an ordinary call of it, also where an event
loop is running already.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.metadata import MetadataRequest

__all__ = [
    "View",
    "ask_every_node",
    "count_records",
    "create_placed_topic",
    "create_topic",
    "delete_records",
    "delete_topic",
    "delete_topic_everywhere",
    "grow_topic",
    "remake_topic",
    "run",
    "until",
]

T = TypeVar("T")

_ANSWER_WITHIN_MS = 2_000  # a paused node does not answer at all
_SHORTEST_ATTEMPT_S = 1.0
_ASK_EVERY_S = 0.05


@dataclass(frozen=True)
class View:
    """A cluster as one of its nodes sees it."""

    brokers: frozenset[int]
    leaders: Mapping[int, int]
    """Partition to node id (-1: no leader) of the topic asked for; empty where the node does not know it."""
    in_sync: Mapping[int, frozenset[int]]
    """Partition to the ids of the nodes whose replicas are in sync, likewise."""


def run(question: Coroutine[Any, Any, T]) -> T:
    """Wait for the answer in a thread of its own: the caller's thread may have a running event loop."""

    def ask() -> T:
        with _quiet():
            return asyncio.run(question)

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(ask).result()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what aiokafka logs in this thread out of the reports: that a node is silent is no news here."""
    asking = threading.get_ident()

    def by_others(record: logging.LogRecord) -> bool:
        return record.thread != asking

    loggers = [logging.getLogger(name) for name in ("aiokafka", "aiokafka.conn")]
    for logger in loggers:
        logger.addFilter(by_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(by_others)


async def until(attempt: Callable[[], Awaitable[T | None]], *, timeout_s: float, what: str) -> T:
    """Try until there is an answer; errors count as none."""
    give_up_at = time.monotonic() + timeout_s
    problem = "no answer"
    while True:
        left_s = give_up_at - time.monotonic()
        try:
            async with asyncio.timeout(max(left_s, _SHORTEST_ATTEMPT_S)):
                answer = await attempt()
        except (KafkaError, OSError) as error:  # TimeoutError is an OSError
            problem = repr(error)
        else:
            if answer is not None:
                return answer
        if left_s <= 0:
            raise TimeoutError(f"gave up waiting, {what}: {timeout_s=} {problem=}")
        await asyncio.sleep(_ASK_EVERY_S)


async def ask_every_node(bootstrap_servers: str, topic: str | None = None) -> dict[int, View]:
    """Ask each node that is listed for its own answer; raise if one of them does not answer."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap_servers, request_timeout_ms=_ANSWER_WITHIN_MS)
    # No topic is created by asking for it.
    question = MetadataRequest([] if topic is None else [topic], allow_auto_topic_creation=False)
    try:
        await client.bootstrap()
        listed = [broker.nodeId for broker in client.cluster.brokers()]
        return {node_id: _view((await client.send(node_id, question)).to_object()) for node_id in listed}
    finally:
        await client.close()


def _view(answer: dict[str, Any]) -> View:
    partitions = [partition for topic in answer["topics"] for partition in topic["partitions"]]
    return View(
        brokers=frozenset(broker["node_id"] for broker in answer["brokers"]),
        leaders={partition["partition"]: partition["leader"] for partition in partitions},
        in_sync={partition["partition"]: frozenset(partition["isr"]) for partition in partitions},
    )


async def create_topic(
    bootstrap_servers: str, name: str, partitions: int, replication: int, config: Mapping[str, str]
) -> None:
    """Ask the controller for the topic; its refusal is raised as aiokafka's error of that code."""
    await _create(bootstrap_servers, NewTopic(name, partitions, replication, topic_configs=dict(config)))


async def create_placed_topic(
    bootstrap_servers: str, name: str, replicas: Mapping[int, Sequence[int]], config: Mapping[str, str] | None = None
) -> None:
    """As `create_topic`; ``replicas``: the nodes, by their ids, on which each partition is to stand."""
    topic = NewTopic(name, -1, -1, replica_assignments={**replicas}, topic_configs={**(config or {})})
    await _create(bootstrap_servers, topic)


async def _create(bootstrap_servers: str, topic: NewTopic) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        answer = await admin.create_topics([topic])
    finally:
        await admin.close()
    for refusal in answer.to_object()["topic_errors"]:
        if refusal["error_code"]:
            raise for_code(refusal["error_code"])(f"topic not created, {refusal['error_message']}: {vars(topic)}")


async def count_records(bootstrap_servers: str, name: str, partitions: int) -> int:
    """How many records were ever appended to so many partitions of a topic, by its end offsets."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers)
    await consumer.start()
    try:
        ends = await consumer.end_offsets([TopicPartition(name, number) for number in range(partitions)])
    finally:
        await consumer.stop()
    return sum(ends.values())


async def delete_topic(bootstrap_servers: str, name: str) -> None:
    """Ask the controller to delete the topic; gone from each node's metadata a moment later."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        answer: Any = await admin.delete_topics([name])
    finally:
        await admin.close()
    for _, code in answer.topic_error_codes:
        if code:
            raise for_code(code)(f"topic not deleted: {name=}")


async def delete_topic_everywhere(bootstrap_servers: str, name: str) -> None:
    """As `delete_topic`; return when no node knows it any more."""

    async def is_gone() -> bool | None:
        views = await ask_every_node(bootstrap_servers, name)
        return all(not view.leaders for view in views.values()) or None

    await delete_topic(bootstrap_servers, name)
    await until(is_gone, timeout_s=30, what="the topic is there yet")


async def remake_topic(bootstrap_servers: str, name: str, partitions: int) -> None:
    """Delete the topic, and make another one of its name with one copy of each partition."""
    await delete_topic(bootstrap_servers, name)

    async def made() -> bool:
        await create_topic(bootstrap_servers, name, partitions, 1, {})  # refused while the old one is there
        return True

    await until(made, timeout_s=30, what=f"{name} is not made anew")


async def delete_records(bootstrap_servers: str, name: str, partition: int, before: int) -> None:
    """Take away what stands before this offset, as retention does it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        await admin.delete_records({TopicPartition(name, partition): RecordsToDelete(before)})
    finally:
        await admin.close()


async def grow_topic(bootstrap_servers: str, name: str, partitions: int, nodes: Sequence[int]) -> None:
    """Have the topic grow up to so many partitions; ``nodes``: where each of the new ones is to stand."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        await admin.create_partitions({name: NewPartitions(partitions, [[node] for node in nodes])})
    finally:
        await admin.close()
