"""doctor and bench, on brokers that are well and on those that are not."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from aiorecover.cli import bench, doctor
from aiorecover.cli.app import app
from aiorecover.config import Config
from aiorecover.ring.files import Files
from aiorecover.testing import ApiKey, MockCluster, read_topic
from tests.support.broker import Cluster, TopicFactory
from tests.support.ports import ReservedPorts
from tests.support.published import NOWHERE

POLICY_VIOLATION = 44


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})


def examined(wal_dir: Path, servers: str, *topics: str, **options: Any) -> dict[tuple[str, str], list[str]]:
    """Return what was found, by level and subject; warnings of the clock, which are the machine's, aside."""

    async def examine() -> list[doctor.Finding]:
        config = Config.from_options(wal_dir, servers, {"wal_max_bytes": 8 << 20, **options})
        return [finding async for finding in doctor.examine(config, topics)]

    found: dict[tuple[str, str], list[str]] = {}
    for finding in asyncio.run(examine()):
        assert bool(finding.remedy) == (finding.level != doctor.FINE), finding
        if finding.subject != "clock":
            found.setdefault((finding.level, finding.subject), []).append(finding.text)
    return found


def test_a_healthy_kafka_is_named_healthy_and_each_weakness_of_a_topic_with_its_remedy(
    kafka3: Cluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "file_system", lambda *_: "ext4")
    good = topic(kafka3, partitions=2)
    alone = {"min.insync.replicas": "1", "max.message.bytes": "1000"}
    single = topic(kafka3, partitions=1, replication=1, config=alone)
    stuck = topic(kafka3, partitions=1, replication=1, config={"min.insync.replicas": "2"})
    frail = topic(kafka3, partitions=1, config={"min.insync.replicas": "1", "cleanup.policy": "compact"})
    found = examined(tmp_path, kafka3.bootstrap_servers, good, single, stuck, frail, "absent")
    assert {(level, subject) for level, subject in found if level != doctor.FINE} == {
        (doctor.UNSURE, f"topic {single}"),
        (doctor.UNSURE, f"topic {frail}"),
        (doctor.UNSURE, f"topic {stuck}"),
        (doctor.BAD, f"topic {stuck}"),
        (doctor.BAD, "topic absent"),
    }
    assert found[doctor.BAD, f"topic {stuck}"] == ["1 replicas are in sync, min.insync.replicas=2: nothing is taken"]
    assert found[doctor.BAD, "topic absent"] == ["there is no such topic"]
    assert found[doctor.FINE, f"topic {good}"] == ["2 partitions, 3 replicas of each", "may be written to"]
    one, size = found[doctor.UNSURE, f"topic {single}"]
    assert one.startswith("one replica: ")
    assert size.startswith("max.message.bytes=1000 is below max_request_size=1048576")
    durability, compacted = found[doctor.UNSURE, f"topic {frail}"]
    assert durability.startswith("min.insync.replicas=1")
    assert compacted.startswith("it is compacted")
    assert {subject for _, subject in found} >= {"volume", "disk", "kafka", "broker 1", "broker 2", "broker 3"}
    assert all(read_topic(kafka3.bootstrap_servers, name) == [] for name in (good, single, frail))  # it only asks


def test_without_a_broker_the_cause_is_named_and_the_status_is_1(tmp_path: Path) -> None:
    done = run("doctor", tmp_path / "not" / "there", "--bootstrap-servers", NOWHERE, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found[-1]["text"] == f"kafka is not reached: {NOWHERE} cannot be reached: the connection is refused"
    assert list(tmp_path.iterdir()) == []


def test_a_finding_is_a_line_and_its_remedy_another(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders")
        done = run("doctor", tmp_path, "--bootstrap-servers", cluster.bootstrap_servers, "--topic", "orders")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert "ok       topic orders: may be written to" in lines
    at = lines.index("warning  topic orders: one replica: what Kafka has acknowledged is lost with one disk")
    assert lines[at + 1] == "         → give it three replicas (kafka-reassign-partitions.sh)"


def test_an_address_that_kafka_advertises_in_vain_is_named() -> None:
    ports = ReservedPorts(1)
    finding = asyncio.run(doctor._address(7, "127.0.0.1", ports.numbers[0]))
    ports.release()
    assert (finding.level, finding.subject) == (doctor.BAD, "broker 7")
    assert finding.text.startswith(f"kafka advertises 127.0.0.1:{ports.numbers[0]}, which cannot be reached: ")


@pytest.mark.parametrize(
    ("kind", "level", "says"),
    [
        ("tmpfs", doctor.BAD, "records there end with the machine"),
        ("nfs4", doctor.BAD, "over the network"),
        ("btrfs", doctor.UNSURE, "copies on write"),
    ],
)
def test_a_volume_that_is_wrong_for_a_ring_is_named(
    kind: str, level: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "file_system", lambda *_: kind)
    assert says in examined(tmp_path, NOWHERE)[level, "volume"][0]


def test_a_volume_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "volume", lambda *_: (1 << 30, 100 << 30))
    assert "room for 0 MiB" in examined(tmp_path, NOWHERE)[doctor.BAD, "volume"][0]
    monkeypatch.setattr(Files, "volume", lambda *_: (5 << 20, 6 << 20))
    shown = run("doctor", tmp_path, "--bootstrap-servers", NOWHERE).stdout
    assert "→ free disk space, or choose a wal_dir on another volume" in shown
    monkeypatch.setattr(Files, "volume", lambda *_: (1 << 30, 100 << 30))
    [tight] = examined(tmp_path, NOWHERE, wal_min_free_bytes=0, wal_max_bytes=20 << 30)[doctor.UNSURE, "volume"]
    assert "wal_max_bytes is 20,480 MiB" in tight


def test_a_volume_that_cannot_be_written_to_is_named_by_its_directory() -> None:
    [text] = examined(Path("/proc/x"), NOWHERE)[doctor.BAD, "disk"]
    assert text == "/proc cannot be written to: No such file or directory"


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (doctor.BAD, "wal_dir") in examined(tmp_path / "file", NOWHERE)
    (tmp_path / "wal" / "0").mkdir(parents=True)
    (tmp_path / "wal" / "0" / "ring").write_bytes(b"a ring of mine" * 1000)
    [said] = examined(tmp_path / "wal", NOWHERE)[doctor.BAD, "directory 0"]
    assert said.startswith("the file belongs to another program")


def test_all_producers_deliver_and_are_measured(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=2)
        words = ("bench", "--topic", "orders", "--records", 500, "--bootstrap-servers", cluster.bootstrap_servers)
        table = run(*words, "--wal-dir", tmp_path)
        assert table.exit_code == 0
        ours_alone = ("--option", "wal_max_bytes=8388608", "--option", "linger_ms=20")
        found = json.loads(run(*words, *ours_alone, "--json").stdout)
        assert len(read_topic(cluster.bootstrap_servers, "orders")) == 2 * (
            3 * 2500 + 1
        )  # a first one sees that Kafka takes it
    assert [one["producer"] for one in found] == ["aiorecover", "aiokafka", "confluent-kafka"]
    assert all(one["delivered_per_second"] > 0 for one in found)
    assert [line.split()[0] for line in table.stdout.splitlines()][1:] == [one["producer"] for one in found]
    assert list(tmp_path.iterdir()) == []


def test_a_kafka_that_is_not_reached_ends_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bench, "REACHED_MS", 200)
    done = run("bench", "--topic", "orders", "--bootstrap-servers", NOWHERE, "--wal-dir", tmp_path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("kafka is not reached: 127.0.0.1:1 cannot be reached") == 1
    assert done.stderr.startswith("nothing is measured, Kafka took no record: ")
    assert [said for said in caplog.messages if said.startswith("stopped")] == []  # its directory is gone
    assert list(tmp_path.iterdir()) == []


def test_a_kafka_that_refuses_the_record_ends_the_bench_with_the_cause(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        cluster.push_errors(ApiKey.PRODUCE, POLICY_VIOLATION)
        words = ("--topic", "orders", "--records", 500, "--bootstrap-servers", cluster.bootstrap_servers)
        done = run("bench", *words, "--wal-dir", tmp_path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the broker's policy refuses the record" in done.stderr.splitlines()[-1]
