"""Writes that will never have a manifest get one that names nobody."""

import json
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from aiorecover.errors import ConfigError, DeliveryError
from aiorecover.spark import give_up_writes
from aiorecover.spark.sink_manifest import Write
from aiorecover.testing import MockCluster
from tests.support import admin
from tests.support.oracle import read_topic

SOME, OTHER = Write("job", 7).name, Write("job", 8).name


async def some_record(cluster: MockCluster) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"{}")


def given_up(cluster: MockCluster, topic: str) -> list[dict[str, Any]]:
    return [json.loads(one.value or b"") for one in admin.run(read_topic(cluster.bootstrap_servers, topic))]


def test_each_write_and_each_job_gets_one_manifest_that_names_nobody() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("manifests", partitions=2)
        told: Any = {"bootstrap_servers": cluster.bootstrap_servers, "manifest_topic": "manifests"}
        assert give_up_writes([SOME, SOME], job_ids=["nightly"], **told) == [SOME, Write("nightly", 0).name]
        parts = {part["write"]: part for part in given_up(cluster, "manifests")}
        assert {part["batch_id"] for part in parts.values()} == {7, 0}
        assert set(parts) == {SOME, Write("nightly", 0).name}
        assert all((part["attempts"], part["part"], part["parts"]) == ([], 0, 1) for part in parts.values())
        cluster.broker_down()
        with pytest.raises(ConfigError, match="Kafka cannot be reached"):
            give_up_writes([SOME], **told)


def test_a_write_that_has_its_manifest_stays_as_it_is() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("manifests")
        told: Any = {"bootstrap_servers": cluster.bootstrap_servers, "manifest_topic": "manifests"}
        give_up_writes([SOME], **told)
        assert give_up_writes([SOME, OTHER], **told) == [OTHER]
        assert give_up_writes([SOME, OTHER], **told) == []
        assert [part["write"] for part in given_up(cluster, "manifests")] == [SOME, OTHER]


def test_a_topic_of_records_gets_no_manifest() -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders")
        told: Any = {"bootstrap_servers": cluster.bootstrap_servers, "manifest_topic": "orders"}
        admin.run(some_record(cluster))
        with pytest.raises(ConfigError, match=r"this topic has records, and no manifest .* manifest_topic='orders'"):
            give_up_writes([SOME], **told)
        assert [one.value for one in admin.run(read_topic(cluster.bootstrap_servers, "orders"))] == [b"{}"]


def test_a_write_that_could_not_be_given_up_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorecover.spark.giving_up.check_topics", lambda _: None)
    with pytest.raises(DeliveryError, match="has not acknowledged"):
        give_up_writes(
            [SOME], bootstrap_servers="127.0.0.1:1", manifest_topic="manifests", options={"timeout_ms": "100"}
        )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name a write"),
        ({"writes": SOME}, "writes is a list"),
        ({"job_ids": "nightly"}, "job_ids is a list"),
        ({"writes": ["job/7"]}, "a write is named as in the header aiorecover-write"),
        ({"writes": [f"{SOME}0000000000000000000"]}, "a write is named as"),
        ({"writes": [7]}, "a write is named as"),
        ({"writes": [SOME], "options": {"producer.linger": "1"}}, "did you mean linger_ms"),
    ],
)
def test_what_names_no_write_is_refused_before_kafka_is_asked(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        give_up_writes(**given, bootstrap_servers="127.0.0.1:1", manifest_topic="manifests")
