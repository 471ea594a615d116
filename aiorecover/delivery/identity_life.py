"""How long the brokers remember a Kafka producer's identity, and how long it is trusted here.

A broker that has forgotten a producer appends its repeats as if they were new (`producer.id.expiration.ms`, a day by
default; what is older than Kafka 3.5 has no such setting, and remembers for a week). So the first session of each
process asks: for itself, and the directory remembers the answer for the next opening, which has no broker to ask yet.
"""

import asyncio
from contextlib import suppress
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import DescribeConfigsRequest

__all__ = ["DAY_MS", "LONGEST_MS", "ask_expiration_ms", "identity_life_ms", "is_forgotten"]

DAY_MS = 24 * 3600 * 1000  # Kafka's default
LONGEST_MS = DAY_MS // 2
SETTING = "producer.id.expiration.ms"
ASK_LIMIT = 2.0  # seconds: the session that asks is not in use yet, and can do without an answer
_DIGITS = 18
_BROKER = 4  # the type of resource: a broker, by its number, which only it can tell of


def identity_life_ms(expiration_ms: int | None, *, readable: bool = True) -> int:
    """Half of what the brokers keep an identity, which leaves as much for one to come back; 12 hours at most.

    ``expiration_ms``: what they say; None: nothing, so Kafka's default counts. ``readable``: what is not trusted is
    looked for instead. Where it cannot be, it is certainly repeated if it had come through, so all of the time counts,
    up to a day.
    """
    kept = min(DAY_MS, DAY_MS if expiration_ms is None else expiration_ms)
    return kept // 2 if readable else kept


def is_forgotten(age_ms: int, expiration_ms: int | None) -> bool:
    """Whether the brokers may have forgotten an identity under which a batch may have come through so long ago.

    They count from what they have appended, and no repeat of it that they recognise begins that anew. All of their
    time, not half of it: a living process is still there when it is up, and whoever takes another identity earlier
    repeats for sure what would have been recognised. An opening cannot wait, and can look into Kafka instead.
    ``expiration_ms``: as of `identity_life_ms`.
    """
    return age_ms > (DAY_MS if expiration_ms is None else expiration_ms)


async def ask_expiration_ms(client: AIOKafkaClient, server: str) -> int | None:
    """What a broker says; None where it says nothing, within `ASK_LIMIT`: not everybody may read its settings.

    The one at ``server``, which has answered just now, where it is known by that address: another one may be frozen.
    """
    plain = server.replace("[", "").replace("]", "")  # around an IPv6 address
    answering = [one.nodeId for one in client.cluster.brokers() if f"{one.host}:{one.port}" == plain]
    node = answering[0] if answering else client.get_random_node()
    if node is None:
        return None
    answer: Any = None
    with suppress(KafkaError, TimeoutError, OSError):
        async with asyncio.timeout(ASK_LIMIT):
            answer = await client.send(node, DescribeConfigsRequest([(_BROKER, str(node), [SETTING])]))
    for error_code, _, _, _, entries in answer.resources if answer is not None else ():
        for name, value, *_ in entries or ():
            if error_code == 0 and name == SETTING:
                return _milliseconds(value)
    return None


def _milliseconds(value: str | None) -> int | None:
    """None where it is not a positive number: what only speaks Kafka's protocol may say anything.

    A number of 18 digits fits the checkpoint, and is more than any machine lives.
    """
    if value is None or len(value) > _DIGITS or not (value.isascii() and value.isdigit()):
        return None
    return int(value) or None
