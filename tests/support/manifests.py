"""The manifests of an audit topic, joined by plain Python: the greatest numbers and the union of the ranges.

Nothing here uses aiorecover: only the keys and the JSON on the topic are known.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.oracle import Consumed

__all__ = ["Told", "told_in"]


@dataclass
class Told:
    """The joined manifests of one epoch."""

    last: int = 0
    settled: int = 0
    sealed_at: int | None = None
    dead_lettered: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)


def told_in(records: Iterable[Consumed]) -> dict[tuple[str, int], Told]:
    """By producer id and epoch; of each key the newest, as after compaction."""
    told: dict[tuple[str, int], Told] = defaultdict(Told)
    newest = {(record.partition, record.key): record for record in records}
    for (_, key), record in newest.items():
        one: dict[str, Any] = json.loads(record.value or b"")
        assert one["version"] == 1
        assert (key or b"").decode() == "/".join(str(one[name]) for name in ("producer_id", "epoch", "told_by", "part"))
        known = told[one["producer_id"], one["epoch"]]
        known.last = max(known.last, one["last"])
        known.settled = max(known.settled, one["settled"])
        if one["sealed"]:
            known.sealed_at = max(known.sealed_at or 0, one["last"])
        for name in ("dead_lettered", "damaged"):
            for first, last in one[name]:
                getattr(known, name).update(range(first, last + 1))
    return dict(told)
