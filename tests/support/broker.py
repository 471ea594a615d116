"""Real Kafka for the tests: `choose_cluster(nodes)` says which, `KafkaCluster` is the one that can be killed.

In this order: the cluster that AIORECOVER_TEST_BOOTSTRAP_SERVERS names, brokers from local jars where there
is Java, containers where a Docker engine answers. Where there is none of them tests fail, they are never
skipped.

`python -m tests.support.broker` fetches what will be needed, makes what lets brokers start quickly, and says what the
choice is.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support import jars
from tests.support.classes import archive_of, sharing
from tests.support.cluster import BrokerUnavailableError, Cluster, ExternalKafka, TopicFactory
from tests.support.docker_kafka import DockerKafka, docker_answers
from tests.support.node import Node
from tests.support.ports import ReservedPorts
from tests.support.settings import (
    CONTROLLER,
    DETOUR,
    FORMAT,
    SERVER,
    Listener,
    listener_settings,
    new_cluster_id,
    properties_text,
    quick_settings,
    voters,
)

__all__ = [
    "BrokerUnavailableError",
    "Cluster",
    "DockerKafka",
    "ExternalKafka",
    "KafkaCluster",
    "TopicFactory",
    "archive_classes",
    "choose_cluster",
]

BOOTSTRAP_VARIABLE = "AIORECOVER_TEST_BOOTSTRAP_SERVERS"

# One compiler and one collector thread: a broker that starts quickly and leaves the cores to the tests.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_PLAIN = "PLAINTEXT"  # the name of the listener for clients
_FORMAT_WITHIN_S = 60
_READY_WITHIN_S = 60.0

_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = info
# Several lines for each partition at each change.
logger.state.name = state.change.logger
logger.state.level = warn
rootLogger.appenderRef.out.ref = out
"""


def choose_cluster(nodes: int = 1, settings: Mapping[str, str] | None = None) -> Cluster:
    """The cluster to test against, not started; what it consists of is fetched if need be."""
    named = os.environ.get(BOOTSTRAP_VARIABLE)
    if named:
        if settings:
            raise BrokerUnavailableError(
                f"a running cluster takes no settings: {settings=} {BOOTSTRAP_VARIABLE}={named}"
            )
        return ExternalKafka(named, nodes)
    try:
        jars.find_java()
    except jars.JavaMissingError as error:
        if docker_answers():
            return DockerKafka(nodes, settings)
        raise BrokerUnavailableError(
            f"the tests need a real Kafka: {error}. Or start a Docker engine, or name a running cluster in "
            f"{BOOTSTRAP_VARIABLE}"
        ) from error
    return KafkaCluster(nodes, settings, jars_directory=jars.broker_jars())


def archive_classes() -> None:
    """Have a broker leave its classes for those that follow, if none has yet; it takes some ten seconds."""
    archive = archive_of(jars.find_java(), jars.broker_jars())
    if archive.exists():
        return
    unfinished = archive.with_suffix(f".{os.getpid()}")
    with KafkaCluster(1, java_options=[f"-XX:ArchiveClassesAtExit={unfinished}"]) as cluster:
        cluster.nodes[0].end()
    unfinished.replace(archive)


class KafkaCluster(Cluster):
    """Combined KRaft nodes as child processes on free ports of 127.0.0.1, their data in a temporary place.

    They are gone when the process that started them is gone, however it ends. `settings` are the broker's
    own, and win over those of the tests. With `detour_host` the nodes can also be reached through a
    `tests.support.detour` that listens on that address.
    """

    can_kill = True

    def __init__(
        self,
        size: int = 1,
        settings: Mapping[str, str] | None = None,
        *,
        jars_directory: Path | None = None,
        heap_mb: int = 384,
        detour_host: str | None = None,
        java_options: Sequence[str] | None = None,
    ) -> None:
        """``java_options``: None for the brokers' classes from their archive."""
        super().__init__(size)
        self._detour_host = detour_host
        self.detour_routes: list[tuple[str, str]] = []
        self._settings = dict(settings or {})
        self._jars = jars_directory or jars.broker_jars()
        self._heap_mb = heap_mb
        self._java_options = sharing(jars.find_java(), self._jars) if java_options is None else java_options
        self._nodes: list[Node] = []
        self._undo = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        if not self._nodes:
            raise BrokerUnavailableError("this cluster is not started")
        return ",".join(node.address for node in self._nodes)

    @property
    def detour_servers(self) -> str:
        """As `bootstrap_servers`, for clients that are to take the detour; it must be there."""
        assert self.detour_routes, "this cluster was not made with a detour_host, or is not started"
        return ",".join(near for near, _ in self.detour_routes)

    @property
    def description(self) -> str:
        version = next(self._jars.glob("kafka-server-[0-9]*.jar")).stem.removeprefix("kafka-server-")
        return f"real Kafka {version}, {self.size} node(s), local jars"

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def start(self) -> None:
        assert not self._nodes, "started already"
        with ExitStack() as undo:
            self._lay_out(undo)
            try:
                self._format()
                for node in self._nodes:
                    node.start()
                self.wait_ready()
                self._refuse_dead()
            except BaseException as error:
                error.add_note(self.log_tails())
                raise
            self._undo = undo.pop_all()

    def stop(self) -> None:
        """Kill the nodes and remove their data."""
        self._undo.close()

    def wait_ready(self, timeout_s: float = _READY_WITHIN_S) -> None:
        """Wait until the nodes that run, paused ones excepted, answer and agree that they are all."""
        began_at = time.monotonic()
        for node in self._serving():
            self._wait_for_port(node, began_at + timeout_s)
        super().wait_ready(max(0.0, began_at + timeout_s - time.monotonic()))

    def heal(self) -> None:
        hurt = [node for node in self._nodes if node.paused or not node.alive]
        for node in hurt:
            if node.alive:
                node.resume()
            else:
                node.start()
        if hurt:
            self.wait_ready()

    def log_tails(self) -> str:
        """The ends of the nodes' logs, for people."""
        return "\n".join(f"--- log of {node!r}\n{node.log_tail()}" for node in self._nodes)

    def _expects(self, brokers: frozenset[int]) -> bool:
        return brokers == {node.node_id for node in self._serving()}

    def _serving(self) -> list[Node]:
        return [node for node in self._nodes if node.alive and not node.paused]

    def _wait_for_port(self, node: Node, give_up_at: float) -> None:
        """Cheaper than asking through a client, and a broker that cannot start is noticed at once."""
        host, _, port = node.address.rpartition(":")
        while node.alive and time.monotonic() < give_up_at:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise BrokerUnavailableError(f"a broker did not open its port: {node=}")

    def _refuse_dead(self) -> None:
        if len(self._serving()) < self.size:
            raise BrokerUnavailableError(f"a broker died at its start: nodes={self._nodes}")

    def _lay_out(self, undo: ExitStack) -> None:
        """Make directories and reserve ports; the janitor removes them, however this process ends."""
        ports = ReservedPorts(4 * self.size)
        undo.callback(ports.release)
        directory = Path(tempfile.mkdtemp(prefix="aiorecover-kafka-"))
        janitor = _start_janitor(directory)
        undo.callback(janitor.wait)
        undo.callback(janitor.kill)
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        undo.callback(self._kill_all)
        client_ports, controller_ports, near, far = (ports.numbers[at::4] for at in range(4))
        if self._detour_host is not None:
            pairs = zip(near, far, strict=True)
            self.detour_routes = [(f"{self._detour_host}:{here}", f"127.0.0.1:{there}") for here, there in pairs]
        controllers = {i: f"127.0.0.1:{port}" for i, port in enumerate(controller_ports, start=1)}
        for node_id, port in enumerate(client_ports, start=1):
            self._nodes.append(self._node(node_id, f"127.0.0.1:{port}", controllers, directory / str(node_id)))

    def _node(self, node_id: int, address: str, controllers: Mapping[int, str], directory: Path) -> Node:
        directory.mkdir()
        addresses = {
            "controller.quorum.voters": voters(controllers),
            "inter.broker.listener.name": _PLAIN,
            "log.dirs": str(directory / "data"),
            **listener_settings(self._listeners(node_id, address, controllers[node_id])),
        }
        layers = quick_settings(node_id, self.size), addresses, self._settings
        (directory / "server.properties").write_text(properties_text(*layers))
        (directory / "log4j2.properties").write_text(_LOGGING)
        return Node(node_id, address, directory, self._java(directory, SERVER, "server.properties"))

    def _listeners(self, node_id: int, address: str, controller: str) -> list[Listener]:
        listeners = [Listener(_PLAIN, address, address), Listener(CONTROLLER, controller, None)]
        if self.detour_routes:
            near, far = self.detour_routes[node_id - 1]
            listeners.append(Listener(DETOUR, far, near))
        return listeners

    def _java(self, directory: Path, *arguments: str) -> list[str]:
        return [
            str(jars.find_java()),
            *_JVM,
            *self._java_options,
            f"-Xmx{self._heap_mb}m",
            f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
            "-cp",
            f"{self._jars}/*",
            *arguments,
        ]

    def _format(self) -> None:
        """Prepare the nodes' directories, all at once: most of the time goes into starting Java."""
        cluster_id = new_cluster_id()
        tools = []
        for node in self._nodes:
            directory = node.log_path.parent
            command = self._java(directory, FORMAT, "format", "-t", cluster_id, "-c", "server.properties")
            with node.log_path.open("ab") as log:
                tools.append(subprocess.Popen(command, cwd=directory, stdout=log, stderr=subprocess.STDOUT))
        codes = [tool.wait(_FORMAT_WITHIN_S) for tool in tools]
        if any(codes):
            raise BrokerUnavailableError(f"could not format the brokers' directories: exit {codes=}")

    def _kill_all(self) -> None:
        for node in self._nodes:
            if node.alive:
                node.kill()
        self._nodes.clear()


def _start_janitor(directory: Path) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("janitor.py")
    return subprocess.Popen(
        # Isolated and without site-packages: it starts in a few milliseconds and needs nothing.
        [sys.executable, "-I", "-S", script, str(os.getpid()), directory],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


if __name__ == "__main__":
    try:
        chosen = choose_cluster()
        if chosen.can_kill:
            archive_classes()
        print(f"broker: {chosen.description}")
    except (BrokerUnavailableError, jars.JarsError) as error:
        sys.exit(f"broker: {error}")
