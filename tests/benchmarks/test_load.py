from collections import Counter

from benchmarks import load, partitions
from tests.support.partitioner import partition_for


def test_each_of_so_many_partitions_has_one_key() -> None:
    keys = load.keys_of(partitions.MANY)
    assert [partition_for(key, partitions.MANY) for key in keys] == list(range(partitions.MANY))


def test_few_partitions_share_those_keys_about_evenly() -> None:
    shares = Counter(partition_for(key, partitions.FEW) for key in load.keys_of(partitions.MANY))
    fair = partitions.MANY / partitions.FEW
    assert all(0.8 * fair < shares[number] < 1.2 * fair for number in range(partitions.FEW))


def test_keys_come_again_in_their_order() -> None:
    assert list(load.keys(5, [b"a", b"b"])) == [b"a", b"b", b"a", b"b", b"a"]
