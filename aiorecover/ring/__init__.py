"""The ring: records on disk from the moment they are accepted until Kafka has them. This is its specification.

It knows no network. `directory` finds and locks, `opening` and `backlog` read what earlier lives left, `recovery` says
which of that counts, `ring` gives segments of the `pool` to lanes, `lane` orders batches, `writer` stores records,
`flush` makes them durable, `loading` reads them back, `inspect` looks at a directory from outside.

Words
=====
*Record*, as Kafka's format v2 lays it out. *Batch*: Kafka's record batch, the unit of everything after `publish`.
*Lane*: the ordered stream of one topic-partition (-1: ``unassigned``, the partitions of a topic are unknown; -2:
``dead``, dead letters). *Segment*: a piece of the file that belongs to one lane until all its batches are done,
durably. *Region*: 64 MiB of the file, all of whose segments have one size. *Done*: SETTLED, REPLACED or VOID.

Files
=====
``wal_dir/0/`` (0700) holds ``lock``, ``ring`` (both locked with flock, 0600), ``checkpoint`` (replaced as a whole), and
``damaged/`` where there was damage. ``lock`` begins with the dirty word of R6, and says what holds records up.

    ring     ┌──────── region, 64 MiB ────────┬──────── region ────────┬─ …
             │ head │ segment │ segment │ …    │
    region   ┌ 0 ──────── 8 ─────── 12 ───────────── 16 ──── 20
    head     │ "aiorreg2" │ version │ segment size │ CRC-32 │        in the first of its 4 KiB

    segment  ┌ 0 ────── 512 ──────────────────────────────────────────── size
             │ head    │ batch │ batch │ batch … → free ← … notes │ notes │
             sizes: 64 KiB, 1 MiB, or one of n MiB in a region of its own, up to 63
    segment  ┌ 0 ──────── 8 ────── 12 ───── 14 ─── 15 ─────────── 16 ── 20 ─────── 24 ───── 32 ── 40 ───┐
    head     │ "aiorseg2" │ CRC-32 │ version │ kind │ topic length │ size │ partition │ ordinal │ salt │ epoch │
             ┌ 44 ─ 48 ───── 64 ─────────── 80 ─ 96 ── 512
             │ 0   │ boot id │ producer id │ 0  │ topic │         CRC-32 over all of it, and its place in the file

    batch    ┌ 0 ───────── 128 ────────── 189 ─────
             │ own head   │ Kafka's head │ records …             begins at a multiple of 64
    line 0   │ salt u64 │ state u32, its epoch u32 │ commit: end u32, start of notes u32 │ first sequence u64 │
             │ base timestamp u64 │ first sent at u64 │ accepted at u32 │ epoch u32 │ count u32 │ span u32 │
    line 1   │ sync point A │ sync point B │ parent: ordinal u64, place u32 │ 0 u32 │ transaction u64 │ latest u64 │
    point    │ end u32 │ count u32 │ start of notes u32 │ CRC-32 u32 │
    note     │ payload (msgpack) │ sequence u64 │ index u32 │ length u32 │    written downwards from the segment's end

Numbers are little-endian; Kafka's part is Kafka's. Places count from the segment's start. What has to be stored at
once shares an aligned word of 8 bytes (one store of the processor) or a line of 64. The state is combined with the
salt, so a word that an earlier use of the place left there is none. *Span*: last minus first sequence. *Ordinal*:
epoch << 32 | n. The CRC of a point goes over the records up to its end, its notes in order of writing (both begin
with the salt's, and are carried on from flush to flush), first sequence, epoch, base timestamp, parent, 0 u32, end,
start of notes, and count.

Order of stores
===============
A new batch: salt 0; line 1; line 0 from the commit word on; OPEN; salt. A record: bytes and note, then the commit
word. Sealing: count and span, latest timestamp, SEALED. Sending: Kafka's head with the identity, first sent at, SENT;
a batch that is SENT becomes SEALED before it gets another identity. Salt and state say the same, so where one of them
is damaged the other one tells.

Rules
=====
R1  *Opening.* Epoch = 1 + the highest in the checkpoint and the heads of segments; the checkpoint with it is durable
    before anything is stored in a segment. Records are accepted once the heads are read; the rest is read in a
    thread, and delivery waits for it.
R2  *Trust.* Of a segment of this boot the commit word counts; of another boot's, the newest sync point that holds.
    The identity of a SENT batch counts in the same boot, with the same file (device and inode), for 12 h. SETTLED
    counts.
R3  *Prefix.* A SETTLED batch settles all before it in its lane; not in ``dead``. REPLACED and VOID say nothing. The
    opening stores the implied words: void children first, then these.
R4  *Stores of the opening.* In the same boot fdatasync comes first, then VOID, the implied SETTLED, SEALED; sync
    points at the ends with the first flush. All can be repeated.
R5  *Publish.* Bytes and notes, then the commit word; only into segments taken in this life.
R6  *Flush.* One at a time, in the keeper's thread, but for the opening's (R4). A sync point for every batch that was
    touched since the last one, done ones too; only the older point is overwritten, and only after the fdatasync that
    covers the newer one succeeded. The dirty word is stored before and cleared after: Unix seconds before which every
    batch that was opened has a durable point. Found set in the same boot, heads, and what lies after the older points
    of the batches in question, are stored again. A failed fdatasync poisons: nothing more is accepted, flushed or
    reused. Under ``fsync="never"`` reuse and cooling flush, once a second at most, and rewriting does at once.
R8  *Rewrite* (the ring's part). A child names its parent. It is void only where the parent is there, readable, and
    not REPLACED; it becomes VOID then, since SETTLED would be evidence.
R9  *Order.* A lane's order is (epoch, first sequence): that of its batches, rewritten ones too.
R10 *Reuse.* A segment is free once all its batches are done and a flush that began later has succeeded; it gets a new
    ordinal and a new salt. Rewriting goes beyond ``wal_max_bytes`` by the segments that it writes to, and takes what is
    free on the volume.
R14 *Damage.* A batch of an earlier life is checked when it is read: its newest sync point, the records and notes
    after it. One that fails is named, kept in ``damaged/``, counted and VOID. Behind it the segment is searched for
    its salt.
R15 *Counts.* accepted + recovered = delivered + dead letters + damaged + pending.
R16 *Sources.* The checkpoint holds of each source the newest position that a completed flush covers, and is durable
    before a segment with a note of a newer one is reused. Notes count beside it in the same boot only.

R7  and R11 to R13 are delivery's, and stand in the package docstring of `aiorecover.kafka`.

Bounds
======
Objects exist for the first 8 batches of a lane, its open one, and those that a flush has yet to cover; of the others
a lane keeps its segments. A batch has 16,384 records at the most, a record 63 MiB. A lane writes to a small segment,
and to large ones where it fills a small one within 0.1 s or has four unfinished of this life. A lane that is idle for
a second gives its segment back. Free segments keep their disk space for 3 s; then 128 of each size give it back each
second, all of it where the ring is at rest, what is above 8 MiB else. A cold segment has no page in memory; it is
cold once a flush has covered it and the lane is 8 batches behind. ``damaged/`` takes 256 files of a MiB.

Refused, with one error that says what to do
============================================
A file or link in place of a directory; a directory of another user that cannot be made safe; one of the first core, of
a newer version, of another destination; a damaged checkpoint; a volume that cannot hold the least. Other systems than
Linux: by the import of ``aiorecover``.

Slack
=====
* After a power cut, what the sync points of a lane's last batch fail to cover is taken for the unflushed tail: rot
  there is not named. What comes before it in the lane is, also where it was not durable yet.
* After another boot, a batch whose head cannot be read at all is passed over without a name.
* Where the head of a segment is damaged, all its batches are named and kept in ``damaged/``: their topic is unknown.
* A second Ctrl-C that raises between the stores of one `publish` may leave a record that the next one overwrites.
"""
