"""Where earlier epochs ended, and up to where everything is settled: through deaths, power cuts, moves and damage."""

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.epochs import EarlierEpoch, settled_in
from aiorecover.wal.moving import Move
from aiorecover.wal.reading import Reader
from aiorecover.wal.stream import FIRST_PLACE, Stream
from tests.wal import test_stream
from tests.wal.rig import SLOT, Opened, Position, read, storing_fails


def epochs(opened: Opened) -> dict[int, tuple[int, bool]]:
    """The last sequence of each, and whether that is final."""
    return {one.epoch: (one.last, one.final) for one in looked_at(opened)}


def looked_at(opened: Opened) -> list[EarlierEpoch]:
    return list(opened.directory.epochs.look(opened.ring.damage))


def settled(opened: Opened) -> Position:
    return fmt.parts(opened.directory.settled_up_to())


def move_the_oldest(opened: Opened) -> None:
    directory = opened.directory
    moving = Move(opened.ring, directory.retry, opened.ring.live[0], lambda _: 0)
    directory.copies_from = moving.copies_from
    while not moving.step(100):
        pass
    captured = directory.next_checkpoint(moved=moving.slot.last_position)
    directory.write_checkpoint(captured)
    directory.copies_from = None
    moving.finish()
    directory.recycle(captured)


def test_a_new_directory_has_no_earlier_epoch() -> None:
    with Opened() as opened:
        assert looked_at(opened) == []
        assert settled(opened) == (0, 0)


def test_the_end_of_a_killed_epoch_is_final_once_it_was_read() -> None:
    opened = Opened()
    opened.fill_slot()
    opened.checkpoint()
    opened.append(b"behind the last flush")
    last = opened.ring.sequence
    with opened.dies() as following:
        assert [one.producer_id for one in looked_at(following)] == [opened.ring.producer_id]
        ((told, final),) = epochs(following).values()
        assert (told < last, final) == (True, False)
        entries = following.read()
        assert epochs(following) == {1: (last, True)}
        following.settle(entries[:5])
        assert settled_in(1, following.directory.settled_up_to(), last) == 0  # its one slot is not done
        following.settle(entries[5:])
        assert settled_in(1, following.directory.settled_up_to(), last) == last
        following.checkpoint()
        assert following.ring.live == []
        assert epochs(following) == {1: (last, True)}  # what was recycled since is known still


def test_an_epoch_of_which_all_was_recycled_ends_where_the_checkpoint_says() -> None:
    opened = Opened()
    opened.append(b"one", b"two", b"three")
    opened.settle(opened.read())
    opened.ring.leave()
    opened.read()
    assert opened.checkpoint() == 1
    with opened.dies() as following:
        assert following.ring.live == []
        assert epochs(following) == {1: (3, True)}
        assert settled_in(1, following.directory.settled_up_to(), 3) == 3


def test_an_epoch_without_records_ends_with_nothing_behind_one_that_has_some() -> None:
    opened = Opened()
    opened.append(b"one", b"two")
    with opened.dies() as second:
        second.checkpoint()
        with second.dies() as third:
            third.read()
            assert epochs(third) == {1: (2, True), 2: (0, True)}
            assert [one.producer_id for one in looked_at(third)] == [opened.ring.producer_id, second.ring.producer_id]


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_an_epoch_ends_with_what_is_left_of_it(seed: int) -> None:
    opened = Opened()
    opened.append(b"flushed", b"too")
    opened.directory.sync()
    opened.checkpoint()
    opened.append(*[b"not flushed" * 20] * 40)
    with opened.loses_power(seed) as following:
        left = [sequence for *_, sequence, _ in following.read()]
        ((last, final),) = epochs(following).values()
        gone = [number for one in following.ring.damage for number in range(one.first, one.last + 1)]
        assert final
        assert max(left, default=0) <= last <= 42
        assert sorted([*left, *gone]) == list(range(1, last + 1))


def test_what_damage_took_at_the_end_belongs_to_the_epoch() -> None:
    opened = Opened()
    opened.append(*[b"r%02d" % number * 14 for number in range(20)])
    opened.checkpoint()
    disk = opened.disk.after_death()
    disk.ring.damage(fmt.FIRST_FRAME + 12 * 64, b"\xee" * 8 * 64)
    with Opened(disk) as following:
        following.read()
        assert [(one.first, one.last) for one in following.ring.damage] == [(13, 20)]
        assert epochs(following) == {1: (20, True)}


def test_what_was_moved_is_not_settled_before_its_copies_are() -> None:
    with Opened() as opened:
        opened.fill_slot()
        opened.append(b"newest")
        entries = opened.read()
        opened.settle([*entries[:3], *entries[4:]])
        assert settled(opened) == (0, 0)
        move_the_oldest(opened)
        assert fmt.parts(opened.ring.watermark()) == (1, len(entries))
        assert settled(opened) == (1, 3)
        reader = Reader(opened.directory.retry, bytes)
        ((slot, place, _, _),) = read(reader)
        opened.directory.retry.settle(slot, [place])
        assert settled(opened) == (1, len(entries))


def test_copies_that_nobody_has_read_yet_may_be_of_anything() -> None:
    opened = Opened()
    opened.fill_slot()
    opened.append(b"newest")
    entries = opened.read()
    opened.settle([*entries[:3], *entries[4:]])
    move_the_oldest(opened)
    with opened.dies() as following:
        following.read()
        assert settled(following) == (0, 0)


def test_a_copy_that_a_crash_left_in_flight_is_not_settled_though_readers_pass_it() -> None:
    opened = Opened()
    opened.fill_slot()
    opened.append(b"newest")
    entries = opened.read()
    opened.settle([*entries[:3], *entries[5:]])
    move_the_oldest(opened)
    with opened.dies() as following:
        directory = following.directory
        directory.retry.claim(directory.retry.live[0], [FIRST_PLACE], [])
        ((_, _, position, _),) = test_stream.read(Stream(directory, bytes))
        assert fmt.parts(position) == (1, 5)
        assert directory.settled_up_to() < fmt.position(1, 4)


def test_what_is_suspect_is_not_settled_before_it_is_judged() -> None:
    opened = Opened()
    opened.append(b"one", b"two")
    opened.settle(opened.read())
    opened.directory.sync()
    with opened.loses_power(1) as following:
        assert settled(following) == (0, 0)


def test_ids_that_belong_to_no_record_are_named_by_their_reader_and_by_the_next_one() -> None:
    opened = Opened()
    opened.append(b"before")
    with pytest.raises(KeyboardInterrupt), storing_fails(KeyboardInterrupt()):
        opened.append(b"refused")
    opened.append(b"behind")
    opened.read()
    assert [fmt.parts(position) for position in opened.ring.take_skipped()] == [(1, 2)]
    assert opened.ring.take_skipped() == []
    with opened.dies() as following:
        following.read()
        assert [fmt.parts(position) for position in following.ring.take_skipped()] == [(1, 2)]
        other = Reader(following.ring, bytes, primary=False)
        read(other)
        assert following.ring.take_skipped() == []


def test_the_end_of_an_epoch_is_known_where_nothing_is_left_of_its_slots() -> None:
    opened = Opened()
    opened.append(b"one", b"two", b"three")
    opened.settle(opened.read())
    opened.ring.leave()
    opened.read()
    opened.checkpoint()
    disk = opened.disk.after_death()
    disk.ring.damage(0, bytes(SLOT))  # it may be cut off, too
    with Opened(disk) as following:
        assert epochs(following) == {1: (3, True)}


def test_slots_that_are_gone_at_the_end_of_an_older_epoch_belong_to_it() -> None:
    first = Opened()
    for _ in range(3):
        first.fill_slot()
    last = first.ring.sequence
    first.checkpoint()
    second = first.dies()
    second.append(b"of the second life")
    second.checkpoint()
    disk = second.disk.after_death()
    disk.ring.damage(SLOT, bytes(2 * SLOT))
    with Opened(disk) as third:
        third.read()
        assert sum(one.count for one in third.ring.damage) == last - last // 3
        assert epochs(third) == {1: (last, True), 2: (1, True)}


@pytest.mark.parametrize(("up_to", "settled"), [((2, 9), 0), ((3, 0), 0), ((3, 4), 4), ((3, 9), 7), ((4, 1), 7)])
def test_an_epoch_is_settled_as_far_as_a_position_and_its_end_say(up_to: tuple[int, int], settled: int) -> None:
    assert settled_in(3, fmt.position(*up_to), 7) == settled
