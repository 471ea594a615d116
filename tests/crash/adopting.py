"""A worker that is gone, what it has left, and the adopters that die while they deliver it."""

from typing import Any

from aiorecover.cli.inspection import inspect
from tests.crash.judgement import Verdict
from tests.crash.lives import Child
from tests.crash.scenario import Scenario
from tests.support.admin import run, until

__all__ = ["NOWHERE", "adopter", "dies_adopting", "left_alone", "let_go", "until_adopted", "waiting_in"]

NOWHERE = "127.0.0.1:1"  # no broker listens there
_WITHIN_S = 60.0  # it takes a second


def adopter(scenario: Scenario, **task: Any) -> Child:
    """A worker that publishes nothing: whatever it sends, flushes and settles belongs to another one's directory.

    ``task``: more of `Scenario.life`.
    """
    return scenario.life(
        ("wait", {}),
        servers=f"{scenario.cluster.bootstrap_servers},{NOWHERE}",  # where the owner looked for a broker, too
        instance="b",
        adoption_grace_ms=0,
        max_batch_size=2048,
        **task,
    )


def left_alone(scenario: Scenario, count: int, **task: Any) -> None:
    """A worker has accepted so many records, reached no broker, and is gone; ``task``: as of `adopter`."""
    owner = scenario.life(("publish", {"count": count}), ("wait", {}), servers=NOWHERE, instance="a", **task)
    owner.wait_for("wait")
    scenario.kill(owner)


def dies_adopting(scenario: Scenario, point: str, times: int, **task: Any) -> bool:
    """Another adopter is killed when it reaches the point for that time; whether it did. ``task``: as of `adopter`."""
    return scenario.dies(adopter(scenario, crash=(point, times), **task), _WITHIN_S)


def until_adopted(scenario: Scenario, child: Child) -> Verdict:
    """The verdict over everything, once nothing waits in the directory that was left."""
    let_go(scenario, child)
    return scenario.verdict()


def let_go(scenario: Scenario, child: Child) -> None:
    """Until nothing waits in the directory that was left; the adopter stops then."""

    async def nothing_waits() -> bool | None:
        (left,) = (one for one in inspect(scenario.wal_dir, 0) if one["path"].endswith("/a"))
        return (left["state"] == "free" and not left["error"] and not waiting_in(left)) or None

    run(until(nothing_waits, timeout_s=_WITHIN_S, what="the directory was not adopted"))
    child.tell()
    scenario.finish(child)


def waiting_in(left: dict[str, Any]) -> int:
    """Records that wait in the main ring of a directory."""
    return sum(ring["waiting"] for ring in left["rings"] if ring["ring"] == "ring")
