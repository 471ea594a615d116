"""Moving the oldest slot to the retry ring: each record counts in exactly one place, whenever the end comes."""

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import NoReturn

import pytest

from aiorecover.errors import WalCorruptError, WalFullError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES, CheckpointFile
from aiorecover.wal.moved import NO_PARTITION, Moved, pack_moved, unpack_moved
from aiorecover.wal.moving import Copying, Move, Rewrite
from aiorecover.wal.reading import Reader
from aiorecover.wal.run import Entry
from aiorecover.wal.slot import Slot
from aiorecover.wal.stream import Stream
from aiorecover.wal.view import View
from tests.wal.interruption import Interruption
from tests.wal.memory import PAGE, broken, no_room
from tests.wal.rig import SLOT, Disk, Opened, Position, found, missing, read, take

Record = tuple[Position, bytes]


def sparse(opened: Opened, *, every: int = 7) -> list[Position]:
    """Two full slots and a begun one, in which only every so many records still wait; which those are."""
    opened.fill_slot()
    opened.fill_slot()
    opened.append(b"newest")
    entries = opened.read()
    opened.settle(entry for number, entry in enumerate(entries) if number % every)
    return [position for number, (position, _) in enumerate(found(entries)) if number % every == 0]


def move(opened: Opened, limit: int = 10) -> Move:
    """Everything up to the checkpoint that makes the move."""
    moving = Move(opened.ring, opened.directory.retry, opened.ring.live[0], lambda payload: len(payload) % 3)
    opened.directory.copies_from = moving.copies_from
    while not moving.step(limit):
        pass
    return moving


def make(opened: Opened, moving: Move) -> None:
    captured = opened.directory.next_checkpoint(moved=moving.slot.last_position)
    opened.directory.write_checkpoint(captured)
    opened.directory.copies_from = None
    moving.finish()
    opened.directory.recycle(captured)


def copies(opened: Opened) -> list[Moved]:
    """What waits in the retry ring."""
    reader = Reader(opened.directory.retry, lambda payload: unpack_moved(memoryview(bytes(payload))))
    return [record for _, _, _, record in read(reader)]


def everything(opened: Opened) -> list[Record]:
    """What waits, retry before main."""
    moved = [((copy.epoch, copy.sequence), bytes(copy.payload)) for copy in copies(opened)]
    return moved + found(opened.read())


def in_slot(opened: Opened) -> list[Entry]:
    """What waits in the oldest slot; nobody stands in it afterwards."""
    reader = Reader.inside(opened.ring, opened.ring.live[0], bytes)
    entries = read(reader)
    reader.close()
    return entries


def waiting(opened: Opened, positions: Iterable[Position]) -> list[Record]:
    return [(position, opened.accepted[position]) for position in positions]


def rot(slot: Slot, bit: int) -> Position:
    """Flip a bit of the settle word of the slot's first frame that waits; whose frame it is."""
    reader = Reader.inside(slot.ring, slot, bytes)
    run = reader.look(1)
    reader.close()
    slot.ring.map_for_settling(slot)
    assert run is not None
    assert slot.words is not None
    slot.words[run.places[0]] ^= 1 << bit
    return slot.header.epoch, run.sequences[0]


@pytest.mark.parametrize("bit", [0, 15, 16, 31])
@pytest.mark.parametrize("again", [False, True], ids=["moved", "moved, and the retry ring rewritten"])
def test_a_flipped_bit_settles_nothing_and_what_waits_is_copied(bit: int, again: bool) -> None:
    opened = Opened()
    left = sparse(opened)
    oldest = opened.ring.live[0]
    assert rot(oldest, bit) in left
    make(opened, move(opened))
    assert opened.ring.losses.missing == 0
    if again:
        rot(opened.directory.retry.live[0], bit)
        end_rewriting(opened, rewrite(opened))
    assert everything(opened.dies()) == waiting(opened, left)


def test_a_moved_slot_is_free_and_its_records_wait_in_the_retry_ring() -> None:
    opened = Opened()
    left = sparse(opened)
    oldest = opened.ring.live[0]
    inside = [position for position in left if position[1] <= oldest.last_sequence]
    make(opened, move(opened))
    assert oldest not in opened.ring.live
    assert oldest.map is None
    found_copies = copies(opened)
    assert [((copy.epoch, copy.sequence), bytes(copy.payload)) for copy in found_copies] == waiting(opened, inside)
    assert {copy.partition for copy in found_copies} == {500 % 3}
    assert NO_PARTITION not in {copy.partition for copy in found_copies}


@pytest.mark.parametrize("end", ["dies", "loses_power"])
def test_a_made_move_is_found_by_the_next_opening(end: str) -> None:
    opened = Opened()
    left = sparse(opened)
    make(opened, move(opened))
    opened.fill_slot()  # over the slot that became free
    opened.ring.sync()
    left += [position for position in opened.accepted if position > left[-1] and position[1] > opened.reader.expected]
    following = opened.dies() if end == "dies" else opened.loses_power(3)
    got = everything(following)
    assert [position for position, _ in got] == sorted(position for position, _ in got)
    assert {position for position, _ in got} >= set(left)
    assert all(opened.accepted[position] == payload for position, payload in got)


@pytest.mark.parametrize("end", ["dies", "loses_power"])
def test_copies_of_a_move_that_was_not_made_never_count(end: str) -> None:
    opened = Opened()
    left = sparse(opened)
    move(opened, limit=3)
    following = opened.dies() if end == "dies" else opened.loses_power(5)
    assert copies(following) == []
    if end == "dies":
        assert found(following.read()) == waiting(opened, left)


def test_copies_that_never_counted_do_not_come_alive_by_the_next_move() -> None:
    opened = Opened()
    left = sparse(opened)
    move(opened)
    following = opened.dies()
    entries = following.read()
    delivered = entries[: len(entries) // 2]
    following.settle(delivered)
    make(following, move(following))
    last = following.dies()
    assert everything(last) == waiting(opened, left)[len(delivered) :]


def test_a_checkpoint_in_the_middle_of_a_move_does_not_make_its_copies_count() -> None:
    """The periodic one: its flush covers some of the copies, and its P none of them."""
    opened = Opened()
    left = sparse(opened)
    moving = Move(opened.ring, opened.directory.retry, opened.ring.live[0])
    opened.directory.copies_from = moving.copies_from
    moving.step(2)
    opened.checkpoint()
    following = opened.dies()
    assert copies(following) == []
    make(following, _after_reading(following))
    last = following.dies()
    assert everything(last) == waiting(opened, left)


def _after_reading(opened: Opened) -> Move:
    opened.read()
    return move(opened)


def test_a_record_that_is_delivered_while_its_slot_is_moved_counts_nowhere_any_more() -> None:
    """Its batch was in flight; the acknowledgement settles the original and the copy."""
    opened = Opened()
    left = sparse(opened)
    in_flight = in_slot(opened)[:3]
    moving = move(opened)
    opened.settle(in_flight[:1])  # acknowledged before the move is made
    make(opened, moving)
    opened.settle(in_flight[1:])  # and after: the slot has another life perhaps
    assert everything(opened.dies()) == waiting(opened, left[3:])


def test_a_batch_of_a_moved_slot_settles_nothing_in_the_next_life_of_it() -> None:
    opened = Opened(Disk(max_slots=4))
    sparse(opened)
    oldest = opened.ring.live[0]
    in_flight = in_slot(opened)
    make(opened, move(opened))
    opened.fill_slot()
    opened.fill_slot()
    assert oldest.index in {slot.index for slot in opened.ring.live}
    assert oldest not in opened.ring.live
    before = opened.disk.ring.live()
    opened.settle(in_flight)
    assert opened.disk.ring.live() == before
    assert copies(opened.dies()) == []


def test_a_move_that_finds_no_room_goes_on_where_it_stood_or_is_as_if_it_had_never_begun() -> None:
    opened = Opened(Disk(slot_bytes=SLOT))
    left = sparse(opened, every=1)
    retry = opened.directory.retry
    filler = b"f" * (retry.largest - 100)
    while retry.spares.wanted is False or retry.spares.free:
        retry.append(filler, None)
    opened.disk.retry.before["allocate"] = no_room
    moving = Move(opened.ring, retry, opened.ring.live[0])
    pending = retry.pending()
    for _ in range(3):
        with pytest.raises(WalFullError):
            moving.step(1000)
    assert moving.count == len(opened.ring.live[0].copies) == retry.pending() - pending
    while not moving.abandon(7):
        assert len(opened.ring.live[0].copies) == retry.pending() - pending
    assert retry.pending() == pending
    assert not opened.ring.live[0].copies
    assert opened.ring.live[0].readers == 0
    assert found(opened.dies().read()) == waiting(opened, left)


def test_a_move_is_abandoned_by_as_many_copies_at_a_time_as_are_asked_for() -> None:
    opened = Opened(Disk(slot_bytes=SLOT))
    sparse(opened, every=1)
    slot = opened.ring.live[0]
    moving = Move(opened.ring, opened.directory.retry, slot)
    while not moving.step(1000):
        pass
    count = len(slot.copies)
    for left in range(count - 1, 0, -1):
        assert not moving.abandon(1)
        assert len(slot.copies) == left
    assert moving.abandon(1)


def test_a_flush_of_the_retry_ring_that_fails_makes_no_move_and_poisons_the_directory() -> None:
    opened = Opened()
    left = sparse(opened)
    moving = move(opened)
    opened.disk.retry.before["sync"] = broken
    with pytest.raises(WalIOError):
        make(opened, moving)
    assert opened.ring.failure is not None
    opened.disk.retry.before.clear()
    following = opened.dies()
    assert copies(following) == []
    assert following.directory.checkpoint.suspect.up_to == fmt.position(1, fmt.SEQUENCE_MASK)
    assert found(following.read()) == waiting(opened, left)


def test_without_a_checkpoint_nothing_that_was_moved_is_lost_and_nothing_counts_twice() -> None:
    opened = Opened()
    left = sparse(opened)
    make(opened, move(opened))
    opened.fill_slot()
    opened.append(b"behind")
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, bytes(disk.checkpoint.size()))
    got = [position for position, _ in everything(Opened(disk))]
    assert len(got) == len(set(got))
    assert set(left) <= set(got)


def test_without_a_checkpoint_the_main_ring_is_read_once_however_many_copies_there_are() -> None:
    reads: list[list[int]] = []
    for every in (50, 2):
        opened = Opened()
        sparse(opened, every=every)
        make(opened, move(opened))
        disk = opened.disk.after_death()
        disk.checkpoint.damage(0, bytes(disk.checkpoint.size()))
        disk.ring.before["read"] = partial((of_this := list[int]()).append, 1)
        reads.append(of_this)
        Opened(disk)
    assert len(reads[0]) == len(reads[1]) > 0


def test_without_a_checkpoint_nobody_stands_any_more_in_the_slots_that_were_read_for_it() -> None:
    opened = Opened()
    sparse(opened)
    make(opened, move(opened))
    move(opened)
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, bytes(disk.checkpoint.size()))
    with Opened(disk) as following:
        live = [*following.ring.live, *following.directory.retry.live]
        assert [slot.readers for slot in live] == [0] * len(live)
        assert following.directory.retry.live


def test_what_counted_without_a_checkpoint_counts_in_the_openings_after_that_too() -> None:
    """The checkpoint that the first of them writes knows nothing of the retry ring."""
    opened = Opened()
    left = sparse(opened)
    make(opened, move(opened))
    make(opened, move(opened))
    for _ in range(3):
        opened.fill_slot()  # over the moved originals
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, bytes(disk.checkpoint.size()))
    first = Opened(disk)
    assert first.directory.ring.moved_up_to >= max(fmt.position(*position) for position in left)
    first.checkpoint()
    second = first.dies()
    assert set(left) <= {position for position, _ in everything(second)}
    second.append(b"of this epoch")
    second.checkpoint()
    assert set(left) <= {position for position, _ in everything(second.dies())}


def test_a_slot_of_which_something_cannot_be_read_any_more_is_not_moved() -> None:
    """It was read before, so nobody else would name what is missing."""
    opened = Opened()
    sparse(opened)
    slot = opened.ring.live[0]
    waiting = slot.unsettled
    moving = Move(opened.ring, opened.directory.retry, slot)
    assert slot.words is not None
    place = next(place for place in range(fmt.FIRST_FRAME // 4, SLOT // 4) if slot.words[place] == slot.open_word)
    opened.disk.ring.damage(place * 4 - fmt.FRAME_BYTES + 4, b"\xff\xff\xff\xff")
    while not moving.step():
        pass
    with pytest.raises(WalCorruptError, match=f"waiting={waiting} read={waiting - 1}"):
        moving.check()
    moving.abandon()


def test_a_move_counts_the_reads_that_failed_and_goes_on_where_it_stood() -> None:
    """Who makes it gives it up after some of them."""
    opened = Opened()
    sparse(opened)
    waiting = opened.ring.live[0].unsettled
    moving = Move(opened.ring, opened.directory.retry, opened.ring.live[0])
    opened.disk.ring.before["read"] = broken
    for failures in (1, 2, 3):
        with pytest.raises(WalIOError):
            moving.step()
        assert moving.failures == failures
    del opened.disk.ring.before["read"]
    while not moving.step():
        pass
    moving.check()
    assert (moving.count, moving.failures) == (waiting, 3)


def test_without_a_checkpoint_moved_records_count_though_an_older_slot_that_was_recycled_is_still_to_be_seen() -> None:
    """Slots are used again last in, first out: what the headers tell of the oldest says nothing of what was moved."""
    opened = Opened()
    opened.fill_slot()
    opened.fill_slot()
    opened.append(b"newest")
    opened.settle(opened.read())
    assert opened.checkpoint() == 2
    taken = keep_oldest(opened)
    left = sparse(opened)
    make(opened, move(opened))
    make(opened, move(opened))
    give_back(opened, taken)
    for _ in range(3):
        opened.fill_slot()  # what was begun, and over the moved originals
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, bytes(disk.checkpoint.size()))
    assert set(left) <= {position for position, _ in everything(Opened(disk))}


@pytest.mark.parametrize("openings", [1, 2, 3])
def test_without_a_checkpoint_what_was_moved_is_read_in_order_and_not_missed_beside_an_older_slot(
    openings: int,
) -> None:
    """A slot is moved once all before it were: so one copy without its original tells of every slot before it."""
    opened = Opened()
    left = sparse(opened)
    make(opened, move(opened))
    taken = keep_oldest(opened)
    make(opened, move(opened))
    give_back(opened, taken)
    last = opened.ring.live[-1].header.first_sequence
    copied = max(sequence for _, sequence in left if sequence < last)
    for _ in range(2):
        opened.fill_slot()  # what was begun, and over the newer ones of the moved originals
    left += [position for position in opened.accepted if position[1] >= last and position not in left]
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, bytes(disk.checkpoint.size()))
    for _ in range(openings):
        following = Opened(disk)
        following.checkpoint()
        disk = following.disk.after_death()
        following.directory.close()
    following = Opened(disk)
    assert in_order(following) == left
    assert set(missing(following.ring)) <= {(1, number) for number in range(copied + 1, last)}  # settled: nothing tells


def keep_oldest(opened: Opened) -> tuple[int, int]:
    """The slot that became free first is in somebody's hands, so its life stays to be seen."""
    opened.ring.spares.quota.preparing = True
    return opened.ring.spares._free.pop(0)


def give_back(opened: Opened, taken: tuple[int, int]) -> None:
    opened.ring.spares.quota.preparing = False
    opened.ring.spares._free.insert(0, taken)


def in_order(opened: Opened) -> list[Position]:
    """What waits, as delivery reads it."""
    stream = Stream(opened.directory, bytes)
    given: list[Position] = []
    while (run := stream.look(100)) is not None or stream.moved:
        if run is not None:
            given += [fmt.parts(run.position(number)) for number in range(len(run))]
    stream.close()
    return given


def test_without_a_checkpoint_a_copy_counts_whose_original_was_written_over_below_a_header_that_is_still_there() -> (
    None
):
    """Of the slot's next life one sector came through a power cut, and its headers did not."""
    opened = Opened()
    left = sparse(opened)
    slot = opened.ring.live[0]
    place = next(place for place in range(fmt.FIRST_FRAME // 4, SLOT // 4) if slot.waits(place))
    make(opened, move(opened))
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, bytes(disk.checkpoint.size()))
    disk.ring.damage(slot.file_offset + place * 4 + 4, b"of the next life")
    first = Opened(disk)
    assert sorted(position for position, _ in everything(first)) == left
    first.checkpoint()
    assert sorted(position for position, _ in everything(first.dies())) == left


def test_the_retry_ring_has_numbers_of_its_own() -> None:
    opened = Opened()
    sparse(opened)
    make(opened, move(opened))
    opened.read()
    make(opened, move(opened))
    retry = opened.directory.retry
    assert [slot.header.first_sequence for slot in retry.live] == [1]
    assert retry.sequence == len(copies(opened))
    assert retry.last_position == fmt.position(opened.ring.epoch, retry.sequence)


def test_a_record_that_was_delivered_before_its_move_failed_is_settled_once() -> None:
    opened = Opened()
    left = sparse(opened)
    in_flight = in_slot(opened)[:2]
    moving = move(opened)
    opened.settle(in_flight)
    pending = opened.directory.retry.pending()
    moving.abandon()
    assert opened.directory.retry.failure is None
    assert (pending > 0, opened.directory.retry.pending()) == (True, 0)
    assert everything(opened.dies()) == waiting(opened, left[2:])


def test_a_record_that_is_settled_between_two_steps_of_a_move_gets_no_copy() -> None:
    opened = Opened()
    left = sparse(opened)
    entries = in_slot(opened)
    moving = Move(opened.ring, opened.directory.retry, opened.ring.live[0])
    opened.directory.copies_from = moving.copies_from
    moving.step(1)
    opened.settle(entries)
    while not moving.step(1):
        pass
    assert len(moving.slot.copies) == 0
    make(opened, moving)
    assert everything(opened.dies()) == waiting(opened, left[len(entries) :])


def lose(monkeypatch: pytest.MonkeyPatch, slot: Slot, place: int) -> None:
    """The page of a settle word leaves memory, and the disk cannot read it any more: zeros stand in its place."""
    lost = fmt.WORD * place // PAGE * PAGE

    def populate(_: Slot, start: int, stop: int) -> bool:
        return not start <= lost < stop

    slot.ring.file.stored.fail_reads(slot.file_offset + lost, 1)
    slot.hot_from, slot.had_back = slot.header.slot_bytes, (0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Slot, "_populate", populate)
        slot.reach((place,))
    assert slot.words is not None
    assert slot.words[place] == 0


def test_a_copy_that_was_settled_leaves_no_other_ones_place_as_its_move_is_given_up_though_its_page_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Opened()
    sparse(opened)
    make(opened, move(opened))
    counted = opened.directory.retry.pending()
    moving = move(opened)
    copied = dict(zip(moving.slot.copies, map(moving.slot.copies.__getitem__, moving.slot.copies), strict=True))
    opened.ring.settle(moving.slot, list(copied)[:2])
    for home, place in list(copied.values())[:2]:
        lose(monkeypatch, home, place)
    moving.abandon()
    assert opened.directory.retry.pending() == counted > 0
    assert opened.directory.retry.failure is None


def test_a_copy_in_a_slot_that_is_done_counts_no_more_whatever_the_file_says_of_it() -> None:
    """Its page was lost with what was settled there, and can be read again, as its move is given up."""
    opened = Opened()
    opened.append(b"copy", b"another")
    opened.ring.go_on()
    entries = opened.read()
    slot, place, _, _ = entries[0]
    opened.settle(entries)
    assert slot.done
    opened.disk.ring.damage(slot.file_offset + fmt.WORD * place, slot.open_word.to_bytes(4, "little"))
    opened.ring.take_back(slot, place, settled=True)
    assert slot.done
    assert opened.ring.failure is None


def test_a_settled_record_whose_page_is_lost_gets_no_copy_in_place_of_one_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A move may stand still for minutes, with frames at hand that it has read before."""
    opened = Opened()
    sparse(opened, every=2)
    entries = in_slot(opened)
    slot, unreadable, *_ = entries[-1]
    opened.disk.ring.damage(slot.file_offset + fmt.WORD * unreadable + 30, b"rot")
    moving = Move(opened.ring, opened.directory.retry, slot)
    opened.directory.copies_from = moving.copies_from
    moving.step(1)
    opened.settle(entries[1:2])
    lose(monkeypatch, slot, entries[1][1])
    done = False
    while not done:
        with suppress(WalIOError):
            done = moving.step(1)
    assert entries[1][1] not in slot.copies
    with pytest.raises(WalCorruptError, match="not moved"):
        moving.check()


def test_a_checkpoint_that_was_captured_before_a_move_and_is_written_behind_it_takes_nothing_back() -> None:
    opened = Opened()
    left = sparse(opened)
    moving = move(opened)
    captured = opened.directory.next_checkpoint()
    make(opened, moving)
    opened.directory.write_checkpoint(captured)
    assert {position for position, _ in everything(opened.dies())} >= set(left)


@pytest.mark.parametrize("end", ["dies", "loses_power"])
def test_void_copies_stay_void_where_settled_frames_have_to_be_delivered_again(end: str) -> None:
    """The lane suffix rule does not even see them: neither those that waited nor those that were settled."""
    opened = Opened()
    sparse(opened)
    in_flight = in_slot(opened)[:2]
    move(opened)
    opened.settle(in_flight)
    opened.checkpoint()
    if end == "dies":
        opened = opened.dies()  # marks them, and is in no doubt about settle words
    following = opened.loses_power(3)
    assert following.directory.retry.suspect.up_to > 0
    assert read(Reader(following.directory.retry, bytes, suspects=True)) == []


def test_copies_of_a_move_that_was_not_made_are_void_where_they_stand_beside_others_that_count() -> None:
    """Their slot cannot be discarded. Marked as settled, they would come again once a later move covers them."""
    opened = Opened()
    left = sparse(opened)
    make(opened, move(opened))
    move(opened)
    assert len(opened.directory.retry.live) == 1
    opened = opened.dies()  # marks them
    make(opened, _after_reading(opened))
    following = opened.loses_power(3)
    assert following.directory.retry.suspect.up_to > 0
    reader = Reader(following.directory.retry, lambda payload: unpack_moved(payload).position, suspects=True)
    assert [position for _, _, _, position in read(reader)] == [fmt.position(*position) for position in left]


def test_with_one_good_copy_of_the_checkpoint_a_move_stays_made() -> None:
    for copy in range(2):
        opened = Opened()
        left = sparse(opened)
        make(opened, move(opened))
        opened.fill_slot()
        opened.fill_slot()  # over the originals
        disk = opened.disk.after_death()
        disk.checkpoint.damage(copy * COPY_BYTES, b"rot")
        assert {position for position, _ in everything(Opened(disk))} >= set(left)


class HandlerError(BaseException):
    """What a signal handler raises."""


def raises() -> NoReturn:
    raise HandlerError


def copied(moving: Move) -> bool:
    """All of it, though a handler raises once in between; False: something is missing, and no move is made."""
    for _ in range(2):
        try:
            with suppress(HandlerError):
                copy_all(moving, 4)
                moving.check()
                return True
        except WalCorruptError:
            break
    while not moving.abandon(3):
        pass
    return False


def moved_with(handler: Callable[[], None], at: int) -> tuple[bool, int]:
    """Whether the move was made, and at how many places the handler could have run."""
    opened = Opened(Disk(max_slots=8))
    left = sparse(opened, every=12)
    moving = Move(opened.ring, opened.directory.retry, opened.ring.live[0])
    opened.directory.copies_from = moving.copies_from
    with Interruption(handler, at) as interruption:
        made = copied(moving)
    opened.directory.copies_from = None
    if made:
        assert moving.count == len(moving.slot.copies), at
        make(opened, moving)
    else:
        opened.checkpoint()
    assert opened.directory.pending() == len(left), at
    assert everything(opened.dies()) == waiting(opened, left), at
    return made, interruption.count


def test_a_signal_handler_that_raises_anywhere_in_a_move_leaves_no_record_twice_and_none_out() -> None:
    _, places = moved_with(raises, 0)
    assert places > 200
    made = [moved_with(raises, at)[0] for at in range(1, places + 1)]
    assert 0 < made.count(False) < places / 10, "only where something was read and is nowhere yet"


# -- where something cannot be read at an opening --------------------------------------------------------------------


def unmade_beside_made(opened: Opened) -> list[Position]:
    """Copies that count, in two pages of a slot, and behind them those of a move that is not made; what waits."""
    opened.fill_slot()
    left = sparse(opened, every=4)
    make(opened, move(opened))
    make(opened, move(opened))
    opened.reader.close()
    moving = move(opened)
    (slot,) = opened.directory.retry.live
    behind = fmt.FIRST_FRAME + fmt.parts(moving.copies_from)[1] * fmt.frame_end(0, 516)
    assert PAGE < behind < 2 * PAGE < slot.tail - PAGE // 2
    return left


@pytest.mark.parametrize("pages", [(1, 1), (2, 1), (1, 2)], ids=["made", "not made", "both"])
@pytest.mark.parametrize("sealed", [False, True])
def test_copies_that_cannot_be_read_at_an_opening_count_later_as_they_did_before(
    pages: tuple[int, int], *, sealed: bool
) -> None:
    opened = Opened()
    left = unmade_beside_made(opened)
    if sealed:
        opened.directory.retry.go_on()
    disk = opened.disk.after_death()
    disk.retry.stored.fail_reads(pages[0] * PAGE, pages[1] * PAGE)
    following = Opened(disk)
    disk.retry.stored._unreadable.clear()
    assert everything(following) == waiting(opened, left)
    following.checkpoint()
    third = following.dies()
    assert everything(third) == waiting(opened, left)
    make(third, move(third))  # a checkpoint that knows of copies behind them
    assert everything(third.dies()) == waiting(opened, left)


def test_copies_that_were_never_made_stay_away_though_the_flush_of_what_says_so_failed() -> None:
    """As with headers that were taken away: the page is clean for the kernel, and the disk has what was before."""
    opened = Opened()
    left = unmade_beside_made(opened)
    opened.checkpoint()
    second = opened.dies()
    second.disk.retry.stored.fail_syncs()
    with pytest.raises(WalIOError):
        second.directory.retry.sync()
    third = second.dies()
    third.read()
    make(third, move(third))
    for seed in range(10):
        got = [position for position, _ in everything(third.loses_power(seed))]
        assert len(got) == len(set(got))
        assert set(got) >= set(left)


def test_a_look_from_outside_and_every_later_reader_see_a_slot_end_with_the_last_copy_that_counts() -> None:
    opened = Opened()
    left = unmade_beside_made(opened)
    following = opened.dies()
    (slot,) = following.directory.retry.live
    whole = slot.tail
    following.directory.retry.append(pack_moved(fmt.position(1, 10_000), 0, 0, b"of the next epoch"), None)
    following.checkpoint()
    counting = [position for position in left if position[1] < following.ring.live[0].header.first_sequence]
    for _ in range(2):
        seen = View(following.directory.path, "retry", lambda name: getattr(following.disk, name))
        got = [fmt.parts(frame.position) for frame in seen.frames()]
        assert got == [*counting, (1, 10_000)]
        assert not seen.missing
        copies(following)
    assert slot.tail < whole
    assert slot.tail == fmt.FIRST_FRAME + slot.count * fmt.frame_end(0, 516)


def test_where_the_last_copy_that_counts_rots_it_is_missing_and_what_stands_behind_it_does_not_count() -> None:
    opened = Opened()
    left = unmade_beside_made(opened)
    following = opened.dies()
    (slot,) = following.directory.retry.live
    last = fmt.FIRST_FRAME + slot.count * fmt.frame_end(0, 516) - 100
    following.disk.retry.damage(last, b"rot")
    following.directory.retry.append(pack_moved(fmt.position(1, 10_000), 0, 0, b"of the next epoch"), None)
    following.checkpoint()
    seen = View(following.directory.path, "retry", lambda name: getattr(following.disk, name))
    got = [fmt.parts(frame.position) for frame in seen.frames()]
    assert got == [*left[: slot.count - 1], (1, 10_000)]
    assert [(copy.epoch, copy.sequence) for copy in copies(following)] == got
    assert [(damage.first, damage.last) for damage in seen.missing] == [(slot.count, slot.count)]
    assert missing(following.directory.retry) == [(1, slot.count)]


def lost_checkpoints(slot_bytes: int, bad: tuple[int, int]) -> tuple[Disk, int]:
    """Where both copies of the checkpoint are lost, and a part of the retry ring cannot be read; records there."""
    opened = Opened(Disk(slot_bytes=slot_bytes))
    opened.append(b"in the main ring")
    retry, number = opened.directory.retry, 1
    while not retry.live or retry.rest > slot_bytes // 8:
        number += 1
        retry.append(pack_moved(fmt.position(1, number), 0, -1, b"x" * 4000), None)
    opened.checkpoint()
    disk = opened.disk.after_death()
    disk.checkpoint.damage(0, bytes(disk.checkpoint.size()))
    disk.retry.stored.fail_reads(*bad)
    return disk, number - 1


@pytest.mark.parametrize("size", [1 << 20, 5 << 20])
def test_whatever_cannot_be_read_at_an_opening_costs_few_reads_and_no_start(
    caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Each of them may take the disk half a minute."""
    disk, count = lost_checkpoints(8 << 20, (1 << 20, size))
    reads: list[int] = []
    disk.retry.before["read"] = partial(reads.append, 1)
    following = Opened(disk)
    assert len(reads) < 300
    assert f"a part of the ring cannot be read, and counts as damaged: check the disk path={disk.retry.path}" in (
        caplog.text
    )
    disk.retry.stored._unreadable.clear()
    assert len(copies(following)) == count, "it can be read again"


def test_a_tail_that_cannot_be_read_at_an_opening_is_not_taken_for_the_end() -> None:
    disk, count = lost_checkpoints(1 << 20, (1 << 19, 1 << 18))
    disk.retry.stored.fail_reads(1 << 19, (1 << 19) - PAGE)
    following = Opened(disk)
    disk.retry.stored._unreadable.clear()
    assert len(copies(following)) == count


# -- rewriting the retry ring ----------------------------------------------------------------------------------------


def stale(opened: Opened, *, every: int = 5) -> list[Moved]:
    """A retry ring of several slots, most of it delivered: what still waits there."""
    retry = opened.directory.retry
    for number in range(300):
        retry.append(pack_moved(fmt.position(1, number + 1), 0, 0, b"%03d" % number * 60), None)
    opened.directory.write_checkpoint(opened.directory.next_checkpoint(moved=fmt.position(1, 300)))
    reader = Reader(retry, bytes)
    for number, (slot, place, _, _) in enumerate(read(reader)):
        if number % every:
            retry.settle(slot, [place])
    reader.close()
    return copies(opened)


def rewrite(opened: Opened, limit: int = 7) -> Rewrite:
    rewriting = Rewrite(opened.directory.retry)
    opened.directory.copies_from = rewriting.copies_from
    copy_all(rewriting, limit)
    return rewriting


def copy_all(copying: Copying, limit: int) -> None:
    while not copying.step(limit):
        pass


def end_rewriting(opened: Opened, rewriting: Rewrite) -> None:
    captured = opened.directory.next_checkpoint(rewritten=rewriting.copies_from)
    opened.directory.write_checkpoint(captured)
    opened.directory.copies_from = None
    opened.directory.recycle(captured)


def test_a_rewritten_retry_ring_is_small_and_holds_the_same_in_the_same_order() -> None:
    opened = Opened()
    before = stale(opened)
    slots = len(opened.directory.retry.live)
    end_rewriting(opened, rewrite(opened))
    assert len(opened.directory.retry.live) < slots / 2
    assert copies(opened) == before
    assert copies(opened.dies()) == before
    for seed in range(10):
        assert set(before) <= set(copies(opened.loses_power(seed)))


def test_a_signal_handler_that_raises_at_the_end_of_a_slot_has_no_other_one_left_out_of_a_rewriting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is rewritten on by a reader that was to be closed."""
    opened = Opened()
    before = stale(opened)
    rewriting = Rewrite(opened.directory.retry)
    opened.directory.copies_from = rewriting.copies_from
    assert len(rewriting.slots) > 1
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "close", lambda _: raises())
        with pytest.raises(HandlerError):
            copy_all(rewriting, 7)
    copy_all(rewriting, 7)
    rewriting.check()
    end_rewriting(opened, rewriting)
    assert copies(opened) == before


def test_what_a_rewriting_that_was_not_ended_has_taken_is_free_at_the_next_opening() -> None:
    """Else each kill in the middle of one would leave less room for the next."""
    opened = Opened()
    before = stale(opened)
    slots, free = len(opened.directory.retry.live), opened.directory.retry.spares.free
    for _ in range(3):
        rewrite(opened)
        opened = opened.dies()
        assert len(opened.directory.retry.live) == slots
        assert opened.directory.retry.spares.free > free
        read(Reader(opened.directory.retry, bytes)).clear()
    end_rewriting(opened, rewrite(opened))
    assert copies(opened) == before


def test_what_a_rewriting_that_was_not_ended_has_left_is_missed_by_nobody() -> None:
    """The next one takes the first of its slots, while the others still stand behind."""
    opened = Opened()
    before = stale(opened, every=2)
    rewrite(opened)
    assert len(opened.directory.retry.live) >= 8
    for _ in range(2):
        opened = opened.dies()
        assert copies(opened) == before
        assert opened.directory.retry.losses.missing == 0
        rewriting = Rewrite(opened.directory.retry)
        opened.directory.copies_from = rewriting.copies_from
        rewriting.step(7)
        rewriting.step(7)
        opened.checkpoint()


@pytest.mark.parametrize("unmade", [False, True])
def test_a_bad_sector_where_a_crash_left_the_retry_ring_costs_what_stood_there_and_no_start(*, unmade: bool) -> None:
    opened = Opened()
    retry = opened.directory.retry
    for number in range(30):
        retry.append(pack_moved(fmt.position(1, number + 1), 0, 0, b"%03d" % number * 60), None)
    opened.directory.write_checkpoint(opened.directory.next_checkpoint(moved=fmt.position(1, 30)))
    before = copies(opened)
    slot = retry.live[-1]
    if unmade:  # copies of a move that was not made stand behind
        opened.fill_slot()
        opened.fill_slot()
        opened.read()
        opened.settle(in_slot(opened)[10:])
        move(opened)
        assert retry.live[-1] is slot
    waiting = copies(opened)
    bad = slot.file_offset + PAGE
    disk = opened.disk.after_death()
    disk.retry.stored.fail_reads(bad, 1)
    following = Opened(disk)
    reader, left = Reader(following.directory.retry, unpack_moved), []
    for _ in range(100):
        with suppress(WalIOError):  # as delivery asks again
            left += [record.sequence for _, _, _, record in take(reader, 100)]
    lost = [copy.sequence for copy in before if copy.sequence not in left]
    assert lost
    assert left == [copy.sequence for copy in before if copy.sequence not in lost]
    assert (len(waiting) > len(before)) == unmade
    missing = following.directory.retry.damage
    assert {damage.slot for damage in missing} == {slot.header.ordinal}
    assert following.directory.retry.losses.missing >= len(lost)


def test_a_slot_that_an_opening_took_the_headers_of_is_free_though_its_next_one_was_cut_off() -> None:
    """Copies that never counted stand in it still."""
    opened = Opened()
    before = stale(opened)
    rewrite(opened)
    second = opened.dies()
    disk = second.disk.after_death()
    content, header = disk.retry.live(), fmt.pack_slot_header(second.directory.retry.live[0].header)
    taken = [
        start
        for start in range(0, len(content), SLOT)
        if not any(content[start : start + fmt.HEADER_BYTES]) and any(content[start : start + SLOT])
    ]
    assert taken
    for start in taken:
        disk.retry.damage(start + SLOT - fmt.RESERVED, header[:30])
    third = Opened(disk)
    assert third.directory.retry.damaged_slots == []
    assert copies(third) == before


def test_headers_that_an_opening_took_away_stay_away_though_its_flush_failed() -> None:
    """The kernel calls the pages clean that lost them, and the disk has them still, with positions that count later."""
    opened = Opened()
    before = stale(opened, every=1)
    rewrite(opened)
    opened.checkpoint()  # in the middle of it: on the disk are headers and copies
    second = opened.dies()
    second.disk.retry.stored.fail_syncs()
    with pytest.raises(WalIOError):
        second.directory.retry.sync()
    third = second.dies()
    sparse(third)
    make(third, move(third))  # from here on, `flushed` is of this epoch
    left = copies(third)
    assert left[: len(before)] == before
    assert len(left) > len(before)
    assert third.directory.retry.spares.free > 1
    third.checkpoint()
    for seed in range(10):
        assert copies(third.loses_power(seed)) == left


def test_a_rewriting_that_was_not_ended_leaves_the_ring_as_it_was() -> None:
    opened = Opened()
    before = stale(opened)
    rewrite(opened)
    following = opened.dies()
    assert copies(following) == before
    end_rewriting(following, rewrite(following))
    assert copies(following.dies()) == before


def test_what_is_delivered_while_the_retry_ring_is_rewritten_counts_nowhere_any_more() -> None:
    opened = Opened()
    before = stale(opened)
    reader = Reader(opened.directory.retry, bytes)
    in_flight = read(reader)[:4]
    reader.close()
    rewriting = rewrite(opened)
    for slot, place, _, _ in in_flight[:2]:
        opened.directory.retry.settle(slot, [place])
    end_rewriting(opened, rewriting)
    for slot, place, _, _ in in_flight[2:]:
        opened.directory.retry.settle(slot, [place])
    assert copies(opened.dies()) == before[4:]


def test_a_copy_that_tells_of_no_record_stays_and_keeps_no_rewriting_from_its_end() -> None:
    opened = Opened()
    before = stale(opened)
    retry = opened.directory.retry
    retry.append(b"too short", None)
    read(Reader(retry, bytes))
    end_rewriting(opened, rewrite(opened))
    waiting_there = [payload for *_, payload in read(Reader(opened.dies().directory.retry, bytes))]
    assert waiting_there.count(b"too short") == 1
    assert len(waiting_there) == len(before) + 1


@pytest.mark.parametrize("room", [True, False])
def test_a_rewriting_without_room_goes_on_when_there_is_some_or_is_as_if_it_had_never_begun(*, room: bool) -> None:
    opened = Opened()
    before = stale(opened, every=1)
    rewriting = Rewrite(opened.directory.retry)
    opened.directory.copies_from = rewriting.copies_from
    opened.disk.retry.before["allocate"] = no_room
    for _ in range(3):
        with pytest.raises(WalFullError):
            copy_all(rewriting, 20)
    opened.disk.retry.before.clear()
    if room:
        copy_all(rewriting, 20)
        assert rewriting.count == len(before)
        end_rewriting(opened, rewriting)
    else:
        rewriting.abandon()
        opened.directory.copies_from = None
        assert copies(opened) == before
        opened.checkpoint()
    assert copies(opened.dies()) == before


def test_a_record_that_is_settled_between_two_steps_of_a_rewriting_gets_no_copy() -> None:
    opened = Opened()
    before = stale(opened)
    retry = opened.directory.retry
    reader = Reader(retry, bytes)
    in_flight = read(reader)
    reader.close()
    rewriting = Rewrite(retry)
    opened.directory.copies_from = rewriting.copies_from
    rewriting.step(1)
    for slot, place, _, _ in in_flight[:3]:
        retry.settle(slot, [place])
    copy_all(rewriting, 1)
    end_rewriting(opened, rewriting)
    assert copies(opened) == before[3:]


@pytest.mark.parametrize("when", ["before", "recycled later"])
def test_a_checkpoint_that_knows_nothing_of_a_rewriting_takes_nothing_back(when: str) -> None:
    """It was captured before, or before the ring was told."""
    opened = Opened()
    before = stale(opened)
    rewriting = rewrite(opened)
    captured = opened.directory.next_checkpoint()
    opened.directory.write_checkpoint(opened.directory.next_checkpoint(rewritten=rewriting.copies_from))
    opened.directory.copies_from = None
    if when == "recycled later":
        captured = opened.directory.next_checkpoint()
    opened.directory.write_checkpoint(captured)
    assert opened.directory.checkpoint.retry.watermark == rewriting.copies_from
    assert copies(opened.dies()) == before


def test_a_rewriting_leaves_alone_what_an_earlier_one_has_left_to_a_reader() -> None:
    opened = Opened()
    before = stale(opened, every=1)
    retry = opened.directory.retry
    reader = Reader(retry, bytes)
    in_flight = read(reader)  # and stays where it is
    end_rewriting(opened, rewrite(opened))
    assert retry.live[0].moved
    rewriting = rewrite(opened)
    rewriting.abandon()
    opened.directory.copies_from = None
    slot, place, _, _ = in_flight[-1]
    retry.settle(slot, [place])  # it stands in the slot that is kept: the copy is settled with it
    opened.checkpoint()
    assert copies(opened.dies()) == before[:-1]


def test_a_move_stays_made_though_another_thread_meets_a_failing_disk_while_its_checkpoint_is_flushed() -> None:
    """The word of that is stored behind the checkpoint, not in its place: what it says is counted on already."""
    opened = Opened()
    sparse(opened)
    moving = move(opened)
    directory = opened.directory
    flushes = count(1)

    def fails() -> None:
        if next(flushes) == 2:  # of the second copy
            directory.poison(WalIOError(errno.EIO, "a page can be neither read nor written"))

    opened.disk.checkpoint.before["sync"] = fails
    captured = directory.next_checkpoint(moved=moving.slot.last_position)
    directory.write_checkpoint(captured)
    del opened.disk.checkpoint.before["sync"]
    newest = CheckpointFile(directory.files.checkpoint).newest()
    assert newest is not None
    assert newest.moved == captured.moved == moving.slot.last_position
    assert newest.poisoned, "and there is word of it"


def test_word_of_a_failed_flush_takes_back_that_the_end_was_clean() -> None:
    """Somebody may still have stored a record, which the flush that failed was to make durable."""
    opened = Opened()
    directory = opened.directory
    directory.write_checkpoint(directory.next_checkpoint(closed=True))
    directory.poison(WalIOError(errno.EIO, "a flush failed"))
    newest = CheckpointFile(directory.files.checkpoint).newest()
    assert newest is not None
    assert (newest.poisoned, newest.closed) == (True, False)


def test_where_nothing_was_moved_a_checkpoint_says_so_also_once_the_first_slots_are_recycled() -> None:
    opened = Opened()
    for _ in range(3):
        opened.append(b"record")
        opened.ring.go_on()
        opened.settle(opened.read())
        opened.checkpoint()
        assert opened.directory.checkpoint.moved == 0
    assert len(opened.ring.live) == 1
    assert opened.dies().directory.checkpoint.moved == 0
