"""The rules of the log, each taken away in turn: what the scenarios must notice.

Those that no crash between two steps tells of are taken away elsewhere; `test_rules` says of each rule where. That the
lanes are flushed is among them (`tests.delivery.test_recovery_check`): here, a power cut would only have records
repeated.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from aiorecover.wal import checkpoint as checkpoint_module
from aiorecover.wal import directory as directory_module
from aiorecover.wal import format as fmt
from aiorecover.wal import opening, recovery
from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile, Copy, RingState
from aiorecover.wal.copied import Copied
from aiorecover.wal.directory import Directory
from aiorecover.wal.moving import Copying, Move, Rewrite
from aiorecover.wal.reading import Reader
from aiorecover.wal.recovery import Plan, SlotFound, plan
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from aiorecover.wal.spares import Spares
from aiorecover.wal.suffix import SuffixRule, Suspicion, Unfinished, Word
from tests.protocols.world import World
from tests.wal.rig import of_epoch, of_the_epoch_before

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]


# -- compaction ------------------------------------------------------------------------------------------------------


def copies_not_flushed(patch: Patch) -> None:
    """Nor anything else of the retry ring, before the checkpoint makes the move."""

    def write_checkpoint(self: Directory, checkpoint: Checkpoint) -> None:
        self.ring.sync()
        self.dead.sync()
        self.checkpoint_file.write(checkpoint)
        self.checkpoint = checkpoint

    patch.setattr(Directory, "write_checkpoint", write_checkpoint)


def moved_before_the_copies(patch: Patch) -> None:
    """P is durable, and then the copies are."""

    def write_checkpoint(self: Directory, checkpoint: Checkpoint) -> None:
        self.checkpoint_file.write(checkpoint)
        for ring in self.rings:
            ring.sync()
        self.checkpoint = checkpoint

    patch.setattr(Directory, "write_checkpoint", write_checkpoint)


def void_copies_not_marked(patch: Patch) -> None:
    patch.setattr(opening, "void_copies", lambda *_: 0)


def void_is_only_settled(patch: Patch) -> None:
    """An opening marks what does not count. After a power cut the suffix rule delivers it beside its original."""

    def end_at(self: Ring, slot: Slot, last_sequence: int) -> None:
        reader = Reader.inside(self, slot, bytes, everything=True)
        while (run := reader.take(100)) is not None:
            behind = [place for place, one in zip(run.places, run.sequences, strict=True) if one > last_sequence]
            self._store_words(slot, behind, slot.done_word)
        reader.close()

    patch.setattr(Ring, "end_at", end_at)


def a_copy_too_many_counts(patch: Patch) -> None:
    """The first one that was not made to count."""
    end_at = Ring.end_at
    patch.setattr(Ring, "end_at", lambda self, slot, last: end_at(self, slot, last + 1))


def a_copy_too_few_counts(patch: Patch) -> None:
    end_at = Ring.end_at
    patch.setattr(Ring, "end_at", lambda self, slot, last: end_at(self, slot, last - 1))


def failed_move_not_settled(patch: Patch) -> None:
    patch.setattr(Move, "abandon", forget_copies)


def forget_copies(self: Copying) -> None:
    """And mark none of them."""
    self.finish()
    for slot in self.slots:
        slot.copies = Copied()


def failed_move_not_void(patch: Patch) -> None:
    """Its copies are only settled: after a power cut they come again, behind a record that waits."""

    def take_back(self: Ring, slot: Slot, place: int, **_: bool) -> None:
        if slot.words is not None and slot.words[place] == slot.open_word:
            self.settle(slot, [place])

    patch.setattr(Ring, "take_back", take_back)


def moved_in_one_copy(patch: Patch) -> None:
    """Only one copy of the checkpoint says P, and the originals are overwritten."""

    def write_checkpoint(self: Directory, checkpoint: Checkpoint) -> None:
        for ring in self.rings:
            ring.sync()
        self.checkpoint_file.write(checkpoint)
        self.checkpoint = checkpoint

    patch.setattr(Directory, "write_checkpoint", write_checkpoint)


def copies_counted_while_moving(patch: Patch) -> None:
    """A checkpoint in the middle of a move calls the copies so far known to count."""
    following = Directory.next_checkpoint

    def next_checkpoint(self: Directory, **more: Any) -> Checkpoint:
        self.copies_from = None
        return following(self, **more)

    patch.setattr(Directory, "next_checkpoint", next_checkpoint)


def copies_not_settled_with_originals(patch: Patch) -> None:
    patch.setattr(Ring, "_settle_copies", staticmethod(lambda *_: None))


def originals_count_after_the_move(patch: Patch) -> None:
    """An opening forgets P for the main ring, and the slot that was moved is still there."""
    made = recovery._plan_ring
    patch.setattr(recovery, "_plan_ring", lambda state, slots, _, **more: made(state, slots, 0, **more))


# -- rewriting -------------------------------------------------------------------------------------------------------


def rewritten_not_flushed(patch: Patch) -> None:
    copies_not_flushed(patch)


def rewritten_before_the_flush(patch: Patch) -> None:
    """The originals are void, and then the copies are durable."""
    moved_before_the_copies(patch)


def rewritten_in_one_copy(patch: Patch) -> None:
    """Only one copy of the checkpoint says so, and the originals are overwritten."""
    patch.setattr(Directory, "_makes_copies_count", lambda self, given: given.moved > self.checkpoint.moved)


def rewritten_counts_beside_its_original(patch: Patch) -> None:
    following = Directory.next_checkpoint

    def next_checkpoint(self: Directory, *, rewritten: int | None = None, **more: Any) -> Checkpoint:
        if rewritten is not None:
            self.copies_from = None
        return following(self, **more)

    patch.setattr(Directory, "next_checkpoint", next_checkpoint)


def rewritten_counts_at_once(patch: Patch) -> None:
    """A copy counts as soon as a checkpoint knows of it."""
    copies_counted_while_moving(patch)


def unmade_rewriting_not_marked(patch: Patch) -> None:
    void_copies_not_marked(patch)


def discarded_header_left(patch: Patch) -> None:
    """A slot in which nothing counts keeps its header: a later checkpoint covers what stands there."""
    patch.setattr(Slot, "blank", lambda _: None)


def failed_rewriting_not_void(patch: Patch) -> None:
    patch.setattr(Rewrite, "abandon", forget_copies)


def rewriting_not_settled_with_originals(patch: Patch) -> None:
    copies_not_settled_with_originals(patch)


def rewriting_taken_back(patch: Patch) -> None:
    """What was captured before it is written behind it as it is."""
    patch.setattr(Checkpoint, "after", lambda self, _: self)


# -- a clean end -----------------------------------------------------------------------------------------------------


def closed_though_stores_follow(patch: Patch) -> None:
    following = Directory.next_checkpoint
    patch.setattr(Directory, "next_checkpoint", lambda self, **more: following(self, **{**more, "closed": True}))


def copies_counted_at_a_clean_end(patch: Patch) -> None:
    """The last checkpoint calls the copies of a rewriting known to count that was never made."""
    following = Directory.next_checkpoint

    def next_checkpoint(self: Directory, **more: Any) -> Checkpoint:
        if more.get("closed"):
            self.copies_from = None
        return following(self, **more)

    patch.setattr(Directory, "next_checkpoint", next_checkpoint)


def closed_without_a_flush(patch: Patch) -> None:
    ring_not_flushed(patch)


def closed_until_the_next_checkpoint(patch: Patch) -> None:
    """An opening keeps what it found."""
    first = opening._first_checkpoint

    def keeping(path: Any, found: Plan, *rest: Any) -> Checkpoint:
        made = first(path, found, *rest)
        return msgspec.structs.replace(made, closed=found.newest is not None and found.newest.closed)

    patch.setattr(opening, "_first_checkpoint", keeping)


def closed_for_ever(patch: Patch) -> None:
    """Whoever ended cleanly once is trusted, whatever came behind."""
    closed_until_the_next_checkpoint(patch)
    following = Directory.next_checkpoint

    def next_checkpoint(self: Directory, **more: Any) -> Checkpoint:
        return following(self, **{**more, "closed": more.get("closed") or self.checkpoint.closed})

    patch.setattr(Directory, "next_checkpoint", next_checkpoint)


def every_end_taken_for_clean(patch: Patch) -> None:
    """Settle words are trusted, however the life before ended."""
    patch.setattr(recovery, "_suspicion", lambda _, newest, *__: Suspicion() if newest is None else newest.suspect)


# -- checkpoint ------------------------------------------------------------------------------------------------------


def captured_after_its_flush(patch: Patch) -> None:
    def write_checkpoint(self: Directory, checkpoint: Checkpoint) -> None:
        for ring in self.rings:
            ring.sync()
        late = self.next_checkpoint(moved=checkpoint.moved, destination=checkpoint.destination)
        self.checkpoint_file.write(late)
        self.checkpoint = late

    patch.setattr(Directory, "write_checkpoint", write_checkpoint)


def ring_not_flushed(patch: Patch) -> None:
    def write_checkpoint(self: Directory, checkpoint: Checkpoint) -> None:
        self.checkpoint_file.write(checkpoint)
        self.checkpoint = checkpoint

    patch.setattr(Directory, "write_checkpoint", write_checkpoint)


def checkpoint_not_flushed(patch: Patch) -> None:
    """The slot is recycled on the word of a checkpoint that a power cut takes back."""

    def write(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        generation = self._generation + 1
        self._file.write(checkpoint_module.pack(checkpoint, generation), generation % 2 * checkpoint_module.COPY_BYTES)
        self._generation = generation

    patch.setattr(CheckpointFile, "write", write)


def both_copies_in_one_place(patch: Patch) -> None:
    def write(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        self._generation += 2
        self._file.write(checkpoint_module.pack(checkpoint, self._generation), 0)
        self._file.sync()

    patch.setattr(CheckpointFile, "write", write)


def both_copies_at_once(patch: Patch) -> None:
    """The older copy is overwritten while the newer one is not durable."""

    def write(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        self._generation += 1
        for place in (0, checkpoint_module.COPY_BYTES):
            self._file.write(checkpoint_module.pack(checkpoint, self._generation), place)
        self._file.sync()

    patch.setattr(CheckpointFile, "write", write)


def watermark_too_high(patch: Patch) -> None:
    """What was stored counts, not what was settled."""
    watermark = Ring.watermark
    patch.setattr(Ring, "watermark", lambda self: max(watermark(self), self.last_position))


# -- opening, epoch --------------------------------------------------------------------------------------------------


def epoch_not_raised(patch: Patch) -> None:
    def same(*found: Any, **more: Any) -> Plan:
        return of_the_epoch_before(plan(*found, **more))

    patch.setattr(opening, "plan", same)


def epoch_not_durable(patch: Patch) -> None:
    """The first frame of an epoch may be in Kafka before anything durable knows of it."""

    def nothing(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        if self.newest() is None:
            self.write(checkpoint)

    patch.setattr(CheckpointFile, "write_both", nothing)


def found_copy_not_durable(patch: Patch) -> None:
    """The newest copy may be in the page cache alone when the other one is overwritten."""
    patch.setattr(CheckpointFile, "secure", lambda _: None)


def epoch_in_one_copy(patch: Patch) -> None:
    patch.setattr(CheckpointFile, "write_both", CheckpointFile.write)


def ordinal_forgotten(patch: Patch) -> None:
    """A checkpoint does not say the next ordinal, and the header with the highest one is cut off."""

    def state(ring: Ring) -> RingState:
        return RingState(watermark=ring.watermark(), flushed=ring.last_position)

    patch.setattr(directory_module, "_state", state)
    first = opening._first_checkpoint

    def forgetful(*given: Any) -> Checkpoint:
        made = first(*given)
        main = RingState(watermark=made.main.watermark, flushed=made.main.flushed)
        return Checkpoint(**{**{name: getattr(made, name) for name in made.__struct_fields__}, "main": main})

    patch.setattr(opening, "_first_checkpoint", forgetful)


def new_without_a_checkpoint(patch: Patch) -> None:
    """Where no copy of it holds nothing is asked of the slots."""

    def nothing(copies: Sequence[Copy], *slots: Any, **more: Any) -> Plan:
        if any(copy.checkpoint is not None for copy in copies):
            return plan(copies, *slots, **more)
        return plan([Copy("blank")] * 2, (), boot_id=more["boot_id"])

    patch.setattr(opening, "plan", nothing)


# -- shrinking -------------------------------------------------------------------------------------------------------


def cut_off_whatever_stands_there(patch: Patch) -> None:
    """As many slots as are superfluous, be they mapped or not."""

    def cut_end(self: Spares, count: int) -> None:
        if count:
            self._cut(self._slots - count)

    patch.setattr(Spares, "_cut_end", cut_end)


def cut_off_before_durable(patch: Patch) -> None:
    """What holds nothing any more, whatever a checkpoint says of it."""
    shrink = Directory.shrink

    def at_once(self: Directory) -> int:
        for ring in self.rings:
            ring.recycle(ring.watermark())
        return shrink(self)

    patch.setattr(Directory, "shrink", at_once)


# -- recycling -------------------------------------------------------------------------------------------------------


def recycled_before_durable(patch: Patch) -> None:
    """A slot is free once all in it is settled."""
    patch.setattr(Ring, "_may_recycle", lambda self, slot, _: (slot.done or slot.moved) and slot.readers == 0)


def recycled_under_a_reader(patch: Patch) -> None:
    patch.setattr(
        Ring, "_may_recycle", lambda self, slot, mark: (slot.done or slot.moved) and slot.last_position <= mark
    )


def recycled_while_it_waits(patch: Patch) -> None:
    patch.setattr(Ring, "_may_recycle", lambda self, slot, _: slot.sealed and slot.readers == 0)


# -- the life of a slot ----------------------------------------------------------------------------------------------


def one_salt_for_all_lives(patch: Patch) -> None:
    patch.setattr(World, "salt", lambda *_: 0x5A5A_1234)


def settle_word_without_life(patch: Patch) -> None:
    """The checksum tells the lives apart, the settle word does not."""

    def salt(self: World, _: int) -> int:
        return 0x5A5A_0000 | next(self._salts) >> 20

    patch.setattr(World, "salt", salt)


# -- suffix rule -----------------------------------------------------------------------------------------------------


def no_suffix_rule(patch: Patch) -> None:
    patch.setattr(SuffixRule, "needed", lambda self, lane, word: word is Word.WAITING)


def no_generation(patch: Patch) -> None:
    """What was delivered again looks like what was settled before."""

    def word(self: Suspicion, epoch: int, mark: int) -> Word | Unfinished:
        found = suffix_word(self, epoch, mark)
        return Word.SETTLED if found is Word.AGAIN else found

    suffix_word = Suspicion.word
    patch.setattr(Suspicion, "word", word)


def unfinished_generations_trusted(patch: Patch) -> None:
    """After a second power cut, what bears the first one's mark counts as settled."""

    def word(self: Suspicion, epoch: int, mark: int) -> Word:
        began = self.generation - (self.generation - mark) % fmt.VOID
        return Word.AGAIN if began == self.generation else Word.SETTLED

    patch.setattr(Suspicion, "word", word)


def unfinished_generations_again(patch: Patch) -> None:
    """After a second power cut, what bears the first one's mark is sent once more, whatever has come behind it."""

    def word(self: Suspicion, epoch: int, mark: int) -> Word:
        found = suffix_word(self, epoch, mark)
        if isinstance(found, Unfinished):
            return Word.WAITING if found.again else Word.SETTLED
        return found

    suffix_word = Suspicion.word
    patch.setattr(Suspicion, "word", word)


def suspicion_forgotten(patch: Patch) -> None:
    """The next opening of the same boot trusts the settle words, though nobody has gone through them."""
    patch.setattr(Directory, "_suspicion", lambda self: Suspicion())
    first = opening._first_checkpoint

    def trusting(path: Any, found: Plan, *rest: Any) -> Checkpoint:
        known = found.newest is not None and found.newest.boot_id == rest[1]
        return first(path, replace(found, suspect=Suspicion()) if known else found, *rest)

    patch.setattr(opening, "_first_checkpoint", trusting)


def nobodys_records_in_one_lane(patch: Patch) -> None:
    """Those without a key and a partition are delivered again behind one another."""
    needed = SuffixRule.needed

    def of_a_lane(self: SuffixRule, lane: Hashable | None, word: Word | Unfinished, **more: bool) -> bool:
        return needed(self, "nobody" if lane is None else lane, word, **more)

    patch.setattr(SuffixRule, "needed", of_a_lane)


# -- what is there twice, or told twice --------------------------------------------------------------------------------


def no_seal(patch: Patch) -> None:
    """A slot that is left does not say what it holds: a torn end is taken for the end."""

    def store_seal(self: Slot) -> None:
        self.sealed = True

    patch.setattr(Slot, "store_seal", store_seal)


def not_sealed_by_its_reader(patch: Patch) -> None:
    """Who comes to the end of a slot that a crash left open remembers it, and tells nobody."""

    def seal_old(self: Ring, slot: Slot) -> None:
        self.map_for_settling(slot)
        slot.sealed = True

    patch.setattr(Ring, "seal_old", seal_old)


def header_in_front_only(patch: Patch) -> None:
    def store_header(self: Slot) -> None:
        self._mapping()[: fmt.HEADER_BYTES] = fmt.pack_slot_header(self.header)

    patch.setattr(Slot, "store_header", store_header)


# -- what is done so, and might as well be done otherwise (the first three: `aiorecover.wal.slot`) ---------------------


def header_in_front_first(patch: Patch) -> None:
    def store_header(self: Slot) -> None:
        packed = fmt.pack_slot_header(self.header).ljust(fmt.RESERVED, b"\0")
        for start in (0, self.header.slot_bytes - fmt.RESERVED):
            self._mapping()[start : start + fmt.RESERVED] = packed

    patch.setattr(Slot, "store_header", store_header)


def header_beside_the_old_seal(patch: Patch) -> None:
    def store_header(self: Slot) -> None:
        packed = fmt.pack_slot_header(self.header)
        for start in (self.header.slot_bytes - fmt.RESERVED, 0):
            self._mapping()[start : start + len(packed)] = packed

    patch.setattr(Slot, "store_header", store_header)


def sealed_behind_the_next_header(patch: Patch) -> None:
    seal, begin = Ring._seal, Ring._begin
    left: dict[Ring, Slot] = {}

    def later(self: Ring, slot: Slot) -> None:
        slot.limit = 0
        left[self] = slot

    def then(self: Ring, *given: Any) -> Slot:
        following = begin(self, *given)
        seal(self, left.pop(self))
        return following

    patch.setattr(Ring, "_seal", later)
    patch.setattr(Ring, "_begin", then)


def epoch_of_the_newest_copy(patch: Patch) -> None:
    """And of the headers: the older copy was written before, so it says nothing higher."""

    def newest_alone(copies: Sequence[Copy], *rings: Iterable[SlotFound], **more: Any) -> Plan:
        listed = [list(ring) for ring in rings]
        made = plan(copies, *listed, **more)
        if made.newest is None:
            return made
        headers = (slot.header.epoch for ring in listed for slot in ring if slot.header is not None)
        return of_epoch(made, 1 + max([made.newest.epoch, *headers]))

    patch.setattr(opening, "plan", newest_alone)


FREE: dict[Fault, str] = {
    header_in_front_first: "recycling",
    header_beside_the_old_seal: "recycling",
    sealed_behind_the_next_header: "recycling",  # what it costs is told before anything is read: `test_sealing`
    epoch_of_the_newest_copy: "opening behind checkpoints",
}


PLANTED: dict[Fault, str] = {
    copies_not_flushed: "compaction",
    moved_before_the_copies: "compaction",
    void_copies_not_marked: "a crash in a move",
    void_is_only_settled: "a crash in a second move",
    a_copy_too_many_counts: "a crash in a second move",
    a_copy_too_few_counts: "a crash in a second move",
    failed_move_not_settled: "a move that fails",
    failed_move_not_void: "a move that fails in traffic",
    moved_in_one_copy: "compaction",
    copies_counted_while_moving: "a checkpoint in a move",
    copies_not_settled_with_originals: "compaction in flight",
    originals_count_after_the_move: "compaction",
    rewritten_not_flushed: "rewriting, twice",
    rewritten_before_the_flush: "rewriting, twice",
    rewritten_in_one_copy: "rewriting, twice",
    rewritten_counts_beside_its_original: "rewriting, twice",
    rewritten_counts_at_once: "a checkpoint in a rewriting",
    unmade_rewriting_not_marked: "a crash in a rewriting",
    discarded_header_left: "a crash in a rewriting of two slots",
    failed_rewriting_not_void: "a rewriting that fails",
    rewriting_not_settled_with_originals: "rewriting in flight",
    rewriting_taken_back: "captured before a rewriting",
    closed_though_stores_follow: "a clean end",
    copies_counted_at_a_clean_end: "a clean end in a rewriting",
    closed_without_a_flush: "a clean end",
    closed_until_the_next_checkpoint: "opened after a clean end",
    closed_for_ever: "delivering after a clean end",
    every_end_taken_for_clean: "a clean end",
    captured_after_its_flush: "checkpoint",
    ring_not_flushed: "checkpoints",
    checkpoint_not_flushed: "recycling",
    both_copies_in_one_place: "checkpoints",
    both_copies_at_once: "checkpoints",
    watermark_too_high: "checkpoints",
    epoch_not_raised: "a slot's next life",
    epoch_not_durable: "a slot's next life",
    epoch_in_one_copy: "a slot's next life",
    found_copy_not_durable: "opening behind checkpoints",
    new_without_a_checkpoint: "compaction",
    ordinal_forgotten: "shrinking",
    cut_off_whatever_stands_there: "shrinking behind what waits",
    cut_off_before_durable: "shrinking before a checkpoint",
    recycled_before_durable: "recycling at once",
    recycled_under_a_reader: "recycling under a reader",
    recycled_while_it_waits: "recycling out of order",
    one_salt_for_all_lives: "a slot's next life",
    settle_word_without_life: "a slot's next life",
    no_suffix_rule: "settle words",
    no_generation: "settle words, twice",
    unfinished_generations_trusted: "settle words, twice",
    suspicion_forgotten: "settle words, twice",
    nobodys_records_in_one_lane: "settle words without a lane",
}
