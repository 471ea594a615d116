"""Brokers die while a batch of a dead process is sent again: it stands there once, and everything behind it in order.

The batches of the first process are appended in every lane, and their answers are lost: whoever sends them under
another identity makes repeats. Then its successor comes, and the brokers die under it.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.flights import LANES, die_unanswered
from tests.crash.scenario import Scenario, Step
from tests.support.broker import Cluster, KafkaCluster
from tests.support.detour import Detour
from tests.support.node import Node

pytestmark = pytest.mark.timeout(240)

WRITTEN = 2  # requests of the successor that brokers have by then, of which it has read no answer
GOES_ON_S = 0.5  # it sees that its connections are gone, and sends once more


def kill_all(cluster: Cluster) -> None:
    restart(cluster, *cluster.nodes)


def roll(cluster: Cluster) -> None:
    for node in cluster.nodes:
        restart(cluster, node)


def restart(cluster: Cluster, *nodes: Node) -> None:
    for node in nodes:
        node.kill()
    for node in nodes:
        node.start()
    cluster.wait_ready()


@pytest.mark.parametrize("fault", [kill_all, roll])
def test_brokers_that_die_while_batches_are_sent_again(
    detoured: KafkaCluster, detour: Detour, tmp_path: Path, fault: Callable[[Cluster], None]
) -> None:
    scenario = Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers)
    die_unanswered(scenario, detour)
    steps: list[Step] = [("publish", {"count": 600, "rate": 1_000}), ("wait", {})]
    child = scenario.life(*steps, still=("after the send", WRITTEN))
    child.wait_still()
    fault(detoured)
    child.go_on()
    child.wait_for("resumed")  # so what it had sent was a batch of the process before
    time.sleep(GOES_ON_S)
    scenario.kill(child)
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)
