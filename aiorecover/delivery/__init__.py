"""Delivery: every frame that is not settled goes to Kafka, in order, until Kafka has acknowledged it.

    ring ─> reader ─> dispatcher ─> lane (topic, partition) ─> batch ─> session (AIOKafkaProducer) ─> Kafka
                                                                 │
    ring <─ settle <─ on_delivery <─ sender <── acknowledgement ─┤
    ring <─ settle <─ on_delivery <─ dead ring <──────── refusal ┘

One path
    New records, an outage's backlog and what a crash left are the same thing: frames that are not settled. There is no
    queue of records beside the ring; what is in memory is bounded (32 MiB of closed batches; of a lane one in flight,
    two full ones behind it, and one that is being filled; in transactions 64 MiB, of whatever lanes).

Lane
    One batch in flight; the next one only after its acknowledgement. A batch is bytes that never change: after an
    error, a time-out or the death of a session the very same bytes are sent again, under the same Kafka identity
    (producer id, epoch, base sequence), and the broker answers a repeat instead of appending it. The identity belongs
    to the lane, not to aiokafka's session; sequences wrap modulo 2^31. When the broker no longer follows it, the lane
    takes producer epoch + 1 and sequence 0; once all epochs are used up, some 32,000, the producer id of a new
    session. Where the broker knows a later epoch somebody else uses it, and has sequence 0 of the next one perhaps: the
    lane takes one drawn at random above that, lest its records count as repeats of theirs. Should a batch ever be
    acknowledged at the offset, and under the identity, of one of the lane's last five, it was taken for a repeat of
    that: it is not settled, but sent again under the next epoch.

Journal
    Before a batch is sent it is written down in the file `lanes`: its identity and its frames (`journal`, I6b). A batch
    holds at most 4,096 words of these, with room for what a move adds to them. An entry is overwritten only when its
    batch is settled, was refused or has expired with nothing possibly persisted, is parted with (below), or its lane
    took a fresh identity. A lane that finds no room for its first one takes the block of another one, whose entry is
    spent, and that one takes some other block with its next batch; where there is no such lane, it does not get through
    until there is one, or room. While the disk fails delivery goes on (I7), under the next producer epoch: whoever
    finds what stands there instead, and uses its identity, is fenced.

    The next process goes through the entries before anything is read (`resume`). If all records of one are settled it
    is spent. If not, and it can be trusted, its frames are claimed and sent again as the very same batch, before all
    else of the lane, whatever partitions, batch size or compression there are today. The broker answers a repeat if it
    had come through, and no late batch of the dead process can be appended behind it: exactly once across the death of
    the process, without transactions. What follows goes under the new session's identity: a directory that was restored
    from a copy, inodes and all, would else use sequences again under which the broker knows other batches, and lose its
    records to that. Only where such a batch is parted with before it is acknowledged, as its age is up or it is refused
    for good, does its lane go on under its producer id: under a later epoch, drawn at random, of which a copy would
    hardly take the same (`Identity.fence`; once its epochs are used up there is none). What is left of the batch in the
    dead process's kernel, or in a session's socket, is refused then once anything has followed (I6).

    A batch in flight whose slot is moved to the retry ring is written down once more with its copies, before the
    checkpoint that makes the move (`Journal.repoint`): the next process takes those frames of the two that count. So is
    what stands in the entry though it was cut since. Afterwards batches stand where the copies are (`go_along`). No
    move of a slot begins while what the last process had in flight there is not built again (`Moves.may_move`).

    In doubt a lane begins with a fresh identity, under a new Kafka producer id (never epoch + 1: two copies of a
    directory would swallow each other's records), and its records are delivered as any others; those that were in
    flight may appear twice (but see the recovery check). In doubt is an entry of another boot, of another file (a
    copied directory), of another cluster, from the future, or older than 12 h: half of what Kafka keeps an identity by
    default, or half of `producer.id.expiration.ms` where the brokers have told the last process that it is less (they
    append what they have forgotten, as if it were new; each process asks once, `identity_life`, and who may not read it
    keeps to the 12 h); twice as old with ``recovery_check=False``: where nothing can be looked for it is certainly
    repeated, so it is trusted for as long as the brokers keep it; one of records that were all stamped that long ago,
    by the clock on the wall, or by one that was not set (before 2025): a broker counts from the newest timestamp of the
    batch, not from when it came (unless the topic stamps them itself, which nothing here tells; and not with
    ``recovery_check=False``, when the batch is best sent as it was); of which a copy is damaged, or a frame, or a slot
    gone that nothing else tells of (the next one has its number); each of two of one lane; any of frames whose settle
    words are suspect; and any that was stored before words became so, for a failed flush may have lost the one behind
    it. So is a lane whose partition acknowledges an offset that was given before: its topic was made anew. An entry in
    doubt is never trusted again. Of each lane one stays until its records are settled, but for those of another boot or
    file: so a start that dies before its recovery check has run leaves the next one what it needs for its own. A file
    `lanes` without header and entries, beside records that wait, was lost: that is one doubt, of nobody knows how many
    lanes, and nothing tells the recovery check where to read. (Not after a power cut, which takes what was never
    flushed, and leaves all of it in doubt.) Of a file that was only cut off, or zeroed in part, the header tells how
    many entries it held: each that is gone is a doubt, of nobody knows which lane, as long as something waits. (Entries
    of earlier boots may be among them, so these are the most lanes that it can be.) Where the header itself is gone,
    with a part of the entries, only those that are left are counted. A block of which one copy was zeroed is damaged;
    only of the second entry that was ever stored there nobody can tell that it is gone: the first one passes for the
    newest, and is spent.

Partitions that are gone
    Kafka takes no partition from a topic: one that is gone was deleted with its topic, with all that it held, and the
    topic was made anew with fewer. Metadata may be stale as well, so a partition with something in its lane counts as
    gone only once Kafka has named the same others in every answer for 20 s (`gone`; an outage begins them anew); until
    then the lane tries on, and a topic for which the last process has left something in flight there is not opened.
    Then what was in flight there is routed anew, as a topic's records are at each start, before all else of the topic:
    the entry of the journal is cleared first, the records go in new batches under other identities, each key in its
    order (`rehoming`). Should the partition be there after all, what it has of that batch is in Kafka twice:
    ``statistics().identities_renewed`` counts the lane. What was in flight to a partition that is still there goes
    there, as it was.

    While a process lives, what is in the lane, and behind it, waits: one ERROR line says so, and what to do. The next
    start routes it anew, all but the records that name their partition. For those there is no other: they wait until it
    is there, or become dead letters with ``delivery_timeout_ms``.

Two sessions
    aiokafka sends the batches of all lanes of a broker in one request, and the broker answers it when the last of them
    is done: one partition below ``min.insync.replicas``, beside a frozen replica or on a frozen broker holds up all. So
    no error is repeated inside aiokafka, and a request without an answer is given up (`requests`): after 1 s if others
    were answered meanwhile, after 3 s if nobody was, and twice as late each time, counted from when its bytes moved
    last (`taken`): a slow line is no silence, however long it takes. Its lanes are suspects then, and so is a lane that
    got nothing but errors for 1 s in which others got through (`suspicion`). Suspects are sent through a session apart,
    made when it is first needed, with brokers that were not silent if there are any, and closed a minute after the last
    one left, or had nothing to send any more: each batch in a request of its own, eight connections to a broker. Where
    more of them wait, none has longer than 4 s, unless that was too short again and again: a proxy may hide how slow
    the line behind it is. A lane goes back with its first acknowledgement; one that is suspect again within a minute
    has to be well for 1 s, 2 s, 4 s and so on up to a minute first. Attempts are 0.5 s apart at most, and all suspects
    together make about 100 a second. Where nobody gets through, errors move no lane, but silence does: in each request
    may be a partition that holds up the others. Where the second session does not connect, no lane moves. A batch is
    never in both: it moves between two attempts, with its lane's identity; what is left of it in a socket the broker
    answers as a repeat or refuses (`requests` says why). ``statistics().lanes_suspect`` counts them; all that were
    moved in a minute are one line in the log.

Session
    One AIOKafkaProducer at a time, idempotent, acks=all. Start needs no broker: the servers of the bootstrap list are
    tried one by one, each with a time limit of its own. A session is closed hard, within a bounded time, and built anew
    from that list when

    1. aiokafka's sender or its metadata task ended or was cancelled;
    2. no known broker was connected for 2 s (aiokafka asks only those it knows, for ever);
    3. nothing was answered for ``request_timeout_ms`` with batches in flight, and nothing moved (but suspects expect
       that);
    4. metadata that we asked for did not come within 10 s, and nothing moved;
    5. an error says so (`outcomes`);
    6. the position, or the end, of a transaction was not answered: asked for once more under the same epoch, the first
       one could come late and count for a later transaction (`transaction`).

    A broker that belongs to another cluster now is refused, and told of once; the others go on. Where none is left, no
    known one is connected (2).

    Attempts to connect are at most 0.6 s apart; a session that did not last 10 s is replaced after a pause that grows
    to about a second; both with jitter. ``statistics().rebuilds`` counts. One log line for each change of state;
    aiokafka's own lines in an outage, about eighty a second, are held back and counted in it (`chatter`).

One cluster
    A directory belongs to the Kafka cluster that its first records went to (`cluster`): the id is durable in a
    checkpoint before the first batch is sent. Each connection is asked for its cluster before it is used
    (`cluster_guard`): one small request for each broker. Where another one answers, nothing is sent to it
    and nothing is adopted; `publish` goes on, ``state`` is "wrong_cluster", one ERROR line names the remedy, and who
    waits for delivery is told at once instead of never. The servers are tried on, and with the right one delivery goes
    on. A cluster that was replaced on purpose is named by ``cluster_id``, and remembered once it has answered. The new
    one may have given the identities of the journal to somebody else, and would take our batches for repeats of his:
    none of them is used there, and what was in flight to the old one is sent as any other records. Until it has
    answered its name may be mistyped, so entries stay as they are (`resume.Left`), and the next start can still use
    them. The checkpoint that remembers it also counts the clusters, and entries bear that number: those of the one
    before count from then on no more, wherever a process dies. A broker that tells no id
    is refused where the option names one, and else not compared, which is said once (`cluster`). The recovery check's
    connections are asked, too.

Tasks cancelled by others
    Whoever cancels "all tasks" cancels ours too. If the loop ends, that is all: nothing is begun again in it for a
    second, and the records are in the ring. If it goes on, delivery does: loops, lanes and the session are begun again
    after that second, and until then ``state`` is "interrupted".

Time limits
    Every await of something that Kafka, a thread or the user decides has a time limit, or ends with the stop. Stop has
    its time, whatever hangs: what aiokafka holds is ended before the first await, so that a closing which is itself
    cancelled leaves nothing either. Of two stops the shorter limit counts. A stop, and whoever has adopted a directory,
    waits until all is settled but what waits for halted lanes.

Dispatcher
    Never longer than a few milliseconds without giving the loop a turn; a fifth of one until something is acknowledged,
    for after a crash it passes over settled frames while the session connects. Linger is a rhythm: every ``linger_ms``
    what is open is handed over, at once or right behind the batch in flight; of more than 64 lanes the oldest first, 64
    in a turn of the loop. While more is to be read, no more than some 3,300 of them a second, and none lingers longer
    than 0.5 s, or ``linger_ms``: a batch costs about as much with one record as with twenty, and those of a thousand
    lanes would take all of the time (`lingering`). Before Kafka has answered once, nothing is dispatched. Records of an
    unknown topic, of a partition that does not exist, or of a stalled lane are passed over and the others go on
    (`behind`, `gaps`); once they can be delivered, a second reader goes back to the first record passed over, up to
    where the first reader stands, and only then the lane is open again: its order is kept (I6).

Partitioner
    The user's is asked once for a record with a key, and its answer is remembered; for records without a key once for
    each batch. Where it fails, the record waits, and with it its whole topic: any of its lanes could be the record's.
    It is asked again as often as Kafka is for topics that are not known, every 0.5 to 10 s, for as long as it takes:
    what would pass the record before it is a dead letter could pass it for good.

Stalled lanes
    A lane without room holds up the dispatcher, and so the ring, for as long as it takes: that is what keeps memory
    bounded. Unless it is stalled (`stalls`): attempts to send what it has in flight, or to write it down first, have
    failed for 1 s, each by itself, while the same session was connected. Then its records are passed over (`stalled`),
    and nothing is kept of them but where the first one stands. What it holds already (three batches) stays with it, and
    does not count for the others. But theirs become smaller with it, down to 16 KiB: all stalled lanes together hold 64
    MiB at most, and 48 KiB each where they are more than a thousand. The batch in flight goes on trying.

    What is passed over is read twice. So where nobody gets through, the ring is the queue: one lane is passed over on
    trial, and the next ones only after somebody got through, or one by one after 1 s, 2 s, 4 s, up to a minute.

    With its first acknowledgement a lane is gone back for (`drain`): after half a second, in which others come back,
    too; if it stalled before within a minute, after 1 s, 2 s, up to 30 s, with jitter. One pass over the ring does for
    all lanes that came back together. Those that stand further back get readers of their own, four at a time, which
    take turns, two for each of the first reader's. A lane that stalls again on the way back stays behind from there on,
    and keeps no other waiting; one that is merely slow holds up those of its pass, as it would the dispatcher.

    If its topic grows meanwhile, what is behind goes to the lane in which it is behind, and only what comes after it is
    spread anew: each lane keeps its order. Where a partitioner of the user's chooses, one stalled lane keeps its whole
    topic waiting, as the next record may be its own; one that names that partition, those alone that name it, too.
    After a crash there is nothing to remember: all of it is unsettled, and stands in the two rings in order. The retry
    ring is read first. A lane that has no room for what stands there is passed over at once, though it gets through:
    else the records of all others would wait until the last of it has, on a slow line for hours.

    What waits for such lanes in the oldest slot of the ring is moved to the retry ring (`compactor`), once nobody else
    waits for what the slot holds (`moves`): lanes that do not get through, halted ones, topics that nobody knows. So
    the ring goes on, and all files together hold what is stalled and a few slots. While such a lane is well again and
    catches up slowly the main ring holds at most twice what waits in it and four slots, and what comes between two
    checkpoints, as far as the retry ring has room: what it has not reached, and what it has in batches by then, is
    moved under it. Once it has caught up, its last batches wait as those of any lane that gets through. The retry ring,
    in which its reader stands, is not rewritten before that has left it. A record keeps its position, its id and
    whatever decides about its lane; first and second readers read both rings as one (`wal.stream`). What is in a batch
    already stays in it, and is settled in both places: it stands before the beginning of every gap that covers it, so
    nobody takes it from the retry ring again.

    Records without key and partition go to lanes that get through, unless a partitioner of the user's chooses. Those
    that were given to one that does not stay there, since they are possibly persisted. Where no lane of the topic takes
    any, they wait like the others.

After a power cut
    Settle words may be lost in any order. The dispatcher knows the lanes, so it applies the lane suffix rule of `wal`
    (`judge`): within a lane, what stands behind the first record that is not settled is sent again, settled or not.
    A record that is passed over is judged by who comes back for it, but waits until then, whatever its word says, where
    something before it in its lane was sent again: that may be recycled by then. One that expires counts as sent again:
    nothing tells that it was not, before the power went.

Recovery check
    Where entries of the journal are in doubt, the tails of their lanes are read back before anything of earlier epochs
    is dispatched, from some 4,096 before the last offset that was acknowledged when the entry was stored, up to the end
    (`recovery_check`), and 400,000 offsets of all lanes together at most: what stands before these is not looked for,
    and may repeat. A record that is found there by its exact id, and with its content, is announced and settled
    instead of sent (`in_kafka`). Everything is held for that long, 10 s at most; `publish` goes on.

    What counts as found of a lane is in the order of the ring: where its tail goes back, to a suffix that was sent
    again, only the newest appearances count. So Kafka stays in order whatever is sent then, by the suffix rule: a
    record that is found behind one that is missing is sent again with it; behind one that was found without a settle
    word, settle words count for nothing, and what is not found is sent. A record without key and partition counts for
    itself. What stands in another partition than its key leads to today is not looked for.

    What cannot be read to its end (no permission, a topic that is gone, too slow, too much) counts for nothing: one
    warning, and it goes on as without. ``recovery_check=False`` reads nothing. ``statistics().recovered_in_kafka``
    counts.

Exactly once
    With ``guarantee="exactly_once"`` all of this is in transactions: runs of the ring without a gap, each with the
    position that it ends at, by which the next process knows what is in Kafka (`position_in_kafka`). There is one
    session, its transactional id is the directory's. No journal, no second session, no recovery check, no moves to the
    retry ring: the position decides, and a lane that does not get through holds up all. Nothing is passed over: the
    dispatcher waits in front of a record whose lane is not known. What is refused, cut, or too old is dealt with as
    above, within the run: its neighbours are committed in the same transaction, which is not aborted for it. A batch
    that may be in the transaction, and is refused or expires, ends the transaction: the next one begins with what it
    held. Where a power cut takes settle words, the position covers what they said.

    The position is an offset that the group `aiorecover-` and the directory's name has committed, for partition 0 of a
    topic, with who committed it in its metadata. It is read back from the group's coordinator: no topic of ours has to
    be made, compacted or read, and Kafka commits it in the records' own transaction (`transaction`). The topic is
    `__consumer_offsets`: every cluster has it, and nobody deletes it; an offset goes with its topic.

    Kafka checks rights to that topic, though nothing of it is read or written: Describe to look the position up, Read
    to commit it; Read on the group; Write and Describe on the transactional id, which begins with the group's name. Who
    may not have Read on `__consumer_offsets` gets the position beside his records, under the first topic that
    something is published to and that is there; then Read is needed on that one. One warning says which. That is chosen
    once, before anything was committed: where the first look is refused, or where it finds nothing and the first commit
    is refused, which holds no records. The choice is in a durable checkpoint, with what was found there, before the
    position is committed there: who dies between the look and that chooses anew. From then on, as from the first commit
    on in the other place, it stays: found in one place while it is committed in another, it would have records sent
    again, or none at all. So a right that is taken away, or was never there for the place that was chosen, holds up
    all: one line names it, no records are sent that would only be aborted, and the same session asks on twice a second
    (`position_in_kafka`).

    A topic that may not be written to holds up all in the same way: the transaction is lost, with its session, whose
    sequences it has used up, and the next session sends nothing before Kafka takes records of that topic. It is asked
    with transactions that hold nothing, after pauses that double up to ``retry_backoff_max_ms`` until something is
    committed (`topic_rights`); one line names the right, and one says that it is there. Meanwhile what is in lanes
    expires as ever, and a topic of which they hold nothing any more is not asked for.

    How long: Kafka forgets an offset of a group without members as long after its last commit as
    `offsets.retention.minutes` says (seven days by default). Nothing is committed to keep it: where nothing waits
    settle words say the same, but for what is said below.

    Not covered: where Kafka has forgotten the position (`offsets.retention.minutes`), settle words count, of which a
    power cut may have taken some, and which a death right behind a commit keeps from being stored. A directory restored
    from a copy whose last start had never reached Kafka sends what it holds of that start again, if the original did,
    too. A topic that is made anew loses what was in it, committed or not. A dead letter within what was committed, of
    which a power cut took the settle word, stays one, but is told of as delivered.

Errors
    One table (`outcomes`). Retriable: for ever, or up to an age (below). Permanent: the records themselves are refused
    (below). Nothing is dropped. Who has waited in vain is told what is in the way at that moment (`delay`).

Poison
    A batch that is refused for good is cut in the same session, in order, until the record at fault stands alone, in at
    most 2 log2(n) + 2 sends for one among n (`halving`). What is too large is cut into smaller batches first; only a
    record that is refused by itself is at fault. Where none is, the topic's limit is below the batch size: the lane
    fills its batches up to what was taken from then on, and now and then tries a larger one (`size_limit`). The next
    batch takes the refused one's place in the sequence, if no attempt of it was possibly persisted: no answer of that
    kind, no session lost with it, and no repeat by aiokafka itself, which builds the bytes once for each request and so
    can be counted. Otherwise the lane takes producer epoch + 1 first: the broker would answer the next batch as a
    repeat, and not append it. And that a single record was parted with is written down right before it is settled,
    unless the disk fails: what may be on its way of it, the next process fences (Journal), if this one dies before
    anything followed. (Dead in between, it is sent again behind the fence, and may stand twice if the topic was
    mended.)

    Kafka looks at the records before it looks whether it has the batch: a refusal does not say that it is not there.
    One that was appended, its answer lost, and is refused when it is sent again, as the topic has become stricter
    meanwhile, is cut all the same. So its good records come twice, without a crash, as a whole suffix:
    ``1 2 poison 3 4 1 2 3 4``. ``statistics().identities_renewed`` counts the lane. So they do where an attempt is late
    on its way, and the topic mended, before what is written down as the first part has followed.

    The record at fault is copied to the dead ring with its original position, its partition, the error, the attempts
    and their times (`refusal`); the dead ring is flushed; `on_delivery` is called; then the record is settled (I3), and
    the lane goes on. After a crash in between it is refused once more, found in the dead ring by its position, and
    settled: there is one letter. If Kafka takes it then, as the topic was mended, none is left (`withdraw`; in
    transactions before that one is committed: the position covers letters, too); so until it is settled, `requeue`
    leaves the letter. A frame whose checksum holds and which cannot be decoded becomes a letter, too, without a topic.
    ``on_permanent_error="halt"``: cut in the same way, and then the lane stands until the next start; who waits for the
    record at fault gets a `PermanentDeliveryError`, and for one behind it, which nobody has refused, a
    `DeliveryPendingError`. What cannot be decoded stays in the ring.

    Timestamps grow old in an outage, and a topic may refuse what is older than an hour. A record is at fault only if
    its timestamp was wrong from the start: earlier than its acceptance (`wal.ages`) by more than a minute and by more
    than it has waited since, or later by more than a minute (`timestamps`). A batch without such a record is not cut
    (`untimely`): the lane does not get through, as with too few replicas in sync, and the very same batch is tried on
    until the topic takes it, or its age (below) is up; under "halt", too. One line a lane, and one when it gets
    through. What waits for a wrong clock passes when its time has come, also where the clock was set meanwhile in the
    same process. Another process knows nothing of a clock that was fast: what it stamped, ahead of the clock of today,
    counts as wrong, whoever was there when it was set.

    A dead ring without room halts the lane, loudly, until somebody purges; its batches stay as they are, and what comes
    for it is passed over (`behind`). The others go on: those of the same topic too, unless a partitioner of the user's
    decides: the next record may be the lane's own. ``dead_letter_topic``: published there through the ring, at least
    once (`dead_letter_topic`). A letter changes its place then; who goes through the dead ring sees each letter that
    was there at the beginning once all the same (`moment`). Some seconds behind a start what earlier processes left is
    read once, a window at a time and without hurry, each first by the keeper's thread (`stocktaking`): so what damage
    took meanwhile is told though nobody asks for letters. One that rots later is named as missing by who goes through
    it next; who purges or requeues has the slots in which some did counted anew, so they keep no room.

Age
    With ``delivery_timeout_ms`` a record that is older becomes a dead letter (``error="DeliveryTimeout"``), wherever it
    waits (`expiry`): in the ring, also before Kafka was ever reached; behind; in a lane, between two attempts to send
    it. Its age counts from its acceptance, whatever its timestamp says (`wal.ages`): never too early, and too late by
    an eighth (a sixteenth between two marks, one between two looks) and a second (a lane without a session looks so
    often) at most, beside the end of an attempt that is under way: a request has ``request_timeout_ms`` (and what its
    bytes need on a slow line), and a pause follows. Ages rise with the position, so each lane parts
    with what comes first and keeps its order; letters stand in the order of a lane, unless some of it was in a batch.

    A batch is cut in front of the first record that is young enough. What an attempt may have brought to Kafka says
    ``persisted="possibly"``, and so do records of earlier epochs where the journal was in doubt. The lane takes a fresh
    identity then, as after a refusal; where Kafka has the batch, what is young in it comes twice, without a crash, as a
    whole suffix: ``old young young`` (``identities_renewed`` counts the lane). What the last process had in flight is
    no exception, whether Kafka was reached since or not: its letter comes when its age is up, and what follows fences
    it (Journal), so it may still appear where it belongs, but never behind what is newer. That it was parted with is
    written down before anything of it is settled, unless the disk fails: so the next process fences it, too, if this
    one dies before anything followed.

    What is too old stands in a durable checkpoint before the first letter is stored, and nothing is sent before the
    letters of earlier processes are known: a crash in between leaves one letter, and no delivery. (But not if the
    option is another one at the next start.) After a power cut records are judged first, and what the recovery check
    reads back is waited for.

    Nobody parts with a record before its letter is durable: the reader waits with it, the lane keeps its batch. So
    where the dead ring cannot be flushed nothing expires any more, and neither does it without room: records are tried
    on, no lane halts. Who is slow to be told (`on_delivery`) keeps only the partition of his record waiting
    (`telling`): what comes of it is passed over meanwhile. After a power cut, which may have taken the journal's word
    with it, records of earlier epochs say ``persisted="possibly"``, whatever they are refused for. Copies for
    ``dead_letter_topic`` never expire. All that expires within a minute is one line in the log.
    ``statistics().expired`` counts.

Clocks
    Pauses and limits go by the loop's clock, which stands still while the machine sleeps: they end that much later, and
    connections that died meanwhile are found out by the time limits. The journal's entries and ages go by the time
    since boot, which goes on. The clock on the wall is for people and for timestamps (letters, `publish`), gives turns
    to others only beside a count of calls, and tells ages across boots; it may jump.

    A batch may be in Kafka, its answer lost, and not get through for longer than the brokers keep an identity: in an
    outage, in a stalled lane, in a process that stood still. What they told counts, all of it (`is_forgotten`), or a
    day, since the first attempt under that identity that may have come through: no later one that they recognise begins
    their count anew. (What the last process had in flight counts since it was written down.) Then it goes on under a
    fresh one, as where it is parted with, and what came through of it is there twice, as a whole suffix:
    ``statistics().identities_renewed`` counts the lane. It would be there twice in any case, if they have forgotten it,
    and nobody would know; and a copy of it that is late on its way is fenced. Twice, but not counted, is also what is
    stamped longer ago than that, wherever an answer is lost and the broker looks for whom to forget (every ten minutes)
    before the next attempt: only reading back would tell, and that is done for what the last process had in flight
    alone.

Reports
    `on_delivery` is called before settling, so at least once for each record, also across a crash. Its lane waits for
    it, record by record, 30 s for each at most, as for a partition that does not answer. What it raises is counted, one
    line a minute at most tells of it, and the record is settled; so it is where it cancels the task that calls it
    (`stepping`). Not what is to end the process, `KeyboardInterrupt` and `SystemExit`: should that live on, it is told
    again. Reports are read back from the frames: nothing is kept
    for records that nobody asks about. Who waits for a record that became a dead letter gets a
    `PermanentDeliveryError`; who asks for it later too, as long as it is one of the last 65,536. So does who waits for
    one that damage took from the ring, once its slot is counted anew (`wal.recount`), or nothing waits in it any more;
    `on_delivery` is not called for it, and it is in no lane. Where some of what is damaged there is in somebody's hands
    he waits until that is settled, as nothing tells the two apart. Who asks later about one that had been moved, where
    damage took some, and it is not among the last 65,536 delivered, gets that error, too: nobody knows any more. Who is
    the first to meet the damage waits as long as the others; where none was ever lost there, his record was settled
    before it rotted, and he gets its report. What is in a batch when its frame rots is delivered and settled as any
    other (`holders`): a batch is sent, cut and told of by its own bytes, and only a letter needs the frame (`frames`
    says what comes of it). ``statistics().lost`` counts.

Manifests
    With ``audit_topic`` it is told, as often as checkpoints are made, what became of the records of each epoch
    (`manifest` says what is claimed, and why repeats and gaps in the telling do no harm). That goes past the ring, over
    a session of its own and without an identity, so it is no record, has no place in a lane and holds up none. A dead
    letter is noted when it is settled, and found in the dead ring by the next process; all else the rings know.

Backlogs
    Each second it is noted how many records are left (`backlog`). ``statistics().seconds_left`` is what these take at
    the rate of the last half minute, whatever is published meanwhile: None when nothing was delivered in it, or nothing
    is for 5 s, or the oldest record that waits has been the same for 5 s. Where 100,000 or more are left it is a line
    in the log, at most one a minute.

    What comes meanwhile is dispatched when all before it is, whatever lane it is for. What its own lane has there must
    go first (I6), and whether that is anything only reading all of it tells: an opening reads none, nothing of it is
    kept in memory, and a record's lane is not known before it is dispatched. To go past it would be to read it twice,
    to no avail where all lanes were cut off: each has some of it, up to its end. So what is for a lane that has none
    there, or for no lane in particular, waits for longer than order asks.

Limits
    What one lane holds in flight and what is behind is found again by its position; for a record that was moved and is
    settled, a report that is asked for afterwards has no partition and no offset.
"""
