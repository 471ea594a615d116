"""Delivery: every frame that is not settled goes to Kafka, in order, until Kafka has acknowledged it.

    ring ─> reader ─> dispatcher ─> lane (topic, partition) ─> batch ─> session (AIOKafkaProducer) ─> Kafka
                                                                 │
    ring <─ settle <─ on_delivery <─ sender <── acknowledgement ─┘

One path
    New records, an outage's backlog and what a crash left are the same thing: frames that are not settled. There is no
    queue of records beside the ring; what is in memory is bounded (32 MiB of closed batches, two full batches a lane).

Lane
    One batch in flight; the next one only after its acknowledgement. A batch is bytes that never change: after an
    error, a time-out or the death of a session the very same bytes are sent again, under the same Kafka identity
    (producer id, epoch, base sequence), and the broker answers a repeat instead of appending it. The identity belongs
    to the lane, not to aiokafka's session; sequences wrap modulo 2^31. When the broker no longer follows it, the lane
    takes producer epoch + 1 and sequence 0.

Journal
    Before a batch is sent it is written down in the file `lanes`: its identity and its frames (`journal`, I6b). A batch
    holds at most 4,096 words of these. An entry is overwritten only when its batch is settled, was refused with nothing
    possibly persisted, or its lane took a fresh identity; a lane that finds no room for one
    waits. While the disk fails delivery goes on (I7), under the next producer epoch: whoever finds what stands there
    instead, and uses its identity, is fenced.

    The next process goes through the entries before anything is read (`resume`). One that can be trusted goes on: if
    all its records are settled it is spent, and gives the lane's next sequence; if not, its frames are claimed and sent
    again as the very same batch, before all else of the lane, whatever partitions, batch size or compression there are
    today. The broker answers a repeat if it had come through, and no late batch of the dead process can be appended
    behind it: exactly once across the death of the process, without transactions.

    A batch in flight whose slot is moved to the retry ring is written down once more with its copies, before the
    checkpoint that makes the move (`Journal.repoint`): the next process takes those frames of the two that count.

    In doubt a lane begins with a fresh identity, under a new Kafka producer id (never epoch + 1: two copies of a
    directory would swallow each other's records), and its records are delivered as any others; those that were in
    flight may appear twice. In doubt is an entry of another boot, of another file (a copied directory), older than
    half of what Kafka keeps an identity, of which a copy is damaged, or a frame; and any, while settle words are
    suspect. So is a lane whose partition acknowledges an offset that was given before: its topic was made anew.

Session
    One AIOKafkaProducer at a time, idempotent, acks=all. Start needs no broker. A session is closed hard, within a
    bounded time, and built anew from the bootstrap list when its sender died, when nothing was answered for
    ``request_timeout_ms`` with batches in flight, or when an error says so (`outcomes`).

Dispatcher
    Never longer than a few milliseconds without giving the loop a turn. Linger is a rhythm: every ``linger_ms`` what is
    open is handed over, at once or right behind the batch in flight. Before Kafka has answered once, nothing is
    dispatched. Records of an unknown topic, or of a partition that does not exist, are passed over and the others go
    on; once the metadata knows it, a second reader goes back to the first record passed over, up to where the first
    reader stands, and only then the lane is open again: its order is kept (I6).

After a power cut
    Settle words may be lost in any order. The dispatcher knows the lanes, so it applies the lane suffix rule of `wal`:
    within a lane, what stands behind the first record that is not settled is sent again, settled or not.

Errors
    One table (`outcomes`). Retriable: for ever. Permanent: in this version the lane is halted, loudly; its records stay
    in the ring and are tried again after the next start. Nothing is dropped.

Reports
    `on_delivery` is called before settling, so at least once for each record, also across a crash. Reports are read
    back from the frames: nothing is kept for records that nobody asks about.

Limits
    A lane whose partition does not answer holds up the dispatcher once its two batches wait (the retry drain will pass
    it over in a later version).
"""
