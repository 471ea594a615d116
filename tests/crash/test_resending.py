"""Brokers die while a batch of a dead process is sent again: it stands there once, and everything behind it in order.

The batches of the first process are appended in every lane, and their answers are lost: whoever sends them under
another identity makes repeats. Then its successors come, and the brokers die under these.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.flights import LANES, die_unanswered
from tests.crash.scenario import Scenario
from tests.support.broker import Cluster, KafkaCluster
from tests.support.detour import Detour
from tests.support.node import Node

pytestmark = pytest.mark.timeout(240)

DELAYS_S = (0.0, 0.1)  # from the opening of a successor to the faults: connecting takes about so long


def kill_a_leader(cluster: Cluster, topic: str) -> None:
    leader = cluster.leaders(topic)[0]
    restart(cluster, *(node for node in cluster.nodes if node.node_id == leader))


def kill_all(cluster: Cluster, _: str) -> None:
    restart(cluster, *cluster.nodes)


def roll(cluster: Cluster, _: str) -> None:
    for node in cluster.nodes:
        restart(cluster, node)


def restart(cluster: Cluster, *nodes: Node) -> None:
    for node in nodes:
        node.kill()
    for node in nodes:
        node.start()
    cluster.wait_ready()


@pytest.mark.parametrize("fault", [kill_a_leader, kill_all, roll])
def test_brokers_that_die_while_batches_are_sent_again(
    detoured: KafkaCluster, detour: Detour, tmp_path: Path, fault: Callable[[Cluster, str], None]
) -> None:
    scenario = Scenario(detoured, tmp_path, lanes=LANES, servers=detoured.detour_servers)
    die_unanswered(scenario, detour)
    for delay_s in DELAYS_S:
        child = scenario.life(("publish", {"count": 600, "rate": 1_000}), ("wait", {}))
        child.wait_for("opened")
        time.sleep(delay_s)
        fault(detoured, scenario.topic)
        scenario.kill(child)
    verdict = scenario.verdict()
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.resumed > 0, "the brokers died before anything was sent again"
