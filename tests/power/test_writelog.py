import random
from collections.abc import Sequence

import pytest

from tests.power.writelog import SECTOR, Write, WriteLog, apply, pack_flush, pack_write, survivors, unpack

DISK = 16 * SECTOR
SEEDS = range(400)


def sector(number: int, letter: str, count: int = 1) -> Write:
    """Far from ext4's superblock."""
    return Write((8 + number) * SECTOR, letter.encode() * SECTOR * count)


def image(writes: Sequence[Write]) -> str:
    """The first letters of the sectors."""
    disk = bytearray(b"." * DISK)
    apply(disk, writes)
    return "".join(chr(disk[(8 + number) * SECTOR]) for number in range(4))


def images(pending: Sequence[Write]) -> set[str]:
    return {image(survivors(pending, random.Random(seed))) for seed in SEEDS}


def test_what_was_written_before_a_flush_is_durable_and_what_came_after_is_pending() -> None:
    first, second, third = sector(0, "a"), sector(1, "b"), sector(2, "c")
    log = WriteLog([first, None, second, third, None])
    told = [(log.durable(0, point), log.pending(point)) for point in range(len(log) + 1)]
    assert told == [
        ([], []),
        ([], [first]),
        ([first], []),
        ([first], [second]),
        ([first], [second, third]),
        ([first, second, third], []),
    ]


def test_a_disk_is_built_on_from_an_earlier_point() -> None:
    log = WriteLog([sector(0, "a"), None, sector(1, "b"), None, sector(2, "c")])
    assert log.durable(log.flushed(2), 5) == [sector(1, "b")]


def test_without_a_flush_nothing_is_durable() -> None:
    log = WriteLog([sector(0, "a"), sector(0, "b")])
    assert log.durable(0, 2) == []
    assert log.flushed(2) == 0
    assert log.flushes == 0


def test_of_pending_writes_any_part_may_survive() -> None:
    assert images([sector(0, "a"), sector(1, "b"), sector(2, "c")]) == {
        f"{a}{b}{c}." for a in "a." for b in "b." for c in "c."
    }


def test_a_sector_holds_any_of_its_versions() -> None:
    assert images([sector(0, "a"), sector(0, "b")]) == {"....", "a...", "b..."}


def test_a_write_is_torn_between_sectors_and_only_there() -> None:
    found = images([sector(0, "a", 3)])
    assert found == {f"{a}{b}{c}." for a in "a." for b in "a." for c in "a."}
    pieces = [piece for seed in SEEDS for piece in survivors([sector(0, "a", 3)], random.Random(seed))]
    assert {len(piece.data) for piece in pieces} == {SECTOR, 3 * SECTOR}
    assert all(piece.offset % SECTOR == 0 for piece in pieces)


def test_a_write_that_begins_inside_a_sector_keeps_its_place() -> None:
    write = Write(8 * SECTOR + 100, bytes(range(256)) * 4)
    disk, torn = bytearray(DISK), bytearray(DISK)
    apply(disk, [write])
    apply(torn, write.sectors())
    assert torn == disk
    assert [len(piece.data) for piece in write.sectors()] == [SECTOR - 100, SECTOR, 100]


def test_the_superblock_is_one_piece_as_ext4_assumes() -> None:
    assert [(piece.offset, len(piece.data)) for piece in Write(0, bytes(4096)).sectors()] == [
        (0, 512),
        (512, 512),
        (1024, 1024),
        (2048, 512),
        (2560, 512),
        (3072, 512),
        (3584, 512),
    ]


def test_one_write_may_be_missing_among_many_that_survived_or_the_other_way_round() -> None:
    pending = [Write(number * SECTOR, b"x" * SECTOR) for number in range(8, 208)]
    remains = [survivors(pending, random.Random(seed)) for seed in SEEDS]
    assert {0, 1, len(pending) - 1, len(pending)} <= {len(kept) for kept in remains}


def test_the_power_may_go_in_the_middle_of_a_write_that_follows_others() -> None:
    pending = [Write(number * SECTOR, b"x" * SECTOR * 8) for number in range(8, 1608, 8)]
    torn = set()
    for seed in SEEDS:
        remains = survivors(pending, random.Random(seed))
        whole = [piece for piece in remains if len(piece.data) == 8 * SECTOR]
        if 20 < len(whole) < len(remains):
            torn.add(len(remains) - len(whole))
            assert whole == pending[: len(whole)]
            assert remains[len(whole)].offset == pending[len(whole)].offset
    assert {1, 7} <= torn <= set(range(1, 9))  # sectors of the write that was under way


def test_nothing_survives_that_was_not_written() -> None:
    pending = [sector(0, "a", 2), sector(1, "b", 2), sector(3, "c")]
    versions = {number: {".", *letters} for number, letters in enumerate(["a", "ab", "b", "c"])}
    for found in images(pending):
        assert all(letter in versions[number] for number, letter in enumerate(found))


def test_the_remains_are_those_of_the_seed() -> None:
    pending = [sector(number, "a") for number in range(4)]
    assert all(survivors(pending, random.Random(seed)) == survivors(pending, random.Random(seed)) for seed in SEEDS)


def test_nothing_pending_leaves_nothing() -> None:
    assert survivors([], random.Random(1)) == []


@pytest.mark.parametrize("entries", [[], [None], [sector(0, "a"), None, None, sector(3, "b", 2)]], ids=str)
def test_a_log_file_gives_back_what_was_entered(entries: list[Write | None]) -> None:
    data = b"".join(pack_flush() if entry is None else pack_write(entry.offset, entry.data) for entry in entries)
    assert unpack(data).entries == entries
