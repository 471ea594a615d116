"""Damage: never a wrong record, one batch lost at most, named (R14)."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiorecover.ring.format import PAGE
from tests.ring.rig import SMALL, Boots, Rig, flipped

RECORDS = 120
BATCH_RECORDS = 18  # that a batch of 2 KiB holds at the most
SETTINGS = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of boot 1 with records that three flushes cover."""
    path = tmp_path_factory.mktemp("filled")
    with Rig(path, Boots(1)) as rig:
        for number in range(RECORDS):
            rig.publish(number)
            if number % (RECORDS // 3) == 0:
                rig.flush()
        rig.seal()
        rig.flush()
    return path


def copied(filled: Path, path: Path, choose: Callable[[bytearray], None]) -> Path:
    """Copy the directory, and damage the copy's ring."""
    shutil.copytree(filled, path)
    flipped(path / "0" / "ring", choose)
    return path


@SETTINGS
@given(place=st.integers(0, 255), bit=st.integers(0, 7), offset=st.integers(0, 1 << 17), new_boot=st.booleans())
def test_a_flipped_bit_costs_one_batch_at_the_most_and_never_yields_a_wrong_record(
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
    filled: Path,
    place: int,
    bit: int,
    offset: int,
    new_boot: bool,
) -> None:
    used = PAGE + 3 * SMALL.small
    at = PAGE + (offset * 256 + place) % (used - PAGE)

    def flip(data: bytearray) -> None:
        data[at] ^= 1 << bit

    path = copied(filled, tmp_path_factory.mktemp("ring") / "copy", flip)
    caplog.clear()
    with caplog.at_level(logging.ERROR, "aiorecover"), Rig(path, Boots(2 if new_boot else 1)) as rig:
        numbers = rig.numbers()
        damaged = rig.ring.damaged
    missing = sorted(set(range(RECORDS)) - set(numbers))
    assert numbers == sorted(set(numbers)), "in order, none twice, none that was not published"
    in_head = any(PAGE + n * SMALL.small <= at < PAGE + n * SMALL.small + 512 for n in range(4))
    if not in_head:
        assert len(missing) <= BATCH_RECORDS
        assert not missing or missing == list(range(missing[0], missing[-1] + 1)), "one batch, not some of several"
    if missing and not (new_boot and missing[-1] == RECORDS - 1):  # the end may be the unflushed tail, too
        assert damaged, f"{missing} are gone, and nothing says so"
        assert "damaged" in caplog.text


@SETTINGS
@given(cut=st.integers(PAGE, PAGE + 4 * SMALL.small))
def test_a_file_cut_short_yields_only_whole_records(
    tmp_path_factory: pytest.TempPathFactory, filled: Path, cut: int
) -> None:
    def shorten(data: bytearray) -> None:
        del data[cut:]

    with Rig(copied(filled, tmp_path_factory.mktemp("ring") / "copy", shorten), Boots(2)) as rig:
        numbers = rig.numbers()
    assert numbers == sorted(set(numbers))
    assert set(numbers) <= set(range(RECORDS))


def test_a_damaged_batch_is_kept_aside_named_and_not_named_again(
    tmp_path: Path, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def overwrite(data: bytearray) -> None:
        at = data.index(b"30:...")
        data[at : at + 20] = b"\xff" * 20

    path = copied(filled, tmp_path / "copy", overwrite)
    with Rig(path, Boots(2)) as rig:
        assert rig.ring.damaged
        assert 30 not in rig.numbers()
        rig.flush()
    assert "batch_damaged" in caplog.text
    assert f"producer={rig.ring.producer_id} epoch=1 first=" in caplog.text
    kept = list((path / "0" / "damaged").iterdir())
    assert len(kept) == 1
    assert b"31:..." in kept[0].read_bytes()
    caplog.clear()
    with Rig(path, Boots(2)) as rig:
        assert rig.numbers() == []
    assert "damaged" not in caplog.text


def test_a_region_whose_head_is_damaged_is_read_all_the_same(tmp_path: Path, filled: Path) -> None:
    def overwrite(data: bytearray) -> None:
        data[:20] = bytes(20)

    with Rig(copied(filled, tmp_path / "copy", overwrite), Boots(2)) as rig:
        assert rig.numbers() == list(range(RECORDS))


def test_after_a_power_cut_records_that_no_flush_covered_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Rig(tmp_path, Boots(1)) as rig:
        for number in range(40):
            rig.publish(number)
        rig.flush()
        for number in range(40, 60):
            rig.publish(number)
    with Rig(tmp_path, Boots(2)) as rig:
        assert rig.numbers() == list(range(40))
        assert rig.ring.damaged == 0
    assert "damaged" not in caplog.text
