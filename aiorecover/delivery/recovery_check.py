"""Reads the tails of the lanes back that were in flight when nobody knows what became of it.

Where an entry of the journal cannot be trusted, what was in flight would be sent again under another identity, and may
stand twice. So before anything of earlier epochs is dispatched, the tails of those lanes are read from the last offset
known to be acknowledged, and what is found there is settled instead of sent (`in_kafka` tells what counts as found,
`wal.suffix` what follows from it for the rest of the lane).

Best effort, and bounded: in time (`CHECK_LIMIT`), how far back (`in_kafka.LOOK_BACK`) and in memory. A tail that could
not be read to its end counts for nothing, and its lane goes on as without the check; a leader that does not answer ends
it for all. Entries are durable with a checkpoint: of a lane that was first used since the last one before a power cut
nothing is known, nor of one that has left its block to another lane on a full disk (`journaling`). Records that are
published meanwhile are stored, and wait behind the others; what is sent again as the very same batch does not wait. Its
consumer's connections are asked for their cluster, as the session's are: what stands in another one says nothing of
ours.
"""

import asyncio
import logging
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import ConsumerRecord, TopicPartition

from aiorecover.config import Config
from aiorecover.delivery.cluster import WrongClusterError
from aiorecover.delivery.cluster_guard import ClusterGuard
from aiorecover.delivery.hard_close import SessionLostError, close_bootstrap
from aiorecover.delivery.in_kafka import Hint, InKafka, content_of, first_offset
from aiorecover.delivery.session import Session
from aiorecover.errors import ClosedError
from aiorecover.record import RECORD_ID_HEADER

log = logging.getLogger("aiorecover.delivery")

CHECK_LIMIT = 10.0  # seconds from Kafka's first answer: delivery must not wait longer for less to stand there twice
REQUEST_LIMIT_MS = 3_000  # one server that does not answer must leave time for the others
CLOSE_LIMIT = 1.0  # seconds: closing takes milliseconds, unless the peer's kernel does not answer either
POLL_MS = 200  # how long one look waits; it comes back at once when there is something
STEP = 256  # records between two turns of the loop: about 2 ms of work
PARTITION_BYTES = 256 * 1024  # asked of one partition at a time, and
FETCH_BYTES = 4 * 1024 * 1024  # of one broker: what aiokafka holds for us stays below 16 MB
TOPICS_TOLD = 5  # in one line

NOT_THERE = "kafka does not know the partition, or it has no leader, or this user must not see it"
ELSEWHERE = "a broker belongs to another cluster, look at bootstrap_servers"
NOT_ALLOWED = "kafka does not let this user read the topic, grant Read or set recovery_check=False"

_SECURITY = (
    *("client_id", "metadata_max_age_ms", "security_protocol", "ssl_context", "sasl_mechanism"),
    *("sasl_plain_username", "sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
    "sasl_oauth_token_provider",
)


class RecoveryCheck:
    """One check; ``found`` is complete when `over` is true."""

    def __init__(self, config: Config, session: Session, hints: Sequence[Hint], found: InKafka) -> None:
        """``hints``: the lanes whose tails are read; none: there is nothing to do. ``found`` is filled."""
        self._config = config
        self._session = session
        self._hints = {TopicPartition(hint.topic, hint.partition): hint for hint in hints}
        self.found = found
        self.over = not hints
        self.reading = False  # and it ends within CHECK_LIMIT
        self._wanted = asyncio.Event()

    def holds(self, *, own_epoch: bool) -> bool:
        """Whether the next record in the ring has to wait; ``own_epoch``: it was published by this process.

        Nothing is read back before a record of an earlier epoch comes: after a clean end none does.
        """
        if own_epoch and not self._wanted.is_set():
            self.over = True
        self._wanted.set()
        return not self.over

    async def run(self) -> None:
        """Wait for Kafka, then read; also from the start again, when our task was cancelled and is begun again."""
        await self._wanted.wait()
        if self.over:
            return
        try:
            await self._session.identity()
        except ClosedError:
            return
        self.reading = True
        try:
            await self._run()
        finally:
            self.reading = False

    async def _run(self) -> None:
        unread = dict(self._hints)
        reason = f"it took more than {CHECK_LIMIT:.0f} s: look at the brokers"
        try:
            async with asyncio.timeout(CHECK_LIMIT):
                reason = await self._check(unread) or reason
        except ClosedError:
            return
        except TimeoutError:
            pass
        except WrongClusterError:
            reason = ELSEWHERE
        except Exception as error:  # noqa: BLE001 - whatever it is: records must go on, as without the check
            reason = repr(error)
        for lane in unread:
            self.found.forget((lane.topic, lane.partition))
        self.found.read_up()
        self.over = True
        self._tell({lane.topic for lane in unread}, len(unread), reason)

    def _tell(self, topics: set[str], unread: int, reason: str) -> None:
        read = len(self._hints) - unread
        log.info("the tails of lanes were read back lanes=%d records_in_kafka=%d", read, len(self.found))
        if unread:
            log.warning(
                "the recovery check cannot tell for every lane, what was in flight there may appear twice: %s "
                "lanes=%d topics=%s",
                reason,
                unread,
                ",".join(sorted(topics)[:TOPICS_TOLD]),
            )

    async def _check(self, unread: dict[TopicPartition, Hint]) -> str:
        """Read what can be read, and take it out of ``unread``; why something is left."""
        lanes = await self._existing()
        reason = NOT_THERE if len(lanes) < len(unread) else ""
        if not lanes:
            return reason
        consumer = AIOKafkaConsumer(**self._options())
        guard = ClusterGuard(consumer._client, self._session.cluster, lambda _: None)  # noqa: SLF001
        try:
            try:
                await consumer.start()
            except BaseException as error:
                close_bootstrap(error)
                raise
            return await self._read(consumer, guard, lanes, unread) or reason
        finally:
            await _close(consumer)

    async def _existing(self) -> list[TopicPartition]:
        """The lanes that have a leader: aiokafka would ask for the others until the end, and hold up these."""
        for lane in self._hints:
            self._session.want(lane.topic)
        while True:
            try:
                await self._session.discover()
            except SessionLostError:
                continue
            return [lane for lane in self._hints if lane.partition in self._session.available(lane.topic)]

    async def _read(
        self,
        consumer: AIOKafkaConsumer,
        guard: ClusterGuard,
        lanes: list[TopicPartition],
        unread: dict[TopicPartition, Hint],
    ) -> str:
        beginnings, ends = await consumer.beginning_offsets(lanes), await consumer.end_offsets(lanes)
        at = {lane: first_offset(self._hints[lane].offset, beginnings[lane], ends[lane], len(lanes)) for lane in lanes}
        reason = ""
        _begin(consumer, at)
        while True:
            through = [lane for lane in at if at[lane] >= ends[lane]]
            for lane in through:
                del at[lane], unread[lane]
            if not at:
                return reason
            if guard.wrong is not None:
                return ELSEWHERE
            if self.found.full:
                return "there are more records in kafka than it may remember"
            consumer.pause(*through)  # not assigned anew: that throws away what has come of the others
            try:
                await self._look(consumer, at)
            except TopicAuthorizationFailedError as error:
                allowed = {lane: offset for lane, offset in at.items() if lane.topic not in error.args}
                if len(allowed) == len(at):
                    raise
                at, reason = allowed, NOT_ALLOWED
                if at:
                    _begin(consumer, at)

    async def _look(self, consumer: AIOKafkaConsumer, at: dict[TopicPartition, int]) -> None:
        """What has come, some of it at a time; ``at`` goes on."""
        for lane, records in (await consumer.getmany(timeout_ms=POLL_MS, max_records=STEP)).items():
            for record in records if lane in at else ():
                self._note(record)
        for lane in at:
            at[lane] = await consumer.position(lane)
        await asyncio.sleep(0)

    def _note(self, record: "ConsumerRecord[bytes, bytes]") -> None:
        name = next((value for header, value in reversed(record.headers) if header == RECORD_ID_HEADER), None)
        if name is not None:
            lane = record.topic, record.partition
            self.found.note(lane, record.offset, name, content_of(record.key, record.value))

    def _options(self) -> dict[str, object]:
        client = self._config.client
        return {
            **{name: client[name] for name in _SECURITY if name in client},
            "bootstrap_servers": self._session.connected_brokers() or list(self._config.bootstrap_servers),
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "request_timeout_ms": min(REQUEST_LIMIT_MS, self._config.request_timeout_ms),
            "max_partition_fetch_bytes": PARTITION_BYTES,
            "fetch_max_bytes": FETCH_BYTES,
            "fetch_max_wait_ms": POLL_MS,
        }


def _begin(consumer: AIOKafkaConsumer, at: dict[TopicPartition, int]) -> None:
    """Read these, from there on."""
    consumer.assign(list(at))
    for lane, offset in at.items():
        consumer.seek(lane, offset)


async def _close(consumer: AIOKafkaConsumer) -> None:
    """Within a bounded time, also when the check itself is being cancelled."""
    closing = asyncio.ensure_future(consumer.stop())
    done, _ = await asyncio.wait({closing}, timeout=CLOSE_LIMIT)
    if not done:
        closing.cancel()
        log.warning("the consumer of the recovery check could not be closed in time")
    elif not closing.cancelled() and (error := closing.exception()) is not None and not isinstance(error, KafkaError):
        log.warning("closing the consumer of the recovery check failed error=%r", error)
