"""`Statistics`: the counts and the state of a producer at one moment, for people and for metrics."""

import msgspec


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of records since `start`: accepted + recovered = delivered + dead_lettered + damaged + pending (R15).

    Attributes:
        recovered: records of earlier epochs, found waiting at the opening; not known while ``recovering`` is True.
        pending: records accepted or recovered and not done.
        dead_letters: records in the lane of dead letters, those of earlier starts too.
        oldest_age_seconds: since the oldest record that waits was accepted; None: nothing waits.
        bytes_used: of segments that belong to lanes.
        bytes_allocated: ``bytes_used``, and free segments that keep their disk space.
        full: the limit, or the volume's, does not let a lane take another segment.
        flush_failed: the disk failed: nothing is accepted until the directory is opened again.
        requests: to brokers, with records.
        errors: answers about a partition that were no acknowledgement.
        callback_errors: exceptions that ``on_delivery`` raised.
        lanes: topic-partitions that records were published to.
        lanes_in_trouble: those of them that do not get through.
        lanes_halted: those of them that wait for the next start.
        directories_adopted: directories of processes that are gone, delivered to the end.
        records_adopted: records of such directories that were delivered, or became dead letters; in no other count.

    """

    state: str
    accepted: int
    recovered: int
    delivered: int
    dead_lettered: int
    damaged: int
    pending: int
    recovering: bool
    dead_letters: int
    oldest_age_seconds: float | None
    epoch: int
    bytes_used: int
    bytes_allocated: int
    wal_max_bytes: int
    wal_min_free_bytes: int
    full: bool
    flushes: int
    flush_failed: bool
    requests: int
    errors: int
    callback_errors: int
    lanes: int
    lanes_in_trouble: int
    lanes_halted: int
    directories_adopted: int
    records_adopted: int
    cluster_id: str | None = None

    @property
    def records_left(self) -> int:
        """The records that the next start would find: ``pending``."""
        return self.pending
