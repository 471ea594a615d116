"""The lane suffix rule over every life of a small lane: moves, watermarks, deaths, and power cuts behind one another.

A lane of a few records is searched through: each is appended, read and judged, delivered, settled, moved to the retry
ring; checkpoints make words durable and, once all is judged, cover what is settled, of either ring; the process dies;
the power goes and takes any of the words with it that no checkpoint had made durable. Whenever nothing waits, Kafka's
newest value must stand last.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

import pytest

from aiorecover.wal.suffix import SuffixRule, Suspicion, Unfinished, Word
from tests.protocols.faults import Fault, unfinished_generations_again, unfinished_generations_trusted

V = TypeVar("V")

LANE = "orders/0"
EVERYTHING = 1 << 63
HELD = True  # watermarks stay until all is judged

Words = tuple[int | None, ...]
"""Of each frame the generation in which it was settled, or None."""


@dataclass(frozen=True)
class Lane:
    """Where its frames stand, what their words say, and what Kafka has."""

    generation: int = 0
    stored: tuple[int, ...] = ()  # in which generation: of a moved record its copy
    moved: tuple[bool, ...] = ()  # to the retry ring
    covered: tuple[bool, ...] = ()  # by a watermark: nobody reads it any more
    words: Words = ()
    durable: Words = ()
    found: Words = ()  # what the words said when this life began
    there: tuple[int, ...] = ()  # what it has found at the end of Kafka's log
    judged: int = 0  # so many of those that it has found
    order: tuple[int, ...] = ()  # what it has to deliver, in order
    delivered: int = 0  # so many of these …
    settled: int = 0  # … and so many of those
    kafka: tuple[int, ...] = ()  # by their last appearance

    @property
    def is_bad(self) -> bool:
        """Nothing waits, and an older value stands behind a newer one, or one is not there."""
        return self.is_judged and self.settled == len(self.order) and self.kafka != tuple(range(len(self.stored)))

    @property
    def is_judged(self) -> bool:
        """All that is suspect."""
        return self.judged == len(self.found)


def openings(lane: Lane) -> Iterator[Lane]:
    """The next life begins; it may have looked what stands at the end of Kafka's log, as far back as it could."""
    for back in range(len(lane.kafka) + 1 if lane.generation else 1):
        there: list[int] = []
        for number in lane.kafka[len(lane.kafka) - back :]:
            there = [*(other for other in there if other < number), number]
        begun = replace(lane, found=lane.words, there=tuple(there), judged=0, order=(), delivered=0, settled=0)
        yield begun if lane.generation or not begun.found else trusted(begun)


def trusted(lane: Lane) -> Lane:
    """Before the first power cut words say what is so."""
    order = tuple(number for number, word in enumerate(lane.words) if word is None)
    return replace(lane, judged=len(lane.found), order=order)


def judged(lane: Lane) -> Lane:
    """The next frame is read."""
    rule = SuffixRule()
    suspect, number, needed = Suspicion(EVERYTHING, lane.generation, since=1), lane.judged, False
    said: Word | Unfinished = Word.WAITING
    for other, word in enumerate(lane.found[: number + 1]):
        if not lane.covered[other]:
            said = Word.WAITING if word is None else suspect.word(lane.stored[other], word)
            needed = rule.needed(LANE, said, there=other in lane.there)
    after = replace(lane, judged=number + 1)
    settles = number in lane.there and (said is Word.WAITING or rule.counts_anew(LANE, said))
    if lane.covered[number]:
        pass
    elif needed:
        after = replace(after, words=with_one(lane.words, number, None), order=(*lane.order, number))
    elif settles:
        after = replace(after, words=with_one(lane.words, number, lane.generation))
    new = tuple(range(len(lane.found), len(lane.stored))) if after.is_judged else ()
    return replace(after, order=(*after.order, *new))


def following(lane: Lane, frames: int, cuts: int) -> Iterator[Lane]:
    """Every next step of a lane of at most so many frames, and so many power cuts."""
    yield from delivering(lane, frames)
    yield replace(lane, durable=lane.words)
    if lane.is_judged or not HELD:
        yield from checkpoints(lane)
    yield from openings(lane)  # the process dies
    if not lane.is_judged:
        yield judged(lane)
    if lane.generation < cuts:
        for words in product(*({*both} for both in zip(lane.words, lane.durable, strict=True))):
            left = replace(lane, generation=lane.generation + 1, words=words, durable=words)
            yield from openings(left)


def delivering(lane: Lane, frames: int) -> Iterator[Lane]:
    if lane.delivered < len(lane.order):
        number = lane.order[lane.delivered]
        others = tuple(other for other in lane.kafka if other != number)
        yield replace(lane, delivered=lane.delivered + 1, kafka=(*others, number))
    if lane.settled < lane.delivered:
        words = with_one(lane.words, lane.order[lane.settled], lane.generation)
        yield replace(lane, settled=lane.settled + 1, words=words)
    if len(lane.stored) < frames:
        yield replace(
            lane,
            stored=(*lane.stored, lane.generation),
            moved=(*lane.moved, False),
            covered=(*lane.covered, False),
            words=(*lane.words, None),
            durable=(*lane.durable, None),
            order=(*lane.order, len(lane.stored)) if lane.is_judged else lane.order,
        )


def checkpoints(lane: Lane) -> Iterator[Lane]:
    """Words are flushed; watermarks go on in any ring; the oldest frame is moved; what was moved is rewritten."""
    main, retry = (covered_in(lane, moved=moved) for moved in (False, True))
    both = tuple(map(max, main, retry))
    for covered in (main, retry, both):
        yield replace(lane, durable=lane.words, covered=covered)
    oldest = next((number for number, gone in enumerate(main) if not gone and not lane.moved[number]), None)
    if oldest is not None:
        moved = with_one(lane.moved, oldest, True)
        stored = with_one(lane.stored, oldest, lane.generation)
        yield replace(lane, durable=lane.words, covered=main, moved=moved, stored=stored)
    waiting = set(lane.order[lane.settled :])
    again = [number for number, moved in enumerate(lane.moved) if moved and number in waiting]
    if again:
        done = tuple(gone or (lane.moved[number] and number not in waiting) for number, gone in enumerate(lane.covered))
        stored = tuple(lane.generation if number in again else before for number, before in enumerate(lane.stored))
        yield replace(lane, durable=lane.words, covered=done, stored=stored)


def covered_in(lane: Lane, *, moved: bool) -> tuple[bool, ...]:
    """What a watermark of this ring covers, or had covered: all up to the first that waits."""
    unread = range(lane.judged, len(lane.stored)) if not lane.is_judged else ()
    open_ = [number for number in (*lane.order[lane.settled :], *unread) if lane.moved[number] is moved]
    waiting = min(open_, default=1 << 31)
    return tuple(gone or (lane.moved[number] is moved and number < waiting) for number, gone in enumerate(lane.covered))


def with_one(values: tuple[V, ...], at: int, value: V) -> tuple[V, ...]:
    return (*values[:at], value, *values[at + 1 :])


def bad_lives(frames: int, cuts: int) -> tuple[int, list[Lane]]:
    """How many lanes there are, and the way to the first bad one."""
    came: dict[Lane, Lane | None] = {Lane(): None}
    for lane in (begun := [Lane()]):  # which grows
        for then in following(lane, frames, cuts):
            if then in came:
                continue
            came[then] = lane
            begun.append(then)
            if then.is_bad:
                return len(came), way_to(then, came)
    return len(came), []


def way_to(lane: Lane, came: dict[Lane, Lane | None]) -> list[Lane]:
    way, before = [lane], came[lane]
    while before is not None:
        way.append(before)
        before = came[before]
    return way[::-1]


@pytest.mark.parametrize(("frames", "cuts", "least"), [(2, 3, 10_000), (3, 1, 10_000)])
def test_in_whatever_life_of_a_lane_the_newest_value_stands_last(frames: int, cuts: int, least: int) -> None:
    lives, bad = bad_lives(frames, cuts)
    assert bad == []
    assert lives > least


def marks_that_fall_go_on(patch: pytest.MonkeyPatch) -> None:
    """Of whatever unfinished generation the next mark is."""
    goes_on = SuffixRule._goes_on

    def whatever(self: SuffixRule, lane: object, word: Unfinished) -> bool:
        self._redone.pop(lane, None)
        return goes_on(self, lane, word)

    patch.setattr(SuffixRule, "_goes_on", whatever)


@pytest.mark.parametrize("fault", [unfinished_generations_again, marks_that_fall_go_on, unfinished_generations_trusted])
def test_with_another_rule_an_old_value_can_stand_last(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert bad_lives(2, 3)[1] != []


def test_when_something_is_covered_before_all_is_judged_an_old_value_can_stand_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "HELD", False)
    assert bad_lives(2, 1)[1] != []


def test_each_unfinished_generation_goes_on_where_the_one_before_had_stopped() -> None:
    rule = SuffixRule()
    words: list[Word | Unfinished] = [Word.SETTLED]
    words += [Unfinished(3, again=True), Unfinished(4, again=True), Unfinished(4, again=False)]
    assert [rule.needed(LANE, word) for word in words] == [False] * 4
    assert rule.needed(LANE, Word.SETTLED)
    assert rule.needed(LANE, Unfinished(4, again=True))
    assert not rule.needed(LANE, Word.AGAIN)
