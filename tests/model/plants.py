"""Each rule taken out of the package, or of the delivery beside it, in turn: the model has to see it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from aiorecover.ring import backlog, flush, format, lane, loading, recovery, ring, segments  # noqa: A004
from aiorecover.ring.directory import Directory
from tests.model import disk
from tests.model.faults import (
    Change,
    NoDead,
    after,
    any_done_is_evidence,
    before,
    begin,
    begin_beside,
    clear_the_word,
    commit_first,
    complete,
    crc_without,
    flush_unmarked,
    forget_late,
    forget_sources,
    free_all,
    go_on,
    live_sources,
    nothing,
    nothing_due,
    one_point,
    one_salt,
    ordinals_go_on,
    orphans_are_void,
    point_at_seal,
    run,
    save_in_memory,
    seal_the_void,
    settle_in_memory,
    store_point,
    trust,
    void_as_settled,
    void_in_memory,
    write_heads_again,
    write_no_regions_again,
    write_on,
    write_trusted_again,
)
from tests.model.life import Life
from tests.model.process import ALWAYS
from tests.model.walk import Plan


class Plant(NamedTuple):
    """A fault: the rule it breaks, what it is, what is changed for it, how to walk, and a seed from which it shows."""

    rule: str
    name: str
    changes: tuple[Change, ...]
    plan: Plan = Plan(kinds="kp")
    seed: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, new in self.changes:
                stack.enter_context(patch.object(owner, name, new))
            yield


def chain(text: str, **more: Any) -> Plan:
    """``"settled:p,following:k"``: the lives, each a script and its end."""
    links = tuple((one.split(":")[0], one.split(":")[1]) for one in text.split(","))
    return Plan(chain=links, unit=64, **more)


KILL, POWER = Plan(kinds="k"), Plan(kinds="p")
SAFE = Plan(kinds="kp", mode=ALWAYS)

FAIL = Plan(kinds="kpf")
FLUSHER = flush.Flusher

PLANTS = (
    Plant("R1", "the epoch is not durable before the first store", ((Directory, "save", save_in_memory),)),
    Plant(
        "R1",
        "ordinals go on from the highest that is there",
        ((ring.Ring, "start_ordinals", ordinals_go_on),),
        chain("child:p,published:k", crash=-1),
    ),
    Plant("R2", "commit words count after another boot", (trust(True),)),
    Plant("R2", "commit words never count", (trust(False),), KILL),
    Plant("R2", "identities of another boot count", ((loading, "identity_counts", lambda *_: True),)),
    Plant("R2", "identities count for ever", ((loading, "IDENTITY_MS", 1 << 60),), Plan(kinds="k", age=0.5)),
    Plant("R3", "no prefix", ((backlog, "_settle_implied", nothing),), chain("settled:p", mode=ALWAYS)),
    Plant(
        "R3",
        "the prefix is not stored",
        ((backlog, "_settle_implied", settle_in_memory),),
        chain("settled:p,following:p", mode=ALWAYS, crash=-1),
    ),
    Plant("R3", "any done batch is evidence", ((backlog, "_take_down", any_done_is_evidence),)),
    Plant("R3", "a dead letter is evidence", ((backlog, "SegmentKind", NoDead),), chain("letters:k")),
    Plant("R4", "no fdatasync", ((backlog, "_flush", nothing),), chain("points:k,sends:p", crash=70, mode=ALWAYS)),
    Plant(
        "R4",
        "a failed fdatasync leaves no word",
        ((backlog, "_flush", flush_unmarked),),
        chain("unflushed:k,fail:k,following:p"),
    ),
    Plant(
        "R4", "no sync points with the first flush", ((backlog, "fill_lanes", before(backlog.fill_lanes, forget_late)),)
    ),
    Plant("R5", "commit before the bytes", commit_first(), KILL),
    Plant(
        "R5",
        "cursors go on in segments of earlier lives",
        ((backlog, "fill_lanes", after(backlog.fill_lanes, write_on)),),
    ),
    Plant(
        "R6",
        "one sync point",
        ((segments.Batch, "store_point", before(store_point, one_point)),),
        chain("dies_flushing:p", crash=-1),
    ),
    Plant(
        "R6",
        "a flush beside another",
        ((Life, "alone", False), (FLUSHER, "begin", before(begin, begin_beside))),
        chain("overlap:p", crash=-1),
    ),
    Plant(
        "R6",
        "a sync point at the seal",
        ((lane.Cursor, "seal", after(lane.Cursor.seal, point_at_seal)),),
        chain("sealing:p", crash=-1),
    ),
    Plant(
        "R6",
        "neither salt nor head in the checksum",
        ((format, "salted", lambda _: 0), (format, "point_crc", crc_without(2, 3, 4, 5))),
        chain("reuse:p"),
    ),
    Plant(
        "R6", "no notes in the checksum", ((format, "point_crc", crc_without(1)),), chain("dies_flushing:p", crash=-1)
    ),
    Plant("R6", "no poison", ((FLUSHER, "complete", go_on),), Plan(kinds="f")),
    Plant("R6", "nothing is written again", ((backlog, "_write_again", nothing),), chain("fails:k,following:p")),
    Plant(
        "R6",
        "only heads are written again",
        ((backlog, "_write_again", write_heads_again),),
        chain("fails:k,following:p"),
    ),
    Plant(
        "R6",
        "segments of another boot are not written again",
        ((backlog, "_write_again", write_trusted_again),),
        chain("stored:p,send_fails:k,following:p", mode=ALWAYS),
    ),
    Plant(
        "R6",
        "heads of regions are not written again",
        ((backlog, "_write_again", write_no_regions_again),),
        chain("another_class_fails:k,following:p"),
    ),
    Plant("R6", "no dirty word", ((Directory, "mark_flush", nothing),), chain("fails:k,following:p")),
    Plant(
        "R6",
        "the dirty word is cleared before recovery",
        ((FLUSHER, "run", clear_the_word),),
        chain("fails:k,early:k,following:p"),
    ),
    Plant("R8", "children are not marked", ((Life, "mark", lambda *_: (0, 0)),), chain("halfway:k")),
    Plant("R8", "no flush before REPLACED", ((Life, "flush_before", False),), chain("halfway:p")),
    Plant(
        "R8",
        "REPLACED is not durable before children are sent",
        ((Life, "flush_behind", False),),
        chain("goes_on:p"),
    ),
    Plant(
        "R8", "children count beside their parent", ((backlog, "is_void", lambda *_, **__: False),), chain("halfway:k")
    ),
    Plant(
        "R8",
        "void children are not stored as void",
        ((backlog, "_void_children", void_in_memory),),
        chain("halfway:k,finishing:k"),
    ),
    Plant("R8", "void children are settled", ((backlog, "_store", void_as_settled),), KILL),
    Plant(
        "R8",
        "an open void child is sealed",
        ((backlog, "_void_children", seal_the_void),),
        chain("halfway:k,finishing:k", crash=130),
    ),
    Plant("R8", "orphans are void", ((backlog, "is_void", orphans_are_void),), chain("child:p")),
    Plant("R9", "lanes do not wait for unassigned records", ((Life, "unassigned_from", lambda _: None),)),
    Plant("R10", "reuse at once", ((ring.Ring, "park", ring.Ring.free),), chain("reuse_at_once:p", mode=ALWAYS)),
    Plant(
        "R10",
        "reuse after a flush that began before",
        ((FLUSHER, "complete", free_all),),
        chain("settled_within:p", mode=ALWAYS),
    ),
    Plant("R10", "one salt for ever", ((disk.MemoryFiles, "random", one_salt),), chain("reuse:p")),
    Plant(
        "R14",
        "nothing is checked as it is read",
        ((loading, "intact", lambda *_, **__: True),),
        Plan(kinds="k", damage=0.5),
    ),
    Plant(
        "R14",
        "notes of a batch follow what is left of the one before",
        ((recovery.Found, "notes_after", property(lambda one: (one.notes,))),),
        chain("neighbours:p", damage=1.0, crash=-1),
    ),
    Plant(
        "R14", "children are not checked", ((backlog, "intact", lambda *_, **__: True),), chain("letters:k", damage=1.0)
    ),
    Plant("R16", "the checkpoint takes the newest position", ((FLUSHER, "run", before(run, live_sources)),)),
    Plant(
        "R16", "segments are reused without a checkpoint", ((FLUSHER, "complete", forget_sources),), chain("crowded:k")
    ),
    Plant(
        "R16",
        "a position noted within a flush waits for the next",
        ((FLUSHER, "complete", after(complete, nothing_due)),),
        chain("noted:p", crash=-1),
    ),
)
"""Not here, since they change nothing that a crash could show:

* R6, no sync points for done batches: their word is evidence without one, and what follows is found by its salt (R14);
* R6, salt or head alone left out of the checksum: each makes up for the other;
* R6, `Job.since` is not older than batches without a durable point: it takes an empty open batch and a full disk;
* R7, SENT before the identity: an identity counts only if its head says how many records the batch has;
* R8, a VOID parent (it was damaged) voids its children: the model excuses what it has damaged;
* R4, fdatasync only where a segment is of this boot: where none is, nothing was stored but words that R10 waits for.
"""
