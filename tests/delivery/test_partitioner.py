"""The hash and the partition are Kafka's: aiokafka's are the reference, and the Java client's own test values."""

import random

import pytest
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.delivery.partitioner import murmur2, partition_for

RANDOM = random.Random(20)


@pytest.mark.parametrize("length", range(65))
def test_random_keys_of_every_length_hash_as_in_aiokafka(length: int) -> None:
    keys = [RANDOM.randbytes(length) for _ in range(100)]
    assert [murmur2(key) for key in keys] == [reference(key) for key in keys]


@pytest.mark.parametrize("length", [255, 256, 257, 259, 260, 261, 1000, 65_537])
def test_keys_longer_than_the_prepared_structs_hash_as_in_aiokafka(length: int) -> None:
    key = RANDOM.randbytes(length)
    assert murmur2(key) == reference(key)


@given(st.binary(max_size=300))
def test_any_key_hashes_as_in_aiokafka(key: bytes) -> None:
    assert murmur2(key) == reference(key)


@pytest.mark.parametrize("key", [b"\x00" * 64, b"\xff" * 63, b"\x80" * 5])
def test_extreme_bytes_hash_as_in_aiokafka(key: bytes) -> None:
    assert murmur2(key) == reference(key)


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client_s_own_test(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(min_value=1, max_value=2000))
def test_the_partition_is_aiokafka_s_choice(key: bytes, count: int) -> None:
    everyone = list(range(count))
    assert partition_for(key, count) == DefaultPartitioner()(key, everyone, everyone)


def test_one_partition_takes_every_key() -> None:
    assert {partition_for(RANDOM.randbytes(9), 1) for _ in range(100)} == {0}
