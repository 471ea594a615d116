"""What all stand-ins for the session have in common: connected at once, without a broker."""

import asyncio

from aiorecover.delivery.lane import Identity
from aiorecover.delivery.session import Session

__all__ = ["StandIn"]


class StandIn(Session):
    """Put a subclass in the place of `Session`: what it must say itself is `send` and `partitions`."""

    def start(self) -> None:
        self.connect()

    def connect(self) -> None:
        self.state = "connected"
        self._connected.set()
        self.rebuilds += 1
        asyncio.get_running_loop().call_soon(self._on_metadata)

    async def close(self) -> None:
        self._closing = True

    async def identity(self) -> Identity:
        return Identity(1, 0)

    def available(self, topic: str) -> frozenset[int]:
        return self.partitions(topic)

    async def discover(self) -> None:
        self._on_metadata()
