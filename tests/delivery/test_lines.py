"""A few refused records are told of one by one, a flood of them in one line a minute."""

import asyncio
import logging

import pytest

from aiorecover.delivery import lines as module
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.lines import INTERVAL, MOST, LaneLines, Lines
from aiorecover.delivery.refusal import Refusal
from tests.support.eventually import until

REFUSAL = Refusal(error="InvalidTimestampError", message="too old", attempts=2)


def tell(lines: Lines, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        lines.tell(f"p/1/{number}", "t", 0, REFUSAL)


@pytest.mark.asyncio
async def test_each_is_told_of_up_to_a_number_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines()
    tell(lines, MOST + 1000)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == MOST
    assert told[-1].endswith(f"record_id=p/1/{MOST} topic=t partition=0 attempts=2 error={REFUSAL}")
    lines.close()
    (more,) = [record.getMessage() for record in caplog.records][MOST:]
    assert more.startswith("more records became dead letters: look at producer.dead_letters records=1000 last=p/1/1020")
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.asyncio
async def test_the_next_minute_begins_anew(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    lines = Lines()
    tell(lines, MOST + 1)
    await until(lambda: len(caplog.records) == MOST + 1)
    tell(lines, 1)
    await asyncio.sleep(0.05)
    assert len(caplog.records) == MOST + 2, "nothing is told of nothing"
    lines.close()
    assert len(caplog.records) == MOST + 2


def test_of_a_lane_is_told_once_a_minute_and_of_no_more_than_a_number_of_them() -> None:
    lines = LaneLines()
    lanes = [Lane("t", number) for number in range(MOST + 1)]
    assert [lines.may_tell(lane, 10.0) for lane in lanes] == [True] * MOST + [False]
    assert not lines.may_tell(lanes[0], 10.0 + INTERVAL - 1)
    assert lines.may_tell(lanes[MOST], 10.0 + INTERVAL)
    assert lines.may_tell(lanes[0], 10.0 + INTERVAL)
    assert not lines.may_tell(lanes[0], 11.0 + INTERVAL)
