"""What Spark counts beside a query, waited for within bounds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Observation

__all__ = ["counts_of"]

# Spark tells it by an event, milliseconds after the query. Its queue of events has an end, behind which they are
# dropped; where it is that full, they come seconds late. All that is lost with the counts is the number of repeats.
_WORD_WITHIN_S = 10.0
_PAUSE_S = 0.005  # a batch takes tenths of a second at least


def counts_of(observation: Observation) -> dict[str, Any] | None:
    """What was counted, by name, once the query has ended; None: Spark has not told it in time, or has dropped it."""
    told: Any = observation._jo  # noqa: SLF001 - pyspark itself waits without a limit
    until = time.monotonic() + _WORD_WITHIN_S
    while not told.future().isCompleted():
        if time.monotonic() > until:
            return None
        time.sleep(_PAUSE_S)
    return observation.get
