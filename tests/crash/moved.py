"""What workers have moved so far, as a plain consumer sees it while they do."""

import json
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

__all__ = ["Moved"]

_POLL_MS: Final = 20


class Moved:
    """Of each worker how far it has come; what stands in a transaction counts before it is committed.

    Which worker it was is told by the partition: a record stays in the one of its order.
    """

    def __init__(self, servers: str, topic: str, partitions: int, workers: int) -> None:
        """Nothing is moved yet."""
        self.newest_ms = [0] * workers
        """When the worker made the newest record that is there."""
        self._servers = servers
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._orders: set[int] = set()
        self._highest = [-1] * workers

    @property
    def count(self) -> int:
        """How many orders, each counted once."""
        return len(self._orders)

    @property
    def behind_the_slowest(self) -> int:
        """How far the slowest has come in the orders; whatever it has left out."""
        return min(self._highest) + 1

    async def watch(self) -> None:
        """Until it is cancelled."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._servers, enable_auto_commit=False)
        await consumer.start()
        try:
            consumer.assign(self._places)
            for place in self._places:
                consumer.seek(place, 0)
            while True:
                for place, records in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
                    worker = place.partition % len(self.newest_ms)
                    numbers = [json.loads(record.value or b"{}")["id"] for record in records]
                    self._orders.update(numbers)
                    self._highest[worker] = max(self._highest[worker], *numbers)
                    self.newest_ms[worker] = max(self.newest_ms[worker], *(record.timestamp for record in records))
        finally:
            await consumer.stop()
