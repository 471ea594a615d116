"""One attempt against a real broker, without Spark: what is in Kafka, what is told, and what is left on the disk."""

import base64
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aiorecover import record_id_of
from aiorecover.config import MIB
from aiorecover.errors import ConfigError, DeliveryError
from aiorecover.spark.attempt import make_attempt
from aiorecover.spark.attempt_directory import AttemptDirectory
from aiorecover.spark.sink import publish_manifest
from aiorecover.spark.sink_manifest import WRITE_HEADER, Attempt, Write
from aiorecover.spark.sink_plan import Plan
from aiorecover.testing import MockCluster
from tests.support import admin
from tests.support.cluster import Cluster, TopicFactory
from tests.support.oracle import Consumed, read_topic

WRITE = Write("job", 7)
NOBODY = "127.0.0.1:1"
LIMIT = 20_000  # bytes of a batch that the topic takes
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def plan(servers: str, directory: Path, topic: str | None, *columns: str, **more: Any) -> Plan:
    return Plan(
        bootstrap_servers=servers,
        topic=topic,
        manifest_topic="manifests",
        wal_dir=str(directory),
        job_id=None,
        timeout_ms=more.pop("timeout_ms", 60_000),
        max_dead_letters=more.pop("max_dead_letters", 10),
        columns=columns or ("value",),
        producer={"wal_max_bytes": 8 * MIB, "request_timeout_ms": 2000} | more,
        ssl_files={},
    )


def values(numbers: range, size: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"%d " % number + bytes(size) for number in numbers]})


def attempted(told: Plan, *batches: pa.RecordBatch) -> Attempt:
    return make_attempt(told, WRITE, iter(batches), partition=3, attempt=1)


def consumed(kafka: Cluster, topic: str) -> list[Consumed]:
    return admin.run(read_topic(kafka.bootstrap_servers, topic))


def number_of(one: Consumed) -> int:
    assert one.value is not None
    return int(one.value.split(b" ")[0])


def test_every_row_is_in_kafka_once_with_the_ids_that_are_told(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=3)
    # More than the ring holds: it waits for room.
    batches = [values(range(begin, begin + 500), 6000) for begin in range(0, 3000, 500)]
    told = attempted(plan(kafka.bootstrap_servers, tmp_path, name), *batches)
    assert (told.write, told.partition, told.attempt, told.epoch) == (WRITE, 3, 1, 1)
    assert (told.first, told.last, told.rows, told.dead_letters, told.refused) == (1, 3000, 3000, (), 0)
    found = consumed(kafka, name)
    assert sorted(map(number_of, found)) == list(range(3000))
    assert {record_id_of(one.headers) for one in found} == {f"{told.producer_id}/1/{n}" for n in range(1, 3001)}
    assert {one.headers[0] for one in found} == {(WRITE_HEADER, WRITE.name.encode())}
    assert told.topics == (name,)
    assert list(tmp_path.iterdir()) == []


def test_columns_become_a_record_and_marks_of_an_earlier_life_are_left_out(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    first, second = topic(kafka, partitions=1), topic(kafka, partitions=3)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    old = [("aiorecover-id", b"abcdefghij234/1/1"), ("own", None), (WRITE_HEADER, b"x/1"), ("own", b"2")]
    batch = pa.record_batch(
        {
            "key": pa.array(["k", None]),
            "value": pa.array([None, "v"]),
            "topic": pa.array([first, second]),
            "partition": pa.array([None, 2], pa.int32()),
            "timestamp": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([old, None], HEADERS),
            "offset": pa.array([1, 2]),
        }
    )
    attempted(plan(kafka.bootstrap_servers, tmp_path, None, *batch.schema.names), batch)
    (one,) = consumed(kafka, first)
    assert (one.key, one.value, one.timestamp_ms) == (b"k", None, int(moment.timestamp() * 1000))
    assert [name for name, _ in one.headers] == ["own", "own", WRITE_HEADER, "aiorecover-id"]
    (other,) = consumed(kafka, second)
    assert (other.key, other.value, other.partition) == (None, b"v", 2)


def test_what_kafka_refuses_is_named_and_copied_and_then_nothing_of_it_is_kept(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name, dead = topic(kafka, partitions=1, config={"max.message.bytes": str(LIMIT)}), topic(kafka, partitions=1)
    batches = [values(range(5)), values(range(5, 7), LIMIT), values(range(7, 10))]
    told = attempted(plan(kafka.bootstrap_servers, tmp_path, name, dead_letter_topic=dead), *batches)
    assert (told.rows, told.dead_letters) == (10, ((6, 7),))
    assert [number_of(one) for one in consumed(kafka, name)] == [0, 1, 2, 3, 4, 7, 8, 9]
    assert [number_of(one) for one in consumed(kafka, dead)] == [5, 6]
    assert told.last == 12, "the copies have sequences of their own"
    assert told.topics == tuple(sorted([name, dead]))
    assert told.kept is None
    assert list(tmp_path.iterdir()) == []


def test_what_kafka_refuses_is_kept_as_json_lines_where_there_is_no_copy_and_the_rings_are_not(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1, config={"max.message.bytes": str(LIMIT)})
    told = attempted(plan(kafka.bootstrap_servers, tmp_path, name), values(range(3)), values(range(3, 5), LIMIT))
    assert (told.dead_letters, told.refused) == (((4, 5),), 0)
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("aiorecover-dead-letters-")
    assert told.kept == f"{socket.gethostname()}:{kept}"
    assert [path.relative_to(kept).as_posix() for path in kept.rglob("*")] == ["dead_letters.jsonl"]
    letters = letters_in(kept)
    assert [base64.b64decode(one["value"]) for one in letters] == [b"%d " % number + bytes(LIMIT) for number in (3, 4)]
    assert [one["record_id"] for one in letters] == [f"{told.producer_id}/1/{number}" for number in (4, 5)]
    assert {one["topic"] for one in letters} == {name}
    assert all("too large" in one["error"] for one in letters)


def test_letters_are_kept_where_a_copy_was_refused_in_turn(kafka: Cluster, topic: TopicFactory, tmp_path: Path) -> None:
    narrow = {"max.message.bytes": str(LIMIT)}
    name, dead = topic(kafka, partitions=1, config=narrow), topic(kafka, partitions=1, config=narrow)
    batches = values(range(1)), values(range(1, 2), LIMIT)
    told = attempted(plan(kafka.bootstrap_servers, tmp_path, name, dead_letter_topic=dead), *batches)
    assert told.dead_letters == ((2, 3),), "the row's own, and the copy's"
    assert told.kept is not None
    assert {one["topic"] for one in letters_in(Path(told.kept.partition(":")[2]))} == {name, dead}


def letters_in(kept: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (kept / "dead_letters.jsonl").read_text().splitlines()]


def test_rows_that_no_record_can_be_made_of_are_counted_and_written_down(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)
    batch = pa.record_batch(
        {
            "topic": pa.array([name, None, "no/topic", name, name, name]),
            "value": pa.array([b"1 ", b"2 ", b"3 ", None, b"\0" * 70_000, b"6 "]),
            "partition": pa.array([0, 0, 0, 0, 0, 5], pa.int32()),
        }
    )
    told = attempted(
        plan(kafka.bootstrap_servers, tmp_path, None, "topic", "value", "partition", max_request_size=60_000), batch
    )
    assert (told.rows, told.last, told.refused, told.dead_letters) == (6, 1, 5, ())
    assert [number_of(one) for one in consumed(kafka, name)] == [1]
    assert told.kept is not None
    kept = Path(told.kept.partition(":")[2])
    assert [path.name for path in kept.rglob("*")] == ["refused.jsonl"]
    lines = (kept / "refused.jsonl").read_text().splitlines()
    refused = [json.loads(line) for line in lines]
    assert [one["value"] and one["value"][:4] for one in refused] == ["MiA=", "MyA=", None, "AAAA", "NiA="]
    assert ["a topic must be a str" in refused[0]["error"], refused[4]["partition"]] == [True, 5]


def test_more_dead_letters_than_are_accepted_fail_the_attempt(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1, config={"max.message.bytes": str(LIMIT)})
    told = plan(kafka.bootstrap_servers, tmp_path, name, max_dead_letters=3)
    with pytest.raises(ConfigError, match=r"raise max_dead_letters; of an attempt that fails no .*too large"):
        attempted(told, values(range(4), LIMIT))
    none = pa.record_batch({"value": pa.array([None] * 4, pa.binary())})
    with pytest.raises(ConfigError, match=r"raise max_dead_letters.*a record needs a key or a value"):
        attempted(told, none)
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_that_its_topic_refuses_is_one_sentence(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifests = topic(kafka, partitions=1, config={"max.message.bytes": "100"})
    told = replace(plan(kafka.bootstrap_servers, tmp_path, "orders"), manifest_topic=manifests)
    with pytest.raises(
        ConfigError, match=rf"Kafka refuses the manifest.* manifest_topic={manifests} error=.*too large"
    ):
        publish_manifest(told, WRITE, ())
    assert [record.getMessage() for record in caplog.records if "dead letter" in record.getMessage()] == []


def test_a_manifest_that_was_not_acknowledged_in_time_is_not_sent_any_more(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("manifests")
        told = plan(cluster.bootstrap_servers, tmp_path, "orders", timeout_ms=500)
        cluster.broker_down()
        back = threading.Timer(1.5, cluster.broker_up)
        back.start()
        with pytest.raises(DeliveryError, match=r"not sent any more: .* manifest_topic=manifests error=kafka is not"):
            publish_manifest(told, WRITE, ())
        back.join()
        assert admin.run(read_topic(cluster.bootstrap_servers, "manifests")) == []


def test_an_attempt_that_fails_leaves_records_in_kafka_and_nothing_on_the_disk(
    kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=1)

    def failing() -> Iterator[pa.RecordBatch]:
        yield values(range(100))
        while admin.run(admin.count_records(kafka.bootstrap_servers, name, 1)) < 100:
            pass
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        make_attempt(plan(kafka.bootstrap_servers, tmp_path, name), WRITE, failing(), partition=0, attempt=0)
    assert len(consumed(kafka, name)) == 100
    assert list(tmp_path.iterdir()) == []


def test_without_kafka_the_attempt_fails_when_its_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kafka is not reached"):
        attempted(plan(NOBODY, tmp_path, "orders", timeout_ms=3000), values(range(3)))
    assert list(tmp_path.iterdir()) == []


def test_what_killed_attempts_have_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    left, recent, kept, strange = (AttemptDirectory(str(tmp_path)) for _ in range(4))
    for one in (left, kept):
        (one.wal_dir / "0").mkdir(parents=True)
        (one.wal_dir / "0" / "lock").touch()
        (one.wal_dir / "0" / "ring").touch()
    kept.keep()
    strange.path.rename(tmp_path / "theirs")
    for path in tmp_path.iterdir():
        if path != recent.path:
            os.utime(path, (0, 0))
    AttemptDirectory(str(tmp_path)).remove_unless_kept()
    assert set(tmp_path.iterdir()) == {recent.path, kept.path, tmp_path / "theirs"}
