"""A request that is on its way when its process is gone, and comes to the broker later."""

import socket
from collections.abc import Callable
from typing import Any

from aiokafka.conn import AIOKafkaConnection

__all__ = ["Late"]


class Late:
    """A request that the network holds up: its connection outlives the process."""

    def __init__(self, connection: AIOKafkaConnection, write: Callable[[], Any]) -> None:
        """``write`` it into the connection, which is one to nowhere meanwhile."""
        writer: Any = connection._writer
        self._socket: socket.socket = writer.get_extra_info("socket").dup()
        self._bytes = b""
        self.arrived = False
        connection._writer = self
        try:
            write().close()
            connection._requests.pop()  # nobody waits for the answer
        finally:
            connection._writer = writer

    def write(self, data: bytes) -> None:
        self._bytes = data

    def arrive(self) -> None:
        self._socket.setblocking(True)
        self._socket.sendall(self._bytes)
        self.arrived = True

    def wait_answered(self, limit: float) -> None:
        """Until the broker has done what it asked for, or has refused it: for so many seconds at most."""
        self._socket.settimeout(limit)
        assert self._socket.recv(1), "the broker has closed the connection"

    def close(self) -> None:
        self._socket.close()
