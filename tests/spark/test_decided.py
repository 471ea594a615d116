"""Whether a write was done before: by the manifests at the end of their topic."""

import json
import logging
from pathlib import Path

import pytest

from aiorecover.errors import ConfigError
from aiorecover.spark import decided
from aiorecover.spark.decided import Decided, check_write, decided_in, refuse_other_rows
from aiorecover.spark.sink import publish_manifest, publish_parts
from aiorecover.spark.sink_manifest import Attempt, Write, empty_manifest_of, manifest_of
from aiorecover.spark.sink_plan import Plan
from aiorecover.testing import MockCluster
from tests.spark.test_attempt import plan

JOB, OTHER = "query", "another query"


def attempt(write: Write, rows: int, partition: int = 0) -> Attempt:
    return Attempt(write, partition, 0, f"producer{partition:05d}", 1, 1, rows, rows)


def values(*manifests: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for manifest in manifests for _, value in manifest]


def test_the_first_whole_manifest_of_each_write_tells_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorecover.spark.sink_manifest.PART_BYTES", 1)
    one, two = Write(JOB, 1), Write(JOB, 2)
    half, whole = values(manifest_of(one, [attempt(one, 3), attempt(one, 4, 1)])), values(manifest_of(one, []))
    other = values(manifest_of(two, [attempt(two, 5), attempt(two, 0, 1)]))
    assert decided_in([half[0], *other]) == [Decided(two.name, 5)]
    assert decided_in([half[0], *other, *whole, half[1]]) == [Decided(two.name, 5), Decided(one.name, None)]
    assert decided_in([half[0], half[0], half[1], *whole]) == [Decided(one.name, 7)]
    assert decided_in(values(empty_manifest_of(two.name))) == [Decided(two.name, None)]


def test_what_is_no_manifest_decides_nothing() -> None:
    (value,) = values(manifest_of(Write(JOB, 1), []))
    other = json.loads(value) | {"kind": "another"}
    unlike = json.loads(value) | {"batch_id": 2}
    strange = [None, b"", b"no json", b"[]", b"{}", json.dumps(other).encode(), json.dumps(unlike).encode()]
    assert decided_in(strange) == []


def test_a_batch_of_a_stream_is_done_again_only_as_its_last_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiorecover.spark")
    write, others = Write(JOB, 4), Decided(Write(OTHER, 9).name, 1)
    for found in ([], [others], [Decided(Write(JOB, 3).name, 7)]):
        refuse_other_rows(write, 10, found, of_stream=True)
    assert caplog.messages == []
    refuse_other_rows(write, 10, [Decided(write.name, 10)], of_stream=True)
    refuse_other_rows(write, 0, [Decided(write.name, None)], of_stream=True)
    refuse_other_rows(write, 11, [Decided(write.name, 10)], of_stream=True)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING"]
    assert caplog.messages[-1].endswith("name a new one job=query batch_id=4 rows=11 decided=10")
    later = [Decided(write.name, 10), Decided(Write(JOB, 5).name, None)]
    with pytest.raises(ConfigError, match=r"put back its newest state.* batch_id=4 decided=5 query=query"):
        refuse_other_rows(write, 10, later, of_stream=True)
    with pytest.raises(ConfigError, match="was given up"):
        refuse_other_rows(write, 10, [Decided(write.name, None)], of_stream=True)


def test_a_job_id_is_for_the_same_rows(caplog: pytest.LogCaptureFixture) -> None:
    write = Write("nightly", 0)
    refuse_other_rows(write, 10, [Decided(write.name, 10)], of_stream=False)
    refuse_other_rows(write, 10, [Decided(Write("nightly", 1).name, 11)], of_stream=False)
    told = [line for line in caplog.messages if "job_id of their own" in line]
    assert len(told) == 1, "the same number of rows may be other rows: foreachBatch with one job_id for all batches"
    assert told[0].endswith("batch_id=0 rows=10 decided=10")
    for rows in (9, 0):
        with pytest.raises(ConfigError, match=rf"name another job_id for other rows .* rows={rows} decided=10"):
            refuse_other_rows(write, rows, [Decided(write.name, 10)], of_stream=False)


def published(told: Plan, job: str, *batches: int, size: int = 1) -> None:
    writes = [Write(job, batch) for batch in batches]
    parts = [part for write in writes for part in manifest_of(write, [attempt(write, size, n) for n in range(size)])]
    publish_parts(told, parts)


def test_the_end_of_the_topic_is_read_as_far_back_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("manifests")
        told = plan(cluster.bootstrap_servers, tmp_path, "orders")
        write = Write(JOB, 3)
        check_write(told, write, [attempt(write, 1)], of_stream=True)
        published(told, JOB, 5)
        published(told, OTHER, *range(100))
        published(told, OTHER, *range(100, 109), size=200)
        with pytest.raises(ConfigError, match="decided=5"):
            check_write(told, write, [attempt(write, 1)], of_stream=True)
        check_write(told, write, [attempt(write, 1)], of_stream=False)
        given = Write("nightly", 0)
        publish_manifest(told, given, [attempt(given, 4)])
        with pytest.raises(ConfigError, match="name another job_id"):
            check_write(told, given, [attempt(given, 5)], of_stream=False)
        monkeypatch.setattr(decided, "LOOK_BACK_BYTES", 64 * 1024)
        check_write(told, write, [attempt(write, 1)], of_stream=True)
        assert caplog.messages == []
        cluster.broker_down()
        check_write(told, given, [attempt(given, 5)], of_stream=False)
        (line,) = [one for one in caplog.messages if "not looked for" in one]
        assert "grant Read on it, or look at Kafka manifest_topic=manifests" in line
