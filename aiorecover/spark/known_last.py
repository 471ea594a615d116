"""The last sequences that somebody knows, as `audit` is told them: one row for each producer and epoch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.record_id import EPOCH_MAX, ID_PATTERN, SEQUENCE_MAX
from aiorecover.spark.handed_over import TEXT, WHOLE, check_columns, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["COLUMNS", "KnownLast", "known_frame"]

COLUMNS = ["producer_id", "epoch", "last"]
KnownLast = Mapping[tuple[str, int], int]

_EPOCH = COLUMNS[:2]
_ROWS = "array<struct<producer_id: string, epoch: int, last: bigint>>"
_PRODUCER = re.compile(ID_PATTERN.partition("/")[0])
_WORDS = {"producer_id": TEXT, "epoch": WHOLE, "last": WHOLE}


def known_frame(spark: SparkSession, known_last: KnownLast | DataFrame | None) -> DataFrame:
    """``producer_id``, ``epoch`` and ``last``, once each. Of a data frame, rows in which one of them is null are none.

    Raises:
        ConfigError: it is none of the three, a column is absent or of another type, or no record ever has such an id.

    """
    if isinstance(known_last, DataFrame):
        check_columns("known_last", known_last, _WORDS, needed=COLUMNS)
        told = known_last.select(*COLUMNS).dropna()
        return told.groupBy(*_EPOCH).agg(F.max("last").alias("last"))
    if known_last is not None and not isinstance(known_last, Mapping):
        raise ConfigError(
            "known_last maps (producer id, epoch) to the last sequence, or is a data frame of producer_id, epoch and "
            f"last: hand over one of them {shown('known_last', known_last)}"
        )
    known = known_last or {}
    for epoch, last in known.items():
        _check(epoch, last)
    rows = [{"producer_id": one[0], "epoch": one[1], "last": last} for one, last in known.items()]
    # Rows of Python would need Python on the executors.
    return spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), _ROWS)))


def _check(key: object, last: object) -> None:
    if not isinstance(key, tuple) or len(key) != len(_EPOCH):
        raise ConfigError(f"known_last has keys (producer id, epoch): {shown('key', key)}")
    producer_id, epoch = key
    if not isinstance(producer_id, str) or _PRODUCER.fullmatch(producer_id) is None:
        raise ConfigError(
            f"a producer id in known_last is the first part of a record id, 13 characters of a-z and 2-7: "
            f"{shown('producer_id', producer_id)}"
        )
    if not _is_whole(epoch) or not 1 <= epoch <= EPOCH_MAX:
        raise ConfigError(f"an epoch in known_last must be an int from 1 to {EPOCH_MAX}: {shown('epoch', epoch)}")
    if not _is_whole(last) or not 0 <= last <= SEQUENCE_MAX:
        raise ConfigError(
            f"the last sequence in known_last must be an int from 0 (none was published) to {SEQUENCE_MAX}: "
            f"{shown('last', last)}"
        )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
