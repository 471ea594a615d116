"""How old records are: never older than they are, and not much younger."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorecover.testing import MemoryDisk
from aiorecover.wal import ages as ages_module
from aiorecover.wal import format as fmt
from aiorecover.wal.ages import EARLIEST, FINENESS, LONGEST_DOWN, MARK_EVERY, Ages, StoredAges, restored
from aiorecover.wal.checkpoint import Checkpoint, pack
from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.storage import FileSystem
from tests.wal.rig import read

DAY = 86_400_000


def noted(every_ms: int, until_ms: int, limit_ms: int | None = None) -> Ages:
    """A record every so often, and each noted; position N was accepted at N * every_ms."""
    ages = Ages(limit_ms)
    for position in range(1, until_ms // every_ms + 1):
        ages.note(position, position * every_ms)
    return ages


@settings(deadline=None)
@given(
    limit=st.integers(1, 5_000_000),
    pauses=st.lists(st.integers(0, 100_000), min_size=1, max_size=100),
    after=st.integers(0, 10_000_000),
    restarts=st.sets(st.integers(0, 100)),
)
def test_nothing_expires_before_its_time_and_not_much_later(
    limit: int, pauses: list[int], after: int, restarts: set[int]
) -> None:
    ages, now, accepted = Ages(limit), 1_000, []
    for number, pause in enumerate(pauses, start=1):
        ages.note(number - 1, now + min(pause, MARK_EVERY))
        now += pause
        accepted.append(now)
        ages.note(number, now)
        if number in restarts:
            stored = ages.captured(now, 0)
            ages = Ages(limit, restored(stored, number, now, 0, same_boot=True))
        expired = ages.expired(now)
        assert all(now - then >= limit for then in accepted[:expired])
    ages.note(len(accepted), now + MARK_EVERY)
    now += MARK_EVERY + after
    expired = ages.expired(now)
    assert all(now - then >= limit for then in accepted[:expired])
    late = limit + limit // FINENESS + 2 * MARK_EVERY
    assert all(now - then <= late for then in accepted[expired:])


@pytest.mark.parametrize("limit_ms", [60_000, 3_600_000, 12 * 3_600_000])
def test_nothing_passes_for_younger_by_more_than_a_sixteenth_of_its_age(limit_ms: int) -> None:
    """However often the marks were thinned, as each checkpoint does it."""
    ages, now = Ages(limit_ms), 0
    for number in range(1, 2 * limit_ms // 5_000):  # a record every five seconds
        now = number * 5_000
        ages.note(number, now)
        if number % 7 == 0:
            ages.captured(now, 0)
    older = now - limit_ms - limit_ms // 16
    assert ages.expired(now) >= older // 5_000 - 2  # as far apart as the records are, marks are exact


def test_what_expired_stays_so_whatever_the_clock_says() -> None:
    ages = noted(1000, 100_000, limit_ms=10_000)
    assert ages.expired(100_000) == 90
    assert ages.expired(50_000) == 90


def test_without_a_limit_nothing_expires() -> None:
    assert noted(1000, 100_000).expired(10 * DAY) == 0


@pytest.mark.parametrize("days", [1, 30, 365])
def test_a_long_outage_fits_a_checkpoint(days: int) -> None:
    every = days * 2_000
    ages = noted(every, days * DAY)
    stored = ages.captured(days * DAY, 0)
    assert len(stored.marks) < 700
    pack(Checkpoint(producer_id=1, epoch=1, slot_bytes=4096, ages=stored), 1)


def test_no_mark_is_kept_twice_however_often_they_are_thinned() -> None:
    ages = noted(1000, 100_000)
    for now in (100_000, 101_000, 5_000_000):
        positions = [position for position, _ in ages.captured(now, 0).marks]
        assert positions == sorted(set(positions))
        assert positions[-1] == 100


def test_marks_of_what_is_settled_are_forgotten() -> None:
    ages = noted(1000, 100_000)
    ages.forget(60)
    marks = ages.captured(100_000, 0).marks
    assert [position for position, _ in marks if position <= 60] == [60], "what waits came behind it"
    ages.forget(200)
    assert ages.captured(100_000, 0).marks == ((100, 100_000),)


OPENING = fmt.position(2, 0)


def test_a_record_was_accepted_when_the_mark_behind_it_was_noted() -> None:
    ages = noted(1000, 100_000)
    ages.look_at_wall(100_000, 5_100_000)
    assert ages.accepted(60, 100_000) == (5_060_000, 5_060_000, 40_000)
    assert ages.accepted(101, 100_500) == (5_100_500, 5_100_500, 0), "since the last look"


@pytest.mark.parametrize("settled", [3, 5])
def test_what_no_checkpoint_knew_was_accepted_between_its_last_mark_and_the_opening(settled: int) -> None:
    ages = Ages(None, restored(StoredAges(marks=((3, 500), (5, 1_000))), OPENING, 9_000, 0, same_boot=True))
    ages.look_at_wall(9_000, 9_000)
    ages.note(OPENING + 7, 9_500)
    ages.forget(settled)
    assert ages.accepted(6, 10_000) == (1_000, 9_000, 9_000)
    assert ages.accepted(OPENING + 1, 10_000) == (9_500, 9_500, 500)


def test_of_what_no_mark_tells_before_an_opening_it_is_only_known_that_it_came_before() -> None:
    ages = Ages(None, restored(StoredAges(), OPENING, 9_000, 0, same_boot=True))
    assert ages.accepted(6, 9_000) == (9_000 - LONGEST_DOWN, 9_000, LONGEST_DOWN)


def test_a_wall_clock_that_is_set_while_records_wait_may_have_shown_either_time_to_them() -> None:
    ages = noted(1000, 100_000)
    for now, wall in ((100_000, 8_100_000), (101_000, 101_000), (102_000, 102_000)):
        ages.look_at_wall(now, wall)
    assert ages.accepted(60, 102_000) == (60_000, 8_060_000, 42_000)
    ages.look_at_wall(103_000, 103_000, all_settled=True)
    assert ages.accepted(60, 103_000) == (60_000, 60_000, 43_000)


def test_another_limit_judges_anew() -> None:
    stored = noted(1000, 100_000, limit_ms=10_000).captured(100_000, 0)
    assert Ages(10_000, stored).expired(0) == 90
    assert Ages(80_000, stored).expired(100_000) <= 20
    assert Ages(None, stored).expired(100_000) == 0


def test_a_later_checkpoint_takes_nothing_back_of_what_expired() -> None:
    durable = StoredAges(expired=90, limit_ms=10)
    assert StoredAges(expired=80, limit_ms=10).after(durable).expired == 90
    assert StoredAges(expired=95, limit_ms=10).after(durable).expired == 95
    assert StoredAges(expired=80, limit_ms=20).after(durable).expired == 80


def test_in_the_same_boot_the_wall_counts_for_nothing() -> None:
    stored = StoredAges(marks=((5, 1_000),), boot_ms=2_000, wall_ms=10 * DAY)
    for wall in (0, 5 * DAY, 50 * DAY):
        assert restored(stored, 5, 9_000, wall, same_boot=True).marks == ((5, 1_000),)


def test_in_another_boot_the_wall_tells_how_long_the_machine_was_down() -> None:
    stored = StoredAges(marks=((5, 1_000), (7, 1_500)), boot_ms=2_000, wall_ms=EARLIEST)
    found = restored(stored, 9, 300, EARLIEST + 60_000, same_boot=False)
    assert found.marks == ((5, 300 - 60_000 - 1_000), (7, 300 - 60_000 - 500), (9, 300))


def test_a_wall_clock_that_was_set_back_ages_nothing() -> None:
    stored = StoredAges(marks=((5, 1_000),), boot_ms=2_000, wall_ms=EARLIEST + 10 * DAY)
    assert restored(stored, 5, 300, EARLIEST + DAY, same_boot=False).marks == ((5, 300 - 1_000),)


@pytest.mark.parametrize(
    ("stored_ms", "wall_ms"),
    [
        pytest.param(60_000, EARLIEST + DAY, id="1970 until the network was there, then the time was set"),
        pytest.param(EARLIEST - 1, EARLIEST + DAY, id="the year that the machine was made in"),
        pytest.param(EARLIEST + DAY, EARLIEST + DAY + LONGEST_DOWN + 1, id="years ahead"),
        pytest.param(EARLIEST + DAY, 60_000, id="1970 again"),
    ],
)
def test_a_wall_clock_that_cannot_be_right_ages_nothing(stored_ms: int, wall_ms: int) -> None:
    stored = StoredAges(marks=((5, 1_000),), boot_ms=2_000, wall_ms=stored_ms)
    found = restored(stored, 9, 300, wall_ms, same_boot=False)
    assert found.marks == ((5, 300 - 1_000), (9, 300))
    assert Ages(5_000, found).expired(300) == 0
    assert Ages(5_000, found).expired(300 + 5_000) == 9


def test_what_no_mark_tells_of_was_accepted_before_the_opening() -> None:
    found = restored(StoredAges(marks=((5, 1_000),)), 9, 2_000, 0, same_boot=True)
    assert found.marks == ((5, 1_000), (9, 2_000))


def test_where_the_clock_went_back_records_pass_for_young() -> None:
    found = restored(StoredAges(marks=((5, 9_000),)), 9, 2_000, 0, same_boot=True)
    assert found.marks == ((5, 9_000), (9, 9_000))
    ages = Ages(1_000, found)
    ages.note(12, 3_000)
    assert ages.expired(9_999) == 0


def options(disk: MemoryDisk, limit_ms: int | None = 1_000) -> Options:
    system = disk.file_system
    return Options(Path(disk), 64 * 1024, 1 << 22, 0, limit_ms=limit_ms, file_system=system)


class Clocks:
    """Both clocks of a machine, as a test sets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, disk: MemoryDisk) -> None:
        self.boot, self.wall = 1_000_000, EARLIEST + 50 * DAY
        system = type(disk.file_system)
        monkeypatch.setattr(system, "since_boot_ms", lambda _: self.boot)
        monkeypatch.setattr(system, "wall_ms", lambda _: self.wall, raising=False)

    def pass_by(self, ms: int) -> None:
        self.boot += ms
        self.wall += ms


def with_a_record(monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryDisk, Clocks, Directory]:
    """That was accepted right now."""
    disk = MemoryDisk()
    clocks = Clocks(monkeypatch, disk)
    directory = open_directory(options(disk))
    directory.ring.append(b"payload", None)
    return disk, clocks, directory


def checkpointed(directory: Directory) -> Directory:
    directory.write_checkpoint(directory.next_checkpoint())
    return directory


def test_where_all_is_settled_there_is_nothing_new_to_write_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle service writes no checkpoint for the time that goes by."""
    _, clocks, directory = with_a_record(monkeypatch)
    for slot, place, _, _ in read(Reader(directory.ring, bytes)):
        directory.ring.settle(slot, [place])
    assert directory.ring.watermark() == directory.ring.last_position
    for _ in range(3):
        clocks.pass_by(MARK_EVERY)
        assert directory.note_age() == (False, False)


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_a_jump_of_the_wall_clock_in_a_living_process_changes_nothing(
    jump: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, clocks, directory = with_a_record(monkeypatch)
    clocks.pass_by(MARK_EVERY)
    directory.note_age()
    clocks.wall += jump
    clocks.pass_by(500)
    assert checkpointed(directory).expired < directory.ring.last_position
    clocks.pass_by(600)
    assert directory.note_age()[1]
    assert checkpointed(directory).expired == directory.ring.last_position


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_a_jump_of_the_wall_clock_between_two_lives_of_one_boot_changes_nothing(
    jump: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, clocks, first = with_a_record(monkeypatch)
    clocks.pass_by(MARK_EVERY)
    checkpointed(first)
    position = first.ring.last_position
    again = disk.after_process_death()
    clocks.wall += jump
    clocks.pass_by(500)
    second = open_directory(options(again))
    assert second.expired < position
    clocks.pass_by(600)
    assert checkpointed(second).expired >= position


def test_what_expired_before_a_crash_has_expired_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clocks, first = with_a_record(monkeypatch)
    clocks.pass_by(MARK_EVERY)
    first.note_age()
    clocks.pass_by(2_000)
    expired = checkpointed(first).expired
    assert expired == first.ring.last_position
    again = disk.after_process_death()
    clocks.wall -= 30 * DAY
    clocks.boot = 10
    assert open_directory(options(again)).expired == expired


def test_what_no_checkpoint_knew_counts_from_the_opening_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clocks, first = with_a_record(monkeypatch)
    clocks.pass_by(900)
    second = open_directory(options(disk.after_process_death()))
    clocks.pass_by(900)
    assert checkpointed(second).expired < first.ring.last_position
    clocks.pass_by(200)
    assert checkpointed(second).expired >= first.ring.last_position


def test_when_a_record_was_accepted_is_told_by_the_clocks_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    _, clocks, directory = with_a_record(monkeypatch)
    clocks.pass_by(MARK_EVERY)
    directory.note_age()
    noted_ms = clocks.wall
    clocks.pass_by(500)
    clocks.wall += DAY
    assert directory.accepted(directory.ring.last_position) == (noted_ms, noted_ms + DAY, 500)


def test_a_look_at_the_clock_forgets_the_marks_of_what_was_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    _, clocks, directory = with_a_record(monkeypatch)
    for _ in range(9):
        directory.ring.append(b"f" * 20_000, None)  # three to a slot
        clocks.pass_by(MARK_EVERY)
        directory.note_age()
    for slot, place, _, _ in read(Reader(directory.ring, bytes))[:-1]:
        directory.ring.settle(slot, [place])
    watermark = directory.ring.watermark()
    assert fmt.position(1, 1) < watermark < directory.ring.last_position
    directory.note_age()
    assert [position for position, _ in directory.ages._marks if position <= watermark] == [watermark]


def test_sleep_of_the_machine_counts() -> None:
    """The clock that is asked goes on while the machine is suspended."""
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    assert abs(FileSystem().since_boot_ms() - boot) < 1_000


def test_marks_are_thinned_while_they_come() -> None:
    ages = Ages(None)
    for number in range(1, 20_000):
        ages.note(number, number * 1_000)
    assert len(ages._marks) < 700 + ages_module.THIN_AT


def test_two_marks_are_a_tenth_of_a_second_apart_at_least() -> None:
    ages = Ages(None)
    noted_at = [now for now in range(5_000, 6_000) if ages.note(now, now)]
    assert noted_at == list(range(5_000, 6_000, MARK_EVERY))


def test_marks_are_thinned_once_for_many_that_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all of them are gone through."""
    ages, thinned, thin = Ages(None), [], Ages._thin

    def counted(self: Ages, now_ms: int) -> None:
        thinned.append(now_ms)
        thin(self, now_ms)

    monkeypatch.setattr(Ages, "_thin", counted)
    for number in range(1, 20_000):
        ages.note(number, number * 1_000)
    assert len(thinned) <= 20_000 // ages_module.THIN_AT * 2


def test_a_clock_that_is_set_while_nothing_waits_tells_nothing_of_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, clocks, directory = with_a_record(monkeypatch)
    directory.note_age()
    for slot, place, _, _ in read(Reader(directory.ring, bytes)):
        directory.ring.settle(slot, [place])
    clocks.wall += DAY
    directory.note_age()
    directory.ring.append(b"payload", None)
    clocks.pass_by(MARK_EVERY)
    directory.note_age()
    earliest, latest, _ = directory.accepted(directory.ring.last_position)
    assert earliest == latest == clocks.wall
