"""What keeps some partitions from getting through while the others are well: the last of three nodes is harmed.

The others stand on the first two nodes, on as many of them as those that are stuck have replicas. A partition that
stands on the harmed node alone has no leader then; of two replicas the other one leads, and is alone in sync, which is
below ``min.insync.replicas``: at once, or once the cluster takes the harmed node for dead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature

from aiokafka import AIOKafkaProducer

from tests.support.admin import View
from tests.support.node import Node

__all__ = ["CAUSES", "IN_SYNC", "Cause"]

IN_SYNC = 2  # replicas that have to be, where there are so many
_HARMED = 2  # the last node
_FENCED_S = 120  # seconds until the cluster takes a frozen broker for dead: three times as long as a request may take
_LAG_S = 30  # seconds after which a replica that hangs is not in sync any more: Kafka's own default
_BROKERS_IDLE_S = 600.0  # Kafka's own `connections.max.idle.ms`


@dataclass(frozen=True)
class Cause:
    """Why they are stuck."""

    name: str
    places: Mapping[int, Sequence[int]]
    """The partitions that are, and the nodes on which each stands, by their numbers from 0 on: its leader first. All
    have the same number of replicas, as Kafka wants it of a topic."""
    harm: Callable[[Node], None]
    """What is done to the last node; `KafkaCluster.heal` mends it."""
    seconds: float
    """How long a proof lets that last."""
    silent: bool = True
    """Whether at first requests to the other brokers are left without an answer, too: they lead what is stuck."""
    outlasts: Mapping[str, float] = field(default_factory=dict)
    """Time limits, in seconds: it has to last longer than each."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The brokers'."""

    @property
    def moving_s(self) -> float:
        """Seconds from the harm on in which lanes move to a session of their own.

        Where no broker answers any more, requests are given up after three seconds only.
        """
        return 10.0 if self.silent else 2.5

    @property
    def replicas(self) -> int:
        """Of each partition."""
        return len(next(iter(self.places.values())))

    def unlike(self, view: View, node_ids: Sequence[int]) -> list[str]:
        """What a node tells of the partitions that is not as it has to be by now, in words; nodes by their numbers."""
        found = []
        for partition, places in self.places.items():
            leader, in_sync = view.leaders.get(partition), view.in_sync.get(partition, frozenset())
            left = {node_ids[place] for place in places if place != _HARMED}
            if {leader} != (left or {-1}) or (left and in_sync != left):
                found.append(f"not as it has to be: {partition=} {leader=} in_sync={sorted(in_sync)}")
        return found

    def too_short(self, seconds: float) -> list[str]:
        """Which time limits so many ``seconds`` do not outlast, in words."""
        return [f"not longer than {name}: {seconds:.0f} s of {limit:.0f} s" for name, limit in self._beyond(seconds)]

    def _beyond(self, seconds: float) -> list[tuple[str, float]]:
        return [(name, limit) for name, limit in self.outlasts.items() if seconds <= limit]


def _of_clients() -> dict[str, float]:
    """Those of aiokafka, which are ours, too."""
    parameters = signature(AIOKafkaProducer).parameters
    names = ("request_timeout_ms", "metadata_max_age_ms", "connections_max_idle_ms")
    return {name: parameters[name].default / 1000 for name in names}


_LEADERLESS = Cause("leaderless", {17: [_HARMED]}, Node.kill, seconds=180.0, silent=False)
_BELOW_MIN_ISR = Cause("below_min_isr", {17: [0, _HARMED], 34: [1, _HARMED]}, Node.kill, seconds=180.0)
_FROZEN = Cause(
    "frozen",
    {17: [_HARMED, 0], 34: [1, _HARMED]},
    Node.pause,
    seconds=660.0,
    outlasts={
        **_of_clients(),
        "the limit for a connection": 10.0,
        "the limit for metadata": 10.0,
        "the stay of a suspect": 60.0,
        "the second session's idleness": 60.0,
        "the pause between two trials": 60.0,
        "the rest of a stalled lane": 30.0,
        "broker.session.timeout.ms": _FENCED_S,
        "replica.lag.time.max.ms": _LAG_S,
        "the brokers' connections.max.idle.ms": _BROKERS_IDLE_S,
    },
    settings={
        "broker.session.timeout.ms": str(_FENCED_S * 1000),  # it leads on, and answers nothing, until then
        "replica.lag.time.max.ms": str(_LAG_S * 1000),
    },
)

CAUSES: Mapping[str, Cause] = {cause.name: cause for cause in (_LEADERLESS, _BELOW_MIN_ISR, _FROZEN)}
