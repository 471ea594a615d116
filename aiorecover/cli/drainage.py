"""Directories that no process has: deliver what waits in them, or throw it away."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
from typing import TYPE_CHECKING, Any, Final

from aiorecover import RecoverableProducer
from aiorecover.cli.inspection import instances_at
from aiorecover.errors import DeliveryError, WalError, WalLockedError
from aiorecover.ring.damage import kept_aside
from aiorecover.ring.directory import Directory, noted
from aiorecover.ring.files import Files
from aiorecover.ring.inspect import look

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorecover.ring.directory import Instance

__all__ = ["discard", "drain", "drained", "free"]

REPORT_S: Final = 0.1


def free(one: Instance) -> None:
    """Raise where a process has the directory.

    Raises:
        WalLockedError: a process has it.

    """
    if one.locked:
        raise WalLockedError(f"a process has the directory: stop it, or leave it to it path={one.path} pid={one.pid}")


async def drain(
    path: pathlib.Path,
    make: Callable[[pathlib.Path], RecoverableProducer],
    timeout_ms: int | None,
    report: Callable[[int, int, str], None],
) -> list[dict[str, Any]]:
    """Deliver what waits in each instance at ``path``, one after the other; return what became of each.

    ``report``: called with the number of records that are done, and of all, and with what the others wait for.

    Raises:
        ConfigError: nothing of aiorecover is there, or ``make`` refuses the options.
        WalIOError: the path cannot be read.

    """
    found = instances_at(path)
    outcomes = [_outcome(one) for one in found]
    total, before = sum(one["left"] for one in outcomes), 0
    loop = asyncio.get_running_loop()
    until = None if timeout_ms is None else loop.time() + timeout_ms / 1000
    for one, outcome in zip(found, outcomes, strict=True):
        if outcome["error"] or not outcome["left"]:
            continue
        left_ms = None if until is None else max(0, int((until - loop.time()) * 1000))

        def report_all(done: int, waits: str, before: int = before) -> None:
            report(before + done, total, waits)

        try:
            await _drain(make(one.path), outcome, left_ms, report_all)
        except (WalError, DeliveryError) as error:
            outcome["error"] = str(error)
        outcome["kept_aside"] = kept_aside(one.path, Files())
        before += outcome["delivered"] + outcome["dead_lettered"]
    return outcomes


def _outcome(one: Instance) -> dict[str, Any]:
    outcome = {"path": str(one.path), "delivered": 0, "dead_lettered": 0, "left": 0, "kept_aside": 0, "error": None}
    try:
        view = look(one.path)
        outcome["left"], outcome["kept_aside"] = view.records, view.kept_aside
        free(one)
    except WalError as error:
        outcome["error"] = str(error)
    return outcome


async def _drain(
    producer: RecoverableProducer, outcome: dict[str, Any], timeout_ms: int | None, report: Callable[[int, str], None]
) -> None:
    async with producer:
        flushing = asyncio.create_task(producer.flush(timeout_ms))
        try:
            while not flushing.done():
                await asyncio.wait({flushing}, timeout=REPORT_S)
                now = producer.statistics()
                outcome |= {"delivered": now.delivered, "dead_lettered": now.dead_lettered}
                if not now.recovering:  # else not all that waits is known
                    outcome["left"] = now.pending
                waits = "" if flushing.done() else _waits(pathlib.Path(outcome["path"]))
                report(now.delivered + now.dead_lettered, waits)
            flushing.result()
        finally:
            flushing.cancel()
            if outcome["left"]:
                await producer.stop(0)  # its time is over


def _waits(path: pathlib.Path) -> str:
    """Return what holds up a directory of ours, as its producer noted it within the last second; empty: nothing."""
    ours = noted(path)
    return ours.troubles[0] if ours is not None and ours.troubles else ""


def drained(outcomes: Sequence[dict[str, Any]]) -> bool:
    """Whether nothing is left anywhere, and nothing is kept aside that could not be read."""
    return not any(one["left"] or one["error"] or one["kept_aside"] for one in outcomes)


def discard(path: pathlib.Path) -> tuple[int, int]:
    """Remove an instance directory with all that is in it.

    Return how many records, and dead letters, those were, and how many damaged batches that were kept aside.

    Raises:
        WalLockedError: a process has it.
        WalError: it cannot be read, or is not ours.
        OSError: it cannot be removed.

    """
    view = look(path)
    directory = Directory.take(path.parent, instance=path.name)
    try:
        shutil.rmtree(path)
    finally:
        directory.close()
    return sum(lane.records for lane in view.lanes), view.kept_aside
