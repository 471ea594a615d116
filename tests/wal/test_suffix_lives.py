"""The lane suffix rule over every life of a small lane: moves, watermarks, deaths, and power cuts behind one another.

A lane of a few records is searched through: each is appended, delivered, settled, moved to the retry ring; checkpoints
make words durable and cover what is settled, of either ring; the process dies; the power goes and takes any of the
words with it that no checkpoint had made durable. Whenever nothing waits, Kafka's newest value must stand last.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

import pytest

from aiorecover.wal.suffix import SuffixRule, Suspicion, Unfinished, Word

V = TypeVar("V")

LANE = "orders/0"
EVERYTHING = 1 << 63

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
    order: tuple[int, ...] = ()  # what this life has to deliver, in order
    delivered: int = 0  # so many of these …
    settled: int = 0  # … and so many of those
    kafka: tuple[int, ...] = ()  # by their last appearance

    @property
    def is_bad(self) -> bool:
        """Nothing waits, and an older value stands behind a newer one, or one is not there."""
        return self.settled == len(self.order) and self.kafka != tuple(range(len(self.stored)))


def openings(lane: Lane, new_rule: Callable[[], SuffixRule]) -> Iterator[Lane]:
    """The next life begins; it may have looked what stands at the end of Kafka's log, as far back as it could."""
    for back in range(len(lane.kafka) + 1 if lane.generation else 1):
        there: list[int] = []
        for number in lane.kafka[len(lane.kafka) - back :]:
            there = [*(other for other in there if other < number), number]
        yield opened(lane, new_rule(), there)


def opened(lane: Lane, rule: SuffixRule, there: Collection[int]) -> Lane:
    suspect = Suspicion(EVERYTHING, lane.generation, since=1)
    words, order = list(lane.words), []
    for number, word in enumerate(lane.words):
        if lane.covered[number]:
            continue
        trusted = Word.WAITING if word is None else Word.SETTLED
        said = suspect.word(lane.stored[number], word) if lane.generation and word is not None else trusted
        if rule.needed(LANE, said, there=number in there):
            words[number] = None  # it waits, whatever its word said
            order.append(number)
        elif number in there and (said is Word.WAITING or rule.counts_anew(LANE, said)):
            words[number] = lane.generation
    return replace(lane, words=tuple(words), order=tuple(order), delivered=0, settled=0)


def following(lane: Lane, frames: int, cuts: int, new_rule: Callable[[], SuffixRule]) -> Iterator[Lane]:
    """Every next step of a lane of at most so many frames, and so many power cuts."""
    yield from delivering(lane, frames)
    yield from checkpoints(lane)
    yield from openings(lane, new_rule)  # the process dies
    if lane.generation < cuts:
        for words in product(*({*both} for both in zip(lane.words, lane.durable, strict=True))):
            left = replace(lane, generation=lane.generation + 1, words=words, durable=words)
            yield from openings(left, new_rule)


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
            order=(*lane.order, len(lane.stored)),
        )


def checkpoints(lane: Lane) -> Iterator[Lane]:
    """Words are flushed; watermarks go on in any ring; the oldest frame is moved; what was moved is rewritten."""
    yield replace(lane, durable=lane.words)
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
    waiting = min((number for number in lane.order[lane.settled :] if lane.moved[number] is moved), default=1 << 31)
    return tuple(gone or (lane.moved[number] is moved and number < waiting) for number, gone in enumerate(lane.covered))


def with_one(values: tuple[V, ...], at: int, value: V) -> tuple[V, ...]:
    return (*values[:at], value, *values[at + 1 :])


def bad_lives(frames: int, cuts: int, new_rule: Callable[[], SuffixRule] = SuffixRule) -> tuple[int, list[Lane]]:
    """How many lanes there are, and the way to the first bad one."""
    came: dict[Lane, Lane | None] = {Lane(): None}
    for lane in (begun := [Lane()]):  # which grows
        for then in following(lane, frames, cuts, new_rule):
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


@pytest.mark.parametrize(("frames", "cuts", "least"), [(2, 3, 5_000), (3, 2, 30_000)])
def test_in_whatever_life_of_a_lane_the_newest_value_stands_last(frames: int, cuts: int, least: int) -> None:
    lives, bad = bad_lives(frames, cuts)
    assert bad == []
    assert lives > least


class OnceMore(SuffixRule):
    """What was done again in an unfinished generation is done once more, whatever came behind it."""

    def needed(self, lane: object, word: Word | Unfinished, *, there: bool = False) -> bool:
        again = isinstance(word, Unfinished) and word.again
        return super().needed(lane, Word.WAITING if again else believed(word), there=there)


def believed(word: Word | Unfinished) -> Word:
    return word if isinstance(word, Word) else Word.SETTLED


class WhateverOrder(SuffixRule):
    """Marks of unfinished generations may fall, too."""

    def _goes_on(self, lane: object, word: Unfinished) -> bool:
        self._redone.pop(lane, None)
        return super()._goes_on(lane, word)


class Believing(SuffixRule):
    """What was done again in an unfinished generation was as good as settled."""

    def needed(self, lane: object, word: Word | Unfinished, *, there: bool = False) -> bool:
        return super().needed(lane, believed(word), there=there)


@pytest.mark.parametrize("rule", [OnceMore, WhateverOrder, Believing])
def test_with_another_rule_an_old_value_can_stand_last(rule: type[SuffixRule]) -> None:
    assert bad_lives(2, 3, rule)[1] != []


def test_each_unfinished_generation_goes_on_where_the_one_before_had_stopped() -> None:
    rule = SuffixRule()
    words: list[Word | Unfinished] = [Word.SETTLED]
    words += [Unfinished(3, again=True), Unfinished(4, again=True), Unfinished(4, again=False)]
    assert [rule.needed(LANE, word) for word in words] == [False] * 4
    assert rule.needed(LANE, Word.SETTLED)
    assert rule.needed(LANE, Unfinished(4, again=True))
    assert not rule.needed(LANE, Word.AGAIN)
