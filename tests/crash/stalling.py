"""A publisher that dies beside a partition without a leader: around the stall, while records are moved and caught up.

Of twelve partitions each stands on one node alone, and only one on the node that is killed.
"""

import itertools
import os
from typing import Any, Final

from tests.crash.lives import Child
from tests.crash.scenario import FLUSH, Scenario, Step
from tests.support import admin
from tests.support.broker import Cluster
from tests.support.node import Node

__all__ = [
    "OPTIONS",
    "PARTITIONS",
    "SMALL_SLOTS",
    "STUCK",
    "heal",
    "placed_topic",
    "stalled",
    "stuck",
]

PARTITIONS = 12
STUCK = 3
OPTIONS: Final[dict[str, Any]] = {
    "max_batch_size": 16 * 1024,
    "slot_bytes": 1 << 18,
}  # what a lane may have is soon full: some 300 records
SMALL_SLOTS: Final[dict[str, Any]] = {**OPTIONS, "slot_bytes": 1 << 16}  # so that the ring goes round many times
_BEGIN: Final[list[Step]] = [("publish", {"count": 2_000}), FLUSH, ("wait", {})]


def placed_topic(cluster: Cluster, partitions: int = PARTITIONS) -> str:
    """Make the topic, or one of fewer partitions; its name."""
    name = f"placed-{os.urandom(4).hex()}"
    healthy = itertools.cycle(node.node_id for node in cluster.nodes[:2])
    replicas = {number: [next(healthy)] for number in range(partitions)}
    replicas[STUCK] = [stuck(cluster).node_id]
    admin.run(admin.create_placed_topic(cluster.bootstrap_servers, name, replicas))
    return name


def stuck(cluster: Cluster) -> Node:
    """The node of the partition that will be."""
    return cluster.nodes[2]


def heal(cluster: Cluster) -> None:
    """It is back."""
    stuck(cluster).start()
    cluster.wait_ready()


def stalled(
    scenario: Scenario,
    *then: Step,
    die: bool = True,
    options: dict[str, Any] = OPTIONS,
    **task: Any,
) -> Child:
    """A life in which a lane is stalled; its last step but ``then`` is to wait. Its node dies in it, or has before."""
    steps = [*_BEGIN, ("publish", {"count": 15_000, "rate": 6_000}), ("wait_stalled", {"lanes": 1}), ("wait", {})]
    child = scenario.life(*(steps if die else steps[len(_BEGIN) :]), *then, **options, **task)
    if die:
        child.wait_for("wait")
        stuck(scenario.cluster).kill()
        child.tell()
    child.wait_for("wait", times=2 if die else 1)
    return child
