"""The example of the audio streams, small: it lands and audits its records, and names the missing ones."""

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.cluster import Cluster
from tests.support.example import loaded

STREAMS, SECONDS = 30, 1


def test_each_packet_of_the_streams_is_in_the_table_once_and_a_missing_one_is_named(
    spark: SparkSession,
    kafka: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = loaded("audio_streams")
    servers, name = kafka.bootstrap_servers, "audio"
    packets = STREAMS * SECONDS * example.PACKETS_A_SECOND
    for _ in range(2):  # the second time the topic exists
        asyncio.run(example.create_topic(servers, name))
    published = asyncio.run(example.publish(servers, name, tmp_path / "wal", STREAMS, SECONDS))
    assert published.last == packets
    monkeypatch.chdir(tmp_path)
    example.land_all(spark, servers, name, Path())  # as with --directory .
    assert example.is_whole(spark, tmp_path, published)
    assert f"{packets:,} expected, 0 missing, 0 repeated" in capsys.readouterr().out
    assert not example.is_whole(spark, tmp_path, published._replace(last=packets + 2))
    text = capsys.readouterr().out
    assert "2 missing" in text
    assert f"|{packets + 1} |{packets + 2}|" in text.replace("  ", " ")
