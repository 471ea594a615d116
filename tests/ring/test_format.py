"""The boxes of the specification, held to the code by golden bytes."""

import struct
from pathlib import Path
from zlib import crc32

from aiorecover.ring import format as layout
from aiorecover.ring.format import PAGE, BatchState, Geometry, SegmentHead, SegmentKind
from tests.ring.rig import NOW_MS, Rig


def test_a_region_begins_with_magic_version_segment_size_and_crc() -> None:
    data = layout.pack_region(65536, 3 << 26)
    assert data[:16] == b"aiorreg2" + (2).to_bytes(4, "little") + (65536).to_bytes(4, "little")
    assert data[16:] == crc32(data[:16], 3 << 26).to_bytes(4, "little")
    assert layout.read_region(data, 3 << 26, Geometry()) == 65536
    assert layout.read_region(data, 4 << 26, Geometry()) is None, "the head of another region"


def test_the_head_of_a_segment_lies_as_the_box_says() -> None:
    head = SegmentHead(
        65536, SegmentKind.REWRITTEN, "orders", 7, 5 << 32 | 9, 0x1122334455667788, 5, b"b" * 16, "abcdefghijklm"
    )
    data = layout.pack_segment(head, 8192)
    assert len(data) == 512
    assert data[:8] == b"aiorseg2"
    assert struct.unpack_from("<HBB", data, 12) == (2, 2, 6)
    assert struct.unpack_from("<Ii", data, 16) == (65536, 7)
    assert struct.unpack_from("<QQ", data, 24) == (5 << 32 | 9, 0x1122334455667788)
    assert struct.unpack_from("<I", data, 40) == (5,)
    assert data[48:64] == b"b" * 16
    assert data[64:80] == b"abcdefghijklm\0\0\0"
    assert data[96:102] == b"orders"
    assert struct.unpack_from("<I", data, 8)[0] == crc32(data[12:], 8192 >> 12)
    assert layout.read_segment(data, 8192, 65536) == head
    assert layout.read_segment(data, 12288, 65536) is None, "the head of another place"


def test_a_batch_lies_in_the_file_as_the_box_says(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        for number in range(3):
            rig.publish(number)
        rig.flush()
        rig.publish(3, note=b"\x90")
        rig.flush()
        rig.seal()
        batch = rig.ring.lanes["topic", 0].queue[0]
        epoch, salt = rig.ring.epoch, batch.segment.salt
        data = (tmp_path / "0" / "ring").read_bytes()
    at = PAGE + 512
    words = struct.unpack_from("<8Q", data, at)
    assert words[0] == salt
    assert words[1] == (int(BatchState.SEALED) ^ salt & 0xFFFFFFFF) | epoch << 32
    assert words[2] == batch.end | batch.notes << 32
    assert words[3] == batch.first == 1
    assert words[4] == NOW_MS
    assert struct.unpack_from("<IIII", data, at + 48)[1:] == (epoch, 4, 3)
    first, second = struct.unpack_from("<4I", data, at + 64), struct.unpack_from("<4I", data, at + 80)
    assert (first[1], second[:3]) == (3, (batch.end, 4, batch.notes))
    assert struct.unpack_from("<QIIQQ", data, at + 96) == (0, 0, 0, 0, NOW_MS + 3)
    note = data[PAGE + batch.notes : PAGE + 8192]
    assert note == b"\x90" + struct.pack("<QII", 4, 3, 1)
    records = data[at + 189 : PAGE + batch.end]
    seed = crc32(salt.to_bytes(8, "little"))
    covered = struct.pack(
        "<IIQIqQIIIII", crc32(records, seed), crc32(note, seed), 1, epoch, NOW_MS, 0, 0, 0, batch.end, batch.notes, 4
    )
    assert second[3] == crc32(covered)
