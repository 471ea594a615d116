"""Where the copies of a slot's frames stand."""

from array import array
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.wal.copied import Copied

FIRST: Any = "a slot"
SECOND: Any = "the slot behind it"


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=40), st.data())
def test_each_frame_has_one_copy_until_that_is_settled(steps: list[tuple[int, bool]], data: st.DataObject) -> None:
    copied, known, place = Copied(), dict[int, tuple[Any, int]](), 0
    for step, second in steps:
        place += step
        known[place] = (SECOND if second and place > 40 else FIRST, 1000 + place)
        copied.add(place, *known[place])
    for gone in data.draw(st.lists(st.sampled_from(sorted(known)), unique=True)) if known else []:
        assert copied.take(gone) == known.pop(gone)
        assert copied.take(gone) is None
    assert list(copied) == sorted(known)
    assert len(copied) == len(known)
    for number in range(1, place + 2):
        assert (number in copied) is (number in known)
        if number in known:
            assert copied[number] == known[number]
        else:
            with pytest.raises(KeyError):
                copied[number]


def test_the_slots_that_have_copies_are_named_once_each_and_in_order() -> None:
    copied = Copied()
    assert list(copied.homes) == []
    for place, home in ((5, FIRST), (7, FIRST), (9, SECOND)):
        copied.add(place, home, place + 100)
    assert list(copied.homes) == [FIRST, SECOND]


def test_the_newest_is_dropped_first_whether_it_waits_or_not() -> None:
    copied = Copied()
    for place, home in ((5, FIRST), (7, FIRST), (9, SECOND), (11, SECOND)):
        copied.add(place, home, place + 100)
    copied.take(9)
    found = []
    while (last := copied.last) is not None:
        found.append((*last, len(copied), copied.last_waits))
        copied.drop_last()
    assert found == [(SECOND, 111, 3, True), (SECOND, 109, 2, False), (FIRST, 107, 2, True), (FIRST, 105, 1, True)]
    assert not copied
    assert not copied.last_waits
    copied.add(3, SECOND, 1)
    assert copied[3] == (SECOND, 1)


class Full(array):  # type: ignore[type-arg]
    """There is no memory for one more."""

    def __iadd__(self, _: Any) -> Any:  # type: ignore[misc]
        raise MemoryError


@pytest.mark.parametrize(("name", "kind"), [("_places", "I"), ("_there", "i")])
def test_a_copy_without_memory_for_it_is_not_added_and_may_be_later(name: str, kind: str) -> None:
    copied = Copied()
    copied.add(5, FIRST, 105)
    before = getattr(copied, name)
    setattr(copied, name, Full(kind, before))
    with pytest.raises(MemoryError):
        copied.add(7, SECOND, 107)
    setattr(copied, name, array(kind, getattr(copied, name)))
    assert (list(copied), len(copied), copied.last) == ([5], 1, (FIRST, 105))
    copied.add(7, SECOND, 107)
    copied.add(9, SECOND, 109)
    assert [copied[place] for place in copied] == [(FIRST, 105), (SECOND, 107), (SECOND, 109)]


class Most(int):
    """There is no memory for a larger number."""

    def __add__(self, _: int) -> NoReturn:
        raise MemoryError


def test_a_copy_without_memory_for_their_number_is_not_added_and_may_be_later() -> None:
    copied = Copied()
    copied.add(5, FIRST, 105)
    copied._waiting = Most(1)
    with pytest.raises(MemoryError):
        copied.add(7, SECOND, 107)
    copied._waiting = 1
    assert copied.last == (FIRST, 105)
    copied.add(9, SECOND, 109)
    assert [copied[place] for place in copied] == [(FIRST, 105), (SECOND, 109)]
