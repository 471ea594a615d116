"""Which target belongs to which checkpoint: the batches of two landings would have the same numbers."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.directory import Directory
from aiorecover.spark.files import Files
from aiorecover.spark.targets import find_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aiorecover.spark.targets import Target

__all__ = ["claim"]

_LANDING = "landing"
_OURS = (".", "_", f"{_LANDING}.json")  # a start that was killed may have left these


def claim(spark: SparkSession, target: str, checkpoint: str, quarantine: str) -> tuple[Target, Directory]:
    """The target and the quarantine, bound to the checkpoint or found bound; what killed attempts left is cleared away.

    Raises:
        ConfigError: they do not belong together.

    """
    there, here, apart = find_target(spark, target), Files(spark, checkpoint), Directory(spark, quarantine)
    here.make_directory(checkpoint)
    name = f"{checkpoint}/{_LANDING}.json"
    theirs, written = there.mark(), here.read(name)
    ours = None if written is None else str(json.loads(written)[_LANDING])
    if theirs is None and there.is_used():
        raise ConfigError(f"something else is in the target: name a new one, or one that was landed in {target=}")
    if ours is None and theirs is not None:
        raise ConfigError(
            f"the target was landed with another checkpoint: name that one, or a new target {target=} {checkpoint=}"
        )
    if ours is None:
        if any(not one.startswith(_OURS) for one in here.names(checkpoint)):
            raise ConfigError(f"something else is in the checkpoint: name a new directory {checkpoint=}")
        ours = uuid.uuid4().hex
        here.write_new(name, json.dumps({_LANDING: ours}).encode())
    if theirs is None:
        # Killed between the two, or the table was taken away: then what this checkpoint calls done is not there.
        if here.names(f"{checkpoint}/query/commits"):
            raise ConfigError(
                f"the target of this checkpoint is gone: restore it, or name a new checkpoint {target=} {checkpoint=}"
            )
        there.claim(ours)
    elif theirs != ours:
        raise ConfigError(
            f"target and checkpoint belong to others: name the two that were used together {target=} {checkpoint=}"
        )
    _claim_quarantine(apart, ours)
    there.clear()
    here.delete(f"{checkpoint}/ids/_staging")
    return there, apart


def _claim_quarantine(apart: Directory, ours: str) -> None:
    theirs = apart.mark()
    if theirs is None and not apart.is_used():
        apart.claim(ours)
    elif theirs != ours:
        raise ConfigError(f"the quarantine is used by something else: name a directory of its own path={apart.path}")
    apart.clear()
