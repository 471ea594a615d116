"""What came against what went, of one process (I9)."""

from collections.abc import Mapping
from typing import Any

__all__ = ["uneven"]


def uneven(statistics: Mapping[str, Any]) -> list[str]:
    """I9: the counts of a life add up; else how they do not."""
    came = statistics["accepted"] + statistics["recovered"]
    went = sum(statistics[name] for name in ("delivered", "dead_lettered", "lost", "pending"))
    return [] if came == went else [f"the counts do not add up: {came} came, {went} went, {statistics}"]
