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
    takes producer epoch + 1 and sequence 0. An opening takes a new Kafka producer id: records that were in flight when
    the process died may appear twice, each a repeat of what was in flight. (A journal ends that in a later version.)

Two sessions
    aiokafka sends the batches of all lanes of a broker in one request, and the broker answers it when the last of them
    is done: one partition below ``min.insync.replicas``, beside a frozen replica or on a frozen broker holds up all.
    So no error is repeated inside aiokafka, and a request without an answer is given up (`requests`): after 1 s if
    others were answered meanwhile, after 3 s if nobody was, and twice as late each time. Its lanes are suspects then,
    and so is a lane that got nothing but errors for 1 s in which others got through (`suspicion`). Suspects are sent
    through a session apart, made when it is first needed and closed a minute after the last one left: each batch in a
    request of its own, eight connections to a broker. A lane goes back with its first acknowledgement; one that is
    suspect again within a minute has to be well for 1 s, 2 s, 4 s and so on up to a minute first. Attempts are 0.5 s
    apart at most, and all suspects together make about 100 a second. Where nobody gets through, or the second session
    does not connect, no lane moves. A batch is never in both: it moves between two attempts, with its lane's
    identity; what is left of it in a socket the broker answers as a repeat or refuses (`requests` says why).
    ``statistics().lanes_suspect`` counts them, and each move is a line in the log.

Session
    One AIOKafkaProducer at a time, idempotent, acks=all. Start needs no broker: the servers of the bootstrap list are
    tried one by one, each with a time limit of its own. A session is closed hard, within a bounded time, and built anew
    from that list when

    1. aiokafka's sender or its metadata task ended or was cancelled;
    2. no known broker was connected for 2 s (aiokafka asks only those it knows, for ever);
    3. nothing was answered for ``request_timeout_ms`` with batches in flight (but suspects expect that);
    4. metadata that we asked for did not come within 10 s;
    5. an error says so (`outcomes`).

    Attempts to connect are at most 0.6 s apart; a session that did not last 10 s is replaced after a pause that grows
    to about a second; both with jitter. ``statistics().rebuilds`` counts. One log line for each change of state;
    aiokafka's own lines in an outage, about eighty a second, are held back and counted in it (`chatter`).

Tasks cancelled by others
    Whoever cancels "all tasks" cancels ours too. If the loop ends, that is all: nothing is begun again in it for a
    second, and the records are in the ring. If it goes on, delivery does: loops, lanes and the session are begun again
    after that second, and until then ``state`` is "interrupted".

Time limits
    Every await of something that Kafka, a thread or the user decides has a time limit, or ends with the stop. Stop has
    its time, whatever hangs: what aiokafka holds is ended before the first await, so that a closing which is itself
    cancelled leaves nothing either.

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
