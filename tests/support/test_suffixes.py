"""A repeat may go back as far as it likes, if it then leaves nothing out."""

import pytest

from tests.support.oracle import Consumed
from tests.support.suffixes import steps_back, torn_suffixes


def log(names: str, partition: int = 0) -> list[Consumed]:
    return [Consumed(partition, offset, None, b"", (), 0, name) for offset, name in enumerate(names)]


@pytest.mark.parametrize("names", ["", "a", "abc", "abcbc", "abcabc", "aabbcc", "abcbcbcd", "abcdcdabcde"])
def test_whole_suffixes_are_fine(names: str) -> None:
    assert torn_suffixes(log(names)) == []


@pytest.mark.parametrize("names", ["abcb", "abcbd", "abcac", "abcdbcbd", "aba"])
def test_red_for_a_suffix_with_a_hole_or_without_its_end(names: str) -> None:
    assert torn_suffixes(log(names))


def test_partitions_are_judged_each_for_itself() -> None:
    assert torn_suffixes([*log("abc"), *log("de", 1)]) == []
    assert torn_suffixes([*log("abc"), *log("ded", 1)])


def test_each_suffix_that_was_sent_again_counts_once() -> None:
    logs = {"": 0, "abc": 0, "abcbc": 1, "aabbcc": 3, "abcbcbcd": 2, "aaa": 2}
    assert {names: steps_back(log(names)) for names in logs} == logs
    assert steps_back([*log("abcbc"), *log("dd", 1)]) == 2
