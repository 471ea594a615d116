"""The file of the lanes: what counts of it, whatever became of its bytes; and room for a thousand lanes."""

import os
import threading
from contextlib import nullcontext, suppress
from functools import partial

import pytest

from aiorecover.errors import WalCorruptError, WalFormatError, WalFullError, WalIOError
from aiorecover.wal import lanes as module
from aiorecover.wal.checksum import crc32
from aiorecover.wal.lanes import (
    BLOCK_BYTES,
    BODY_MOST,
    ENTRY_BYTES,
    FIRST_BLOCKS,
    SECTOR,
    BlockFound,
    Header,
    Lanes,
    pack_entry,
    pack_header,
    unpack_entry,
    unpack_header,
)
from tests.wal.memory import PAGE, FaultyFile, broken, no_blocks, no_room
from tests.wal.real_files import real_files
from tests.wal.rig import Disk, Opened

PRODUCER = 7
EPOCH = 1


def opened(file: FaultyFile, *, epoch: int = EPOCH, boot: str = "boot", producer: int = PRODUCER) -> Lanes:
    return Lanes(file, producer, epoch, boot)


def stored(*bodies: bytes) -> FaultyFile:
    """A file with one block, and these bodies stored in it one after the other."""
    file = FaultyFile("lanes")
    lanes = opened(file)
    lanes.grow()
    block = lanes.take()
    assert block == 0
    for body in bodies:
        lanes.store(block, body)
    return file


def found(file: FaultyFile, *, epoch: int = EPOCH + 1, **more: object) -> list[BlockFound]:
    """What the next opening finds."""
    return opened(file, epoch=epoch, **more).found  # type: ignore[arg-type]


# -- an entry --------------------------------------------------------------------------------------------------------


def test_a_new_file_holds_nothing() -> None:
    assert found(FaultyFile("lanes")) == []


def test_the_newer_of_two_entries_comes_first() -> None:
    for count in range(1, 6):
        bodies = [b"body %d" % number for number in range(count)]
        assert found(stored(*bodies)) == [
            BlockFound(0, tuple(bodies[: -3 if count > 2 else None : -1]), False, True, EPOCH)
        ]


def test_an_entry_stands_where_the_specification_says() -> None:
    """Another version has to find it: a sector for the header, then for each lane two copies of 16,896 bytes."""
    file = FaultyFile("lanes")
    lanes = opened(file)
    lanes.grow()
    assert file.size() == 512 + 8 * 2 * 16_896
    for block in (0, 3, 7):
        lanes.store(block, b"first")
        lanes.store(block, b"second")
        for copy, body in ((1, b"first"), (0, b"second")):
            place = 512 + (2 * block + copy) * 16_896
            assert file.read(place, 4) == b"LANE"
            assert file.read(place + 24, len(body)) == body


def test_the_longest_body_fits_its_place() -> None:
    assert found(stored(b"a", b"x" * BODY_MOST))[0].bodies == (b"x" * BODY_MOST, b"a")
    assert len(pack_entry(b"x" * BODY_MOST, 1, 1)) == ENTRY_BYTES


def test_a_store_that_was_cut_off_anywhere_leaves_the_entry_before_and_a_doubt() -> None:
    """At every byte of the new copy; after the last one, and before the first, there is no doubt."""
    old, new = b"old" * 10, b"newer" * 9
    whole = stored(b"older", old).live()
    packed = pack_entry(new, 1, 3)
    place = SECTOR + ENTRY_BYTES  # of the odd generations
    for cut in range(len(packed) + 1):
        image = bytearray(whole)
        image[place : place + cut] = packed[:cut]
        block = found(FaultyFile("lanes", bytes(image)))[0]  # a copy, in which nothing is known
        if cut == len(packed):
            assert block == BlockFound(0, (new, old), False, False, EPOCH)
        elif bytes(image) == whole:
            assert block == BlockFound(0, (old, b"older"), False, False, EPOCH)
        else:
            assert block == BlockFound(0, (old,), True, False, EPOCH), cut


def test_every_flipped_bit_of_an_entry_is_a_doubt() -> None:
    file = stored(b"one", b"two")
    image = file.live()
    for copy in (0, 1):
        start = SECTOR + copy * ENTRY_BYTES
        for bit in range(8 * start, 8 * (start + module.ENTRY.size + 3)):
            changed = bytearray(image)
            changed[bit // 8] ^= 1 << bit % 8
            block = found(FaultyFile("lanes", bytes(changed)))[0]
            assert block.damaged, bit
            assert len(block.bodies) == 1


def test_a_flipped_bit_in_a_copy_that_was_never_stored_is_a_doubt() -> None:
    file = stored(b"one")
    file.damage(SECTOR + 100, b"\1")
    assert found(file) == [BlockFound(0, (b"one",), True, True, EPOCH)]


def test_copies_that_stand_in_each_other_s_place_are_a_doubt() -> None:
    image = bytearray(stored(b"one", b"two").live())
    even, odd = (slice(SECTOR + copy * ENTRY_BYTES, SECTOR + (copy + 1) * ENTRY_BYTES) for copy in (0, 1))
    image[even], image[odd] = image[odd], image[even]
    assert found(FaultyFile("lanes", bytes(image)))[0].damaged


def test_a_cleared_block_holds_nothing_and_can_be_stored_into_again() -> None:
    file = stored(b"one", b"two", b"three")
    lanes = opened(file)
    lanes.clear(0)
    assert found(file) == []
    lanes.keep(0)
    lanes.store(0, b"four")
    assert found(file)[0].bodies == (b"four",)


def test_a_block_is_cleared_and_its_neighbours_stay() -> None:
    file = FaultyFile("lanes")
    lanes = opened(file)
    lanes.grow()
    for block in range(FIRST_BLOCKS):
        lanes.store(block, b"older %d" % block)
        lanes.store(block, b"newer %d" % block)
    lanes.clear(1)
    kept = [0, *range(2, FIRST_BLOCKS)]
    assert found(file) == [
        BlockFound(block, (b"newer %d" % block, b"older %d" % block), False, True, EPOCH) for block in kept
    ]


def test_a_store_that_failed_can_be_tried_again() -> None:
    file = stored(b"one")
    lanes = opened(file)
    file.before["write"] = broken
    with pytest.raises(WalIOError):
        lanes.store(0, b"two")
    del file.before["write"]
    lanes.store(0, b"two")
    assert found(file)[0].bodies == (b"two", b"one")


def test_pieces_of_an_entry_are_damaged() -> None:
    assert unpack_entry(b"\1").state == "damaged"
    assert unpack_entry(bytes(ENTRY_BYTES)).state == "blank"


# -- whose file it is ------------------------------------------------------------------------------------------------


def test_entries_are_known_in_later_epochs_of_the_same_boot_and_file() -> None:
    file = stored(b"one")
    for epoch in range(2, 5):
        assert [block.known for block in found(file, epoch=epoch)] == [True]


@pytest.mark.parametrize("change", [{"boot": "another"}, {"producer": 8}, {"boot": ""}])
def test_entries_of_another_boot_or_producer_are_not_known_then_and_never_again(change: dict[str, object]) -> None:
    file = stored(b"one")
    assert [block.known for block in found(file, epoch=2, **change)] == [False]
    assert [block.known for block in found(file, epoch=3, **change)] == [False]
    assert [block.known for block in found(file, epoch=4)] == [False]


def test_a_copied_file_knows_nothing_and_the_original_everything() -> None:
    file = stored(b"one")
    copied = FaultyFile("lanes", file.live())
    assert [block.known for block in found(copied, epoch=2)] == [False]
    assert [block.known for block in found(file, epoch=2)] == [True]


def test_what_a_later_opening_has_stored_is_not_known() -> None:
    """The file is of a later state of the directory than all else: nobody can tell what became of it since."""
    file = stored(b"one")
    opened(file, epoch=5).store(0, b"two")
    for boot in ("boot", "another"):
        assert [block.known for block in found(file, epoch=5, boot=boot)] == [False]
    assert [block.known for block in found(file, epoch=6, boot="another")] == [True]


def test_without_a_boot_id_nothing_is_ever_known() -> None:
    file = FaultyFile("lanes")
    lanes = opened(file, boot="")
    lanes.grow()
    assert lanes.take() == 0
    lanes.store(0, b"one")
    assert [block.known for block in found(file, epoch=2, boot="")] == [False]


def test_what_is_stored_after_a_reboot_is_known_and_what_was_before_is_not() -> None:
    file = stored(b"one")
    lanes = opened(file, epoch=2, boot="another")
    lanes.take()
    second = lanes.take()
    assert second == 1
    lanes.store(second, b"two")
    assert [block.known for block in found(file, epoch=3, boot="another")] == [False, True]


def test_what_is_stored_behind_a_flush_that_failed_in_an_earlier_life_is_known_though_pages_leave_memory() -> None:
    """The kernel calls clean what it failed to write, so the header before, of another boot, may come back."""
    file = stored(b"one")
    file.sync()
    before = opened(file, epoch=2, boot="another")
    file.stored.fail_syncs()
    with pytest.raises(WalIOError):
        before.sync()
    now = opened(file, epoch=3, boot="another")
    now.keep(0)
    for seed in range(20):
        file.stored.evict(seed)
    now.store(0, b"two")
    assert [(one.bodies[0], one.known) for one in found(file, epoch=4, boot="another")] == [(b"two", True)]


def test_a_header_of_which_any_bit_is_flipped_makes_every_entry_unknown() -> None:
    image = stored(b"one").live()
    for bit in range(8 * module.HEADER.size):
        changed = bytearray(image)
        changed[bit // 8] ^= 1 << bit % 8
        assert [block.known for block in found(FaultyFile("lanes", bytes(changed)), epoch=2)] == [False], bit


def test_a_newer_version_s_file_is_refused() -> None:
    file = stored(b"one")
    header = bytearray(pack_header(Header(PRODUCER, 1, 1, 1, "boot")))
    header[8] = 2
    end = module.HEADER.size
    header[end - 4 : end] = crc32(bytes(header[: end - 4])).to_bytes(4, "little")
    file.damage(0, bytes(header))
    with pytest.raises(WalFormatError, match="newer aiorecover"):
        opened(file)


def test_a_header_comes_back_as_it_was() -> None:
    header = Header(PRODUCER, 3, 4, 5, "b" * 36)
    assert unpack_header(pack_header(header)) == header
    assert len(pack_header(header)) == SECTOR
    assert unpack_header(b"") is None


# -- places that cannot be read --------------------------------------------------------------------------------------


def test_a_block_that_cannot_be_read_is_a_doubt_and_not_used(caplog: pytest.LogCaptureFixture) -> None:
    file = stored(b"older", b"newer")
    file.stored.fail_reads(SECTOR + 2 * PAGE, 1)  # of the first copy: the newer one
    lanes = opened(file, epoch=2)
    assert lanes.found == [BlockFound(0, (b"older",), True, True, EPOCH)]
    assert f"the lane that it was for begins anew: check the disk block=0 path={file.path}" in caplog.text
    for _ in range(2):
        lanes.keep(0)
        lanes.give_back(0)
    assert (lanes.free, lanes.take()) == (FIRST_BLOCKS - 1, 1)


@pytest.mark.parametrize("writable", [False, True])
def test_a_block_that_cannot_be_read_is_cleared_if_that_can_be(*, writable: bool) -> None:
    file = stored(b"one", b"two")
    file.stored.fail_reads(SECTOR, BLOCK_BYTES)
    lanes = opened(file)
    assert lanes.found == [BlockFound(0, (), True, False, 0), BlockFound(1, (), True, False, 0)]  # a page is of both
    lanes.store(2, b"three")
    if not writable:
        file.before["write"] = broken
    for block in (0, 1):
        lanes.clear(block)
    assert (file.live()[SECTOR : SECTOR + BLOCK_BYTES] == bytes(BLOCK_BYTES)) == writable
    assert lanes.take() == 2
    file.before["write"] = broken
    with pytest.raises(WalIOError):
        lanes.clear(2)


def test_a_header_that_cannot_be_read_makes_every_entry_unknown_and_is_written_as_a_whole_page() -> None:
    """The kernel reads a page before it changes a part of it."""
    file = FaultyFile("lanes")
    lanes = opened(file)
    lanes.grow()
    for block in (0, 2):
        lanes.store(block, b"older")
        lanes.store(block, b"newer")
    file.stored.fail_reads(0, 1)
    lanes = opened(file, epoch=2)
    assert [(block.block, block.damaged, block.known) for block in lanes.found] == [(0, True, False), (2, False, False)]
    header = Header(PRODUCER, 2, *file.identity(), "boot", standing=2)
    assert file.live()[:PAGE] == pack_header(header).ljust(PAGE, b"\0")


def test_a_header_that_can_neither_be_read_nor_written_keeps_no_directory_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = stored(b"one")
    file.before["write"] = broken
    with pytest.raises(WalIOError):
        opened(file, epoch=2, boot="another")
    file.stored.fail_reads(0, 1)
    assert [block.known for block in found(file, epoch=2, boot="another")] == [False]
    assert "what is in flight at the end of this process may be sent twice" in caplog.text
    assert [block.known for block in found(file, epoch=3, boot="another")] == [False]


@pytest.mark.parametrize("size", [0, 10, SECTOR])
def test_a_header_without_room_is_written_when_there_is_some(size: int, caplog: pytest.LogCaptureFixture) -> None:
    """Until then nothing that is stored is known to the next opening; from then on all of it is."""
    file = FaultyFile("lanes", bytes(size))
    file.before["write"] = no_room
    lanes = opened(file)
    assert "may be sent twice: free disk space" in caplog.text
    lanes.grow()  # its blocks find room
    wants = [lanes.wants_room]
    del file.before["write"]
    block = lanes.take()
    assert block is not None
    lanes.store(block, b"one")
    assert [one.known for one in found(FaultyFile("lanes", file.live()), epoch=2)] == [False]
    lanes.grow()
    wants.append(lanes.wants_room)
    assert wants == [True, False], "the keeper looks again until it is written"
    assert [(one.bodies, one.known) for one in found(file, epoch=2)] == [((b"one",), True)]


def test_what_stood_there_before_is_not_known_by_a_header_that_comes_late() -> None:
    file = stored(b"one")
    file.before["write"] = no_room
    lanes = opened(file, epoch=2, boot="another")
    del file.before["write"]
    assert lanes.take() == 0
    assert lanes.take() == 1
    lanes.store(1, b"two")
    lanes.grow()
    assert [(one.bodies, one.known) for one in found(file, epoch=3, boot="another")] == [
        ((b"one",), False),
        ((b"two",), True),
    ]


@pytest.mark.parametrize("blocks", [0, FIRST_BLOCKS])
def test_a_header_that_comes_late_leaves_what_was_entered_behind_it(blocks: int) -> None:
    """Also where it could not be read once, and was to be written as a whole page: a lane may have the first block."""
    file = stored(b"old")
    file.cut(SECTOR + blocks * BLOCK_BYTES)
    file.before["read"] = partial(_fail_once, file)
    file.before["write"] = no_room
    lanes = opened(file, epoch=2, boot="another")
    if blocks == 0:
        lanes.grow()
    file.before.clear()
    assert lanes.take() == 0
    for body in (b"one", b"two"):
        lanes.store(0, body)
    lanes.grow()
    assert not lanes.wants_room
    assert found(file, epoch=3, boot="another")[0] == BlockFound(0, (b"two", b"one"), False, True, 2)


def _fail_once(file: FaultyFile) -> None:
    del file.before["read"]
    broken()


def test_a_header_that_comes_late_and_cannot_be_written_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    file = FaultyFile("lanes")
    file.before["write"] = no_room
    lanes = opened(file)
    file.before["write"] = broken
    lanes.grow()
    assert not lanes.wants_room
    assert "may be sent twice: check the disk" in caplog.text


def test_a_header_that_comes_late_is_flushed_by_the_next_checkpoint() -> None:
    disk = Disk()
    disk.lanes.before["write"] = no_room
    directory = disk.open()
    del disk.lanes.before["write"]
    directory.prepare_spares()
    directory.write_checkpoint(directory.next_checkpoint())
    assert unpack_header(disk.lanes.durable[:SECTOR]) is not None


# -- room ------------------------------------------------------------------------------------------------------------


def test_a_thousand_lanes_have_a_block_each_and_are_found_again() -> None:
    file = FaultyFile("lanes")
    lanes = opened(file)
    growths, taken = 0, []
    for number in range(1000):
        while (block := lanes.take()) is None:
            lanes.grow()
            growths += 1
        lanes.store(block, b"%d" % number)
        taken.append(block)
    assert taken == list(range(1000))
    assert growths < 10
    assert file.size() < 80_000_000
    assert [block.bodies for block in found(file)] == [(b"%d" % number,) for number in range(1000)]


def test_blocks_are_wanted_before_the_last_one_is_taken() -> None:
    lanes = opened(FaultyFile("lanes"))
    lanes.grow()
    for _ in range(FIRST_BLOCKS - 1):
        lanes.grow()  # not yet
        assert lanes.blocks == FIRST_BLOCKS
        lanes.take()
    assert lanes.free == 1
    lanes.grow()
    assert lanes.blocks == 2 * FIRST_BLOCKS
    assert lanes.free == 1 + FIRST_BLOCKS, "the last one, too"


def test_a_directory_wants_room_for_lanes_though_nothing_else_is_wanted() -> None:
    directory = Opened().directory
    directory.prepare_spares()
    assert not directory.wants_spare
    while not directory.lanes.wants_room:
        directory.lanes.take()
    assert not any(ring.wants_spare for ring in directory.rings)
    assert directory.wants_spare


def test_the_disk_has_room_for_each_block_that_there_is() -> None:
    """A store that finds none would keep records in the ring that fill it."""
    with real_files() as (_, opens):
        directory = opens()
        for _ in range(3):
            found = os.stat(directory.files.lanes.fileno())
            assert found.st_blocks * 512 >= found.st_size - found.st_size % PAGE
            while directory.lanes.take() is not None:
                pass
            directory.grow_lanes()
        assert directory.lanes.blocks == 8 * FIRST_BLOCKS


def test_a_file_does_not_grow_by_more_than_its_limit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_AT_ONCE", 2 * FIRST_BLOCKS)
    lanes = opened(FaultyFile("lanes"))
    sizes = []
    for _ in range(4):
        lanes.grow()
        sizes.append(lanes.blocks)
        while lanes.take() is not None:
            pass
    assert sizes == [FIRST_BLOCKS * times for times in (1, 2, 4, 6)]


def test_a_growth_that_finds_no_room_changes_nothing_and_can_be_tried_again() -> None:
    file = FaultyFile("lanes")
    lanes = opened(file)
    file.before["allocate"] = no_room
    with pytest.raises(WalFullError):
        lanes.grow()
    assert (lanes.blocks, lanes.take()) == (0, None)
    del file.before["allocate"]
    lanes.grow()
    assert lanes.take() == 0


@pytest.mark.parametrize(("room", "more"), [(0, 0), (1, 1), (3, 2), (FIRST_BLOCKS, FIRST_BLOCKS)])
def test_a_lane_without_a_block_gets_one_where_there_is_no_room_for_many(room: int, more: int) -> None:
    """Its records may be what keeps the ring full, which has the rest of the disk."""
    file = FaultyFile("lanes")
    lanes = opened(file)
    lanes.grow()
    file.stored.belong_to(threading.RLock(), partial(_at_most, room * BLOCK_BYTES))
    while lanes.take() is not None:
        pass
    with nullcontext() if more else pytest.raises(WalFullError):
        lanes.grow()
    assert (lanes.blocks, lanes.free) == (FIRST_BLOCKS + more, more)


def _at_most(room: int, asked: int) -> None:
    if asked > room:
        no_blocks(asked)


@pytest.mark.parametrize("rest", [100, BLOCK_BYTES - 1])
def test_a_growth_that_was_cut_off_leaves_whole_blocks_only(rest: int) -> None:
    file = stored(b"one")
    file.cut(SECTOR + BLOCK_BYTES + rest)
    lanes = opened(file)
    assert (lanes.blocks, [block.bodies for block in lanes.found]) == (1, [(b"one",)])
    lanes.keep(0)
    lanes.grow()
    block = lanes.take()
    assert block == 1
    lanes.store(block, b"two")
    assert [block.bodies for block in found(file)] == [(b"one",), (b"two",)]


@pytest.mark.parametrize("rest", [ENTRY_BYTES, ENTRY_BYTES + 100, BLOCK_BYTES - 1, 10])
def test_what_stands_in_a_piece_of_a_block_does_not_count_beside_what_is_stored_there(rest: int) -> None:
    """A power cut may leave a length that ends inside a block, of a life whose file was longer."""
    file = stored(*[b"%d of the life before" % number * 9 for number in range(1, 6)])
    file.cut(SECTOR + rest)
    lanes = opened(file, epoch=2, boot="the next boot")
    assert (lanes.blocks, lanes.found) == (0, [])
    lanes.grow()
    block = lanes.take()
    assert block == 0
    lanes.store(block, b"in flight")
    assert found(file, epoch=3, boot="the next boot") == [BlockFound(0, (b"in flight",), False, True, 2)]


@pytest.mark.parametrize("trouble", ["unreadable", "unreadable and broken", "broken", "full"])
def test_a_piece_of_a_block_that_cannot_be_cleared_is_not_used(trouble: str) -> None:
    file = stored(b"one", b"two")
    file.cut(SECTOR + ENTRY_BYTES + 100)
    lanes = opened(file)
    if "unreadable" in trouble:
        file.stored.fail_reads(SECTOR, 1)
    if trouble != "unreadable":
        file.before["write"] = no_room if trouble == "full" else broken
    lanes.grow()
    assert (lanes.blocks, lanes.take()) == (FIRST_BLOCKS, 1)


# -- holes -----------------------------------------------------------------------------------------------------------


def sparse(file: FaultyFile) -> FaultyFile:
    """A copy with holes where whole pages were zeros."""
    image = file.live()
    copy = FaultyFile("lanes", image)
    for page in range(0, len(image) - PAGE, PAGE):
        if not any(image[page : page + PAGE]):
            copy.punch(page, PAGE)
    assert copy.disk_bytes() < copy.size()
    return copy


def others_take_the_rest(file: FaultyFile) -> None:
    file.stored.belong_to(threading.RLock(), no_blocks)


def there_is_room_again(file: FaultyFile) -> None:
    file.stored.belong_to(threading.RLock(), lambda _: None)


def test_a_copy_with_holes_takes_every_entry_on_a_disk_that_is_full_by_then() -> None:
    before = Opened()
    before.directory.lanes.store(0, b"in flight")
    disk = before.disk.after_death()
    disk.lanes = sparse(disk.lanes)
    lanes = disk.open().lanes
    others_take_the_rest(disk.lanes)
    assert not lanes.wants_room
    for block in range(FIRST_BLOCKS):
        for _ in range(2):
            lanes.store(block, b"x" * BODY_MOST)


def test_holes_that_there_is_no_room_for_keep_no_directory_closed_and_are_filled_when_there_is_some() -> None:
    before = Opened()
    before.directory.lanes.store(0, b"in flight")
    disk = before.disk.after_death()
    disk.lanes = sparse(disk.lanes)
    others_take_the_rest(disk.lanes)
    directory = disk.open()
    assert directory.wants_spare
    directory.prepare_spares()
    with pytest.raises(WalFullError):
        directory.lanes.store(3, b"x" * BODY_MOST)
    there_is_room_again(disk.lanes)
    directory.prepare_spares()
    others_take_the_rest(disk.lanes)
    assert not directory.lanes.wants_room
    directory.lanes.store(3, b"x" * BODY_MOST)
    assert directory.lanes.found[0].bodies == (b"in flight",)


def test_beside_holes_that_there_is_no_room_for_a_lane_gets_its_block() -> None:
    file = sparse(stored(b"one"))
    lanes = opened(file, epoch=2)
    file.before["allocate"] = no_room
    with suppress(WalFullError):
        lanes.grow()
    while lanes.take() is not None:
        pass
    blocks, calls = lanes.blocks, iter(range(2))

    def the_second_time() -> None:
        if next(calls):
            no_room()

    file.before["allocate"] = the_second_time
    lanes.grow()
    assert (lanes.blocks, lanes.take()) == (2 * blocks, blocks)
    assert lanes.wants_room
    file.before.clear()
    lanes.grow()
    assert not lanes.wants_room


def test_a_file_without_holes_is_not_allocated_again() -> None:
    file = stored(b"one")
    file.before["allocate"] = no_room
    opened(file).grow()


@pytest.mark.parametrize("bodies", [(b"one",), (b"older", b"newer"), (b"x" * 7000, b"short")])
def test_a_block_with_holes_is_cleared_without_room(bodies: tuple[bytes, ...]) -> None:
    file = sparse(stored(*bodies))
    lanes = opened(file)
    others_take_the_rest(file)
    lanes.clear(0)
    assert found(file) == []


def test_a_block_that_no_lane_has_and_that_cannot_be_cleared_for_want_of_room_is_not_used() -> None:
    """As on a file system that writes nothing in its place; a lane's own entry must not stay unnoticed."""
    file = stored(b"one", b"two")
    lanes = opened(file)
    file.before["write"] = no_room
    lanes.clear(0)
    assert (lanes.free, lanes.take()) == (FIRST_BLOCKS - 1, 1)
    lanes = opened(file)
    lanes.keep(0)
    with pytest.raises(WalFullError):
        lanes.clear(0)


def test_a_block_that_is_cleared_in_part_is_a_doubt_and_never_the_older_entry_alone() -> None:
    for bodies in [(b"older" * 2000, b"newer" * 2000), (b"older", b"newer"), (b"oldest", b"older", b"newer")]:
        for writes in range(9):
            file = stored(*bodies)
            lanes = opened(file)
            file.before["write"] = partial(_fail_behind, [None] * writes)
            lanes.clear(0)
            del file.before["write"]
            whole = BlockFound(0, bodies[: -3 if len(bodies) > 2 else None : -1], False, True, EPOCH)
            assert all(block.damaged or block == whole for block in found(file)), writes


def _fail_behind(left: list[None]) -> None:
    if not left:
        no_room()
    left.pop()


# -- in a directory --------------------------------------------------------------------------------------------------


def test_a_checkpoint_makes_the_entries_durable() -> None:
    disk = Opened()
    lanes = disk.directory.lanes
    block = lanes.take()
    assert block is not None
    lanes.store(block, b"one")
    assert disk.disk.lanes.unsynced()
    disk.checkpoint()
    assert not disk.disk.lanes.unsynced()
    for seed in range(5):
        after = disk.loses_power(seed).directory.lanes.found
        assert [(block.bodies, block.known) for block in after] == [((b"one",), False)]


def test_a_power_cut_behind_the_first_checkpoint_does_not_make_the_file_a_new_one() -> None:
    """Else it would be told that somebody has lost it."""
    disk = Opened()
    assert disk.directory.lanes.is_new
    disk.checkpoint()
    assert not any(disk.loses_power(seed).directory.lanes.is_new for seed in range(10))


@pytest.mark.parametrize("left", ["nothing", "zeros"])
def test_a_directory_of_which_only_entries_are_left_is_not_taken_for_a_new_one(left: str) -> None:
    """Records were sent from it: those that waited beside them are gone, and nobody may pass that over."""
    opened = Opened()
    opened.append(b"record")
    opened.directory.lanes.store(3, b"one")
    disk = opened.disk.after_death()
    for file in (disk.checkpoint, disk.ring, disk.retry, disk.dead):
        size = file.size()
        file.cut(0)
        if left == "zeros":
            file.damage(0, bytes(size))
    before = disk.lanes.read(0, disk.lanes.size())
    with pytest.raises(WalCorruptError, match="the directory was in use: put them back, or move the dir"):
        Opened(disk)
    assert disk.lanes.read(0, disk.lanes.size()) == before
    for file in disk._files:
        file.cut(0)
    assert Opened(disk).ring.epoch == 1


def test_what_was_cleared_does_not_come_back_after_a_power_cut() -> None:
    disk = Opened()
    lanes = disk.directory.lanes
    lanes.store(0, b"one")
    disk.checkpoint()
    lanes.clear(0)
    disk.checkpoint()
    for seed in range(5):
        assert disk.loses_power(seed).directory.lanes.found == []


def test_where_nothing_was_stored_a_checkpoint_flushes_no_lanes() -> None:
    disk = Opened()
    flushes = 0

    def count() -> None:
        nonlocal flushes
        flushes += 1

    disk.disk.lanes.before["sync"] = count
    for expected in (1, 2):
        disk.directory.lanes.store(0, b"one")
        for _ in range(3):
            disk.checkpoint()
        assert flushes == expected


def test_a_flush_of_the_lanes_that_fails_poisons_the_directory() -> None:
    disk = Opened()
    disk.directory.lanes.store(0, b"one")
    disk.disk.lanes.before["sync"] = broken
    with pytest.raises(WalIOError):
        disk.checkpoint()
    assert disk.ring.failure is not None


def test_an_opening_without_room_for_the_first_blocks_goes_on() -> None:
    disk = Disk()
    disk.lanes.before["allocate"] = no_room
    lanes = disk.open().lanes
    assert lanes.take() is None
    disk.lanes.before.clear()
    lanes.grow()
    assert lanes.take() == 0


def test_an_entry_that_would_reach_into_the_other_copy_is_refused_and_both_stay() -> None:
    with Opened() as opened:
        lanes = opened.directory.lanes
        block = lanes.take()
        assert block is not None
        lanes.store(block, b"first")
        lanes.store(block, b"s" * BODY_MOST)
        with pytest.raises(ValueError, match=f"bytes={BODY_MOST + 1} most={BODY_MOST}"):
            lanes.store(block, b"t" * (BODY_MOST + 1))
        (found,) = opened.dies().directory.lanes.found
        assert (found.bodies, found.damaged) == ((b"s" * BODY_MOST, b"first"), False)
