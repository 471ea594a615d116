"""Exactly once, where the power goes in the steps of a transaction (`cuts`); `make prove WHAT=cuts` does it longer."""

import asyncio

import pytest

from aiorecover.opened import Opened
from aiorecover.testing import memory_file
from tests.crash.cuts import PARTITIONS, Chain, Verdict, play
from tests.crash.machines import MemoryMachine
from tests.crash.planted import planted
from tests.crash.power_cut import CUT_POINTS, Cut, cuts_of
from tests.prove.cuts import too_little
from tests.support.broker import Cluster, TopicFactory
from tests.support.oracle import Accepted, Consumed

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

SEED = 2
SLOW_S = 0.2  # a flush: longer than a commit takes


async def test_after_a_power_cut_in_each_step_nothing_is_missing_repeated_or_out_of_order(
    kafka: Cluster, topic: TopicFactory
) -> None:
    verdict = await play(kafka, topic(kafka, PARTITIONS), cuts_of(SEED, [1, 2]))
    print(verdict)
    assert verdict.ok, str(verdict)
    assert verdict.cuts == len(CUT_POINTS)
    assert not too_little(verdict)


@pytest.mark.parametrize("quiet", ["accepted", "late"])
async def test_cuts_in_which_too_little_happens_prove_nothing(quiet: str) -> None:
    enough = Verdict(cuts=len(CUT_POINTS), accepted=50 * len(CUT_POINTS), late=1)
    assert not too_little(enough)
    setattr(enough, quiet, 0)
    assert too_little(enough)


# -- what has to be seen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, "commit_without_a_flush"])
async def test_a_position_that_covers_what_was_not_flushed_is_seen(
    kafka: Cluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    """Where a power cut takes everything that it may: what was committed is made once more.

    Unless a checkpoint has flushed it just before: so there are several cuts. Who does not wait for the end of a flush
    commits first: it is slow.
    """
    flush_ring = Opened._flush_ring

    async def flush_slowly(self: Opened) -> None:
        await asyncio.sleep(SLOW_S)
        await flush_ring(self)

    monkeypatch.setattr(memory_file, "SHARES", (0.0,))
    monkeypatch.setattr(Opened, "_flush_ring", flush_slowly)
    with planted(fault):
        cuts = [Cut("after the commit", times, "never", SEED) for times in (3, 2, 4)]
        verdict = await play(kafka, topic(kafka, PARTITIONS), cuts)
    assert bool(verdict.repeated) == (fault is not None), str(verdict)
    assert verdict.ok == (fault is None), str(verdict)


@pytest.mark.parametrize("fault", [None, "tell_before_the_flush"])
async def test_who_is_told_before_his_flush_has_begun_is_seen(
    kafka: Cluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    """A flush may be one for which no publisher waits, a transaction's or a checkpoint's: so there are several cuts."""
    monkeypatch.setattr(memory_file, "SHARES", (0.0,))
    with planted(fault):
        point = "when those who wait for a flush are known"
        cuts = [Cut(point, times, "always", SEED) for times in (3, 2, 4, 5, 6)]
        verdict = await play(kafka, topic(kafka, PARTITIONS), cuts)
    assert bool(verdict.missing) == (fault is not None), str(verdict)
    assert verdict.ok == (fault is None), str(verdict)


async def test_settling_before_the_commit_is_seen(kafka: Cluster, topic: TopicFactory) -> None:
    with planted("settle_before_the_commit"):
        verdict = await play(kafka, topic(kafka, PARTITIONS), [Cut("when the commit is lost", 3, "always", SEED)])
    assert verdict.missing, str(verdict)


@pytest.mark.parametrize("kept", ["_surely", "_left"])
async def test_a_record_that_is_there_twice_is_noticed_whether_a_flush_had_covered_it_or_a_cut_has_left_it(
    kept: str,
) -> None:
    chain, name = Chain("nowhere:9092", "topic", MemoryMachine()), "aaaaaaaaaaaaa/1/1"
    chain._accepted.append(Accepted(name, b"k0", b"0"))
    chain._made = 1
    getattr(chain, kept).add(name)
    once, twice = (Consumed(0, offset, b"k0", b"0", (), 0, name) for offset in range(2))
    assert chain.judge([once]).ok
    assert chain.judge([once, twice]).repeated
    chain.close()
