"""The rules about flushes that fail, each taken away in turn: what their scenarios must notice."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from aiorecover.errors import WalError, WalIOError
from aiorecover.wal import opening
from aiorecover.wal.checkpoint import COPY_BYTES, Checkpoint, CheckpointFile, pack
from aiorecover.wal.directory import Directory
from aiorecover.wal.recovery import Life, Plan, RingPlan
from aiorecover.wal.ring import Ring
from aiorecover.wal.slot import Slot
from aiorecover.wal.storage import StorageFile
from tests.protocols.faults import Fault, Patch

# -- the poison ------------------------------------------------------------------------------------------------------


def not_poisoned(patch: Patch) -> None:
    """A flush that failed is told, and that is all."""
    patch.setattr(Ring, "poison", lambda *_: None)
    patch.setattr(Directory, "poison", lambda *_: None)


def only_its_ring_poisoned(patch: Patch) -> None:
    patch.setattr(Directory, "poison", lambda *_: None)


def accepted_while_there_is_room(patch: Patch) -> None:
    """In the slot that is written to."""

    def poison(self: Ring, error: WalError) -> None:
        self.failure = error

    patch.setattr(Ring, "poison", poison)


def recycled_though_poisoned(patch: Patch) -> None:
    def may_recycle(_: Ring, slot: Slot, mark: int) -> bool:
        over = slot.done or slot.moved
        return over and slot.readers == 0 and slot.last_position <= mark

    patch.setattr(Ring, "_may_recycle", may_recycle)


def flushed_once_more(patch: Patch) -> None:
    """Nothing is accepted any more, but who waits for a flush is told of the next one, which succeeds."""
    patch.setattr(Ring, "sync", lambda self: self.file.sync())


def flush_tried_again(patch: Patch) -> None:
    def sync(self: Ring) -> None:
        with suppress(WalIOError):
            return self.file.sync()
        return self.file.sync()

    patch.setattr(Ring, "sync", sync)


# -- what is done though a flush has failed --------------------------------------------------------------------------


def written_without(patch: Patch, name: str) -> None:
    sync = Ring.sync

    def ignoring(self: Ring) -> None:
        with suppress(WalIOError) if self.file.path.name == name else nullcontext():
            sync(self)

    patch.setattr(Ring, "sync", ignoring)


def checkpoint_without_the_ring(patch: Patch) -> None:
    """It is written although the main ring's flush has failed."""
    written_without(patch, "ring")


def move_without_its_copies(patch: Patch) -> None:
    """It is made although the retry ring's flush has failed."""
    written_without(patch, "retry")


def rewriting_without_its_copies(patch: Patch) -> None:
    written_without(patch, "retry")


def settled_without_its_letter(patch: Patch) -> None:
    """I3: although the dead ring's flush has failed."""
    written_without(patch, "dead")


def next_copy_over_the_good_one(patch: Patch) -> None:
    """A copy of the checkpoint whose flush failed counts as written: the word of it goes into the other's place."""

    def write(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        self._generation += 1
        self._file.write(pack(checkpoint, self._generation), self._generation % 2 * COPY_BYTES)
        self._file.sync()

    patch.setattr(CheckpointFile, "write", write)


def no_word_left(patch: Patch) -> None:
    """The next opening trusts settle words that no flush will cover any more."""
    patch.setattr(CheckpointFile, "leave_word", lambda *_: None)


# -- opening ---------------------------------------------------------------------------------------------------------


def not_rewritten(patch: Patch) -> None:
    """The next flush passes over what the kernel calls clean."""
    patch.setattr(opening, "_rewrite", lambda *_: None)


def files_not_rewritten(patch: Patch, name: str) -> None:
    part = opening._rewrite_part

    def rewrite(file: StorageFile, offset: int, length: int) -> None:
        if file.path.name != name:
            part(file, offset, length)

    patch.setattr(opening, "_rewrite_part", rewrite)


def copies_not_rewritten(patch: Patch) -> None:
    """Nothing in the retry ring, which holds copies that count now."""
    files_not_rewritten(patch, "retry")


def letters_not_rewritten(patch: Patch) -> None:
    files_not_rewritten(patch, "dead")


def lives_rewritten(patch: Patch, which: Callable[[Life], bool]) -> None:
    rewrite = opening._rewrite

    def of(plan: RingPlan) -> RingPlan:
        return replace(plan, lives=list(filter(which, plan.lives)))

    def some(found: Plan, *rest: Any) -> None:
        rewrite(replace(found, main=of(found.main), retry=of(found.retry), dead=of(found.dead)), *rest)

    patch.setattr(opening, "_rewrite", some)


def newest_slot_not_rewritten(patch: Patch) -> None:
    lives_rewritten(patch, lambda life: life.seal is not None)


def only_the_newest_slot_rewritten(patch: Patch) -> None:
    lives_rewritten(patch, lambda life: life.seal is None)


def voided_not_rewritten(patch: Patch) -> None:
    """Headers that an opening has taken away come back with a power cut, and copies that never counted with them."""
    patch.setattr(opening, "_voided", lambda _: iter(()))


def rewritten_behind_the_checkpoint(patch: Patch) -> None:
    """And only behind a life that has stored something: an opening that is killed in between leaves the next one none.

    What is in doubt then is what the life before that one had lost.
    """
    rewrite, write_both = opening._rewrite, CheckpointFile.write_both
    wanted: list[tuple[Plan, Any]] = []

    def later(found: Plan, *rest: Any) -> None:
        wanted.append((found, rest))

    def write(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        write_both(self, checkpoint)
        for found, rest in wanted:
            lives = [*found.main.lives, *found.retry.lives, *found.dead.lives]
            if found.newest is not None and any(life.header.epoch == found.newest.epoch for life in lives):
                rewrite(found, *rest)
        wanted.clear()

    patch.setattr(opening, "_rewrite", later)
    patch.setattr(CheckpointFile, "write_both", write)


def found_copy_only_flushed(patch: Patch) -> None:
    """It is not stored again before: the kernel may call it clean, and the other one is overwritten next."""
    patch.setattr(CheckpointFile, "secure", lambda self: self._file.sync())


PLANTED: dict[Fault, str] = {
    not_poisoned: "flush",
    only_its_ring_poisoned: "compaction",
    accepted_while_there_is_room: "checkpoint",
    recycled_though_poisoned: "recycling late",
    flushed_once_more: "flush",
    flush_tried_again: "a slot's next life",
    checkpoint_without_the_ring: "checkpoints",
    move_without_its_copies: "compaction",
    rewriting_without_its_copies: "rewriting",
    settled_without_its_letter: "letters",
    next_copy_over_the_good_one: "rewriting",
    no_word_left: "settle words",
    not_rewritten: "flush",
    copies_not_rewritten: "compaction",
    letters_not_rewritten: "letters",
    newest_slot_not_rewritten: "flush",
    only_the_newest_slot_rewritten: "two slots",
    voided_not_rewritten: "voided copies",
    rewritten_behind_the_checkpoint: "a new slot",
    found_copy_only_flushed: "checkpoints",
}
