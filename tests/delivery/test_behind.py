"""What covers a record that was passed over: nothing may change that until it is caught up."""

import sys
from types import SimpleNamespace
from typing import Any

from aiorecover.delivery.behind import Behind
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.partitioner import partition_for

ENTRY: Any = (SimpleNamespace(header=SimpleNamespace(ordinal=1)), 0, 1, (None,) * 8)


def test_a_topic_that_is_not_known_is_covered_whole_and_no_other() -> None:
    behind = Behind("t", None, ENTRY)
    assert behind.covers("t", b"k", None)
    assert behind.covers("t", None, 3)
    assert not behind.covers("u", b"k", None)


def test_a_partition_that_does_not_exist_covers_those_that_name_it() -> None:
    behind = Behind("t", 3, ENTRY)
    assert behind.covers("t", b"k", 3)
    assert not behind.covers("t", b"k", 2)
    assert not behind.covers("t", b"k", None)


def test_a_lane_s_keys_stay_its_own_when_the_topic_grows() -> None:
    """What was passed over before must not seem dispatched afterwards."""
    partitions = list(range(4))
    behind = Behind.of_lane(Lane("t", 1), partitions, ENTRY)
    keys = [b"%d" % number for number in range(100)]
    covered = [key for key in keys if behind.covers("t", key, None)]
    assert covered == [key for key in keys if partition_for(key, 4) == 1]
    partitions += [4, 5]
    assert [key for key in keys if behind.covers("t", key, None)] == covered


def test_a_lane_covers_who_names_its_partition_and_nobody_who_may_go_anywhere() -> None:
    behind = Behind.of_lane(Lane("t", 1), [0, 1], ENTRY)
    assert behind.covers("t", None, 1)
    assert not behind.covers("t", None, 0)
    assert not behind.covers("t", None, None)
    assert not behind.covers("u", None, 1)


def test_where_all_lanes_are_halted_those_are_covered_that_may_go_anywhere() -> None:
    behind = Behind.of_no_lane("t", ENTRY)
    assert behind.covers("t", None, None)
    assert not behind.covers("t", b"k", None)
    assert not behind.covers("t", None, 0)
    assert not behind.covers("u", None, None)


def test_of_the_first_record_no_value_is_kept() -> None:
    """It may be a megabyte, and there may be a gap for each of a thousand lanes."""
    value = b"v" * 1000
    slot, place, sequence, _ = ENTRY
    held = sys.getrefcount(value)
    behind = Behind("t", None, (slot, place, sequence, ("t", b"k", value, 7, 1, None, None, None)))
    assert sys.getrefcount(value) == held
    assert (behind.start, behind.key, behind.named) == ((slot, place), b"k", 7)
