"""How much of Kafka a query has still before it, as Spark's own progress tells it."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["offsets_to_go"]


def offsets_to_go(progress: Any) -> int:
    """Offsets between the end of a batch and the end of its partitions, as it was when the batch was made.

    No less than the records that are left: an offset may hold a transaction's marker, or nothing any more. ``progress``
    is ``StreamingQuery.lastProgress``, which from Spark 4 on has the offsets as Python prints them but in its JSON. A
    source that tells no offsets counts nothing.
    """
    told = json.loads(progress.json) if hasattr(progress, "json") else progress
    sources: list[dict[str, Any]] = told["sources"]
    return sum(_of_source(source) for source in sources)


def _of_source(source: dict[str, Any]) -> int:
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return sum(max(0, offset - ends.get(place, 0)) for place, offset in latest.items())


def _offsets(topics: object) -> dict[tuple[str, str], int]:
    if not isinstance(topics, dict):
        return {}
    return {(topic, number): offset for topic, partitions in topics.items() for number, offset in partitions.items()}
