"""Everything that is asked of Kafka, over aiokafka's `AIOKafkaClient`: connections, metadata, producer ids, requests.

aiokafka frames, authenticates and negotiates versions. What is changed here: connecting to one broker holds up no other
one, failures are kept with their cause, credentials that fail back off, and metadata is asked for named topics only.
"""

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka import errors as kafka
from aiokafka.abc import AbstractTokenProvider
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from aiorecover.errors import DeliveryError
from aiorecover.kafka.produce import Answers, ProduceRequest

CONNECT_S = 10.0  # TCP, TLS and the negotiation of versions
TOKEN_S = 60.0  # beside that, what a token provider may take: some ask a person, or a slow identity service
METADATA_S = 5.0  # for one broker's answer; then another one is asked
AUTH_PAUSE_S = 10.0  # after a refused login, doubled up to the next: brokers lock accounts
AUTH_PAUSE_MAX_S = 120.0
TRANSACTION_TIMEOUT_MAX = (1 << 31) - 1  # what InitProducerId gets where there is no transaction
FAILURES = (kafka.KafkaError, OSError, RuntimeError, asyncio.TimeoutError)  # RuntimeError: uvloop's closed transports

_AUTH = (
    kafka.AuthenticationFailedError,
    kafka.SaslAuthenticationFailed,
    kafka.UnsupportedSaslMechanismError,
    kafka.IllegalSaslStateError,
    kafka.AuthenticationMethodNotSupported,
)


class TokenError(kafka.KafkaError):
    """The caller's token provider gave no token."""


class ConnectError(DeliveryError):
    """Kafka was not reached; the message says why."""


class TopicMetadata(NamedTuple):
    """What Kafka says of a topic: an error code, and who leads each partition (-1: nobody)."""

    code: int
    leaders: dict[int, int]


@dataclass(slots=True)
class Metadata:
    """What Kafka says of itself."""

    cluster_id: str | None = None
    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)


class _Tokens(AbstractTokenProvider):
    """The caller's token provider, with a limit, and named where it fails."""

    def __init__(self, provider: AbstractTokenProvider) -> None:
        self._provider = provider

    async def token(self) -> str:
        try:
            async with asyncio.timeout(TOKEN_S):
                found = await self._provider.token()
        except TimeoutError:
            raise TokenError(f"sasl_oauth_token_provider gave no token within {TOKEN_S:.0f} s") from None
        except Exception as error:
            raise TokenError(f"sasl_oauth_token_provider raised {type(error).__qualname__}") from error
        if not isinstance(found, str) or not found:
            raise TokenError(f"sasl_oauth_token_provider gave no text type={type(found).__qualname__}")
        return found

    def extensions(self) -> dict[str, str]:
        found: dict[str, str] = self._provider.extensions()
        return found


class _Wire(AIOKafkaClient):
    """aiokafka's client, whose connections are made here."""

    def __init__(self, client: "Client", options: Mapping[str, Any]) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._client = client
        self._making: dict[Any, asyncio.Task[Any]] = {}

    def force_metadata_update(self) -> Any:
        """A connection was lost: the client asks for metadata when a lane needs them."""
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
        if connection is not None:
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
        metadata: as Kafka said last.
        stale: something has moved since.
        cause: why Kafka, or the broker asked last, could not be reached; None: it could.

    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """``options``: aiokafka's, for its client."""
        self.options = dict(options)
        if self.options.get("sasl_oauth_token_provider") is not None:
            self.options["sasl_oauth_token_provider"] = _Tokens(self.options["sasl_oauth_token_provider"])
        self.options["metadata_max_age_ms"] = TRANSACTION_TIMEOUT_MAX
        self.metadata = Metadata()
        self.stale = True
        self.cause: str | None = None
        self._wire: _Wire | None = None
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

    async def connect_to(self, host: str, port: int, *, advertised: bool, on_close: Any = None) -> Any:
        """Return a new connection, or None with `cause` set."""
        if self.pause:
            return None
        wire = self.wire
        limit = CONNECT_S + (TOKEN_S if self.options.get("sasl_oauth_token_provider") is not None else 0.0)
        names = ("client_id", "ssl_context", "security_protocol", "sasl_mechanism", "sasl_plain_username")
        more = ("sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name")
        options = {
            name: self.options[name] for name in (*names, *more, "sasl_oauth_token_provider") if name in self.options
        }
        try:
            connection = await asyncio.wait_for(
                create_conn(
                    host,
                    port,
                    request_timeout_ms=self.options.get("request_timeout_ms", 40_000),
                    max_idle_ms=self.options.get("connections_max_idle_ms", 540_000),
                    on_close=on_close or wire._on_connection_closed,  # noqa: SLF001
                    **options,
                ),
                limit,
            )
        except (*FAILURES, TokenError, AssertionError) as error:
            self.cause = self._explain(error, host, port, advertised=advertised)
            if isinstance(error, (*_AUTH, TokenError)):
                pause = self._auth_pause * random.uniform(1.0, 1.2)
                self._not_before = asyncio.get_running_loop().time() + pause
                self._auth_pause = min(2 * self._auth_pause, AUTH_PAUSE_MAX_S)
            return None
        self._auth_pause = AUTH_PAUSE_S
        return connection

    def _explain(self, error: BaseException, host: str, port: int, *, advertised: bool) -> str:
        address = f"{host}:{port}"
        if isinstance(error, TokenError):
            return str(error.args[0])
        if isinstance(error, _AUTH):
            return f"kafka refuses the credentials: mend them broker={address} error={error}"
        if isinstance(error, ssl.SSLError):
            return f"no TLS with the broker: check ssl_context and the port broker={address} error={error.reason}"
        if isinstance(error, (kafka.KafkaConnectionError, struct.error, AssertionError)):
            secured = str(self.options.get("security_protocol", "PLAINTEXT")).endswith("SSL")
            hint = "it is not Kafka" if secured else "it wants TLS (security_protocol), or it is not Kafka"
            return f"the broker closes the connection before it answers: perhaps {hint} broker={address}"
        reason = _reason(error)
        if advertised:
            return f"kafka advertises {address}, which cannot be reached: {reason}"
        return f"{address} cannot be reached: {reason}"

    async def bootstrap(self) -> None:
        """Reach one of the servers, and learn the brokers from it.

        Raises:
            ConnectError: none of them was reached, or answered.

        """
        causes = []
        hosts = list(self.wire.hosts)
        random.shuffle(hosts)
        for host, port, _ in hosts:
            connection = await self.connect_to(host, port, advertised=False)
            if connection is None:
                causes.append(self.cause or "its credentials were refused a moment ago")
                if self.pause:
                    break
                continue
            try:
                answer = await asyncio.wait_for(connection.send(MetadataRequest([])), METADATA_S)
            except FAILURES as error:
                causes.append(self._explain(error, host, port, advertised=False))
                continue
            finally:
                connection.close()
            self._learn(answer, set())
            if self.metadata.brokers:
                self.cause = None
                return
            causes.append(f"{host}:{port} knows no brokers yet")
        self.cause = causes[0] if causes else "bootstrap_servers names no server"
        raise ConnectError(f"kafka is not reached: {self.cause}", persisted="not")

    async def refresh(self, topics: Iterable[str], *, create: bool) -> Metadata:
        """Ask for the leaders of these topics and no others; the answer is `metadata`, too.

        ``create``: a topic that is not there is made, where the cluster makes topics by itself.

        Raises:
            ConnectError: no broker answered.

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
        version = answer.API_VERSION
        self.metadata.brokers = {broker[0]: (broker[1], broker[2]) for broker in answer.brokers}
        if version >= 2 and answer.cluster_id:  # noqa: PLR2004 - since version 2
            self.metadata.cluster_id = answer.cluster_id
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
        for node in self.metadata.brokers:
            with contextlib.suppress(*FAILURES):
                answer = await asyncio.wait_for(self.wire.send(node, request), CONNECT_S + METADATA_S)
                if answer.error_code == 0:
                    return answer.producer_id, answer.producer_epoch
                self.cause = f"kafka gives no producer id: {kafka.for_code(answer.error_code).__name__}"
        raise ConnectError(f"kafka is not reached: {self.cause}", persisted="not")

    async def produce(self, node: int, request: ProduceRequest, *, apart: bool, timeout_s: float) -> Answers:
        """Send a request; ``apart``: through the second connection to the broker.

        Raises:
            NodeNotReadyError: nothing was sent.
            KafkaError, OSError, RuntimeError, TimeoutError: it may have been.

        """
        group = ConnectionGroup.COORDINATION if apart else ConnectionGroup.DEFAULT
        answer: Answers = await asyncio.wait_for(self.wire.send(node, request, group=group), timeout_s)
        return answer

    async def coordinator(self, kind: CoordinationType, key: str) -> int:
        """Return the node that coordinates a group or a transactional id.

        Raises:
            KafkaError, OSError, RuntimeError, TimeoutError: it is not known yet.

        """
        node: int = await asyncio.wait_for(self.wire.coordinator_lookup(kind, key), CONNECT_S + METADATA_S)
        return node

    async def ask(self, node: int, request: Any) -> Any:
        """Send any other request, through the second connection."""
        return await asyncio.wait_for(self.wire.send(node, request, group=ConnectionGroup.COORDINATION), TOKEN_S)

    async def close(self) -> None:
        """Close every connection; a second time it does nothing."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()


def _reason(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
