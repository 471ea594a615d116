"""The model finds faults that are planted in the library, without being told where to look.

For the rarest it is told which steps lead there, and looks for the power cut that shows them, if it takes one.

That it is green without them is `test_model`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from aiorecover.delivery.journaling import Journal
from aiorecover.wal import directory as directory_module
from aiorecover.wal import format as fmt
from aiorecover.wal import instance, lanes, neighbours, opening, recovery, room
from aiorecover.wal import slot as slot_module
from aiorecover.wal.checkpoint import Checkpoint, Destination, RingState
from aiorecover.wal.copied import Copied
from aiorecover.wal.directory import Directory, Files
from aiorecover.wal.lanes import Lanes
from aiorecover.wal.moved import RETRY, pack_moved, unpack_moved
from aiorecover.wal.moving import Copying, Found, Move, Rewrite
from aiorecover.wal.neighbours import Neighbours
from aiorecover.wal.reading import Reader
from aiorecover.wal.recovery import Life
from aiorecover.wal.ring import Ring
from aiorecover.wal.suffix import SuffixRule, Suspicion, Word
from aiorecover.wal.view import View
from tests.wal import machine
from tests.wal.ledger import ViolationError
from tests.wal.planted import Fault, Patch
from tests.wal.played import Played
from tests.wal.test_planted_faults import (
    capture_after_the_flush,
    open_without_a_new_epoch,
    open_without_writing_the_epoch,
    recycle_under_a_reader,
    recycle_what_waits,
    recycle_without_a_durable_watermark,
    write_without_flushing,
)
from tests.wal.walk import Taken, run, walk, walk_all, walk_in_transactions

if TYPE_CHECKING:
    from aiorecover.wal.slot import Slot

WALKS = 3000  # at most; most faults are found by one of the first fifty


@pytest.fixture(autouse=True)
def nobody_looks_from_outside(monkeypatch: Patch) -> None:
    """What a life itself meets has to find them; that a view would differ, too, is `test_model_views`."""
    monkeypatch.setattr(machine, "check_views", lambda *_: None)


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

    def remembering(self: Move, original: Found) -> None:
        copy(self, original)
        made.append(self.slot.copies[original.place])

    def abandon(self: Move) -> None:
        forget_copies(self)
        for slot, place in made:
            slot.ring.settle(slot, [place])
        made.clear()

    made: list[tuple[Slot, int]] = []
    patch.setattr(Move, "_copy", remembering)
    patch.setattr(Move, "abandon", abandon)


def abandon_a_move_and_keep_its_copies(patch: Patch) -> None:
    patch.setattr(Move, "abandon", forget_copies)


def forget_copies(self: Copying) -> None:
    self.finish()
    for slot in self.slots:
        slot.copies = Copied()


def settle_the_original_alone(patch: Patch) -> None:
    patch.setattr(Ring, "_settle_copies", staticmethod(lambda *_: None))


def let_originals_count_beside_their_copies(patch: Patch) -> None:
    made = recovery._plan_ring
    patch.setattr(recovery, "_plan_ring", lambda state, slots, _, **more: made(state, slots, 0, **more))


def copy_what_was_settled_meanwhile(patch: Patch) -> None:
    """It stands in what was read before; and nobody asks whether it waits."""
    patch.setattr(Reader, "forget", lambda _: None)
    patch.setattr(slot_module.Slot, "waits", lambda *_: True)


def deliver_from_the_main_ring_before_the_copies_are_read(patch: Patch) -> None:
    """The order is kept by who reads: here it is the dispatcher that is played."""
    patch.setattr(Played, "retry_first", property(lambda _: False, lambda *_: None), raising=False)


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
    patch.setattr(Rewrite, "abandon", forget_copies)


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


def forget_which_generations_are_not_dealt_with(patch: Patch) -> None:
    def word(self: Suspicion, _: int, mark: int) -> Word:
        return Word.AGAIN if mark == self.generation % fmt.MARKS else Word.SETTLED

    patch.setattr(Suspicion, "word", word)


def mark_nothing_as_done_again(patch: Patch) -> None:
    """What is delivered again is settled as it would have been before the power cut."""
    patch.setattr(Ring, "_mark", 0)


def move_a_slot_before_all_suspects_are_read(patch: Patch) -> None:
    """The rule is kept by who compacts: here it is the dispatcher that is played."""
    patch.setattr(Played, "_unread", lambda *_: False)


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


def adopt_only_what_the_last_checkpoint_left(patch: Patch) -> None:
    """As if nothing could stand behind it, or in slots of epochs before."""

    def waits(view: View) -> bool:
        known = view.checkpoint
        state = None if known is None else known.retry if view.ring == RETRY else known.main
        return state is not None and state.watermark < state.flushed

    patch.setattr(neighbours, "_waits", waits)


def adopt_whatever_has_a_slot_in_use(patch: Patch) -> None:
    """Also when all of it was delivered and the end was clean: so again and again."""
    patch.setattr(neighbours, "_waits", lambda view: any(slot.header is not None for slot in view.slots()))


def open_what_another_has_locked(patch: Patch) -> None:
    patch.setattr(instance, "_is_locked", lambda lock: lock.lock() or True)


def call_every_directory_free(patch: Patch) -> None:
    patch.setattr(Neighbours, "_is_free", lambda *_: True)


def let_a_directory_go_and_keep_its_lock(patch: Patch) -> None:
    def close(self: Files) -> None:
        for file in (self.lanes, self.dead, self.retry, self.ring, self.checkpoint):
            file.close()

    patch.setattr(Files, "close", close)


def call_what_is_adopted_ones_own(patch: Patch) -> None:
    old = Ring._old_slot

    def renamed(self: Ring, life: Life) -> "Slot":
        return old(self, replace(life, header=replace(life.header, producer_id=self.producer_id)))

    patch.setattr(Ring, "_old_slot", renamed)


def call_what_is_moved_ones_own(patch: Patch) -> None:
    packed = Move._packed

    def renamed(self: Move, original: Found) -> tuple[int, bytes]:
        position, copy = packed(self, original)
        moved = unpack_moved(memoryview(copy))
        return position, pack_moved(position, fmt.nonce_of(self._retry.producer_id), moved.partition, moved.payload)

    patch.setattr(Move, "_packed", renamed)


# -- the dead ring ---------------------------------------------------------------------------------------------------


def call_letters_durable_before_they_are(patch: Patch) -> None:
    patch.setattr(Directory, "sync_dead", Directory.sync)


def make_checkpoints_without_flushing_the_dead_ring(patch: Patch) -> None:
    def write(self: Directory, checkpoint: Checkpoint) -> None:
        self.ring.sync()
        self.retry.sync()
        self.lanes.sync()
        self.checkpoint_file.write_both(checkpoint)
        self.checkpoint = checkpoint

    patch.setattr(Directory, "_write", write)


def free_letters_that_wait(patch: Patch) -> None:
    """As if all that is in the dead ring were settled; `recycle_what_waits` is for the main ring."""
    made = directory_module._state

    def mistaken(ring: Ring) -> RingState:
        state = made(ring)
        return state if ring.judged_with else msgspec.structs.replace(state, watermark=ring.last_position)

    patch.setattr(directory_module, "_state", mistaken)


def keep_no_slot_for_letters(patch: Patch) -> None:
    most = room.Shares.most
    patch.setattr(room.Shares, "most", lambda self, ring: 0 if ring == room.DEAD else most(self, ring))


# -- what is in flight -----------------------------------------------------------------------------------------------


def make_checkpoints_without_flushing_the_lanes(patch: Patch) -> None:
    patch.setattr(Lanes, "sync", lambda _: None)


def believe_entries_whose_checksum_does_not_hold(patch: Patch) -> None:
    unpack = lanes.unpack_entry

    def trusting(data: bytes) -> Any:
        found = unpack(data)
        if found.state != "damaged" or data[:4] != lanes.ENTRY_MAGIC:
            return found
        _, epoch, generation, length, _ = lanes.ENTRY.unpack_from(data)
        return lanes._Copy("whole", generation, epoch, data[lanes.ENTRY.size : lanes.ENTRY.size + length])

    patch.setattr(lanes, "unpack_entry", trusting)


def store_an_entry_over_the_newest_one(patch: Patch) -> None:
    store = Lanes.store

    def over(self: Lanes, block: int, body: bytes) -> None:
        self._generations[block] += self._generations[block] % 2
        store(self, block, body)

    patch.setattr(Lanes, "store", over)


def know_what_another_boot_has_stored(patch: Patch) -> None:
    patch.setattr(lanes.Header, "same_place", lambda self, other: self.inode == other.inode)


def leave_what_stands_in_a_piece_of_a_block(patch: Patch) -> None:
    patch.setattr(Lanes, "_clear_piece", lambda *_: None)


def leave_the_header_as_it_stands(patch: Patch) -> None:
    patch.setattr(Lanes, "_store_again", lambda _: None)


def move_what_is_in_flight_and_leave_its_entry(patch: Patch) -> None:
    patch.setattr(Journal, "repoint", lambda *_: None)


def give_what_is_claimed_to_readers(patch: Patch) -> None:
    claim = Ring.claim

    def forgetful(self: Ring, slot: "Slot", places: Any, settled: Any) -> None:
        claim(self, slot, places, settled)
        slot.claimed.clear()

    patch.setattr(Ring, "claim", forgetful)


def claim_without_having_the_settled_ones_wait_again(patch: Patch) -> None:
    claim = Ring.claim
    patch.setattr(Ring, "claim", lambda self, slot, places, _: claim(self, slot, places, ()))


def count_nothing_of_what_is_claimed(patch: Patch) -> None:
    claim = Ring.claim

    def uncounted(self: Ring, slot: "Slot", places: Any, settled: Any) -> None:
        claim(self, slot, places, settled)
        slot.unsettled -= len(places)

    patch.setattr(Ring, "claim", uncounted)


def give_copies_of_what_is_claimed_to_readers(patch: Patch) -> None:
    copy = Copying._copy

    def forgetful(self: Copying, original: Found) -> None:
        copy(self, original)
        original.slot.copies[original.place][0].claimed.clear()

    patch.setattr(Copying, "_copy", forgetful)


FAULTS: list[tuple[Fault, int]] = [  # and a walk from which on it is soon found: some take thousands
    (recycle_what_waits, 0),
    (recycle_without_a_durable_watermark, 0),
    (recycle_under_a_reader, 1433),
    (capture_after_the_flush, 0),
    (write_without_flushing, 2),
    (open_without_a_new_epoch, 0),
    (open_without_writing_the_epoch, 0),
    (make_a_move_without_flushing_its_copies, 2),
    (leave_copies_that_do_not_count, 121),
    (forget_where_copies_begin_that_do_not_count, 330),
    (settle_copies_again_when_a_move_is_abandoned, 102),
    (abandon_a_move_and_keep_its_copies, 221),
    (settle_the_original_alone, 60),
    (let_originals_count_beside_their_copies, 40),
    (deliver_from_the_main_ring_before_the_copies_are_read, 639),
    (forget_that_the_retry_ring_was_rewritten, 453),
    (abandon_a_rewriting_and_keep_its_copies, 758),
    (call_every_checkpoint_the_last, 6),
    (doubt_a_clean_end, 0),
    (believe_every_settle_word, 118),
    (suspect_nothing, 157),
    (trust_the_pages_that_a_failed_flush_left, 148),
    (go_on_after_a_failed_flush, 1),
    (shrink_without_knowing_the_next_ordinal, 0),
    (adopt_only_what_the_last_checkpoint_left, 1),
    (adopt_whatever_has_a_slot_in_use, 0),
    (open_what_another_has_locked, 0),
    (call_every_directory_free, 0),
    (let_a_directory_go_and_keep_its_lock, 0),
    (call_what_is_adopted_ones_own, 0),
    (call_what_is_moved_ones_own, 91),
]


@pytest.mark.parametrize(("fault", "start"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_the_model_finds_a_fault_without_being_told_where_to_look(fault: Fault, start: int, monkeypatch: Patch) -> None:
    assert walk(start)[1] is None
    fault(monkeypatch)
    assert any(walk(seed)[1] is not None for seed in range(start, start + WALKS))


OTHERS: list[tuple[Fault, int]] = [  # found by walks with all steps
    (call_letters_durable_before_they_are, 0),
    (make_checkpoints_without_flushing_the_dead_ring, 29),
    (free_letters_that_wait, 6),
    (keep_no_slot_for_letters, 0),
    (make_checkpoints_without_flushing_the_lanes, 6),
    (believe_entries_whose_checksum_does_not_hold, 5),
    (store_an_entry_over_the_newest_one, 94),
    (know_what_another_boot_has_stored, 1),
    (move_what_is_in_flight_and_leave_its_entry, 11),
    (give_what_is_claimed_to_readers, 11),
    (claim_without_having_the_settled_ones_wait_again, 22),
    (count_nothing_of_what_is_claimed, 11),
    (give_copies_of_what_is_claimed_to_readers, 53),
]


@pytest.mark.parametrize(("fault", "start"), OTHERS, ids=[fault.__name__ for fault, _ in OTHERS])
def test_the_model_finds_a_fault_of_letters_and_of_what_is_in_flight(
    fault: Fault, start: int, monkeypatch: Patch
) -> None:
    assert walk_all(start)[1] is None
    fault(monkeypatch)
    assert any(walk_all(seed)[1] is not None for seed in range(start, start + WALKS))


# -- transactions ----------------------------------------------------------------------------------------------------


def take_back_what_was_remembered_of_the_position(patch: Patch) -> None:
    after = Destination.after

    def forgetful(self: Destination, durable: Destination) -> Destination:
        return msgspec.structs.replace(after(self, durable), transactional=self.transactional)

    patch.setattr(Destination, "after", forgetful)


def begin_a_life_without_the_openings_before(patch: Patch) -> None:
    made = opening._destination
    patch.setattr(opening, "_destination", lambda *known: msgspec.structs.replace(made(*known), transactional=None))


def flush_nothing_before_a_commit(patch: Patch) -> None:
    patch.setattr(Directory, "_sync", lambda self, ring: ring._refuse_after_failure())


IN_TRANSACTIONS = (
    take_back_what_was_remembered_of_the_position,
    begin_a_life_without_the_openings_before,
    flush_nothing_before_a_commit,
)


@pytest.mark.parametrize("fault", IN_TRANSACTIONS)
def test_the_model_finds_a_fault_of_what_goes_in_transactions(fault: Fault, monkeypatch: Patch) -> None:
    assert walk_in_transactions(0)[1] is None
    fault(monkeypatch)
    assert any(walk_in_transactions(seed)[1] is not None for seed in range(WALKS))


# -- too rare for chance: a settle word is lost, one behind it in its lane is not, and an end comes between the two;
#    or what was captured is only written when a move has come in between; or what a move has read waits for its turn


def power_cut(seed: int) -> Taken:
    return "end", {"stopped": False, "power": seed, "sector": 512, "slot_bytes": 16384, "name": "shop"}


DEATH: Taken = ("end", {**power_cut(0)[1], "power": None})


def one_is_done_again(cut: int) -> list[Taken]:
    """Of a lane that was delivered before the power cut, one record is delivered again, and nothing behind it."""
    return [
        ("append", {"size": 1200, "count": 6}),
        ("sync", {"fails": False}),
        ("read", {"limit": 55}),
        ("deliver", {"lane": b"c", "part": 1.0}),
        ("settle", {"seed": 0, "part": 1.0}),
        power_cut(cut),
        ("read", {"limit": 3}),
        ("deliver", {"lane": b"c", "part": 0.1}),
        ("settle", {"seed": 0, "part": 1.0}),
    ]


def then_dies(cut: int) -> list[Taken]:
    return [*one_is_done_again(cut), DEATH, ("deliver_everything", {})]


def then_loses_power_again(cut: int) -> list[Taken]:
    return [*one_is_done_again(cut), power_cut(cut + 1), ("deliver_everything", {})]


def is_moved_and_dies(cut: int) -> list[Taken]:
    """Of several slots that were delivered, the first one is read again and moved."""
    return [
        ("append", {"size": 2100, "count": 12}),
        ("append", {"size": 5000, "count": 12}),
        ("sync", {"fails": False}),
        *[("read", {"limit": 55})] * 4,
        ("deliver", {"lane": b"c", "part": 1.0}),
        ("settle", {"seed": 0, "part": 1.0}),
        power_cut(cut),
        ("read", {"limit": 55}),
        ("read", {"limit": 1}),
        ("begin_move", {}),
        ("make_move", {"traffic": False, "end": ("never", ""), "power": None, "fails": "", "sector": 512}),
        DEATH,
        ("deliver_everything", {}),
    ]


def writes_what_was_captured_before_a_move(_: int) -> list[Taken]:
    how = {"traffic": False, "end": ("never", ""), "power": None, "fails": "", "sector": 512}
    return [
        ("capture", {}),
        ("append", {"size": 2100, "count": 8}),
        ("append", {"size": 14_000, "count": 6}),
        *[("read", {"limit": 55})] * 2,
        *[("begin_move", {}), ("make_move", how), ("recycle", {})],
        *[("begin_rewriting", {}), ("write_checkpoint", how)],
        DEATH,
        ("deliver_everything", {}),
    ]


def is_moved_while_it_is_delivered(_: int) -> list[Taken]:
    """One record is copied, and all of a lane are settled before the others are."""
    how = {"traffic": False, "end": ("never", ""), "power": None, "fails": "", "sector": 512}
    return [
        ("append", {"size": 2100, "count": 12}),
        *[("read", {"limit": 55})] * 4,
        ("begin_move", {}),
        ("step_move", {"limit": 1}),
        ("deliver", {"lane": b"c", "part": 1.0}),
        ("settle", {"seed": 0, "part": 1.0}),
        ("make_move", how),
        DEATH,
        ("deliver_everything", {}),
    ]


RARE = {
    copy_what_was_settled_meanwhile: is_moved_while_it_is_delivered,
    take_back_what_was_made: writes_what_was_captured_before_a_move,
    forget_which_generations_are_not_dealt_with: then_loses_power_again,
    mark_nothing_as_done_again: then_dies,
    move_a_slot_before_all_suspects_are_read: is_moved_and_dies,
}
CUTS = 300  # at most; one of the first fifty shows it


@pytest.mark.parametrize(("fault", "life"), RARE.items(), ids=[fault.__name__ for fault in RARE])
def test_the_model_finds_a_rare_fault_when_it_is_led_there(
    fault: Fault, life: Callable[[int], list[Taken]], monkeypatch: Patch
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        cut = next((seed for seed in range(CUTS) if isinstance(run(life(seed)), ViolationError)), None)
    assert cut is not None
    assert run(life(cut)) is None
