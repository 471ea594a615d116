"""Which target belongs to which checkpoint: the batches of two landings would have the same numbers."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError
from aiorecover.spark.directory import Directory
from aiorecover.spark.files import Files
from aiorecover.spark.places import check_places
from aiorecover.spark.progress import check_progress
from aiorecover.spark.sharing import check_shared
from aiorecover.spark.staging import clear_staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aiorecover.spark.targets import Target

__all__ = ["claim"]

_LANDING = "landing"
_TARGET = "target"
_OURS = (".", "_", f"{_LANDING}.json")  # a start that was killed may have left these


@dataclass(frozen=True)
class _Bond:
    """What a checkpoint says of itself."""

    landing: str
    target: str | None
    """None: it was begun before checkpoints named their targets."""


def claim(
    spark: SparkSession, target: Target, checkpoint: str, quarantine: str, *, is_locked: bool = False
) -> Directory:
    """Bind target and quarantine to the checkpoint, or find them bound, and clear away what killed attempts left.

    ``is_locked``: nobody else works with the checkpoint. Returns the quarantine.

    Raises:
        ConfigError: they do not belong together, or are not of one day any more, or a table that is made has no place
            where it can be landed in.

    """
    here, apart = Files(spark, checkpoint), Directory(spark, quarantine)
    here.make_directory(checkpoint)
    mark = target.mark()
    if mark is None and target.is_used():
        raise ConfigError(
            f"something else is in the target: name a new one, or one that was landed in target={target.name}"
        )
    before = _read(here, checkpoint)
    bond = before or _begun(here, checkpoint, target, mark)
    if mark is None:
        _check_bond(here, checkpoint, target, bond)
    elif mark != bond.landing:
        raise ConfigError(
            f"target and checkpoint belong to others: name the two that were used together target={target.name} "
            f"{checkpoint=} belongs_to={bond.target}"
        )
    theirs = apart.mark()
    if theirs != bond.landing and (theirs is not None or apart.is_used()):
        raise _used_by_another(apart)
    check_progress(spark, None if mark is None else target, apart, checkpoint)
    if mark is None:
        was_there = target.where() is not None
        _claim_target(target, checkpoint, bond.landing)
        try:
            check_places(spark, target, quarantine, checkpoint)  # a table that was made just now has its place only now
            if not was_there:
                check_shared(spark, {"target": target.where()})
        except ConfigError:
            # As if it had never been named: the advice is to name others with this checkpoint.
            if target.take_back(bond.landing) and before is None:
                here.delete(f"{checkpoint}/{_LANDING}.json")
            raise
    _claim_quarantine(apart, bond.landing)
    apart.clear(is_locked=is_locked)
    target.clear(is_locked=is_locked)
    clear_staging(here, f"{checkpoint}/ids", is_locked=is_locked)
    return apart


def _read(files: Files, checkpoint: str) -> _Bond | None:
    written = files.read(f"{checkpoint}/{_LANDING}.json")
    if written is None:
        return None
    told = json.loads(written)
    return _Bond(str(told[_LANDING]), told.get(_TARGET))


def _begun(files: Files, checkpoint: str, target: Target, mark: str | None) -> _Bond:
    """Of a directory that is no checkpoint yet."""
    if mark is not None:
        raise _landed_with_another(target, checkpoint)
    if any(not name.startswith(_OURS) for name in files.names(checkpoint)):
        raise ConfigError(f"something else is in the checkpoint: name a new directory {checkpoint=}")
    bond = _Bond(uuid.uuid4().hex, target.name)
    files.write_new(
        f"{checkpoint}/{_LANDING}.json", json.dumps({_LANDING: bond.landing, _TARGET: bond.target}).encode()
    )
    return _read(files, checkpoint) or bond  # of two that begin it at once


def _check_bond(files: Files, checkpoint: str, target: Target, bond: _Bond) -> None:
    """Whether a target that belongs to nobody is the one of a checkpoint, which was killed before it could say so."""
    given = f"target={target.name} {checkpoint=}"
    if bond.target not in (None, target.name):
        raise ConfigError(
            f"this checkpoint belongs to another target: name that one, or a new checkpoint {given} "
            f"belongs_to={bond.target}"
        )
    if not files.names(f"{checkpoint}/query/commits"):
        return
    if bond.target is None:
        raise ConfigError(
            f"this checkpoint belongs to another target, or the target of this checkpoint is gone: name the right one, "
            f"restore it, or name a new checkpoint {given}"
        )
    raise ConfigError(f"the target of this checkpoint is gone: restore it, or name a new checkpoint {given}")


def _landed_with_another(target: Target, checkpoint: str) -> ConfigError:
    return ConfigError(
        f"the target was landed with another checkpoint: name that one, or a new target target={target.name} "
        f"{checkpoint=}"
    )


def _claim_target(target: Target, checkpoint: str, ours: str) -> None:
    target.claim(ours)
    mark = target.mark()  # of two that claim it at once
    if mark is None:
        raise ConfigError(
            f"another landing claims the target: go on with that one; start again if it was refused, too, or name a "
            f"new target target={target.name} {checkpoint=}"
        )
    if mark != ours:
        raise _landed_with_another(target, checkpoint)


def _claim_quarantine(apart: Directory, ours: str) -> None:
    if apart.mark() is None:
        apart.claim(ours)
    if apart.mark() != ours:  # of two that claim it at once
        raise _used_by_another(apart)


def _used_by_another(apart: Directory) -> ConfigError:
    return ConfigError(f"the quarantine is used by something else: name a directory of its own path={apart.path}")
