"""A repeat may go back as far as it likes, if it then leaves nothing out."""

import pytest

from tests.support.oracle import Consumed
from tests.support.suffixes import torn_suffixes


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
