"""How one AIOKafkaProducer makes its requests: what is changed in aiokafka so that no partition holds up another.

Six things, all here:

1. aiokafka repeats a refused batch by itself, and keeps the whole broker waiting for it. Here every error goes to the
   lane, which sends again. So a batch is in aiokafka only while it is under way, nothing has to be withdrawn, and the
   other lanes of the broker go on.
2. aiokafka waits ``request_timeout_ms`` for an answer. Here a request that is silent for as long as `patience` allows
   is given up: its connection is cut (the broker answers one request of a connection after the other) and its batches
   fail with `SilentError`. It is not silent as long as its bytes move (`taken`): cut on a slow line, it would have to
   be sent again from its beginning, for ever. So ``request_timeout_ms`` is the longest silence, not the longest time.
3. aiokafka puts the batches of all lanes of a broker into one request. For suspects each goes alone, over a connection
   that it shares with nobody meanwhile.
4. A batch without a leader would have aiokafka ask for metadata, and wait for nothing else. Here it fails at once.
5. Connecting to a frozen broker, or asking it for metadata, holds up connecting to the others and all knowledge of new
   leaders. Here each connection is waited for alone, and metadata is asked from the next broker after two seconds.
   Where it only waits behind a request whose bytes move, the connection is left alone. A broker that is silent to a
   request, and has answered none since, is not asked while there are others: a second session that began with that
   would keep a neighbour that shared the silent request waiting for these two seconds.
6. A partition that may not be added to a transaction ends it, and aiokafka sends what waits all the same, also to the
   partitions that were to be added with it. A broker before 3.6 appends that, outside of any transaction: nothing
   aborts it, and the next commit there has readers see it. Here it fails, with what the partition was refused for.

Order and repeats (I6). What was cut may still stand in a socket, and a frozen broker reads it when it wakes, long after
the lane has sent the same batch another way and gone on. The broker knows the last five batches of a producer id in the
partition, and answers a copy of one of them instead of appending it. A copy of an older one it refuses, as out of
order; one of an older epoch it refuses as fenced. Nobody listens to these answers. It appends a stale copy only if it
knows nothing of the producer id any more, which takes a day: from the newest timestamp of its last batch there, so for
records of two days ago only until its next look, one in ten minutes. (Where `producer.id.expiration.ms` is shorter than
a network may hold bytes back, a late copy of a batch of a dead process may come behind what followed.) And as long as a
batch is not acknowledged its lane sends no other, so the copies in sockets are copies of that one. What must not be is
a sequence that is used again for other records: `LaneBatch.possibly` says that a copy may be on its way, and then the
sequence is not given back.
"""

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import ConnectionGroup
from aiokafka.errors import KafkaError, LeaderNotAvailableError
from aiokafka.producer.sender import SendProduceReqHandler
from aiokafka.producer.transaction_manager import TransactionState
from aiokafka.structs import TopicPartition

from aiorecover.delivery.outcomes import SilentError
from aiorecover.delivery.suspicion import SILENCE, patience
from aiorecover.delivery.taken import bytes_taken

TICK = 0.25  # seconds; silence is counted in these, so that a process that was stopped itself counts little
METADATA_LIMIT = 2.0  # seconds for one broker's metadata, twice as long after each that did not come
CONNECTIONS = 8  # to one broker for suspects: a request on each, the others wait for their turn
DOUBT = 0.5  # seconds of silence to a request, after which others are asked for metadata


class Requests:
    """Takes the place of aiokafka's own, in one producer."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        *,
        longest: float,
        alone: bool,
        silent: set[Hashable] | None = None,
        on_moving: Callable[[], None] = lambda: None,
    ) -> None:
        """``longest``: seconds that any request may be silent; ``alone``: one batch a request, as suspects need it.

        ``silent``: brokers that owe an answer for `DOUBT` seconds; shared by sessions of one cluster.
        ``on_moving``: called each `TICK` while the bytes of a request move, over a slow line.
        """
        self._client: Any = producer.client
        self._sender: Any = producer._sender  # noqa: SLF001
        self._accumulator: Any = producer._message_accumulator  # noqa: SLF001
        self._longest = longest
        self._alone = alone
        self._on_moving = on_moving
        self._silent = set[Hashable]() if silent is None else silent
        self._answers = 0
        self._under_way: dict[_Request, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._free: dict[int, asyncio.LifoQueue[int]] = {}  # broker: numbers of connections without a request
        self._waiting: dict[int, int] = {}  # broker: how many wait for one
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._metadata_limit = METADATA_LIMIT
        self._asking: dict[asyncio.Task[Any] | None, _Asking] = {}  # by task: a context is handed on to what it begins
        self._take_place()

    def _take_place(self) -> None:
        self._drain = self._accumulator.drain_by_nodes
        self._accumulator.drain_by_nodes = self._drain_led
        self._sender._send_produce_req = self._send_alone if self._alone else self._send_together  # noqa: SLF001
        self._connect = self._client._get_conn  # noqa: SLF001
        self._client._get_conn = self._connected  # noqa: SLF001
        self._client._get_conn_lock_value = contextlib.nullcontext()  # noqa: SLF001
        self._update_metadata = self._client._metadata_update  # noqa: SLF001
        self._client._metadata_update = self._updated  # noqa: SLF001

    # -- requests ----------------------------------------------------------------------------------------------------

    def _drain_led(self, ignore_nodes: Any, muted_partitions: Any = frozenset()) -> tuple[Any, bool]:
        """As aiokafka's; batches without a leader, or without a transaction, fail instead of waiting in there."""
        leader = self._client.cluster.leader_for_partition
        waiting = self._accumulator._batches  # noqa: SLF001
        transactions = self._sender._txn_manager  # noqa: SLF001
        if transactions is not None and transactions.state is TransactionState.ABORTABLE_ERROR:
            refused = transactions._transaction_waiter.exception()  # noqa: SLF001
            for place in list(waiting):
                self._accumulator._pop_batch(place).failure(refused)  # noqa: SLF001
        for place in [one for one in waiting if leader(one) in {None, -1} and one not in muted_partitions]:
            self._accumulator._pop_batch(place).failure(LeaderNotAvailableError())  # noqa: SLF001
            self._client.force_metadata_update()
        batches, _ = self._drain(ignore_nodes, muted_partitions)
        return batches, False

    async def _send_together(self, node_id: int, batches: dict[TopicPartition, Any]) -> None:
        try:
            await self._exchange(node_id, batches, ConnectionGroup.DEFAULT)
        finally:
            self._sender._in_flight.discard(node_id)  # noqa: SLF001
            self._sender._muted_partitions.difference_update(batches)  # noqa: SLF001

    async def _send_alone(self, node_id: int, batches: dict[TopicPartition, Any]) -> None:
        self._sender._in_flight.discard(node_id)  # noqa: SLF001 - the broker takes more, over other connections
        await asyncio.gather(*(self._send_one(node_id, place, batch) for place, batch in batches.items()))

    async def _send_one(self, node_id: int, place: TopicPartition, batch: Any) -> None:
        free = self._free_of(node_id)
        try:
            self._waiting[node_id] += 1
            try:
                number = await free.get()
            finally:
                self._waiting[node_id] -= 1
            try:
                await self._exchange(node_id, {place: batch}, f"suspect-{number}")
            finally:
                free.put_nowait(number)
        finally:
            self._sender._muted_partitions.discard(place)  # noqa: SLF001
            wake = self._accumulator.waiter()
            if not wake.done():
                wake.set_result(None)

    def _free_of(self, node_id: int) -> "asyncio.LifoQueue[int]":
        free = self._free.get(node_id)
        if free is None:
            free = self._free[node_id] = asyncio.LifoQueue()
            for number in reversed(range(CONNECTIONS)):
                free.put_nowait(number)
            self._waiting[node_id] = 0
        return free

    async def _exchange(self, node_id: int, batches: dict[TopicPartition, Any], group: Any) -> None:
        request = _Request(self._sender, batches, node_id, self._answers)
        self._under_way[request] = None
        if self._timer is None:
            self._wait_a_tick()
        try:
            answered = await request.exchange(group)
            self._answers += answered  # behind the await: requests to other brokers count meanwhile
            if answered:
                self._silent.discard(node_id)
        finally:
            del self._under_way[request]
            if not self._under_way and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _wait_a_tick(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + TICK
        self._timer = loop.call_at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        now = asyncio.get_running_loop().time()
        for request in self._under_way:
            if not request.look() and now - due < TICK:  # else it is this process that was late
                request.ticks += 1
            if request.moving:
                self._on_moving()
            if request.ticks * TICK >= DOUBT:
                self._silent.add(request.node_id)
            if request.ticks * TICK > self._patience_with(request):
                request.give_up(now)
        self._wait_a_tick()

    def _patience_with(self, request: "_Request") -> float:
        crowded = self._waiting.get(request.node_id, 0) > 0
        others_answered = self._alone or self._answers > request.answers_before
        return patience(request.silences, others_answered=others_answered, longest=self._longest, crowded=crowded)

    # -- connections and metadata ------------------------------------------------------------------------------------

    async def _connected(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        asking = self._asking.get(asyncio.current_task())
        if asking is not None:
            if node_id in asking.avoided:
                return None  # the next one is asked
            asking.broker = node_id
        connection = self._client._conns.get((node_id, group))  # noqa: SLF001
        if connection is not None and connection.connected():
            return connection
        lock = self._locks.setdefault((node_id, group), asyncio.Lock())
        async with lock:
            connection = await self._connect(node_id, group=group, no_hint=no_hint)
        if connection is not None:
            connection._request_timeout = None  # noqa: SLF001 - `_tick` and `_updated` limit what is sent over it
        return connection

    async def _updated(self, cluster: Any, topics: Any) -> bool:
        others = any(broker.nodeId not in self._silent for broker in cluster.brokers())
        if not self._silent or not others:
            return await self._asked(cluster, topics, _Asking())
        first = _Asking(frozenset(self._silent))
        if await self._asked(cluster, topics, first):
            return True
        return await self._asked(cluster, topics, _Asking(frozenset({first.broker})))  # that one did not answer either

    async def _asked(self, cluster: Any, topics: Any, asking: "_Asking") -> bool:
        task = asyncio.current_task()
        self._asking[task] = asking
        try:
            async with asyncio.timeout(self._metadata_limit):
                updated: bool = await self._update_metadata(cluster, topics)
        except TimeoutError:
            self._metadata_limit = min(self._longest, self._metadata_limit * 2)
            moving = [request.connection for request in self._under_way if request.moving]
            for connection in list(self._client._conns.values()):  # noqa: SLF001
                abandoned = any(answer.cancelled() for *_, answer in connection._requests)  # noqa: SLF001
                if abandoned and connection not in moving:
                    cut(connection)
            self._silent.add(asking.broker)
            return False
        finally:
            del self._asking[task]
        self._metadata_limit = METADATA_LIMIT
        if updated:
            self._silent.discard(asking.broker)
        return updated


@dataclass
class _Asking:
    """Asking one broker after the other for metadata."""

    avoided: frozenset[Hashable] = frozenset()
    broker: Hashable = None
    """Which is asked at present; aiokafka has a name instead of a number for one that it began with."""


class _Request(SendProduceReqHandler):
    """One request to one broker, made once."""

    def __init__(self, sender: Any, batches: dict[TopicPartition, Any], node_id: int, answers_before: int) -> None:
        super().__init__(sender, batches)  # type: ignore[no-untyped-call]
        self.node_id = node_id
        self.answers_before = answers_before  # to others
        self.ticks = 0  # that passed without an answer, since its bytes moved last
        self._taken: int | None = None  # what its connection had carried at the last look
        self._looks = 0
        self._slow = False  # its bytes moved longer than a healthy request takes: a frozen broker's kernel is quick
        self._group: Any = ConnectionGroup.DEFAULT
        self.silences = max(batch._builder.silences for batch in batches.values())  # noqa: SLF001
        self._limit: asyncio.Timeout | None = None

    @property
    def connection(self) -> Any:
        """The one that it goes over; None before there is one."""
        return self._client._conns.get((self.node_id, self._group))  # noqa: SLF001

    @property
    def moving(self) -> bool:
        """Its bytes move over a slow line; a second may lie between two of them."""
        return self._slow and self.ticks * TICK <= SILENCE

    def look(self) -> bool:
        """Whether bytes have moved since the last look: then the silence begins anew."""
        connection = self.connection
        writer = connection._writer if connection is not None else None  # noqa: SLF001
        before, self._taken = self._taken, bytes_taken(writer)
        self._looks += 1
        if before is None or self._taken <= before:
            return False
        self._slow = self._looks * TICK > SILENCE
        self.ticks = 0
        return True

    def give_up(self, now: float) -> None:
        """Wait no longer for the answer."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(now)

    async def exchange(self, group: Any) -> bool:
        """Send it and tell every batch what came of it; whether there was an answer."""
        self._group = group
        request = self.create_request()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(None) as self._limit:
                response = await self._client.send(self.node_id, request, group=group)
        except TimeoutError:
            self._cut()
            self._fail(SilentError("no answer in time"))
        except KafkaError as error:
            self._fail(error)
        else:
            self.handle_response(response)  # type: ignore[no-untyped-call]
            return True
        return False

    def _cut(self) -> None:
        for batch in self._batches.values():
            batch._builder.silences += 1  # noqa: SLF001
        if self.connection is not None:
            cut(self.connection)
        self._client.force_metadata_update()

    def _fail(self, error: KafkaError) -> None:
        for batch in self._batches.values():
            self._can_retry(error, batch)
            batch.failure(exception=error)

    def _can_retry(self, error: Any, _: Any) -> bool:
        """Never, in here."""
        if getattr(error, "invalid_metadata", False):
            self._client.force_metadata_update()
        return False


def cut(connection: Any) -> None:
    """Close it now, whatever is still to be written: a frozen broker reads nothing, and would keep the socket."""
    writer = connection._writer  # noqa: SLF001
    connection.close()
    if writer is not None:
        writer.transport.abort()
