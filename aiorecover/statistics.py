"""A frozen picture of a producer, for people and for metrics."""

import msgspec


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of records since `start`: accepted + recovered = delivered + dead_lettered + damaged + pending (R15).

    Attributes:
        recovered: of earlier epochs, found waiting at the opening; not known while ``recovering`` is True.
        pending: accepted or recovered and not done; ``records_left`` is another word for it.
        dead_letters: records in the lane of dead letters, those of earlier starts among them.
        oldest_age_seconds: since the oldest record that waits was accepted; None: nothing waits.
        bytes_used: of segments that belong to lanes.
        bytes_allocated: with those that are free and keep their disk space.
        full: the limit, or the volume's, does not let a lane take another segment.
        lanes: topic-partitions that records were published to.
        lanes_in_trouble: of them, those that do not get through.
        lanes_halted: of them, those that wait for the next start.
        directories_adopted: of processes that are gone, delivered to the end.
        records_adopted: delivered, or dead letters, of such directories; in no other count.
        flush_failed: the disk failed: nothing is accepted until the directory is opened again.

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
        """Records that the next start would find."""
        return self.pending
