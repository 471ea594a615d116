"""The model compares each ring's view with what the next opening finds: it notices a view that shows more, or less."""

import logging
from dataclasses import replace
from unittest import mock

import pytest

from aiorecover.wal import format as fmt
from aiorecover.wal.moved import RING
from aiorecover.wal.recovery import Plan, SlotFound
from aiorecover.wal.view import View
from aiorecover.wal.walk import SlotView
from tests.wal import machine, outside
from tests.wal.ledger import ViolationError
from tests.wal.walk import walk

Patch = pytest.MonkeyPatch
WALKS = 60  # at most


class Other(View):
    """It shows what it should not, or less than it should."""

    def _views(self, found: list[SlotFound], next_opening: Plan) -> list[SlotView]:
        return [self._known(one) for one in super()._views(found, next_opening)]

    def _known(self, one: SlotView) -> SlotView:
        return one


class ShowsCopiesThatDoNotCount(Other):
    def _views(self, found: list[SlotFound], next_opening: Plan) -> list[SlotView]:
        with mock.patch.object(Plan, "copies_up_to", None):
            return super()._views(found, next_opening)


class ShowsOriginalsThatWereMoved(Other):
    def _known(self, one: SlotView) -> SlotView:
        watermark = 0 if self.checkpoint is None else self.checkpoint.watermark
        return replace(one, durable=watermark) if self.ring == RING else one


class ShowsWhatTheWatermarkCovers(Other):
    def _known(self, one: SlotView) -> SlotView:
        return replace(one, durable=0)


class LooksAtNoCopy(Other):
    def _known(self, one: SlotView) -> SlotView:
        return one if one.counts_up_to is None else replace(one, counts_up_to=0)


class MissesWhatWasNeverThere(Other):
    def slots(self) -> list[SlotView]:
        found = super().slots()
        if any(one.header is not None for one in found):
            self._ends = (*self._ends, fmt.position(1, 1 << 30))
        return found


FAULTS: list[tuple[type[Other], int]] = [  # with a walk that is green, soon before one that finds it
    (ShowsCopiesThatDoNotCount, 120),
    (ShowsOriginalsThatWereMoved, 0),
    (ShowsWhatTheWatermarkCovers, 0),
    (LooksAtNoCopy, 0),
    (MissesWhatWasNeverThere, 0),
]


@pytest.mark.parametrize(("fault", "start"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_the_model_finds_a_view_that_differs_from_the_next_opening(
    fault: type[Other], start: int, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="aiorecover")  # every hole that a power cut leaves is logged
    monkeypatch.setattr(machine, "LOOKED_AT", 1)
    assert walk(start)[1] is None
    monkeypatch.setattr(outside, "View", fault)
    errors = (walk(seed)[1] for seed in range(start, start + WALKS))
    error = next((error for error in errors if error is not None), None)
    assert isinstance(error, ViolationError)
    assert str(error).startswith("a view ")
