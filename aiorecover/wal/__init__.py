"""The write-ahead log: a ring of slots in one memory-mapped file. It knows nothing of Kafka.

This page is the specification; the modules carry it out.

Purpose
    `Ring.append` stores a record in well under a microsecond without a system call, and from then on the record
    survives the death of the process. What a power cut may take is the choice of the ``fsync`` dial. Whatever is not
    settled is found again by the next opening, in order.

Three rings, one format
    ``ring`` (what was published), ``retry`` (what was moved out of its way), ``dead`` (what Kafka will never take):
    three files of an instance directory, each with ordinals and gapless sequences of its own. In the last two a frame's
    payload begins with the record's place of origin; behind that, the dead ring holds what `delivery.refusal` says.

Constraints (the invariants that all modules keep; numbers as cited in code and tests)
    I1  A slot is recycled only when a durable checkpoint's watermark (or P) covers its last position, everything in it
        is settled (or moved), and no reader stands in it. What a crash left in flight waits as a whole batch, so none
        of its slots goes before the others are settled, too; the slot's mapping is dropped with its life.
    I2  A frame counts only if its checksum holds for this life of the slot and its sequence is the one expected there.
    I3  A settle word is stored only after the acknowledgement, or after the copy in the dead ring is durable; only by a
        handle of the slot's present life. (Copies that never count are marked as such: void.)
    I4  A checkpoint says only what was captured before its fdatasync began; its two copies alternate.
    I5  An epoch is durable, in both copies, before its first frame; no position is ever used twice, and no record id,
        whatever is copied or restored.
    I7  After a failed fsync nothing is accepted or recycled until the directory is reopened; delivery goes on.
    I10 Every slot is zero, valid or reported; or torn: its first life was being begun, and no frame stands there.

Ring file: slots of equal size, a power of two (default 16 MiB), one after the other, no file header.

    Slot
    ┌──────────────────────────────┬────────────────────────────┬──────────────────────────────┐
    │ 128 bytes: header, seal      │ frames …                   │ 128 bytes: header, seal      │
    └──────────────────────────────┴────────────────────────────┴──────────────────────────────┘

    Slot header, 64 bytes (at both ends)
    ┌───────────────────┬──────┬────────┐
    │ field             │ size │ offset │
    ├───────────────────┼──────┼────────┤
    │ magic             │ 8    │ 0      │
    │ version           │ 2    │ 8      │
    │ zero              │ 2    │ 10     │
    │ slot_bytes        │ 4    │ 12     │
    │ producer_id       │ 8    │ 16     │
    │ ordinal           │ 8    │ 24     │
    │ epoch             │ 4    │ 32     │
    │ salt              │ 4    │ 36     │
    │ first_sequence    │ 8    │ 40     │
    │ created_ms        │ 8    │ 48     │
    │ zero              │ 4    │ 56     │
    │ crc               │ 4    │ 60     │
    └───────────────────┴──────┴────────┘

    Seal, 32 bytes (behind each header, once the slot is left)
    ┌───────────────────┬──────┬────────┐
    │ field             │ size │ offset │
    ├───────────────────┼──────┼────────┤
    │ magic             │ 4    │ 0      │
    │ salt              │ 4    │ 4      │
    │ count             │ 4    │ 8      │
    │ tail              │ 4    │ 12     │
    │ last_sequence     │ 8    │ 16     │
    │ zero              │ 4    │ 24     │
    │ crc               │ 4    │ 28     │
    └───────────────────┴──────┴────────┘

    Frame, 20 bytes and the payload, padded to 4 (bit 31 of length: a skip frame, no record)
    ┌───────────────────┬──────┬────────┐
    │ field             │ size │ offset │
    ├───────────────────┼──────┼────────┤
    │ length            │ 4    │ 0      │
    │ crc               │ 4    │ 4      │
    │ sequence          │ 8    │ 8      │
    │ settle            │ 4    │ 16     │
    └───────────────────┴──────┴────────┘

    Checkpoint copy, 28 bytes and the body (MessagePack), padded to 512; two copies, 64 KiB apart
    ┌───────────────────┬──────┬────────┐
    │ field             │ size │ offset │
    ├───────────────────┼──────┼────────┤
    │ magic             │ 8    │ 0      │
    │ version           │ 2    │ 8      │
    │ zero              │ 2    │ 10     │
    │ length            │ 4    │ 12     │
    │ generation        │ 8    │ 16     │
    │ crc               │ 4    │ 24     │
    └───────────────────┴──────┴────────┘

    Moved record, 16 bytes before the payload in the retry and the dead ring
    ┌───────────────────┬──────┬────────┐
    │ field             │ size │ offset │
    ├───────────────────┼──────┼────────┤
    │ position          │ 8    │ 0      │
    │ partition         │ 4    │ 8      │
    │ nonce             │ 4    │ 12     │
    └───────────────────┴──────┴────────┘

    Lanes header, 92 bytes, padded to 512, at the start of the file `lanes`
    ┌───────────────────┬──────┬────────┐
    │ field             │ size │ offset │
    ├───────────────────┼──────┼────────┤
    │ magic             │ 8    │ 0      │
    │ version           │ 2    │ 8      │
    │ zero              │ 2    │ 10     │
    │ entry_bytes       │ 4    │ 12     │
    │ directory_id      │ 8    │ 16     │
    │ since             │ 4    │ 24     │
    │ standing          │ 4    │ 28     │
    │ device            │ 8    │ 32     │
    │ inode             │ 8    │ 40     │
    │ boot_id           │ 40   │ 48     │
    │ crc               │ 4    │ 88     │
    └───────────────────┴──────┴────────┘

    Lane entry, 24 bytes and the body; a block for each lane behind the header: two copies of 16,896 bytes
    ┌───────────────────┬──────┬────────┐
    │ field             │ size │ offset │
    ├───────────────────┼──────┼────────┤
    │ magic             │ 4    │ 0      │
    │ epoch             │ 4    │ 4      │
    │ generation        │ 8    │ 8      │
    │ length            │ 4    │ 16     │
    │ crc               │ 4    │ 20     │
    └───────────────────┴──────┴────────┘

A record's id is the producer id, the epoch and the sequence that it was accepted with. The producer id has two parts:
35 bits that are drawn with the directory and stay, 7 of its 13 characters as text, and behind them a nonce of 29 bits
that each opening draws. For a directory that is copied, a backup that is restored, or a snapshot of a whole machine
comes to the same epoch and the same sequences as what it was made of, and nothing on the disk need tell that it
happened; with the nonce the two give different ids from their first opening on, and a reader that drops repeats by id
keeps the records of both. (They draw the same nonce once in 540 million times; a process that is cloned as it runs,
with its machine's memory, has drawn already.) Nonce and epoch are durable together, and an epoch has one nonce: two of
them under one epoch are files of two copies. A slot bears the producer id of the opening that wrote it, and a moved
record the nonce of the one that accepted it: ids stay what they were, whoever reads, moves or adopts. What is of this
directory, or of a copy of it, is told by the 35 bits; the header of the lanes has a nonce of zero.

The salt is 32 random bits of the slot's present life. A frame's checksum is the CRC-32 of its payload (of a skip frame:
of its length), begun with salt plus sequence modulo 2^32, so frames of an earlier life cannot pass.

The settle word is the salt's complement while the frame waits; once it is settled it is the salt with a mark in its low
half: the generation in which it was stored, which the lane suffix rule needs. The high halves of two following lives
differ, also from each other's complement. So no stale store of an earlier life and no flipped bit can settle a frame,
and a reader that lost its way finds the next frame by looking for these words (the design had zero for a frame that
waits, and the bare salt for one that is settled; the complement makes resynchronising possible without trying every
byte, the mark makes the suffix rule hold through a second crash). Zero is never a frame: a frame has a sequence of 1 or
more. Nor is what stands behind the last sequence of a seal, whatever else it says: an opening may seal a slot before
copies that never counted. The last KiB of a slot of the main ring stays unused, so that every record also fits a slot
of the other rings.

A checkpoint says: producer id, epoch, slot size, destination (Kafka's cluster id, and before one is known where it was
looked for; a name; how often another cluster took the place of one; what is known of a position kept there), the boot
of the machine; the 64 openings before, by epoch and nonce; of each ring the watermark, the next ordinal (a slot that is
cut off takes its header with it) and the newest position that a flush has covered, also of each earlier epoch in which
something waits, as far as its slots were read by then, 64 of them at most; what of these an opening has seen, though no
flush may have covered it; P; which settle words are suspect; whether the end was clean, and whether a flush had failed;
when records were accepted; how far the streams were read that they were made from (`sources`).

Ages (`ages`). No frame says when it was stored: a mark, noted ten times a second, says that everything up to a position
had been accepted by then, so a record may pass for younger than it is and never for older. Marks are a sixteenth of
their age apart, about 9 KB of a checkpoint after a month. Their clock is the time since boot, which nobody sets and
which goes on while the machine sleeps; how far the clock on the wall was off it meanwhile is kept in memory, so that a
record's timestamp can be held against its acceptance. Across boots the clock on the wall tells how long ago the
checkpoint was written, and nothing where it was set back, had not been set by then (it showed less than 2025), or says
more than a year: the time between then counts for nothing. What no checkpoint knew counts from the opening behind it.
Up to where records are older than the limit stands in the checkpoint, too: who acts on it waits for that, and never
falls behind it after a crash.

Operations
    append      Checksum first; then tail and sequence are advanced and the frame stored, header and payload in one
                call, with no other call in between. CPython runs signal handlers only after calls, so a handler that
                publishes finds the frame not begun or complete, and sequences stay in file order. An exception leaves a
                skip frame.
    roll        The full slot is sealed at both ends, then the next slot's header is stored, the copy at the end first
                (no opening relies on this order: `slot`), then its first frame. Slots are allocated by posix_fallocate
                ahead of need.
    settle      The frame's settle word, in the page cache.
    checkpoint  Captured on the loop; then fdatasync of the rings and the lanes, write and fdatasync of the older copy
                (I4). It takes nothing back of what the one before says of the rings, of P and of the destination,
                whenever it was captured. Where files were removed or replaced, and nothing waits any more at the stop,
                the last one is written without a flush of the rings: it covers all that they held. (Not where lock or
                checkpoint were: then another process may have the directory.) Word of a failed flush is stored behind
                one that is being written, never in its place. One that tells of something that waits in a ring in
                which nothing did, as the one before knows it, is made durable in both copies: else, with this one
                lost, nothing would be missed there. One that makes copies count, and fails of anything else than the
                disk, or what follows from it does, has the ring stop as a failed flush does: nobody knows whether it
                was made.
                It grows with the age of what waits: the opening allocates both copies whole, so a disk that others
                have filled does not refuse it. Without room for that only a new directory is refused.
    recycle     Oldest first, what a durable checkpoint covers (I1). The slot keeps its bytes until its next life. What
                an exception of a signal handler left to nobody, as it was being taken, is free again by then.
    move        The oldest slot, once only stalled lanes wait for what it holds, and copying it gains space
                (`compaction`; while somebody goes back for what waits there, stands in it, or has it in a batch, only
                once room is needed, or the ring is more than twice what waits in it and four slots): its unsettled
                frames are copied to the retry ring, the retry ring is flushed, and then a checkpoint with P, the slot's
                last position, makes the move (`moving`). From there on originals up to P are void. Copies of a move
                that was never made do not count: they stand behind what the newest checkpoint knows of the retry ring,
                and the next opening has the slot end before them, or the checkpoint after it would bring them to life.
                A record in flight meanwhile is settled in both places. A slot whose settle words are suspect is not
                moved before all in it is judged.
    rewrite     The retry ring, once under half of it is unsettled: copied to its own end, flushed, and made by a
                checkpoint whose retry watermark covers the originals. As in a move, what is settled meanwhile is
                settled in both places, or gets no copy any more. It begins once all slots are ready that it takes, as
                far as that is to be seen (what waits in a slot is estimated by the mean of its frames): without that
                room moves go on. A move or rewriting that fails goes on where it stood; other checkpoints may come in
                between. One that finds no room after all is given up, and marks its copies. A slot of which something
                cannot be read for two minutes stays where it is until it is counted anew; what cannot be read then is
                passed over at once, and it is moved if that counts no longer.
    read both   The retry ring up to what counts, then the main ring behind P: that is the order of the positions that
                records were accepted with, whatever is moved meanwhile (`stream`). So where somebody stands, or has to
                go back to, is told by a position; marks in memory find it in the retry ring (`copies`). A slot in which
                the first reader stands is not moved; a second one goes on with the copies once they count.
    grow        A slot at a time, the three rings together up to ``wal_max_bytes`` and down to ``wal_min_free_bytes``
                (from which the slots kept for the retry and the dead ring are taken, too, if it has to be);
                full and not full again are two marks (`room`). Four slots are kept for the main ring. The retry ring
                has at most half of it all (seven elevenths of that for what is moved: there is always room to rewrite
                it), the dead ring a quarter, and each of them a slot ready from the opening on,
                another one whenever that is used: the main ring leaves room for it. So neither can what is in the way
                of a full main ring stay there for want of room, nor can what was moved or refused take all of it.
                Where there is no more, a ring grows by what is free in another one. That holds where the disk is what
                there is no more of, too: the room to rewrite is left of what is free in the rings then, by moves and by
                the main ring, but for its four slots. Where others have filled the disk before there was that room,
                moves that take less than they give make it. A full ring whose one slot holds nothing any more gives up
                that slot, once no reader stands in it. A lane that waits for a block in the file `lanes`, where the
                disk has none, gets it in the place of as many free slots as that takes, one of the ordinary size: in
                vain only once, if somebody else is quicker to take what was given up.
    shrink      Free slots that nobody needed for twelve checkpoints, a minute, are cut off at the end of the file, or
                given back as holes where the end is in use, some at a time. A durable checkpoint covers them (or their
                headers were taken away) and knows an ordinal above theirs; nothing maps them; file sizes are changed
                under one lock. Of such slots those that another ring grows by, and those beyond ``wal_max_bytes``,
                where an opening found more, are given back at once. So are, when a process ends cleanly and has time
                for it, those that a minute would have found superfluous, and in an adopted directory all.
    give back   Ten times a second the pages of mapped slots are taken out of the mapping, some slots at a time: what
                waits in an outage is page cache, and not memory of the process (`resident`).
    tell        Where an earlier epoch ended is known once its last slot was read, and before that at least how far it
                came (`epochs`); everything is settled up to the watermark, and up to the first copy that waits in the
                retry ring. Frames without a record are noted by the first reader that passes them.
    sync        One at a time. Publishers who wait (``fsync="always"``) are released only by one that began after their
                store, and only if no flush has failed (`sync`).
    enter       What delivery is about to send, in the block of its lane, in the place of the older of two copies
                (`lanes`). The body is delivery's; of it `wal` knows whether it was stored whole, in this boot, and in
                this very file. ``standing`` says in how many blocks something stands: stored behind the first entry of
                a block, and before a block is cleared. The low half of a generation counts the stores since its block
                was blank.
    claim       After a crash, the frames of a batch that was in flight: they are settled as a whole or not at all, so
                those that are marked already wait again. Readers pass them; the slot stays until all are settled.
    read        The newest frames from memory (a bounded array beside the ring), all others by preadv. A place that
                cannot be read is asked for again, for some seconds, or a minute where nothing around it can be read
                (each piece of up to 128 KiB by itself), and ten times as long where a slot is counted anew, unless
                somebody waits for that, who purges dead letters; then it counts as damaged.

Recovery, on opening
    1. Lock the instance directory (flock), compare the inode with the path. Where a full disk has no room for the
       process id, there is none.
    2. Read both checkpoint copies; the valid one with the higher generation counts. A checksum proves that bytes are
       whole, not that they make sense: what nobody writes (an epoch of 0, a seal beyond the slot's end) is damage.
    3. The slot size: from a checkpoint, else from the first header found.
    4. Classify every slot of the three rings by its two header copies: blank, torn (its first life was being begun, and
       no frame stands there), live, damaged (`recovery.classify`).
    5. Refuse what would mean guessing (below, `refusals`). Order the lives by ordinal; free those that watermark or P
       cover (`recovery.plan`; one whose seal is lost, once they cover all before the next one). Both copies lost:
       nothing is known to be settled or moved, and a copy in the retry ring counts unless its original holds; the
       checkpoint says so (``by_originals``) to the openings after this one, until something is stored there again: by
       then the others are marked (step 9). What stood before the oldest slot of the main ring counts as moved there. So
       does all up to the newest record of which a copy is there and the slot is not: slots are moved oldest first, so
       its move and those before it were made, whichever slots nobody has used again since. That is P then (step 9 finds
       it), and the next checkpoint says so.
       Where one copy is lost, and the end was not clean, the log says of which rings records may be missing that
       nothing names: of those in which something waited, by the copy that is left, before the oldest slot that is left,
       or at all; else only that the copy is lost. Where both are, it says so of all three.
    6. Epoch = 1 + the highest in both copies and all headers; where both copies are lost, 1,000 more, for an opening
       in which nothing was published stands in no header (`recovery.UNTOLD`). The nonce is drawn. Settle words are
       suspect after another boot or a failed flush, unless the end was clean; also where a copy is damaged.
       A ring that is not there, unless the end was clean and left nothing, is told: what no checkpoint knew of it is
       nowhere. Of the main and the dead ring the checkpoint of step 8 also says what stands there now: of each epoch
       up to its last seal, or up to the first frame of the slot that was left open, if that holds. In the same boot it
       is missed from then on. So of a ring that is emptied only what nobody has opened since is not told from one not
       begun: that of a process killed before its first checkpoint, and what stood behind that frame, until a checkpoint
       follows upon its reading.
    7. A file that was cut inside a slot gets its length back: what is left there is read like any damage. In the same
       boot, unless the end was clean: have every slot written again with a frame in it that no flush is known to cover.
       After a failed flush the kernel calls lost pages clean, and the next flush would pass them over. (Where one is
       known to have failed, every slot: a settle word that is believed now must not be gone for the next opening.) So
       are the headers of the retry ring's blank slots, which step 9 may have taken away, and the seal that it may have
       shortened. Of all this only pages that are in memory: the others are as the disk has them, and a backlog is not
       read for it. A page that cannot be read is passed, 64 of them in a slot; where there is no memory to ask for one,
       or one that can be read, and is no hole, cannot be stored into, the opening is refused. (Where both copies are
       lost nobody knows the boot, and nothing is written again.)
    8. Have the copy that counts durable: a process may have died before its flush. Then write and flush both copies
       with the new epoch and its producer id (I5). In a new directory flush that, too: no other file has a length
       before the checkpoint is durable with its name. So a directory that was in use is told from a new one (`traces`).
    9. Void the copies of moves and rewritings that were never made: slots in which nothing else stands lose their
       headers and are free; the one before them is sealed so that it ends with the last copy that counts. Nothing is
       read for it. Where both copies of the checkpoint are lost, the copies are read, and marked; what cannot be read
       is passed over as damage. Reserve a slot each for the retry and the dead ring.
   10. Flush the directory, wal_dir, its parent, and those above it that were made. The rings are not read: frames are
       verified when they are. (Where both copies of the checkpoint are lost, step 9 reads the retry ring, and those
       slots of the main ring in which originals of its copies may stand.)
   11. Read the lanes' blocks (before step 9, which needs nothing of them). What was stored in another boot or file does
       not count any more; the header says so from now on; where a full disk has no room for it, as soon as there is
       some, and until then what this opening stores does not count for the next one. In the same ones it is stored
       again, for a flush that failed in an earlier life may have left it in memory alone. Delivery judges the rest, and
       claims what was in flight, before anybody reads or publishes. A block that cannot be read counts as damaged. So
       does one whose one copy is blank and whose other one is not the first that was stored there. In the same boot and
       file fewer blocks than ``standing`` says (0: not counted) are told as missing, once: a part of the file was lost.
   12. The first reader to reach the end of a slot that a crash left open seals it.

The lane suffix rule (`suffix`), where settle words are suspect: within a lane, everything behind the first frame that
is not settled counts as unsettled; a lone stale record sent after newer ones would leave an old value in a compacted
topic. Records without key and partition count by their own word. Whoever reads knows the lanes, so it judges; what it
delivers again is settled with the mark of the present generation. When the power goes once more before that is done,
these marks count as far as they follow upon one another in their lane: what came behind may be recycled already. What
was done again tells that what comes behind it has to be, so watermarks stay where they are until all that is suspect
was read. The suspicion ends once every slot of that time is recycled. What it knows to be at its destination, behind
all that comes before it in its lane, it need not deliver.

A frame that does not hold (damage, or a hole that a dying process left behind a nested publish) is passed: the reader
looks for the next valid frame of this life, delivers from there, and reports exactly which sequences are not there. So
it does for a whole slot that is gone, and for a tail that a flush had covered, as far as the others tell: a slot with
nothing of its epoch behind it that no flush had covered cannot be missed. In the slot that is written all that has a
sequence is stored: nobody waits for another record to see that the newest one is gone. Where a page cannot be read at
the end that a crash left open, behind all that a flush had covered, only the log says that some may be missing. So it
is of what stood before the oldest slot when a copy of the checkpoint is lost, too: the other one may not know what was
recycled, and behind a slot that still stands what was delivered and recycled since may then be named as missing. Of a
ring without a slot all is missed that had waited when that one was written; of what only the lost one knew, the log
says that some may be missing. A second reader reports what was damaged since the first one passed, as far as no settle
word says that it was done, and what is in flight may be named with it: each sequence is reported once. Sequences of the
other two rings are not those of records: of copies it is told how many are lost at most, and which records stand before
and behind them, as far as the reader has passed some that wait; of dead letters how many (`losses`). What still stands
in the place of the lost frames is copied to ``damaged/`` before the slot is recycled (`kept`; the first hundred), with
zeros for pages that cannot be read; the tables in `recovery` say what comes of each combination.

A slot counts what it waits for once: what is stored in this life by its sequences, what an opening found as it is read.
Damage that is met in what was counted, by whichever reader, has the slot counted anew (`recount`): once everything in
it was read, suspect settle words were judged, and copies count, it is read once more, and counts only what holds and
waits, and what somebody has in hand, or a move has copied, who read it before its bytes rotted. (Where a page of which
something was read is lost before it counts, all is read again: what was settled there would seem to wait.) So a slot is
done, and moved, whatever was lost in it. What was given up so is passed by every reader from then on, though it may be
readable again: nobody waits for it, and its settlement would stand for another one's. The next opening finds it, unless
a watermark or P covers it by then, and it is delivered behind newer records of its lane, though who waited was told
that it is lost. Where some of what is damaged is in hand it is counted again once that is settled, or once the copies
are given up. What a move or a rewriting cannot read has its slots counted anew, too, and is tried again then. So has a
slot of the retry ring in which somebody asks for a record and meets damage where its copy would stand: until that is
counted nobody knows whether the record is settled (`copies`). A slot in which nothing waits any more before its turn
comes is not counted; that is told as a count would be, for all in it is settled or moved, or an earlier count found it
lost. A slot of the dead ring is counted anew when somebody takes letters out.

Read-only view
    `view.open_view` looks at a directory from outside, for the command line and for Spark: it takes no lock, opens
    every file read-only, maps nothing and repairs nothing. The owner may be at full speed, dead or elsewhere.

    1. The checkpoint is read, for what it says was flushed. Then both headers of every slot are read, twice over. A
       life that began while they were read is left for the next walk; so all lives up to the newest one listed are
       there, or were recycled. Then the checkpoint is read again, for what it covers. The originals of a rewriting
       that was made in between would be covered, and its copies not listed: where the checkpoint may tell of one, the
       retry ring is listed anew, and after ten times the look is refused.
    2. Slots are walked by ordinal. A window is copied by preadv, then both headers are read again: if the slot is in
       another life or cut off, the copy is thrown away: it was recycled meanwhile (I1), and what it held was settled
       or moved. Frames of two lives in one copy cannot pass for a record (I2).
    3. A frame that does not hold is the end of an open slot, damage, or being stored just now. It is damage only when
       a frame behind it holds, or a seal or a flush that was read before the copy counts it, and reading it afresh
       does not help. Whole slots that are gone are missed by the rules of the reader (`gaps`), so that a look names
       what the next opening would, also of a ring whose file is gone, and whether its slots are walked together or each
       by itself (`view.frames_of`, `view.View.gone_before`). A slot that is gone when it is walked by itself was
       recycled if the checkpoint covers it by then, or else is missed (`view.View.lost`). It holds beside a living
       owner, too: what step 1 says was flushed stands in slots that had begun by then, or was recycled, and then the
       checkpoint that is read behind them covers it.
    4. A record is settled when its settle word says so, or when the ring's watermark, in the main ring also P, covers
       it. In the retry ring copies behind what the checkpoint knows of it are void: they are not looked at, and nobody
       misses them, as after the next opening; without a checkpoint all count. Where settle words are suspect, a view
       shows what they say, and up to where they are: lanes are not judged.

    Every record that waits from the first to the last moment of a walk is in it; no record is wrong, and none comes
    twice, unless it is moved or rewritten meanwhile: who walks the main ring and then the retry ring sees it, and a
    walk of the retry ring in which a slot was recycled is repeated to be sure (`view.View.unsure`). Each slot is
    walked, covered by the checkpoint, recycled meanwhile, blank or damaged. What is settled during the walk may still
    be seen waiting, and a walk is no snapshot: one through the retry ring after one through the main ring may show
    again what was moved in between (by its position it is the same record). A copy of a directory that was made while
    its owner worked is as good as the tool that made it. A ring can be looked at as long as its own slots can be read;
    whether an opening would be refused for the others, too, is told apart (`view.View.next_opening`). Who holds the
    lock is read from /proc/locks, never tried: a try could make the owner's own fail. Owners on other machines, or in
    containers that share the directory and not the process ids, do not stand there.

    Who may adopt a directory has to know for certain (`neighbours`): its lock is tried, for microseconds, and only
    while something may wait in it. Whether it does is told by headers and checkpoint, and remembered until the
    checkpoint changes, which every opening makes it do.

System assumptions
    Stores through a shared mapping survive the death of the process. fdatasync makes everything stored before it, also
    through mappings, survive a power cut, or fails. 512-byte sectors are written whole; nothing is assumed of larger
    pieces or of their order: the kernel may write any page at any time. The file system is not copy-on-write (there,
    full disks can still hit mapped stores), and nobody else truncates or writes the files. What is settled, and what
    reports tell of a record, goes through the mapping of its slot. A page that was given back, has left memory since,
    and cannot be read any more is met when it is asked for before that (Linux 5.14): zeros of the process's own stand
    in its place, and no frame comes there (`slot`). What is settled there is known to this process, and to the next one
    only where a checkpoint covers it: else that one names it as missing, or where the page can be read again, delivers
    it once more. Where a page is lost within a tenth of a second of its use, or in a store into one that was lost
    between the mending of its slot and the store and was not fetched ahead of the tail, or the system cannot be asked,
    the process ends there (SIGBUS), and the next one passes it over. The slot is mended before its next life, so no
    page does so twice. A page that was written whole can be read again. The boot id tells whether the machine was down
    (Linux; elsewhere every opening is taken for one after a power cut).

Refused, and why
    Files of two producers in one directory (`lanes` by its header), or of two copies of it (one epoch with two nonces,
    by headers and by what the checkpoint remembers of 64 openings), slots of two sizes, one ordinal twice, or a later
    one with earlier records, files with something in them of which nothing can be read, no checkpoint and no slot in
    the main ring where any file but the checkpoint has a length, a newer format version, another program's files, a
    symbolic link, another user's ``wal_dir``: each would mean guessing about records that people cannot get back.
    Hidden files and directories, and ``lost+found``, are left alone. Nor is a file made then in the place of one that
    is gone: the next opening, and a view, have to see that it is.

    A page with a slot's header or a copy of the checkpoint that cannot be read: it may be the disk's bad moment, and
    what it says may be all that is known. Nothing that was stored is changed by then, so the opening can be repeated.
    Where it lasts, copy the files to another disk with a tool that puts zeros where nothing can be read (``ddrescue``,
    or ``dd bs=4096 conv=noerror,sync``) and open the copy, or put it in the place of the directory. Zeros are damage
    like any other: the header at the slot's other end, and the other copy, count, and what stood in the page is named
    as missing.

Limitations of this version
    What no flush had covered, and is damaged at the very end that a killed process left, with all that came behind it,
    is not missed by the next one: it looks like what was being stored.
    Files of one directory belong together. Those of a copy, put under the checkpoint of the other one, are refused if
    that has been opened since they parted, 64 times at most; else, and where the files are of an older state of the
    same directory, what they lack is missing as far as the checkpoint knows it, and what they have is delivered again.
    A checkpoint knows of 65 epochs how far they were flushed. After more starts with records, none of them delivered,
    slots at the end of an older epoch are not missed when they are gone.
    Where the newer copy of the checkpoint is lost, and with it a slot behind all that the older one knows, while slots
    before it stand, the log says no more than that a copy of the checkpoint is lost.
    Where both copies of the checkpoint are lost, and the retry ring had been rewritten, what stands in slots of it that
    nobody has used again since counts twice: it is delivered again, also behind newer records of its lane, and a flush
    may not wait for it; then the next opening delivers it. What is named as missing may have been settled: behind the
    last copy of a slot that was moved, too. A copy whose original was written over below a header that is still there
    may count though older records of its lane are read behind it, in the main ring, and is delivered, and named as
    missing all the same. A view does not look for copies there: it shows and misses what was moved as if it were not.
    Where both seals rot of a slot that an opening has had end before copies that never counted, and its headers do not,
    these copies count.
    What cannot be read is asked for piece by piece, so a reader asks for some eight minutes for each MiB that a disk
    has lost in a row, and who counts the slot anew ten times as long, each time from the first piece on, which holds up
    the loop, and finds all of it again where the device comes back meanwhile; nothing from there on is recycled before.
    Where two take the same dead letter out, and the disk loses the page of its settle word in between, that counts
    twice: once all others but one of its slot are taken out, the last one may go with it.
    A limit of fewer than nine slots leaves the retry ring one, which is not rewritten: beside a lane that does not come
    back, the main ring may stay full then. So it may where the larger ones of a slot's records wait, or others have
    filled the disk meanwhile: a rewriting that is given up for want of room leaves the slots that it has used to the
    originals before them, and the next one begins with twice the room. Rewriting takes 8 bytes of memory for each
    record that waits in the ring, and a slot in which some were given up for lost 4 for each that waits in it, as long
    as it is there.
    A copy's place for a partition stays empty: a copy is placed as its original would be. After a power cut nothing of
    the main and the retry ring is freed before all that it left there was read, which takes as long as delivering it:
    a ring that was full is full until then. After a power cut, what lanes
    that do not get through have waiting since before it is not moved. In the dead ring settle words are taken as they
    stand: after a power cut a letter that was purged may be there again, until the checkpoint that follows each purge
    is durable. Each life that leaves a letter begins a slot there, which is free once all its letters are gone: after
    as many lives as there are slots in a quarter of ``wal_max_bytes`` it is full, though it may hold little.
    ``wal_max_bytes`` does not count the checkpoint, the lanes and what is kept of damage: a hundred pieces of a slot at
    most. Where the file system makes no holes in files, a ring grows by what is free in another one only after that was
    cut off. What a failed flush has lost the kernel may drop from memory at any moment: what is not delivered by then
    is gone as after a power cut, and while the process lives it is named. What a killed process has settled since its
    last flush is believed by the next one: where that one's first flush of a ring fails, and settle words leave memory
    that its reader has not come to, their records are delivered again, also behind newer ones of their lane. (Pages are
    called clean before any flush tells, so nobody knows from when on to doubt them. Held back until an opening judges
    them, records would be lost that the kernel drops meanwhile; and a batch that is in flight since the opening is not
    judged with them. A flush before anything is read would hold up every start behind a kill.) A flush that failed in a
    process which died before it could leave word of it is only made good by step 7, not by the suffix rule, and what
    stands in `lanes` is not doubted. Nor is either suspect in a snapshot of a volume in use that is put in the place of
    a directory within one boot: it is taken for what a killed process has left.
"""
