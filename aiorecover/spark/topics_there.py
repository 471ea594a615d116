"""Whether the topics are there that a sink is told to write to, asked on the driver before anything runs."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from aiorecover.errors import ConfigError

if TYPE_CHECKING:
    from aiorecover.spark.sink_plan import Plan

__all__ = ["check_topics"]

_TRIES = 10  # a topic that was made just now is not known to every broker at once
_PAUSE_S = 0.5


def check_topics(plan: Plan) -> None:
    """Ask Kafka for the manifest topic, and for the one topic of all rows where there is one.

    Raises:
        ConfigError: one is not there, or Kafka cannot be reached.

    """
    wanted = [topic for topic in (plan.topic, plan.manifest_topic) if topic is not None]
    absent, why = asyncio.run(_absent(plan, wanted))
    if why is not None:
        raise ConfigError(
            f"Kafka cannot be reached: check bootstrap_servers, the network and the producer's security options "
            f"bootstrap_servers={plan.bootstrap_servers} error={why}"
        )
    if absent:
        raise ConfigError(f"a topic does not exist: make it first, or check the name {absent=}")


async def _absent(plan: Plan, wanted: list[str]) -> tuple[list[str], str | None]:
    """Those that are not there; and an error, where Kafka did not answer."""
    absent, why = wanted, None
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        try:
            absent, why = await _ask(plan, wanted), None
        except (KafkaError, OSError) as error:
            why = str(error) or type(error).__name__
        if not absent:
            break
    return absent, why


async def _ask(plan: Plan, wanted: list[str]) -> list[str]:
    config = plan.config()
    taken = inspect.signature(AIOKafkaClient.__init__).parameters
    options = {name: value for name, value in config.client.items() if name in taken}
    client = AIOKafkaClient(bootstrap_servers=list(config.bootstrap_servers), **options)
    try:
        await client.bootstrap()
        node = client.get_random_node()
        # A manifest topic that is made by being asked for would be kept as long as Kafka's default says.
        question = MetadataRequest(wanted, allow_auto_topic_creation=False)
        answer = (await client.send(node, question)).to_object()
        return [topic["topic"] for topic in answer["topics"] if not topic["partitions"]]
    finally:
        await client.close()
