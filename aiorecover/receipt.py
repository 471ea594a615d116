"""`Receipt`, which `publish` returns, and `DeliveryReport`, the end of a record."""

from typing import Any, Literal

import msgspec


class DeliveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a record: it is in Kafka, or a dead letter.

    ``status``: ``"delivered"`` or ``"dead_lettered"``. ``partition`` is -1 for a dead letter whose partition was not
    known. ``offset`` is None for a dead letter, and where the broker had the batch already and does not say.
    ``timestamp_ms`` (since 1970) is the record's in ``on_delivery``, None from `Receipt.delivered`. ``context``: what
    `publish` was given, as plain data. ``error``: why it is a dead letter.
    """

    topic: str
    partition: int | None
    offset: int | None
    record_id: str
    timestamp_ms: int | None = None
    context: Any = None
    status: Literal["delivered", "dead_lettered"] = "delivered"
    error: str | None = None


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A record was accepted: it is in the ring and survives the death of the process. Not awaitable itself."""

    sequence: int
    _index: int  # in its batch
    _batch: Any  # aiorecover.ring.segments.Batch; nothing there points back here
    _context: Any = None

    @property
    def topic(self) -> str:
        """The record's topic."""
        topic: str = self._batch.lane.topic
        return topic

    @property
    def epoch(self) -> int:
        """The number of the directory's opening in which the record was accepted."""
        epoch: int = self._batch.epoch
        return epoch

    @property
    def record_id(self) -> str:
        """``producer id/epoch/sequence``, as in the Kafka header ``aiorecover-id``; never given twice."""
        return f"{self._batch.lane.ring.producer_id}/{self.epoch}/{self.sequence}"

    async def delivered(self, timeout_ms: int | None = None) -> DeliveryReport:
        """Wait until the record is in Kafka.

        Args:
            timeout_ms: the time limit in milliseconds; None: until it is settled, or the producer stops.

        Raises:
            ConfigError: ``timeout_ms`` is no number of milliseconds.
            DeliveryPendingError: not within the time; it stays in the ring: do not publish it again.
            PermanentDeliveryError: it became a dead letter, its lane is halted, or damage took it from the disk.
            ClosedError: the producer was stopped first; the record is delivered after the next start.
            RecoverError: the producer runs in another event loop.

        """
        report: DeliveryReport = await self._batch.lane.ring.owner.wait_delivered(self, timeout_ms)
        return report

    def __repr__(self) -> str:
        """Name topic and id: enough to find the record."""
        return f"Receipt(topic={self.topic!r}, record_id={self.record_id!r})"
