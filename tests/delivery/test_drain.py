"""Who of the second readers has a turn; what they find is the matter of `test_stalled`."""

import itertools

import pytest

from aiorecover.delivery.behind import Behind
from aiorecover.delivery.drain import MOST, TURNS, Drain, GoingBack
from aiorecover.record import TOPIC
from aiorecover.wal.run import Run
from aiorecover.wal.stream import Stream
from tests.wal.rig import Opened
from tests.wal.test_moving import make, move


class Turns(Drain):
    """Readers who find room, or do not."""

    def __init__(self, first: Stream, *, with_room: set[int]) -> None:
        super().__init__(first, at=lambda: 0, can_take=lambda _: True, dispatch=lambda *_: 0)
        self.asked: list[int] = []
        self._with_room = with_room
        self._names: dict[int, int] = {}
        for name in range(MOST):
            going = object.__new__(GoingBack)
            self._names[id(going)] = name
            self._under_way.append(going)

    def _turn(self, going: GoingBack) -> bool:
        name = self._names[id(going)]
        self.asked.append(name)
        return name in self._with_room


@pytest.mark.parametrize("with_room", [{2, 3}, {3}, {0}, {1, 2}])
def test_a_reader_with_room_has_its_turn_however_many_before_it_have_none(with_room: set[int]) -> None:
    drain = Turns(Stream(Opened().directory, bytes), with_room=with_room)
    assert drain.step()
    assert with_room & set(drain.asked)
    assert len([name for name in drain.asked if name in with_room]) == TURNS


def test_without_room_each_is_asked_once_and_all_rest() -> None:
    drain = Turns(Stream(Opened().directory, bytes), with_room=set())
    assert not drain.step()
    assert drain.no_room
    assert sorted(drain.asked) == list(range(MOST))


def test_what_comes_back_as_it_was_is_not_gone_back_for_before_something_has_changed() -> None:
    opened = Opened()
    drain: Drain

    def falls_behind_again(run: Run, going: GoingBack) -> int:
        for number, record in enumerate(run.records):
            for gap in going.gaps.covering(record[TOPIC], None, None, run.position(number)):
                drain.add(gap.again(run.placed(number)))
        return len(run)

    stream = Stream(opened.directory, lambda payload: (payload.tobytes().decode(), None, None, None))
    for topic in (b"t", b"u"):  # two: neither is a change for the other
        opened.ring.append(topic, None)
    entries = [entry for _ in range(4) if (run := stream.look(1)) is not None for entry in [run.placed(0)]]
    drain = Drain(stream, at=lambda: stream.at, can_take=lambda _: True, dispatch=falls_behind_again)
    for _ in range(2):
        for entry in reversed(entries):  # a reader for each: the later one is under way already
            drain.add(Behind(entry[3][TOPIC], None, entry))
            drain.start()
        assert drain
        turns = itertools.count()
        while drain and next(turns) < 100:
            drain.step()
        assert next(turns) < 10
        assert len(drain.gaps) == 2


def test_what_fails_on_the_way_back_is_tried_again_with_nothing_skipped() -> None:
    opened = Opened()
    given: list[list[bytes]] = []

    def dispatch(run: Run, going: GoingBack) -> int:
        given.append([record[1] for record in run.records])
        if len(given) == 1:
            raise RuntimeError("not today")
        return len(run)

    stream = Stream(opened.directory, lambda payload: ("t", bytes(payload), None, None))
    for number in range(3):
        opened.ring.append(b"%d" % number, None)
    while (run := stream.look(10)) is None:
        assert stream.moved
    drain = Drain(stream, at=lambda: stream.at, can_take=lambda _: True, dispatch=dispatch)
    drain.add(Behind("t", None, (*run.placed(0)[:3], ("t", b"0", None, None))))
    drain.start()
    with pytest.raises(RuntimeError):
        drain.step()
    while drain:
        drain.step()
    assert given == [[b"0", b"1", b"2"]] * 2


def test_who_is_on_the_way_leaves_a_slot_that_was_moved_though_there_is_no_room_for_what_he_read() -> None:
    opened = Opened()
    stream = Stream(opened.directory, lambda payload: ("t", bytes(payload), None, None))
    for _ in range(2):
        opened.fill_slot()
    first, last = opened.ring.live
    run = stream.look(10)
    while run is None:
        run = stream.look(10)
    start = run.placed(0)
    while stream.look(10) is not None or stream.moved:
        pass
    drain = Drain(stream, at=lambda: stream.at, can_take=lambda _: True, dispatch=lambda *_: 0)
    drain.add(Behind("t", None, start))
    drain.start()
    assert not drain.step()
    assert [drain.count_in(slot) for slot in (first, last)] == [1, 0]
    make(opened, move(opened))
    assert first in opened.ring.live
    drain.leave_moved()
    assert drain.count_in(first) == first.readers == 0
    assert [run.slot for run in drain.held] == [first]
