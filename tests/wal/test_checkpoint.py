"""Two alternating copies: a torn write costs one interval, and never the directory."""

from contextlib import suppress
from itertools import combinations, count
from zlib import crc32

import msgspec
import pytest
from msgspec.structs import replace

from aiorecover.delivery.committed import LINE_MOST, OTHERS_MOST
from aiorecover.errors import EncodeError, WalCorruptError, WalFormatError, WalIOError
from aiorecover.wal import checkpoint
from aiorecover.wal import format as fmt
from aiorecover.wal.ages import StoredAges
from aiorecover.wal.checkpoint import (
    CLUSTER_NUMBERS,
    COPY_BYTES,
    OPENINGS_MOST,
    Checkpoint,
    CheckpointFile,
    Destination,
    RingState,
    Transactional,
)
from aiorecover.wal.ends import ENDS_MOST
from aiorecover.wal.sources import Sources
from tests.wal.memory import SECTOR, FaultyFile, MemoryFile, broken
from tests.wal.rig import Opened


def content(watermark: int, destination: Destination | None = None) -> Checkpoint:
    return Checkpoint(
        producer_id=1, epoch=2, main=RingState(watermark), slot_bytes=4096, destination=destination or Destination()
    )


def states(file: MemoryFile) -> list[str]:
    return [copy.state for copy in CheckpointFile(file).copies]


def newest(file: MemoryFile) -> int | None:
    """The watermark that an opening would start from."""
    found = CheckpointFile(file).newest()
    return None if found is None else found.watermark


def test_a_new_file_has_two_blank_copies_and_no_checkpoint() -> None:
    assert states(MemoryFile("new")) == ["blank", "blank"]
    assert newest(MemoryFile("new")) is None
    assert states(MemoryFile("allocated", bytes(2 * COPY_BYTES))) == ["blank", "blank"]


def test_the_copies_take_turns_and_the_newest_counts() -> None:
    file = MemoryFile("checkpoint")
    writer = CheckpointFile(file)
    for number in range(1, 10):
        before = CheckpointFile(file).copies
        writer.write(content(number))
        after = CheckpointFile(file).copies
        assert [index for index in (0, 1) if before[index] != after[index]] == [number % 2]
        assert newest(file) == number
        assert newest(file.after_power_cut(number)) == number  # durable when write returns


def test_a_reopened_file_goes_on_with_the_older_copy() -> None:
    file = MemoryFile("checkpoint")
    for number in range(1, 8):
        CheckpointFile(file).write(content(number))
        assert newest(file) == number
    assert sorted(copy.generation for copy in CheckpointFile(file).copies) == [6, 7]


@pytest.mark.parametrize("history", range(1, 5))
def test_word_of_a_failed_flush_takes_the_place_of_the_older_copy(history: int) -> None:
    """Nothing of it need reach the disk, or only a piece: what counted before still does."""
    file = MemoryFile("checkpoint")
    writer = CheckpointFile(file)
    for number in range(1, history + 1):
        writer.write(content(number))
    before = CheckpointFile(file).copies
    writer.leave_word(content(99))
    after = CheckpointFile(file).copies
    assert before[history % 2] == after[history % 2]
    assert newest(file) == 99


def test_an_epoch_is_written_to_both_copies() -> None:
    for history in range(3):
        file = MemoryFile("checkpoint")
        writer = CheckpointFile(file)
        for number in range(history):
            writer.write(content(number))
        writer.write_both(content(99))
        assert [copy.checkpoint for copy in CheckpointFile(file).copies] == [content(99), content(99)]


@pytest.mark.parametrize("history", [2, 3])
def test_a_power_cut_during_a_write_leaves_the_old_or_the_new_one(history: int) -> None:
    file = FaultyFile("checkpoint")
    writer = CheckpointFile(file)
    for number in range(history):
        writer.write(content(number))
    file.before["sync"] = broken
    long = Destination(cluster_id="c" * 3 * SECTOR)  # several sectors: it can be torn
    with pytest.raises(WalIOError):
        writer.write(content(1000, long))
    assert {newest(file.after_power_cut(seed)) for seed in range(30)} == {history - 1, 1000}


def test_a_power_cut_can_tear_a_write() -> None:
    """The test above would prove nothing if it never happened."""
    seen = set()
    for seed in range(40):
        file = FaultyFile("checkpoint")
        writer = CheckpointFile(file)
        writer.write_both(content(1))
        file.before["sync"] = broken
        with pytest.raises(WalIOError):
            writer.write(content(2, Destination(cluster_id="c" * 3 * SECTOR)))
        cut = file.after_power_cut(seed)
        seen.add((tuple(states(cut)), newest(cut)))
    assert seen == {
        (("valid", "valid"), 1),
        (("valid", "damaged"), 1),
        (("valid", "valid"), 2),
    }


def test_the_first_write_torn_leaves_no_checkpoint() -> None:
    file = FaultyFile("checkpoint")
    file.before["sync"] = broken
    with pytest.raises(WalIOError):
        CheckpointFile(file).write(content(1))
    assert {newest(file.after_power_cut(seed)) for seed in range(20)} == {None, 1}


@pytest.mark.parametrize("damaged", [0, 1])
def test_one_damaged_copy_falls_back_to_the_other_and_is_written_next(damaged: int) -> None:
    file = MemoryFile("checkpoint")
    writer = CheckpointFile(file)
    for number in range(1, 5):
        writer.write(content(number))
    other = 4 if damaged == 1 else 3  # number % 2 is the place
    file.damage(damaged * COPY_BYTES + 40, b"\xff\xff\xff\xff")
    assert newest(file) == other
    CheckpointFile(file).write(content(50))
    assert states(file) == ["valid", "valid"]
    assert newest(file) == 50


def test_both_copies_damaged_is_no_checkpoint() -> None:
    file = MemoryFile("checkpoint")
    CheckpointFile(file).write_both(content(1))
    for start in (0, COPY_BYTES):
        file.damage(start + 40, b"\xff\xff\xff\xff")
    assert states(file) == ["damaged", "damaged"]
    assert newest(file) is None


@pytest.mark.parametrize("size", [1, 27, 28, 29, 60, COPY_BYTES - 1, COPY_BYTES, COPY_BYTES + 28, COPY_BYTES + 60])
def test_a_file_that_was_cut_anywhere_still_opens(size: int) -> None:
    file = MemoryFile("checkpoint")
    CheckpointFile(file).write_both(content(1))
    file.cut(size)
    assert newest(file) == (1 if size >= COPY_BYTES - 1 else None)


@pytest.mark.parametrize("newer", [0, 1])
def test_one_copy_of_a_newer_version_is_refused_and_says_so(newer: int) -> None:
    """Never fall back behind it: the newer program may have recycled what the older copy does not know of."""
    file = MemoryFile("checkpoint")
    CheckpointFile(file).write_both(content(1))
    head = bytearray(checkpoint.pack(content(1), 9))
    head[8] = 2
    body = bytes(head[checkpoint.ENVELOPE.size :][: int.from_bytes(head[12:16], "little")])
    crc = crc32(body, crc32(bytes(head[: checkpoint.ENVELOPE.size - 4])))
    head[checkpoint.ENVELOPE.size - 4 : checkpoint.ENVELOPE.size] = crc.to_bytes(4, "little")
    file.damage(newer * COPY_BYTES, bytes(head))
    with pytest.raises(WalFormatError, match="newer aiorecover: upgrade to read it version=2 supported=1"):
        CheckpointFile(file)


def test_a_checkpoint_too_large_is_refused_and_the_older_one_stays() -> None:
    file = MemoryFile("checkpoint")
    writer = CheckpointFile(file)
    writer.write_both(content(1))
    before = file.live()
    with pytest.raises(WalCorruptError, match=r"does not fit its place: use fewer source partitions bytes=\d+$"):
        writer.write(content(2, Destination(cluster_id="x" * COPY_BYTES)))
    assert file.live() == before
    writer.write(content(3))
    assert newest(file) == 3


def test_the_largest_checkpoint_fits() -> None:
    file = MemoryFile("checkpoint")
    writer = CheckpointFile(file)
    writer.write_both(content(1))
    room = COPY_BYTES - len(checkpoint.pack(content(2, Destination(cluster_id="x" * 40000)), 3).rstrip(b"\0")) + 40000
    writer.write(content(2, Destination(cluster_id="x" * room)))
    with pytest.raises(WalCorruptError):
        writer.write(content(3, Destination(cluster_id="x" * (room + 1))))
    assert newest(file) == 2


def test_all_that_a_checkpoint_may_have_to_hold_fits_at_once() -> None:
    """Each part has a bound of its own, and whoever added one may not have thought of the others."""
    sources = Sources({})
    with suppress(EncodeError):
        for part in count((1 << 31) - 100_000):
            sources.check("clicks", part)
            sources.note("clicks", part, 1 << 62)
    assert len(sources) > 2_000
    last = fmt.position(fmt.EPOCH_MAX, 0) - 1
    ends = (last,) * ENDS_MOST
    ring = RingState(last, 1 << 62, last, by_originals=True, earlier=ends, seen=ends)
    owner = f"{'a' * 13}/{fmt.EPOCH_MAX}"
    line, others = ((owner, last),) * LINE_MOST, ((owner, last),) * OTHERS_MOST
    known = Transactional(line, others, fmt.EPOCH_MAX, owner, "t" * 249, 1 << 30)
    written = Checkpoint(
        producer_id=(1 << 64) - 1,
        epoch=fmt.EPOCH_MAX,
        slot_bytes=1 << 30,
        main=ring,
        retry=ring,
        dead=ring,
        boot_id="b" * 36,
        destination=Destination("c" * 22, "n" * 255, ("broker.example.org:9092",) * 32, transactional=known),
        ages=StoredAges(((last, 1 << 50),) * 600, 1 << 50, 1 << 50, last, 1 << 50),
        sources=sources.captured(),
        openings=((fmt.EPOCH_MAX - 1, fmt.NONCE_MASK),) * OPENINGS_MOST,
    )
    assert checkpoint.unpack(checkpoint.pack(written, 1)).checkpoint == written


def test_a_copy_that_holds_but_says_something_else_is_damaged() -> None:
    """A checksum of other content: another program's, or a field that this version needs is not there."""
    body = msgspec.msgpack.encode({"producer_id": 1})
    assert checkpoint.unpack(holding(body)).state == "damaged"


def test_a_copy_that_holds_but_was_written_by_another_program_is_damaged() -> None:
    body = msgspec.msgpack.encode(content(1))
    assert checkpoint.unpack(holding(body)).state == "valid"
    other = bytes(len(checkpoint.MAGIC))
    assert checkpoint.unpack(holding(body, magic=other)).state == "damaged"


def holding(body: bytes, magic: bytes = checkpoint.MAGIC) -> bytes:
    """A copy whose checksum holds."""
    head = checkpoint.ENVELOPE.pack(magic, 1, 0, len(body), 9, 0)[:-4]
    return head + crc32(body, crc32(head)).to_bytes(4, "little") + body


@pytest.mark.parametrize("producer_id", [0, 2**64 - 1])
def test_a_checkpoint_holds_whichever_64_bits_its_producer_was_given(producer_id: int) -> None:
    """They are random: a directory whose own are at the edge must not take its checkpoint for damaged."""
    file = MemoryFile("checkpoint")
    CheckpointFile(file).write_both(replace(content(1), producer_id=producer_id))
    assert states(file) == ["valid", "valid"]


def test_a_failed_flush_does_not_advance_the_generation() -> None:
    """The same place is written again: the other copy is the one that is durable (I4)."""
    file = FaultyFile("checkpoint")
    writer = CheckpointFile(file)
    writer.write_both(content(1))
    file.before["sync"] = broken
    for number in (2, 3):
        with pytest.raises(WalIOError):
            writer.write(content(number))
    del file.before["sync"]
    for seed in range(10):
        assert newest(file.after_power_cut(seed)) in {1, 3}


@pytest.mark.parametrize("last", [0, 7, CLUSTER_NUMBERS - 1])
def test_a_destination_is_not_taken_back_by_a_checkpoint_that_was_captured_before(last: int) -> None:
    """The compactor may capture one while the write that remembers another cluster is still under way."""
    unknown = Destination(servers=("a:9092",), cluster_number=last)
    first = Destination(cluster_id="first", cluster_number=last)
    second = Destination(cluster_id="second", cluster_number=first.next_number)
    for older, newer in [(unknown, first), (first, second), (unknown, second), (first, first)]:
        assert content(2, older).after(content(1, newer)) == content(2, newer)
        assert content(2, newer).after(content(1, older)) == content(2, newer)


@pytest.mark.parametrize("last", [0, CLUSTER_NUMBERS - 7])
def test_a_destination_that_is_fewer_than_half_of_the_numbers_ahead_is_the_newer_one(last: int) -> None:
    """Behind that they have come round: it is the older one."""
    half = CLUSTER_NUMBERS // 2
    here = Destination(cluster_id="here", cluster_number=last)
    for ahead, newer in [(half - 1, True), (half, False), (half + 1, False)]:
        there = Destination(cluster_id="there", cluster_number=(last + ahead) % CLUSTER_NUMBERS)
        assert here.after(there) == (there if newer else here)


READ_BEFORE = Transactional(line=(("a/1", 5), ("b/2", 0)), read_in=2)
READ = Transactional(line=(("b/2", 7), ("c/3", 0)), read_in=3, topic="orders")


@pytest.mark.parametrize("cluster_id", [None, "ours"])
def test_what_is_known_of_the_position_is_not_taken_back_by_a_checkpoint_that_was_captured_before(
    cluster_id: str | None,
) -> None:
    older, newer = (Destination(cluster_id=cluster_id, transactional=known) for known in (READ_BEFORE, READ))
    assert older.after(newer) == newer
    assert newer.after(older) == newer


@pytest.mark.parametrize("cluster_id", [None, "ours"])
def test_what_the_brokers_told_is_remembered_whether_the_cluster_is_known_or_not(cluster_id: str | None) -> None:
    nothing = Destination(cluster_id=cluster_id)
    told, again = (replace(nothing, expiration_ms=told) for told in (3_000, 4_000))
    assert told.after(nothing) == told
    assert nothing.after(told) == told
    assert again.after(told) == again


def test_what_brokers_without_an_id_told_is_not_taken_for_what_a_cluster_did() -> None:
    nobody, somebody = Destination(expiration_ms=3_000), Destination(cluster_id="ours")
    assert somebody.after(nobody) == somebody
    assert nobody.after(somebody) == somebody


@pytest.mark.parametrize("cluster_id", [None, "ours"])
def test_what_is_first_known_of_the_position_is_remembered_whether_the_cluster_is_known_or_not(
    cluster_id: str | None,
) -> None:
    known = Destination(transactional=READ_BEFORE)
    durable = Destination(cluster_id=cluster_id)
    assert known.after(durable) == Destination(cluster_id=cluster_id, transactional=READ_BEFORE)
    assert replace(durable, transactional=READ_BEFORE).after(durable).transactional == READ_BEFORE


def test_a_cluster_that_is_known_and_a_position_that_is_newer_are_both_remembered() -> None:
    """Each may be captured while the other one is being written."""
    both = Destination(cluster_id="ours", transactional=READ)
    assert Destination(cluster_id="ours", transactional=READ_BEFORE).after(Destination(transactional=READ)) == both
    assert Destination(transactional=READ).after(Destination(cluster_id="ours", transactional=READ_BEFORE)) == both


def test_where_records_go_in_transactions_no_more_that_is_remembered() -> None:
    durable = Destination(cluster_id="ours", transactional=READ)
    assert Destination(cluster_id="ours").after(durable) == Destination(cluster_id="ours")


def test_of_another_cluster_the_position_is_another_one() -> None:
    first = Destination(cluster_id="first", transactional=READ)
    second = Destination(cluster_id="second", cluster_number=first.next_number, transactional=READ_BEFORE)
    assert second.after(first) == second
    assert first.after(second) == second


def test_a_position_is_known_as_it_was_written_and_an_older_file_knows_none() -> None:
    file, known = MemoryFile("checkpoint"), replace(READ, read_in=1)
    CheckpointFile(file).write_both(content(1, Destination(cluster_id="ours", transactional=known)))
    found = CheckpointFile(file).newest()
    assert found is not None
    assert found.destination.transactional == known
    packed = checkpoint.pack(content(1, Destination(cluster_id="ours")), 1)
    assert b"transactional" not in packed  # it is as files were before there was the field
    read = checkpoint.unpack(packed).checkpoint
    assert read is not None
    assert read.destination == Destination(cluster_id="ours")


def test_what_is_remembered_of_a_cluster_stays_in_the_file() -> None:
    opened = Opened()
    captured = opened.directory.next_checkpoint()
    other = Destination(cluster_id="ours")
    opened.directory.write_checkpoint(opened.directory.next_checkpoint(destination=other))
    opened.directory.write_checkpoint(captured)
    assert opened.directory.checkpoint.destination == other
    assert [
        copy.checkpoint.destination for copy in CheckpointFile(opened.disk.checkpoint).copies if copy.checkpoint
    ] == [
        other,
        other,
    ]


def test_a_copy_that_nobody_flushed_is_durable_before_the_other_one_is_overwritten() -> None:
    """The process died between storing and flushing; the next one opens, and the machine goes down while it does."""
    for seed in range(50):
        file = FaultyFile("checkpoint")
        writer = CheckpointFile(file)
        for watermark in (1, 2):
            writer.write(content(watermark, Destination(cluster_id="first" * 300)))
        writer.leave_word(content(3, Destination(cluster_id="second" * 300)))  # stored, and no more
        after = file.after_death()
        following = CheckpointFile(after)
        following.secure()
        after.before["sync"] = broken
        with pytest.raises(WalIOError):
            following.write_both(content(4))
        assert newest(after.after_power_cut(seed)) in {3, 4}


OLDEST, OLDER = fmt.position(1, 4), fmt.position(2, 7)  # how far the two epochs before were flushed
STATES = {
    "nothing stored yet": RingState(2, 3, OLDER, by_originals=True, earlier=(OLDEST,)),
    "more settled": RingState(OLDEST, 3, OLDER, by_originals=True),
    "copies not made": RingState(2, 4, fmt.position(3, 0), earlier=(OLDEST, OLDER)),
    "begun": RingState(2, 4, fmt.position(3, 1), earlier=(OLDEST, OLDER)),
    "gone on": RingState(OLDER, 5, fmt.position(3, 6)),
}


@pytest.mark.parametrize(("one", "other"), list(combinations(STATES, 2)))
def test_whichever_of_two_checkpoints_is_written_behind_the_other_nothing_is_taken_back(one: str, other: str) -> None:
    """Of the ends of epochs, as far as something may wait there."""
    states = STATES[one], STATES[other]
    for known in (states[0].after(states[1]), states[1].after(states[0])):
        assert known.watermark == max(state.watermark for state in states)
        assert known.next_ordinal == max(state.next_ordinal for state in states)
        assert known.by_originals == all(state.by_originals for state in states)
        ends = {fmt.parts(end)[0]: end for end in sorted(end for state in states for end in state.ends)}
        assert [end for end in known.ends if end > known.watermark] == [
            end for end in ends.values() if end > known.watermark
        ]
