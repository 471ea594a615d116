"""Who looks at the letters of one moment meets each once, whichever are replaced while he looks, and none that came."""

import random

import pytest

from aiorecover.delivery.moment import Moment


class Shelf:
    """A dead ring beside a walk through it: letters by name, their places, and what the walk has met."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.places: dict[str, int] = {}
        self.newest = 0
        self.stored: tuple[str, int] | None = None  # the place that a letter will have, and nobody sees yet
        self.met: list[str] = []

    def append(self) -> int:
        self.newest += self.random.randint(1, 3)
        return self.newest

    def come(self, name: str) -> None:
        self.places[name] = self.append()

    def store(self) -> None:
        if self.stored is None and self.places:
            self.stored = self.random.choice(sorted(self.places)), self.append()

    def swap(self, *moments: Moment) -> None:
        if self.stored is None:
            return
        (name, new), self.stored = self.stored, None
        if name in self.places:
            old, self.places[name] = self.places[name], new
            for moment in moments:
                moment.replaced(old, new)

    def remove(self, name: str) -> None:
        del self.places[name]

    def step(self, moment: Moment, at: int) -> int:
        """Look at the next place; where it is."""
        seen = moment.passes(at + 1)
        for name, place in self.places.items():
            if place == at + 1 and seen:
                self.met.append(name)
        return at + 1


@pytest.mark.parametrize("seed", range(400))
def test_each_letter_of_the_moment_is_met_once_whatever_is_replaced_meanwhile(seed: int) -> None:
    shelf = Shelf(seed)
    for number in range(shelf.random.randint(1, 6)):
        shelf.come(f"there{number}")
    if shelf.random.random() < 0.5:
        shelf.store()
    there, moment, at, came = sorted(shelf.places), Moment(shelf.newest), 0, 0
    while at < min(moment.end, shelf.newest):
        do = shelf.random.randrange(5)
        if do == 0:
            shelf.store()
        elif do == 1:
            shelf.swap(moment)
        elif do == 2 and came < 5:
            came += 1
            shelf.come(f"came{came}")
        else:
            at = shelf.step(moment, at)
    assert sorted(shelf.met) == there


@pytest.mark.parametrize("seed", range(200))
def test_the_same_letters_are_met_by_who_looks_again_later(seed: int) -> None:
    shelf = Shelf(seed)
    for number in range(shelf.random.randint(1, 6)):
        shelf.come(f"there{number}")
    there, moment = sorted(shelf.places), Moment(shelf.newest)
    gone = shelf.random.choice(there)
    for number in range(10):
        shelf.store()
        if shelf.random.random() < 0.3:
            shelf.come(f"came{number}")
        if number == 5:
            shelf.remove(gone)
        shelf.swap(moment)
    for _ in range(2):
        walk, at, shelf.met = moment.again(), 0, []
        while at < walk.end:
            at = shelf.step(walk, at)
        assert sorted(shelf.met) == [name for name in there if name != gone]


def test_nothing_is_kept_of_letters_that_came_later_or_were_passed() -> None:
    moment = Moment(10)
    for place in range(1, 6):
        moment.passes(place)
    for number in range(1000):
        moment.replaced(3, 11 + number)
        moment.replaced(11 + number, 5000 + number)
    assert moment.end == 10
    assert not moment._behind
    assert not moment._again
