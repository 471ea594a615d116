"""Looking at a directory without taking it."""

from pathlib import Path

import pytest

from aiorecover.errors import WalFormatError
from aiorecover.ring.inspect import look, waiting
from aiorecover.ring.notes import Note, encode_payload
from tests.ring.rig import SMALL, Boots, Rig

SEGMENT_AT = 4096  # of the first segment in a ring


def test_inspecting_shows_waiting_records_beside_the_owner_and_changes_nothing(tmp_path: Path) -> None:
    files = Boots(1)
    with Rig(tmp_path, files) as rig:
        for number in range(50):
            rig.publish(number, lane=number % 2, note=encode_payload(Note(b"\x01")) if number == 7 else None)
        rig.flush()
        before = (tmp_path / "0" / "ring").read_bytes()
        view = look(tmp_path / "0", Boots(1), SMALL)
        assert view.records == 50
        assert [(lane.topic, lane.partition, lane.records) for lane in view.lanes] == [
            ("topic", 0, 25),
            ("topic", 1, 25),
        ]
        records = list(waiting(tmp_path / "0", Boots(1), SMALL))
        assert [int((one.record.value or b"").split(b":")[0]) for one in records] == [
            *range(0, 50, 2),
            *range(1, 50, 2),
        ]
        assert records[0].record_id == f"{rig.ring.producer_id}/1/1"
        noted = next(one for one in records if one.note is not None)
        assert noted.note == Note(b"\x01")
        assert (tmp_path / "0" / "ring").read_bytes() == before
        assert len(rig.numbers()) == 50
        assert look(tmp_path / "0", Boots(1), SMALL).records == 0


def test_a_segment_that_is_used_anew_during_a_look_shows_no_record_of_another_lane(tmp_path: Path) -> None:
    with Rig(tmp_path, Boots(1)) as rig:

        def publish_two_batches(lane: int) -> None:
            for number in range(2):
                rig.publish(number, lane=lane)
                rig.seal()

        publish_two_batches(lane=0)
        records = waiting(tmp_path / "0", Boots(1), SMALL)
        assert next(records).partition == 0
        assert len(rig.numbers()) == 2
        rig.ring.lane("topic", 0).give_back()
        rig.flush()
        publish_two_batches(lane=1)
        assert list(records) == []


def test_after_another_boot_it_counts_what_the_next_opening_would(tmp_path: Path) -> None:
    with Rig(tmp_path, Boots(1)) as rig:
        for number in range(20):
            rig.publish(number)
        rig.flush()
        for number in range(20, 30):
            rig.publish(number)
    assert look(tmp_path / "0", Boots(2), SMALL).records == 20
    assert look(tmp_path / "0", Boots(1), SMALL).records == 30


def test_a_directory_without_a_ring_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(WalFormatError, match="there is no ring: name the directory of an instance"):
        look(tmp_path)


def test_a_region_without_its_head_hides_nothing(tmp_path: Path) -> None:
    with Rig(tmp_path, Boots(1)) as rig:
        for number in range(20):
            rig.publish(number)
        rig.flush()
    ring = tmp_path / "0" / "ring"
    with ring.open("r+b") as file:
        file.write(bytes(SEGMENT_AT))
    view = look(tmp_path / "0", Boots(1), SMALL)
    assert (view.records, view.unreadable) == (20, 0)
    with ring.open("r+b") as file:
        file.truncate(ring.stat().st_size - 1)
    assert look(tmp_path / "0", Boots(1), SMALL).unreadable == 1


def test_a_file_of_another_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "ring").write_bytes(b"a ring of mine" * 1000)
    with pytest.raises(WalFormatError, match="the file belongs to another program"):
        look(tmp_path)
