"""Where target, quarantine and checkpoint stand: on a file system that can do it, none in the way of another one.

What is in a target or a quarantine is read as a table, but for names that readers pass over, and what killed attempts
have left there is deleted; in a checkpoint Spark and landing delete what they need no more.

All of it rests on directories that are renamed in one step. Object stores move one object after the other, and a kill
in between leaves half a batch under the name of a whole one. They are known by their schemes. Some have a kind of
bucket that does rename directories (``gs``, ``oss``, ``obs``, ``cosn``, ``tos``), or a setting for it (``wasb``), and
some stand before a store that may be of either kind (``dbfs``, ``alluxio``); a scheme does not tell, and so they are
refused, too. ``abfs`` is made for storage that does (a hierarchical namespace). ``viewfs`` shows directories of other
file systems, and these count.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.directory import is_passed_over
from aiorecover.spark.files import Files
from aiorecover.spark.schemes import LOCAL, default_scheme, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from aiorecover.spark.targets import Target

__all__ = ["OBJECT_STORES", "check_places", "check_renaming", "in_the_way"]

OBJECT_STORES = frozenset(
    {
        *("s3", "s3a", "s3n", "gs", "wasb", "wasbs", "swift"),
        *("oss", "obs", "cosn", "cos", "ks3", "tos", "bos", "oci"),
        *("dbfs", "alluxio", "lakefs"),
    }
)
"""Schemes of stores which, as a rule, rename a directory object by object, and of what stands before such stores."""

_VIEW = "viewfs"
_CHECKPOINT = "checkpoint"
_OF_CHECKPOINT = frozenset({"query", "ids", "sinks", "topic_ids", "_added", "landing.json"})


def check_places(spark: SparkSession, target: Target, quarantine: str, checkpoint: str) -> None:
    """Look only. A table that is not there yet has no place.

    Raises:
        ConfigError: one is in an object store, or is another one, or stands in it where it would be read or deleted.

    """
    table, default = target.where() if target.is_renamed else None, default_scheme(spark)
    renamed = {"target": table, "quarantine": quarantine, _CHECKPOINT: checkpoint}
    check_renaming(renamed, default)
    check_renaming({name: _mounted(spark, path, default) for name, path in renamed.items()}, default)
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


def _mounted(spark: SparkSession, path: str | None, default: str) -> str | None:
    """What a path of a view on other file systems stands for there; any other path is what it is."""
    return path if path is None or scheme_of(path, default) != _VIEW else Files(spark, path).resolved(path)


def check_renaming(places: Mapping[str, str | None], default: str = LOCAL) -> None:
    """Look at names only; ``default``: the scheme of those without one.

    Raises:
        ConfigError: one of these paths is in an object store.

    """
    found = {name: path for name, path in places.items() if path and scheme_of(path, default) in OBJECT_STORES}
    if found:
        raise ConfigError(
            "an object store renames a directory object by object, and after a kill half a batch would pass for all of "
            "it: land in a table of Iceberg, and name a checkpoint and a quarantine on HDFS or a file system that all "
            f"machines share {' '.join(f'{name}={path!r}' for name, path in found.items())}"
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
