"""Exactly once: the network holds up a request of a transaction, and it comes when what it asked for is long done.

Its connection is gone meanwhile, so it is asked again over another one. Under one epoch the late one would count as
a request of whichever transaction is open by then.
"""

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest, EndTxnRequest, TxnOffsetCommitRequest

from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk
from tests.crash.late import Late
from tests.crash.replaced import Replaced
from tests.support.broker import Cluster, TopicFactory
from tests.support.eventually import until
from tests.support.oracle import read_topic

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

FLUSH_MS = 30_000
ANSWERED_S = 5.0  # it takes milliseconds


class Network(Replaced):
    """Holds up the next request of a ``kind``; it comes right before a later one of another kind is written."""

    def __init__(self, kind: type, disk: MemoryDisk) -> None:
        super().__init__()
        self.late: Late | None = None
        self.before: type | None = None
        self.left: MemoryDisk | None = None
        """What there is of the disk at the moment at which it comes."""
        self.dies = False
        """Nothing more is written from that moment on."""
        self._kind = kind
        self._disk = disk
        self._send = AIOKafkaConnection.send

        def send(connection: AIOKafkaConnection, request: Any, *given: Any, **more: Any) -> Any:
            return self._written(connection, request, *given, **more)  # bound to the network, and so to no connection

        self.put(AIOKafkaConnection, "send", send)

    def _written(self, connection: AIOKafkaConnection, request: Any, *given: Any, **more: Any) -> Any:
        def write() -> Any:
            return self._send(connection, request, *given, **more)  # type: ignore[no-untyped-call]

        if self.late is None and isinstance(request, self._kind):
            self.late = Late(connection, write)
            connection.close()
            raise KafkaConnectionError("the connection is gone")
        if self.left is None and self.before is not None and isinstance(request, self.before):
            self._come()
        if self.left is not None and self.dies:
            return asyncio.get_running_loop().create_future()
        return write()

    def end(self) -> None:
        self.restore()
        if self.late is not None:
            self.late.close()

    def _come(self) -> None:
        assert self.late is not None
        self.late.arrive()
        self.late.wait_answered(ANSWERED_S)
        self.left = self._disk.after_process_death()


def producer_on(kafka: Cluster, disk: MemoryDisk) -> RecoverableProducer:
    return RecoverableProducer(
        disk, bootstrap_servers=kafka.bootstrap_servers, guarantee="exactly_once", wal_min_free_bytes=0
    )


@pytest.mark.parametrize(
    ("kind", "before", "dies"),
    [(EndTxnRequest, AddOffsetsToTxnRequest, True), (TxnOffsetCommitRequest, EndTxnRequest, False)],
    ids=["a commit", "a position"],
)
async def test_what_comes_late_counts_for_no_later_transaction(
    kafka: Cluster, topic: TopicFactory, kind: type, before: type, dies: bool
) -> None:
    """A commit would have records without their position, and a position would go back behind what is committed."""
    name, disk = topic(kafka, 1), MemoryDisk()
    async with producer_on(kafka, disk) as producer:
        await producer.send_and_wait(name, b"0")
        network = Network(kind, disk)
        try:
            for number in (1, 2):
                await producer.publish(name, b"%d" % number)
                await producer.flush(FLUSH_MS)
            network.before, network.dies = before, dies
            await producer.publish(name, b"3")
            await until(lambda: network.left is not None)
            if dies:
                await producer.stop(timeout_ms=0)
            else:
                await producer.flush(FLUSH_MS)
        finally:
            network.end()
    assert network.left is not None
    async with producer_on(kafka, network.left) as producer:
        await producer.send_and_wait(name, b"4")
    found = await read_topic(kafka.bootstrap_servers, name, isolation_level="read_committed")
    assert Counter(record.value for record in found) == Counter(b"%d" % number for number in range(5))
