"""What is handed over in the place of a data frame, and columns of other types, are refused with a sentence at once."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import (
    audit,
    compare,
    counted_attempts,
    parse_record_id,
    read_manifests,
    timeline,
    without_leftovers,
)
from aiorecover.spark.handed_over import path_of
from tests.spark.by_hand import COLUMNS
from tests.spark.feed import P

NO_FRAMES = [None, 5, b"bytes", Path("/lake/orders"), ["orders"], DataFrame]
IDS = {"producer_id": [P], "epoch": [1], "sequence": [1]}
PLACE = {"topic": ["t"], "partition": [0], "offset": [0]}


def frame(spark: SparkSession, columns: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame(pa.table(columns))


def kafka(spark: SparkSession, **others: Any) -> DataFrame:
    """A row as of Kafka's source, but for some columns."""
    columns = {name: pa.nulls(1, COLUMNS.field(name).type) for name in COLUMNS.names}
    return frame(spark, columns | PLACE | others)


def test_a_path_is_a_directory_with_or_without_others_above_it() -> None:
    paths = ["lake.orders", "lake/orders", Path("orders"), Path("/lake/orders"), Path("..")]
    assert [path_of("target", one) for one in paths] == [
        "lake.orders",
        "lake/orders",
        "./orders",
        "/lake/orders",
        "./..",
    ]


@pytest.mark.parametrize("value", NO_FRAMES)
@pytest.mark.parametrize("function", [audit, parse_record_id, counted_attempts, read_manifests])
def test_what_is_no_data_frame_is_one_sentence(function: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be a data frame: .* type=") as refused:
        function(value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [*NO_FRAMES, "orders"])
def test_nor_is_the_second_one_taken_for_something_else(spark: SparkSession, value: Any) -> None:
    ids = frame(spark, IDS)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: compare(value, ids), "topics must be a data frame: hand over what read_topics"),
        (lambda: compare(ids, value), r"table must be a data frame: hand over spark.table\(name\)"),
        (lambda: without_leftovers(kafka(spark), value), "manifests must be a data frame: read the topic with"),
        (lambda: timeline(ids, value), "missing must be a data frame: hand over the missing ones of an audit"),
    ]
    for call, sentence in calls:
        with pytest.raises(ConfigError, match=sentence):
            call()


def test_what_an_audit_is_told_besides_is_looked_at_too(spark: SparkSession) -> None:
    ids = frame(spark, IDS)
    told: list[tuple[dict[str, Any], str]] = [
        ({"manifests": "orders.audit"}, r"manifests must be what read_manifests\(...\) gives.* type=str"),
        ({"manifests": ids}, "manifests must be what read_manifests"),
        (
            {"sink_manifests": "orders-manifests"},
            r"sink_manifests must be a data frame: read the topic with read_topics",
        ),
        ({"from_first": "no"}, "from_first must be True or False: type=str"),
        ({"order": "no"}, "order must be True or False: type=str"),
        ({"known_last": 5}, "known_last maps"),
        ({"known_last": {"x": 5}}, "known_last has keys"),
    ]
    for options, sentence in told:
        with pytest.raises(ConfigError, match=sentence):
            audit(ids, **options)


def test_a_column_of_another_type_is_named_with_what_it_must_be(spark: SparkSession) -> None:
    text, ids = ["x"], frame(spark, IDS)
    for df, sentence in [
        (
            kafka(spark, headers=text),
            r"the column headers of the records must be array<struct<key string, value binary>>",
        ),
        (
            frame(spark, IDS | {"sequence": text}),
            "the column sequence of the records must be bigint: cast it type=string",
        ),
        (frame(spark, IDS | {"producer_id": [7]}), "the column producer_id of the records must be string"),
        (frame(spark, IDS | {"epoch": [1.5]}), "the column epoch of the records must be bigint"),
        (kafka(spark, offset=["10"]), "the column offset of the records must be bigint"),
        (kafka(spark, partition=["0"]), "the column partition of the records must be bigint"),
        (kafka(spark, topic=[b"t"]), "the column topic of the records must be string"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            audit(df)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: parse_record_id(kafka(spark, headers=text)), "the column headers"),
        (lambda: without_leftovers(kafka(spark, headers=text), kafka(spark)), "the column headers"),
        (lambda: counted_attempts(kafka(spark, offset=["1"])), "the column offset of the manifests must be bigint"),
        (lambda: read_manifests(kafka(spark, offset=["1"])), "the column offset of the manifests must be bigint"),
        (lambda: compare(ids, frame(spark, IDS | {"epoch": text})), "the column epoch of the records must be bigint"),
        (lambda: timeline(frame(spark, IDS | {"timestamp": [5]}), ids), "missing needs the columns .*'first'"),
        (
            lambda: timeline(frame(spark, IDS | {"timestamp": [5]}), ranges(spark)),
            "timestamp of the records must be times",
        ),
        (lambda: timeline(times(spark), ranges(spark), most=0), "most must be an int of at least 1"),
        (lambda: timeline(times(spark), ranges(spark), most="x"), "most must be an int"),  # type: ignore[arg-type]
    ]
    for call, sentence in calls:
        with pytest.raises(ConfigError, match=sentence):
            call()


def ranges(spark: SparkSession) -> DataFrame:
    return frame(spark, {"producer_id": [P], "epoch": [1], "first": [1], "last": [1], "count": [1]})


def times(spark: SparkSession) -> DataFrame:
    return frame(spark, IDS | {"timestamp": [datetime(2026, 1, 1, tzinfo=UTC)]})
