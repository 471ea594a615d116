"""The rules about slots and frames, each taken away in turn: a scenario goes red that is green as the library is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from aiorecover.errors import WalFormatError, WalFullError
from aiorecover.wal import directory as directory_module
from aiorecover.wal import format as fmt
from aiorecover.wal import moving, opening, recovery
from aiorecover.wal.checkpoint import Checkpoint, Copy
from aiorecover.wal.checksum import crc32
from aiorecover.wal.directory import Directory
from aiorecover.wal.losses import Losses, Stretch
from aiorecover.wal.moved import NO_PARTITION, pack_moved, unpack_moved
from aiorecover.wal.moving import Copying, Found, Move
from aiorecover.wal.reading import Reader
from aiorecover.wal.recovery import Plan, RingPlan, SlotFound, plan
from aiorecover.wal.ring import Ring
from aiorecover.wal.run import Run
from aiorecover.wal.slot import Slot
from aiorecover.wal.suffix import Suspicion
from tests.wal.ledger import Ledger, ViolationError, demand
from tests.wal.planted import Fault, Patch, Planted, Scenario, names_of, tells
from tests.wal.rig import SLOT, Disk, Machine, Opened, found, missing, of_epoch, read, storing_fails, take
from tests.wal.test_damage_cost import CountingFile
from tests.wal.test_planted_faults import fill, the_power_goes_after_each_opening


@contextmanager
def there_is_room() -> Iterator[None]:
    """For whatever is done in here."""
    try:
        yield
    except WalFullError as error:
        raise ViolationError("there is room") from error


def judge(opened: Opened) -> None:
    """What was accepted comes, in order, and nothing else, and nothing is missing."""
    got, gone = found(opened.read()), missing(opened.ring)
    demand(got == sorted(opened.accepted.items()), "what was accepted is read, and nothing else", got[:9])
    demand(gone == [], "nothing is missing", gone)


# -- an opening takes no slot: the first append does -----------------------------------------------------------------


def take_a_slot_at_the_opening(patch: Patch) -> None:
    def and_one_more(directory: Directory) -> None:
        reserve(directory)
        directory.ring._roll(0)

    reserve = opening._reserve
    patch.setattr(opening, "_reserve", and_one_more)


def opened_often_and_nothing_is_published() -> None:
    """By processes that die at once, as one that cannot be configured does all night."""
    opened = Opened(Disk(max_slots=6))
    opened.append(b"waits")
    with there_is_room():
        for _ in range(20):
            opened = opened.dies()
        opened.append(b"is the next one")
    demand(len(opened.ring.live) == 2, "an opening takes no slot", len(opened.ring.live))
    judge(opened.dies())


# -- a slot belongs to one epoch -------------------------------------------------------------------------------------


def go_on_in_the_slot_of_the_epoch_before(patch: Patch) -> None:
    """Behind the last frame of the process that died."""
    begin = Ring.__init__

    def and_go_on(self: Ring, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        for slot in self.live[-1:]:
            self.map_for_settling(slot)
            slot.tail = end_of_frames(slot)
            slot.limit = slot.header.slot_bytes - fmt.RESERVED
            self._slot = slot

    patch.setattr(Ring, "__init__", and_go_on)


def end_of_frames(slot: Slot) -> int:
    at = fmt.FIRST_FRAME
    while slot.map is not None and any(slot.map[at : at + fmt.FRAME_BYTES]):
        at = fmt.frame_end(at, fmt.FRAME.unpack_from(slot.map, at)[0])
    return at


def a_process_dies_and_the_next_one_publishes() -> None:
    opened = Opened()
    opened.append(b"one", b"two")
    following = opened.dies()
    following.append(b"three", b"four")
    judge(following.dies())


# -- neither zero nor valid is damaged: reported, never recycled -------------------------------------------------------


def with_damaged_slots(patch: Patch, otherwise: Callable[[RingPlan], RingPlan]) -> None:
    made = recovery._plan_ring
    patch.setattr(recovery, "_plan_ring", lambda *given, **more: otherwise(made(*given, **more)))


def recycle_what_is_damaged(patch: Patch) -> None:
    def freed(made: RingPlan) -> RingPlan:
        return replace(made, free=[*made.free, *((index, 0) for index in made.damaged)])

    with_damaged_slots(patch, freed)


def report_no_damaged_slot(patch: Patch) -> None:
    with_damaged_slots(patch, lambda made: replace(made, damaged=[]))


def both_headers_of_a_slot_rot() -> None:
    opened = Opened(Disk(max_slots=8))
    fill(opened, 3)
    disk = opened.disk.after_death()
    for end in (0, SLOT - fmt.RESERVED):
        disk.ring.damage(SLOT + end, b"\x5a" * fmt.RESERVED)
    left = disk.ring.read(SLOT, SLOT)
    following = Opened(disk)
    demand(following.ring.damaged_slots == [1], "I10: a damaged slot is reported", following.ring.damaged_slots)
    following.settle(following.read())
    following.checkpoint()
    fill(following, 5)
    demand(disk.ring.read(SLOT, SLOT) == left, "a damaged slot stays as it is")


# -- the new epoch is 1 + the highest found in both copies of the checkpoint and in all headers ----------------------


def take_the_epoch_of_the_copies_alone(patch: Patch) -> None:
    def alone(copies: list[Copy], *rings: Iterator[SlotFound], **more: Any) -> Plan:
        epochs = [copy.checkpoint.epoch for copy in copies if copy.checkpoint is not None]
        return of_epoch(plan(copies, *rings, **more), 1 + max(epochs, default=0))

    patch.setattr(opening, "plan", alone)


def take_the_epoch_of_the_headers_alone(patch: Patch) -> None:
    def alone(copies: list[Copy], *rings: Iterator[SlotFound], **more: Any) -> Plan:
        listed = [list(ring) for ring in rings]
        epochs = [slot.header.epoch for ring in listed for slot in ring if slot.header is not None]
        return of_epoch(plan(copies, *listed, **more), 1 + max(epochs, default=0))

    patch.setattr(opening, "plan", alone)


def both_copies_are_lost_and_more_is_published() -> None:
    opened = Opened()
    ledger = Ledger()
    for position in opened.append(b"before"):
        ledger.accept(position, b"before")
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, b"rot" * (disk.checkpoint.size() // 3))
    for position in Opened(disk).append(b"behind"):
        ledger.accept(position, b"behind")


# -- an exception between advance and store leaves a skip frame ------------------------------------------------------


def leave_a_hole_where_storing_failed(patch: Patch) -> None:
    patch.setattr(Ring, "_skip", lambda *_: None)


def storing_is_interrupted() -> None:
    opened = Opened()
    opened.append(b"before")
    with suppress(KeyboardInterrupt), storing_fails(KeyboardInterrupt()):
        opened.append(b"not accepted")
    opened.append(b"behind")
    judge(opened.dies())


# -- zero is never a frame -------------------------------------------------------------------------------------------


def take_zeros_for_a_frame(patch: Patch) -> None:
    """For an empty record, with the number that comes next."""
    parse = Reader._parse

    def generous(self: Reader, slot: Slot, *_: int) -> tuple[Run | None, bool]:
        at, window = self.offset - self._window.start, self._window
        if not any(window.buffer[at : at + fmt.FRAME_BYTES]):
            check = fmt.frame_crc(b"", slot.salt, self.expected)
            fmt.FRAME.pack_into(window.buffer, at, 0, check, self.expected, slot.open_word)
        return parse(self, slot, 1, 1)

    patch.setattr(Reader, "_parse", generous)


def a_process_dies_in_the_middle_of_a_slot() -> None:
    opened = Opened()
    opened.append(b"one", b"two", b"")
    judge(opened.dies())


# -- the salt is the settle word's value: one flipped bit cannot settle ----------------------------------------------


def let_one_bit_settle(patch: Patch) -> None:
    patch.setattr(fmt, "open_word", lambda salt: salt ^ 1 << 31)


def a_bit_of_each_settle_word_rots() -> None:
    """Another one of each."""
    opened = Opened()
    opened.append(*[b"waits"] * 32)
    disk = opened.disk.after_death()
    place = fmt.FIRST_FRAME
    for bit in range(32):
        disk.ring.flip((place + fmt.SETTLE_WORD * fmt.WORD) * 8 + bit)
        place = fmt.frame_end(place, len(b"waits"))
    following = Opened(disk)
    following.accepted = opened.accepted
    judge(following)


# -- the bytes of a damage are kept ----------------------------------------------------------------------------------


def keep_no_bytes(patch: Patch) -> None:
    patch.setattr(directory_module, "keep", lambda *_: None)


def recycle_before_the_bytes_are_kept(patch: Patch) -> None:
    def remember(self: Losses, stretch: Stretch) -> None:
        self._pinned.append(stretch)

    patch.setattr(Losses, "pin", remember)
    patch.setattr(Losses, "unpin", staticmethod(lambda _: None))


def a_frame_rots_and_its_slot_is_used_again() -> None:
    """While the keeper has not come to it yet."""
    opened = Opened(Disk(max_slots=6))
    fill(opened, 2)
    disk = opened.disk.after_death()
    disk.ring.damage(fmt.FIRST_FRAME, b"\xee" * 100)
    following = Opened(disk)
    following.settle(following.read())
    stretches = following.directory.take_damaged()
    captured = following.directory.next_checkpoint()
    following.directory.write_checkpoint(captured)
    following.directory.recycle(captured)
    fill(following, 4)
    following.directory.keep_damaged(stretches)
    following.directory.release_damaged(stretches)
    machine = following.directory.file_system
    kept = [file.live()[:100] for file in machine.kept.values()] if isinstance(machine, Machine) else []
    demand(kept == [b"\xee" * 100], "the bytes in the place of what is lost are kept", kept)


# -- in the retry ring a frame has its own number; where it comes from is in its payload -------------------------------


def forget_where_a_copy_comes_from(patch: Patch) -> None:
    patch.setattr(moving, "pack_moved", lambda _, *given: pack_moved(fmt.position(1, 1), *given))


def forget_the_partition_of_a_copy(patch: Patch) -> None:
    patch.setattr(moving, "pack_moved", lambda place, nonce, _, data: pack_moved(place, nonce, NO_PARTITION, data))


def number_a_copy_as_its_original(patch: Patch) -> None:
    """And not the copies one after the other: what is missing between them was never there."""
    copy = Copying._copy

    def numbering(self: Copying, original: Found) -> None:
        self._retry._sequence = original.sequence - 1
        copy(self, original)

    patch.setattr(Copying, "_copy", numbering)


def a_record_is_moved_and_the_process_dies() -> None:
    opened = Opened()
    waits = opened.fill_slot()[9]
    opened.append(b"in the next slot")
    opened.settle(entry for entry in opened.read() if entry[2] != waits[1])
    directory = opened.directory
    move = Move(opened.ring, directory.retry, opened.ring.live[0], lambda _: 7)
    while not move.step():
        pass
    directory.write_checkpoint(move.captured(directory))
    move.finish()
    copies = read(Reader(opened.dies().directory.retry, unpack_moved))
    came = [(sequence, copy.epoch, copy.sequence, copy.partition) for _, _, sequence, copy in copies]
    demand(came == [(1, *waits, 7)], "a copy knows its place and its partition", came)


# -- files of another format are refused -----------------------------------------------------------------------------


def read_a_newer_version(patch: Patch) -> None:
    """As if it were ours."""
    unpack = fmt.unpack_slot_header

    def whatever(data: bytes | memoryview) -> fmt.SlotHeader | None:
        try:
            return unpack(data)
        except WalFormatError:
            return unpack(with_version(bytes(data), fmt.FORMAT_VERSION))

    patch.setattr(fmt, "unpack_slot_header", whatever)


def with_version(header: bytes, version: int) -> bytes:
    changed = header[:8] + version.to_bytes(2, "little") + header[10 : fmt.HEADER_BYTES - fmt.CRC_BYTES]
    return changed + crc32(changed).to_bytes(fmt.CRC_BYTES, "little")


def a_newer_version_wrote_the_ring() -> None:
    opened = Opened()
    opened.append(b"of the future")
    disk = opened.disk.after_death()
    for start in (0, SLOT - fmt.RESERVED):
        header = disk.ring.read(start, fmt.HEADER_BYTES)
        disk.ring.damage(start, with_version(header, fmt.FORMAT_VERSION + 1))
    try:
        Opened(disk)
    except WalFormatError:
        return
    raise ViolationError("what a newer version wrote is not guessed at")


# -- an opening does not read the backlog ----------------------------------------------------------------------------


def read_everything_at_the_opening(patch: Patch) -> None:
    def and_all(directory: Directory) -> None:
        reserve(directory)
        read(Reader(directory.ring, bytes, primary=False))

    reserve = opening._reserve
    patch.setattr(opening, "_reserve", and_all)


def a_long_backlog_is_opened() -> None:
    opened = Opened(Disk(CountingFile("ring")))
    fill(opened, 20)
    file = opened.dies().disk.ring
    count = file.bytes_read if isinstance(file, CountingFile) else SLOT
    demand(0 < count < len(opened.ring.live) * SLOT / 20, "an opening reads headers, and no backlog", count)


# -- settle words are in doubt only where the machine was down, or a flush had failed ----------------------------------


def doubt_what_a_killed_process_has_settled(patch: Patch) -> None:
    """As if its machine had gone down with it."""
    suspicion = recovery._suspicion

    def of_another_boot(
        copies: list[Copy], newest: Checkpoint | None, epoch: int, last_epoch: int, _: str
    ) -> Suspicion:
        return suspicion(copies, newest, epoch, last_epoch, "of another boot")

    patch.setattr(recovery, "_suspicion", of_another_boot)


def a_process_is_killed_and_the_oldest_slot_is_settled() -> None:
    opened = Opened(Disk(max_slots=6))
    fill(opened, 3)
    opened.settle(entry for entry in opened.read() if entry[0] is opened.ring.live[0])
    following = opened.dies()
    take(following.reader, 1)
    demand(following.checkpoint() == 1, "it makes room before the others are read")


PLANTED: Planted = [
    (opened_often_and_nothing_is_published, take_a_slot_at_the_opening),
    (a_process_dies_and_the_next_one_publishes, go_on_in_the_slot_of_the_epoch_before),
    (both_headers_of_a_slot_rot, recycle_what_is_damaged),
    (both_headers_of_a_slot_rot, report_no_damaged_slot),
    (both_copies_are_lost_and_more_is_published, take_the_epoch_of_the_copies_alone),
    (the_power_goes_after_each_opening, take_the_epoch_of_the_headers_alone),
    (storing_is_interrupted, leave_a_hole_where_storing_failed),
    (a_process_dies_in_the_middle_of_a_slot, take_zeros_for_a_frame),
    (a_bit_of_each_settle_word_rots, let_one_bit_settle),
    (a_frame_rots_and_its_slot_is_used_again, keep_no_bytes),
    (a_frame_rots_and_its_slot_is_used_again, recycle_before_the_bytes_are_kept),
    (a_record_is_moved_and_the_process_dies, forget_where_a_copy_comes_from),
    (a_record_is_moved_and_the_process_dies, forget_the_partition_of_a_copy),
    (a_record_is_moved_and_the_process_dies, number_a_copy_as_its_original),
    (a_newer_version_wrote_the_ring, read_a_newer_version),
    (a_long_backlog_is_opened, read_everything_at_the_opening),
    (a_process_is_killed_and_the_oldest_slot_is_settled, doubt_what_a_killed_process_has_settled),
]


@pytest.mark.parametrize(("scenario", "fault"), PLANTED, ids=names_of(PLANTED))
def test_a_rule_of_slots_or_frames_that_is_taken_away_is_missed(
    scenario: Scenario, fault: Fault, monkeypatch: Patch
) -> None:
    tells(scenario, fault, monkeypatch)
