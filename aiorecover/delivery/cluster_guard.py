"""Asks each broker that a client of aiokafka connects to which cluster it is, before anything is sent there.

Each connection, not each session: aiokafka connects again by itself, to an address where meanwhile another cluster may
listen, and its metadata names addresses that need not lead to the cluster that gave it.
"""

import weakref
from collections.abc import Callable
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from aiorecover.delivery.cluster import NO_ID, Cluster, WrongClusterError


class ClusterGuard:
    """Stands before the connections of one producer or consumer."""

    def __init__(self, client: AIOKafkaClient, cluster: Cluster, on_wrong: Callable[[str], None]) -> None:
        """``on_wrong``: a broker that was known is one of another cluster, of this id; the connection is closed."""
        parts: Any = client  # private ones
        self._client = parts
        self._cluster = cluster
        self._on_wrong = on_wrong
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # connections that lead to our cluster
        self._update = self._client.cluster.update_metadata
        self._connect = self._client._get_conn  # noqa: SLF001
        self._client.cluster.update_metadata = self._updated
        self._client._get_conn = self._connected  # noqa: SLF001
        self.found: str | None = None  # what the last answer said
        self.wrong: str | None = None  # what one of another cluster said

    def _updated(self, metadata: Any) -> None:
        """As aiokafka's, of our cluster only: its bootstrap asks over a connection that nobody else knows of."""
        self.found = _cluster_id(metadata)
        if not self._cluster.is_ours(self.found):
            raise WrongClusterError(self.found or NO_ID)
        self._update(metadata)

    async def _connected(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        while True:  # while one is asked, another one may take its place
            connection = await self._connect(node_id, group=group, no_hint=no_hint)
            if connection is None or connection in self._known:
                return connection
            try:
                found = _cluster_id(await connection.send(MetadataRequest([])))
            except (KafkaError, OSError):  # TimeoutError is one
                connection.close()
                return None
            if not self._is_ours(found):
                connection.close()
                self.wrong = found or NO_ID
                self._on_wrong(self.wrong)
                return None
            self._known.add(connection)

    def _is_ours(self, found: str | None) -> bool:
        """The cluster that is known, or, before one is, the one that the other brokers name."""
        agrees = found is None or self.found is None or found == self.found
        return agrees and self._cluster.is_ours(found)


def _cluster_id(metadata: Any) -> str | None:
    """None where it is not told, by brokers before 0.10.1."""
    return getattr(metadata, "cluster_id", None) or None
