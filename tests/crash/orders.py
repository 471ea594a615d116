"""Orders, published all the time while workers move them; never far ahead of the slowest worker."""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiorecover import RecoverableProducer

__all__ = ["Orders", "key_of", "total_of"]

_KEYS: Final = 300
_PRICE: Final = 3
_RATES: Final = (500, 3_000, 12_000)  # orders a second, each for a while
_WHILE_S: Final = 1.0
_TICK_S: Final = 0.01
_BEHIND: Final = 20_000  # orders that may wait for the slowest: more than come while a worker is started


def key_of(number: int) -> bytes:
    """The key of an order, and of what is made of it."""
    return b"%d" % (number % _KEYS)


class Orders:
    """So many are ``published``, numbered from 0 on."""

    def __init__(self, servers: str, wal: Path, topic: str, seed: int, moved: Callable[[], int]) -> None:
        """``moved``: how many orders, from the first one on, the slowest worker has behind itself."""
        self.published = 0
        self._servers = servers
        self._wal = wal
        self._topic = topic
        self._rng = random.Random(f"orders {seed}")
        self._moved = moved
        self._over = False

    async def publish(self) -> None:
        """Until `end`; then all of them are in Kafka."""
        async with RecoverableProducer(self._wal, bootstrap_servers=self._servers) as producer:
            while not self._over:
                await self._publish_for_a_while(producer, self._rng.choice(_RATES))
            await producer.flush()

    def end(self) -> None:
        """No more."""
        self._over = True

    async def _publish_for_a_while(self, producer: RecoverableProducer, rate: int) -> None:
        until = time.monotonic() + _WHILE_S
        while not self._over and time.monotonic() < until:
            if self.published - self._moved() < _BEHIND:
                for _ in range(int(rate * _TICK_S)):
                    await self._publish_one(producer)
            await asyncio.sleep(_TICK_S)

    async def _publish_one(self, producer: RecoverableProducer) -> None:
        number = self.published
        self.published += 1
        order = b'{"id":%d,"price":%d,"count":%d}' % (number, _PRICE, number)
        await producer.publish(self._topic, order, key=key_of(number))


def total_of(number: int) -> int:
    """What a worker makes of an order."""
    return _PRICE * number
