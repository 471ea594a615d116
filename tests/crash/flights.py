"""A life that dies with batches in flight in every lane, where the test wants them to be: the prelude of many."""

from collections.abc import Sequence
from typing import Any

from tests.crash.lives import Child
from tests.crash.scenario import FLUSH, Scenario, Step
from tests.support.detour import Detour

__all__ = [
    "BATCHES_BYTES",
    "LANES",
    "MORE_THAN_REMEMBERED",
    "RECORDS",
    "die_before_a_paused_broker",
    "die_unanswered",
    "ready",
    "take_off",
]

LANES = 6
RECORDS = 600
BATCHES_BYTES = 700  # what is in flight in one of the six lanes is more; others may wait for an answer to theirs
RECORD_BYTES = 100  # a record is more
MORE_THAN_REMEMBERED: list[Step] = [("publish", {"count": 1_500, "rate": 3_000}), FLUSH]
"""What a successor publishes: more than the five batches of a lane that a broker remembers."""


def ready(
    scenario: Scenario, count: int = RECORDS, age_ms: int | None = None, then: Sequence[Step] = (), **options: Any
) -> Child:
    """A life that has delivered something in each lane, and waits to be told to publish ``count`` more.

    ``age_ms``: the timestamps of these are so old; ``then``: what it does when it is told once more;
    ``options``: as of `Scenario.life`.
    """
    more: Step = ("publish", {"count": count, "age_ms": age_ms})
    steps: list[Step] = [("publish", {"count": 10 * LANES}), FLUSH, ("wait", {}), more]
    child = scenario.life(*steps, ("wait_in_flight", {}), ("wait", {}), *then, **options)
    child.wait_for("wait")
    return child


def take_off(child: Child) -> None:
    """Have it publish them; returns when they are in flight."""
    child.tell()
    child.wait_for("wait", times=2)


def die_before_a_paused_broker(scenario: Scenario, *then: Step, **options: Any) -> None:
    """One record is in flight, handed over to a broker that is paused, and others wait behind it.

    The next process would make other batches of them. The broker finds the batch in its socket when it wakes up, and
    appends it. ``then``: what it does before it dies; ``options``: as of `Scenario.life`.
    """
    node = scenario.cluster.nodes[0]
    child = scenario.life(
        ("publish", {"count": 100}),
        FLUSH,
        ("wait", {}),
        ("publish", {"count": 1}),
        ("wait_in_flight", {}),
        ("publish", {"count": 500}),
        *then,
        ("wait", {}),
        linger_ms=0,
        **options,
    )
    child.wait_for("wait")
    node.pause()
    take_off(child)
    scenario.kill(child)
    node.resume()
    scenario.cluster.wait_ready()


def die_unanswered(scenario: Scenario, detour: Detour, count: int = RECORDS, age_ms: int | None = None) -> None:
    """Appended in every lane, and never answered; ``age_ms``: as of `ready`."""
    child = ready(scenario, count, age_ms)
    detour.deafen()
    carried = detour.count()
    take_off(child)
    detour.wait_carried(carried + min(BATCHES_BYTES, RECORD_BYTES * count))
    scenario.kill(child)
