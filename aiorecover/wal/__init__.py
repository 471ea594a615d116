"""The write-ahead log: a ring of slots in one memory-mapped file. It knows nothing of Kafka.

This page is the specification; the modules carry it out.

Purpose
    `Ring.append` stores a record in well under a microsecond without a system call, and from then on the record
    survives the death of the process. What a power cut may take is the choice of the ``fsync`` dial. Whatever is not
    settled is found again by the next opening, in order.

Constraints (the invariants that all modules keep; numbers as cited in code and tests)
    I1  A slot is recycled only when a durable checkpoint's watermark (or P) covers its last position, everything in it
        is settled, and no reader stands in it.
    I2  A frame counts only if its checksum holds for this life of the slot and its sequence is the one expected there.
    I3  A settle word is stored only after the acknowledgement, and only by a handle of the slot's present life.
    I4  A checkpoint says only what was captured before its fdatasync began; its two copies alternate.
    I5  An epoch is durable, in both copies, before its first frame; no position is ever used twice.
    I7  After a failed fsync nothing is accepted or recycled until the directory is reopened; delivery goes on.
    I10 Every slot is zero, valid or reported.

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

The salt is 32 random bits of the slot's present life. A frame's checksum is the CRC-32 of its payload (of a skip frame:
of its length), begun with salt plus sequence modulo 2^32, so frames of an earlier life cannot pass. The settle word is
the salt's complement while the frame waits, and the salt once it is settled: no stale store of an earlier life and no
flipped bit can settle a frame, and a reader that lost its way finds the next frame by looking for these two words (the
design had zero for a frame that waits; the complement makes resynchronising possible without trying every byte). Zero
is never a frame: a frame has a sequence of 1 or more.

Operations
    append      Checksum first; then tail and sequence are advanced and the frame stored, header and payload in one
                call, with no other call in between. CPython runs signal handlers only after calls, so a handler that
                publishes finds the frame not begun or complete, and sequences stay in file order. An exception leaves a
                skip frame.
    roll        The full slot is sealed at both ends, then the next slot's header is stored, the copy at the end first,
                then its first frame. Slots are allocated by posix_fallocate ahead of need.
    settle      The frame's settle word, in the page cache.
    checkpoint  Captured on the loop; then fdatasync of the ring, write and fdatasync of the older copy (I4).
    recycle     Oldest first, what a durable checkpoint covers (I1). The slot keeps its bytes until its next life.
    read        The newest frames from memory (a bounded array beside the ring), all others by preadv.

Recovery, on opening
    1. Lock the instance directory (flock), compare the inode with the path.
    2. Read both checkpoint copies; the valid one with the higher generation counts.
    3. The slot size: from a checkpoint, else from the first header found. A file that was cut inside a slot gets its
       length back: what is left there is read like any damage.
    4. Classify every slot by its two header copies: blank, live, damaged (`recovery.classify`). What nobody writes (an
       epoch of 0, a seal beyond the slot's end) counts as damaged, though its checksum holds.
    5. Order the lives by ordinal; free those that the watermark covers (`recovery.plan`).
    6. Epoch = 1 + the highest in both copies and all headers; both copies are written and flushed (I5).
    7. Flush the directory, wal_dir and its parents. The backlog is not read: frames are verified when they are read.
    8. The first reader to reach the end of a slot that a crash left open seals it.

A frame that does not hold (damage, or a hole that a dying process left behind a nested publish) is passed: the reader
looks for the next valid frame of this life, delivers from there, and reports exactly which sequences are not there.
So it does for a whole slot that is gone, as far as the others tell: one with nothing of its epoch behind it, or before
the oldest when no watermark tells what was recycled, cannot be missed.

System assumptions
    Stores through a shared mapping survive the death of the process. fdatasync makes everything stored before it, also
    through mappings, survive a power cut, or fails. 512-byte sectors are written whole; nothing is assumed of larger
    pieces or of their order. The file system is not copy-on-write (there, full disks can still hit mapped stores), and
    nobody else truncates or writes the files.

Refused, and why
    Files of two producers in one directory, one ordinal twice, a newer format version, another program's files, a
    symbolic link, another user's directory: each would mean guessing about records that people cannot get back.

Limitations of this version
    Compaction into a retry ring, the dead ring, the lane suffix rule after a power cut, shrinking, and rewriting after
    a failed fsync are not there yet. The checkpoint carries P (``moved``) already; it is always 0.
"""
