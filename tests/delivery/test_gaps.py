"""What is behind is found by what it covers, and by nothing else."""

import itertools
import random
from types import SimpleNamespace
from typing import Any

from aiorecover.delivery.behind import Behind
from aiorecover.delivery.drain import Drain
from aiorecover.delivery.gaps import Gaps
from aiorecover.delivery.lane import Lane


def entry(position: int) -> Any:
    return SimpleNamespace(), 0, position, (None,) * 8


def test_a_gap_is_found_only_by_records_that_stand_behind_its_beginning() -> None:
    gaps = Gaps([Behind("t", None, entry(5))])
    assert gaps.covering("t", b"k", None, 4) == []
    assert gaps.covering("t", b"k", None, 5) == list(gaps)
    assert gaps.covering("t", b"k", None, 21) == list(gaps)
    assert gaps.covering("u", b"k", None, 21) == []


def test_every_gap_is_found_as_if_all_had_been_asked() -> None:
    rng = random.Random(1)
    lanes = [Lane(topic, number) for topic in "tu" for number in range(6)]
    for _ in range(300):
        gaps = Gaps()
        for _ in range(rng.randrange(12)):
            at = entry(rng.randrange(10))
            topic = rng.choice("tu")
            gaps.add(
                rng.choice(
                    (
                        Behind(topic, rng.choice((None, 1, 9)), at),
                        Behind.of_lane(rng.choice(lanes), range(rng.choice((6, 8))), at),
                        Behind.of_no_lane(topic, at),
                    )
                )
            )
        for topic, key, partition in itertools.product("tu", (None, b"a", b"b", b"c"), (None, 1, 3, 9)):
            at_record = rng.randrange(10)
            expected = {gap for gap in gaps if gap.at <= at_record and gap.covers(topic, key, partition)}
            found = gaps.covering(topic, key, partition, at_record)
            assert set(found) == expected
            assert len(found) == len(expected)


def test_a_gap_takes_the_place_of_the_one_of_its_name_and_only_the_very_same_is_removed() -> None:
    lane = Lane("t", 1)
    first = Behind.of_lane(lane, [0, 1], entry(5))
    gaps = Gaps([first])
    later = first.again(entry(8))
    gaps.add(later)
    assert list(gaps) == [later]
    assert gaps.named(first.name) is later
    gaps.remove(first)
    assert later in gaps
    assert first not in gaps
    assert gaps.oldest is later
    gaps.remove(later)
    assert not gaps
    assert gaps.covering("t", None, 1, 99) == []
    assert gaps.oldest is None


def test_lanes_are_apart_and_whatever_may_share_a_record_is_not() -> None:
    one, two = (Behind.of_lane(Lane("t", number), [0, 1], entry(1)) for number in range(2))
    grown = Behind.of_lane(Lane("t", 1), [0, 1, 2], entry(1))
    topic, other = Behind("t", None, entry(1)), Behind("u", None, entry(1))
    assert Gaps([one]).apart_from(two)
    assert Gaps([one]).apart_from(other)
    assert not Gaps([one]).apart_from(grown)  # a key of the one may be one of the other
    assert not Gaps([one]).apart_from(topic)
    assert not Gaps([Behind("t", 9, entry(1))]).apart_from(Behind.of_lane(Lane("t", 9), [0], entry(1)))
    assert not Gaps([one, topic]).apart_from(two)
    assert Gaps([one, other]).apart_from(two)


def test_gaps_that_are_apart_share_no_record_and_lanes_of_the_same_partitions_are() -> None:
    rng = random.Random(2)
    lanes = [Lane(topic, number) for topic in "tu" for number in range(4)]

    def one() -> Behind:
        at, topic = entry(rng.randrange(10)), rng.choice("tu")
        lane = Behind.of_lane(rng.choice(lanes), range(rng.choice((4, 8))), at)
        return rng.choice((lane, lane, lane, Behind(topic, rng.choice((None, 9)), at), Behind.of_no_lane(topic, at)))

    records = list(itertools.product("tu", (None, *(b"%d" % number for number in range(40))), (None, 0, 1, 2, 3, 9)))
    for _ in range(500):
        gaps, gap = Gaps(one() for _ in range(rng.randrange(3))), one()
        shared = any(known.covers(*record) and gap.covers(*record) for known in gaps for record in records)
        assert not (gaps.apart_from(gap) and shared)
        alike = all(
            known.topic != gap.topic or (known.lane and gap.lane and known.name[3] == gap.name[3]) for known in gaps
        )
        if alike:  # else they may wait for each other without need
            assert gaps.apart_from(gap) == (not shared)


def test_a_lane_is_held_by_its_own_gaps_and_by_those_that_name_its_partition() -> None:
    lane, neighbour = Lane("t", 9), Lane("t", 8)
    assert Gaps([Behind("t", 9, entry(1))]).of(lane)
    assert Gaps([Behind.of_lane(lane, [0], entry(1))]).of(lane)
    assert not Gaps([Behind.of_lane(neighbour, [0], entry(1)), Behind("t", 8, entry(1))]).of(lane)
    assert not Gaps([Behind.of_no_lane("t", entry(1)), Behind("u", 9, entry(1))]).of(lane)


def test_a_gap_concerns_its_lane_and_one_of_no_lane_all_lanes_of_its_topic() -> None:
    lane, others = Lane("t", 3), [Lane("t", 4), Lane("u", 3)]
    gaps = Gaps([Behind.of_lane(lane, range(6), entry(5))])
    assert gaps.concern(lane)
    assert not any(map(gaps.concern, others))
    gaps = Gaps([Behind("t", None, entry(5))])
    assert [gaps.concern(one) for one in (lane, *others)] == [True, True, False]
    gaps = Gaps([Behind("t", 4, entry(5))])
    assert [gaps.concern(one) for one in (lane, *others)] == [False, True, False]
    gaps.remove(*gaps)
    assert not gaps.concern(others[0])


def test_a_gap_that_nobody_goes_back_for_yet_keeps_its_beginning() -> None:
    reader: Any = None
    drain = Drain(reader, at=lambda: 99, can_take=lambda _: False, dispatch=lambda *_: 0)
    first = Behind("t", None, entry(5))
    drain.add(first)
    drain.add(first.again(entry(8)))
    assert list(drain.gaps) == [first]
    earlier = first.again(entry(3))
    drain.add(earlier)
    assert list(drain.gaps) == [earlier]
