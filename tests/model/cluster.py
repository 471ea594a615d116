"""A Kafka cluster for the model: what `aiorecover.kafka.client` and a consumer ask of it, without a network.

Two brokers lead a partition each. A request may be lost on its way, arrive later, or lose its answer; a partition may
answer with any error that a broker gives for a while. Idempotence and transactions are kept as brokers keep them.
"""

import asyncio
import struct
from collections import deque
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiokafka import errors as kafka
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from aiorecover.kafka.client import ConnectError, Metadata, TopicMetadata
from aiorecover.kafka.produce import Answer, Answers, ProduceRequest
from tests.model.disk import BadError
from tests.model.kafka import PARTITIONS, TOPIC, Id, Kafka, read_head, read_records

DUPLICATE, ORDER, FENCED, TOO_LARGE, REFUSED, CONCURRENT, FORGOTTEN = 46, 45, 47, 10, 87, 51, 59
PASSING = (5, 6, 7, 19, 20, -1, FORGOTTEN)  # error codes that go away; after 7 and 20 the batch is there
APPENDED = (7, 20)
LARGE = 1200  # bytes of records that a batch may have
NUMBER = struct.Struct(">i")


class Produced(NamedTuple):
    """A batch as it arrives: ``epoch`` of the Kafka producer included in ``identity``."""

    partition: int
    identity: tuple[int, int, int]
    ids: list[Id]
    bad: bool
    large: bool
    timestamp: int


class Cluster(Kafka):
    """The log, producer ids, and the coordinator of one transactional id."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[tuple[int, int], int] = {}  # by partition and producer
        self.times: dict[int, list[int]] = {}  # timestamp of each record of the log
        self.late: list[tuple[Produced, bool]] = []  # requests that arrive later
        self.owner = (0, -1)  # Kafka producer id and epoch of the transactional id
        self.added: set[int] = set()  # partitions of the open transaction
        self.open: list[Produced] = []  # what stands in it
        self.number = -1  # committed with the last transaction
        self.told = -1  # to be committed with the open one

    def append(self, one: Produced, *, transactional: bool) -> int:  # noqa: PLR0911 - one for each answer
        """Return the error code."""
        if one.bad:
            return REFUSED
        if one.large:
            return TOO_LARGE
        producer, epoch, base = one.identity
        place = one.partition, producer
        known = self.epochs.get(place)
        if transactional and one.identity[:2] != self.owner:
            return FENCED
        if known is not None and epoch < known:
            return FENCED
        last = self.batches.get(place)
        if last is None or epoch != known:
            if known is not None and base:
                return ORDER
            last = self.batches[place] = deque(maxlen=5)
            self.epochs[place] = epoch
        elif (base, len(one.ids)) in last:
            return DUPLICATE
        elif base != last[-1][0] + last[-1][1]:
            return ORDER
        last.append((base, len(one.ids)))
        if transactional and one.partition in self.added:
            self.open.append(one)
        else:
            self._store(one)
        return 0

    def _store(self, one: Produced) -> None:
        self.log.setdefault(one.partition, []).extend((self.section, record) for record in one.ids)
        self.times.setdefault(one.partition, []).extend([one.timestamp] * len(one.ids))

    def forget(self) -> None:
        """Let the brokers forget all producers, as they do after a day."""
        self.batches.clear()
        self.epochs.clear()
        self.late.clear()

    def forget_producer(self, partition: int, producer: int) -> None:
        """The broker knows nothing of a producer in a partition any more: no request of it is on its way."""
        place = partition, producer
        self.late = [one for one in self.late if (one[0].partition, one[0].identity[0]) != place]
        self.batches.pop(place, None)
        self.epochs.pop(place, None)

    def arrive(self) -> None:
        if self.late:
            one, transactional = self.late.pop(0)
            self.append(one, transactional=transactional)

    # -- transactions --------------------------------------------------------------------------------------------------

    def initialise(self) -> tuple[int, int]:
        """Fence the owner before; what it has not committed is gone."""
        self.open.clear()
        self.added.clear()
        self.told = -1
        self.owner = (1_000_000, self.owner[1] + 1)
        return self.owner

    def end(self, *, commit: bool) -> None:
        if commit:
            for one in self.open:
                self._store(one)
            if self.told >= 0:
                self.number = self.told
        self.open.clear()
        self.added.clear()
        self.told = -1


class ModelClient:
    """Stands where `aiorecover.kafka.client.Client` stands.

    Attributes:
        calm: nothing goes wrong any more.
        known: the topic is there.

    """

    def __init__(self, life: Any, *, known: bool) -> None:
        self.life, self.rng, self.cluster = life, life.rng, life.kafka
        self.options: dict[str, Any] = {}
        self.metadata = Metadata(cluster_id="cluster", brokers={1: ("one", 1), 2: ("two", 2)})
        self.stale = True
        self.cause: str | None = None
        self.pause = 0.0
        self.calm = False
        self.known = known

    async def _travel(self, chance: float = 0.1) -> None:
        """Some time passes; the process may die, the connection too."""
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.02)))
        self.life.files.disk.step()
        if not self.calm and self.rng.random() < chance:
            raise kafka.KafkaConnectionError("the connection is gone")

    async def bootstrap(self) -> None:
        try:
            await self._travel()
        except kafka.KafkaError as error:
            raise ConnectError(str(error), persisted="not") from None

    async def refresh(self, topics: Any, *, create: bool) -> Metadata:
        del create
        await self.bootstrap()
        for name in topics:
            leaders = {partition: 1 + partition % 2 for partition in range(PARTITIONS)}
            there = self.known and name == TOPIC
            self.metadata.topics[name] = TopicMetadata(0, leaders) if there else TopicMetadata(3, {})
        self.stale = False
        return self.metadata

    async def new_producer(self) -> tuple[int, int]:
        await self.bootstrap()
        return self.cluster.new_producer(), 0

    async def close(self) -> None:
        pass

    async def answers(self, node: int) -> bool:
        """Whether the broker answers a small request."""
        del node
        return bool(self.rng.random() < 0.8)

    # -- produce -------------------------------------------------------------------------------------------------------

    async def produce(self, node: int, request: ProduceRequest, *, apart: bool, timeout_s: float) -> Answers:
        del node, apart, timeout_s
        transactional, batches = self._read(b"".join(request.prepare(None).parts))
        self.life.files.disk.step()
        way = 0 if self.calm else self.rng.choice((0, 0, 0, 0, 1, 2, 3))
        if way == 2:
            self.cluster.late += [(one, transactional) for one in batches]
        if way >= 2:  # on its way still, or lost
            await self._travel(chance=1.0)
            raise kafka.KafkaConnectionError("no answer")
        await self._travel(chance=0.0)
        answers = [Answer(TOPIC, one.partition, self._append(one, transactional, way == 0), -1) for one in batches]
        self.life.files.disk.step()
        if way == 1:
            raise kafka.KafkaConnectionError("the answer is lost")
        await self._travel(chance=0.0)
        for answer, one in zip(answers, batches, strict=True):
            if not answer.code and not transactional:
                self.life.promises.settled.update(one.ids)
        return Answers(answers, 0)

    def _append(self, one: Produced, transactional: bool, heard: bool) -> int:
        code = 0 if self.calm or self.rng.random() < 0.85 else self.rng.choice(PASSING)
        if (
            code == FORGOTTEN and not heard
        ):  # a broker that forgets in between takes a repeat for new: no client can tell
            code = 0
        elif code == FORGOTTEN:
            self.cluster.forget_producer(one.partition, one.identity[0])
        if code in (0, *APPENDED):
            found = self.cluster.append(one, transactional=transactional)
            return found or code
        return code

    def _read(self, data: bytes) -> tuple[bool, list[Produced]]:
        """Read a request as brokers do, without the package's help."""
        size = int.from_bytes(data[:2], "big", signed=True)
        at = 2 + max(0, size) + 6
        batches = []
        (topics,) = NUMBER.unpack_from(data, at)
        at += 4
        for _ in range(topics):
            name = int.from_bytes(data[at : at + 2], "big")
            at += 2 + name
            (partitions,) = NUMBER.unpack_from(data, at)
            at += 4
            for _ in range(partitions):
                partition, length = struct.unpack_from(">ii", data, at)
                batches.append(self._read_batch(partition, data[at + 8 : at + 8 + length]))
                at += 8 + length
        if at != len(data):
            raise BadError("GARBAGE: the request does not end where it says")
        return size >= 0, batches

    def _read_batch(self, partition: int, data: bytes) -> Produced:
        identity, count = read_head(data)
        records = read_records(data[61:])
        ids = [one[0] for one in records]
        if len(ids) != count:
            raise BadError(f"GARBAGE: {count} records said, {len(ids)} found")
        self.life.check_sent(partition, identity, records)
        bad = any(self.life.promises.records[one].bad for one in ids)
        timestamp = int.from_bytes(data[35:43], "big")  # the latest
        return Produced(partition, identity, ids, bad, len(ids) > 1 and len(data) > LARGE, timestamp)

    # -- transactions --------------------------------------------------------------------------------------------------

    async def coordinator(self, kind: Any, key: str) -> int:
        del kind, key
        await self._travel()
        return 1

    async def ask(self, node: int, request: Any) -> Any:
        """The coordinators' answers, as far as `aiorecover.kafka.transactions` reads them."""
        del node
        await self._travel()
        answer = self._answer(request)
        self.life.files.disk.step()
        await self._travel()
        return answer

    def _answer(self, request: Any) -> Any:
        cluster = self.cluster
        if isinstance(request, OffsetRequest):
            ((topic, ((partition, _),)),) = request._topics
            return SimpleNamespace(topics=[(topic, [(partition, 0, -1, len(cluster.log.get(partition, [])))])])
        if isinstance(request, InitProducerIdRequest):
            producer, epoch = cluster.initialise()
            return SimpleNamespace(error_code=0, producer_id=producer, producer_epoch=epoch)
        if isinstance(
            request, (AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, EndTxnRequest, TxnOffsetCommitRequest)
        ):
            fenced = (request._producer_id, request._producer_epoch) != cluster.owner
            code = FENCED if fenced else 0
            if isinstance(request, AddPartitionsToTxnRequest):
                partitions = [one for _, some in request._topics for one in some]
                codes = [(one, code or self._add(one)) for one in partitions]
                return SimpleNamespace(errors=[(TOPIC, codes)])
            if isinstance(request, TxnOffsetCommitRequest):
                if not code:
                    cluster.told = request._topics[0][1][0][1]
                return SimpleNamespace(errors=[("offsets", [(0, code)])])
            if isinstance(request, EndTxnRequest) and not code:
                cluster.end(commit=request._transaction_result)
            return SimpleNamespace(error_code=code)
        return cluster.number, "", 0  # StableOffsetFetch; `answered` is replaced in the model

    def _add(self, partition: int) -> int:
        if not self.calm and self.rng.random() < 0.2:
            return CONCURRENT
        self.cluster.added.add(partition)
        return 0


class ModelConsumer:
    """Stands where aiokafka's consumer stands in `aiorecover.kafka.recovery_check`."""

    client: ModelClient  # of the life that runs

    def __init__(self, **_: Any) -> None:
        self._partition, self._place = -1, 0

    async def start(self) -> None:
        await self.client._travel(0.02)

    async def stop(self) -> None:
        pass

    def assign(self, partitions: Any) -> None:
        self._partition = partitions[0].partition

    async def end_offsets(self, partitions: Any) -> Any:
        """A broker that answers has read what lay in its sockets: older requests have arrived by then."""
        await self.client._travel(0.02)
        while self.client.cluster.late:
            self.client.cluster.arrive()
        return {partitions[0]: len(self._log)}

    async def offsets_for_times(self, wanted: Any) -> Any:
        ((partition, since),) = wanted.items()
        times = self.client.cluster.times.get(self._partition, [])
        offset = next((number for number, at in enumerate(times) if at >= since), None)
        return {partition: None if offset is None else SimpleNamespace(offset=offset)}

    def seek(self, partition: Any, offset: int) -> None:
        del partition
        self._place = offset

    async def position(self, partition: Any) -> int:
        del partition
        return self._place

    async def getmany(self, partition: Any, **_: Any) -> Any:
        await self.client._travel(0.0)
        some = self._log[self._place : self._place + 3]
        self._place += len(some)
        producer = self.client.life.ring.producer_id
        found = [
            SimpleNamespace(headers=(("aiorecover-id", f"{producer}/{epoch}/{sequence}".encode()),))
            for _, (epoch, sequence) in some
        ]
        return {partition: found}

    @property
    def _log(self) -> list[tuple[int, Id]]:
        log: list[tuple[int, Id]] = self.client.cluster.log.get(self._partition, [])
        return log
