"""What Spark counts beside a query, and tells later or never."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.spark import observed
from tests.spark.feed import P, landing, published
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory


def test_what_was_counted_is_told_and_what_nobody_tells_is_not_waited_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, untold = Observation(), Observation()
    spark.range(5).observe(told, F.count(F.lit(1)).alias("rows")).collect()
    assert observed.counts_of(told) == {"rows": 5}
    monkeypatch.setattr(observed, "_WORD_WITHIN_S", 0.2)
    spark.range(5).observe(untold, F.count(F.lit(1)).alias("rows"))
    assert observed.counts_of(untold) is None


def test_a_batch_whose_counts_are_never_told_is_landed_and_its_repeats_are_not_known(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Spark's queue of events is full, and the one that tells is dropped."""
    attach: Any = Observation._on

    def never_told(self: Observation, df: DataFrame, *exprs: Column) -> DataFrame:
        attach(self, df, *exprs)
        return df

    monkeypatch.setattr(Observation, "_on", never_told)
    monkeypatch.setattr(observed, "_WORD_WITHIN_S", 0.2)
    name = topic(kafka, partitions=1)
    admin.run(published(kafka, name, [(0, f"{P}/1/1"), (0, f"{P}/1/1"), (0, "nobody's"), (0, f"{P}/1/2")]))
    told = landing(spark, kafka, name, tmp_path)
    assert [(one.landed, one.undecodable, one.repeats) for one in told] == [(2, 1, None)]
    assert landed_ids(tmp_path / "table") == Counter([f"{P}/1/1", f"{P}/1/2"])
