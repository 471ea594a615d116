"""Packets of a publishing process are dropped, it is killed, and the network comes back: its kernel delivers late.

As `test_delayed_batches`, with the real thing that is imitated there: retransmissions of a TCP connection that no
process owns any more.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.flights import BATCHES_BYTES, LANES, MORE_THAN_REMEMBERED, ready, take_off
from tests.crash.scenario import Scenario
from tests.support.broker import KafkaCluster
from tests.support.detour import Detour
from tests.support.namespace import Namespace, not_installed, why_impossible

pytestmark = pytest.mark.timeout(240)

_HANDED_OVER_S = 0.5  # from the beginning of a flight until the kernel has it


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    missing = not_installed()
    if missing is not None:
        pytest.skip(missing)
    impossible = why_impossible()
    if impossible is not None:
        pytest.skip(f"this kernel grants no network namespace: {impossible}")
    with Namespace() as namespace:
        yield namespace


@pytest.fixture(scope="module")
def cluster(namespace: Namespace) -> Iterator[KafkaCluster]:
    """Three brokers, reached from inside the namespace by a detour that listens at the outer end of its cable."""
    with KafkaCluster(3, detour_host=namespace.address) as cluster:
        yield cluster


@pytest.fixture
def detour(cluster: KafkaCluster) -> Iterator[Detour]:
    with Detour(cluster.detour_routes) as detour:
        yield detour


@pytest.fixture
def scenario(cluster: KafkaCluster, detour: Detour, namespace: Namespace, tmp_path: Path) -> Scenario:
    return Scenario(cluster, tmp_path, lanes=LANES, servers=cluster.detour_servers, prefix=namespace.prefix)


def die_cut_off(scenario: Scenario, namespace: Namespace) -> None:
    """Publish, with the cable cut before anything of it is sent."""
    child = ready(scenario)
    namespace.cut()
    take_off(child)
    time.sleep(_HANDED_OVER_S)
    scenario.kill(child)


def test_what_the_kernel_delivers_for_a_dead_process_is_not_appended_behind_its_successors(
    scenario: Scenario, namespace: Namespace, detour: Detour
) -> None:
    """The successor has another way to the brokers, and is done before the network is back."""
    die_cut_off(scenario, namespace)
    outside = scenario.cluster.bootstrap_servers
    scenario.finish(scenario.life(*MORE_THAN_REMEMBERED, servers=outside, prefix=()))
    before = detour.count()
    namespace.mend()
    detour.wait_carried(before + BATCHES_BYTES)  # else nothing was delayed
    detour.release()
    verdict = scenario.verdict(servers=outside, prefix=())
    assert verdict.ok, str(verdict)


def test_a_restart_while_packets_are_dropped_and_the_network_coming_back_under_it(
    scenario: Scenario, namespace: Namespace, detour: Detour
) -> None:
    die_cut_off(scenario, namespace)
    successor = scenario.life(*MORE_THAN_REMEMBERED)
    successor.wait_for("publish")
    time.sleep(1)
    detour.hold()  # the dead process's connections: the successor has none yet
    namespace.mend()
    detour.wait_held(BATCHES_BYTES)  # else nothing was delayed
    detour.release()
    scenario.finish(successor)
    verdict = scenario.verdict()
    assert verdict.ok, str(verdict)
