"""`aiorecover land | head`: the reader of its output goes away while it lands."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiorecover.cli.endings import Output, ReaderGoneError
from aiorecover.cli.land import Options, run
from tests.spark.feed import each_id_once, land_all, publish, shuffled_rows
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory


class _GoneOutput(Output):
    """Output whose reader goes away with the first batch."""

    def say(self, line: str, style: str | None = None) -> None:
        if line.startswith("batch "):
            self.on_broken_pipe()
        super().say(line, style)


def test_a_reader_that_has_gone_ends_a_landing_and_the_next_one_goes_on(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled_rows(3)
    admin.run(publish(kafka, name, rows))
    options = Options(
        bootstrap_servers=kafka.bootstrap_servers,
        topics=[name],
        target=str(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
        format=None,
        available_now=False,
        max_offsets_per_trigger=300,
        files_per_batch=None,
        json=False,
        master=None,
        verbose=False,
        settings=[],
        kafka_options=[],
    )
    with monkeypatch.context() as patched:
        patched.setattr(SparkSession, "stop", lambda _: None)  # it is the tests' own
        with pytest.raises(ReaderGoneError):
            run(options, _GoneOutput())
    assert spark.streams.active == []
    assert landed_ids(tmp_path / "table").total() > 0
    land_all(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == each_id_once(rows)
