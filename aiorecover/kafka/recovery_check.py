"""Look in Kafka for batches that may have been sent before (R11): in another boot, or under an identity too old.

A partition is read from the first offset at or after the oldest of the lane's timestamps, less ten minutes, to its end.
The lane's last batch one of whose ids is there, and all before it, are settled. A reader is shown what the followers
have, so they have to have all that is in the leader's log first: a request of an earlier life may wait for them there.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka
from aiokafka.protocol.offset import OffsetRequest

from aiorecover.kafka.client import FAILURES
from aiorecover.kafka.lanes import DeliveryLane
from aiorecover.record_id import record_id_of
from aiorecover.ring.format import BatchState
from aiorecover.ring.records import DamagedRecordError, id_of, walk
from aiorecover.ring.segments import Batch

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery

MARGIN_MS = 600_000  # clocks of producers and brokers differ
READ_S = 1.0  # for one answer
LATEST = -1  # asks for the end
READER, ANY_REPLICA = -1, -2  # in place of a replica: the answer is where readers end, or where the leader's log does
LOOKS, LOOK_S = 20, 0.05  # at how far the followers are, before the lane is tried again later
LIMIT_S = 60.0  # for one lane: then its records may come twice, and delivery goes on
CONSUMER_OPTIONS = (
    *("bootstrap_servers", "client_id", "request_timeout_ms", "security_protocol", "ssl_context", "sasl_mechanism"),
    *("sasl_plain_username", "sasl_plain_password", "sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
    "sasl_oauth_token_provider",
)

_log = logging.getLogger("aiorecover")


class RecoveryCheck:
    """Read partitions, one lane at a time."""

    def __init__(self, delivery: "Delivery") -> None:
        self.delivery = delivery
        self._lock = asyncio.Lock()

    @property
    def reading(self) -> bool:
        """Whether a lane is being looked for."""
        return self._lock.locked()

    async def look(self, lane: DeliveryLane) -> bool:
        """Settle what Kafka has of a lane's batches that have objects, unless ``recovery_check`` is off.

        The lane is held. False: Kafka is not reached, has no leader, or followers that are behind, for the moment;
        nothing was decided.
        """
        batches = list(lane.stored.queue)
        if not batches or not self.delivery.options.check:
            return True
        async with self._lock:
            try:
                async with asyncio.timeout(LIMIT_S):
                    if not await self._shows_all(lane):
                        return False
                    found = await self._read(lane, batches)
            except (*FAILURES, TimeoutError) as error:
                if getattr(error, "retriable", False) or isinstance(error, kafka.KafkaTimeoutError):
                    return False
                self.delivery.throttle.warn(
                    "recovery_check_failed",
                    lane.stored,
                    "cannot look for what was sent before, it may come twice: grant Read lane=%s error=%r",
                    lane.stored,
                    error,
                )
                lane.checked = True
                self.end_doubt(lane)
                self._send_anew(batches)
                return True
        last = max((number for number, batch in enumerate(batches) if _ids(batch) & found), default=-1)
        lane.checked = last + 1 < len(batches)  # else those that come after are looked for, too
        for batch in batches[: last + 1]:
            self.delivery.settle_found(lane, batch)
        self._send_anew(batches[last + 1 :])
        self.end_doubt(lane)
        return True

    def _send_anew(self, batches: list[Batch]) -> None:
        """Give other identities to batches that are not in Kafka, or cannot be looked for."""
        for batch in batches:
            if batch.state is BatchState.SENT and batch.identity is None:
                batch.store(BatchState.SEALED, self.delivery.ring.epoch)

    def end_doubt(self, lane: DeliveryLane) -> None:
        """Send the next batches under another identity: a request that arrives late must not pass for one (R13)."""
        if lane.doubt:
            lane.doubt = False
            self.delivery.renew(lane)

    async def _shows_all(self, lane: DeliveryLane) -> bool:
        """Wait until readers are shown all that is in the leader's log now; False: its followers are behind.

        Nothing is lost by waiting: a batch that is sent meanwhile would wait for the same followers.
        """
        log_end = await self._end(lane, ANY_REPLICA)
        for _ in range(LOOKS):
            if await self._end(lane, READER) >= log_end:
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def _end(self, lane: DeliveryLane, replica: int) -> int:
        topic, partition = lane.stored.topic, lane.stored.partition
        request = OffsetRequest(replica, 0, [(topic, [(partition, LATEST)])])
        try:
            answer = await self.delivery.client.ask(lane.topic.leaders.get(partition, -1), request)
        except TimeoutError as error:
            raise kafka.KafkaTimeoutError("the leader does not answer") from error
        ((_, ((_, code, _, offset),)),) = answer.topics
        if code:
            raise kafka.for_code(code)
        end: int = offset
        return end

    async def _read(self, lane: DeliveryLane, batches: list[Batch]) -> set[str | None]:
        """Return the ids of what the partition holds since the oldest of the batches; None is one without an id."""
        options = {name: value for name, value in self.delivery.client.options.items() if name in CONSUMER_OPTIONS}
        consumer = AIOKafkaConsumer(
            group_id=None, enable_auto_commit=False, isolation_level="read_committed", **options
        )
        partition = TopicPartition(lane.stored.topic, lane.stored.partition)
        try:
            await consumer.start()
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            since = min(min(batch.base, batch.accepted_at * 1000) for batch in batches) - MARGIN_MS
            place = (await consumer.offsets_for_times({partition: max(0, since)}))[partition]
            if place is None or place.offset >= end:
                return set()
            consumer.seek(partition, place.offset)
            found: set[str | None] = set()
            while await consumer.position(partition) < end:
                read = await consumer.getmany(partition, timeout_ms=int(READ_S * 1000), max_records=5000)
                found.update(record_id_of(record.headers) for record in read.get(partition, ()))
            return found
        finally:
            await consumer.stop()


def _ids(batch: Batch) -> set[str]:
    data = bytes(batch.read())
    try:
        return {"{}/{}/{}".format(*id_of(data, span[4])) for span in walk(data)}
    except DamagedRecordError:
        return set()
