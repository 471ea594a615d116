"""Kafka in containers, where a Docker engine answers but there is no Java.

The containers get the same command and the same settings as local nodes: of the image only a Java and the
jars are used, so that an image made by hand (AIORECOVER_TEST_KAFKA_IMAGE) does as well as the published one.
"""

import contextlib
import gc
import os
import warnings
from collections.abc import Mapping

import docker
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tests.support.cluster import BrokerUnavailableError, Cluster
from tests.support.ports import ReservedPorts
from tests.support.settings import (
    CONTROLLER,
    FORMAT,
    SERVER,
    new_cluster_id,
    properties_text,
    quick_settings,
    voters,
)

__all__ = ["DockerKafka", "docker_answers"]

_IMAGE = os.environ.get("AIORECOVER_TEST_KAFKA_IMAGE", "apache/kafka:4.2.1")
_JAVA = f"java -Xmx384m -cp '{os.environ.get('AIORECOVER_TEST_KAFKA_LIBS', '/opt/kafka/libs')}/*'"
_CONTROLLER_PORT = 9093
_INTERNAL_PORT = 9094
_START = f"""
printf %s "$PROPERTIES" > /tmp/server.properties &&
{_JAVA} {FORMAT} format -t "$CLUSTER_ID" -c /tmp/server.properties &&
exec {_JAVA} {SERVER} /tmp/server.properties
"""


def docker_answers() -> bool:
    """Whether there is a Docker engine."""
    with warnings.catch_warnings():
        # The client leaves a socket that could not connect to the garbage collector, which complains.
        warnings.simplefilter("ignore", ResourceWarning)
        answered = _ping()
        gc.collect()
    return answered


def _ping() -> bool:
    try:
        with contextlib.closing(docker.from_env(timeout=3)) as client:
            return bool(client.ping())
    except (DockerException, OSError):
        return False


class DockerKafka(Cluster):
    """One container a node, in a network of their own, each with one port of 127.0.0.1."""

    def __init__(self, size: int = 1, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(size)
        self._settings = dict(settings or {})
        self._ports: ReservedPorts | None = None
        self._network: Network | None = None
        self._containers: list[DockerContainer] = []

    @property
    def bootstrap_servers(self) -> str:
        if self._ports is None:
            raise BrokerUnavailableError("this cluster is not started")
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.numbers)

    @property
    def description(self) -> str:
        return f"real Kafka, {self.size} node(s), Docker image {_IMAGE}"

    def start(self) -> None:
        try:
            self._ports = ReservedPorts(self.size)
            self._network = Network().create()
            cluster_id = new_cluster_id()
            for node_id, port in enumerate(self._ports.numbers, start=1):
                container = self._container(node_id, port, cluster_id, self._network)
                self._containers.append(container)
                container.start()
            self.wait_ready()
        except BaseException as error:
            error.add_note(self._logs())
            self.stop()
            raise

    def stop(self) -> None:
        for container in self._containers:
            container.stop()
        self._containers.clear()
        if self._network is not None:
            self._network.remove()
            self._network = None
        if self._ports is not None:
            self._ports.release()
            self._ports = None

    def _container(self, node_id: int, port: int, cluster_id: str, network: Network) -> DockerContainer:
        return (
            DockerContainer(_IMAGE)
            .with_network(network)
            .with_network_aliases(_host(node_id))
            # The same number inside and outside: what the broker tells its clients must hold for them.
            .with_bind_ports(port, port)
            .with_env("PROPERTIES", properties_text(*self._layers(node_id, port)))
            .with_env("CLUSTER_ID", cluster_id)
            .with_command(["/bin/sh", "-c", _START])
        )

    def _layers(self, node_id: int, port: int) -> tuple[Mapping[str, str], ...]:
        everybody = {other: f"{_host(other)}:{_CONTROLLER_PORT}" for other in range(1, self.size + 1)}
        addresses = {
            "controller.quorum.voters": voters(everybody),
            "listeners": f"CLIENTS://:{port},NODES://:{_INTERNAL_PORT},{CONTROLLER}://:{_CONTROLLER_PORT}",
            "advertised.listeners": f"CLIENTS://127.0.0.1:{port},NODES://{_host(node_id)}:{_INTERNAL_PORT}",
            "listener.security.protocol.map": f"CLIENTS:PLAINTEXT,NODES:PLAINTEXT,{CONTROLLER}:PLAINTEXT",
            "inter.broker.listener.name": "NODES",
            "log.dirs": "/tmp/kafka-data",  # noqa: S108 - in the container
        }
        return quick_settings(node_id, self.size), addresses, self._settings

    def _logs(self) -> str:
        tails = []
        for number, container in enumerate(self._containers, start=1):
            try:
                written, errors = container.get_logs()
            except DockerException as error:
                tails.append(f"node {number}: {error}")
            else:
                tails.append(f"node {number}: {(written + errors).decode(errors='replace')[-3000:]}")
        return "\n".join(tails)


def _host(node_id: int) -> str:
    return f"kafka-{node_id}"
