"""Where records wait for an operator to mend something, the log and the error name it."""

import asyncio
import contextlib
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.helpers import create_ssl_context

from aiorecover import DeliveryPendingError, RecoverableProducer, runtime
from aiorecover.kafka import handshake
from aiorecover.kafka.recovery_check import RecoveryCheck
from aiorecover.ring.backlog import recover
from aiorecover.ring.files import Files
from aiorecover.testing import MockCluster
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import read_topic
from tests.support.published import NOWHERE, WITHIN_MS
from tests.support.secured import SecuredKafka

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

METADATA, VERSIONS = 3, 18  # Kafka's numbers of requests
SOON_S = 8.0  # "a few seconds", on a busy machine


@asynccontextmanager
async def waiting(
    tmp_path: Path, topic: str, cause: str, caplog: pytest.LogCaptureFixture, **options: Any
) -> AsyncIterator[RecoverableProducer]:
    """A record waits, and ``cause`` is named within seconds."""
    async with RecoverableProducer(tmp_path, stop_timeout_ms=0, **options) as producer:
        receipt = await producer.publish(topic, b"1")
        await until(lambda: any(re.search(cause, line) for line in warnings(caplog)), SOON_S)
        with pytest.raises(DeliveryPendingError, match=cause):
            await receipt.delivered(10)
        yield producer


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("right", "cause"),
    [
        (None, "not authorized: grant Describe and Write on the topic"),
        ("DESCRIBE", "not authorized: grant Write on the topic"),
    ],
)
async def test_a_missing_right_is_named_and_once_it_is_granted_the_record_arrives(
    secured: SecuredKafka,
    topic: TopicFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    right: str | None,
    cause: str,
) -> None:
    name = topic(secured)
    secured.grant(topic(secured))
    if right is not None:
        secured.grant(name, right)
    async with waiting(tmp_path, name, cause, caplog, **secured.options()) as producer:
        await asyncio.to_thread(secured.grant, name)
        await producer.flush(WITHIN_MS)
    assert len(await read_topic(secured.bootstrap_servers, name)) == 1


async def test_a_name_that_collides_with_another_one_and_an_internal_topic_are_named(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(kafka).replace("_", "-") + "_a"
    kafka.create_topic(name, 1)
    options = {"bootstrap_servers": kafka.bootstrap_servers}
    async with waiting(tmp_path / "1", name[:-2] + ".a", f"its name collides with {name}", caplog, **options):
        pass
    async with waiting(tmp_path / "2", "__consumer_offsets", "or it is internal", caplog, **options):
        pass


# -- reading after a start ---------------------------------------------------------------------------------------------


async def test_a_start_that_reads_its_ring_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable = threading.Event()

    def slowly(*arguments: Any) -> Any:
        readable.wait()
        return recover(*arguments)

    with MockCluster() as cluster:
        await leave(tmp_path)
        monkeypatch.setattr(runtime, "recover", slowly)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            try:
                with pytest.raises(DeliveryPendingError, match=r"earlier starts are being read.* pending=unknown$"):
                    await producer.flush(1000)
            finally:
                readable.set()
            await producer.flush(WITHIN_MS)


async def test_a_start_that_reads_kafka_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable, read = asyncio.Event(), RecoveryCheck._read

    async def slowly(*arguments: Any) -> Any:
        await readable.wait()
        return await read(*arguments)

    with MockCluster() as cluster:
        await leave(tmp_path)
        monkeypatch.setattr(Files, "boot_id", lambda _: b"another boot".hex())
        monkeypatch.setattr(RecoveryCheck, "_read", slowly)
        async with RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            with pytest.raises(DeliveryPendingError, match=r"kafka is being read .* pending=1$"):
                await producer.flush(2000)
            readable.set()
            await producer.flush(WITHIN_MS)


async def leave(wal_dir: Path) -> None:
    async with RecoverableProducer(wal_dir, bootstrap_servers=NOWHERE, stop_timeout_ms=0) as producer:
        await producer.publish("topic", b"1", partition=0)


# -- addresses ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """Serve ``answer`` at an address."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


def advertising(address: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """Answer as a broker that knows one broker, at ``address``."""
    host, _, port = address.rpartition(":")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, _, correlation = struct.unpack(">hhi", (await reader.readexactly(size))[:8])
                if key == VERSIONS:
                    body = struct.pack(">hi6h", 0, 2, METADATA, 1, 1, VERSIONS, 0, 0)
                else:  # one broker without a rack, which is the controller, and no topics
                    body = struct.pack(f">iih{len(host)}sihii", 1, 1, len(host), host.encode(), int(port), -1, 1, 0)
                writer.write(struct.pack(">ii", len(body) + 4, correlation) + body)

    return answer


@pytest.fixture
def hole() -> Iterator[str]:
    """An address that answers nothing: its queue of connections is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield "{}:{}".format(*listener.getsockname())


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("no-such-host.invalid:9092", "the name is not known"),
        ("127.0.0.1:1", "the connection is refused"),
        ("", "no answer in time"),
    ],
    ids=["unknown", "refusing", "black hole"],
)
async def test_an_advertised_address_that_cannot_be_reached_is_named(
    tmp_path: Path, hole: str, address: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    address = address or hole
    cause = f"kafka advertises {address}, which cannot be reached: {reason}"
    async with (
        serving(advertising(address)) as servers,
        waiting(tmp_path, "topic", cause, caplog, bootstrap_servers=servers),
    ):
        pass


async def test_a_name_server_that_does_not_answer_is_named_and_takes_no_thread_of_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait())
    monkeypatch.setattr(handshake, "FIRST_CONNECT_S", 0.1)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    try:
        async with asyncio.timeout(SOON_S):  # the end of the producer needs a thread, too
            cause = "kafka.test:9092 cannot be reached: the name server does not answer"
            async with waiting(tmp_path, "topic", cause, caplog, bootstrap_servers="kafka.test:9092"):
                await asyncio.to_thread(int)
    finally:
        answers.set()


async def test_a_name_server_that_takes_most_of_the_time_to_connect_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 5 s are, where the first name server of two is dead."""
    look_up = socket.getaddrinfo

    def slowly(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "localhost":
            time.sleep(0.7)
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    monkeypatch.setattr(handshake, "FIRST_CONNECT_S", 0.3)
    monkeypatch.setattr(handshake, "CONNECT_S", 1.0)
    with MockCluster() as cluster:
        servers = cluster.bootstrap_servers.replace("127.0.0.1", "localhost")
        async with RecoverableProducer(tmp_path, bootstrap_servers=servers) as producer:
            await producer.publish("topic", b"1")
            await producer.flush(WITHIN_MS)


async def test_a_look_up_that_got_no_thread_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    names = handshake.Names()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            await names.look_up("localhost", 9092)
    async with asyncio.timeout(SOON_S):
        await names.look_up("localhost", 9092)


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    writer.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize("answer", [http, silent])
async def test_a_port_that_is_not_kafka_s_is_named(
    tmp_path: Path, answer: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(answer) as servers:
        cause = f"{servers} takes the connection and then .*: perhaps it wants TLS .*, or is not Kafka"
        async with waiting(tmp_path, "topic", cause, caplog, bootstrap_servers=servers):
            pass
        tls = {"security_protocol": "SSL", "ssl_context": create_ssl_context()}
        if answer is http:
            cause = f"no TLS with {servers}: .*; perhaps the port is without TLS, or it is not Kafka"
            async with waiting(tmp_path, "topic", cause, caplog, bootstrap_servers=servers, **tls):
                pass


async def test_a_port_that_wants_tls_or_a_certificate_or_a_login_or_none_of_them_is_named(
    secured: SecuredKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_tls = {"security_protocol": "SSL", "ssl_context": create_ssl_context()}
    trusting = {"security_protocol": "SSL", "ssl_context": create_ssl_context(cafile=secured.authority_file(tmp_path))}
    for servers, options, cause in (
        (secured.secured_servers, {}, "perhaps it wants TLS"),
        (secured.clear_servers, {}, "perhaps it wants a login"),
        (secured.mutual_servers, trusting, "perhaps it wants a certificate of the client"),
        (secured.bootstrap_servers, with_tls, "perhaps the port is without TLS"),
    ):
        async with waiting(tmp_path, "topic", cause, caplog, bootstrap_servers=servers, **options):
            pass
        caplog.clear()
