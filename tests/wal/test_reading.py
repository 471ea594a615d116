"""Reading: every record in order, from memory and from the file; through damage, never a wrong one."""

import random
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from aiorecover.errors import WalError, WalIOError
from aiorecover.wal import format as fmt
from aiorecover.wal import scan
from aiorecover.wal.checkpoint import RingState
from aiorecover.wal.moved import pack_moved
from aiorecover.wal.reading import Reader, Undecodable
from aiorecover.wal.ring import RECENT, RECENT_BYTES
from aiorecover.wal.run import Entry
from aiorecover.wal.scan import AGAIN_MOST
from aiorecover.wal.window import OUTAGE_ATTEMPTS, WINDOW
from tests.wal.memory import PAGE, broken, no_room
from tests.wal.rig import SLOT, Disk, Machine, Opened, Position, entries_of, found, missing, read, storing_fails, take

LARGE_SLOT = 1024 * 1024  # several windows


def payloads(count: int, sizes: Iterable[int], seed: int = 1) -> Iterator[bytes]:
    chance = random.Random(seed)
    choices = list(sizes)
    return (b"%d/" % number + chance.randbytes(chance.choice(choices)) for number in range(count))


# -- the same records, in the same order -----------------------------------------------------------------------------

SIZES = {
    "small": (2000, [0, 1, 2, 3, 60, 200]),
    "more than are kept in memory": (RECENT + 500, [0, 20]),
    "above what is kept in memory": (100, [RECENT_BYTES - 2, RECENT_BYTES - 1, RECENT_BYTES, RECENT_BYTES + 1, 5000]),
    "mixed": (600, [1, 100, 2000, 2100, 9000]),
    "larger than a window": (20, [1, WINDOW - 21, WINDOW, WINDOW + 1, 3 * WINDOW, LARGE_SLOT - 1330]),
    "windows full of small ones": (9000, [30, 31, 32, 33]),
}


@pytest.mark.parametrize("limit", [1, 100, 10_000])
@pytest.mark.parametrize("sizes", SIZES)
def test_what_was_appended_is_read_in_order_by_this_process_and_by_the_next(sizes: str, limit: int) -> None:
    count, lengths = SIZES[sizes]
    slot_bytes = LARGE_SLOT if max(lengths) > SLOT or "windows" in sizes else SLOT
    opened = Opened(Disk(max_slots=1000, slot_bytes=slot_bytes))
    opened.append(*payloads(count, lengths))
    assert found(opened.read(limit)) == list(opened.accepted.items())
    following = opened.dies()
    assert found(following.read(limit)) == list(opened.accepted.items())
    assert missing(opened.ring) == missing(following.ring) == []


@pytest.mark.parametrize("keeps_up", [True, False])
def test_a_reader_that_keeps_up_reads_no_file_and_one_that_does_not_loses_nothing(keeps_up: bool) -> None:
    opened = Opened(Disk(max_slots=300))
    opened.append(b"first")
    got = opened.read()
    reads = 0

    def count() -> None:
        nonlocal reads
        reads += 1

    opened.disk.ring.before["read"] = count
    for burst in range(6):
        opened.append(*payloads(1500, [10, 100], burst))
        if keeps_up or burst == 4:
            got += opened.read(64)
    got += opened.read(64)
    assert found(got) == list(opened.accepted.items())
    assert (reads == 0) == keeps_up


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from([1, 40, 700, 2500, 8000]), st.integers(1, 30), st.integers(0, 40))))
def test_reading_in_between_at_any_pace_changes_nothing(steps: list[tuple[int, int, int]]) -> None:
    with Opened(Disk(max_slots=1000)) as opened:
        got = []
        for size, count, limit in steps:
            opened.append(*[bytes([number]) * size for number in range(count)])
            if limit:
                got += take(opened.reader, limit)
        got += opened.read()
        assert found(got) == list(opened.accepted.items())


def test_a_look_is_bounded_however_much_is_settled() -> None:
    """The dispatcher may not be held up by gigabytes in which nothing waits."""
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(*payloads(20_000, [100]))
    entries = opened.read(1000)
    opened.settle(entries[:-1])
    following = opened.dies()
    read_bytes = looks = 0

    def count() -> None:
        nonlocal read_bytes
        read_bytes += WINDOW

    following.disk.ring.before["read"] = count
    while not (got := entries_of(following.reader.look(1000))):
        assert following.reader.moved
        looks += 1
        assert read_bytes <= looks * WINDOW
    assert found(got) == found(entries[-1:])
    assert looks > 10
    assert take(following.reader, 1) == []
    assert not following.reader.moved


@pytest.mark.parametrize("dies", [False, True])
def test_an_empty_record_is_read_where_nothing_stands_behind_it(*, dies: bool) -> None:
    opened = Opened()
    opened.append(b"one", b"", b"three", b"")
    entries = opened.read()
    opened.ring.go_on()
    if dies:
        opened = opened.dies()
        assert found(opened.read()) == found(entries)
    else:
        assert found(read(opened.reader.behind(*entries[0][:3]))) == found(entries)
    assert missing(opened.ring) == []


def has_more(opened: Opened) -> bool:
    return opened.reader.has_more


def test_a_reader_knows_whether_there_is_more() -> None:
    opened = Opened()
    assert not has_more(opened)
    opened.append(b"old")
    for reopened in (opened, opened.dies()):
        assert has_more(reopened)
        reopened.read()
        assert not has_more(reopened)
        reopened.append(b"new")
        assert has_more(reopened)
        reopened.fill_slot()
        reopened.read()
        assert not has_more(reopened)
        reopened.append(b"f" * 500)
        assert has_more(reopened)  # in the next slot


def test_a_reader_goes_from_the_backlog_of_several_lives_into_this_one() -> None:
    opened = Opened()
    for life in range(4):
        opened.append(*payloads(60, [100, 700], life))
        opened = opened.dies()
    opened.append(*payloads(60, [100, 700]))
    assert found(opened.read(7)) == list(opened.accepted.items())
    assert opened.reader.found == 4 * 60


def test_a_slot_of_the_backlog_is_unmapped_once_all_of_it_is_read_and_settled() -> None:
    """Whichever comes last: else the backlog of an outage would stay in the process's address space."""
    first = Opened()
    first.append(*payloads(100, [400]))
    opened = first.dies()
    oldest = opened.ring.live[0]
    opened.settle(opened.read())
    assert oldest.map is None
    opened = first.dies()
    oldest = opened.ring.live[0]
    for _ in range(oldest.count):
        opened.settle(take(opened.reader, 1))
    assert oldest.map is not None  # its reader has not seen that this was the end
    opened.settle(take(opened.reader, 1))
    assert oldest.map is None


def test_settled_records_of_the_backlog_are_passed() -> None:
    opened = Opened()
    opened.append(*payloads(300, [100]))
    opened.settle(opened.read()[::2])
    following = opened.dies()
    assert found(following.read()) == list(opened.accepted.items())[1::2]
    assert missing(following.ring) == []


def test_the_watermark_passes_records_whose_settle_words_a_power_cut_took() -> None:
    opened = Opened()
    opened.append(*payloads(20, [100]))
    opened.ring.sync()
    opened.settle(opened.read())
    opened.append(b"waits")
    captured = replace(opened.directory.next_checkpoint(), main=RingState(fmt.position(1, 20)))
    opened.directory.checkpoint_file.write(captured)
    opened.disk.ring.before["sync"] = broken
    cuts = [opened.disk.after_power_cut(seed) for seed in range(40)]
    cut = next(disk for disk in cuts if disk.ring.live() == opened.disk.ring.durable)  # no settle word came through
    with Opened(cut) as following:
        assert following.read() == []


# -- standing somewhere ----------------------------------------------------------------------------------------------


def test_a_second_reader_reads_again_from_where_it_is_put_and_counts_nothing() -> None:
    first = Opened()
    first.append(*payloads(100, [400]))
    opened = first.dies()
    opened.append(*payloads(100, [400], 2))
    entries = opened.read()
    for at in (0, 1, 37, 99, 100, 150, 199):
        slot, place, sequence, _ = entries[at]
        second = opened.reader.behind(slot, place, sequence)
        assert found(read(second, 9)) == found(entries[at:])
        second.close()
    assert opened.ring.pending() == 200
    assert opened.reader.found == 100
    opened.settle(entries)
    assert opened.ring.pending() == 0


@pytest.mark.parametrize("rot", [b"rot", b"\xee" * 64, b"\xee" * 900], ids=["payload", "frame", "several"])
def test_damage_that_only_a_second_reader_meets_is_named_once_and_kept(rot: bytes) -> None:
    opened = Opened()
    opened.append(*[b"%02d" % number * 22 for number in range(40)])  # frames of 64 bytes
    entries = opened.read()
    opened.disk.ring.damage(fmt.FIRST_FRAME + 64 * 10 + (0 if len(rot) > 3 else 30), rot)
    for at in (0, 5, 0):
        slot, place, sequence, _ = entries[at]
        again = read(opened.reader.behind(slot, place, sequence))
        lost = [number + 1 for number in range(10, 11 + (len(rot) - 1) // 64)]
        assert [number for _, _, number, _ in again] == [n for n in range(at + 1, 41) if n not in lost]
        assert missing(opened.ring) == [(1, number) for number in lost]
    assert opened.ring.losses.missing == len(lost)
    opened.keep_damaged()
    assert isinstance(opened.directory.file_system, Machine)
    (kept,) = opened.directory.file_system.kept.values()
    assert rot in kept.live()


def test_a_second_reader_misses_nothing_that_was_settled_before_it_was_damaged() -> None:
    opened = Opened()
    opened.append(*[b"%02d" % number * 22 for number in range(40)])
    entries = opened.read()
    opened.settle(entries[10:12] + entries[13:15])
    for number in range(10, 16):
        opened.disk.ring.damage(fmt.FIRST_FRAME + 64 * number + 30, b"rot")
    slot, place, sequence, _ = entries[0]
    assert len(read(opened.reader.behind(slot, place, sequence))) == 34
    assert missing(opened.ring) == [(1, 13), (1, 16)]


def test_a_second_reader_passes_what_was_settled_since() -> None:
    opened = Opened()
    opened.append(*payloads(50, [400]))
    entries = opened.read()
    opened.settle(entries[10:30])
    slot, place, sequence, _ = entries[5]
    second = opened.reader.behind(slot, place, sequence)
    assert found(read(second)) == found(entries[5:10] + entries[30:])


def test_a_reader_that_was_closed_keeps_no_slot() -> None:
    opened = Opened()
    opened.append(*payloads(100, [400]))
    opened.settle(opened.read())
    second = Reader(opened.ring, bytes, primary=False)
    assert take(second, 1) == []
    second.close()
    second.close()
    assert [slot.readers for slot in opened.ring.live[:-1]] == [0] * (len(opened.ring.live) - 1)
    assert opened.ring.live[-1].readers == 1  # the primary one


def test_the_place_of_a_reader_is_in_the_order_of_the_records() -> None:
    opened = Opened()
    assert opened.reader.at == (0, 0)
    opened.append(*payloads(100, [400]))
    places = [opened.reader.at]
    while take(opened.reader, 3):
        places.append(opened.reader.at)
    assert places == sorted(places)
    assert places[-1] == (opened.ring.live[-1].header.ordinal, 101)


def test_a_reader_that_has_found_nothing_yet_stands_before_every_position() -> None:
    opened = Opened()
    assert opened.reader.position == 0
    assert opened.read() == []
    assert opened.reader.position == 0
    opened.append(b"first")
    opened.read()
    assert opened.reader.position == fmt.position(1, 2)


def test_a_reader_at_the_end_of_a_sealed_slot_stands_before_the_next_one() -> None:
    opened = Opened()
    opened.fill_slot()
    opened.read()
    assert opened.reader.at == (1, opened.ring.sequence + 1)
    opened.append(b"f" * 500)
    assert opened.reader.at == (2, 0)
    assert opened.reader.position == fmt.position(1, opened.ring.sequence)
    take(opened.reader, 1)
    assert opened.reader.at == (2, opened.ring.sequence + 1)


def test_a_reader_at_the_end_of_the_last_slot_stands_behind_its_last_frame() -> None:
    opened = Opened()
    opened.append(b"first")
    opened.settle(opened.read())
    assert opened.ring.leave()
    assert opened.reader.position == fmt.position(1, 2)


def test_a_reader_has_caught_up_once_it_is_past_all_that_earlier_epochs_have_left() -> None:
    opened = Opened()
    opened.append(b"first", b"second")
    for follows in (b"", b"third"):
        following = opened.dies()
        following.append(*[follows] * bool(follows))
        assert take(following.reader, 1)
        assert not following.reader.caught_up
        assert len(following.read()) == 1 + bool(follows)
        assert following.reader.caught_up


def test_a_reader_at_the_end_of_an_earlier_epoch_stands_before_the_next_one() -> None:
    opened = Opened()
    opened.append(b"first")
    following = opened.dies()
    following.read()
    assert following.reader.position == fmt.position(2, 0)
    following.append(b"second")
    assert following.reader.position == fmt.position(2, 1)
    following.read()
    assert following.reader.position == fmt.position(2, 2)


# -- what a crash leaves open ----------------------------------------------------------------------------------------


def test_the_first_reader_seals_what_a_crash_left_open_and_the_next_opening_reads_the_same() -> None:
    opened = Opened()
    opened.append(*payloads(5, [100]))
    following = opened.dies()
    assert following.ring.end_of(following.ring.live[0]) is None
    following.read()
    slot = following.ring.live[0]
    assert (slot.sealed, slot.count, slot.last_sequence) == (True, 5, 5)
    third = following.dies()
    assert third.ring.live[0].sealed
    assert third.ring.unread() == 5
    assert found(third.read()) == list(opened.accepted.items())


def test_a_slot_that_a_crash_left_empty_is_sealed_passed_and_freed() -> None:
    opened = Opened()
    opened.append(b"gone")
    opened.settle(opened.read())
    disk = opened.disk.after_death()
    slot = opened.ring.live[0]
    disk.ring.damage(fmt.FIRST_FRAME, bytes(64))
    with Opened(disk) as following:
        assert following.read() == []
        assert missing(following.ring) == []
        following.append(b"new")
        assert found(following.read()) == [((2, 1), b"new")]
        assert following.checkpoint() == 1
        assert following.ring.live[0].header.ordinal == slot.header.ordinal + 1


def test_the_space_of_a_record_that_was_being_stored_is_not_read() -> None:
    """The process died after the payload and before the header; below are the bytes of the slot's life before."""
    opened = Opened()
    opened.append(b"whole")
    slot = opened.ring.live[0]
    slot.map[slot.tail + 20 : slot.tail + 30] = b"unfinished"  # type: ignore[index]
    following = opened.dies()
    assert found(following.read()) == [((1, 1), b"whole")]
    assert missing(following.ring) == []


@pytest.mark.parametrize("lives", [1, 2, 5])
def test_a_frame_of_an_earlier_life_never_passes(lives: int) -> None:
    """I2: a slot that is used again still holds its old frames behind the new ones, sequences and all."""
    opened = Opened(Disk(max_slots=2))
    for _ in range(lives):
        while len(opened.ring.live) < 2:
            opened.append(b"o" * 300)
        opened.settle(opened.read())
        assert opened.checkpoint() == 1
    opened.append(*[b"n" * 300] * 3)
    waiting = found(opened.read())
    following = opened.dies()
    assert found(following.read()) == waiting
    assert missing(following.ring) == []


def test_an_old_frame_at_the_very_place_and_sequence_of_the_next_one_never_passes() -> None:
    """I2: only the salt tells them apart."""
    opened = Opened()
    opened.append(b"first", b"second")
    disk = opened.disk.after_death()
    old = disk.ring.read(0, SLOT)
    next_life = fmt.SlotHeader(SLOT, opened.ring.producer_id, 2, 2, 0xABCD_0001, 1, 0)
    packed = fmt.pack_slot_header(next_life)
    disk.ring.damage(0, packed + bytes(64) + old[128:-128] + packed + bytes(64))
    with Opened(disk) as following:
        assert following.read() == []


# -- damage ----------------------------------------------------------------------------------------------------------


def three_slots() -> tuple[Disk, dict[Position, bytes], dict[Position, int]]:
    """Two sealed slots and one that a crash left open, each with a few records; what is in them, and where it ends."""
    opened = Opened()
    opened.append(*payloads(6, [50, 51, 52]), b"x" * (SLOT - 1774))
    opened.append(*payloads(6, [50, 51, 52], 2), b"y" * (SLOT - 1774))
    opened.append(*payloads(6, [50, 51, 52], 3))
    assert [slot.sealed for slot in opened.ring.live] == [True, True, False]
    entries = opened.read()
    ends = [slot.file_offset + place * 4 + 4 + len(record) for slot, place, _, record in entries]
    return opened.disk.after_death(), opened.accepted, dict(zip(opened.accepted, ends, strict=True))


def judge(disk: Disk, accepted: dict[Position, bytes]) -> set[Position]:
    """Open, read everything, hold it against what was accepted; the positions that are not there.

    Raises:
        WalError: the directory refuses to open, or to be read.

    """
    with Opened(disk) as opened:
        got = found(opened.read())
        where = [position for position, _ in got]
        assert where == sorted(set(where)), "in order, none twice"
        assert all(accepted.get(position) == record for position, record in got), "a wrong record"
        lost = set(accepted) - set(where)
        reported = missing(opened.ring)
        assert len(reported) == len(set(reported)), "reported twice"
        assert set(reported) <= lost, "reported and delivered"
        unknown = lost - set(reported)
        end = set(sorted(accepted)[len(accepted) - len(unknown) :])
        assert unknown == end, "only behind everything that is there, nobody knows how much there was"
        opened.settle(opened.read())
        return lost


def interesting(disk: Disk) -> list[int]:
    """Offsets of every byte that stands for something, and of some that do not."""
    live = disk.ring.live()
    places = {offset for offset in range(len(live)) if offset % SLOT < 700 or offset % SLOT >= SLOT - 128}
    return sorted(places | set(range(0, len(live), 509)))


def test_whatever_byte_rots_no_wrong_record_is_read_and_what_is_missing_is_reported() -> None:
    disk, accepted, _ = three_slots()
    chance = random.Random(7)
    lost: dict[int, int] = {}
    for offset in interesting(disk):
        damaged = disk.after_death()
        damaged.ring.flip(offset * 8 + chance.randrange(8))
        count = len(judge(damaged, accepted))
        lost[count] = lost.get(count, 0) + 1
    assert set(lost) == {0, 1}  # one byte costs one record at most: both headers and both seals stand twice
    assert lost[1] > 1000


@pytest.mark.parametrize("noise", [bytes(64), b"\xff" * 64, bytes(range(64))], ids=["zeros", "ones", "noise"])
def test_whatever_64_bytes_are_overwritten_no_wrong_record_is_read(noise: bytes) -> None:
    disk, accepted, _ = three_slots()
    for offset in range(0, disk.ring.size(), 64):
        if offset % SLOT >= 1280 and offset % (SLOT // 8) and offset % SLOT < SLOT - 256:
            continue  # in the middle of the one large record
        damaged = disk.after_death()
        damaged.ring.damage(offset, noise)
        assert len(judge(damaged, accepted)) <= 3, offset


def test_wherever_the_file_is_cut_what_is_left_is_read() -> None:
    disk, accepted, ends = three_slots()
    for size in range(0, disk.ring.size() + 1, 64):
        damaged = disk.after_death()
        damaged.ring.cut(size)
        assert judge(damaged, accepted) == {position for position in accepted if ends[position] > size}, size


def test_a_growth_that_was_interrupted_is_no_slot_and_needs_no_room() -> None:
    opened = Opened()
    opened.append(b"taken")
    disk = opened.disk.after_death()
    disk.ring.write(bytes(SLOT // 2), SLOT)
    disk.ring.before["allocate"] = no_room
    with Opened(disk) as following:
        assert found(following.read()) == list(opened.accepted.items())
        del disk.ring.before["allocate"]
        following.append(b"new")
        assert disk.ring.size() == 2 * SLOT


def test_a_file_that_is_cut_under_a_reader_is_an_error_or_missing_records_and_never_for_ever() -> None:
    disk, accepted, _ = three_slots()
    for size in (*range(0, 1300, 100), SLOT, SLOT + 600, 2 * SLOT, 2 * SLOT + 100, 2 * SLOT + 500):
        with Opened(disk.after_death()) as opened:
            opened.disk.ring.cut(size)
            try:
                got = found(opened.read())
            except WalError:
                continue
            assert all(accepted[position] == record for position, record in got)


def test_a_sector_of_another_place_is_not_believed() -> None:
    """A misdirected write: frames with good checksums, in the wrong place."""
    opened = Opened()
    opened.append(*[b"%d" % number * 44 for number in range(9)])  # frames of 64 bytes
    disk = opened.disk.after_death()
    for source in range(9):
        for target in range(9):
            damaged = disk.after_death()
            start = fmt.FIRST_FRAME + 64 * source
            damaged.ring.damage(fmt.FIRST_FRAME + 64 * target, disk.ring.read(start, 64))
            expected = set() if source == target else {(1, target + 1)}
            assert judge(damaged, opened.accepted) == expected


def test_a_hole_behind_which_records_stand_is_passed_and_reported() -> None:
    """A process died between the reservation and the last byte, and a signal handler had published meanwhile."""
    opened = Opened()
    opened.append(b"before", b"hole", b"handler", b"handler again")
    disk = opened.disk.after_death()
    disk.ring.damage(fmt.frame_end(fmt.FIRST_FRAME, 6), bytes(24))
    assert judge(disk, opened.accepted) == {(1, 2)}


def test_a_frame_with_a_far_sequence_leads_nobody_away() -> None:
    """The checksum covers the low half of the sequence; believed, one rotten bit would hide the rest of the slot."""
    opened = Opened()
    opened.append(b"first", b"second", b"third")
    place = fmt.frame_end(fmt.FIRST_FRAME, 5) + 8
    for bit in range(32, 64):
        disk = opened.disk.after_death()
        disk.ring.flip(place * 8 + bit)
        assert judge(disk, opened.accepted) == {(1, 2)}, bit


def test_several_damaged_stretches_are_reported_each_with_its_place() -> None:
    opened = Opened()
    opened.append(*[b"%02d" % number * 22 for number in range(20)])
    disk = opened.disk.after_death()
    for first, count in ((2, 1), (7, 3), (15, 2)):
        disk.ring.damage(fmt.FIRST_FRAME + 64 * first, bytes([255]) * 64 * count)
    with Opened(disk) as following:
        following.read()
        told = [(damage.first, damage.last, damage.count, damage.file_offset) for damage in following.ring.damage]
        assert told == [(n + 1, n + k, k, fmt.FIRST_FRAME + 64 * n) for n, k in ((2, 1), (7, 3), (15, 2))]
        assert {(damage.epoch, damage.slot) for damage in following.ring.damage} == {(1, 1)}


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_slot_that_cannot_be_read_at_all_is_reported_and_keeps_its_bytes(lost: int) -> None:
    opened = Opened()
    opened.append(*payloads(100, [400]))
    slots = [(slot.header.first_sequence, slot.last_sequence) for slot in opened.ring.live]
    assert len(slots) == 3
    disk = opened.disk.after_death()
    for start in (lost * SLOT, (lost + 1) * SLOT - 128):
        disk.ring.damage(start, b"\xee" * 128)
    before = disk.ring.read(lost * SLOT, SLOT)
    with Opened(disk) as following:
        assert following.ring.damaged_slots == [lost]
        got = [position for position, _ in found(following.read())]
        first, last = slots[lost][0], slots[lost][1] if lost < 2 else 100
        gone = [(1, sequence) for sequence in range(first, last + 1)]
        assert got == sorted(set(opened.accepted) - set(gone))
        if lost == 1:  # known from its neighbours; at an edge only the slot can be named
            assert missing(following.ring) == gone
        for _ in range(5):
            following.append(*payloads(100, [400]))
            following.settle(following.read())
            following.checkpoint()
        assert disk.ring.read(lost * SLOT, SLOT) == before


def test_lost_seals_are_found_again_by_the_slot_behind() -> None:
    opened = Opened()
    opened.append(*payloads(100, [400]))
    disk = opened.disk.after_death()
    for start in (0, SLOT - 128):
        disk.ring.damage(start + fmt.SEAL_OFFSET, bytes(fmt.SEAL_BYTES))
    assert judge(disk, opened.accepted) == set()


def test_frames_that_a_power_cut_took_from_a_sealed_slot_are_reported_once() -> None:
    opened = Opened()
    opened.append(*payloads(100, [400]))
    last = opened.ring.live[0].last_sequence
    disk = opened.disk.after_death()
    disk.ring.damage(SLOT - 3072, bytes(3072 - 128))
    with Opened(disk) as following:
        following.read()
        reported = missing(following.ring)
        assert reported[-1] == (1, last)
        assert reported == sorted(set(reported))
        assert len(reported) >= 4


def test_damage_of_the_newest_record_is_reported_though_nothing_comes_behind_it() -> None:
    """Large records are read from the file at once: the slot is not sealed, and its end is no end."""
    with Opened() as opened:
        opened.append(b"a" * 3000, b"b" * 3000)
        opened.disk.ring.damage(fmt.frame_end(fmt.FIRST_FRAME, 3000) + 100, b"rot")
        assert [record[:1] for _, record in found(opened.read())] == [b"a"]
        assert missing(opened.ring) == [(1, 2)]
        assert not has_more(opened)
        assert opened.reader.position > opened.ring.last_position  # nobody waits for it any more
        opened.append(b"c" * 3000)
        assert has_more(opened)
        assert [record[:1] for _, record in found(opened.read())] == [b"c"]
        opened.append(b"d" * 3000)
        opened.disk.ring.damage(opened.ring.live[0].tail - 100, b"rot")
        assert opened.read() == []
        opened.append(b"e" * 9000)
        assert [record[:1] for _, record in found(opened.read())] == [b"e"]
        assert missing(opened.ring) == [(1, 2), (1, 4)]


def test_what_a_signal_handler_publishes_while_the_newest_record_is_missed_is_read() -> None:
    with Opened() as opened:
        opened.append(b"a" * 3000, b"b" * 3000)
        opened.disk.ring.damage(fmt.frame_end(fmt.FIRST_FRAME, 3000) + 100, b"rot")
        assert len(take(opened.reader, 1)) == 1

        def handler() -> None:  # the window has been filled: the next frame is looked for
            del opened.disk.ring.before["read"]
            opened.append(b"c" * 3000)

        opened.disk.ring.before["read"] = handler
        assert [record[:1] for _, record in found(opened.read())] == [b"c"]
        assert missing(opened.ring) == [(1, 2)]


def test_a_payload_that_looks_like_frames_leads_nobody_astray() -> None:
    """Somebody publishes pieces of the ring itself, whole frames among them; in any alignment."""
    opened = Opened()
    opened.append(b"first")
    slot = opened.ring.live[0]
    words = b"".join(word.to_bytes(4, "little") for word in (slot.open_word, slot.salt))
    frames = opened.disk.ring.read(fmt.FIRST_FRAME, 32)
    opened.append(*[b"-" * shift + words * 3 + frames for shift in range(4)], b"last")
    disk = opened.disk.after_death()
    place = fmt.FIRST_FRAME
    for number, (position, record) in enumerate(opened.accepted.items()):
        for damage in (b"\xee" * 4, words[:4]):
            damaged = disk.after_death()
            damaged.ring.damage(place, damage)  # its length
            gone = {position} if number < 5 else set()  # behind the last nobody knows
            assert judge(damaged, opened.accepted) - {(1, 6)} == gone
        place = fmt.frame_end(place, len(record))


def test_space_without_a_frame_between_two_records_is_passed() -> None:
    opened = Opened()
    opened.append(b"first", b"second")
    disk = opened.disk.after_death()
    place = fmt.frame_end(fmt.FIRST_FRAME, 5)
    disk.ring.damage(place + 64, disk.ring.read(place, 28))
    disk.ring.damage(place, bytes(28))
    assert judge(disk, opened.accepted) == set()


def test_a_lost_end_with_a_lost_slot_behind_it_is_reported_to_the_last_record() -> None:
    opened = Opened()
    opened.append(*payloads(100, [400]))
    slots = opened.ring.live
    assert len(slots) == 3
    ends = [place * 4 + 4 + len(record) for slot, place, _, record in opened.read() if slot is slots[0]]
    disk = opened.disk.after_death()
    disk.ring.damage(ends[-4], b"\xee" * (SLOT - fmt.RESERVED - ends[-4]))  # the last three of the first slot
    for start in (SLOT, 2 * SLOT - fmt.RESERVED):
        disk.ring.damage(start, b"\xee" * fmt.RESERVED)  # the second slot
    with Opened(disk) as following:
        got = [position for position, _ in found(following.read())]
        gone = [(1, sequence) for sequence in range(slots[0].last_sequence - 2, slots[2].header.first_sequence)]
        assert got == sorted(set(opened.accepted) - set(gone))
        assert missing(following.ring) == gone


def test_what_stands_in_the_place_of_a_lost_end_is_kept_where_the_seals_are_lost_too() -> None:
    """The slot behind tells how many there were."""
    opened = Opened()
    opened.append(*payloads(100, [400]))
    slot = opened.ring.live[0]
    ends = [place * 4 + 4 + len(record) for home, place, _, record in opened.read() if home is slot]
    disk = opened.disk.after_death()
    start, stop = fmt.aligned(ends[-4]), SLOT - fmt.RESERVED
    disk.ring.damage(start, b"\xee" * (stop - start))
    for head in (0, stop):
        disk.ring.damage(head + fmt.SEAL_OFFSET, bytes(fmt.SEAL_BYTES))
    with Opened(disk) as following:
        following.read()
        told = [(damage.first, damage.last, damage.slot, damage.file_offset) for damage in following.ring.damage]
        assert told == [(slot.last_sequence - 2, slot.last_sequence, slot.header.ordinal, start)]
        (kept,) = following.directory.take_damaged()[0]
        assert (kept.slot, kept.start, kept.stop) == (following.ring.live[0], start, stop)
        assert following.ring.live[0].tail == stop, "sealed at its very end: every later reader misses them, too"


def test_damage_does_not_keep_a_slot_for_ever() -> None:
    opened = Opened()
    opened.append(*payloads(100, [400]))
    disk = opened.disk.after_death()
    disk.ring.damage(1000, b"\xee" * 3000)
    with Opened(disk) as following:
        following.settle(following.read())
        following.append(b"new")
        following.settle(following.read())
        assert following.checkpoint() == 3


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["read", "map"])
def test_a_call_that_fails_once_costs_no_record(call: str) -> None:
    """Neither is one passed unread, nor is its slot freed as if it had been settled."""
    opened = Opened()
    opened.append(*payloads(100, [400]))
    following = opened.dies()
    got = take(following.reader, 3) if call == "read" else []
    following.disk.ring.before[call] = broken
    for _ in range(3):
        with pytest.raises(WalIOError):
            take_all(following.reader, got)
    del following.disk.ring.before[call]
    got += following.read()
    assert found(got) == list(opened.accepted.items())
    assert following.ring.pending() == 100


def take_all(reader: Reader, into: list[Entry]) -> None:
    while taken := take(reader, 10):
        into += taken


class _InterruptedError(BaseException):
    """As a signal handler may raise."""


def test_an_exception_out_of_the_decoder_costs_no_record() -> None:
    opened = Opened()
    opened.append(*payloads(10, [40]))
    following = opened.dies()
    calls = 0

    def decode(payload: memoryview) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise _InterruptedError
        return bytes(payload)

    reader = Reader(following.ring, decode)
    with pytest.raises(_InterruptedError):
        take(reader, 100)
    assert found(read(reader)) == list(opened.accepted.items())
    assert following.ring.pending() == 10


@pytest.mark.parametrize("error", [ValueError("not a record"), RecursionError("too deep")])
def test_a_record_that_cannot_be_decoded_is_handed_out_as_such(error: Exception) -> None:
    opened = Opened()
    opened.append(b"good", b"bad", b"good")
    following = opened.dies()

    def decode(payload: memoryview) -> bytes:
        if bytes(payload) == b"bad":
            raise error
        return bytes(payload)

    records = [entry[3] for entry in read(Reader(following.ring, decode))]
    assert records[::2] == [b"good", b"good"]
    assert isinstance(records[1], Undecodable)
    assert str(error) in repr(records[1])
    assert missing(following.ring) == []


# -- places that cannot be read --------------------------------------------------------------------------------------


def patiently(opened: Opened, tries: int) -> tuple[list[bytes], int]:
    """Records that come within so many tries, and how many of them failed."""
    records: list[bytes] = []
    failed = 0
    for _ in range(tries):
        try:
            run = opened.reader.take(1000)
        except WalIOError:
            failed += 1
            continue
        if run is None:
            break
        records += run.records
    return records, failed


def test_a_bad_sector_deep_in_a_large_record_is_given_up_and_the_rest_is_read() -> None:
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(b"a" * 100, b"b" * 300_000, b"c" * 100)
    disk = opened.disk.after_death()
    disk.ring.stored.fail_reads(fmt.FIRST_FRAME + 200_000, 1)
    following = Opened(disk)
    records, failed = patiently(following, 50)
    assert (records, failed > 0) == ([b"a" * 100, b"c" * 100], True)
    assert missing(following.ring) == [(1, 2)]


@pytest.mark.parametrize("times", [100, 350, 2300])
@pytest.mark.parametrize("bad", range(1, 5))
def test_a_bad_page_costs_the_records_in_it_and_no_others(bad: int, times: int) -> None:
    """Also those that the reader finds again by a piece which begins elsewhere than what it had at hand."""
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(*[b"%02d" % number * times for number in range(99)])
    start, end = bad * PAGE, (bad + 1) * PAGE
    lost = []
    for _, place, _, record in opened.read():
        frame = (place - fmt.SETTLE_WORD) * fmt.WORD
        if frame < end and fmt.frame_end(frame, len(record)) > start:
            lost.append(record)
    disk = opened.disk.after_death()
    disk.ring.stored.fail_reads(start + 1000, 1)
    following = Opened(disk)
    records, _ = patiently(following, 60)
    assert records == [record for record in opened.accepted.values() if record not in lost]
    assert following.ring.losses.missing == len(lost)


@pytest.mark.parametrize("bad", [0, 1])
def test_who_looks_at_a_slot_alone_and_cannot_read_a_page_of_it_does_not_say_where_it_ends(bad: int) -> None:
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(b"first" * PAGE, b"second")
    following = opened.dies()
    (slot,) = following.ring.live
    following.disk.ring.stored.fail_reads(bad * PAGE, 1)
    reader = Reader.inside(following.ring, slot, bytes, patient=False)
    while reader.take(10) is not None:
        pass
    assert not slot.sealed
    assert reader.gave_up


BEHIND = LARGE_SLOT // PAGE  # the first page of the next slot


@pytest.mark.parametrize(("bad", "told"), [(0, False), (1, False), (2, True), (6, True), (BEHIND, False)])
def test_where_a_crash_left_the_end_open_a_bad_page_there_is_told(
    bad: int, caplog: pytest.LogCaptureFixture, *, told: bool
) -> None:
    """Nothing tells how many records stood there behind the last flush: none is counted."""
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(b"first")
    opened.ring.go_on()
    opened.append(*[b"%02d" % number * 350 for number in range(14)])  # to the third page
    last = opened.ring.live[-1]
    opened.directory.prepare_spares()  # the slot behind is there
    disk = opened.disk.after_death()
    following = Opened(disk)
    if bad:
        disk.ring.stored.fail_reads(last.file_offset + bad * PAGE, 1)
    patiently(following, 60)
    assert following.ring.live[-1].sealed
    message = "records may be missing behind the last one of a slot, where the disk cannot be read: check the disk"
    place = f" slot={last.header.ordinal} file_offset={last.file_offset + bad * PAGE}"
    assert [record.message for record in caplog.records if record.levelname == "ERROR" and "may" in record.message] == (
        [message + place] if told else []
    )
    assert bool(following.ring.losses.missing) == (bad == 1)


@pytest.mark.parametrize("away", [OUTAGE_ATTEMPTS - 1, OUTAGE_ATTEMPTS + 5, 10 * OUTAGE_ATTEMPTS])
def test_a_device_that_is_away_and_comes_back_costs_nothing_of_a_slot_that_a_crash_left_open(away: int) -> None:
    """What was passed over first is asked for again with each try of what follows: nobody may make that quicker."""
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(*[b"%03d" % number * 300 for number in range(600)])
    opened.directory.sync()
    following = opened.loses_power(0)
    stored = following.disk.ring.stored
    stored.fail_reads(0, LARGE_SLOT)
    for _ in range(away):
        with pytest.raises(WalIOError):
            following.reader.take(100)
    stored._unreadable.clear()
    assert found(following.read()) == list(opened.accepted.items())
    assert missing(following.ring) == []


def test_where_what_a_flush_had_covered_is_missing_a_bad_page_behind_it_is_told_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As many as were covered are named, and nothing else tells that there were more."""
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(*[b"%02d" % number * 350 for number in range(10)])
    opened.checkpoint()
    opened.append(*[b"%02d" % number * 350 for number in range(10, 30)])
    opened.directory.sync()
    following = opened.loses_power(0)
    following.disk.ring.stored.fail_reads(PAGE, 8 * PAGE)
    patiently(following, 10 * OUTAGE_ATTEMPTS)
    named = following.ring.losses.missing
    assert 0 < named < 10
    assert any("may be missing behind" in record.message for record in caplog.records)


@pytest.mark.parametrize("settled", [True, False])
def test_a_look_passes_so_many_frames_whether_they_are_settled_or_not(settled: bool) -> None:
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(*[b"%03d" % number for number in range(100)])
    opened.settle(opened.read()[: 100 * settled])
    following = opened.dies()
    reader = following.reader
    for expected in (31, 61, 91, 101):
        run = reader.look(50, 30)
        assert reader.moved
        assert reader.expected == expected
        assert (run is None) == settled
    assert take(reader, 50) == []
    assert missing(following.ring) == []


def test_who_finds_a_frame_again_where_it_was_lost_is_not_at_the_end() -> None:
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(*[b"%02d" % number * 350 for number in range(20)])
    following = opened.dies()
    reader = following.reader
    assert reader.look(3) is not None
    reader._window.buffer[:] = bytes(len(reader._window.buffer))  # as where a page could not be read meanwhile
    assert reader.look(3) is None
    assert reader.moved
    assert found(read(reader)) == list(opened.accepted.items())[3:]


def test_a_frame_behind_a_bad_page_is_no_end_wherever_the_page_begins_for_who_reads_it() -> None:
    """A window and what is read beside it give up other bytes of it; so may what was bad be read a second later."""
    for size in range(300, 340, 3):
        opened = Opened()
        opened.append(*[b"%02d" % number + b"-" * size for number in range(40)])
        following = Opened(opened.disk.after_death())
        following.disk.ring.stored.fail_reads(6000, 1)
        records, _ = patiently(following, 200)
        assert len(records) + following.ring.losses.missing == 40
        assert records[-1] == opened.accepted[1, 40]


def test_a_device_that_is_away_for_a_while_costs_nothing() -> None:
    opened = Opened()
    for _ in range(5):
        opened.fill_slot()
    following = Opened(opened.disk.after_death())
    following.disk.ring.before["read"] = broken
    records, failed = patiently(following, 20)
    assert (records, failed) == ([], 20)
    del following.disk.ring.before["read"]
    records, failed = patiently(following, 100)
    assert (records, failed) == (list(opened.accepted.values()), 0)
    assert missing(following.ring) == []


def test_two_places_that_cannot_be_read_are_each_given_their_time() -> None:
    opened = Opened(Disk(slot_bytes=LARGE_SLOT))
    opened.append(*[b"%d" % number * 40_000 for number in range(4)])
    disk = opened.disk.after_death()
    places = [slot.file_offset + place * 4 + 8192 for slot, place, _, _ in opened.read()]  # no page of another record
    for place in (places[0], places[2]):
        disk.ring.stored.fail_reads(place, 1)
    following = Opened(disk)
    records, _ = patiently(following, 60)
    assert [record[:1] for record in records] == [b"1", b"3"]
    assert missing(following.ring) == [(1, 1), (1, 3)]


@pytest.mark.parametrize("more", [0, 1])
def test_a_frame_that_is_found_again_is_waited_for_so_many_times(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    opened = Opened()
    opened.append(*[b"%02d" % number * 20 for number in range(20)])
    following = opened.dies()
    place = fmt.RESERVED + 3 * fmt.frame_end(0, 40) + fmt.FRAME_BYTES
    following.disk.ring.damage(place, b"rot")
    monkeypatch.setattr(scan, "holds", lambda *_: True)
    assert len(take(following.reader, 100)) == 3
    for _ in range(AGAIN_MOST + more):
        assert following.reader.look(100) is None
        assert following.reader.moved
    following.disk.ring.damage(place, opened.disk.ring.read(place, 3))
    assert len(following.read()) == 17 - more
    assert missing(following.ring) == [(1, 4)] * more


def test_a_frame_that_is_found_and_can_never_be_taken_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that comes and goes as it is read; whoever reads is not kept there."""
    opened = Opened()
    opened.append(*[b"%02d" % number * 20 for number in range(20)])
    following = opened.dies()
    following.disk.ring.damage(fmt.RESERVED + 3 * fmt.frame_end(0, 40) + fmt.FRAME_BYTES, b"rot")
    monkeypatch.setattr(scan, "holds", lambda *_: True)
    records = [record for _, _, _, record in following.read()]
    assert len(records) == 19
    assert missing(following.ring) == [(1, 4)]


def test_a_frame_without_a_record_is_no_record_where_settled_ones_are_read_too() -> None:
    """No checkpoint covers anything of its epoch; it stands before the first record, and behind one."""
    opened = Opened()
    for payload in (b"first", b"second"):
        with storing_fails(OSError()), suppress(OSError):
            opened.append(b"not stored")
        opened.append(payload)
    opened.ring.sync()
    following = opened.loses_power(1)
    assert following.ring.suspect.up_to > 0
    reader = Reader.inside(following.ring, following.ring.live[0], bytes, everything=True)
    assert [(sequence, record) for _, _, sequence, record in read(reader)] == [(2, b"first"), (4, b"second")]
    suspects = Reader(following.ring, bytes, suspects=True)
    assert [(sequence, record) for _, _, sequence, record in read(suspects)] == [(2, b"first"), (4, b"second")]


@pytest.mark.parametrize(("everything", "expected"), [(False, [b"a", b"c"]), (True, [b"a", b"b", b"c"])])
def test_a_reader_inside_a_slot_passes_what_is_settled_unless_it_is_to_read_everything(
    *, everything: bool, expected: list[bytes]
) -> None:
    opened = Opened()
    opened.append(b"a", b"b", b"c")
    opened.ring.settle(opened.ring.live[0], opened.ring.recent_places[2:3])
    reader = Reader.inside(opened.ring, opened.ring.live[0], bytes, everything=everything)
    assert [record for _, _, _, record in read(reader)] == expected


@pytest.mark.parametrize(("behind", "told"), [(9, (5, 9)), (5, (5, 0)), (3, (5, 0))])
def test_what_is_lost_at_the_end_of_copies_stood_before_what_follows_unless_a_rewriting_begins_there(
    behind: int, told: tuple[int, int]
) -> None:
    """It begins with the oldest that waits, which may be the very one that stood before."""
    opened = Opened()
    retry = opened.directory.retry
    for position in (5, 7):
        retry.append(pack_moved(position, 1, 0, b"copy" * 9), None)
    end = retry.live[0].tail
    retry.go_on()
    retry.append(pack_moved(behind, 1, 0, b"copy" * 9), None)
    opened.disk.retry.damage(end - 20, b"rot")
    assert len(read(Reader(retry, bytes))) == 2
    (damage,) = retry.losses.damage
    assert (damage.after, damage.before) == told
