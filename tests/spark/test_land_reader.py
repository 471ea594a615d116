"""`aiorecover land | head`: the reader of its output goes away while it lands."""

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from aiorecover.cli.app import app
from aiorecover.cli.endings import Output
from tests.spark.feed import each_id_once, land_all, publish, shuffled_rows
from tests.spark.table import landed_ids
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory


def test_a_reader_that_has_gone_ends_a_landing_without_a_word_and_the_next_one_goes_on(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, rows = topic(kafka, partitions=3), shuffled_rows(3)
    admin.run(publish(kafka, name, rows))
    say = Output.say

    def say_until_a_batch_is_landed(output: Output, line: str, style: str | None = None) -> None:
        if line.startswith("batch "):
            output.on_broken_pipe()
        say(output, line, style)

    with monkeypatch.context() as patched:
        patched.setattr(Output, "say", say_until_a_batch_is_landed)
        patched.setattr(SparkSession, "stop", lambda _: None)  # it is the tests' own
        where = ["--target", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")]
        servers = ["--bootstrap-servers", kafka.bootstrap_servers, "--topic", name]
        done = CliRunner().invoke(app, ["land", *servers, *where, "--max-offsets-per-trigger", "300"])
    assert (done.exit_code, done.stderr) == (128 + signal.SIGPIPE, "")
    assert spark.streams.active == []
    assert 0 < landed_ids(tmp_path / "table").total() < each_id_once(rows).total()
    land_all(spark, kafka, name, tmp_path)
    assert landed_ids(tmp_path / "table") == each_id_once(rows)
