"""What a ring has lost: counted without end, named within bounds, its bytes kept before the slot is used again."""

import logging
import random
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from aiorecover.errors import WalIOError
from aiorecover.wal import copies, kept, losses
from aiorecover.wal import format as fmt
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.kept import DAMAGED
from aiorecover.wal.losses import Damage, Losses, Stretch
from aiorecover.wal.moved import MOVED_BYTES
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.slot import Slot
from aiorecover.wal.storage import OPERATING_SYSTEM, FileSystem, StorageFile
from aiorecover.wal.stream import Stream
from tests.wal.memory import PAGE, FaultyFile, broken, no_room
from tests.wal.rig import SLOT, Disk, Machine, Opened, read
from tests.wal.test_moving import make, move
from tests.wal.test_stream import read as read_stream

FRAME = 64  # records of 44 bytes


def damaged_ring(places: dict[int, bytes]) -> Disk:
    """Twenty frames of 64 bytes; those that are named hold something else."""
    opened = Opened()
    opened.append(*[b"%02d" % number * 22 for number in range(20)])
    disk = opened.disk.after_death()
    for number, data in places.items():
        disk.ring.damage(fmt.FIRST_FRAME + FRAME * number, data)
    return disk


def kept_files(opened: Opened) -> dict[str, bytes]:
    machine = opened.directory.file_system
    assert isinstance(machine, Machine)
    return {name: file.live() for name, file in machine.kept.items()}


def test_the_bytes_from_the_place_where_the_reader_lost_its_way_to_the_next_frame_are_kept() -> None:
    with Opened(damaged_ring({2: b"\xee" * FRAME, 7: b"rot" * FRAME})) as opened:
        opened.read()
        opened.keep_damaged()
        start, second = fmt.FIRST_FRAME + 2 * FRAME, fmt.FIRST_FRAME + 7 * FRAME
        assert kept_files(opened) == {f"ring-1-{start}": b"\xee" * FRAME, f"ring-1-{second}": b"rot" * FRAME}
        opened.keep_damaged()  # nothing new
        assert len(kept_files(opened)) == 2
        assert opened.ring.losses.missing == 1 + 3


def test_the_lost_end_of_a_slot_is_kept_to_its_end() -> None:
    opened = Opened()
    opened.append(b"first", b"second")
    opened.checkpoint()
    disk = opened.disk.after_death()
    start = fmt.frame_end(fmt.FIRST_FRAME, 5)
    disk.ring.damage(start, b"\xee" * 100)
    with Opened(disk) as following:
        following.read()
        following.keep_damaged()
        rest = SLOT - fmt.RESERVED - start
        assert kept_files(following) == {f"ring-1-{start}": (b"\xee" * 100).ljust(rest, b"\0")}


def unreadable(*pages: int) -> tuple[Opened, int]:
    """A slot of small frames, read, of which nobody can read these pages; where the bytes begin that are missing."""
    opened = Opened()
    while opened.ring.sequence < 200:
        opened.append(b"%03d" % opened.ring.sequence * 15)
    disk = opened.disk.after_death()
    for page in pages:
        disk.ring.stored.fail_reads(page * PAGE, 1)
    following = Opened(disk)
    while not following.ring.damage:  # each place is asked for some times
        with suppress(WalIOError):
            following.read()
    place = min(damage.file_offset for damage in following.ring.damage)
    assert place < pages[0] * PAGE
    return following, place


def test_where_a_page_cannot_be_read_what_is_beside_it_is_kept_and_zeros_in_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened, start = unreadable(1)
    opened.keep_damaged()
    ((name, data),) = kept_files(opened).items()
    image = bytearray(opened.disk.ring.live())
    image[PAGE : 2 * PAGE] = bytes(PAGE)
    assert name == f"ring-1-{start}"
    assert len(data) > PAGE
    assert data == image[start : start + len(data)]
    assert data[: PAGE - start] == image[start:PAGE] != bytes(PAGE - start)
    assert f"damaged/{name} bytes={len(data)} unread={PAGE}" in caplog.text


def test_behind_many_pages_that_cannot_be_read_nothing_more_is_asked_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may take it half a minute."""
    monkeypatch.setattr(kept, "BAD_PAGES", 1)
    opened, start = unreadable(1, 2)
    opened.disk.ring.before["read"] = partial((asked := list[int]()).append, 1)
    opened.keep_damaged()
    (data,) = kept_files(opened).values()
    assert data[: PAGE - start] == opened.disk.ring.live()[start:PAGE]
    assert not any(data[PAGE - start :])
    assert len(asked) == 3, "all, what is in front of the bad pages, and the first of them"


def test_a_shorter_stretch_from_the_same_place_leaves_nothing_of_the_one_kept_before(tmp_path: Path) -> None:
    (tmp_path / "ring").write_bytes(b"\xee" * SLOT)
    ring = StorageFile(tmp_path / "ring")
    slot = Slot(0, fmt.SlotHeader(SLOT, 0, 1, 1, 1, 1, 0))
    for stop in (3000, 2000):
        kept.keep(OPERATING_SYSTEM, tmp_path, ring, [Stretch(slot, 1000, stop)])
        assert (tmp_path / DAMAGED / "ring-1-1000").read_bytes() == b"\xee" * (stop - 1000)
    ring.close()


def test_of_a_file_that_was_cut_what_is_left_is_kept() -> None:
    opened, start = unreadable(1)
    opened.disk.ring.cut(2 * PAGE + 10)
    opened.keep_damaged()
    (data,) = kept_files(opened).values()
    assert len(data) == 2 * PAGE + 10 - start


def test_a_slot_with_damage_is_not_recycled_until_its_bytes_are_kept() -> None:
    with Opened(damaged_ring({2: b"\xee" * FRAME})) as opened:
        opened.settle(opened.read())
        opened.append(b"new")
        opened.settle(opened.read())
        captured = opened.directory.next_checkpoint()
        opened.directory.write_checkpoint(captured)
        stretches = opened.directory.take_damaged()
        assert opened.directory.recycle(captured) == 0
        opened.directory.release_damaged(stretches)
        assert opened.directory.recycle(captured) == 1


@pytest.mark.parametrize("call", ["read", "write", "sync"])
def test_what_cannot_be_kept_is_a_warning_and_its_slot_is_free_again(
    call: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Opened(damaged_ring({2: b"\xee" * FRAME})) as opened:
        opened.settle(opened.read())
        opened.append(b"new")
        opened.settle(opened.read())
        if call == "read":
            opened.disk.ring.before["read"] = broken
        else:
            file = opened.directory.file_system.open(Path(f"ring-1-{fmt.FIRST_FRAME + 2 * FRAME}"))
            file.before[call] = no_room if call == "write" else broken  # type: ignore[attr-defined]
        assert opened.checkpoint() == 1
        assert "damaged bytes cannot be kept: check the disk" in caplog.text


def test_no_more_files_are_kept_than_a_directory_may_have(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_FILES", 3)
    with Opened(damaged_ring(dict.fromkeys((1, 3, 5, 7, 9), b"\xee" * FRAME))) as opened:
        opened.read()
        opened.keep_damaged()
        assert len(kept_files(opened)) == 3
        assert caplog.text.count("there is no room for more files") == 2
        assert opened.ring.losses.missing == 5
        assert [slot.readers for slot in opened.ring.live] == [0]  # no pin is left, and the reader is through


def test_no_more_stretches_are_pinned_than_are_kept_and_the_list_of_names_ends_before_the_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "MOST_PINNED", 2)
    monkeypatch.setattr(losses, "MOST_NAMED", 4)
    with Opened(damaged_ring(dict.fromkeys((1, 3, 5, 7, 9), b"\xee" * FRAME))) as opened:
        opened.read()
        assert len(opened.ring.damage) == 4
        assert opened.ring.losses.missing == 5
        assert [len(of_ring) for of_ring in opened.directory.take_damaged()] == [2, 0, 0]


def test_ten_thousand_places_are_named_and_the_next_one_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    found = Losses()
    with caplog.at_level(logging.CRITICAL, "aiorecover.wal"):
        for number in range(10_000):
            found.report(Damage(1, 2 * number, 2 * number + 1, 1, 0))
    found.report(Damage(1, 50_000, 50_002, 7, 900))
    assert (len(found.damage), found.missing) == (10_000, 20_003)
    assert "sequences=50000-50002 slot=7 file_offset=900" in caplog.text


def moved_ring(rotten: Iterable[int], *, cut_from: int | None = None) -> Opened:
    """Copies of 40 records, every third of what was accepted in epoch 1, as the next process finds them."""
    opened = Opened()
    opened.append(*[b"%03d" % number * 15 for number in range(120)])
    opened.settle(entry for entry in opened.read() if entry[2] % 3)
    opened.fill_slot()
    opened.fill_slot()
    opened.reader.close()
    make(opened, move(opened))
    disk = opened.disk.after_death()
    frame = fmt.frame_end(0, MOVED_BYTES + 45)
    for number in rotten:
        disk.retry.damage(fmt.FIRST_FRAME + frame * number + 30, b"rot")
    if cut_from is not None:
        disk.retry.damage(fmt.FIRST_FRAME + frame * cut_from, bytes(SLOT - fmt.FIRST_FRAME - frame * cut_from))
    return Opened(disk)


def three_moved_slots() -> Disk:
    """Copies of 87 records in three slots of the retry ring, 30 in the first two."""
    opened = Opened()
    for _ in range(4):
        opened.fill_slot()
    opened.reader.close()
    for _ in range(3):
        make(opened, move(opened))
    assert [slot.header.first_sequence for slot in opened.directory.retry.live] == [1, 31, 61]
    assert opened.ring.moved_up_to & fmt.SEQUENCE_MASK == 87
    return opened.disk.after_death()


def moved_slots(damage: Callable[[FaultyFile], None]) -> Opened:
    """As the next process finds them."""
    damage((disk := three_moved_slots()).retry)
    return Opened(disk)


def end_of_a_slot(retry: FaultyFile) -> None:
    """The last two copies in the first slot."""
    start = fmt.FIRST_FRAME + 28 * fmt.frame_end(0, MOVED_BYTES + 500)
    retry.damage(start, bytes(SLOT - fmt.RESERVED - start))


def a_whole_slot(retry: FaultyFile) -> None:
    """The second one."""
    retry.damage(SLOT, bytes(SLOT))


def lines_of_missing(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.partition(" slot=")[0] for line in caplog.messages if line.startswith("records are missing")]


def test_of_copies_the_log_names_the_file_how_many_at_most_and_the_records_in_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = moved_ring([0, 1, 4, 9])
    read_stream(Stream(opened.directory, bytes))
    assert lines_of_missing(caplog) == [
        "records are missing from the file retry records_at_most=2 after=? before=1/9",
        "records are missing from the file retry records_at_most=1 after=1/12 before=1/18",
        "records are missing from the file retry records_at_most=1 after=1/27 before=1/33",
    ]


def test_behind_the_last_copy_that_is_left_nothing_tells_before_which_record_the_others_were_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened = moved_ring([], cut_from=30)
    read_stream(Stream(opened.directory, bytes))
    (line,) = lines_of_missing(caplog)
    assert line.startswith("records are missing from the file retry records_at_most=")
    assert line.endswith("after=1/90 before=?")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (end_of_a_slot, "records_at_most=2 after=1/28 before=1/31"),
        (a_whole_slot, "records_at_most=30 after=1/30 before=1/61"),
    ],
)
def test_what_the_following_slot_begins_with_tells_before_which_record_lost_copies_were_accepted(
    caplog: pytest.LogCaptureFixture, damage: Callable[[FaultyFile], None], told: str
) -> None:
    read_stream(Stream(moved_slots(damage).directory, bytes))
    assert lines_of_missing(caplog) == [f"records are missing from the file retry {told}"]


def test_who_goes_back_to_where_a_copy_rotted_since_knows_of_a_mark_before_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "EVERY", 5)
    opened = moved_ring([])
    first = Stream(opened.directory, bytes)
    read_stream(first)
    frame = fmt.frame_end(0, MOVED_BYTES + 45)
    opened.disk.retry.damage(fmt.FIRST_FRAME + frame * 5 + 30, b"rot")
    read_stream(first.back_to(fmt.position(1, 18)))
    assert lines_of_missing(caplog) == [
        "records are missing from the file retry records_at_most=1 after=1/3 before=1/21"
    ]


def test_of_dead_letters_the_log_names_the_file_and_how_many_at_most(caplog: pytest.LogCaptureFixture) -> None:
    Losses("dead").report(Damage(3, 7, 9, 2, 100))
    assert lines_of_missing(caplog) == ["records are missing from the file dead letters_at_most=3"]


def test_each_sequence_is_named_once_whoever_meets_its_damage_and_however_much_of_it() -> None:
    rng = random.Random(1)
    for _ in range(200):
        found = Losses()
        expected: set[tuple[int, int]] = set()
        for _ in range(rng.randrange(1, 12)):
            first = rng.randrange(40)
            last = first + rng.randrange(6)
            new = {(1, sequence) for sequence in range(first, last + 1)} - expected
            assert found.report(Damage(1, first, last, 1, 0), again=rng.random() < 0.5) == bool(new)
            expected |= new
        named = [(one.epoch, sequence) for one in found.damage for sequence in range(one.first, one.last + 1)]
        assert sorted(named) == sorted(expected)
        assert found.missing == len(expected)
    assert found.report(Damage(2, 0, 0, 1, 0))  # of another epoch


def test_where_more_is_damaged_than_is_remembered_nothing_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MOST_NAMED", 4)
    found = Losses()
    for number in range(0, 20, 2):
        found.report(Damage(1, number, number, 1, 0))
    for number in range(0, 20, 2):
        assert not found.report(Damage(1, number, number, 1, 0), again=True)
    assert found.missing == 10


def test_what_was_named_and_not_remembered_may_be_any_of_what_stands_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "MOST_NAMED", 4)
    found = Losses()
    for number in (10, 12, 14, 16, 20, 22, 30):
        found.report(Damage(1, number, number, 1, 0))
    assert [number for number in range(40) if found.covers(1, number)] == [10, 12, 14, 16, *range(20, 31)]
    assert not found.covers(2, 10)


# -- on a disk -----------------------------------------------------------------------------------------------------


def opened_at(path: Path, file_system: FileSystem = OPERATING_SYSTEM) -> Directory:
    return open_directory(Options(path, SLOT, 16 * SLOT, min_free_bytes=0, file_system=file_system))


def keep_all(directory: Directory) -> None:
    read(Reader(directory.ring, bytes))
    stretches = directory.take_damaged()
    directory.keep_damaged(stretches)
    directory.release_damaged(stretches)


def test_kept_bytes_are_for_nobody_else_s_eyes_and_no_stranger_to_the_next_opening(tmp_path: Path) -> None:
    directory = opened_at(tmp_path / "wal")
    for number in range(9):
        directory.ring.append(b"%d" % number * 44, None)
    directory.close()
    file = tmp_path / "wal" / "0" / "ring"
    data = bytearray(file.read_bytes())
    data[fmt.FIRST_FRAME + FRAME : fmt.FIRST_FRAME + 2 * FRAME] = b"\xee" * FRAME
    file.write_bytes(data)
    directory = opened_at(tmp_path / "wal")
    keep_all(directory)
    directory.close()
    folder = tmp_path / "wal" / "0" / DAMAGED
    (made,) = folder.iterdir()
    assert (made.name, made.read_bytes()) == (f"ring-1-{fmt.FIRST_FRAME + FRAME}", b"\xee" * FRAME)
    assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(made.stat().st_mode)) == (0o700, 0o600)
    opened_at(tmp_path / "wal").close()


def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = opened_at(tmp_path / "wal")
    directory.ring.append(b"a" * 44, None)
    directory.ring.append(b"b" * 44, None)
    directory.close()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wal" / "0" / DAMAGED).symlink_to(tmp_path / "elsewhere")
    with (tmp_path / "wal" / "0" / "ring").open("r+b") as file:
        file.seek(fmt.FIRST_FRAME)
        file.write(b"\xee" * FRAME)
    directory = opened_at(tmp_path / "wal")
    keep_all(directory)
    directory.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert "remove the symbolic link" in caplog.text


def test_what_is_kept_of_damage_is_durable_with_its_name_before_its_slot_may_be_recycled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened, _ = unreadable(1)
    synced: list[tuple[Path, list[str]]] = []
    durable = [0]

    def sync_directory(self: Machine, path: Path) -> None:
        synced.append((path, list(self.kept)))
        durable[0] = sum(len(file.durable) for file in self.kept.values())

    monkeypatch.setattr(Machine, "sync_directory", sync_directory)
    opened.keep_damaged()
    ((name, data),) = kept_files(opened).items()
    assert synced[-1] == (Path("/") / DAMAGED, [name])
    assert durable == [len(data)]
