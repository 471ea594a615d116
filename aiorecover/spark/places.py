"""Where target, quarantine and checkpoint stand: none in the way of another one.

What is in a target or a quarantine is read as a table, but for names that readers pass over, and what killed attempts
have left there is deleted; in a checkpoint Spark and landing delete what they need no more.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.directory import is_passed_over
from aiorecover.spark.files import Files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from aiorecover.spark.targets import Target

__all__ = ["check_places", "in_the_way"]

_CHECKPOINT = "checkpoint"
_OF_CHECKPOINT = frozenset({"query", "ids", "sinks", "topic_ids", "_added", "landing.json"})


def check_places(spark: SparkSession, target: Target, quarantine: str, checkpoint: str) -> None:
    """Look only. A table that is not there yet has no place.

    Raises:
        ConfigError: one is another one, or stands in it where it would be read or deleted.

    """
    paths = {
        "quarantine": Files(spark, quarantine).real(quarantine),
        _CHECKPOINT: Files(spark, checkpoint).real(checkpoint),
        "target": target.location(),
    }
    places = {name: path for name, path in paths.items() if path is not None}
    found = in_the_way(places)
    if found is not None:
        inner, outer = found
        raise ConfigError(
            f"the {inner} is, or is in, the {outer}: name a directory beside it "
            f"{inner}={places[inner]} {outer}={places[outer]}"
        )


def in_the_way(places: Mapping[str, str]) -> tuple[str, str] | None:
    """Names of one that is where it must not be, and of the other that it is in; the first ones in this order."""
    pairs = permutations(places.items(), 2)
    return next(((inner, outer) for (inner, path), (outer, other) in pairs if _harms(path, outer, other)), None)


def _harms(path: str, outer: str, other: str) -> bool:
    if not PurePosixPath(path).is_relative_to(other):
        return False
    behind = PurePosixPath(path).relative_to(other).parts
    if not behind:
        return True
    return behind[0] in _OF_CHECKPOINT if outer == _CHECKPOINT else not is_passed_over(behind[0])
