"""A record id is given once, whatever is copied or restored, and stays with its record, whoever moves it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aiorecover.errors import WalCorruptError
from aiorecover.record import record_ids
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES, OPENINGS_MOST, unpack
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.moving import Copying, Move, Rewrite
from aiorecover.wal.opening import open_directory
from aiorecover.wal.stream import Stream
from aiorecover.wal.view import open_view
from tests.wal.rig import SLOT, Disk, Opened

Ids = dict[bytes, bytes]
"""Payload by record id"""

SHARED = len("abcdefg")  # characters that all openings of a directory have in common


def ids(directory: Directory) -> Ids:
    """What waits, under the ids that delivery would give it."""
    stream, found = Stream(directory, bytes), list[tuple[bytes, bytes]]()
    while (run := stream.look(100)) is not None or stream.moved:
        if run is not None:
            found += zip(record_ids(run.id_prefix, run.sequences), run.records, strict=True)
    stream.close()
    assert len(dict(found)) == len(found)
    return dict(found)


@contextmanager
def opened(wal_dir: Path) -> Iterator[Directory]:
    made = open_directory(Options(wal_dir, SLOT, 64 * SLOT, 0))
    try:
        yield made
    finally:
        made.close()


def go_on(wal_dir: Path, *payloads: bytes) -> Ids:
    """Another process publishes these; all that waits then."""
    with opened(wal_dir) as made:
        for payload in payloads:
            made.ring.append(payload, payload)
    with opened(wal_dir) as made:
        return ids(made)


def check_each_is_one_record(one: Ids, other: Ids, common: Ids) -> None:
    """The ids that two branches of a directory share are those of records from before they parted."""
    assert {name: one[name] for name in one.keys() & other.keys()} == common
    assert common.items() <= one.items()
    assert common.items() <= other.items()
    assert len({name[:SHARED] for name in one | other}) == 1


# -- given once ------------------------------------------------------------------------------------------------------


def test_a_copy_and_its_original_give_no_id_twice(tmp_path: Path) -> None:
    common = go_on(tmp_path / "wal", b"before the copy")
    shutil.copytree(tmp_path / "wal", tmp_path / "copy")
    one = go_on(tmp_path / "wal", b"first of the original", b"second of the original")
    other = go_on(tmp_path / "copy", b"first of the copy", b"second of the copy")
    check_each_is_one_record(one, other, common)
    assert (len(one), len(other), len(common)) == (3, 3, 1)


@pytest.mark.parametrize("in_place", [False, True], ids=["in its place", "over its bytes"])
def test_a_backup_that_is_restored_gives_no_id_twice(tmp_path: Path, *, in_place: bool) -> None:
    wal = tmp_path / "wal"
    common = go_on(wal, b"before the backup")
    shutil.copytree(wal, tmp_path / "backup")
    one = go_on(wal, b"lost with the disk")
    if not in_place:
        shutil.rmtree(wal)
    for path in sorted((tmp_path / "backup").rglob("*")):  # over its bytes: the inodes stay what they were
        target = wal / path.relative_to(tmp_path / "backup")
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.write_bytes(path.read_bytes())
    other = go_on(wal, b"after the restoration")
    check_each_is_one_record(one, other, common)
    assert (len(one), len(other), len(common)) == (2, 2, 1)


def test_a_snapshot_with_the_same_inodes_and_boot_gives_no_id_twice() -> None:
    with Opened() as first:
        first.append(b"before the snapshot")
        snapshot = first.disk
    branches = list[Ids]()
    for payload in (b"here", b"there"):
        with Opened(snapshot.after_death()) as following:  # nothing on the disk tells the two openings apart
            following.append(payload)
            disk = following.disk
        with Opened(disk.after_death()) as last:
            branches.append(ids(last.directory))
    common = {name: payload for name, payload in branches[0].items() if payload == b"before the snapshot"}
    check_each_is_one_record(branches[0], branches[1], common)
    assert [len(branch) for branch in branches] == [2, 2]


def test_each_opening_has_a_producer_id_of_its_own_and_the_directory_stays() -> None:
    disk, seen = Disk(), []
    for _ in range(5):
        with Opened(disk) as here:
            here.append(b"record")
            seen.append(here.directory.producer_id)
        disk = here.disk.after_death()
    assert len(set(seen)) == len(seen)
    assert len({text[:SHARED] for text in seen}) == 1


def test_two_directories_share_nothing() -> None:
    with Opened() as one, Opened() as other:
        assert one.directory.producer_id[:SHARED] != other.directory.producer_id[:SHARED]


def test_the_producer_id_is_durable_in_both_copies_before_the_first_frame(tmp_path: Path) -> None:
    go_on(tmp_path, b"earlier")
    with opened(tmp_path) as made:  # nothing is published yet
        stored = (tmp_path / "0" / "checkpoint").read_bytes()
        copies = [unpack(stored[at : at + COPY_BYTES]).checkpoint for at in (0, COPY_BYTES)]
        told = [(copy.epoch, fmt.producer_text(copy.producer_id)) for copy in copies if copy is not None]
        assert told == [(made.ring.epoch, made.producer_id)] * 2
        made.ring.append(b"record", None)
        slot = made.ring.live[-1]
        stored = (tmp_path / "0" / "ring").read_bytes()[slot.file_offset :]
        assert fmt.unpack_slot_header(stored) == slot.header
        assert fmt.producer_text(slot.header.producer_id) == made.producer_id


# -- kept ------------------------------------------------------------------------------------------------------------


def make(opened: Opened, copying: Copying) -> None:
    """Move or rewrite to its end, as the background does it."""
    opened.directory.copies_from = copying.copies_from
    while not copying.step():
        pass
    copying.check()
    captured = copying.captured(opened.directory)
    opened.directory.write_checkpoint(captured)
    copying.finish()
    opened.directory.copies_from = None
    opened.directory.recycle(captured)


def move_oldest(opened: Opened) -> None:
    make(opened, Move(opened.ring, opened.directory.retry, opened.ring.live[0]))


def test_a_record_keeps_its_id_when_it_is_moved_and_rewritten_by_later_openings() -> None:
    with Opened() as first:
        first.fill_slot()
        first.append(b"behind")
        accepted = {b"%b/1/%d" % (first.directory.producer_id.encode(), n): p for (_, n), p in first.accepted.items()}
    with Opened(first.disk.after_death()) as second:
        assert ids(second.directory) == accepted
        move_oldest(second)
    with Opened(second.disk.after_death()) as third:
        assert third.directory.retry.live
        assert ids(third.directory) == accepted
        make(third, Rewrite(third.directory.retry))
    with Opened(third.disk.after_death()) as fourth:
        assert fourth.directory.retry.live[0].header.epoch == 3
        assert ids(fourth.directory) == accepted


def test_the_records_of_several_openings_in_the_retry_ring_keep_their_own_ids() -> None:
    disk, accepted = Disk(), Ids()
    for number in range(3):
        with Opened(disk) as here:
            here.append(b"record %d" % number)
            owner, epoch = here.directory.producer_id, here.ring.epoch
            accepted[b"%b/%d/1" % (owner.encode(), epoch)] = b"record %d" % number
        disk = here.disk.after_death()
    with Opened(disk) as moving:
        assert ids(moving.directory) == accepted
        for _ in range(3):
            move_oldest(moving)
        assert not moving.ring.live
    with Opened(moving.disk.after_death()) as last:
        assert ids(last.directory) == accepted


def test_a_look_from_outside_gives_each_record_its_own_id(tmp_path: Path) -> None:
    expected = go_on(tmp_path, b"first") | go_on(tmp_path, b"second") | go_on(tmp_path, b"third")
    with open_view(tmp_path / "0") as view:
        seen = {f"{one.producer_id}/{one.epoch}/{one.sequence}".encode(): one.payload for one in view.frames()}
    assert seen == expected
    assert len({name.partition(b"/")[0] for name in seen}) == 3


# -- refused ---------------------------------------------------------------------------------------------------------


def test_files_of_two_branches_of_a_directory_are_not_taken_for_one() -> None:
    with Opened() as first:
        first.append(b"before they parted")
        common = first.disk
    with Opened(common.after_death()) as one:
        one.append(b"here")
    with Opened(common.after_death()) as other:
        other.append(b"there")
    mixed = one.disk.after_death()
    mixed.ring = other.disk.after_death().ring
    with pytest.raises(WalCorruptError, match="copied together from several states"):
        mixed.open()


@pytest.mark.parametrize("published", [True, False], ids=["records in it", "none in it"])
@pytest.mark.parametrize("ring", ["ring", "dead"])
def test_nor_where_one_of_them_was_opened_again_since(ring: str, *, published: bool) -> None:
    """The checkpoint is of a later epoch than the one that both have: it remembers who wrote the ones before."""
    first = Opened()
    first.append(b"before they parted")
    one, other = first.dies(), first.dies()
    if published:
        one.append(b"here")
    one.checkpoint()
    for opened_there in (other.ring, other.directory.dead):
        opened_there.append(b"there", b"there")
    mixed = one.dies().dies().disk.after_death()
    mixed.open()
    mixed = mixed.after_death()
    setattr(mixed, ring, getattr(other.disk.after_death(), ring))
    with pytest.raises(WalCorruptError, match="copied together from several states"):
        mixed.open()


def test_so_many_openings_are_remembered() -> None:
    disk, nonces = Disk(), list[int]()
    for number in range(1, OPENINGS_MOST + 4):
        opened = Opened(disk)
        known = opened.directory.checkpoint.openings
        assert known == tuple(enumerate(nonces, 1))[-OPENINGS_MOST:]
        nonces.append(fmt.nonce_of(opened.directory.checkpoint.producer_id))
        disk = opened.disk.after_death()
        if number % 2:
            disk.checkpoint.damage(number % 2 * COPY_BYTES, bytes(512))
