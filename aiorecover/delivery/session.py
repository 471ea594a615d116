"""The life of one AIOKafkaProducer after another: connect, watch, close hard, build anew.

aiokafka's ways to hang or die end here (known from its issues): a sender or a metadata task that dies leaves futures
for ever; an idempotent `stop` never returns while the broker is down; metadata is only asked from brokers it once
knew, never from the bootstrap list again; one server that accepts connections and never answers holds up those behind
it; who answers may be another cluster (`cluster`). The session fails every batch of a dead producer with
`SessionLostError`; the lanes send the very same batches again.

Its log lines are `chatter`'s business: aiokafka's warnings and errors in here are held back and counted, and the next
line about this session says how many there were. Told apart are they by the context that our tasks run in, so the
user's own clients are as loud as ever.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, RequestTimedOutError, kafka_errors
from aiokafka.structs import RecordMetadata, TopicPartition

from aiorecover.config import Config
from aiorecover.delivery import chatter
from aiorecover.delivery.backoff import Backoff
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.cluster import Cluster, WrongClusterError
from aiorecover.delivery.cluster_guard import ClusterGuard
from aiorecover.delivery.hard_close import Holdings, SessionLostError, close_bootstrap, close_hard
from aiorecover.delivery.identity_life import ask_expiration_ms
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.outcomes import UNNAMED_CODES
from aiorecover.delivery.requests import Requests
from aiorecover.delivery.silence import Silence
from aiorecover.delivery.transaction import give_up_unanswered, note_refusals, note_unfinished, retrieve_errors
from aiorecover.errors import ClosedError
from aiorecover.supervised import Supervised

__all__ = ["Session", "SessionLostError"]

log = logging.getLogger("aiorecover.session")

_T = TypeVar("_T")

kafka_errors.update(UNNAMED_CODES)  # codes that aiokafka would all show as UnknownError(-1); subclasses of it

REMEMBER_LIMIT = 30.0  # seconds for a checkpoint that says where the records go; a disk that takes longer fails (I7)
CONNECT_LIMIT = 10.0  # seconds for one server's bootstrap and InitProducerId, which aiokafka waits for without a limit
RECONNECT_MAX = 0.5  # seconds between two rounds of attempts: delivery must resume within 1 s of the broker's return
REBUILD_MAX = 1.0  # seconds before a session is replaced that did not last: each new one asks for a producer id
STEADY = 10.0  # seconds that a session has to last, or the next one is built after a growing pause
WATCH_INTERVAL = 0.5  # seconds; the end of aiokafka's tasks is noticed at once, the rest at this pace
UNREACHABLE_LIMIT = 2.0  # seconds without a connection to any known broker: the bootstrap list may have a living one
NO_ANSWER = (RequestTimedOutError, NodeNotReadyError, KafkaConnectionError, SessionLostError)
METADATA_LIMIT = 10.0  # seconds for one look at a topic; then the session cannot be trusted any more

_REFUSED: Mapping[str, str] = {  # by the error's class: these brokers have answered
    "InvalidTransactionTimeout": (
        "kafka allows no transaction that long: lower transaction_timeout_ms, or raise the brokers' "
        "transaction.max.timeout.ms"
    ),
    "TransactionalIdAuthorizationFailed": (
        "kafka does not let this user use the transactional id: grant Write and Describe on it"
    ),
}


class Session:
    """Sends batches through the living AIOKafkaProducer; at most one lives."""

    def __init__(
        self,
        config: Config,
        on_metadata: Callable[[], None],
        *,
        cluster: Cluster | None = None,
        healthy: "Session | None" = None,
        transactional_id: str | None = None,
        name: str = "suspects",
    ) -> None:
        """Do nothing yet; ``on_metadata`` is called when topics may have changed.

        ``cluster``: the only one that anything is sent to; None: whichever answers first.
        ``healthy``: this one is beside that one, whose brokers are asked first, for what ``name`` says.
        ``transactional_id``: all is sent in transactions (`transact`); None: nothing is.
        """
        self._config = config
        self.cluster = Cluster() if cluster is None else cluster
        self._healthy = healthy
        self.silent: set[Hashable] = set() if healthy is None else healthy.silent  # brokers (`Requests`)
        self.transactional_id = transactional_id  # may be set to another one: it counts from the next connection on
        self.unfinished_since: float | None = None  # an earlier transaction is not over, by the loop's clock
        self.start_refused = False  # and that is why there is no connection
        self._on_metadata = on_metadata
        self._patience = config.request_timeout_ms / 1000  # seconds with batches in flight and no answer
        first = config.retry_backoff_ms / 1000
        self._reconnecting = Backoff(first, RECONNECT_MAX, random.uniform)
        self._rebuilding = Backoff(first, REBUILD_MAX, random.uniform)
        self._producer: AIOKafkaProducer | None = None
        self._holdings: Holdings | None = None
        self._end: asyncio.Future[str] | None = None  # of the present producer: why it has to go
        self._connected = asyncio.Event()
        self._closing = False
        self._silence = Silence()
        self._since = 0.0  # when the present producer was taken
        self._title = "kafka session" if healthy is None else f"kafka session for {name}"
        self._supervised = Supervised("session" if healthy is None else f"{name}-session", self._run)
        self._closers: set[asyncio.Task[None]] = set()
        self._chatter = chatter.Chatter()
        self._context = self._chatter.context()
        self._topics: set[str] = set()
        self._followed: set[str] = set()  # topics that the present client was told of
        self._known_troubles: set[str] = set()  # what was told of since an attempt to connect went well
        self.rebuilds = -1  # the first connection is none
        self.trouble = ""  # why there is no connection, as far as that is known
        self.state = "connecting"

    # -- for the lanes -----------------------------------------------------------------------------------------------

    async def identity(self) -> Identity:
        """A producer id that the broker has just given out, for a lane without one."""
        producer = await self._ready()
        found = producer._txn_manager._pid_and_epoch  # noqa: SLF001
        return Identity(found.pid, found.epoch)

    async def send(self, batch: LaneBatch, topic: str, partition: int) -> RecordMetadata:
        """Send one batch and wait for its acknowledgement.

        Raises:
            SessionLostError: the session died first; the batch is possibly persisted: send the same again.
            KafkaError: what Kafka answered.
            ClosedError: the session is closed.

        """
        producer = await self._ready()
        if topic not in self._followed:  # else the client's next metadata would not tell of it any more
            self._followed.add(topic)
            producer.client.add_topic(topic)
        self._silence.began(time.monotonic())
        try:
            async with asyncio.timeout(METADATA_LIMIT):
                future = await self._add(producer, batch, TopicPartition(topic, partition))
            metadata: RecordMetadata = await future
        except TimeoutError as error:
            raise SessionLostError from error
        except KafkaError as error:
            if not isinstance(error, NO_ANSWER):
                self._silence.forget()
            raise
        finally:
            self._silence.ended(time.monotonic())
        self._silence.broken(time.monotonic())
        return metadata

    async def transact(self, step: Callable[[AIOKafkaProducer], Awaitable[_T]]) -> _T:
        """Do something with the producer itself, as long as it lives; ``step`` has a time limit of its own.

        Raises:
            SessionLostError: it has ended first; whether it was done is not known.
            KafkaError: what ``step`` raises.
            ClosedError: the session is closed.

        """
        producer = await self._ready()
        end = self._end
        doing = asyncio.get_running_loop().create_task(_awaited(step(producer)), context=self._context.copy())
        try:
            waiting: set[asyncio.Future[Any]] = {doing} if end is None else {doing, end}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise SessionLostError
            return doing.result()
        finally:
            doing.cancel()

    async def apart(
        self, step: Callable[[AIOKafkaProducer], Awaitable[_T]], transactional_id: str | None, limit: float
    ) -> _T:
        """Do something with a producer of its own, with another transactional id, or with none.

        Raises:
            KafkaError: no server could be reached within ``limit`` seconds, or what ``step`` raises.

        """
        trouble: BaseException = KafkaConnectionError()
        for server in random.sample(self._config.bootstrap_servers, len(self._config.bootstrap_servers)):
            try:
                async with asyncio.timeout(limit):
                    producer, holdings = await self._started(server, transactional_id=transactional_id)
            except (KafkaError, TimeoutError, OSError) as error:
                trouble = error
                continue
            try:
                return await step(producer)
            finally:
                await self._close_hard(producer, holdings)
        message = f"no server could be reached: {trouble!r}"
        raise KafkaConnectionError(message) from trouble

    async def _add(self, producer: AIOKafkaProducer, batch: LaneBatch, place: TopicPartition) -> Any:
        """Hand a batch to the sender; its future.

        Without `send_batch` around it, which looks the partition up once more: the lane has come from the metadata.
        """
        accumulator: Any = producer._message_accumulator  # noqa: SLF001
        future = await accumulator.add_batch(batch, place, self._config.request_timeout_ms / 1000)
        # It is a shield around the batch's own. Who is cancelled waits no longer, the request goes on, and how it fails
        # would be printed as an exception that was never retrieved.
        accumulator._batches[place][-1].future.add_done_callback(_retrieve)  # noqa: SLF001
        return future

    def partitions(self, topic: str) -> frozenset[int]:
        """The known partitions; empty while the topic is unknown."""
        if self._producer is None:
            return frozenset()
        return frozenset(self._producer.client.cluster.partitions_for_topic(topic) or ())

    def available(self, topic: str) -> frozenset[int]:
        """The partitions that have a leader."""
        if self._producer is None:
            return frozenset()
        return frozenset(self._producer.client.cluster.available_partitions_for_topic(topic) or ())

    @property
    def number(self) -> int | None:
        """Of the connection that it has, each time another one; None while it has none."""
        return self.rebuilds if self.state == "connected" else None

    @property
    def answered(self) -> bool:
        """Kafka was reached once: what it did not tell of then is not there, or not to be seen."""
        return self.rebuilds >= 0

    @property
    def interrupted(self) -> bool:
        """Somebody has cancelled our task: it is begun again after a pause."""
        return self._supervised.interrupted

    def want(self, topic: str) -> None:
        """Keep this topic's metadata from now on."""
        self._topics.add(topic)

    async def discover(self) -> None:
        """Ask for the metadata of all wanted topics now; `on_metadata` tells when something came.

        Raises:
            SessionLostError: the session ended first, or does not tell: a new one is built, but not on a slow line.
            ClosedError: the session is closed.

        """
        producer = await self._ready()
        end = self._end
        producer.client.set_topics(self._topics)
        self._followed = set(self._topics)
        updating = asyncio.ensure_future(producer.client.force_metadata_update())
        # A metadata task that was ended leaves its future for ever, so the end of the session is waited for as well.
        waiting = {updating} if end is None else {updating, end}
        await asyncio.wait(waiting, timeout=METADATA_LIMIT, return_when=asyncio.FIRST_COMPLETED)
        if not updating.done():
            if not self._silence.moves(time.monotonic()):
                self.give_up(f"no metadata within {METADATA_LIMIT:.0f} s")
            raise SessionLostError
        if updating.result():  # else nobody answered, and what is known is old
            self._on_metadata()

    def connected_brokers(self) -> list[str]:
        """Where it has connections, but for brokers that were silent: one that is frozen may have some yet."""
        if self._producer is None:
            return []
        known = self._producer.client._conns.items()  # noqa: SLF001
        connections = [one for (node_id, _), one in known if one.connected() and node_id not in self.silent]
        return list(dict.fromkeys(_address(one.host, one.port) for one in connections))

    def give_up(self, reason: str) -> None:
        """Build a new session: this one cannot be trusted any more."""
        if self._end is not None and not self._end.done():
            self._end.set_result(reason)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, in the background: a broker is not needed to start."""
        chatter.begin(self._chatter)
        self._supervised.start(self._context)

    async def close(self) -> None:
        """End within a few seconds, whatever the broker does; batches in flight fail with `SessionLostError`."""
        self._closing = True
        self._connected.set()
        running = self._supervised.end()
        try:
            self._detach()
            waiting = running | self._closers
            while waiting:  # our own task may have begun to close a producer that was only just starting
                await asyncio.wait(waiting)
                waiting = {task for task in self._closers if not task.done()}
        finally:
            self._set_state("closed")
            chatter.end(self._chatter)

    async def connected_within(self, limit: float) -> bool:
        """Whether batches can be sent, now or within ``limit`` seconds; also when it is closed meanwhile."""
        if not self._connected.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._connected.wait()
        return self._connected.is_set()

    async def _ready(self) -> AIOKafkaProducer:
        while self._producer is None or not self._connected.is_set():
            if self._closing:
                message = "the producer is stopped"
                raise ClosedError(message)
            await self._connected.wait()
        return self._producer

    async def _run(self) -> None:
        """Connect, watch, drop; also from the middle, when our task was cancelled and is begun again."""
        while not self._closing:
            try:
                if self._producer is None:
                    await self._connect()
                reason = await self._watch()
                self._set_state("connecting", reason)
                await self._drop()
                await self._pause()
            except Exception:
                log.exception("the kafka session failed unexpectedly: connecting anew")
                await asyncio.sleep(RECONNECT_MAX)

    async def _pause(self) -> None:
        """A session that lasted is replaced at once; one after the other that does not, ever more slowly."""
        if time.monotonic() - self._since > STEADY:
            self._rebuilding.reset()
            return
        await asyncio.sleep(self._rebuilding.next())

    async def _connect(self) -> None:
        """One server after the other, in rounds, until one answers.

        Not the whole list at once: aiokafka tries one after the other too, and its first that accepts connections and
        never answers would use up the time of all.
        """
        servers = list(self._config.bootstrap_servers)
        while True:
            random.shuffle(servers)
            causes: dict[str, str] = {}
            wrong: str | None = None
            self._chatter.take_cause()  # of the session before
            answering = self._healthy.connected_brokers() if self._healthy is not None else []
            for server in answering + servers:
                try:
                    producer, holdings = await self._started(server, transactional_id=self.transactional_id)
                except WrongClusterError as error:
                    wrong = error.found
                except Exception as error:  # noqa: BLE001 - whatever it is, records wait: try on
                    kind, text = self._chatter.take_cause() or (type(error).__name__, repr(chatter.worded(error)))
                    causes[kind] = text
                else:
                    self._take(producer, holdings)
                    return
            self._tell_unreachable(causes)
            self._on_round(wrong)
            await asyncio.sleep(self._reconnecting.next())

    async def _started(self, server: str, *, transactional_id: str | None) -> tuple[AIOKafkaProducer, Holdings]:
        producer = AIOKafkaProducer(**self._options(server), transactional_id=transactional_id)
        alone = self._healthy is not None
        Requests(producer, longest=self._patience, alone=alone, silent=self.silent, on_moving=self._on_moving)
        starting = asyncio.timeout(CONNECT_LIMIT)
        guard = ClusterGuard(producer.client, self.cluster, lambda found: self._on_wrong(producer, starting, found))
        if self._healthy is not None:  # its lanes have identities: it must not wait for a frozen broker to give one
            producer._txn_manager.set_pid_and_epoch(0, 0)  # noqa: SLF001
        holdings = Holdings(producer)
        if transactional_id is not None:
            retrieve_errors(producer)
            note_refusals(producer)
            give_up_unanswered(producer, partial(self._give_up_of, producer))
        if transactional_id is not None and transactional_id == self.transactional_id:
            note_unfinished(producer, self._on_unfinished)
        try:
            async with starting:
                try:
                    await producer.start()
                except BaseException as error:
                    close_bootstrap(error)
                    raise
                if guard.wrong is not None:
                    raise WrongClusterError(guard.wrong)  # noqa: TRY301 - closed as after any other failure
                # Time for a checkpoint, which has a limit of its own: cut off, it would be begun again each time.
                starting.reschedule(asyncio.get_running_loop().time() + REMEMBER_LIMIT + CONNECT_LIMIT)
                await self.cluster.admit(guard.found)
                if self.transactional_id is None:  # else the position decides, and no identity outlives its process
                    await self.cluster.learn_expiration(partial(ask_expiration_ms, producer.client, server))
                await producer.client.set_topics(self._topics)
        except BaseException as error:
            await self._close_hard(producer, holdings)
            if guard.wrong is not None:
                raise WrongClusterError(guard.wrong) from error
            raise
        return producer, holdings

    def _give_up_of(self, producer: AIOKafkaProducer, reason: str) -> None:
        """As `give_up`, of the session that this one is; that it may be closing is known."""
        if producer is self._producer:
            self.give_up(reason)

    def _on_unfinished(self, unfinished: bool) -> None:  # noqa: FBT001 - the answer to a question
        if not unfinished:
            self.unfinished_since = None
        elif self.unfinished_since is None:
            self.unfinished_since = asyncio.get_running_loop().time()
        self.start_refused = unfinished and self._producer is None

    def _tell_unreachable(self, causes: Mapping[str, str]) -> None:
        """One line for each kind of trouble, not two a second; ``causes``: the text of each error by its class."""
        self.trouble = next(iter(causes.values()), self.trouble)
        for kind in causes.keys() - self._known_troubles:
            self._known_troubles.add(kind)
            servers = ",".join(self._config.bootstrap_servers)
            held_back = self._chatter.take()
            what = _REFUSED.get(kind, "kafka cannot be reached")
            log.warning("%s, trying on error=%s bootstrap_servers=%s%s", what, causes[kind], servers, held_back)

    def _on_round(self, found: str | None) -> None:
        """Another cluster answered in this round of attempts, or (None) no longer."""
        if self._healthy is not None:  # the other session tells, and decides
            return
        self.cluster.is_wrong(found)
        self.state = "connecting" if found is None else "wrong_cluster"
        self._tell_wrong(found, "")

    def _tell_wrong(self, found: str | None, whose: str) -> None:
        """One line for each other cluster; ``whose``: of what it is the cluster, "" of all who answered."""
        if found is None or found in self._known_troubles:
            return
        self._known_troubles.add(found)
        servers = ",".join(self._config.bootstrap_servers)
        log.error("%s%s bootstrap_servers=%s%s", whose, self.cluster.error(found), servers, self._chatter.take())

    def _take(self, producer: AIOKafkaProducer, holdings: Holdings) -> None:
        self._producer = producer
        self._holdings = holdings
        self._followed = set()
        self._end = asyncio.get_running_loop().create_future()
        for task, what in (
            (producer._sender.sender_task, "aiokafka's sender ended"),  # noqa: SLF001
            (producer.client._sync_task, "aiokafka's metadata task ended"),  # noqa: SLF001
        ):
            if task is not None:
                task.add_done_callback(lambda _, what=what: self._ended(producer, what))
        producer.client.cluster.add_listener(lambda _: self._on_metadata())
        self.rebuilds += 1
        self._known_troubles.clear()
        self._reconnecting.reset()
        self._since = time.monotonic()
        self._silence.forget()
        self._connected.set()
        self._set_state("connected")
        self._on_metadata()

    def _on_wrong(self, producer: AIOKafkaProducer, starting: asyncio.Timeout, found: str) -> None:
        """One of its brokers belongs to another cluster: the others go on, and if there are none, it is given up."""
        if producer is self._producer:
            self._tell_wrong(found, "of one broker: ")
        elif starting.when() is not None and not starting.expired():  # aiokafka would ask it again and again
            starting.reschedule(asyncio.get_running_loop().time())

    def _ended(self, producer: AIOKafkaProducer, what: str) -> None:
        if producer is self._producer:  # one that was dropped may end later, and concerns nobody any more
            self.give_up(what)

    async def _watch(self) -> str:
        """Return when the session has to be given up, and why."""
        producer, end = self._producer, self._end
        reached = time.monotonic()
        while producer is not None and end is not None:
            await asyncio.wait({end}, timeout=WATCH_INTERVAL)
            if end.done():
                return end.result()
            now = time.monotonic()
            if _is_connected(producer):
                reached = now
            else:  # idle connections are closed: this opens one, if anybody is there
                producer.client.force_metadata_update()
            if now - reached > UNREACHABLE_LIMIT:
                return "no broker that it knows can be reached"
            if self._is_silent(now):
                return f"no answer for {self._patience:g} s"
            if producer._sender.sender_task.cancelling():  # noqa: SLF001 - it may still wait for a frozen broker
                return "aiokafka's sender was cancelled"
            if held_back := self._chatter.take_due(now):
                log.warning("kafka is reached, but not well%s", held_back)
        return "it has no producer"

    def _is_silent(self, now: float) -> bool:
        """Whether nobody gets an answer; of suspects that is expected."""
        return self._healthy is None and self._silence.lasts(now) > self._patience

    def _on_moving(self) -> None:
        self._silence.moved(time.monotonic())

    async def _drop(self) -> None:
        closer = self._detach()
        if closer is not None:
            await asyncio.wait({closer})

    def _detach(self) -> "asyncio.Task[None] | None":
        """Part with the producer at once; the task that closes it."""
        if not self._closing:  # else whoever waits finds out
            self._connected.clear()
        producer, self._producer = self._producer, None
        holdings, self._holdings = self._holdings, None
        return self._closer(producer, holdings) if producer is not None and holdings is not None else None

    def _closer(self, producer: AIOKafkaProducer, holdings: Holdings) -> "asyncio.Task[None]":
        """Close in a task of its own: half closed, a producer would leak, and ours may be cancelled at any moment."""
        closing = self._context.copy().run(close_hard, producer, holdings)  # a copy: it may be the one that runs
        closer = asyncio.get_running_loop().create_task(closing, name="aiorecover-closer", context=self._context)
        self._closers.add(closer)
        closer.add_done_callback(self._closers.discard)
        return closer

    async def _close_hard(self, producer: AIOKafkaProducer, holdings: Holdings) -> None:
        await asyncio.wait({self._closer(producer, holdings)})

    def _set_state(self, state: str, reason: str = "") -> None:
        """One line for each change, with what aiokafka said meanwhile; a loss is a warning."""
        if state == self.state:
            return
        self.state = state
        self.trouble = reason
        log.log(
            logging.WARNING if reason else logging.INFO,
            "%s state=%s bootstrap_servers=%s%s%s",
            self._title,
            state,
            ",".join(self._config.bootstrap_servers),
            f" reason={reason!r} batches_in_flight={self._silence.in_flight}"
            if reason
            else f" rebuilds={max(0, self.rebuilds)}",
            self._chatter.take(),
        )

    def _options(self, server: str) -> dict[str, Any]:
        return {
            **self._config.client,
            "bootstrap_servers": server,
            "request_timeout_ms": self._config.request_timeout_ms,
            "retry_backoff_ms": self._config.retry_backoff_ms,
            "max_batch_size": self._config.max_batch_size,
            "enable_idempotence": True,
            "acks": "all",
        }


async def _awaited(step: Awaitable[_T]) -> _T:
    return await step


def _is_connected(producer: AIOKafkaProducer) -> bool:
    return any(connection.connected() for connection in producer.client._conns.values())  # noqa: SLF001


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
