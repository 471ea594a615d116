"""A stand-in for the session with a broker behind it that knows transactions: what is aborted, nobody ever reads."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IllegalOperation, OutOfOrderSequenceNumber, TopicAuthorizationFailedError
from aiokafka.structs import OffsetAndMetadata, RecordMetadata, TopicPartition

from aiorecover import RecoverableProducer
from aiorecover import supervised as supervised_module
from aiorecover.delivery import position_in_kafka as position_module
from aiorecover.delivery import sessions as sessions_module
from aiorecover.delivery import transactions as transactions_module
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.committed import Committed, parsed
from aiorecover.delivery.delivery import Delivery
from aiorecover.delivery.hard_close import SessionLostError
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.transaction import PlaceRefusedError
from aiorecover.delivery.transactions import Transactions
from aiorecover.errors import ClosedError
from aiorecover.testing import MemoryDisk
from aiorecover.wal.directory import Directory
from tests.delivery.refusing import Sent, sent_in
from tests.delivery.stand_in import StandIn

__all__ = ["Broker", "delivery_of", "directory_of", "producer_on", "serving", "transactions_of"]

UNAUTHORIZED = 29  # Kafka's code of TopicAuthorizationFailedError
REBUILT_WITHIN = 0.005  # seconds: as a session does when the broker is well

Meeting = Callable[[], Any]


class Broker:
    """What was committed, to be read; and what a test does at a step.

    Steps: "read", "begin", "send", "sent" (not acknowledged yet), "add", "commit", "committed" (not answered yet),
    "asked" (whether records may be written), and "apart": another producer than the session's.
    """

    def __init__(self, **topics: int) -> None:
        self.topics = topics or {"t": 1}
        self.log: dict[tuple[str, int], list[bytes]] = {}
        self.transactions: list[list[bytes]] = []  # what each held that was committed with records
        self.commits: list[Committed] = []
        self.positions: dict[str, Committed] = {}  # by the topic under which they stand
        self.unreadable: set[str] = set()
        self.uncommittable: set[str] = set()
        self.unwritable: set[str] = set()
        self.refuses: Callable[[list[Sent]], BaseException | None] = lambda _: None
        self.away = False
        self.cluster_id: str | None = "cluster"
        self.connections = 0
        self.reached: Counter[str] = Counter()
        self.apart: list[str | None] = []  # transactional ids of producers beside the session's
        self.wrong: list[str] = []  # what no client may do
        self.session: Any = None
        self.met: Callable[[str], None] = lambda _: None  # is told of every step
        self._once: dict[str, list[Meeting]] = {}
        self._gates: dict[str, asyncio.Event] = {}

    # -- what a test does --------------------------------------------------------------------------------------------

    def once(self, step: str, does: Meeting) -> None:
        """Do it when ``step`` is met next, and go on; what is raised is what the client is told."""
        self._once.setdefault(step, []).append(does)

    def hold(self, step: str) -> None:
        """Nobody gets beyond ``step``."""
        self._gates[step] = asyncio.Event()

    def let_go(self, step: str) -> None:
        self._gates.pop(step).set()

    def lose(self) -> None:
        """The session ends, and the next one aborts what it had open."""
        self.session.lose()

    def come(self) -> None:
        self.away = False
        self.session.connect()

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes]:
        return self.log.get((topic, partition), [])

    @property
    def position(self) -> Committed:
        (position,) = self.positions.values()
        return position

    # -- what the client meets ---------------------------------------------------------------------------------------

    async def meet(self, step: str) -> None:
        self.reached[step] += 1
        self.met(step)
        if self._once.get(step):
            met = self._once[step].pop(0)()
            if isinstance(met, Awaitable):
                await met
        if step in self._gates:
            await self._gates[step].wait()

    def end(self, pending: Mapping[tuple[str, int], list[bytes]], offsets: Mapping[str, Committed]) -> None:
        """All of it or nothing."""
        for place, values in pending.items():
            self.log.setdefault(place, []).extend(values)
        if pending:
            self.transactions.append([value for values in pending.values() for value in values])
        self.commits += offsets.values()
        self.positions |= offsets

    def serve(self, patch: pytest.MonkeyPatch) -> None:
        """Sessions that begin from now on are with this one."""
        broker = self

        class OfThisBroker(Committing):
            def __init__(self, *given: Any, **more: Any) -> None:
                super().__init__(*given, **more)
                self.broker = broker
                broker.session = self

        patch.setattr(sessions_module, "Session", OfThisBroker)


class Committing(StandIn):
    """One connection after the other, each with a producer epoch of its own."""

    broker: Broker
    transactional_id: str | None = None
    unfinished_since: float | None = None
    start_refused = False

    def start(self) -> None:
        if not self.broker.away:
            self.connect()

    def connect(self) -> None:
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        await self.cluster.admit(self.broker.cluster_id)
        if self._closing or self.state == "connected":
            return
        self.broker.connections += 1
        self._connected_as = self.transactional_id
        self.unfinished_since, self.start_refused = None, False
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transaction = Transaction(self.broker, self.end)
        self._following: dict[tuple[str, int], int] = {}
        super().connect()  # as soon as it is known who it is

    def lose(self) -> None:
        if self.state != "connected":
            return
        self.state = "connecting"
        self._connected.clear()
        self.end.set_result(None)
        if not self.broker.away and not self._closing:
            asyncio.get_running_loop().call_later(REBUILT_WITHIN, self.connect)

    def give_up(self, reason: str) -> None:
        self.lose()

    async def close(self) -> None:
        self._closing = True
        self.lose()
        self._connected.set()

    async def identity(self) -> Identity:
        await self._connected.wait()
        return Identity(1, self.broker.connections)

    async def transact(self, step: Callable[[Any], Awaitable[Any]]) -> Any:
        await self._connected.wait()
        if self._connected_as != self.transactional_id:
            self.broker.wrong.append("a transactional id that was left")
        return await self._while_it_lasts(_awaited(step(self.transaction)))

    async def apart(self, step: Callable[[Any], Awaitable[Any]], transactional_id: str | None, _: float) -> Any:
        self.broker.apart.append(transactional_id)
        if transactional_id == self.transactional_id:
            self.broker.wrong.append("it fences itself")
        await self.broker.meet("apart")
        return await step(Transaction(self.broker, asyncio.get_running_loop().create_future()))

    async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        await self._connected.wait()
        metadata: RecordMetadata = await self._while_it_lasts(self._sent(batch, topic, partition))
        return metadata

    async def _sent(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        await asyncio.sleep(0)
        await self.broker.meet("send")
        metadata = self._taken(batch, topic, partition)
        await self.broker.meet("sent")
        return metadata

    def _taken(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        if not self.transaction.begun:
            self.broker.wrong.append("sent outside of a transaction")
        if not batch.transactional:
            self.broker.wrong.append("a batch that is not marked as a transaction's")
        records = sent_in(batch, topic)
        refusal = self.broker.refuses(records)
        if refusal is not None:
            raise refusal
        if topic in self.broker.unwritable:
            raise TopicAuthorizationFailedError({topic})
        place = (topic, partition)
        identity = (1, self.broker.connections, self._following.get(place, 0))
        if batch.identity != identity:
            self.broker.wrong.append(f"{batch.identity} in the place of {identity}")
            raise OutOfOrderSequenceNumber
        self._following[place] = identity[2] + batch.count
        pending = self.transaction.pending.setdefault(place, [])
        pending += [record.value for record in records]
        offset = len(self.broker.values(*place)) + len(pending) - batch.count
        return RecordMetadata(topic, partition, TopicPartition(topic, partition), offset, 0, 0, 0)

    async def _while_it_lasts(self, doing: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(doing)
        try:
            await asyncio.wait({task, self.end}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise SessionLostError
            return task.result()
        finally:
            task.cancel()

    async def discover(self) -> None:
        if self._closing:
            raise ClosedError
        await super().discover()

    def partitions(self, topic: str) -> frozenset[int]:
        return frozenset(range(self.broker.topics.get(topic, 0))) if self._connected.is_set() else frozenset()


class Transaction:
    """What `transaction` uses of an AIOKafkaProducer, and it fails as that one does."""

    def __init__(self, broker: Broker, end: "asyncio.Future[None]") -> None:
        self._broker = broker
        self._end = end
        self.begun = False
        self.pending: dict[tuple[str, int], list[bytes]] = {}
        self._offsets: dict[str, Committed] = {}
        self.client = SimpleNamespace(coordinator_lookup=self._look_up, ready=self._ready, send=self._read)
        self._txn_manager = SimpleNamespace(maybe_add_partition_to_txn=self._add)
        self._added: set[str] = set()

    async def begin_transaction(self) -> None:
        await self._broker.meet("begin")
        assert not self.begun, "Invalid state transition"
        self.begun = True

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], _: str) -> None:
        if not self.begun:
            message = "Not in the middle of a transaction"
            raise IllegalOperation(message)
        await self._broker.meet("add")
        for place in offsets:
            if place.topic in self._broker.uncommittable:
                raise PlaceRefusedError(place.topic)
        self._offsets = {place.topic: parsed(one.offset, one.metadata) for place, one in offsets.items()}

    async def commit_transaction(self) -> None:
        assert self.begun, "Invalid state transition"
        if self._added:
            await self._broker.meet("asked")
        if refused := self._added & self._broker.unwritable:
            raise TopicAuthorizationFailedError(refused)
        self.begun = False
        self._added = set()
        await asyncio.shield(self._commit())  # as there: who no longer waits for it does not end it

    async def abort_transaction(self) -> None:
        assert self.begun, "Invalid state transition"
        self.begun = False
        self.pending, self._offsets, self._added = {}, {}, set()

    def _add(self, place: TopicPartition) -> None:
        assert self.begun, "not in a transaction"
        self._added.add(place.topic)

    async def _commit(self) -> None:
        await self._broker.meet("commit")
        if not self._end.done():
            self._broker.end(self.pending, self._offsets)
            self.pending, self._offsets = {}, {}
        await self._broker.meet("committed")

    async def _look_up(self, *_: Any) -> int:
        await self._broker.meet("read")
        return 0

    async def _ready(self, *_: Any, **__: Any) -> bool:
        return True

    async def _read(self, _: int, request: Any, **__: Any) -> Any:
        topic = request._topic
        found = self._broker.positions.get(topic, Committed(-1, ""))
        code = UNAUTHORIZED if topic in self._broker.unreadable else 0
        part = {"partition": 0, "offset": found.position, "metadata": found.metadata, "error_code": code}
        said = {"topics": [{"topic": topic, "partitions": [part]}], "error_code": 0}
        return SimpleNamespace(to_object=lambda: said)


async def _awaited(step: Awaitable[Any]) -> Any:
    return await step


def producer_on(disk: MemoryDisk, **options: Any) -> RecoverableProducer:
    given: dict[str, Any] = {
        "guarantee": "exactly_once",
        "wal_min_free_bytes": 0,
        "slot_bytes": 64 * 1024,
        "linger_ms": 1,
        "retry_backoff_ms": 1,
        "stop_timeout_ms": 1_000,
        **options,
    }
    return RecoverableProducer(disk, bootstrap_servers="nowhere:1", **given)


def delivery_of(producer: RecoverableProducer) -> Delivery:
    assert producer._opened is not None
    return producer._opened.delivery


def transactions_of(producer: RecoverableProducer) -> Transactions:
    exactly_once = delivery_of(producer).exactly_once
    assert exactly_once is not None
    return exactly_once.transactions


def directory_of(producer: RecoverableProducer) -> Directory:
    assert producer._opened is not None
    return producer._opened.directory


def serving(patch: pytest.MonkeyPatch, partitions: int) -> Iterator[Broker]:
    """What a fixture yields: a broker with topic ``t`` that all sessions are with, after pauses that tests can wait."""
    made = Broker(t=partitions)
    made.serve(patch)
    patch.setattr(supervised_module, "RESTART_PAUSE", 0.01)
    patch.setattr(transactions_module, "PAUSE", 0.01)
    patch.setattr(position_module, "RIGHTS_PAUSE", 0.01)
    patch.setattr(transactions_module, "DISK_PAUSE", 0.02)
    yield made
    assert made.wrong == []
