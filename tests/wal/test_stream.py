"""What waits in both rings is read as one, in the order of positions, whatever is moved meanwhile."""

from typing import Any, NoReturn

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.moving import Move, Rewrite
from aiorecover.wal.run import Placed, Run
from aiorecover.wal.stream import Stream
from aiorecover.wal.suffix import Word
from tests.wal.rig import Opened, Position, missing


class Life:
    """A directory whose first stream has read everything; every seventh record waits."""

    def __init__(self, opened: Opened | None = None, *, slots: int = 4) -> None:
        self.opened = opened or Opened()
        self.directory = self.opened.directory
        self.first = Stream(self.directory, bytes)
        for _ in range(slots if opened is None else 0):
            self.opened.fill_slot()
        self.placed = read(self.first)
        self.left = list(self.placed)
        if opened is None:
            done = [one for number, one in enumerate(self.placed) if number % 7]
            settle(done)
            self.left = [one for number, one in enumerate(self.placed) if number % 7 == 0]

    @property
    def waiting(self) -> list[int]:
        return [position for _, _, position, _ in self.left]

    def copy(self) -> Move:
        oldest = next(slot for slot in self.opened.ring.live if not slot.moved)
        move = Move(self.opened.ring, self.directory.retry, oldest)
        self.directory.copies_from = move.copies_from
        while not move.step(10):
            pass
        return move

    def make(self, move: Move) -> None:
        captured = self.directory.next_checkpoint(moved=move.slot.last_position)
        self.directory.write_checkpoint(captured)
        move.finish()
        self.directory.copies_from = None
        self.directory.recycle(captured)

    def move(self) -> None:
        self.make(self.copy())

    def copy_anew(self) -> Rewrite:
        rewriting = Rewrite(self.directory.retry)
        self.directory.copies_from = rewriting.copies_from
        while not rewriting.step(10):
            pass
        return rewriting

    def make_anew(self, rewriting: Rewrite) -> None:
        captured = self.directory.next_checkpoint(rewritten=rewriting.copies_from)
        self.directory.write_checkpoint(captured)
        rewriting.finish()
        self.directory.copies_from = None
        self.directory.recycle(captured)

    def dies(self) -> "Life":
        """The next process; what waits is what its first stream gives."""
        return Life(self.opened.dies())


def read(stream: Stream, limit: int = 10, most: int = 1 << 30) -> list[Placed]:
    """What it gives, at most so many."""
    found: list[Placed] = []
    while len(found) < most and (run := look(stream, limit)) is not None:
        found += [run.placed(number) for number in range(len(run))]
    return found


def look(stream: Stream, limit: int = 10) -> Run | None:
    """The next records; None: there are no more at the moment."""
    while (run := stream.look(limit)) is None and stream.moved:
        pass
    return run


def positions(placed: list[Placed]) -> list[int]:
    return [position for _, _, position, _ in placed]


def settle(placed: list[Placed]) -> None:
    for slot, place, _, _ in placed:
        slot.ring.settle(slot, [place])


def record(life: Life, position: int) -> bytes:
    return life.opened.accepted[fmt.parts(position)]


def test_an_opening_reads_the_copies_first_and_every_record_once_in_order() -> None:
    life = Life()
    life.move()
    life.move()
    following = life.dies()
    assert positions(following.placed) == life.waiting
    assert [payload for *_, payload in following.placed] == [record(life, position) for position in life.waiting]
    kinds = [slot.ring is following.directory.retry for slot, *_ in following.placed]
    assert kinds == sorted(kinds, reverse=True)
    assert len(set(kinds)) == 2
    assert following.first.found == following.directory.pending() == len(life.waiting)
    settle(following.placed)
    assert following.directory.pending() == 0
    assert following.dies().placed == []


def test_the_ids_of_copies_are_those_that_their_records_were_accepted_with() -> None:
    life = Life()
    life.move()
    stream = Stream(life.dies().directory, bytes)
    run = stream.look(5)
    assert run is not None
    assert run.slot.ring.holds_copies
    assert (run.epoch, run.id_prefix.split(b"/")[1]) == (1, b"1")
    assert list(run.sequences) == [position & fmt.SEQUENCE_MASK for position in life.waiting[:5]]


@pytest.mark.parametrize("error", [ValueError, RecursionError])
def test_a_record_that_cannot_be_decoded_is_given_wherever_it_stands(error: type[Exception]) -> None:
    life = Life()
    life.move()

    def refuse(_: memoryview) -> NoReturn:
        raise error("no record")

    placed = read(Stream(life.dies().directory, refuse))
    assert positions(placed) == life.waiting
    assert [repr(record) for *_, record in placed] == ["undecodable: no record"] * len(life.waiting)


@pytest.mark.parametrize("moves", [0, 1, 2, 3])
def test_who_goes_back_stands_before_its_record_wherever_that_is_now(moves: int) -> None:
    life = Life()
    for _ in range(moves):
        life.move()
    for number in range(0, len(life.left), 3):
        slot, place, position, _ = life.left[number]
        for near in (None, (slot, place)):
            other = life.first.back_to(position, near)
            assert positions(read(other)) == life.waiting[number:]
            other.close()
    assert life.directory.pending() == len(life.left)


def test_the_very_last_record_that_was_moved_is_found_in_its_copy() -> None:
    opened = Opened()
    opened.fill_slot()
    opened.append(b"f" * 500)
    life = Life(opened)
    life.move()
    last = opened.ring.moved_up_to
    assert last == life.waiting[-2]
    assert positions(read(life.first.back_to(last))) == life.waiting[-2:]


@pytest.mark.parametrize("limit", [1, 100])
def test_copies_that_were_settled_since_they_were_read_are_given_to_nobody(limit: int) -> None:
    """They stand in what is read at once."""
    life = Life()
    life.move()
    life.move()
    other = life.first.back_to(0)
    first = read(other, limit=1, most=1)
    another = life.first.back_to(0)
    done = read(another, limit=3, most=3)[1:]
    another.close()
    settle(done)
    expected = [position for position in life.waiting if position not in positions(done)]
    assert positions(first) + positions(read(other, limit)) == expected
    assert [slot.readers for slot in life.directory.retry.live] == [0], "it has left the copies"


@pytest.mark.parametrize("steps", [0, 1, 5, 40])
def test_what_is_moved_under_a_reader_is_given_once(steps: int) -> None:
    """Its slot is of an earlier epoch: once it is moved nothing in it counts any more."""
    life = Life(Life().dies().opened)
    other = life.first.back_to(life.waiting[0])
    given = positions(read(other, 1, steps))
    move = life.copy()
    given += positions(read(other, 1, 2))
    life.make(move)
    given += positions(read(other, 1))
    assert given == life.waiting
    other.close()
    life.opened.checkpoint()
    assert not any(slot.moved for slot in life.opened.ring.live), "nobody stands in it any more"


def test_who_stands_in_a_slot_that_was_moved_can_go_on_with_the_copies_at_once() -> None:
    """Until he does the slot stays, and all behind it."""
    life = Life()
    oldest, following, *_ = life.opened.ring.live
    other = life.first.back_to(life.waiting[0])
    given = read(other, limit=2, most=2)
    assert [other.stands_in(slot) for slot in (oldest, following)] == [True, False]
    assert not life.first.stands_in(oldest)
    other.leave_moved()
    assert other.stands_in(oldest), "it is not moved yet"
    life.move()
    life.opened.checkpoint()
    assert oldest in life.opened.ring.live
    other.leave_moved()
    assert not other.stands_in(oldest)
    life.opened.checkpoint()
    assert oldest not in life.opened.ring.live
    assert positions(given + read(other)) == life.waiting
    settle(given)
    assert life.directory.pending() == len(life.waiting) - len(given)


def test_who_has_read_the_copies_to_their_end_stands_in_the_main_ring_at_once() -> None:
    """Else what is moved before the next look would be passed."""
    life = Life()
    life.move()
    other = life.first.back_to(0)
    given: list[Placed] = []
    while not other.past_copies:
        run = other.look(1)
        given += [run.placed(0)] if run is not None else []
    assert life.opened.ring.live[0].readers == 1
    life.move()
    assert positions(given) + positions(read(other)) == life.waiting


@pytest.mark.parametrize("made", [True, False])
def test_copies_that_do_not_count_yet_are_not_read(made: bool) -> None:
    """Who reads the retry ring meanwhile goes on with the originals: the move may be given up."""
    life = Life()
    life.move()
    other = life.first.back_to(life.waiting[0])
    move = life.copy()
    given = read(other)
    assert positions(given) == life.waiting
    if made:
        life.make(move)
    else:
        move.abandon()
        life.directory.copies_from = None
    settle(given)
    assert life.opened.ring.failure is life.directory.retry.failure is None
    assert life.directory.pending() == 0
    assert life.dies().placed == []
    other.close()
    life.opened.checkpoint()
    assert len(life.opened.ring.live) == 1, "nobody stands in the others any more"


@pytest.mark.parametrize("made", [False, True])
def test_a_rewriting_gives_nobody_a_record_twice(made: bool) -> None:
    life = Life()
    life.move()
    life.move()
    other = life.first.back_to(life.waiting[0])
    given = positions(read(other, 3, 3))
    other_slot: Any = other._retry.slot
    assert other_slot.ring is life.directory.retry
    other_slot.readers -= 1  # as if it came when the copying had begun
    rewriting = life.copy_anew()
    other_slot.readers += 1
    if made:
        life.make_anew(rewriting)
    given += positions(read(other, 3))
    assert given == life.waiting


def test_the_records_of_a_rewritten_ring_are_found_again() -> None:
    life = Life()
    life.move()
    life.move()
    settle(life.left[::3])
    kept = [one for number, one in enumerate(life.left) if number % 3]
    life.make_anew(life.copy_anew())
    for number in range(0, len(kept), 2):
        other = life.first.back_to(kept[number][2])
        assert positions(read(other)) == positions(kept[number:])
        other.close()
    assert positions(life.dies().placed) == positions(kept)
    settle(kept)
    assert life.directory.pending() == 0


def test_a_move_that_was_given_up_leaves_nothing_behind() -> None:
    life = Life()
    move = life.copy()
    move.abandon()
    life.directory.copies_from = None
    assert life.directory.pending() == len(life.left)
    life.move()
    assert positions(read(life.first.back_to(life.waiting[0]))) == life.waiting
    for slot, place, position, _ in life.left:
        sequence = position & fmt.SEQUENCE_MASK
        assert not life.directory.is_settled(sequence, place), slot.header.ordinal


def test_it_is_known_of_each_record_that_was_moved_whether_it_is_settled() -> None:
    life = Life()
    life.move()
    life.move()
    done = life.left[1::2]
    settle(done)
    for one in life.placed:
        expected = one[2] not in life.waiting or one in done
        assert life.directory.is_settled(one[2] & fmt.SEQUENCE_MASK, one[1]) == expected
    life.make_anew(life.copy_anew())
    rest = read(life.first.back_to(0))
    settle(rest[:3])
    gone = positions(done) + positions(rest[:3])
    for one in life.left:
        assert life.directory.is_settled(one[2] & fmt.SEQUENCE_MASK, one[1]) == (one[2] in gone)


@pytest.mark.parametrize("all_settled", [False, True])
def test_after_the_end_a_moved_record_counts_as_settled_only_if_all_are(all_settled: bool) -> None:
    life = Life()
    life.move()
    if all_settled:
        settle(life.left)
    life.directory.close()
    assert life.directory.is_settled(1, life.placed[0][1]) == all_settled


def test_what_is_in_flight_already_is_passed_in_its_copy_too() -> None:
    """A gap may cover it, by the partitions of today."""
    life = Life(Life().dies().opened)
    following = life.opened.dies()
    opened = Life(following)
    slot, place, position, _ = opened.left[0]
    slot.claimed.add(place)
    opened.move()
    assert positions(read(opened.first.back_to(0))) == [one for one in opened.waiting if one != position]


def test_the_first_one_stands_behind_everything_once_it_has_read_all() -> None:
    life = Life(slots=1)
    life.opened.append(b"in a slot of its own")
    life.opened.ring.go_on()
    read(life.first)
    life.move()
    assert life.first.at > life.opened.ring.moved_up_to
    following = life.dies()
    assert following.first.past_copies
    assert following.first.at > following.opened.ring.moved_up_to


def test_so_it_does_where_the_main_ring_has_nothing_left() -> None:
    """What was moved may have been settled in part: its last position stands behind the last copy."""
    life = Life(slots=1)
    life.opened.ring.go_on()
    life.move()
    settle(life.left[-1:])
    second = life.dies()
    second.opened.checkpoint()
    third = second.dies()
    assert third.opened.ring.live == []
    assert third.waiting == life.waiting[:-1]
    assert third.first.at > third.opened.ring.moved_up_to


def test_damage_behind_which_nothing_stands_is_missed_by_who_comes_to_it() -> None:
    life = Life()
    ((_, sequence),) = life.opened.append(b"the last one, and nothing comes behind it")
    read(life.first)
    current = life.opened.ring.live[-1]
    life.opened.disk.ring.damage(current.file_offset + current.tail - 9, b"rot")
    for _ in range(2):
        other = life.first.back_to(life.waiting[0])
        assert positions(read(other)) == life.waiting
        assert missing(life.opened.ring) == [(1, sequence)]
    life.opened.append(b"it did")
    assert len(read(life.first)) == 1
    assert life.opened.ring.losses.missing == 1


def test_damage_at_the_end_of_the_copies_is_missed_by_who_goes_on_to_the_main_ring() -> None:
    life = Life()
    life.move()
    retry = life.directory.retry
    life.opened.disk.retry.damage(retry.live[-1].file_offset + retry.live[-1].tail - 9, b"rot")
    moved = [position for position in life.waiting if position <= life.opened.ring.moved_up_to]
    for _ in range(2):
        other = life.first.back_to(life.waiting[0])
        assert positions(read(other)) == [position for position in life.waiting if position != moved[-1]]
        assert retry.losses.missing == 1
    life.move()
    assert positions(read(life.first.back_to(life.waiting[0])))[-3:] == life.waiting[-3:]
    assert retry.losses.missing == 1
    assert life.opened.ring.losses.missing == 0


@pytest.mark.parametrize("first", [True, False])
def test_after_a_power_cut_settled_records_are_given_too_with_what_their_words_say(first: bool) -> None:
    life = Life()
    life.move()
    life.move()
    oldest = life.opened.ring.live[0].first_position
    expected = [position for position in positions(life.placed) if position in life.waiting or position >= oldest]
    done, life.left = life.left[:4], life.left[4:]
    settle(done)
    life.opened.ring.sync()
    life.directory.retry.sync()
    directory = life.opened.loses_power(1).directory
    stream = Stream(directory, bytes)
    if not first:
        read(stream)
        stream = stream.back_to(0)
    said: dict[int, Any] = {}
    for run in iter(lambda: look(stream), None):
        assert run.words is not None
        said |= {run.position(number): word for number, word in enumerate(run.words)}
    assert list(said) == expected
    assert [position for position, word in said.items() if word is Word.WAITING] == life.waiting


def test_who_stood_nowhere_goes_on_with_what_comes_and_keeps_no_slot() -> None:
    before = Life(slots=1)
    settle(before.left)
    life = before.dies()
    life.opened.checkpoint()
    assert life.opened.ring.live == []
    other = life.first.back_to(before.placed[0][2])
    assert other.look(10) is None
    assert not other.moved
    places = life.opened.append(b"one", b"two")
    assert positions(read(other)) == [fmt.position(*place) for place in places]
    other.close()
    settle(read(life.first))
    life.opened.ring.go_on()
    read(life.first)
    assert life.opened.checkpoint() == 1


@pytest.mark.parametrize("slot", range(4))
@pytest.mark.parametrize("at", [0, -1])
def test_who_goes_back_to_the_main_ring_has_records_with_the_first_look(slot: int, at: int) -> None:
    opened = Opened()
    for _ in range(4):
        opened.fill_slot()
    life = Life(opened)
    one = [one for one in life.placed if one[0] is opened.ring.live[slot]][at]
    for near, limit in ((None, 100), (one[:2], 1)):
        run = life.first.back_to(one[2], near).look(limit)
        assert run is not None
        assert run.placed(0) == one


def test_what_was_read_of_several_openings_at_once_is_given_one_opening_after_the_other() -> None:
    life = Life(Life(slots=1).dies().opened)
    life.opened.append(b"of the next opening", b"of the next opening, too")
    life.opened.ring.go_on()
    life.left += read(life.first)
    life.move()
    life.move()
    for passes in (True, False):
        stream = Stream(life.dies().directory, bytes) if passes else life.first.back_to(0)
        given = stream.look(1000)
        assert given is not None
        (rest,) = stream.left
        assert [given.position(number) for number in range(len(given))] == life.waiting[:-2]
        assert stream.at == rest.position(0) == life.waiting[-2]
        assert not stream.has_passed(stream.at)
        assert stream.has_passed(life.waiting[-3])
        stream.close()
        assert not stream.left
        assert rest.slot.readers == 0


def test_who_answers_for_suspect_records_has_exactly_those_counted_that_are_delivered() -> None:
    life = Life()
    life.move()
    settle(life.left[:2])
    life.opened.ring.sync()
    life.directory.retry.sync()
    directory = life.opened.loses_power(1).directory
    stream = Stream(directory, bytes)
    left: list[Placed] = []
    for run in iter(lambda: look(stream), None):
        assert run.words is not None
        for number, word in enumerate(run.words):
            if word is Word.SETTLED and number:
                stream.dismiss(run.slot, 1)
                continue
            if word is Word.SETTLED:
                stream.reopen(run.slot, [run.places[number]])
            assert run.slot.waits(run.places[number])
            left.append(run.placed(number))
    assert stream.found == directory.pending() == len(left) > len(life.left[2:])
    settle(left)
    assert directory.pending() == 0
    stream.count(3)
    assert stream.found == len(left) + 3


def test_it_stands_behind_settled_records_that_it_has_passed() -> None:
    before = Life(slots=1)
    settle(before.left)
    after = before.dies()
    assert after.placed == []
    assert after.first.at > positions(before.placed)[-1]


def test_what_it_will_not_give_any_more_is_told_wherever_it_stands() -> None:
    before = Life()
    before.move()
    moved = before.opened.ring.moved_up_to
    second = before.opened.ring.live[0].last_position
    copies = [one for one in before.left if one[2] <= moved]
    settle([one for one in before.left if moved < one[2] <= second])
    before.opened.checkpoint()
    directory = before.opened.dies().directory
    stream = Stream(directory, bytes)
    last = positions(before.placed)[-1]
    assert [stream.has_passed(position) for position in (1, moved, second, last)] == [False, False, True, False]
    settle(read(stream, limit=1, most=len(copies)))
    assert [stream.has_passed(copy) for _, _, copy, _ in copies] == [True] * len(copies)
    assert stream.look(1) is None
    assert stream.past_copies
    assert stream.at == moved + 1
    settle(read(stream))
    assert stream.has_passed(last)
    directory.write_checkpoint(directory.next_checkpoint())
    directory.recycle(directory.checkpoint)
    assert stream.back_to(1).has_passed(1), "nothing is left of it"


def test_positions_are_told_in_every_state() -> None:
    opened = Opened()
    stream = Stream(opened.directory, bytes)
    assert (stream.at, stream.past_copies) == (0, False)
    assert read(stream) == []
    assert stream.past_copies
    places: list[Position] = opened.append(b"one", b"two")
    assert stream.has_more
    assert positions(read(stream)) == [fmt.position(*place) for place in places]
    assert stream.at == fmt.position(places[-1][0], places[-1][1] + 1)
    assert not stream.has_more
