"""The lane suffix rule against every loss of settle words and two deaths; more power cuts: `test_suffix_lives`."""

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.suffix import SuffixRule, Suspicion, Unfinished, Word

LANE = "orders/0"
RECORDS = 4

Words = tuple[Word, ...]
Delivered = list[int]
Needed = Callable[[Words], Iterator[int]]


def by_the_rule(words: Words) -> Iterator[int]:
    """What a reader hands out; ``words`` are looked at when the reader comes to them."""
    rule = SuffixRule()
    yield from (number for number, word in enumerate(words) if rule.needed(LANE, word))


def by_their_own_word(words: Words) -> Iterator[int]:
    yield from (number for number, word in enumerate(words) if word is Word.WAITING)


def without_a_mark(words: Words) -> Iterator[int]:
    """The rule, if what was done again looked as if it had always been settled."""
    yield from by_the_rule(tuple(Word.SETTLED if word is Word.AGAIN else word for word in words))


def after_a_power_cut(settled: int) -> Iterator[Words]:
    """The first ``settled`` of the records were delivered and settled; any of their words may be lost."""
    for lost in product([Word.WAITING, Word.SETTLED], repeat=settled):
        yield (*lost, *[Word.WAITING] * (RECORDS - settled))


def deaths(words: Words, needed: Needed) -> Iterator[tuple[Words, Delivered]]:
    """A life that delivers in order and dies after each number of records; an acknowledged one may not be settled."""
    order = list(needed(words))
    for count in range(len(order) + 1):
        done = list(words)
        for number in order[:count]:
            done[number] = Word.AGAIN
        yield tuple(done), order[:count]


def last_values_stand_last(delivered: Delivered) -> bool:
    """A compacted topic keeps the newest: the last appearances are in order, and nothing is missing."""
    last = [number for at, number in enumerate(delivered) if number not in delivered[at + 1 :]]
    return last == list(range(RECORDS))


def first_appearances_in_order(delivered: Delivered) -> bool:
    return list(dict.fromkeys(delivered)) == list(range(RECORDS))


def bad_ends(needed: Needed) -> list[tuple[int, Words, Delivered]]:
    """Power cut, a life that dies anywhere, another one that dies anywhere, and one that finishes."""
    bad = []
    for settled in range(RECORDS + 1):
        for words in after_a_power_cut(settled):
            for first, sent_first in deaths(words, needed):
                for second, sent_second in deaths(first, needed):
                    delivered = [*range(settled), *sent_first, *sent_second, *needed(second)]
                    if not (last_values_stand_last(delivered) and first_appearances_in_order(delivered)):
                        bad.append((settled, words, delivered))
    return bad


def test_the_newest_value_stands_last_after_any_loss_of_words_and_two_deaths() -> None:
    assert bad_ends(by_the_rule) == []


@pytest.mark.parametrize("needed", [by_their_own_word, without_a_mark])
def test_without_the_rule_or_its_mark_an_old_value_can_stand_last(needed: Needed) -> None:
    assert bad_ends(needed) != []


def test_marks_tell_the_generations_apart() -> None:
    suspect = Suspicion(up_to=1, generation=9, since=7)
    assert suspect.word(epoch=3, mark=9) is Word.AGAIN
    assert suspect.word(epoch=3, mark=8) == Unfinished(8, again=True)  # done again in a generation not dealt with
    assert suspect.word(epoch=3, mark=7) == Unfinished(7, again=True)
    assert suspect.word(epoch=3, mark=6) is Word.SETTLED
    assert suspect.word(epoch=7, mark=7) == Unfinished(7, again=False)  # written and settled in that generation
    assert suspect.word(epoch=8, mark=8) == Unfinished(8, again=False)


def test_marks_are_epochs_modulo_their_number() -> None:
    far = 5 * fmt.MARKS + 3
    suspect = Suspicion(up_to=1, generation=far, since=far - 2)
    assert suspect.word(epoch=far - 5, mark=3) is Word.AGAIN
    assert suspect.word(epoch=far - 5, mark=1) == Unfinished(far - 2, again=True)
    assert suspect.word(epoch=far - 5, mark=0) is Word.SETTLED
    assert suspect.word(epoch=far - 5, mark=4) is Word.SETTLED  # of long ago


def test_records_without_key_and_partition_count_for_themselves() -> None:
    rule = SuffixRule()
    words = [Word.WAITING, Word.SETTLED, Word.AGAIN, Word.WAITING]
    assert [rule.needed(None, word) for word in words] == [True, False, False, True]


def test_lanes_do_not_touch_one_another() -> None:
    rule = SuffixRule()
    assert rule.needed("a", Word.WAITING)
    assert not rule.needed("b", Word.SETTLED)
    assert rule.needed("a", Word.SETTLED)
    assert not rule.needed("b", Word.SETTLED)
    assert not rule.needed("c", Unfinished(4, again=True))
    assert rule.needed("c", Word.SETTLED)
    assert not rule.needed("d", Unfinished(3, again=True))
    assert not rule.needed(None, Unfinished(4, again=True))


def test_what_is_passed_over_is_not_believed_behind_what_was_done_again() -> None:
    rule = SuffixRule()
    rule.needed("broken", Word.WAITING)
    rule.needed("redone", Unfinished(4, again=True))
    rule.needed("looked", Word.WAITING, there=True)
    words = Word.SETTLED, Unfinished(3, again=True), Unfinished(4, again=True), Word.AGAIN
    told = {lane: [rule.outlives(lane, word) for word in words] for lane in ("broken", "redone", "looked", "new", None)}
    assert told["broken"] == told["looked"] == [True, True, True, False]
    assert told["redone"] == [True, True, False, False]
    assert told["new"] == told[None] == [False] * 4


def test_where_something_may_have_been_done_again_that_is_gone_no_settle_word_counts() -> None:
    rule = SuffixRule()
    rule.doubt("a")
    rule.doubt(None)
    assert [rule.needed("a", Word.SETTLED, there=True), rule.needed("a", Word.SETTLED)] == [False, True]
    assert not rule.needed(None, Word.SETTLED)


# -- who has looked: frames that are at their destination ------------------------------------------------------------

WAITING, SETTLED, AGAIN = Word.WAITING, Word.SETTLED, Word.AGAIN


def needed_of(lane: str | None, *frames: tuple[Word, bool]) -> list[bool]:
    rule = SuffixRule()
    return [rule.needed(lane, word, there=there) for word, there in frames]


def test_what_is_there_need_not_be_delivered() -> None:
    assert needed_of("a", (WAITING, True), (SETTLED, True), (AGAIN, True)) == [False] * 3
    assert needed_of(None, (WAITING, True), (WAITING, False), (SETTLED, False)) == [False, True, False]


def test_what_is_there_behind_something_that_is_not_is_delivered_with_it() -> None:
    assert needed_of("a", (WAITING, False), (WAITING, True), (SETTLED, True)) == [True] * 3


def test_settle_words_count_no_longer_behind_a_frame_without_a_word_that_is_there() -> None:
    assert needed_of("a", (WAITING, True), (SETTLED, False)) == [False, True]
    assert needed_of("a", (AGAIN, True), (SETTLED, False)) == [False, True]
    assert needed_of("a", (SETTLED, True), (SETTLED, False)) == [False, False]


def test_only_words_before_which_something_was_found_there_have_to_be_stored_anew() -> None:
    rule = SuffixRule()
    assert not rule.counts_anew("a", SETTLED)
    rule.needed("a", WAITING, there=True)
    assert [rule.counts_anew("a", word) for word in (WAITING, SETTLED, AGAIN)] == [False, True, False]
    assert not rule.counts_anew("b", SETTLED)
