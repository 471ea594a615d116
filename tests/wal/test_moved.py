"""A moved record keeps its place of origin, and counts exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.wal import format as fmt
from aiorecover.wal.moved import MOVED_BYTES, NO_PARTITION, pack_moved, unpack_moved

POSITIONS = st.integers(1, fmt.position(fmt.EPOCH_MAX, fmt.SEQUENCE_MASK))


NONCES = st.integers(0, fmt.NONCE_MASK)


@given(POSITIONS, NONCES, st.integers(NO_PARTITION, 2**31 - 1), st.binary(max_size=50))
def test_a_copy_keeps_position_nonce_partition_and_payload(
    position: int, nonce: int, partition: int, payload: bytes
) -> None:
    moved = unpack_moved(memoryview(pack_moved(position, nonce, partition, payload)))
    assert (*moved[:3], bytes(moved.payload)) == (position, nonce, partition, payload)
    assert fmt.position(moved.epoch, moved.sequence) == position


def test_the_bytes_of_a_copy_are_these() -> None:
    packed = pack_moved(fmt.position(2, 3), 0x1A2B3C4D, -1, b"record")
    assert packed == bytes.fromhex("0300000000020000 ffffffff 4d3c2b1a") + b"record"


@pytest.mark.parametrize("length", range(MOVED_BYTES))
def test_what_is_too_short_for_a_copy_is_an_error(length: int) -> None:
    with pytest.raises(ValueError, match=f"too short bytes={length}"):
        unpack_moved(memoryview(bytes(length)))
