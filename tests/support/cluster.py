"""The interface of a Kafka cluster for tests, wherever it runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from tests.support import admin
from tests.support.node import Node

__all__ = ["BrokerUnavailableError", "Cluster", "ExternalKafka", "TopicFactory"]

_READY_WITHIN_S = 60.0
_TOPIC_WITHIN_S = 30.0


class BrokerUnavailableError(RuntimeError):
    """There is no Kafka that does what was asked for."""


class Cluster(ABC):
    """A cluster of `size` nodes. Every method is an ordinary call that blocks: `to_thread` for coroutines."""

    can_kill = False
    """Whether `nodes` are there to be killed, paused and restarted."""

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """`host:port,host:port`, for any client."""

    @property
    @abstractmethod
    def description(self) -> str:
        """For people: `real Kafka 4.2.1, 1 node(s), local jars`."""

    @abstractmethod
    def start(self) -> None:
        """Return when the cluster is ready."""

    @abstractmethod
    def stop(self) -> None:
        """Take everything away again; harmless where nothing is running."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes, by their number from 0 on."""
        raise BrokerUnavailableError(
            f"nodes of this cluster cannot be killed or paused: use the local jars (java, and no "
            f"AIORECOVER_TEST_BOOTSTRAP_SERVERS) for this test: cluster={self.description}"
        )

    def heal(self) -> None:  # noqa: B027 - right as it is where nodes cannot be harmed
        """Resume, restart and await whatever a test left paused or dead."""

    def wait_ready(self, timeout_s: float = _READY_WITHIN_S) -> None:
        """Wait until all nodes that should answer do so, and agree which nodes there are."""
        admin.run(admin.until(self._settled, timeout_s=timeout_s, what=f"{self.description} is not ready"))

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Return when every node knows a leader for each partition."""
        copies = min(3, self.size) if replication is None else replication
        admin.run(admin.create_topic(self.bootstrap_servers, name, partitions, copies, config or {}))

        async def has_leaders() -> bool | None:
            views = await admin.ask_every_node(self.bootstrap_servers, name)
            all_led = all(
                len(view.leaders) == partitions and min(view.leaders.values()) >= 0 for view in views.values()
            )
            return all_led or None

        admin.run(admin.until(has_leaders, timeout_s=_TOPIC_WITHIN_S, what=f"{name} has no leaders"))

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader's node id of each partition (-1: none), as one of the nodes sees it."""

        async def ask() -> dict[int, int] | None:
            views = await admin.ask_every_node(self.bootstrap_servers, topic)
            return next((dict(view.leaders) for view in views.values() if view.leaders), None)

        return admin.run(admin.until(ask, timeout_s=_TOPIC_WITHIN_S, what=f"nobody knows {topic}"))

    async def _settled(self) -> bool | None:
        views = await admin.ask_every_node(self.bootstrap_servers)
        everybody = frozenset(views)
        agreed = all(view.brokers == everybody for view in views.values())
        return (agreed and self._expects(everybody)) or None

    def _expects(self, brokers: frozenset[int]) -> bool:
        return len(brokers) >= self.size


class ExternalKafka(Cluster):
    """A cluster that runs already: it is not started and stopped here, and its nodes are not killed."""

    def __init__(self, bootstrap_servers: str, size: int) -> None:
        super().__init__(size)
        self._bootstrap_servers = bootstrap_servers

    @property
    def bootstrap_servers(self) -> str:
        return self._bootstrap_servers

    @property
    def description(self) -> str:
        return f"Kafka at {self._bootstrap_servers}, {self.size} node(s) asked for, from the environment"

    def start(self) -> None:
        self.wait_ready()

    def stop(self) -> None:
        """It goes on: it is not ours."""


class TopicFactory(Protocol):
    """The type of the fixture `topic`."""

    def __call__(
        self,
        cluster: Cluster,
        partitions: int = 6,
        *,
        replication: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic whose name no other test has, and return the name."""
