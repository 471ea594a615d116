"""The last sequences that somebody knows: what cannot be one is refused with a sentence, before Spark is asked."""

from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark.known_last import known_frame
from tests.spark.feed import P, Q

NO_SPARK = cast("SparkSession", None)


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (5, r"known_last maps \(producer id, epoch\) to the last sequence.* type=int known_last=5"),
        (f"{P}/1/7", "known_last maps"),
        ([((P, 1), 7)], "known_last maps"),
        ({(P, 1, 7)}, "known_last maps"),
        ({P: 7}, r"known_last has keys \(producer id, epoch\): type=str"),
        ({f"{P}/1": 7}, "known_last has keys"),
        ({1: 7}, "known_last has keys"),
        ({(P,): 7}, "known_last has keys"),
        ({(P, 1, 2): 7}, "known_last has keys"),
        ({(b"abcdefghij234", 1): 7}, "a producer id in known_last is the first part of a record id"),
        ({(None, 1): 7}, "a producer id"),
        ({("orders", 1): 7}, "a producer id"),
        ({(P.upper(), 1): 7}, "a producer id"),
        ({(f"{P}\n", 1): 7}, "a producer id"),
        ({(P, "1"): 7}, "an epoch in known_last must be an int from 1 to 8388607: type=str epoch='1'"),
        ({(P, 1.0): 7}, "an epoch"),
        ({(P, True): 7}, "an epoch"),
        ({(P, None): 7}, "an epoch"),
        ({(P, 0): 7}, "an epoch"),
        ({(P, -1): 7}, "an epoch"),
        ({(P, 1 << 23): 7}, "an epoch"),
        ({(P, 1 << 80): 7}, "an epoch"),
        ({(P, 1): "7"}, "the last sequence in known_last must be an int from 0"),
        ({(P, 1): f"{P}/1/7"}, "the last sequence"),
        ({(P, 1): None}, "the last sequence"),
        ({(P, 1): 7.0}, "the last sequence"),
        ({(P, 1): Decimal(7)}, "the last sequence"),
        ({(P, 1): True}, "the last sequence"),
        ({(P, 1): -1}, "the last sequence"),
        ({(P, 1): 1 << 40}, "the last sequence"),
        ({(P, 1): 1 << 80}, "the last sequence"),
        ({(P, 1): 7, (Q, 1): -7}, "the last sequence .*last=-7"),
    ],
)
def test_what_no_record_ever_has_is_one_sentence(known: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        known_frame(NO_SPARK, known)
    assert "\n" not in str(refused.value)


def rows(spark: SparkSession, known: Mapping[tuple[str, int], int] | None) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in known_frame(spark, known).collect()}


def test_each_mapping_is_taken_and_nothing_is_known_without_one(spark: SparkSession) -> None:
    assert rows(spark, None) == rows(spark, {}) == set()
    assert rows(spark, MappingProxyType({(P, 1): 0, (Q, 8388607): (1 << 40) - 1})) == {
        (P, 1, 0),
        (Q, 8388607, (1 << 40) - 1),
    }


def test_a_data_frame_is_taken_with_every_kind_of_whole_number_and_what_is_null_tells_nothing(
    spark: SparkSession,
) -> None:
    columns = {
        "producer_id": [P, P, Q, None, Q],
        "epoch": pa.array([1, 1, 2, 1, None], pa.int16()),
        "last": pa.array([5, 7, None, 1, 1], pa.int32()),
    }
    found = known_frame(spark, spark.createDataFrame(pa.table(columns)))
    assert [tuple(row) for row in found.collect()] == [(P, 1, 7)]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"producer_id": [P], "epoch": [1]},
            r"known_last needs the columns producer_id, epoch, last: absent=\['last'\]",
        ),
        (
            {"producer_id": [1], "epoch": [1], "last": [1]},
            "the column producer_id of known_last must be string: cast it",
        ),
        ({"producer_id": [P], "epoch": ["1"], "last": [1]}, "the column epoch of known_last must be bigint"),
        (
            {"producer_id": [P], "epoch": [1], "last": [1.5]},
            "the column last of known_last must be bigint.* type=double",
        ),
    ],
)
def test_a_data_frame_with_other_columns_is_one_sentence(
    spark: SparkSession, columns: dict[str, list[Any]], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        known_frame(spark, spark.createDataFrame(pa.table(columns)))
