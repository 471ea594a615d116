"""What manifests say, and what is left to say: beside sets of plain numbers."""

import itertools
import random

import pytest

from aiorecover.delivery import manifest as module
from aiorecover.delivery.manifest import Claim, Ledger, Manifest, Ranges, decode, encode, key_of
from tests.support.manifests import compacted, told_in

OWN, OLD = "abcdefghij234", "abcdefgzyx765"


def rows_of(manifests: list[Manifest]) -> list[tuple[bytes, bytes]]:
    return [(key_of(one), encode(one)) for one in manifests]


def publish(ledger: Ledger, topic: list[Manifest]) -> int:
    news = ledger.news(7)
    topic.extend(one.manifest for one in news)
    ledger.told(news)
    return len(news)


@pytest.mark.parametrize("seed", range(40))
def test_ranges_hold_what_was_added_in_order_and_apart(seed: int) -> None:
    chance, ranges, numbers = random.Random(seed), Ranges(), set[int]()
    for _ in range(60):
        first = chance.randrange(1, 120)
        added = set(range(first, first + chance.randrange(1, 9)))
        assert ranges.add(min(added), max(added)) is bool(added - numbers)
        numbers |= added
    pairs = ranges.pairs
    assert sorted(number for first, last in pairs for number in range(first, last + 1)) == sorted(numbers)
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(pairs))
    assert len(ranges) == len(pairs)


def test_a_manifest_is_read_back_as_it_was_written() -> None:
    one = Manifest(
        producer_id=OLD, epoch=3, told_by=OWN, part=2, time_ms=5, last=9, settled=7, sealed=True, skipped=((3, 3),)
    )
    assert decode(encode(one)) == one
    assert key_of(one) == f"{OLD}/3/{OWN}/2".encode()


def test_what_was_told_is_not_told_again_and_what_comes_is() -> None:
    ledger, topic = Ledger(OWN), list[Manifest]()
    assert publish(ledger, topic) == 0
    ledger.claim([Claim(OWN, 4, 0, 0, sealed=False)])
    assert publish(ledger, topic) == 0  # nothing was accepted
    ledger.claim([Claim(OWN, 4, 10, 4, sealed=False)])
    assert publish(ledger, topic) == 1
    ledger.claim([Claim(OWN, 4, 10, 4, sealed=False)])
    assert publish(ledger, topic) == 0
    ledger.note("dead_lettered", OWN, 4, 6, 6)
    ledger.note("dead_lettered", OWN, 4, 6, 6)
    assert publish(ledger, topic) == 1
    ledger.note("dead_lettered", OWN, 4, 6, 6)
    assert publish(ledger, topic) == 0
    ledger.claim([Claim(OWN, 4, 12, 12, sealed=True)])
    assert publish(ledger, topic) == 1
    told = told_in(compacted(rows_of(topic)))[OWN, 4]
    assert (told.last, told.settled, told.sealed_at, told.dead_lettered) == (12, 12, 12, {6})
    assert len(compacted(rows_of(topic))) == 1


def test_what_comes_while_a_manifest_is_on_its_way_is_told_behind_it() -> None:
    ledger, topic = Ledger(OWN), list[Manifest]()
    ledger.claim([Claim(OWN, 4, 10, 4, sealed=False)])
    news = ledger.news(7)
    ledger.claim([Claim(OWN, 4, 10, 5, sealed=False)])
    ledger.note("skipped", OWN, 4, 6, 6)
    ledger.told(news)
    assert publish(ledger, topic) == 1
    assert told_in(rows_of(topic))[OWN, 4].skipped == {6}
    assert topic[0].settled == 5


def test_nothing_is_ever_taken_back() -> None:
    ledger, topic = Ledger(OWN), list[Manifest]()
    ledger.claim([Claim(OLD, 3, 100, 90, sealed=True)])
    ledger.claim([Claim(OLD, 3, 50, 10, sealed=False)])
    publish(ledger, topic)
    assert (topic[0].last, topic[0].settled, topic[0].sealed) == (100, 90, True)


def test_a_dead_letter_of_an_epoch_of_which_nothing_else_is_known_is_told() -> None:
    ledger, topic = Ledger(OWN), list[Manifest]()
    ledger.note("dead_lettered", OLD, 2, 40, 41)
    publish(ledger, topic)
    told = told_in(rows_of(topic))[OLD, 2]
    assert (told.last, told.settled, told.sealed_at, told.dead_lettered) == (41, 0, None, {40, 41})


@pytest.mark.parametrize("seed", range(20))
def test_many_ranges_come_in_parts_of_which_the_newest_of_each_key_say_all(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RANGES_MOST", 7)
    chance, ledger, topic, dead = random.Random(seed), Ledger(OWN), list[Manifest](), set[int]()
    last = 0
    for _ in range(300):
        last += chance.randrange(1, 4)
        dead.add(last)
        ledger.note("dead_lettered", OWN, 4, last, last)
        ledger.claim([Claim(OWN, 4, last, last - 1, sealed=False)])
        if chance.random() < 0.1:
            news = ledger.news(7)
            topic += [one.manifest for one in news]
            if chance.random() < 0.7:  # else Kafka has them, and its answer was lost
                ledger.told(news)
    publish(ledger, topic)
    assert publish(ledger, topic) == 0
    chance.shuffle(rows := compacted(rows_of(topic)))
    told = told_in(rows)[OWN, 4]
    assert (told.dead_lettered, told.last, told.settled) == (dead, last, last - 1)
    assert max(len(one.dead_lettered) for one in topic) <= 7
    assert not ledger.full


def test_what_an_audit_topic_that_takes_nothing_costs_is_bounded_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGES_MOST", 5)
    monkeypatch.setattr(module, "PARTS_MOST", 3)
    ledger, topic = Ledger(OWN), list[Manifest]()
    for sequence in range(2, 101, 2):
        ledger.note("dead_lettered", OWN, 4, sequence, sequence)
    assert ledger.full
    assert ledger.left_out
    ledger.left_out = False
    publish(ledger, topic)
    assert told_in(rows_of(topic))[OWN, 4].dead_lettered == set(range(2, 31, 2))
    ledger.note("dead_lettered", OWN, 4, 32, 32)
    publish(ledger, topic)
    assert told_in(rows_of(topic))[OWN, 4].dead_lettered == set(range(2, 33, 2))
    assert not ledger.left_out
