"""What the manifests of an audit topic say together, by plain Python: the greatest numbers and the union of the ranges.

Nothing here uses aiorecover: only the keys and the JSON on the topic are known.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Told", "compacted", "told_in"]


@dataclass
class Told:
    """Of one epoch."""

    last: int = 0
    settled: int = 0
    sealed_at: int | None = None
    dead_lettered: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)

    def verdict(self, sequence: int) -> str:
        """Of a record that is not in the topics."""
        if sequence in self.dead_lettered:
            return "dead_lettered"
        if sequence in self.skipped:
            return "skipped"
        gone = sequence in self.damaged or (self.sealed_at is not None and sequence > self.sealed_at)
        return "lost" if gone or sequence <= self.settled else "in_ring"


def compacted(rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Of each key the newest."""
    return list(dict(rows).items())


def told_in(rows: Iterable[tuple[bytes, bytes]]) -> dict[tuple[str, int], Told]:
    """By producer id and epoch; ``rows``: keys and values."""
    told: dict[tuple[str, int], Told] = defaultdict(Told)
    for key, value in rows:
        one: dict[str, Any] = json.loads(value)
        assert one["version"] == 1
        assert key.decode() == "/".join(str(one[name]) for name in ("producer_id", "epoch", "told_by", "part"))
        known = told[one["producer_id"], one["epoch"]]
        known.last = max(known.last, one["last"])
        known.settled = max(known.settled, one["settled"])
        if one["sealed"]:
            known.sealed_at = max(known.sealed_at or 0, one["last"])
        for name in ("dead_lettered", "skipped", "damaged"):
            for first, last in one[name]:
                getattr(known, name).update(range(first, last + 1))
    return dict(told)
