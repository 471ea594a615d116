"""What an opening makes of the entries: which lanes go on, what is claimed, and the batch that is built again."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords

from aiorecover import record as rec
from aiorecover.delivery.batch import LaneBatch
from aiorecover.delivery.identity_life import LONGEST_MS
from aiorecover.delivery.in_kafka import Hint
from aiorecover.delivery.journal import MAIN, Doubt, Entry, Group, encode
from aiorecover.delivery.lane import Identity
from aiorecover.delivery.resume import Taken, rebuild, take_up
from aiorecover.errors import WalCorruptError
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES, Destination
from aiorecover.wal.lanes import BLOCK_BYTES, ENTRY_BYTES, SECTOR, Lanes
from aiorecover.wal.reading import Reader
from aiorecover.wal.run import Entry as Stored
from tests.wal.memory import FaultyFile, broken
from tests.wal.rig import SLOT, Opened, read

NOW = 5_000
WALL = 1_800_000_000_000  # the clock on the wall at the next opening
STAMPED = WALL - 3_600_000
IDENTITY = Identity(77, 2)


@dataclass
class Scene:
    """A directory with records of one lane, some of which a batch was made of."""

    opened: Opened
    entries: list[Stored]
    entry: Entry

    @property
    def file_offsets(self) -> list[int]:
        """Of the batch's frames."""
        return [slot.file_offset + (place - fmt.SETTLE_WORD) * fmt.WORD for slot, place, _, _ in self.entries]

    def dies(self) -> Opened:
        return self.opened.dies()


def payload(number: int, size: int = 100, stamped: int | None = None) -> bytes:
    headers = [("h", b"v")] if number % 2 else None
    return rec.encode(("t", b"k%d" % number, b"v" * size, None, stamped or STAMPED + number, headers, None, None))


def groups(entries: Sequence[Stored]) -> tuple[Group, ...]:
    by_slot: dict[int, list[int]] = {}
    for slot, place, _, _ in entries:
        by_slot.setdefault(slot.header.ordinal, []).append(place)
    return tuple(Group(MAIN, ordinal, places) for ordinal, places in by_slot.items())


def scene(
    count: int = 20,
    *,
    batch: slice = slice(5, 15),
    size: int = 100,
    behind: bool = True,
    newest: int | None = None,
    stamped: int = STAMPED,
) -> Scene:
    """``count`` records, of which those of ``batch`` are in flight and those before them are settled.

    ``stamped``: the first one's timestamp; ``newest``: number of the one that was stamped last, just before the next
    opening.
    """
    opened = Opened()
    stamps = [WALL if number == newest else stamped + number for number in range(count)]
    opened.append(*(payload(number, size, stamp) for number, stamp in enumerate(stamps)))
    entries = opened.read()
    opened.settle(entries[: batch.start])
    if not behind:
        opened.settle(entries[batch.stop :])
    chosen = entries[batch]
    entry = Entry("t", 3, IDENTITY, 40, len(chosen), 39, NOW, groups(chosen))
    written(opened, entry)
    return Scene(opened, chosen, entry)


def written(opened: Opened, *entries: Entry) -> None:
    for entry in entries:
        block = opened.directory.lanes.take()
        assert block is not None
        opened.directory.lanes.store(block, encode(entry))


def waiting(opened: Opened) -> list[int]:
    """Sequences that a reader gives."""
    return [sequence for _, _, sequence, _ in opened.read()]


def taken(opened: Opened, now_ms: int = NOW, wall_ms: int = WALL) -> Taken:
    return take_up(opened.directory, now_ms, wall_ms)


# -- spent and unspent -----------------------------------------------------------------------------------------------


def test_a_batch_that_was_in_flight_is_claimed_and_readers_pass_it() -> None:
    following = scene().dies()
    (resumed,) = taken(following).lanes
    assert (resumed.entry.lane, resumed.entry.identity, resumed.entry.base_sequence) == (("t", 3), IDENTITY, 40)
    assert waiting(following) == list(range(16, 21))
    assert following.ring.pending() == 15


@pytest.mark.parametrize("settled", [1, 5, 9])
def test_a_batch_whose_settling_was_interrupted_is_claimed_as_a_whole(settled: int) -> None:
    before = scene()
    before.opened.settle(before.entries[:settled])
    following = before.dies()
    assert len(taken(following).lanes[0].frames) == 1
    assert following.ring.pending() == 10
    assert waiting(following) == list(range(16, 21))
    assert following.ring.pending() == 15
    last = following.dies()  # nothing was acknowledged: the next opening finds the same
    assert taken(last).claimed == 10
    assert waiting(last) == list(range(16, 21))


def test_a_batch_that_is_settled_is_spent() -> None:
    before = scene()
    before.opened.settle(before.entries)
    following = before.dies()
    (resumed,) = taken(following).lanes
    assert resumed.frames == []
    assert waiting(following) == list(range(16, 21))


def test_a_batch_that_was_parted_with_is_not_sent_again_and_what_waits_of_it_is_read_as_any_other() -> None:
    before = scene()
    before.opened.directory.lanes.store(0, encode(replace(before.entry, parted=True)))
    before.opened.settle(before.entries[:4])
    following = before.dies()
    (resumed,) = taken(following).lanes
    assert (resumed.entry.parted, resumed.frames, resumed.entry.identity) == (True, [], IDENTITY)
    assert waiting(following) == list(range(10, 21))


def test_a_batch_whose_slots_were_recycled_is_spent() -> None:
    before = scene(behind=False)
    before.opened.settle(before.entries)
    before.opened.fill_slot()
    before.opened.fill_slot()
    assert before.opened.checkpoint() == 0  # the reader stands in it
    before.opened.settle(before.opened.read())
    assert before.opened.checkpoint() > 0
    following = before.dies()
    (resumed,) = taken(following).lanes
    assert resumed.frames == []


def test_a_batch_of_which_the_first_slot_was_recycled_is_spent() -> None:
    before = scene(90, batch=slice(0, 90), size=400)
    before.opened.settle(before.entries)
    assert before.opened.checkpoint() > 0
    ordinals = [slot.header.ordinal for slot in before.opened.ring.live]
    assert {group.ordinal for group in before.entry.groups} & set(ordinals)
    following = before.dies()
    (resumed,) = taken(following).lanes
    assert resumed.frames == []


def test_the_slot_of_a_claimed_batch_stays_until_all_of_it_is_settled() -> None:
    before = scene(behind=False)
    before.opened.settle(before.entries[:9])  # all but one word
    before.opened.fill_slot()
    before.opened.settle(before.opened.read())
    following = before.dies()
    (resumed,) = taken(following).lanes
    oldest = following.ring.live[0]
    following.settle(following.read())
    assert following.checkpoint() == 0
    for ring, slot, places in resumed.frames:
        ring.settle(slot, places[:9])
    assert following.checkpoint() == 0
    for ring, slot, places in resumed.frames:
        ring.settle(slot, places[9:])
    following.append(b"newest")
    following.read()
    assert following.checkpoint() >= 1
    assert oldest not in following.ring.live
    assert following.ring.failure is None


def test_a_batch_of_several_slots_is_claimed_in_all_of_them() -> None:
    before = scene(90, batch=slice(0, 90), size=400)
    assert len(before.entry.groups) > 2
    following = before.dies()
    (resumed,) = taken(following).lanes
    assert [slot.header.ordinal for _, slot, _ in resumed.frames] == [group.ordinal for group in before.entry.groups]
    assert waiting(following) == []
    assert following.ring.pending() == 90


def test_a_reader_that_copies_a_slot_for_a_move_sees_what_is_claimed() -> None:
    following = scene().dies()
    taken(following)
    reader = Reader.inside(following.ring, following.ring.live[0], bytes)
    assert [sequence for _, _, sequence, _ in read(reader)] == list(range(6, 21))


# -- doubts ----------------------------------------------------------------------------------------------------------


def everything_comes(
    following: Opened, doubt: Doubt, *, now_ms: int = NOW, wall_ms: int = WALL, left: bool = False
) -> None:
    """The lane is not resumed, its records are read as any others; and so it stays, by this doubt if it is ``left``.

    Until they are settled each opening is told where to look for them, whatever became of the process before it.
    """
    where = [Hint("t", 3, 39)]
    found = taken(following, now_ms, wall_ms)
    assert (found.lanes, dict(found.doubts), found.hints) == ([], {doubt: 1}, where)
    for _ in range(2):
        following = following.dies()
        found = taken(following)
        assert (found.lanes, dict(found.doubts), found.hints) == ([], {doubt if left else Doubt.BEFORE: 1}, where)
    entries = following.read()
    assert [entry[2] for entry in entries] == list(range(6, 21))
    following.settle(entries[:10])
    last = following.dies()
    assert dict(taken(last).doubts) == ({doubt: 1} if left else {})
    assert left or last.directory.lanes.free == last.directory.lanes.blocks


def test_after_a_power_cut_no_entry_is_trusted() -> None:
    before = scene()
    before.opened.checkpoint()
    following = before.opened.loses_power(1)
    found = taken(following)
    assert (found.lanes, found.doubts) == ([], {Doubt.ELSEWHERE: 1})
    assert [entry[2] for entry in following.read()][-15:] == list(range(6, 21))


def test_after_a_power_cut_it_is_known_where_to_look_for_a_batch_that_was_taken_up_and_not_acknowledged() -> None:
    """The process that took it up sent another lane's meanwhile: the newest epoch is not that of its entry."""
    before = scene()
    following = before.dies()
    assert [len(resumed.frames) for resumed in taken(following).lanes] == [1]
    written(following, replace(before.entry, partition=4, offset=7))
    following.checkpoint()
    hints = taken(following.loses_power(1)).hints
    assert [(hint.lane, hint.offset) for hint in hints] == [(("t", 3), 39), (("t", 4), 7)]


def test_entries_of_a_copied_directory_are_not_trusted_and_stay_so() -> None:
    before = scene()
    disk = before.opened.disk.after_death()
    disk.lanes = FaultyFile("lanes", disk.lanes.live())
    everything_comes(Opened(disk), Doubt.ELSEWHERE, left=True)


def known(before: Scene, cluster_id: str, number: int = 0, expiration_ms: int | None = None) -> Opened:
    """The directory remembers a cluster; what the next process finds."""
    opened = before.dies()
    destination = Destination(cluster_id, cluster_number=number, expiration_ms=expiration_ms)
    opened.directory.write_checkpoint(opened.directory.next_checkpoint(destination=destination))
    return opened.dies()


def test_where_the_records_go_to_another_cluster_no_identity_is_used_and_no_offset_looked_for() -> None:
    following = known(scene(), "b", 1)
    moved = take_up(following.directory, NOW, WALL, named="b")
    assert (moved.lanes, moved.hints, dict(moved.doubts)) == ([], [], {Doubt.MOVED: 1})
    assert waiting(following) == list(range(6, 21))
    assert taken(following.dies()).lanes == []


def test_where_another_cluster_is_named_everything_is_left_as_it_is() -> None:
    following = known(scene(), "a")
    for _ in range(2):
        following = following.dies()
        named = take_up(following.directory, NOW, WALL, named="typo")
        assert (named.lanes, named.hints, dict(named.doubts)) == ([], [], {})
        assert named.left is not None
        assert len(named.left) == 1
        assert following.directory.lanes.free == following.directory.lanes.blocks - 1
        assert waiting(following) == list(range(6, 21))
    (resumed,) = take_up(following.dies().directory, NOW, WALL, named="a").lanes
    assert (resumed.entry.identity, resumed.entry.base_sequence, len(resumed.frames)) == (IDENTITY, 40, 1)


def test_the_slot_of_what_is_left_stays_until_the_named_cluster_is_there() -> None:
    before = scene(behind=False)
    before.opened.fill_slot()
    following = known(before, "a")
    left = take_up(following.directory, NOW, WALL, named="b").left
    assert left is not None
    following.settle(following.read())
    following.append(b"newest")
    following.read()
    assert following.checkpoint() == 0
    left.release()
    assert following.checkpoint() > 0


def test_once_the_named_cluster_is_there_what_was_left_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    following = known(scene(), "a")
    left = take_up(following.directory, NOW, WALL, named="b").left
    assert left is not None
    left.release()
    assert caplog.text == ""
    assert asyncio.run(left.forget()) == 1
    assert "lanes begin with a fresh kafka identity: the records go to another kafka cluster from now on" in caplog.text
    assert following.directory.lanes.free == following.directory.lanes.blocks
    assert all(slot.readers == 0 for slot in following.ring.live)
    assert following.dies().directory.lanes.found == []


def test_an_entry_of_the_cluster_before_is_no_second_one_of_its_lane() -> None:
    before = scene()
    written(before.opened, replace(before.entry, cluster_number=1))
    found = taken(known(before, "b", 1))
    assert [resumed.entry.cluster_number for resumed in found.lanes] == [1]
    assert found.doubts == {Doubt.MOVED: 1}


def test_a_block_that_a_power_cut_left_in_pieces_is_no_doubt_of_the_next_lane_s() -> None:
    before = scene()
    disk = before.opened.disk
    for copy in (512, 512 + ENTRY_BYTES):
        disk.lanes.damage(copy, b"torn")
    following = before.opened.loses_power(1)
    assert taken(following).doubts == {Doubt.ELSEWHERE: 1}
    written(following, before.entry)
    (block,) = following.dies().directory.lanes.found
    assert (block.known, block.damaged) == (True, False)


@pytest.mark.parametrize(("copy", "doubt"), [(0, Doubt.DAMAGED), (1, Doubt.ELSEWHERE)])
def test_an_entry_that_cannot_be_read_is_forgotten(copy: int, doubt: Doubt) -> None:
    before = scene()
    before.opened.disk.lanes.stored.fail_reads(512 + copy * ENTRY_BYTES + 8192, 1)
    following = before.dies()
    found = taken(following)
    assert (found.lanes, found.doubts) == ([], {doubt: 1})
    assert waiting(following) == list(range(6, 21))


def test_an_entry_of_which_a_copy_is_damaged_is_forgotten() -> None:
    before = scene()
    disk = before.opened.disk
    disk.lanes.damage(disk.lanes.size() - 1, b"")
    disk.lanes.damage(512 + 100, b"\1")
    everything_comes(before.dies(), Doubt.DAMAGED)


@pytest.mark.parametrize("age_ms", [LONGEST_MS + 1, -1])
def test_an_entry_too_old_or_of_the_future_is_forgotten(age_ms: int) -> None:
    everything_comes(scene().dies(), Doubt.OLD, now_ms=NOW + age_ms)


def test_an_entry_is_trusted_half_as_long_as_the_brokers_say_that_they_remember_it() -> None:
    (resumed,) = taken(known(scene(stamped=WALL), "a", expiration_ms=4_000), NOW + 2_000).lanes
    assert resumed.entry.count == 10
    everything_comes(known(scene(stamped=WALL), "a", expiration_ms=4_000), Doubt.OLD, now_ms=NOW + 2_001)


def test_a_batch_may_be_stamped_half_as_long_ago_as_the_brokers_say_that_they_remember_it() -> None:
    newest = STAMPED + 14
    (resumed,) = taken(known(scene(), "a", expiration_ms=4_000), wall_ms=newest + 2_000).lanes
    assert resumed.entry.count == 10
    everything_comes(known(scene(), "a", expiration_ms=4_000), Doubt.OLD, wall_ms=newest + 2_001)


OLDEST_TRUSTED = STAMPED + 14 + LONGEST_MS  # the clock, when the newest of the batch is as old as it may be


def test_a_batch_of_which_all_timestamps_are_too_old_is_forgotten() -> None:
    """A broker counts from the newest of them, not from when the batch came: as for records of two days ago."""
    everything_comes(scene().dies(), Doubt.OLD, wall_ms=OLDEST_TRUSTED + 1)


@pytest.mark.parametrize("newest", [5, 9, 14])
def test_a_batch_is_as_old_as_its_newest_timestamp_wherever_that_stands(newest: int) -> None:
    (resumed,) = taken(scene(newest=newest).dies(), wall_ms=OLDEST_TRUSTED + 1).lanes
    assert resumed.entry.count == 10


@pytest.mark.parametrize("wall_ms", [OLDEST_TRUSTED, STAMPED - 365 * 24 * 3_600_000, 0])
def test_a_batch_is_trusted_up_to_half_of_what_kafka_remembers_and_one_of_the_future_is(wall_ms: int) -> None:
    assert taken(scene().dies(), wall_ms=wall_ms).claimed == 10


def test_what_was_stamped_by_a_clock_that_is_not_set_is_too_old() -> None:
    hour = 3_600_000  # of 1970, as a machine begins that has no battery
    everything_comes(scene(stamped=hour).dies(), Doubt.OLD, wall_ms=2 * hour)


def test_a_batch_that_is_settled_is_spent_whatever_its_timestamps() -> None:
    before = scene()
    before.opened.settle(before.entries)
    found = taken(before.dies(), wall_ms=OLDEST_TRUSTED + 1)
    assert (len(found.lanes), found.claimed, dict(found.doubts)) == (1, 0, {})


@pytest.mark.parametrize("payload", [b"no record", payload(0)[:-2] + b"\x91" * 3_000 + b"\xc0\xc0"])
def test_what_is_no_record_has_no_timestamp_and_keeps_no_directory_closed(payload: bytes) -> None:
    opened = Opened()
    opened.append(payload)
    (slot, place, _, _) = opened.read()[0]
    written(opened, Entry("t", 3, IDENTITY, 40, 1, 39, NOW, (Group(MAIN, slot.header.ordinal, [place]),)))
    assert taken(opened.dies()).claimed == 1


def test_two_entries_of_a_lane_are_both_forgotten() -> None:
    before = scene()
    written(before.opened, before.entry)
    following = before.dies()
    assert taken(following).doubts == {Doubt.TWICE: 2}
    assert waiting(following) == list(range(6, 21))
    found = taken(following.dies())
    assert (found.lanes, dict(found.doubts), found.hints) == ([], {Doubt.BEFORE: 1}, [Hint("t", 3, 39)])


def test_what_was_doubted_is_no_second_entry_of_a_lane_that_goes_on_in_a_block_of_its_own() -> None:
    following = scene().dies()
    taken(following, NOW + LONGEST_MS + 1)
    first = following.read()[:5]
    (group,) = groups(first)
    fresh = Entry("t", 3, Identity(78, 0), 0, 5, 39, NOW, (group,))
    written(following, fresh)
    last = following.dies()
    found = taken(last)
    assert [(resumed.entry.identity, resumed.block) for resumed in found.lanes] == [(fresh.identity, 1)]
    assert (dict(found.doubts), found.hints) == ({Doubt.BEFORE: 1}, [Hint("t", 3, 39)])
    assert waiting(last) == list(range(11, 21))


def test_a_service_that_dies_again_and_again_keeps_one_doubted_entry_of_a_lane_the_one_that_goes_back_furthest() -> (
    None
):
    following = scene().dies()
    taken(following, NOW + LONGEST_MS + 1)
    for life in range(5):
        (group,) = groups(following.read()[life : life + 5])
        written(following, Entry("t", 3, Identity(78 + life, 0), 0, 5, 50 + life, NOW, (group,)))
        following = following.dies()
        found = taken(following, NOW + LONGEST_MS + 1)
        assert (found.lanes, set(found.hints)) == ([], {Hint("t", 3, 39), Hint("t", 3, 50 + life)})
        assert len([block for block in following.dies().directory.lanes.found if block.bodies]) == 1
    assert taken(following.dies()).hints == [Hint("t", 3, 39)]


def test_without_a_recovery_check_a_batch_of_old_records_is_sent_as_it_was() -> None:
    following = scene(stamped=0).dies()
    assert take_up(following.directory, NOW, None).claimed == 10


def test_an_entry_that_cannot_be_set_aside_is_forgotten() -> None:
    before = scene()
    before.opened.disk.lanes.stored.fail_reads(512 + 8192, 1)
    following = before.dies()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lanes, "store", lambda *_: broken())
        assert taken(following).doubts == {Doubt.DAMAGED: 1}
    found = taken(following.dies())
    assert (found.lanes, dict(found.doubts), found.hints) == ([], {}, [])


def test_records_of_a_lane_in_doubt_are_settled_in_any_order() -> None:
    """Those without a key may go to others of its topic: the last one does not tell of all."""
    following = scene().dies()
    taken(following, NOW + LONGEST_MS + 1)
    following.settle(following.read()[1:])
    assert dict(taken(following.dies()).doubts) == {Doubt.BEFORE: 1}


def test_after_a_failed_flush_no_entry_is_trusted() -> None:
    before = scene()
    before.opened.disk.ring.before["sync"] = broken
    with pytest.raises(Exception, match="cannot use the file"):
        before.opened.checkpoint()
    before.opened.disk.ring.before.clear()
    following = before.dies()
    assert taken(following).doubts == {Doubt.SUSPECT: 1}
    assert [entry[2] for entry in following.read()] == list(range(6, 21))


def a_flush_fails_behind_a_spent_batch(before: Scene) -> None:
    """Its slots are recycled by then, so nothing but its entry tells of it."""
    before.opened.settle(before.entries)
    before.opened.fill_slot()
    before.opened.settle(before.opened.read())
    before.opened.fill_slot()
    before.opened.settle(before.opened.read())
    assert before.opened.checkpoint() > 0
    assert {group.ordinal for group in before.entry.groups}.isdisjoint(
        slot.header.ordinal for slot in before.opened.ring.live
    )
    before.opened.disk.lanes.before["sync"] = broken
    before.opened.directory.lanes.store(0, encode(replace(before.entry, base_sequence=50, offset=49)))
    with pytest.raises(Exception, match="cannot use the file"):
        before.opened.checkpoint()
    before.opened.disk.lanes.before.clear()


@pytest.mark.parametrize("half_way", [0, 1, 2])
def test_after_a_failed_flush_no_entry_tells_the_next_sequence_of_its_lane_either(half_way: int) -> None:
    """What the flush lost leaves the memory as well, and the entry before it passes for the newest.

    Its lane would go on with a sequence that Kafka has, and Kafka would take the batch for a repeat. So it is whoever
    judges it first: the openings before may have died half-way.
    """
    before = scene(behind=False)
    a_flush_fails_behind_a_spent_batch(before)
    disk = before.opened.disk.after_death()
    disk.lanes = disk.lanes._another(disk.lanes.stored.after_process_death(before.opened.disk.lanes.durable))
    following = Opened(disk)
    for _ in range(half_way):
        following = following.dies()
    found = taken(following)
    assert (found.lanes, found.doubts) == ([], {Doubt.SUSPECT: 1})
    assert taken(following.dies()).lanes == []


def test_what_is_sent_behind_a_failed_flush_that_was_dealt_with_is_trusted_by_the_next_opening() -> None:
    before = scene(behind=False)
    a_flush_fails_behind_a_spent_batch(before)
    following = before.dies()
    taken(following)
    written(following, before.entry)
    (resumed,) = taken(following.dies()).lanes
    assert (resumed.entry.base_sequence, resumed.frames) == (40, [])


@pytest.mark.parametrize("which", [0, 4, 9])
def test_a_batch_with_a_damaged_frame_is_given_up_and_what_is_missing_is_named(which: int) -> None:
    before = scene()
    before.opened.disk.ring.damage(before.file_offsets[which] + fmt.FRAME_BYTES + 5, b"rot")
    following = before.dies()
    assert taken(following).doubts == {Doubt.GONE: 1}
    assert waiting(following) == [number for number in range(6, 21) if number != 6 + which]
    assert [(damage.first, damage.last) for damage in following.ring.damage] == [(6 + which, 6 + which)]


@pytest.mark.parametrize("half_way", [0, 1, 2])
@pytest.mark.parametrize("left", [b"rot", bytes(fmt.HEADER_BYTES)], ids=["damaged", "zero"])
def test_a_batch_whose_newest_slot_has_lost_its_headers_is_no_one_else_s_records(left: bytes, half_way: int) -> None:
    """Nothing tells of that slot: the next one may have its number, and frames in the same places.

    ``half_way``: openings that die before they have judged any entry.
    """
    before = scene()
    disk = before.opened.disk.after_death()
    for place in (0, SLOT - fmt.RESERVED):
        disk.ring.damage(place, left)
    following = Opened(disk)
    for _ in range(half_way):
        following = following.dies()
    found = taken(following)
    assert (found.lanes, found.doubts) == ([], {Doubt.GONE: 1})
    following.append(*(payload(number, stamped=STAMPED) for number in range(20)))
    last = following.dies()
    assert taken(last).lanes == []
    assert waiting(last) == list(range(1, 21))


def test_an_entry_whose_places_are_those_of_no_frame_is_given_up() -> None:
    before = scene()
    (group,) = before.entry.groups
    for wrong in (group.places[0] + 1, 0, 1 << 27):
        places = [wrong, *group.places[1:]]
        directory = before.dies()
        directory.directory.lanes.clear(0)
        written(directory, replace(before.entry, groups=(Group(MAIN, group.ordinal, places),)))
        assert taken(directory.dies()).doubts == {Doubt.GONE: 1}


def test_a_batch_of_which_only_a_part_is_in_the_ring_is_given_up() -> None:
    before = scene()
    (group,) = before.entry.groups
    halves = (Group(MAIN, 999, group.places[:5]), Group(MAIN, group.ordinal, group.places[5:]))
    before.opened.directory.lanes.store(0, encode(replace(before.entry, groups=halves)))
    everything_comes(before.dies(), Doubt.GONE)


def test_nonsense_with_a_right_checksum_is_forgotten() -> None:
    before = scene()
    before.opened.directory.lanes.store(0, b"nonsense")
    following = before.dies()
    assert taken(following).doubts == {Doubt.DAMAGED: 1}
    assert waiting(following) == list(range(6, 21))
    found = taken(following.dies())
    assert (found.lanes, dict(found.doubts)) == ([], {})


@pytest.mark.parametrize("left", [b"", bytes(SECTOR), bytes(100_000)])
def test_a_lost_file_is_one_doubt_where_something_waits(left: bytes, caplog: pytest.LogCaptureFixture) -> None:
    following = loses_lanes(scene().opened, left)
    found = taken(following)
    assert (found.lanes, dict(found.doubts), found.hints) == ([], {Doubt.LOST: 1}, [])
    assert waiting(following) == list(range(6, 21))
    (line,) = caplog.messages
    assert line.endswith("may appear twice: the file lanes was lost, and nothing tells which they were lanes=?")


@pytest.mark.parametrize("copy", [0, 1])
def test_a_lost_file_is_a_doubt_also_where_a_copy_of_the_checkpoint_is_damaged(copy: int) -> None:
    before = scene().opened
    before.disk.checkpoint.damage(copy * COPY_BYTES + 40, b"\xee\xee")
    assert dict(taken(loses_lanes(before)).doubts) == {Doubt.LOST: 1}


def test_a_lost_file_is_a_doubt_also_while_settle_words_are_suspect_since_a_power_cut() -> None:
    opened = scene(behind=False).opened
    opened.checkpoint()
    before = opened.loses_power(1)
    before.append(payload(1))
    assert before.ring.suspect.up_to
    assert dict(taken(loses_lanes(before)).doubts) == {Doubt.LOST: 1}


def test_a_lost_file_is_no_doubt_where_nothing_waits_whether_a_checkpoint_covers_it_or_not() -> None:
    before = scene(behind=False)
    before.opened.settle(before.entries)
    for _ in range(2):
        assert dict(taken(loses_lanes(before.opened)).doubts) == {}
        before.opened.checkpoint()


def test_a_new_directory_and_one_that_never_sent_anything_have_lost_nothing() -> None:
    opened = Opened()
    assert dict(taken(opened).doubts) == {}
    opened.append(payload(1))
    assert dict(taken(opened.dies()).doubts) == {}


def test_what_a_power_cut_took_before_it_was_ever_flushed_was_not_lost() -> None:
    opened = Opened()
    opened.append(payload(1))
    opened.directory.sync()
    disk = opened.disk.after_power_cut(1)
    disk.lanes = FaultyFile("lanes")
    following = Opened(disk)
    assert dict(taken(following).doubts) == {}
    assert len(waiting(following)) == 1


@pytest.mark.parametrize("how", ["cut", "zeroed"])
def test_entries_that_are_gone_are_each_a_doubt_once_where_something_waits(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = scene()
    others = [replace(before.entry, partition=partition) for partition in (4, 5)]
    written(before.opened, *others)
    following = loses_blocks(before.opened, 1, how)
    found = taken(following)
    assert ([resumed.entry.lane for resumed in found.lanes], dict(found.doubts)) == ([("t", 3)], {Doubt.PARTLY_LOST: 2})
    assert caplog.messages[-1].endswith(
        "may appear twice: a part of the file lanes was lost, and nothing tells which they were lanes=2"
    )
    assert dict(taken(following.dies()).doubts) == {}


def test_entries_that_are_gone_are_doubted_beside_others_that_are_forgotten_and_not_once_more() -> None:
    before = scene()
    written(before.opened, replace(before.entry, partition=4), replace(before.entry, partition=5))
    before.opened.directory.lanes.store(1, b"nonsense")
    following = loses_blocks(before.opened, 2)
    assert dict(taken(following).doubts) == {Doubt.DAMAGED: 1, Doubt.PARTLY_LOST: 1}
    assert dict(taken(following.dies()).doubts) == {}


def test_entries_that_are_gone_are_no_doubt_where_nothing_waits() -> None:
    before = scene(behind=False)
    before.opened.settle(before.entries)
    assert dict(taken(loses_blocks(before.opened, 0)).doubts) == {}


def test_entries_that_are_gone_are_a_doubt_also_where_another_cluster_is_named() -> None:
    before = scene()
    written(before.opened, replace(before.entry, partition=4))
    named = take_up(loses_blocks(known(before, "a"), 1).directory, NOW, WALL, named="typo")
    assert (len(named.left or ()), dict(named.doubts)) == (1, {Doubt.PARTLY_LOST: 1})


@pytest.mark.parametrize("copy", [0, 1])
def test_an_entry_of_which_a_copy_was_zeroed_is_forgotten(copy: int) -> None:
    """The older one would pass for the newest."""
    before = scene()
    for _ in range(2):
        before.opened.directory.lanes.store(0, encode(before.entry))
    before.opened.disk.lanes.damage(SECTOR + copy * ENTRY_BYTES, bytes(ENTRY_BYTES))
    everything_comes(before.dies(), Doubt.DAMAGED)


def loses_blocks(before: Opened, left: int, how: str = "cut") -> Opened:
    """The next opening finds only so many of them."""
    disk = before.disk.after_death()
    at = SECTOR + left * BLOCK_BYTES
    if how == "cut":
        disk.lanes.cut(at)
    else:
        disk.lanes.damage(at, bytes(disk.lanes.size() - at))
    return Opened(disk)


def loses_lanes(before: Opened, left: bytes = b"") -> Opened:
    """The next opening finds only these bytes in it; none: also if there is no file, as it makes one."""
    disk = before.disk.after_death()
    disk.lanes = FaultyFile("lanes", left)
    return Opened(disk)


# -- the batch -------------------------------------------------------------------------------------------------------


def records_of(batch: LaneBatch) -> list[tuple[object, ...]]:
    found: Any = MemoryRecords(bytes(batch._build())).next_batch()
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (77, 2, 40)
    return [(one.timestamp, one.key, one.value, list(one.headers)) for one in found]


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("size", [100, 9000])
def test_a_claimed_batch_is_built_again_as_it_was(codec: int, size: int) -> None:
    before = scene(size=size)
    following = before.dies()
    (resumed,) = taken(following).lanes
    batch = asyncio.run(rebuild(resumed, codec))
    prefix = f"{before.opened.directory.producer_id}/1/".encode()
    assert records_of(batch) == [
        (
            STAMPED + number,
            b"k%d" % number,
            b"v" * size,
            [*([("h", b"v")] if number % 2 else []), (rec.RECORD_ID_HEADER, b"%b%d" % (prefix, number + 1))],
        )
        for number in range(5, 15)
    ]
    assert batch.count == 10
    assert batch.identity == batch.entered == (77, 2, 40)
    assert [(slot.header.ordinal, places) for slot, places in batch.frames] == [
        (group.ordinal, list(group.places)) for group in before.entry.groups
    ]


def test_a_frame_that_does_not_hold_any_more_when_its_turn_comes_is_an_error() -> None:
    before = scene()
    following = before.dies()
    (resumed,) = taken(following).lanes
    following.disk.ring.damage(before.file_offsets[3] + fmt.FRAME_BYTES, b"rot")
    with pytest.raises(WalCorruptError, match="does not hold any more"):
        asyncio.run(rebuild(resumed, 0))


def test_a_lane_goes_on_in_its_block() -> None:
    before = scene()
    following = before.dies()
    found = taken(following)
    assert [resumed.block for resumed in found.lanes] == [0]
    assert following.directory.lanes.take() != 0
