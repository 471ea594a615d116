"""A frozen picture of a producer, for people and for metrics."""

import msgspec


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since `start`; ``accepted + recovered == delivered + dead_lettered + lost + pending`` at any moment (I9).

    accepted: records stored by `publish`, and copies for ``dead_letter_topic`` and by ``dead_letters.requeue``.
    dead_lettered: records that Kafka refused for good, or that expired, and the dead ring keeps, since `start`.
    expired: of these, records that could not be delivered within ``delivery_timeout_ms``.
    lost: accepted or recovered records that damage took before they were delivered; they are among the ``missing``, and
        ``pending`` until their slot was counted anew: seconds, or two minutes where the disk cannot be read.
    recovered: records of earlier epochs found unsettled so far. The ring is read as Kafka takes what stands in it, and
        not much ahead: in an outage most of it is ``unread``.
    unread: records of earlier epochs that have not been looked at yet, settled ones among them. What a process that was
        killed stored behind its last checkpoint, in its last slot, is not known before it is read.
    pending: records in the ring that are not settled; in_flight of them are on their way to Kafka.
    records_left: ``pending`` and ``unread`` together.
    seconds_left: what these will take at the rate of the last half minute; None when nothing was delivered in it, or
        nothing is for some seconds, or the oldest of them does not get through, whatever flows past it.
    undeliverable: records that cannot be decoded and stay in the ring; see the log.
    slots_moved: slots of the ring that were freed by copying what still waits in them to the retry ring, and
        records_moved: what was copied then. They are ``pending``, as before.
    batches_resumed: what the last process had in flight and this one sends again as it was, for Kafka to recognise.
    recovered_in_kafka: records that the recovery check found in Kafka, so that they were not sent again; they count as
        delivered, too.
    identities_renewed: lanes that took a fresh Kafka identity, also those whose old one an opening could not trust,
        those that parted with a record of a batch that may be in Kafka, and those that did not get through for longer
        than the brokers remember. What they had in flight may be there twice. One for the file `lanes`, where that was
        lost, and one for each entry that is gone, where a part of it was.
    lanes_suspect: lanes that did not get through while others did, and go through a session apart.
    lanes_stalled: lanes that do not get through and have no room: their records wait in the ring, and others go on.
        Behind a start also those that catch up with what earlier processes had passed over.
    missing: records that damage took away, at most (some may have been delivered or purged before), as far as the three
        files were read; see the log for each.
    bytes_used: size of the slots that hold something still needed: ``bytes_ring + bytes_retry + bytes_dead``.
    bytes_allocated: size of the three rings on the disk; at most ``wal_max_bytes``, unless the directory was opened
        with less than it had.
    wal_max_bytes, wal_min_free_bytes: the limits, as given.
    full: there was no room for another slot, and publishing is refused, or waits, until there is some again.
    directories_adopted: directories of processes that are gone, delivered to the end by this one.
    records_adopted: delivered or dead-lettered of such directories; in no other count here.
    adoption_pending: known to be left in such directories that this process has taken up.
    cluster_id: of the Kafka cluster that the records go to: the one that the option names, or else the one that the
        directory remembers; None: none was reached yet, or it tells no id.
    wrong_cluster_id: of another one that answers in its place, so that nothing is delivered, or
        empty where it tells none and the option names one; None on a good day.
    """

    state: str
    accepted: int
    recovered: int
    unread: int
    delivered: int
    dead_lettered: int
    lost: int
    expired: int
    pending: int
    in_flight: int
    records_left: int
    seconds_left: float | None
    missing: int
    undeliverable: int
    epoch: int
    watermark: int
    bytes_used: int
    bytes_ring: int
    bytes_retry: int
    bytes_dead: int
    bytes_allocated: int
    wal_max_bytes: int
    wal_min_free_bytes: int
    full: bool
    checkpoints: int
    slots_moved: int
    records_moved: int
    rebuilds: int
    batches_resent: int
    batches_resumed: int
    recovered_in_kafka: int
    identities_renewed: int
    callback_errors: int
    lanes: int
    lanes_halted: int
    lanes_suspect: int
    lanes_stalled: int
    directories_adopted: int
    records_adopted: int
    adoption_pending: int
    cluster_id: str | None = None
    wrong_cluster_id: str | None = None
