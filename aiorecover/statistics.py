"""A frozen picture of a producer, for people and for metrics."""

import msgspec


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since `start`; ``accepted + recovered == delivered + dead_lettered + pending`` at any moment (I9).

    accepted: records stored by `publish`.
    recovered: records of earlier epochs found unsettled so far.
    unread: at most so many records of earlier epochs that have not been looked at yet.
    pending: records in the ring that are not settled; in_flight of them are on their way to Kafka.
    undeliverable: records in the ring that cannot be decoded; see the log.
    lanes_suspect: lanes that did not get through while others did, and go through a session apart.
    missing: sequences that damage took away; see the log for each.
    """

    state: str
    accepted: int
    recovered: int
    unread: int
    delivered: int
    dead_lettered: int
    pending: int
    in_flight: int
    missing: int
    undeliverable: int
    epoch: int
    watermark: int
    bytes_used: int
    bytes_allocated: int
    checkpoints: int
    rebuilds: int
    batches_resent: int
    callback_errors: int
    lanes: int
    lanes_halted: int
    lanes_suspect: int
