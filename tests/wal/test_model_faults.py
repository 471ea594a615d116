"""The model finds faults that are planted in the library, without being told where to look.

That it is green without them is `test_model`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aiorecover.wal import opening, recovery
from aiorecover.wal import slot as slot_module
from aiorecover.wal.checkpoint import Checkpoint, RingState
from aiorecover.wal.directory import Directory
from aiorecover.wal.moving import Move, Rewrite
from aiorecover.wal.ring import Ring
from aiorecover.wal.suffix import SuffixRule, Suspicion, Word
from tests.wal.test_planted_faults import (
    capture_after_the_flush,
    open_without_a_new_epoch,
    open_without_writing_the_epoch,
    recycle_under_a_reader,
    recycle_what_waits,
    recycle_without_a_durable_watermark,
    write_without_flushing,
)
from tests.wal.walk import walk

if TYPE_CHECKING:
    from aiorecover.wal.slot import Slot

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]

WALKS = 3000  # at most; most faults are found by one of the first fifty


# -- compaction ------------------------------------------------------------------------------------------------------


def make_a_move_without_flushing_its_copies(patch: Patch) -> None:
    def write_checkpoint(self: Directory, checkpoint: Checkpoint) -> None:
        self.ring.sync()
        self.checkpoint_file.write(checkpoint)
        self.checkpoint = checkpoint

    patch.setattr(Directory, "write_checkpoint", write_checkpoint)


def leave_copies_that_do_not_count(patch: Patch) -> None:
    patch.setattr(opening, "void_copies", lambda *_: 0)


def forget_where_copies_begin_that_do_not_count(patch: Patch) -> None:
    next_checkpoint = Directory.next_checkpoint

    def forgetful(self: Directory, **more: Any) -> Checkpoint:
        self.copies_from = None
        return next_checkpoint(self, **more)

    patch.setattr(Directory, "next_checkpoint", forgetful)


def settle_copies_again_when_a_move_is_abandoned(patch: Patch) -> None:
    copy = Move._copy

    def remembering(self: Move, position: int, place: int, payload: bytes) -> None:
        copy(self, position, place, payload)
        made.append(self.slot.copies[place])

    def abandon(self: Move) -> None:
        self._reader.close()
        self.slot.copies.clear()
        for retry, slot, place in made:
            retry.settle(slot, [place])
        made.clear()

    made: list[tuple[Any, Slot, int]] = []
    patch.setattr(Move, "_copy", remembering)
    patch.setattr(Move, "abandon", abandon)


def abandon_a_move_and_keep_its_copies(patch: Patch) -> None:
    def abandon(self: Move) -> None:
        self._reader.close()
        self.slot.copies.clear()

    patch.setattr(Move, "abandon", abandon)


def settle_the_original_alone(patch: Patch) -> None:
    patch.setattr(Ring, "_settle_copies", staticmethod(lambda *_: None))


def let_originals_count_beside_their_copies(patch: Patch) -> None:
    made = recovery._plan_ring
    patch.setattr(recovery, "_plan_ring", lambda state, slots, _, **more: made(state, slots, 0, **more))


def copy_what_was_settled_meanwhile(patch: Patch) -> None:
    patch.setattr(slot_module.Slot, "waits", lambda *_: True)


# -- rewriting the retry ring ----------------------------------------------------------------------------------------


def forget_that_the_retry_ring_was_rewritten(patch: Patch) -> None:
    following = Directory.next_checkpoint

    def forgetful(self: Directory, *, rewritten: int | None = None, **more: Any) -> Checkpoint:
        if rewritten is not None:
            self.copies_from = None
        return following(self, **more)

    patch.setattr(Directory, "next_checkpoint", forgetful)


def take_back_what_was_made(patch: Patch) -> None:
    patch.setattr(Checkpoint, "after", lambda self, _: self)


def abandon_a_rewriting_and_keep_its_copies(patch: Patch) -> None:
    def abandon(self: Rewrite) -> None:
        for slot in self._originals:
            slot.copies.clear()

    patch.setattr(Rewrite, "abandon", abandon)


# -- a clean end -----------------------------------------------------------------------------------------------------


def call_every_checkpoint_the_last(patch: Patch) -> None:
    following = Directory.next_checkpoint
    patch.setattr(Directory, "next_checkpoint", lambda self, **more: following(self, **{**more, "closed": True}))


def doubt_a_clean_end(patch: Patch) -> None:
    following = Directory.next_checkpoint
    patch.setattr(Directory, "next_checkpoint", lambda self, **more: following(self, **{**more, "closed": False}))


# -- after a power cut -----------------------------------------------------------------------------------------------


def believe_every_settle_word(patch: Patch) -> None:
    patch.setattr(SuffixRule, "needed", lambda _self, _lane, word: word is Word.WAITING)


def suspect_nothing(patch: Patch) -> None:
    patch.setattr(recovery, "_suspicion", lambda *_: Suspicion())


# -- after a failed flush --------------------------------------------------------------------------------------------


def trust_the_pages_that_a_failed_flush_left(patch: Patch) -> None:
    patch.setattr(opening, "_rewrite", lambda *_: None)


def go_on_after_a_failed_flush(patch: Patch) -> None:
    patch.setattr(Ring, "poison", lambda *_: None)


# -- room ------------------------------------------------------------------------------------------------------------


def shrink_without_knowing_the_next_ordinal(patch: Patch) -> None:
    made = recovery._plan_ring

    def forgetful(state: RingState, *more: Any, **known: Any) -> recovery.RingPlan:
        plan = made(state, *more, **known)
        newest = max((life.header.ordinal for life in plan.lives), default=0)
        return replace(plan, next_ordinal=newest + 1)

    patch.setattr(recovery, "_plan_ring", forgetful)


FAULTS: list[tuple[Fault, int]] = [  # and a walk from which on it is soon found: some take thousands
    (recycle_what_waits, 0),
    (recycle_without_a_durable_watermark, 0),
    (recycle_under_a_reader, 2000),
    (capture_after_the_flush, 0),
    (write_without_flushing, 0),
    (open_without_a_new_epoch, 0),
    (open_without_writing_the_epoch, 6),
    (make_a_move_without_flushing_its_copies, 0),
    (leave_copies_that_do_not_count, 47),
    (forget_where_copies_begin_that_do_not_count, 152),
    (settle_copies_again_when_a_move_is_abandoned, 11),
    (abandon_a_move_and_keep_its_copies, 47),
    (settle_the_original_alone, 1),
    (let_originals_count_beside_their_copies, 32),
    (copy_what_was_settled_meanwhile, 96),
    (forget_that_the_retry_ring_was_rewritten, 34),
    (take_back_what_was_made, 134),
    (abandon_a_rewriting_and_keep_its_copies, 0),
    (call_every_checkpoint_the_last, 56),
    (doubt_a_clean_end, 0),
    (believe_every_settle_word, 87),
    (suspect_nothing, 40),
    (trust_the_pages_that_a_failed_flush_left, 359),
    (go_on_after_a_failed_flush, 0),
    (shrink_without_knowing_the_next_ordinal, 0),
]


@pytest.mark.parametrize(("fault", "start"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_the_model_finds_a_fault_without_being_told_where_to_look(fault: Fault, start: int, monkeypatch: Patch) -> None:
    assert walk(start)[1] is None
    fault(monkeypatch)
    assert any(walk(seed)[1] is not None for seed in range(start, start + WALKS))
