"""The library is broken on purpose, one invariant at a time: a check that never goes red proves nothing.

Each scenario is green as the library is, and red with each fault that is planted in it. The model finds most of them
without being told where to look: `test_model_faults`.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiorecover.errors import WalCorruptError, WalError
from aiorecover.testing import MemoryDisk
from aiorecover.testing.memory_file_system import MemoryFileSystem
from aiorecover.wal import checkpoint as checkpoint_module
from aiorecover.wal import format as fmt
from aiorecover.wal import opening, reading, recovery
from aiorecover.wal.checkpoint import Checkpoint, CheckpointFile, Copy, Destination, RingState
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.reading import Reader
from aiorecover.wal.recovery import Plan, RingPlan, plan
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.stream import Stream
from tests.wal.ledger import Ledger, ViolationError, demand
from tests.wal.memory import FaultyFile
from tests.wal.planted import Fault, Patch, Planted, Scenario, names_of, tells
from tests.wal.rig import MAX_SLOTS, SLOT, Disk, Opened, Position, found, missing, of_the_epoch_before, read
from tests.wal.test_stream import Life, positions
from tests.wal.test_stream import read as stream_of

# -- I1: a slot is recycled only when a durable checkpoint covers it, and nobody stands in it ------------------------


def recycle_what_waits(patch: Patch) -> None:
    """A slot that was left is free."""
    patch.setattr(Ring, "_may_recycle", lambda self, slot, mark: slot.sealed)


def recycle_without_a_durable_watermark(patch: Patch) -> None:
    """A slot is free once everything in it is settled, whatever is durable."""
    patch.setattr(Ring, "_may_recycle", lambda self, slot, mark: slot.done and slot.readers == 0)


def recycle_under_a_reader(patch: Patch) -> None:
    patch.setattr(Ring, "_may_recycle", lambda self, slot, mark: slot.done and slot.last_position <= mark)


def fill(opened: Opened, slots: int) -> None:
    while len(opened.ring.live) <= slots:
        opened.append(b"f" * 700)


def recycled_too_early() -> None:
    """What waits is still there when its slot was left long ago."""
    opened = Opened(Disk(max_slots=12))
    fill(opened, 3)
    entries = opened.read()
    opened.settle(entries[1:])
    for position, _ in found(entries[1:]):
        del opened.accepted[position]
    opened.ring.recycle(opened.ring.live[2].last_position)
    opened.append(*[b"n" * 700] * 90)
    following = opened.dies()
    demand(found(following.read()) == sorted(opened.accepted.items()), "what waits is found again")


def recycled_before_the_watermark_was_durable() -> None:
    """The newest of the recycled slots is overwritten first: behind the older ones it leaves a hole."""
    opened = Opened(Disk(max_slots=6))
    fill(opened, 3)
    opened.settle(opened.read())
    opened.ring.recycle(0)  # no checkpoint was written
    fill(opened, len(opened.ring.live))
    following = opened.dies()
    following.read()
    demand(missing(following.ring) == [], "nothing is missing that was settled", missing(following.ring))


def recycled_under_a_reader() -> None:
    opened = Opened(Disk(max_slots=6))
    fill(opened, 2)
    entries = opened.read()
    slot, place, sequence, _ = entries[2]
    opened.reader.behind(slot, place, sequence)
    opened.settle(entries)
    opened.checkpoint()
    fill(opened, 2)
    packed = opened.disk.ring.read(slot.file_offset, fmt.HEADER_BYTES)
    demand(fmt.unpack_slot_header(packed) == slot.header, "a slot keeps its life while somebody stands in it")


# -- I2: a frame counts only if its checksum holds for this life, and its sequence is the one expected ---------------


def trust_every_checksum(patch: Patch) -> None:
    class Anything(int):
        def __xor__(self, _: int) -> "Anything":
            return self

        __and__ = __xor__

        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = int.__hash__

    patch.setattr(reading, "crc32", lambda *_: Anything())


def trust_every_sequence(patch: Patch) -> None:
    parse = reading.Reader._parse

    def parse_one(self: reading.Reader, slot: Slot, *_: int) -> tuple[Run | None, bool]:
        self.expected = fmt.FRAME.unpack_from(self._window.buffer, self.offset - self._window.start)[2] or self.expected
        return parse(self, slot, 1, 1)

    patch.setattr(reading.Reader, "_parse", parse_one)


def forget_the_salt(patch: Patch) -> None:
    """The checksum no longer tells the lives of a slot apart."""
    parse = reading.Reader._parse

    def parse_any_life(self: reading.Reader, slot: Slot, *_: int) -> tuple[Run | None, bool]:
        own, word = slot.salt, fmt.FRAME.unpack_from(self._window.buffer, self.offset - self._window.start)[3]
        for slot.salt in (fmt.open_word(word), word, own):
            run, holds = parse(self, slot, 1, 1)
            if run is not None:
                break
        slot.salt = own
        return run, holds

    patch.setattr(reading.Reader, "_parse", parse_any_life)


def judge(disk: Disk, accepted: dict[Position, bytes], gone: set[Position]) -> None:
    with Opened(disk) as opened:
        got = found(opened.read())
        expected = [item for item in sorted(accepted.items()) if item[0] not in gone]
        demand(got == expected, "nothing but what was accepted is read", got)
        demand(set(missing(opened.ring)) == gone, "what is missing is reported", missing(opened.ring))


def a_payload_rots() -> None:
    opened = Opened()
    opened.append(b"before", b"rotten", b"behind")
    disk = opened.disk.after_death()
    disk.ring.flip((fmt.frame_end(fmt.FIRST_FRAME, 6) + fmt.FRAME_BYTES + 2) * 8)
    judge(disk, opened.accepted, {(1, 2)})


def a_sector_goes_to_another_place() -> None:
    opened = Opened()
    opened.append(*[b"%d" % number * 44 for number in range(9)])  # frames of 64 bytes
    disk = opened.disk.after_death()
    disk.ring.damage(fmt.FIRST_FRAME + 64 * 6, disk.ring.read(fmt.FIRST_FRAME + 64 * 4, 64))
    judge(disk, opened.accepted, {(1, 7)})


def a_slot_is_used_again() -> None:
    """Behind the frames of its new life stand those of the old one, in the very places and with the next sequences."""
    opened = Opened()
    opened.append(*[b"o" * 44] * 9)
    life = opened.ring.live[0].header
    disk = opened.disk.after_death()
    again = replace(life, ordinal=life.ordinal + 1, salt=fmt.new_salt(life.salt))
    for start in (0, life.slot_bytes - fmt.RESERVED):
        disk.ring.damage(start, fmt.pack_slot_header(again))
    crc = fmt.frame_crc(b"n" * 44, again.salt, 1)
    frame = fmt.FRAME.pack(44, crc, 1, fmt.open_word(again.salt)) + b"n" * 44
    disk.ring.damage(fmt.FIRST_FRAME, frame)
    judge(disk, {(1, 1): b"n" * 44}, set())


# -- I4: a checkpoint says only what was captured before its fdatasync began, and its two copies alternate -----------


def capture_after_the_flush(patch: Patch) -> None:
    def write_checkpoint(self: Directory, checkpoint: Checkpoint) -> None:
        self.ring.sync()
        late = self.next_checkpoint()
        self.checkpoint_file.write(late)
        self.checkpoint = late

    patch.setattr(Directory, "write_checkpoint", write_checkpoint)


def write_without_flushing(patch: Patch) -> None:
    def write_checkpoint(self: Directory, checkpoint: Checkpoint) -> None:
        self.checkpoint_file.write(checkpoint)
        self.checkpoint = checkpoint

    patch.setattr(Directory, "write_checkpoint", write_checkpoint)


def always_write_the_same_copy(patch: Patch) -> None:
    def write(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        self._generation += 2
        self._file.write(checkpoint_module.pack(checkpoint, self._generation), 0)
        self._file.sync()

    patch.setattr(CheckpointFile, "write", write)


def overwrite_both_copies(patch: Patch) -> None:
    """Both are on the way before either is durable."""

    def write(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        self._generation += 1
        for place in (0, checkpoint_module.COPY_BYTES):
            self._file.write(checkpoint_module.pack(checkpoint, self._generation), place)
        self._file.sync()

    patch.setattr(CheckpointFile, "write", write)


def publishing_goes_on_during_a_checkpoint() -> None:
    """Whatever a durable checkpoint calls settled is durably so: the ring alone says the same after a power cut."""
    opened = Opened()
    ledger = Ledger()
    for position in opened.append(b"before"):
        ledger.accept(position, b"before")
    snapshot = ledger.snapshot()

    def meanwhile() -> None:
        for position in opened.append(b"during the flush"):
            ledger.accept(position, b"during the flush")
        given = opened.read()
        ledger.take(found(given), last=False)
        opened.settle(given)
        for position, _ in found(given):
            ledger.settle(position)

    opened.disk.ring.after["sync"] = meanwhile
    opened.checkpoint()
    ledger.synced(snapshot)
    newest = CheckpointFile(opened.disk.checkpoint.after_power_cut(0)).newest()
    demand(newest is not None, "a checkpoint that was written is there")
    ledger.check_checkpoint(newest.watermark if newest is not None else 0)


def everything_is_settled_and_then_a_checkpoint() -> None:
    opened = Opened()
    ledger = Ledger()
    for position in opened.append(b"one", b"two"):
        ledger.accept(position, opened.accepted[position])
    given = opened.read()
    ledger.take(found(given), last=False)
    opened.settle(given)
    for position, _ in found(given):
        ledger.settle(position)
    snapshot = ledger.snapshot()
    opened.disk.ring.after["sync"] = lambda: ledger.synced(snapshot)
    opened.checkpoint()
    ledger.check_checkpoint(opened.directory.checkpoint.watermark)


def the_power_goes_during_a_checkpoint_write() -> None:
    """Torn or not: the directory knows at least what it knew durably before."""

    class PowerCutError(Exception):
        pass

    def cut() -> None:
        raise PowerCutError

    file = FaultyFile("checkpoint")
    writer = CheckpointFile(file)

    def content(number: int) -> Checkpoint:  # of several sectors, which all change: it can be torn
        destination = Destination(cluster_id=str(number % 10) * 2000)
        return Checkpoint(producer_id=1, epoch=1, main=RingState(number), slot_bytes=SLOT, destination=destination)

    writer.write_both(content(0))
    for number in range(1, 8, 2):
        writer.write(content(number))
        file.before["sync"] = cut
        with pytest.raises(PowerCutError):
            writer.write(content(number + 1))
        del file.before["sync"]
        for seed in range(30):
            newest = CheckpointFile(file.after_power_cut(seed)).newest()
            demand(newest in {content(number), content(number + 1)}, "a checkpoint is always there, and whole", seed)
        writer.write(content(number + 1))


# -- I5: an epoch is durable before its first frame; no position is ever used twice ----------------------------------


def open_without_a_new_epoch(patch: Patch) -> None:
    def same(*found: Any, **more: Any) -> Plan:
        return of_the_epoch_before(plan(*found, **more))

    patch.setattr(opening, "plan", same)


def open_without_writing_the_epoch(patch: Patch) -> None:
    def nothing(self: CheckpointFile, checkpoint: Checkpoint) -> None:
        if self.newest() is None:
            self.write(checkpoint)

    patch.setattr(CheckpointFile, "write_both", nothing)


def opened_again_and_again() -> None:
    opened = Opened()
    ledger = Ledger()
    for _ in range(5):
        for position in opened.append(b"record"):
            ledger.accept(position, b"record")
        opened.accepted.clear()
        opened = opened.dies()


def the_power_goes_after_each_opening() -> None:
    """What was published before the power went is delivered, with its position: nobody else may have that one."""
    opened = Opened()
    ledger = Ledger()
    for seed in range(10):
        for position in opened.append(b"delivered before the power went"):
            ledger.accept(position, b"delivered before the power went")
        opened.accepted.clear()
        opened = opened.loses_power(seed)


# -- names: those of all that was made are durable before the first record is accepted -------------------------------


def flush_no_name(patch: Patch) -> None:
    patch.setattr(MemoryFileSystem, "sync_directory", lambda *_: None)


def flush_all_names_but_those_in(directory: str) -> Fault:
    def fault(patch: Patch) -> None:
        flush = MemoryFileSystem.sync_directory

        def but_this(self: MemoryFileSystem, path: Path) -> None:
            if path != Path(directory):
                flush(self, path)

        patch.setattr(MemoryFileSystem, "sync_directory", but_this)

    fault.__name__ = f"flush_all_names_but_those_in_{directory[1:].replace('/', '_')}"
    return fault


def the_power_goes_behind_the_first_flush() -> None:
    """In a new directory, whose parents are new, too."""
    disk = MemoryDisk("/srv")
    options = Options(Path("/srv/shop/wal"), SLOT, MAX_SLOTS * SLOT, 0, file_system=disk.file_system)
    directory = opening.open_directory(options)
    directory.ring.append(b"durable", None)
    directory.sync()
    for seed in range(20):
        left = disk.after_power_cut(seed)
        got: object
        try:
            with closing(opening.open_directory(replace(options, file_system=left.file_system))) as following:
                got = found(read(Reader(following.ring, bytes)))
        except WalCorruptError as refused:
            got = refused
        demand(got == [((1, 1), b"durable")], "what was flushed is found again", seed, left.files(), got)
    directory.close()


# -- the slot size: the stored one wins ------------------------------------------------------------------------------


def take_the_slot_size_of_the_option(patch: Patch) -> None:
    patch.setattr(opening, "slot_bytes_of", lambda copies, headers, default: default)


def opened_with_another_slot_size(slot_bytes: int) -> None:
    opened = Opened()
    fill(opened, 3)
    disk = opened.disk.after_death()
    disk.slot_bytes = slot_bytes
    try:
        following = Opened(disk)
    except WalError as error:
        raise ViolationError("a directory is opened, however large slots would be made now") from error
    got = found(following.read())
    demand(got == sorted(opened.accepted.items()), "and all is found in it", len(got))
    demand(missing(following.ring) == [], "and nothing is missing", missing(following.ring))


def opened_with_larger_slots() -> None:
    opened_with_another_slot_size(2 * SLOT)


def opened_with_smaller_slots() -> None:
    opened_with_another_slot_size(SLOT // 2)


# -- both copies of the checkpoint are lost: the slots say what was, and P stands before the oldest one of the main ring


def take_it_for_new(patch: Patch) -> None:
    """Whatever stands in the slots."""
    patch.setattr(opening, "plan", lambda *_, boot_id, **__: plan([Copy("blank")] * 2, (), boot_id=boot_id))


def forget_what_was_moved(patch: Patch) -> None:
    """P is what the checkpoint says, and it says nothing; nor is asked what the slots that are left tell, or copies."""
    patch.setattr(Plan, "moved_up_to", property(lambda self: self.moved))
    patch.setattr(Ring, "count_as_moved", lambda *_: None)


def forget_what_was_recycled(patch: Patch) -> None:
    """As if a checkpoint had said that nothing ever was."""
    made = recovery._plan_ring
    patch.setattr(recovery, "_plan_ring", lambda *of_ring, **_: made(*of_ring, known=True))


def take_the_newest_slot_for_the_oldest(patch: Patch) -> None:
    """P, and with it what is free, stands before that one."""
    made = recovery._plan_ring

    def too_far(state: RingState, slots: Sequence[recovery.SlotFound], moved: int, *, known: bool) -> RingPlan:
        firsts = [slot.header.first_position for slot in slots if slot.header is not None]
        return made(state, slots, moved if known else max([moved + 1, *firsts]) - 1, known=known)

    patch.setattr(recovery, "_plan_ring", too_far)


def both_copies_are_lost() -> None:
    """Slots of the main ring were moved, and others stand where they did."""
    life = Life()
    life.move()
    life.move()
    fill(life.opened, len(life.opened.ring.live) + 2)
    life.left += stream_of(life.first)
    disk = life.opened.disk.after_death()
    disk.checkpoint.damage(0, b"rot" * (disk.checkpoint.size() // 3))
    following = Life(Opened(disk))
    told = missing(following.opened.ring)
    demand(told == [], "nothing is missing of what was moved, or settled and recycled", told)
    expected = {position: life.opened.accepted[fmt.parts(position)] for position in life.waiting}
    got = {position: record for _, _, position, record in following.placed}
    demand(expected.items() <= got.items(), "all that waits is found", expected.keys() - got.keys())
    for position in life.waiting:
        reader = following.first.back_to(position)
        again = positions(stream_of(reader, most=1))
        reader.close()
        demand(again[:1] == [position], "who goes back to a record finds it", position, again)


def open_where_nothing_tells_what_was(patch: Patch) -> None:
    patch.setattr(recovery, "check_readable", lambda *_: None)


def the_slots_are_lost_too() -> None:
    """Zeros stand where their headers could not be read."""
    opened = Opened()
    opened.append(b"waits")
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, b"rot" * (disk.checkpoint.size() // 3))
    for end in (0, SLOT - fmt.RESERVED):
        disk.ring.damage(end, bytes(fmt.RESERVED))
    before = disk.ring.live()
    try:
        following = Opened(disk)
    except WalCorruptError:
        demand(disk.ring.live() == before, "what is refused is not changed")
        return
    following.append(b"in its place")
    came = found(following.read()), missing(following.ring), following.ring.damaged_slots
    demand(came[1] or came[2], "no record is gone without a word", *came)


# -- two rings: per lane, what was moved comes before what was not -----------------------------------------------------


def read_the_main_ring_first(patch: Patch) -> None:
    begin, read_on = Stream.__init__, Stream._read

    def in_main(self: Stream, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        self._copies = None
        in_main_only.add(self)

    def then_in_retry(self: Stream, *limits: int) -> None:
        read_on(self, *limits)
        if self in in_main_only and not self._left and not self.moved:
            in_main_only.remove(self)
            self._copies, self.moved = self._retry, True

    in_main_only: set[Stream] = set()
    patch.setattr(Stream, "__init__", in_main)
    patch.setattr(Stream, "_read", then_in_retry)


def a_lane_goes_on_behind_a_move() -> None:
    """In the next process, which delivers as it reads."""
    ledger, life = Ledger(), Life()
    life.move()
    following = life.opened.dies()
    for place, payload in life.opened.accepted.items():
        ledger.accept(place, b"0/a/" + payload)
    for position in positions(stream_of(Stream(following.directory, bytes))):
        ledger.deliver(fmt.parts(position))
    delivered = [fmt.position(*position) for position in ledger.kafka[b"a"]]
    demand(delivered == life.waiting, "all that waits is delivered, and once", delivered)


PLANTED: Planted = [
    (recycled_too_early, recycle_what_waits),
    (recycled_before_the_watermark_was_durable, recycle_without_a_durable_watermark),
    (recycled_under_a_reader, recycle_under_a_reader),
    (a_payload_rots, trust_every_checksum),
    (a_sector_goes_to_another_place, trust_every_sequence),
    (a_slot_is_used_again, forget_the_salt),
    (publishing_goes_on_during_a_checkpoint, capture_after_the_flush),
    (everything_is_settled_and_then_a_checkpoint, write_without_flushing),
    (the_power_goes_during_a_checkpoint_write, always_write_the_same_copy),
    (the_power_goes_during_a_checkpoint_write, overwrite_both_copies),
    (opened_again_and_again, open_without_a_new_epoch),
    (the_power_goes_after_each_opening, open_without_a_new_epoch),
    (the_power_goes_after_each_opening, open_without_writing_the_epoch),
    (the_power_goes_behind_the_first_flush, flush_no_name),
    *[
        (the_power_goes_behind_the_first_flush, flush_all_names_but_those_in(directory))
        for directory in ("/", "/srv", "/srv/shop", "/srv/shop/wal", "/srv/shop/wal/0")
    ],
    (opened_with_larger_slots, take_the_slot_size_of_the_option),
    (opened_with_smaller_slots, take_the_slot_size_of_the_option),
    (both_copies_are_lost, take_it_for_new),
    (both_copies_are_lost, forget_what_was_moved),
    (both_copies_are_lost, forget_what_was_recycled),
    (both_copies_are_lost, take_the_newest_slot_for_the_oldest),
    (the_slots_are_lost_too, open_where_nothing_tells_what_was),
    (a_lane_goes_on_behind_a_move, read_the_main_ring_first),
]


@pytest.mark.parametrize(("scenario", "fault"), PLANTED, ids=names_of(PLANTED))
def test_a_planted_fault_is_reported_and_without_it_the_same_scenario_is_green(
    scenario: Scenario, fault: Fault, monkeypatch: Patch
) -> None:
    tells(scenario, fault, monkeypatch)
