"""A moved record keeps its place of origin, and counts exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover.wal import format as fmt
from aiorecover.wal.moved import MOVED_BYTES, NO_PARTITION, pack_moved, position_at, unpack_moved

SALT = 0x0100_0009
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


@pytest.mark.parametrize("position", [0, -1, -(1 << 63)])
def test_what_names_a_position_that_no_record_has_is_no_copy(position: int) -> None:
    """It holds, so somebody stored it, and it was none of us."""
    packed = pack_moved(position, 1, NO_PARTITION, b"record")
    with pytest.raises(ValueError, match="was accepted nowhere"):
        unpack_moved(memoryview(packed))
    frame = fmt.FRAME.pack(len(packed), 0, 1, fmt.open_word(SALT)) + packed
    assert position_at(frame, 0, SALT) == 0
