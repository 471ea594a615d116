"""What `publish` gives back, and what Kafka said of a record."""

from typing import Any, Literal, Protocol

import msgspec

from aiorecover.record import record_id


class DeliveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a record.

    ``status``: ``"delivered"`` or ``"dead_lettered"``. ``partition`` and ``offset`` are None where they are no longer
    known (the report was asked for long after the delivery, or the broker had seen the batch before).
    ``timestamp_ms``: milliseconds since 1970, as given to `publish`, or the time of that call; what a topic stamps its
    records with (``LogAppendTime``) is not told. None where the record is not there to be looked at any more.
    ``context``: what was given to `publish`, as plain data. ``error``: why a dead letter was refused.
    """

    topic: str
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    record_id: str
    context: Any = None
    status: Literal["delivered", "dead_lettered"] = "delivered"
    error: str | None = None


class Origin(Protocol):
    """The producer behind a receipt."""

    producer_id: str
    epoch: int

    async def wait_delivered(self, receipt: "Receipt", timeout_ms: int | None) -> DeliveryReport:
        """Wait until the receipt's record is settled."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A record was accepted: it is in the ring and survives the death of the process.

    It is not awaitable itself; it is valid as long as its producer.
    """

    _origin: Any  # an Origin; not tracked by the garbage collector, and never pointing back here
    topic: str
    sequence: int
    _place: int

    @property
    def epoch(self) -> int:
        """The opening of the directory that accepted it."""
        epoch: int = self._origin.epoch
        return epoch

    @property
    def record_id(self) -> str:
        """``producer id/epoch/sequence``, as in the Kafka header ``aiorecover-id``; never given twice."""
        return record_id(self._origin.producer_id, self._origin.epoch, self.sequence)

    async def delivered(self, timeout_ms: int | None = None) -> DeliveryReport:
        """Wait until the record is in Kafka; where it is there already, others get their turns as with `publish`.

        Args:
            timeout_ms: at most so long, in milliseconds; None waits until it is settled or the producer stops.

        Raises:
            ConfigError: ``timeout_ms`` is no number of milliseconds.
            DeliveryPendingError: not settled within the time, or its lane is halted for another record; it stays in
                the ring: do not publish it again.
            PermanentDeliveryError: it became a dead letter, it was refused and its lane is halted, or damage took it
                from the disk.
            ClosedError: the producer was stopped first; the record is delivered after the next start.
            RecoverError: the producer runs in another event loop.

        """
        report: DeliveryReport = await self._origin.wait_delivered(self, timeout_ms)
        return report

    def __repr__(self) -> str:
        """Topic and id; enough to find the record again."""
        return f"Receipt(topic={self.topic!r}, record_id={self.record_id!r})"
