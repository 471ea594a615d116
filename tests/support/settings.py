"""The settings that every broker of the tests gets, wherever it runs."""

import base64
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "CONTROLLER",
    "DETOUR",
    "FORMAT",
    "SERVER",
    "Listener",
    "listener_settings",
    "new_cluster_id",
    "properties_text",
    "quick_settings",
    "voters",
]

CONTROLLER = "CONTROLLER"  # the name of the listener that controllers talk to each other through
DETOUR = "DETOUR"  # the name of the listener that is reached through `tests.support.detour`
SERVER = "kafka.Kafka"
FORMAT = "kafka.tools.StorageTool"

_SMALL = {
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.partitions": "6",
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    # The default of 128 MiB is touched at the start and makes up a third of a small broker.
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
    # A deleted topic's files stay for a minute by default; tests delete many.
    "log.segment.delete.delay.ms": "1000",
    # Records stamped more than a week ago would be deleted by the next look for them, which comes every five minutes.
    "log.retention.ms": "-1",
}
_QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    # A killed broker is noticed, and a restarted one taken back, when its session has run out: 9 s by
    # default.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "250",
    # So quickly, at the most, does a killed controller get a successor: about half of the defaults.
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.election.backoff.max.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    # A follower that hangs leaves the in-sync replicas after this: 30 s by default.
    "replica.lag.time.max.ms": "3000",
}


def quick_settings(node_id: int, size: int) -> dict[str, str]:
    """Small, and quick to notice and to mend faults; replication as far as the number of nodes allows."""
    replication, in_sync = str(min(3, size)), str(min(2, size))
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.listener.names": CONTROLLER,
        "default.replication.factor": replication,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": in_sync,
        **_SMALL,
        **_QUICK,
    }


@dataclass(frozen=True)
class Listener:
    """A port of a node."""

    name: str
    address: str
    """Where the node listens."""
    advertised: str | None
    """The address that its clients are given; None for a listener without clients."""
    protocol: str = "PLAINTEXT"


def listener_settings(listeners: Sequence[Listener]) -> dict[str, str]:
    """A node's ports."""
    advertised = [f"{one.name}://{one.advertised}" for one in listeners if one.advertised is not None]
    return {
        "listeners": ",".join(f"{one.name}://{one.address}" for one in listeners),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(f"{one.name}:{one.protocol}" for one in listeners),
    }


def new_cluster_id() -> str:
    """A random id in Kafka's notation."""
    noise = uuid.uuid4().bytes
    # A first bit of 0 makes the first character a letter: StorageTool takes a leading "-" for an option.
    return base64.urlsafe_b64encode(bytes([noise[0] & 0x7F]) + noise[1:]).decode().rstrip("=")


def voters(addresses: Mapping[int, str]) -> str:
    """The controllers, for `controller.quorum.voters`."""
    return ",".join(f"{node_id}@{address}" for node_id, address in addresses.items())


def properties_text(*layers: Mapping[str, str]) -> str:
    """A properties file; what a later layer says wins."""
    merged: dict[str, str] = {}
    for layer in layers:
        merged.update(layer)
    return "".join(_lines(merged.items()))


def _lines(items: Iterable[tuple[str, str]]) -> Iterable[str]:
    for name, value in items:
        # In a properties file the backslash escapes, and a value ends with its line.
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
        yield f"{name}={escaped}\n"
