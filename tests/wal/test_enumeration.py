"""A small ring cut at every byte, with every bit flipped: a sample here, all of it in ``tests.prove enumeration``."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from aiorecover.wal import reading
from aiorecover.wal.gaps import Place, damage_at
from aiorecover.wal.losses import Damage
from aiorecover.wal.reading import Reader
from aiorecover.wal.slot import Slot
from tests.wal.rig import SLOT
from tests.wal.specimen import TARGETS, Target, case, cases, main_specimen, retry_specimen, sample, why_wrong

SHARES = 4  # of the sample: several short tests instead of a long one


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Each loss is logged, some ten thousand times."""
    caplog.set_level(logging.CRITICAL, logger="aiorecover")


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("target", TARGETS, ids=[target.file for target in TARGETS])
def test_whatever_is_cut_or_flipped_no_record_is_wrong_and_every_loss_is_named(target: Target, share: int) -> None:
    chosen = list(sample(target))[share::SHARES]
    broken = {target.named(number): why for number in chosen if (why := why_wrong(target, number)) is not None}
    assert not broken
    assert len(chosen) > 500


def test_the_specimens_hold_what_they_are_for() -> None:
    for specimen, name in ((main_specimen(), "ring"), (retry_specimen(), "retry")):
        frames = specimen.frames[name]
        assert len(specimen.images[name]) == 3 * SLOT
        assert {frame.start // SLOT for frame in frames.values()} == {0, 1, 2}
        assert {frame.settled for frame in frames.values()} == {True, False}


def test_a_number_names_a_case_for_ever() -> None:
    assert main_specimen.__wrapped__() == main_specimen()
    assert retry_specimen.__wrapped__() == retry_specimen()
    assert case(0) == (TARGETS[0], 0)
    assert case(cases() - 1) == (TARGETS[-1], TARGETS[-1].count - 1)
    with pytest.raises(IndexError):
        case(cases())
    ring = TARGETS[0]
    assert (ring.named(7), ring.named(ring.size + 8 * 5 + 3)) == ("ring cut at 7", "ring bit 3 of byte 5")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("flushed_behind", "lost and not named"), ("_report", "lost and not named"), ("next_frame", "lost, though")],
)
def test_a_reader_that_reports_or_finds_less_is_noticed(name: str, complaint: str) -> None:
    with mock.patch.object(Reader if name == "_report" else reading, name, return_value=None):
        found = [why_wrong(target, number) for target in TARGETS for number in list(sample(target))[::100]]
    assert any(why is not None and complaint in why for why in found)


_report, _end_of = Reader._report, Reader._end_of


def at_the_frame_behind_it(
    reader: Reader, slot: Slot, first: int, last: int, offset: int, *, stop: int, before: int = 0
) -> None:
    _report(reader, slot, first, last, stop, stop=stop, before=before)


def in_the_slot_behind_it(epoch: int, first: int, last: int, near: Place, floor: int) -> Damage | None:
    return damage_at(epoch, first, last, replace(near, slot=near.slot + 1), floor)


def where_the_slot_before_it_starts(reader: Reader, slot: Slot) -> Place:
    return replace(_end_of(reader, slot), file_offset=slot.file_offset)


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (Reader, "_report", at_the_frame_behind_it),
        (reading, "damage_at", in_the_slot_behind_it),
        (Reader, "_end_of", where_the_slot_before_it_starts),
    ],
)
def test_a_loss_that_is_named_at_another_place_is_noticed(where: Any, name: str, fault: Callable[..., object]) -> None:
    with mock.patch.object(where, name, fault):
        found = [why_wrong(target, number) for target in TARGETS for number in list(sample(target))[::100]]
    complaints = {why.split(":")[0] for why in found if why is not None}
    assert complaints == {"named at another place"}
