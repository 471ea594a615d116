"""The bytes on disk: golden, drawn in the package docstring, and none of their bits may flip unseen."""

import re
import struct
from dataclasses import replace
from itertools import pairwise
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover import wal
from aiorecover.errors import WalFormatError
from aiorecover.wal import checkpoint, lanes
from aiorecover.wal import format as fmt
from aiorecover.wal.ages import StoredAges
from aiorecover.wal.checkpoint import Checkpoint, Destination, RingState, Transactional
from aiorecover.wal.moved import MOVED, pack_moved
from aiorecover.wal.suffix import Suspicion
from tests.wal.rig import Opened, found, missing

HEADER = fmt.SlotHeader(
    slot_bytes=0x4000,
    producer_id=0x1122334455667788,
    ordinal=0x0102030405060708,
    epoch=0x00ABCDEF,
    salt=0xDEADBEEF,
    first_sequence=0x0A0B0C0D0E,
    created_ms=1_700_000_000_000,
)
SEAL = fmt.Seal(count=7, tail=0x1234, last_sequence=0x0A0B0C0D14)

GOLDEN_HEADER = bytes.fromhex(
    "8941494f5245430a 0100 0000 00400000 8877665544332211 0807060504030201 efcdab00 efbeadde"
    "0e0d0c0b0a000000 0068e5cf8b010000 00000000 8bdfad7b"
)
GOLDEN_SEAL = bytes.fromhex("5345414c efbeadde 07000000 34120000 140d0c0b0a000000 00000000 4a3999cd")
GOLDEN_FRAME = bytes.fromhex("05000000 6fb32fcf 0100000000000000 10415221 6865616c74 000000")
GOLDEN_SKIP = bytes.fromhex("05000080 c45446c8 0100000000000000 efbeadde")
GOLDEN_CHECKPOINT = bytes.fromhex(
    "8941494f43484b0a 0100 0000 00010000 0500000000000000 c6eb8b68"
    "8f"
    "ab70726f64756365725f6964 cf1122334455667788"
    "a565706f6368 03"
    "aa736c6f745f6279746573 cd4000"
    "a46d61696e 83"
    "a977617465726d61726b cf0000020000000009 ac6e6578745f6f7264696e616c 07 a7666c7573686564 cf000002000000000b"
    "a57265747279 80 a464656164 80"
    "a56d6f766564 cf0000020000000004"
    "a7626f6f745f6964 a162"
    "a6636c6f736564 c2 a8706f69736f6e6564 c2"
    "a773757370656374 83 a575705f746f 00 aa67656e65726174696f6e 00 a573696e6365 00"
    "ab64657374696e6174696f6e 82 aa636c75737465725f6964 a163 a46e616d65 a16e"
    "a461676573 80"
    "a7736f7572636573 81 a16f 81 01 05"
    "a86f70656e696e6773 91 92 02 03"
)
# As it was written before the openings were remembered.
GOLDEN_CHECKPOINT_WITHOUT_OPENINGS = (
    bytes.fromhex("8941494f43484b0a 0100 0000 f3000000 0500000000000000 64750184 8e") + GOLDEN_CHECKPOINT[29:-13]
)

GOLDEN_CHECKPOINT_OF_ALL = bytes.fromhex(
    "8941494f43484b0a01000000090200000500000000000000af06471e"
    "8f"
    "ab70726f64756365725f696407"
    "a565706f636803"
    "aa736c6f745f6279746573cd4000"
    "a46d61696e85a977617465726d61726bcf0000020000000009ac6e6578745f6f7264696e616c07"
    "a7666c7573686564cf000002000000000b"
    "a76561726c6965729105a47365656e9106"
    "a5726574727984a977617465726d61726b02ac6e6578745f6f7264696e616c03a7666c757368656404"
    "ac62795f6f726967696e616c73c3"
    "a46465616483a977617465726d61726b01ac6e6578745f6f7264696e616c02a7666c757368656401"
    "a56d6f766564cf0000020000000004"
    "a7626f6f745f6964a162"
    "a6636c6f736564c3a8706f69736f6e6564c3"
    "a77375737065637483a575705f746f09aa67656e65726174696f6e02a573696e636501"
    "ab64657374696e6174696f6e86aa636c75737465725f6964a163a46e616d65a16e"
    "a77365727665727391a3683a31ae636c75737465725f6e756d62657202"
    "ad7472616e73616374696f6e616c86a46c696e659192a3702f3209"
    "a66f74686572739192a3712f3108"
    "a7726561645f696e03ac636f6d6d69747465645f6279a3702f32a5746f706963a174a66e756d62657201"
    "ad65787069726174696f6e5f6d7306"
    "a46167657385a56d61726b7391920506a7626f6f745f6d7307a777616c6c5f6d7308"
    "a76578706972656404a86c696d69745f6d7309"
    "a7736f757263657381a16f810105"
    "a86f70656e696e677391920203"
)


LANES_HEADER = lanes.Header(0x1122334455667788, 0x00ABCDEF, 0x0102, 0x030405, "b", 0x0A0B0C0D)
GOLDEN_LANES_HEADER = (
    bytes.fromhex(
        "8941494f4c414e0a 0100 0000 00420000 8877665544332211 efcdab00 0d0c0b0a 0201000000000000 0504030000000000"
    )
    + b"b".ljust(40, b"\0")
    + bytes.fromhex("4075ec7e")
)
GOLDEN_LANES_HEADER_UNCOUNTED = GOLDEN_LANES_HEADER[:28] + bytes(4) + GOLDEN_LANES_HEADER[32:-4] + b"\xc5\xc5\x98\x5b"
GOLDEN_LANE_ENTRY = bytes.fromhex("4c414e45 04030201 0807060504030201 04000000 97126b4d") + b"body"


def test_the_bytes_of_the_lanes_never_change() -> None:
    packed = lanes.pack_header(LANES_HEADER)
    assert packed == GOLDEN_LANES_HEADER.ljust(lanes.SECTOR, b"\0")
    assert lanes.unpack_header(packed) == LANES_HEADER
    assert lanes.unpack_header(GOLDEN_LANES_HEADER_UNCOUNTED) == replace(LANES_HEADER, standing=0)
    assert lanes.pack_entry(b"body", 0x01020304, 0x0102030405060708) == GOLDEN_LANE_ENTRY


def test_the_bytes_of_a_slot_header_never_change() -> None:
    assert fmt.pack_slot_header(HEADER) == GOLDEN_HEADER
    assert fmt.unpack_slot_header(GOLDEN_HEADER) == HEADER


def test_the_bytes_of_a_seal_never_change() -> None:
    assert fmt.pack_seal(SEAL, HEADER.salt) == GOLDEN_SEAL
    assert fmt.unpack_seal(GOLDEN_SEAL, HEADER.salt) == SEAL


def test_the_bytes_of_a_frame_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmt, "new_salt", lambda _: HEADER.salt)
    with Opened() as opened:
        opened.append(b"healt")
        assert opened.disk.ring.read(fmt.FIRST_FRAME, 28) == GOLDEN_FRAME
        ring = opened.ring
        ring._skip(ring.live[0], fmt.FIRST_FRAME, 5, 1)
        assert opened.disk.ring.read(fmt.FIRST_FRAME, 20) == GOLDEN_SKIP


def test_the_bytes_of_a_checkpoint_never_change() -> None:
    content = Checkpoint(
        producer_id=0x1122334455667788,
        epoch=3,
        main=RingState(fmt.position(2, 9), 7, fmt.position(2, 11)),
        slot_bytes=0x4000,
        moved=fmt.position(2, 4),
        boot_id="b",
        destination=Destination(cluster_id="c", name="n"),
        sources={"o": {1: 5}},
        openings=((2, 3),),
    )
    packed = checkpoint.pack(content, 5)
    assert packed.rstrip(b"\0") == GOLDEN_CHECKPOINT
    assert len(packed) == checkpoint.SECTOR
    older = checkpoint.unpack(GOLDEN_CHECKPOINT_WITHOUT_OPENINGS)
    assert older == checkpoint.Copy("valid", 5, msgspec.structs.replace(content, openings=()))
    assert checkpoint.unpack(packed) == checkpoint.Copy("valid", 5, content)


def test_the_bytes_of_all_that_a_checkpoint_may_say_never_change() -> None:
    content = Checkpoint(
        producer_id=7,
        epoch=3,
        slot_bytes=0x4000,
        main=RingState(fmt.position(2, 9), 7, fmt.position(2, 11), earlier=(5,), seen=(6,)),
        retry=RingState(2, 3, 4, by_originals=True),
        dead=RingState(1, 2, 1),
        moved=fmt.position(2, 4),
        boot_id="b",
        closed=True,
        poisoned=True,
        suspect=Suspicion(9, 2, 1),
        destination=Destination(
            "c",
            "n",
            ("h:1",),
            2,
            Transactional((("p/2", 9),), (("q/1", 8),), 3, committed_by="p/2", topic="t", number=1),
            6,
        ),
        ages=StoredAges(((5, 6),), 7, 8, 4, 9),
        sources={"o": {1: 5}},
        openings=((2, 3),),
    )
    packed = checkpoint.pack(content, 5)
    assert packed.rstrip(b"\0") == GOLDEN_CHECKPOINT_OF_ALL
    assert checkpoint.unpack(packed) == checkpoint.Copy("valid", 5, content)
    said = (content, content.main, content.retry, content.destination, content.destination.transactional, content.ages)
    assert all(getattr(one, name) for one in said if one for name in one.__struct_fields__ if name not in ONE_OF_TWO)


ONE_OF_TWO = {"by_originals", "earlier", "seen"}  # of the main ring, or of the retry ring


# -- the boxes of the package docstring ------------------------------------------------------------------------------

Box = list[tuple[str, int, int]]
"""Rows: field, size, offset"""


def box(title: str) -> Box:
    """The box under the heading that starts with ``title``."""
    assert wal.__doc__ is not None
    _, _, below = wal.__doc__.partition(f"    {title}, ")
    rows = re.findall(r"│ (\w+) +│ (\d+) +│ (\d+) +│", below.partition("└")[0])
    return [(name, int(size), int(offset)) for name, size, offset in rows]


def sizes(layout: struct.Struct) -> list[int]:
    """The size of each field of a struct, in order."""
    codes = re.findall(r"\d*[a-zA-Z]", layout.format.removeprefix("<"))
    return [struct.calcsize(f"<{code}") for code in codes]


LAYOUTS = [
    ("Slot header", fmt.SLOT_HEADER),
    ("Seal", fmt.SEAL),
    ("Frame", fmt.FRAME),
    ("Checkpoint copy", checkpoint.ENVELOPE),
    ("Moved record", MOVED),
    ("Lanes header", lanes.HEADER),
    ("Lane entry", lanes.ENTRY),
]


@pytest.mark.parametrize(("title", "layout"), LAYOUTS, ids=[title for title, _ in LAYOUTS])
def test_each_box_of_the_specification_is_the_struct(title: str, layout: struct.Struct) -> None:
    drawn = box(title)
    assert [size for _, size, _ in drawn] == sizes(layout)
    assert drawn[0][2] == 0
    for (_, size, offset), (_, _, following) in pairwise(drawn):
        assert offset + size == following
    assert drawn[-1][1] + drawn[-1][2] == layout.size
    assert f"{title}, {layout.size} bytes" in str(wal.__doc__)


def test_every_box_of_the_specification_is_compared() -> None:
    assert str(wal.__doc__).count("│ field ") == len(LAYOUTS)


def test_the_reserved_bytes_of_the_slot_box_are_those_of_the_code() -> None:
    assert str(wal.__doc__).count(f"│ {fmt.RESERVED} bytes: header, seal      │") == 2
    assert fmt.SLOT_HEADER.size == fmt.SEAL_OFFSET
    assert fmt.SEAL_OFFSET + fmt.SEAL.size <= fmt.RESERVED == fmt.FIRST_FRAME


def test_the_header_box_names_what_stands_there() -> None:
    packed = fmt.pack_slot_header(HEADER)
    for name, size, offset in box("Slot header"):
        stored = packed[offset : offset + size]
        known = {"magic": fmt.MAGIC, "version": b"\1\0", "zero": bytes(size), "crc": packed[-4:]}
        assert stored == (known[name] if name in known else getattr(HEADER, name).to_bytes(size, "little")), name


def test_the_seal_box_names_what_stands_there() -> None:
    packed = fmt.pack_seal(SEAL, HEADER.salt)
    for name, size, offset in box("Seal"):
        stored = packed[offset : offset + size]
        salt = HEADER.salt.to_bytes(4, "little")
        known = {"magic": fmt.SEAL_MAGIC, "salt": salt, "zero": bytes(size), "crc": packed[-4:]}
        assert stored == (known[name] if name in known else getattr(SEAL, name).to_bytes(size, "little")), name


def test_the_checkpoint_box_names_what_stands_there() -> None:
    packed = checkpoint.pack(Checkpoint(producer_id=1, epoch=2, slot_bytes=1 << 14), 0x0102030405060708)
    length = len(packed.rstrip(b"\0")) - checkpoint.ENVELOPE.size
    for name, size, offset in box("Checkpoint copy"):
        stored = packed[offset : offset + size]
        known = {"magic": checkpoint.MAGIC, "version": b"\1\0", "zero": bytes(size), "crc": stored}
        numbers = {"generation": 0x0102030405060708, "length": length}
        assert stored == (known[name] if name in known else numbers[name].to_bytes(size, "little")), name
    assert f"padded to {checkpoint.SECTOR}; two copies, {checkpoint.COPY_BYTES >> 10} KiB apart" in str(wal.__doc__)


def test_the_box_of_a_moved_record_names_what_stands_there() -> None:
    packed = pack_moved(0x0102030405060708, 0x1A2B3C4D, 9, b"payload")
    expected = {"position": 0x0102030405060708, "partition": 9, "nonce": 0x1A2B3C4D}
    for name, size, offset in box("Moved record"):
        assert packed[offset : offset + size] == expected[name].to_bytes(size, "little"), name


def test_the_boxes_of_the_lanes_name_what_stands_there() -> None:
    packed = lanes.pack_header(LANES_HEADER)
    for name, size, offset in box("Lanes header"):
        stored = packed[offset : offset + size]
        known = {"magic": lanes.MAGIC, "version": b"\1\0", "zero": bytes(size), "boot_id": b"b".ljust(size, b"\0")}
        known |= {"entry_bytes": lanes.ENTRY_BYTES.to_bytes(size, "little"), "crc": stored}
        assert stored == (known[name] if name in known else getattr(LANES_HEADER, name).to_bytes(size, "little")), name
    packed = lanes.pack_entry(b"body", 0x01020304, 0x0102030405060708)
    for name, size, offset in box("Lane entry"):
        stored = packed[offset : offset + size]
        known = {"magic": lanes.ENTRY_MAGIC, "crc": stored}
        numbers = {"epoch": 0x01020304, "generation": 0x0102030405060708, "length": 4}
        assert stored == (known[name] if name in known else numbers[name].to_bytes(size, "little")), name
    assert f"{lanes.ENTRY_BYTES:,} bytes" in str(wal.__doc__)
    assert f"padded to {lanes.SECTOR}, at the start of the file `lanes`" in str(wal.__doc__)


def test_the_frame_box_names_what_stands_there() -> None:
    with Opened() as opened:
        opened.append(b"first", b"second")
        slot = opened.ring.live[0]
        start = fmt.frame_end(fmt.FIRST_FRAME, len(b"first"))
        crc = fmt.frame_crc(b"second", slot.salt, 2)
        expected = {"length": 6, "crc": crc, "sequence": 2, "settle": fmt.open_word(slot.salt)}
        for name, size, offset in box("Frame"):
            stored = opened.disk.ring.read(start + offset, size)
            assert stored == expected[name].to_bytes(size, "little"), name


def test_the_numbers_on_the_hot_path_are_those_of_the_format() -> None:
    """`Ring.append` writes them as literals: a name costs 20 ns each."""
    assert fmt.FRAME_BYTES == 20
    assert fmt.SETTLE_WORD == 4
    assert fmt.SEQUENCE_WORD * fmt.WORD == 8
    assert fmt.CHECK_WORD * fmt.WORD == 4
    assert [fmt.aligned(offset) for offset in (0, 1, 3, 4, 5)] == [0, 4, 4, 4, 8]


# -- producer ids ----------------------------------------------------------------------------------------------------


def test_a_producer_id_is_13_characters_of_which_the_directory_has_the_first_7() -> None:
    assert fmt.producer_text(0x1122334455667788) == "cerdgrcvmz3yq"
    assert fmt.producer_text(fmt.with_nonce(0x1122334455667788, 0)) == "cerdgrcaaaaaa"
    assert fmt.producer_text(fmt.with_nonce(0x1122334455667788, fmt.NONCE_MASK)) == "cerdgrc777776"


@given(st.integers(0, 2**64 - 1), st.integers(0, fmt.NONCE_MASK))
def test_two_openings_of_a_directory_share_exactly_its_part(producer_id: int, nonce: int) -> None:
    other = fmt.with_nonce(producer_id, nonce)
    assert fmt.nonce_of(other) == nonce
    assert fmt.directory_of(other) == fmt.directory_of(producer_id)
    assert fmt.with_nonce(other, fmt.nonce_of(producer_id)) == producer_id
    texts = fmt.producer_text(producer_id), fmt.producer_text(other)
    assert texts[0][: fmt.DIRECTORY_TEXT] == texts[1][: fmt.DIRECTORY_TEXT]
    assert (texts[0] == texts[1]) is (other == producer_id)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_two_directories_differ_in_the_first_characters(one: int, other: int) -> None:
    starts = {fmt.producer_text(producer_id)[: fmt.DIRECTORY_TEXT] for producer_id in (one, other)}
    assert len(starts) == len({fmt.directory_of(one), fmt.directory_of(other)})


@given(st.integers(0, 2**64 - 1))
def test_a_producer_id_is_read_back_from_its_text(producer_id: int) -> None:
    assert fmt.producer_id_of(fmt.producer_text(producer_id)) == producer_id


@pytest.mark.parametrize(
    "text", ["", "abc", "cerdgrcvmz3y", "cerdgrcvmz3yqa", "CERDGRCVMZ3YQ", "cerdgrcvmz3yr", "1erdgrcvmz3yq"]
)
def test_what_is_no_producer_id_is_none(text: str) -> None:
    assert fmt.producer_id_of(text) is None


def test_each_draw_keeps_the_directory_and_a_new_one_has_its_own() -> None:
    drawn = [fmt.new_producer_id(0x1122334455667788) for _ in range(100)]
    assert {fmt.directory_of(one) for one in drawn} == {fmt.directory_of(0x1122334455667788)}
    assert len(set(drawn)) > 90
    assert len({fmt.directory_of(fmt.new_producer_id(None)) for _ in range(100)}) > 90


# -- damage ----------------------------------------------------------------------------------------------------------


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_no_bit_of_a_slot_header_flips_unseen() -> None:
    packed = fmt.pack_slot_header(HEADER)
    for bit in range(len(packed) * 8):
        assert fmt.unpack_slot_header(flipped(packed, bit)) is None, bit


def test_no_bit_of_a_seal_flips_unseen() -> None:
    packed = fmt.pack_seal(SEAL, HEADER.salt)
    for bit in range(len(packed) * 8):
        assert fmt.unpack_seal(flipped(packed, bit), HEADER.salt) is None, bit


def test_a_seal_of_an_earlier_life_does_not_count() -> None:
    assert fmt.unpack_seal(fmt.pack_seal(SEAL, HEADER.salt), HEADER.salt ^ 1) is None


def test_no_bit_of_a_checkpoint_flips_unseen() -> None:
    content = Checkpoint(producer_id=1, epoch=2, main=RingState(3), slot_bytes=4)
    packed = checkpoint.pack(content, 1).rstrip(b"\0")
    for bit in range(len(packed) * 8):
        assert checkpoint.unpack(flipped(packed, bit)).state == "damaged", bit


def test_no_bit_of_a_frame_flips_unseen() -> None:
    """Length, checksum, sequence, payload: the frame is passed, reported, and its neighbours are delivered."""
    payloads = [b"before", b"a payload!", b"behind"]
    with Opened() as opened:
        opened.append(*payloads)
        start = fmt.frame_end(fmt.FIRST_FRAME, len(payloads[0]))
        disk = opened.disk.after_death()
    settle_word = range((start + 16) * 8, (start + 20) * 8)
    frame = range(start * 8, (start + fmt.FRAME_BYTES + len(payloads[1])) * 8)
    for bit in frame:
        damaged = disk.after_death()
        damaged.ring.flip(bit)
        with Opened(damaged) as following:
            records = [record for _, record in found(following.read())]
            if bit in settle_word:  # neither settled nor lost by one bit
                assert records == payloads, bit
                assert missing(following.ring) == [], bit
            else:
                assert records == [payloads[0], payloads[2]], bit
                assert missing(following.ring) == [(1, 2)], bit


def test_a_flipped_settle_word_of_a_settled_frame_harms_no_other() -> None:
    """In the high half it delivers the frame again; the low half only says when it was settled."""
    with Opened() as opened:
        opened.append(b"first", b"second")
        opened.settle(opened.read()[:1])
        disk = opened.disk.after_death()
    for bit in range((fmt.FIRST_FRAME + 16) * 8, (fmt.FIRST_FRAME + 20) * 8):
        damaged = disk.after_death()
        damaged.ring.flip(bit)
        with Opened(damaged) as following:
            again = [b"first"] if bit % 32 >= fmt.MARK_BITS else []
            assert [record for _, record in found(following.read())] == [*again, b"second"], bit


# -- versions --------------------------------------------------------------------------------------------------------


def test_a_slot_header_of_a_newer_version_is_refused_and_says_so() -> None:
    changed = bytearray(fmt.pack_slot_header(HEADER))
    changed[8] = 2
    changed[-4:] = crc32(changed[:-4]).to_bytes(4, "little")
    with pytest.raises(WalFormatError, match="newer aiorecover: upgrade to read it version=2 supported=1"):
        fmt.unpack_slot_header(bytes(changed))


# -- numbers ---------------------------------------------------------------------------------------------------------

epochs = st.integers(0, fmt.EPOCH_MAX)
sequences = st.integers(0, fmt.SEQUENCE_MASK)


@given(st.tuples(epochs, sequences), st.tuples(epochs, sequences))
def test_positions_are_in_the_order_of_epochs_and_sequences(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (fmt.position(*one) < fmt.position(*other)) == (one < other)


def test_the_highest_position_is_a_signed_64_bit_integer() -> None:
    assert fmt.position(fmt.EPOCH_MAX, fmt.SEQUENCE_MASK) == 2**63 - 1


@pytest.mark.parametrize("sequence", [1, 2, 3, 2**32, 2**32 + 3, fmt.SEQUENCE_MASK])
def test_a_frame_s_checksum_begins_with_salt_plus_sequence_modulo_two_to_the_32nd(sequence: int) -> None:
    for salt in (1, 0xFFFF_FFFE):
        assert fmt.frame_crc(b"payload", salt, sequence) == crc32(b"payload", (salt + sequence) % 2**32)
        length = fmt.SKIP_BIT | 7
        assert fmt.skip_crc(length, salt, sequence) == crc32(length.to_bytes(4, "little"), (salt + sequence) % 2**32)


words = st.integers(0, 2**32 - 1)
wide = st.integers(0, 2**64 - 1)


@given(st.builds(fmt.SlotHeader, words, wide, wide, words, words, wide, wide))
def test_any_header_comes_back_as_it_was(header: fmt.SlotHeader) -> None:
    assert fmt.unpack_slot_header(fmt.pack_slot_header(header)) == header


@given(st.builds(fmt.Seal, words, words, wide), words)
def test_any_seal_comes_back_as_it_was(seal: fmt.Seal, salt: int) -> None:
    assert fmt.unpack_seal(fmt.pack_seal(seal, salt), salt) == seal


def test_a_new_salt_is_no_word_of_the_life_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = 0x12345678
    refused = [0, 0xFFFF_FFFF, before, before ^ 0xFFFF_FFFF]
    drawn = iter([*refused, *(word ^ 0x0000_4321 for word in refused), 0x9ABCDEF0])
    monkeypatch.setattr("secrets.randbits", lambda _: next(drawn))
    assert fmt.new_salt(before) == 0x9ABCDEF0


@given(st.integers(0, fmt.MASK32), st.integers(0, fmt.MASK32), st.integers(0, fmt.MARKS - 1))
def test_no_settle_word_of_one_life_says_anything_in_the_next(before: int, drawn: int, mark: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        words = iter([drawn, *range(0x12345678, 0xFFFF_FFFF, 0x1111_1111)])
        patch.setattr("secrets.randbits", lambda _: next(words))
        salt = fmt.new_salt(before)
    assert fmt.mark_of(fmt.done_word(salt, mark), salt) == mark
    for old in (fmt.open_word(before), fmt.done_word(before, mark), 0):
        assert fmt.mark_of(old, salt) is None
        assert old != fmt.open_word(salt)


@given(st.integers(0, 2**24), st.integers(0, 2**24))
def test_frames_start_on_words_and_never_overlap(offset: int, length: int) -> None:
    end = fmt.frame_end(fmt.aligned(offset), length)
    assert end % fmt.WORD == 0
    assert 0 <= end - fmt.aligned(offset) - fmt.FRAME_BYTES - length < fmt.WORD
    assert fmt.frame_end(fmt.aligned(offset), length | fmt.SKIP_BIT) == end  # a skip frame takes the same space


def test_every_salt_that_a_slot_may_get_is_one_that_a_header_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = iter(range(1 << fmt.MARK_BITS))
    monkeypatch.setattr("secrets.randbits", lambda _: next(halves) << fmt.MARK_BITS | 1)
    salts = [fmt.new_salt(1 << fmt.MARK_BITS) for _ in range((1 << fmt.MARK_BITS) - 4)]  # all halves but four
    header = fmt.SlotHeader(1 << 14, 1, 1, 1, 1, 1, 1)
    assert [hex(salt) for salt in salts if not fmt.header_fits(replace(header, salt=salt))] == []
    assert not fmt.header_fits(replace(header, salt=1))
    assert fmt.header_fits(replace(header, salt=salts[0], epoch=fmt.EPOCH_MAX))
    assert not fmt.header_fits(replace(header, salt=fmt.MASK32))


def test_a_slot_ends_with_no_sequence_that_there_cannot_be() -> None:
    header = fmt.SlotHeader(1 << 14, 1, 1, 1, 1, first_sequence=fmt.SEQUENCE_MASK, created_ms=1)
    last = fmt.Seal(1, fmt.FIRST_FRAME + 2 * fmt.FRAME_BYTES, fmt.SEQUENCE_MASK)
    assert fmt.seal_fits(last, header)
    assert not fmt.seal_fits(replace(last, last_sequence=fmt.SEQUENCE_MASK + 1), header)
