"""What counts as found of what was read back, as tables; and the rule over every history of a small lane."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from aiorecover.delivery.in_kafka import (
    _NAME_BITS,
    LOOK_BACK,
    WORDS_LOST,
    Hint,
    InKafka,
    Place,
    _name,
    content_of,
    first_offset,
    oldest_hints,
)
from aiorecover.wal import format as fmt
from aiorecover.wal.suffix import SuffixRule, Unfinished, Word

LANE = ("orders", 0)
EPOCH = 7
CONTENT = content_of(b"k", b"v")


OURS = fmt.with_nonce(0x1122334455667788, 5)
DIRECTORY = fmt.directory_of(OURS)
OWNER = fmt.producer_text(OURS).encode()


def name(sequence: int, epoch: int = 3, producer: int = OURS) -> bytes:
    return b"%b%d" % (fmt.id_prefix(producer, epoch), sequence)


def read(*sequences: int, lane: tuple[str, int] = LANE, into: InKafka | None = None) -> InKafka:
    """A tail, read to its end; offsets from 100 on."""
    found = into or InKafka(DIRECTORY, EPOCH)
    for offset, sequence in enumerate(sequences, 100):
        found.note(lane, offset, name(sequence), CONTENT)
    return found


def counts(found: InKafka, most: int = 20) -> list[int]:
    found.read_up()
    return [number for number in range(1, most) if place_of(found, number)]


def place_of(
    found: InKafka, sequence: int, epoch: int = 3, content: int = CONTENT, topic: str = "orders"
) -> Place | None:
    return found.place(topic, fmt.position(epoch, sequence), fmt.nonce_of(OURS), content)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([], []),
        ([4, 5, 6], [4, 5, 6]),
        ([4, 6, 9], [4, 6, 9]),  # exactly these, and not everything up to the last one
        ([4, 5, 6, 4], [4]),  # the newest 4 stands behind 5 and 6
        ([4, 5, 6, 5], [4, 5]),
        ([4, 5, 6, 4, 5, 6], [4, 5, 6]),
        ([4, 5, 6, 6], [4, 5, 6]),
        ([9, 4, 5], [4, 5]),
        ([4, 5, 6, 2], [2]),
    ],
)
def test_only_newest_appearances_in_the_order_of_the_ring_count(tail: list[int], expected: list[int]) -> None:
    assert counts(read(*tail)) == expected


def test_where_a_record_was_found() -> None:
    found = read(4, 5, 9)
    assert [place_of(found, number) for number in (4, 5, 9)] == [Place(0, 100), Place(0, 101), Place(0, 102)]


@pytest.mark.parametrize(
    "other",
    [
        None,
        b"",
        OWNER,
        OWNER + b"/3",
        OWNER + b"/3/",
        OWNER + b"//4",
        OWNER + b"/3/4/5",
        OWNER + b"/3/-4",
        OWNER + b"/3/ 4",
        OWNER + b"/3/+4",
        OWNER + b"/0/4",
        OWNER + b"/3/0",
        OWNER + b"/three/4",
        name(4, producer=OURS + (1 << fmt.NONCE_BITS)),  # of another directory
        b"/3/4",
        name(4, epoch=EPOCH),  # nothing of our own epoch was there before us
        name(4, epoch=EPOCH + 1),
        OWNER + b"/3/" + b"9" * 5000,
        OWNER + b"/3/%d" % (fmt.SEQUENCE_MASK + 1),
        b"\xff\xfe",
    ],
)
def test_what_is_no_id_of_ours_is_passed_over(other: bytes | None) -> None:
    found = read(5)
    found.note(LANE, 101, other, CONTENT)
    assert counts(found) == [5]
    assert len(found) == 1


def test_a_record_of_the_same_id_and_another_content_is_another_one() -> None:
    """Somebody has read it and passed its id on."""
    found = read(4)
    assert place_of(found, 4, content=content_of(b"k", b"other")) is None
    assert place_of(found, 4, topic="others") is None
    assert place_of(found, 4, epoch=2) is None
    assert place_of(found, 4) is not None


def test_a_record_of_a_copy_of_the_directory_is_another_one_and_ours_before_it_counts_as_overtaken() -> None:
    """The other way round ours might stand behind what the copy sent again: repeats, and nothing lost."""
    found = read(4, 5, 6)
    found.note(LANE, 110, name(5, producer=fmt.with_nonce(OURS, 6)), CONTENT)
    assert counts(found) == [4]
    assert found.place("orders", fmt.position(3, 5), 6, CONTENT) == Place(0, 110)


def test_contents_that_differ_in_a_null_only_differ() -> None:
    pairs = list(product([None, b"", b"x"], repeat=2))
    assert len({content_of(key, value) for key, value in pairs}) == len(pairs)


def test_a_tail_that_was_not_read_to_its_end_counts_for_nothing_and_leaves_the_others() -> None:
    found = read(5, 7, lane=("orders", 1), into=read(4, 6))
    found.forget(LANE)
    found.forget(("never", 0))
    assert counts(found) == [5, 7]


def test_what_stands_in_two_partitions_stays_found_in_the_other_one() -> None:
    found = read(6, 4, lane=("orders", 1), into=read(4, 6))
    assert counts(found) == [4]
    assert place_of(found, 4) == Place(1, 101)
    both = read(4, lane=("orders", 1), into=read(4, 6))
    both.forget(LANE)
    assert counts(both) == [4]


def test_the_same_tail_may_be_read_from_its_beginning_again() -> None:
    assert counts(read(4, 5, 6, into=read(4, 5))) == [4, 5, 6]


def test_it_knows_how_far_it_goes_and_when_it_is_done() -> None:
    found = read(4, 9)
    found.read_up()
    assert (len(found), found.last) == (2, fmt.position(3, 9))
    found.clear()
    assert (len(found), found.last) == (0, 0)
    assert not found


@pytest.mark.parametrize(
    ("known", "beginning", "end", "lanes", "expected"),
    [
        (-1, 0, 10, 1, 0),
        (-1, 0, 0, 1, 0),
        (-1, 7, 7, 1, 7),
        (-1, 0, LOOK_BACK + 10, 1, 10),
        (-1, 0, 1000, LOOK_BACK // 10, 990),
        (-1, 0, 1000, 10 * LOOK_BACK, 999),
        (WORDS_LOST + 99, 0, WORDS_LOST + 1000, 1, 100),
        (5, 0, 1000, 1, 0),  # what was settled right before may have lost its words
        (WORDS_LOST + 99, 500, WORDS_LOST + 1000, 1, 500),
        (WORDS_LOST + 99, 0, 10 * LOOK_BACK, 1, 9 * LOOK_BACK),
        (5000, 0, 1000, 1, 0),  # the topic was made anew
        (1000, 0, 1000, 1, 0),
    ],
)
def test_from_where_a_tail_is_read(known: int, beginning: int, end: int, lanes: int, expected: int) -> None:
    assert first_offset(known, beginning, end, lanes) == expected


def test_of_two_hints_for_a_lane_the_one_that_goes_back_further_counts() -> None:
    hints = [Hint("a", 0, 9), Hint("a", 1, 5), Hint("a", 0, -1), Hint("b", 0, 3), Hint("a", 0, 4)]
    assert oldest_hints(hints) == [Hint("a", 0, -1), Hint("a", 1, 5), Hint("b", 0, 3)]


# -- every history of a lane -------------------------------------------------------------------------------------------

RECORDS = 4

Log = tuple[int, ...]
Words = tuple[Word, ...]


def lost(words: Words) -> Iterator[Words]:
    """A power cut: each word that was stored may be lost, and what was marked as done again no longer counts."""
    for kept in product([True, False], repeat=len(words)):
        yield tuple(
            word if keep and word is Word.SETTLED else Word.WAITING for word, keep in zip(words, kept, strict=True)
        )


def lives(log: Log, words: Words, window: int) -> Iterator[tuple[Log, Words]]:
    """One life with the check, which reads the last ``window`` records back; then it dies at any step."""
    found = InKafka(DIRECTORY, EPOCH)
    for offset in range(max(0, len(log) - window), len(log)):
        found.note(LANE, offset, name(1 + log[offset]), CONTENT)
    found.read_up()
    rule, now, appended = SuffixRule(), list(words), list(log)
    yield log, words
    for number, word in enumerate(words):
        there = place_of(found, 1 + number) is not None
        if rule.needed(LANE, word, there=there):
            appended.append(number)
            yield tuple(appended), tuple(now)  # in Kafka, and not settled
        elif not (there and (word is Word.WAITING or rule.counts_anew(LANE, word))):
            continue
        now[number] = Word.AGAIN
        yield tuple(appended), tuple(now)


def first_lives() -> Iterator[tuple[Log, Words]]:
    """Delivered so far without a fault; the last one may be in Kafka and not settled."""
    for count in range(RECORDS + 1):
        for settled in {count, max(0, count - 1)}:
            words = [Word.SETTLED] * settled + [Word.WAITING] * (RECORDS - settled)
            yield tuple(range(count)), tuple(words)


def newest_stand_in_order(log: Sequence[int]) -> bool:
    last = [number for at, number in enumerate(log) if number not in log[at + 1 :]]
    return last == list(range(RECORDS))


def ends(log: Log, words: Words, windows: Sequence[int]) -> Iterator[tuple[Log, list[Log]]]:
    """A power cut, a life that is killed, another one that comes through."""
    for cut in lost(words):
        for first in windows:
            for log_then, words_then in lives(log, cut, first):
                for second in windows:
                    *_, (log_last, _) = lives(log_then, words_then, second)
                    yield log_last, [log, log_then]


def histories(windows: Sequence[int]) -> Iterator[tuple[Log, list[Log]]]:
    for log, words in first_lives():
        yield from ends(log, words, windows)


def test_the_newest_values_stand_in_order_however_far_is_read_back() -> None:
    checked = 0
    for log, before in histories([0, 1, 2, 3, 20]):
        assert newest_stand_in_order(log), (before, log)
        checked += 1
    assert checked > 10_000


def test_nothing_is_sent_again_that_is_read_back() -> None:
    for log, before in histories([20]):
        assert log == tuple(range(RECORDS)), (before, log)


def test_the_histories_show_what_counting_older_appearances_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(self: InKafka, lane: tuple[str, int], offset: int, name: bytes, content: int) -> None:
        told = self._told(name)
        assert told is not None
        self._number(lane)
        self._found[told[0]] = offset << _NAME_BITS | _name(told[1], content)

    monkeypatch.setattr(InKafka, "note", note)
    with pytest.raises(AssertionError):
        test_the_newest_values_stand_in_order_however_far_is_read_back()


def test_the_histories_show_what_believing_settle_words_behind_a_found_record_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = SuffixRule.needed

    def believing(self: SuffixRule, lane: tuple[str, int], word: Word | Unfinished, *, there: bool = False) -> bool:
        result = needed(self, lane, word, there=there)
        self._looked.clear()
        return result

    monkeypatch.setattr(SuffixRule, "needed", believing)
    with pytest.raises(AssertionError):
        test_the_newest_values_stand_in_order_however_far_is_read_back()
