"""The client: connections, metadata, producer ids and requests, over aiokafka's `AIOKafkaClient`.

aiokafka frames, authenticates and negotiates versions. Four things differ here: connecting to one broker holds up no
other one, failures keep their cause, refused credentials back off, and metadata is asked for named topics only.
"""

import asyncio
import contextlib
import random
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from aiorecover.errors import DeliveryError, WalDestinationError
from aiorecover.kafka.handshake import CREDENTIALS, FAILURES, Link, Names, Patience, Tokens, explain, explain_closed
from aiorecover.kafka.outcomes import outcome_of
from aiorecover.kafka.produce import Answers, ProduceRequest

__all__ = ["FAILURES", "Client", "ConnectError", "Metadata", "TopicMetadata"]

ANSWER_S = 15.0  # for a request that needs a connection first
ASK_S = 60.0
LOADING_CODES = frozenset({14, 15, 16})  # a coordinator that is loading, not there yet, or another one
LOADING_PAUSE_S = 0.1
METADATA_S = 5.0  # for one broker's answer; then another one is asked
AUTH_PAUSE_S = 10.0  # after a refused login, doubled up to the next: brokers lock accounts
AUTH_PAUSE_MAX_S = 120.0
TRANSACTION_TIMEOUT_MAX = (1 << 31) - 1  # ms that InitProducerId gets where there is no transaction


class ConnectError(DeliveryError):
    """Kafka was not reached; the message says why."""


class TopicMetadata(NamedTuple):
    """A topic as Kafka describes it: an error code, and the broker that leads each partition (-1: none)."""

    code: int
    leaders: dict[int, int]


@dataclass(slots=True)
class Metadata:
    """The cluster as it described itself last: its id, the addresses of its brokers, and topics."""

    cluster_id: str | None = None
    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)


class _Wire(AIOKafkaClient):
    """aiokafka's client, whose connections are made here."""

    def __init__(self, client: "Client", options: Mapping[str, Any]) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._client = client
        self._making: dict[Any, asyncio.Task[Any]] = {}

    def force_metadata_update(self) -> Any:
        """Take note that a connection was lost: metadata are asked for when a lane needs them."""
        self._client.stale = True

    def get_random_node(self) -> int | None:
        """Return any broker."""
        nodes = list(self._client.metadata.brokers)
        return random.choice(nodes) if nodes else None

    async def _get_conn(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        del no_hint
        key = (node_id, group)
        connection = self._conns.get(key)
        if connection is not None:
            if connection.connected():
                return connection
            del self._conns[key]
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.get_running_loop().create_task(self._make(node_id, group))
            task.add_done_callback(lambda _: self._making.pop(key, None))
        return await asyncio.shield(task)

    async def _make(self, node_id: Any, group: Any) -> Any:
        address = self._client.metadata.brokers.get(node_id)
        if address is None:
            self._client.stale = True
            return None
        connection = await self._client.connect_to(*address, advertised=True, on_close=self._on_connection_closed)
        if connection is None or await self._client.ask_cluster(connection) is None:
            return None
        self._conns[node_id, group] = connection
        return connection

    async def close(self) -> None:
        """Close every connection, those that are being made too."""
        making = list(self._making.values())
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        await super().close()  # type: ignore[no-untyped-call]


class Client:
    """One client for all of a producer's delivery.

    Attributes:
        metadata: the last answers of Kafka.
        stale: a partition or a broker may have moved since.
        cause: why Kafka, or the broker asked last, could not be reached; None: it could.

    """

    def __init__(
        self, options: Mapping[str, Any], check_cluster: Callable[[str | None], None] = lambda _: None
    ) -> None:
        """``options``: aiokafka's, for its client; ``check_cluster`` raises where a cluster's id is a wrong one."""
        self.options = dict(options)
        if self.options.get("sasl_oauth_token_provider") is not None:
            self.options["sasl_oauth_token_provider"] = Tokens(self.options["sasl_oauth_token_provider"])
        self.options["metadata_max_age_ms"] = TRANSACTION_TIMEOUT_MAX
        self.metadata = Metadata()
        self.stale = True
        self.cause: str | None = None
        self._check_cluster = check_cluster
        self._wire: _Wire | None = None
        self._names = Names()
        self._patience = Patience()
        self._auth_pause = AUTH_PAUSE_S
        self._not_before = 0.0

    @property
    def wire(self) -> Any:
        """The client of aiokafka; made on the loop it is first used in."""
        if self._wire is None:
            self._wire = _Wire(self, self.options)
        return self._wire

    @property
    def pause(self) -> float:
        """Seconds for which no connection is tried, since credentials have failed; 0 where one may be."""
        return max(0.0, self._not_before - asyncio.get_running_loop().time())

    async def connect_to(self, host: str, port: int, *, advertised: bool, on_close: Any = None) -> Link | None:
        """Return a new connection, or None with `cause` set."""
        if self.pause:
            return None
        link = Link(host, port, self.options, on_close or self.wire._on_connection_closed)  # noqa: SLF001
        try:
            await link.open(self._patience.limit_s((host, port)), self._names)
        except (*FAILURES, AssertionError, ValueError, struct.error) as error:
            self.cause = explain(error, link, self.options, advertised=advertised)
            self._patience.enter((host, port), slow=isinstance(error, TimeoutError))
            if isinstance(error, CREDENTIALS) and not self.pause:
                pause = self._auth_pause * random.uniform(1.0, 1.2)
                self._not_before = asyncio.get_running_loop().time() + pause
                self._auth_pause = min(2 * self._auth_pause, AUTH_PAUSE_MAX_S)
            return None
        self._auth_pause = AUTH_PAUSE_S
        self._patience.enter((host, port), slow=False)
        return link

    async def ask_cluster(self, link: Link) -> Any:
        """Return the metadata of a new connection's cluster; else close the connection, set `cause` and return None.

        It is the first request on a connection: nothing is sent to a wrong cluster.
        """
        try:
            answer = await asyncio.wait_for(link.send(MetadataRequest([])), METADATA_S)
            self._check_cluster(_cluster_id(answer))
        except WalDestinationError as error:
            self.cause = str(error)
        except TimeoutError as error:
            self.cause = explain(error, link, self.options, advertised=False)
        except FAILURES:
            self.cause = explain_closed(link)
        except BaseException:
            link.close()  # type: ignore[no-untyped-call]
            raise
        else:
            return answer
        link.close()  # type: ignore[no-untyped-call]
        return None

    async def bootstrap(self) -> None:
        """Reach one of the servers, and learn the brokers from it.

        Raises:
            ConnectError: none of them was reached, or answered, or belongs to the right cluster.

        """
        causes: dict[str, str] = {}
        hosts = list(self.wire.hosts)
        random.shuffle(hosts)
        for host, port, _ in hosts:
            link = await self.connect_to(host, port, advertised=False)
            answer = None if link is None else await self.ask_cluster(link)
            if link is not None and answer is not None:
                link.close()  # type: ignore[no-untyped-call]
                self._learn(answer, set())
                if self.metadata.brokers:
                    self.cause = None
                    return
                self.cause = f"{host}:{port} knows no brokers yet"
            causes[f"{host}:{port}"] = self.cause or "the credentials were refused a moment ago"
            if self.pause:
                break
        self.cause = _worst(causes)
        raise ConnectError(f"kafka is not reached: {self.cause}", persisted="not")

    async def refresh(self, topics: Iterable[str], *, create: bool) -> Metadata:
        """Ask for the leaders of these topics and no others; the answer is `metadata`, too.

        ``create``: a topic that is not there is made, where the cluster makes topics by itself.

        Raises:
            ConnectError: no broker answered.
            WalDestinationError: another cluster did.

        """
        wanted = set(topics)
        nodes = list(self.metadata.brokers)
        random.shuffle(nodes)
        for node in nodes:
            try:
                request = MetadataRequest(sorted(wanted), allow_auto_topic_creation=create)
                answer = await asyncio.wait_for(self.wire.send(node, request), METADATA_S)
            except FAILURES:
                continue
            self._learn(answer, wanted)
            self.stale = False
            return self.metadata
        await self.bootstrap()  # the addresses may all have changed
        self.metadata.topics = {}
        raise ConnectError("kafka is not reached: the brokers known before do not answer", persisted="not")

    def _learn(self, answer: Any, wanted: set[str]) -> None:
        found = _cluster_id(answer)
        self._check_cluster(found)
        self.metadata.cluster_id = found or self.metadata.cluster_id
        self.metadata.brokers = {broker[0]: (broker[1], broker[2]) for broker in answer.brokers}
        for entry in answer.topics:
            code, topic, partitions = entry[0], entry[1], entry[-1]
            if topic in wanted:
                self.metadata.topics[topic] = TopicMetadata(code, {one[1]: one[2] for one in partitions})

    async def new_producer(self, transactional_id: str | None = None, timeout_ms: int | None = None) -> tuple[int, int]:
        """Return a new Kafka producer id and epoch, from any broker.

        Raises:
            ConnectError: no broker gave one.

        """
        limit = timeout_ms or TRANSACTION_TIMEOUT_MAX
        request = InitProducerIdRequest(transactional_id, limit)  # type: ignore[arg-type]  # null: no transactions
        until = asyncio.get_running_loop().time() + ANSWER_S
        while True:
            codes = set()
            for node in self.metadata.brokers:
                with contextlib.suppress(*FAILURES):
                    answer = await asyncio.wait_for(self.wire.send(node, request), ANSWER_S)
                    if answer.error_code == 0:
                        return answer.producer_id, answer.producer_epoch
                    codes.add(answer.error_code)
                    self.cause = f"kafka gives no producer id: {outcome_of(answer.error_code).reason}"
            if not codes & LOADING_CODES or asyncio.get_running_loop().time() > until:
                cause = self.cause or "no broker answers the request for a producer id"
                raise ConnectError(f"kafka is not reached: {cause}", persisted="not")
            await asyncio.sleep(LOADING_PAUSE_S)  # a broker that has just started

    async def produce(self, node: int, request: ProduceRequest, *, apart: bool, timeout_s: float) -> Answers:
        """Send a request, once; ``apart``: through the second connection to the broker.

        Raises:
            NodeNotReadyError: nothing was sent.
            KafkaError, OSError, RuntimeError, TimeoutError: it may have been.

        """
        group = ConnectionGroup.COORDINATION if apart else ConnectionGroup.DEFAULT
        try:
            answer: Answers = await asyncio.wait_for(self.wire.send(node, request, group=group), timeout_s)
        finally:
            request.forget()
        return answer

    async def answers(self, node: int) -> bool:
        """Whether a broker answers a small question at once."""
        try:
            await asyncio.wait_for(self.wire.send(node, MetadataRequest([])), METADATA_S)
        except FAILURES:
            return False
        return True

    async def coordinator(self, kind: CoordinationType, key: str) -> int:
        """Return the node that coordinates a group or a transactional id.

        Raises:
            KafkaError, OSError, RuntimeError, TimeoutError: it is not known yet.

        """
        node: int = await asyncio.wait_for(self.wire.coordinator_lookup(kind, key), ANSWER_S)
        return node

    async def ask(self, node: int, request: Any) -> Any:
        """Send any other request, through the second connection."""
        return await asyncio.wait_for(self.wire.send(node, request, group=ConnectionGroup.COORDINATION), ASK_S)

    async def close(self) -> None:
        """Close every connection; a second time it does nothing."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()


def _cluster_id(answer: Any) -> str | None:
    return answer.cluster_id if answer.API_VERSION >= 2 else None  # noqa: PLR2004 - since version 2


def _worst(causes: Mapping[str, str]) -> str:
    """Return one cause, that of a wrong cluster first, then by address: so the log repeats one line."""
    if not causes:
        return "bootstrap_servers names no server"
    return min(causes.items(), key=lambda one: ("cluster" not in one[1], one[0]))[1]
