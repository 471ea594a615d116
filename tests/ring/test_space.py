"""Space: limits, reuse, what is given back, and disks that are full."""

from pathlib import Path

import pytest

from aiorecover.errors import RecordTooLargeError, WalFullError
from aiorecover.ring.files import Files
from aiorecover.ring.ring import Limits
from aiorecover.ring.writer import Receipt
from tests.ring.rig import Boots, Rig

LIMIT = 256 << 10

pytestmark = pytest.mark.usefixtures("each_writer")


class Disk(Files):
    """A volume of a given size, on which only what was reserved counts."""

    def __init__(self, free: int, total: int) -> None:
        super().__init__()
        self.free, self.total = free, total

    def volume(self, path: Path) -> tuple[int, int]:
        return self.free, self.total


class Clock(Files):
    """Time that a test moves on."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def _disk_use(path: Path) -> int:
    return (path / "0" / "ring").stat().st_blocks * 512


def _fill(rig: Rig, start: int = 0) -> int:
    """Publish until the ring is full; how many records fitted."""
    number = start
    try:
        while True:
            rig.publish(number, size=500)
            number += 1
    except WalFullError:
        return number - start


def test_a_full_ring_refuses_says_what_fills_it_and_goes_on_once_room_is_free(tmp_path: Path) -> None:
    with Rig(tmp_path, limits=Limits(LIMIT, 0, 2048)) as rig:
        fitted = _fill(rig)
        assert fitted > 300
        with pytest.raises(WalFullError, match=r"wal_max_bytes=262144 most_segments=topic/0:\d+"):
            rig.publish(0, size=500)
        assert rig.numbers() == list(range(fitted)), "what was accepted is unharmed"
        rig.flush()
        assert _fill(rig) > 300


def test_segments_are_reused_only_after_a_flush_that_began_when_all_was_done(tmp_path: Path) -> None:
    with Rig(tmp_path, limits=Limits(LIMIT, 0, 2048)) as rig:
        _fill(rig)
        job = rig.ring.flusher.begin()
        rig.numbers()
        rig.ring.flusher.run(job)
        rig.ring.flusher.complete(job)
        with pytest.raises(WalFullError):
            _publish_much(rig)
        rig.flush()
        _publish_much(rig)


def test_done_segments_do_not_count_as_held_before_any_flush(tmp_path: Path) -> None:
    """Else dead letters that were purged would still halt lanes until the next flush, also after a start."""
    with Rig(tmp_path, limits=Limits(LIMIT, 0, 2048)) as rig:
        _fill(rig)
        lane = rig.ring.lane("topic", 0)
        assert lane.held == LIMIT
        rig.numbers()
        assert lane.held == rig.ring.geometry.small, "the segment that is written to"
    with Rig(tmp_path, limits=Limits(LIMIT, 0, 2048)) as rig:
        lane = rig.ring.lane("topic", 0)
        assert (lane.segments > 1, lane.held) == (True, 0)
        rig.flush()
        assert lane.segments == 0


def _publish_much(rig: Rig) -> None:
    for number in range(100):
        rig.publish(number, size=500)


def test_a_start_takes_one_small_segment_for_each_lane(tmp_path: Path) -> None:
    for life in range(20):
        with Rig(tmp_path, limits=Limits(LIMIT, 0, 2048)) as rig:
            rig.publish(life)
    with Rig(tmp_path, limits=Limits(LIMIT, 0, 2048)) as rig:
        assert rig.ring.used == 20 * 8192
        assert rig.numbers() == list(range(20))


def test_an_idle_lane_gives_its_segment_back_and_a_ring_at_rest_its_disk_space(tmp_path: Path) -> None:
    files = Clock()
    with Rig(tmp_path, files) as rig:
        for lane in range(4):
            for number in range(200):
                rig.publish(number, lane=lane, size=400)
        rig.flush()
        assert _disk_use(tmp_path) > 300_000
        rig.numbers()
        files.seconds += 1.5
        rig.ring.tidy()
        rig.flush()
        assert rig.ring.used == 0
        for _ in range(40):
            files.seconds += 1.0
            rig.ring.tidy()
        assert _disk_use(tmp_path) < 64 << 10
        rig.publish(1)
        assert rig.numbers() == [1]


def test_a_ring_with_records_keeps_no_free_disk_space_on_a_full_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other sizes of segments need it, for rewriting too."""
    files = Clock()
    with Rig(tmp_path, files, Limits(1 << 30, 1 << 20, 2048)) as rig:
        for lane in (0, 1):
            for number in range(200):
                rig.publish(number, lane=lane, size=400)
        rig.seal()
        for _ in rig.drain(rig.ring.lane("topic", 0)):
            pass
        rig.flush()
        monkeypatch.setattr(files, "volume", lambda _: (1 << 20, 1 << 30))
        for _ in range(5):
            files.seconds += 1.0
            rig.ring.tidy()
            rig.flush()
        assert (rig.ring.used > 0, rig.ring.pool.kept) == (True, 0)


def test_records_that_fit_no_small_segment_get_a_large_or_a_huge_one(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        receipts: list[Receipt] = [
            rig.publish(number, size=size) for number, size in enumerate((100, 20_000, 100_000, 50))
        ]
        sizes = [receipt.batch.segment.size for receipt in receipts]
        assert sizes[0] == 8192
        assert sizes[1] == 32768
        assert sizes[2] == 131072
        with pytest.raises(RecordTooLargeError):
            rig.publish(9, size=250_000)
        assert rig.numbers() == [0, 1, 2, 3]


def test_huge_segments_survive_a_crash(tmp_path: Path) -> None:
    with Rig(tmp_path, Boots(1)) as rig:
        for number, size in enumerate((100, 20_000, 100_000, 50, 120_000)):
            rig.publish(number, size=size)
        rig.flush()
    with Rig(tmp_path, Boots(2)) as rig:
        assert rig.numbers() == [0, 1, 2, 3, 4]


def test_a_volume_that_cannot_hold_the_least_is_refused_with_a_value_that_fits(tmp_path: Path) -> None:
    disk = Disk(free=30 << 20, total=512 << 20)
    with pytest.raises(WalFullError, match=r"lower wal_min_free_bytes to 23068672 at most"):
        Rig(tmp_path, disk, Limits(1 << 30, 28 << 20, 2048))
    with pytest.raises(WalFullError, match=r"free disk space, or choose a wal_dir on another one free=4194304"):
        Rig(tmp_path, Disk(free=4 << 20, total=6 << 20), Limits(1 << 30, 1 << 20, 2048))
    with Rig(tmp_path, disk, Limits(1 << 30, 20 << 20, 2048)) as rig:
        rig.publish(1)


def test_small_volumes_work_with_default_limits(tmp_path: Path) -> None:
    for megabytes in (64, 512, 1024):
        disk = Disk(free=megabytes << 20, total=megabytes << 20)
        with Rig(tmp_path / str(megabytes), disk, Limits()) as rig:
            assert rig.ring.min_free == (megabytes << 20) // 20
            rig.publish(1)


def test_the_reserve_on_the_volume_stays_free_for_others(tmp_path: Path) -> None:
    disk = Disk(free=1 << 30, total=1 << 30)
    with Rig(tmp_path, disk, Limits(1 << 30, 100 << 20, 2048)) as rig:
        rig.publish(1)
        disk.free = 100 << 20
        with pytest.raises(WalFullError, match="wal_min_free_bytes"):
            _fill_lanes(rig)
        disk.free = 1 << 30
        _fill_lanes(rig)


def _fill_lanes(rig: Rig) -> None:
    for lane in range(20):
        rig.publish(lane, lane=lane)


def test_a_disk_that_is_full_is_an_error_and_the_record_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(tmp_path) as rig:
        rig.publish(0)

        def full(*_: object) -> None:
            raise WalFullError("no room to reserve disk space")

        monkeypatch.setattr(rig.ring.files, "allocate", full)
        _fill(rig, 1)
        accepted = rig.writer.next_sequence() - 1
        monkeypatch.undo()
        rig.publish(accepted)
        assert rig.numbers() == list(range(accepted + 1))
