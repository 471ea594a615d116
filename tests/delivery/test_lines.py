"""A few refused records are told of one by one, a flood of them in one line a minute."""

import asyncio
import logging

import pytest

from aiorecover.delivery import lines as module
from aiorecover.delivery.lane import Lane
from aiorecover.delivery.lines import INTERVAL, MOST, LaneLines, Lines, SuspectLines
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


@pytest.mark.asyncio
async def test_lanes_that_are_sent_apart_together_are_one_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHERED", 0.0)
    lines = SuspectLines(lambda: 7)
    for number in range(300):
        lines.tell(Lane("t", number), "SilentError()")
    assert caplog.messages == []
    await until(lambda: len(caplog.records) == 1)
    told = caplog.messages[0]
    assert "nothing to do" in told
    assert told.endswith("lanes=300 lanes_suspect=7 topic=t partition=299 error=SilentError()")
    lines.tell(Lane("u", 1), "NotEnoughReplicasError()")
    await asyncio.sleep(0.05)
    assert len(caplog.records) == 1, "the minute is not over"
    lines.close()
    assert caplog.messages[1].endswith("lanes=1 lanes_suspect=7 topic=u partition=1 error=NotEnoughReplicasError()")
    lines.close()
    assert len(caplog.records) == 2


@pytest.mark.asyncio
async def test_lanes_that_are_well_again_are_one_line_a_minute_of_their_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "GATHERED", 0.0)
    lines = SuspectLines(lambda: 7)
    lines.tell(Lane("t", 0), "SilentError()")
    await until(lambda: len(caplog.records) == 1)
    for number in range(300):
        lines.tell_well(Lane("t", number))
    await until(lambda: len(caplog.records) == 2)
    assert caplog.messages[1] == "lanes are well again lanes=300 lanes_suspect=7 topic=t partition=299"
    assert caplog.records[1].levelno == logging.INFO
    lines.tell_well(Lane("u", 1))
    await asyncio.sleep(0.05)
    assert len(caplog.records) == 2, "the minute is not over"
    lines.close()
    assert caplog.messages[2] == "lanes are well again lanes=1 lanes_suspect=7 topic=u partition=1"


@pytest.mark.asyncio
async def test_lanes_that_are_well_before_the_line_is_written_are_no_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "GATHERED", 0.0)
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    counts = iter([0, 1])
    lines = SuspectLines(lambda: next(counts))
    for _ in range(2):
        lines.tell(Lane("t", 0), "SilentError()")
        await asyncio.sleep(0.05)
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.WARNING]
    lines.close()
