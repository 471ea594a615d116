"""Delivery: batches go from the ring to Kafka as they lie there, in order. This is its specification.

    `router`          which lane a record belongs to, which broker task looks at a lane
    `lanes`           the states of a lane: one table
    `broker_task`     one task a broker: gather, one request in flight, what each answer means
    `produce`         the bytes of a request
    `outcomes`        what each error code means: one table
    `delivery`        what can go, and what each outcome leads to
    `connection`      reached or not, which cluster, who leads which partition
    `waiters`         callers that wait for all, or for one batch
    `rewrite`         a batch's records laid out anew as other batches
    `expiry`, `dead_letter_topic`     what became too old; copies of dead letters
    `recovery_check`  looking in Kafka for what may have been sent before
    `transactions`    exactly once
    `client`          everything that is asked of Kafka, over aiokafka's client
    `log_throttle`    log lines that repeat

The way of a lane
=================
                 first record        lingered, or full         request
        IDLE ───────────────▶ FILLING ──────────────▶ SEALED ─────────▶ IN FLIGHT ──▶ by what is left in it
                                                          ▲                  │ no
                                                          └── BACKING OFF ◀──┘
        HELD: its oldest batch is rewritten, looked for or reported, or waits for the topic's older records or a flush.
        HALTED: until the next start (``on_permanent_error="halt"``, or the lane of dead letters is full).

While a lane has a batch in flight, its next one goes on filling: batches grow with the load by themselves. An open
batch lingers; lanes that would be due within half a linger go along; a task with many lanes lingers longer, up to
0.25 s. A request takes 256 lanes or 4 MiB, 32 of the lanes new to their broker.

A batch is refused, delayed or lost by itself: an answer about one partition says nothing about its neighbours. Where
others in a request got through and a partition waits for its replicas, its lane is in trouble and goes through the
broker's second connection. Where nothing got through, the broker is slow: the replicas get twice the time.

Rules
=====
R7  *Send.* A lane's oldest unfinished batch; identity, SENT, then the request; SETTLED only after the
    acknowledgement (and after ``on_delivery``). A repeat has the same identity and count. ``fsync="always"``: only
    what a completed flush covers. Nothing is sent before what earlier lives left is in the lanes.
R8  *Rewrite.* Children, a flush, REPLACED, a flush; until then the parent keeps its place in its lane, so that nothing
    overtakes it. No batch changes its lane except from unassigned, or to the lane of dead letters; requeuing publishes
    anew.
R9  *Unassigned.* A lane's batch waits while its topic has an unassigned one with a smaller order. Once partitions
    are known, records are published straight to their lanes.
R11 *Read-back* (``recovery_check``). A SENT batch whose identity counts no more (another boot, another file, 12 h) is
    looked for in Kafka, as is what another boot left, and one that may have been persisted, before it is split,
    buried, or given another identity: once the followers have all that the leader has, the partition is read from ten
    minutes before the oldest of its records. The lane's last batch one of whose ids is there, and all before it, are
    settled. Without the right to read, or within a minute, they may come twice. What expires while Kafka cannot be read
    is buried all the same, and may be in both.
R12 *Exactly once.* In transactions, each with a number that is stored in its batches before it begins and committed
    with it. Fence; read N; done is what is SETTLED, or has 0 < number ≤ N; numbers above N are cleared; the next
    number is above both. A batch is sent only once AddPartitionsToTxn answered 0 for every partition. No number in
    Kafka means unknown: then the highest number of a settled batch, or of the checkpoint, counts.
R13 *Identity.* A start has a Kafka producer id of its own; only SENT batches keep the one they were sent under.
    Sequences wrap modulo 2³¹. A lane whose identity is lost, or some of whose sequences may be in Kafka under records
    that are not sent again, goes on under the next producer epoch, at sequence 0.

Metadata is asked for topics that have records waiting (these are made, where the cluster makes topics), or were
published to within ``metadata_max_age_ms`` (these are not), never for all. A topic or partition that is not there, a
right that is missing, an advertised address that cannot be reached, credentials that are refused: records wait, the
cause is named once a minute in the log, and in `DeliveryPendingError`; the others go on. Refused credentials are
tried again after ten seconds and more. A cluster with another id gets nothing.

Bounds
======
Back-off: ``retry_backoff_ms``, doubled up to ``retry_backoff_max_ms`` (rights, settings: five seconds), with jitter. A
read-back takes a minute a lane at the most. A rewrite lays out 16 unassigned batches with one pair of flushes, and
holds the loop for 2 ms at a time. Dead letters hold a quarter of the ring. The keys of a topic whose lane is
remembered: 100,000.
"""
