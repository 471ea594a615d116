"""The connection to Kafka: reached or not, which cluster, which broker leads which partition."""

import asyncio
import random
from typing import TYPE_CHECKING

from aiorecover.errors import WalDestinationError, WalFullError
from aiorecover.kafka.client import ConnectError
from aiorecover.kafka.outcomes import OUTCOMES

if TYPE_CHECKING:
    from aiorecover.kafka.delivery import Delivery

PAUSE_S = 0.05  # between two looks for leaders that are not known, doubled up to the next
NOT_THERE = 3  # Kafka's code
NEW_TOPIC_MISSES = 3  # within 0.4 s: the first question may have the cluster make the topic
NO_LEADER = OUTCOMES[5].reason
PAUSE_MAX_S = 1.0  # so delivery goes on within a second


class Connection:
    """Keep the connection and the metadata.

    Attributes:
        connected: a Kafka producer id is there, and the cluster is the right one.
        producer: Kafka producer id and epoch of this start.
        cause: why Kafka is not reached, or nothing is sent; None: it is.

    """

    def __init__(self, delivery: "Delivery") -> None:
        self.delivery = delivery
        self.connected = False
        self.producer = (-1, -1)
        self.cause: str | None = "not connected yet"
        self._wanted = asyncio.Event()

    def lost_producer(self) -> None:
        """Take another Kafka producer id: the one of this start is not valid any more."""
        self.connected = False
        self._wanted.set()

    def want_metadata(self) -> None:
        """Have metadata asked for, which a lane or a topic needs."""
        self._wanted.set()

    async def watch(self) -> None:
        """Keep the connection and the metadata."""
        pause = PAUSE_S
        while True:
            try:
                if not self.connected:
                    await self._connect()
                settled = await self._refresh()
            except (ConnectError, WalDestinationError, WalFullError) as error:
                self._unreached(str(error))
                settled = False
            if settled:
                pause = PAUSE_S
                self._wanted.clear()
                await self._wait_for_need()
            else:
                await asyncio.sleep(max(pause * random.uniform(0.75, 1.25), self.delivery.client.pause))
                pause = min(2 * pause, PAUSE_MAX_S)

    async def _wait_for_need(self) -> None:
        if self.delivery.client.stale and self.delivery.router.wanted_topics(self.delivery.now(), 0.0):
            await asyncio.sleep(PAUSE_S)
            return
        try:
            async with asyncio.timeout(self.delivery.options.metadata_max_age_s):
                await self._wanted.wait()
        except TimeoutError:
            return

    def _unreached(self, cause: str) -> None:
        self.cause = cause
        self.delivery.throttle.warn("kafka_unreachable", "kafka", "%s", cause)

    async def _connect(self) -> None:
        await self.delivery.client.bootstrap()
        await self._remember_cluster()
        self.producer = await self.delivery.client.new_producer()
        self.connected = True
        self._reached()
        self.delivery.router.replace_all()

    def _reached(self) -> None:
        self.cause = None
        self.delivery.throttle.over("kafka_unreachable", "kafka", "kafka is reached again")

    def check_cluster(self, found: str | None) -> None:
        """Compare a cluster with the one that the records belong to.

        Raises:
            WalDestinationError: it is another one: nothing is sent.

        """
        named, known = self.delivery.options.cluster_id, self.delivery.ring.checkpoint
        if named is None and found is not None:
            self.delivery.ring.directory.check_destination(known.name, None, found)
        elif named is not None and found != named:
            raise WalDestinationError(
                "kafka is not the cluster that the option cluster_id names, nothing is sent: mend one of the two "
                f"found={found!r} cluster_id={named!r}"
            )

    async def _remember_cluster(self) -> None:
        found = self.delivery.client.metadata.cluster_id
        if found is not None and self.delivery.ring.checkpoint.cluster_id != found:
            await self.delivery.in_thread(self.delivery.ring.remember_cluster, found)

    async def _refresh(self) -> bool:
        """Ask for the topics that need it; return whether nothing is missing then."""
        delivery = self.delivery
        router, now = delivery.router, delivery.now()
        waiting = router.wanted_topics(now, 0.0)
        recent = [
            name for name in router.wanted_topics(now, self.delivery.options.metadata_max_age_s) if name not in waiting
        ]
        if not waiting and not recent:
            if self.cause is not None:  # no other question will show that Kafka is back
                await self.delivery.client.refresh((), create=False)
                self._reached()
            return True
        for names, create in ((waiting, True), (recent, False)):
            if names:
                await self.delivery.client.refresh(names, create=create)
                await self._remember_cluster()
                for name in names:
                    await self._learn(name)
        self._reached()
        router.settle_homeless()
        return not router.homeless and not any(
            topic.unassigned is not None and not topic.count and not topic.unassigned.stored.idle
            for topic in router.topics.values()
        )

    async def _learn(self, name: str) -> None:
        topic, found = self.delivery.router.topics[name], self.delivery.client.metadata.topics.get(name)
        if found is None or (found.code and not found.leaders):
            code = NOT_THERE if found is None else found.code
            if code != NOT_THERE or topic.error is None:
                topic.error = (code == NOT_THERE and await self._collision(name)) or _topic_error(name, code)
            topic.misses += 1
            if topic.busy and topic.misses > NEW_TOPIC_MISSES:
                self.delivery.throttle.warn("topic_unavailable", name, "%s", topic.error)
            return
        self.delivery.throttle.over("topic_unavailable", name, "the topic is there now topic=%s", name)
        if self.delivery.router.learn(name, len(found.leaders), found.leaders) or topic.gate is not None:
            self.delivery.rewriter.assign(topic)
        for lane in topic.lanes.values():
            leader = found.leaders.get(lane.stored.partition)
            if lane.stored.idle or (leader is not None and leader >= 0):
                continue
            if leader is None:
                lane.error = f"the topic has no such partition lane={lane.stored} partitions={topic.count}"
                self.delivery.throttle.warn("partition_missing", lane.stored, "%s", lane.error)
            elif lane.error != NO_LEADER:  # a topic that was just made has none for a moment
                lane.error = NO_LEADER
            else:
                message = "%s: its records wait lane=%s"
                self.delivery.throttle.warn("delivery_failed", lane.stored, message, NO_LEADER, lane.stored)

    async def _collision(self, name: str) -> str | None:
        """Return why the cluster cannot make a topic: another's name differs in '.' and '_' only; None: it does not."""
        others = {name.replace(".", "_"), name.replace("_", ".")} - {name}
        found = (await self.delivery.client.refresh(others, create=False)).topics if others else {}
        there = [other for other in others if other in found and found[other].leaders]
        return f"the topic cannot be made: its name collides with {there[0]} topic={name}" if there else None


def _topic_error(name: str, code: int) -> str:
    reasons = {
        NOT_THERE: "the topic is not there: make it, or let the cluster make topics by itself",
        5: "the topic is being made",
        17: "kafka refuses the name: perhaps it collides with another topic's, where '.' and '_' are the same",
        29: "not authorized: grant Describe and Write on the topic",
    }
    return f"{reasons.get(code, f'kafka answers with error code {code}')} topic={name}"
