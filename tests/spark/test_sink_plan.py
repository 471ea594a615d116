"""What the sink is told, and each sentence for what is wrong with it."""

import pickle
import ssl
from pathlib import Path

import pytest
import trustme
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiorecover.checks import DURATION_MAX_MS
from aiorecover.config import MIB
from aiorecover.errors import ConfigError
from aiorecover.spark.sink_plan import Plan, plan

PASSWORD = "0123"  # noqa: S105 - nobody's
TOLD = {"bootstrap_servers": "127.0.0.1:1", "topic": "orders", "manifest_topic": "manifests"}


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable=False) for name, kind in types.items()])


def headers(value: DataType) -> DataType:
    return ArrayType(columns(key=StringType(), value=value), containsNull=False)


EVERY = columns(
    topic=StringType(),
    Key=BinaryType(),
    value=StringType(),
    partition=IntegerType(),
    timestamp=TimestampType(),
    headers=headers(BinaryType()),
    offset=LongType(),
)
VALUE = columns(value=BinaryType())


def planned(schema: StructType = VALUE, *, without: str = "", **more: str) -> Plan:
    told = {name.replace("__", "."): value for name, value in {**TOLD, **more}.items() if name != without}
    return plan(CaseInsensitiveDict(told), schema)


def test_options_of_the_producer_have_its_own_types() -> None:
    made = planned(
        producer__linger_ms="20",
        producer__wal_max_bytes=str(512 * MIB),
        producer__compression_type="gzip",
        producer__recovery_check="False",
        producer__security_protocol="SASL_PLAINTEXT",
        producer__sasl_plain_username="7",
        producer__sasl_plain_password=PASSWORD,
        timeout_ms="5000",
    )
    config = made.config()
    assert (config.linger_ms, config.wal_max_bytes, config.recovery_check) == (20, 512 * MIB, False)
    assert (config.client["sasl_plain_username"], config.client["sasl_plain_password"]) == ("7", PASSWORD)
    assert config.full_timeout_ms == 5000
    assert PASSWORD not in repr(made)


def test_what_spark_adds_by_itself_is_passed_over_and_its_own_name_for_the_servers_is_taken() -> None:
    streamed = plan(CaseInsensitiveDict({**TOLD, "checkpointLocation": "/x", "queryName": "orders"}), VALUE)
    assert streamed == planned()
    assert planned(without="bootstrap_servers", kafka__bootstrap__servers="h:2").bootstrap_servers == "h:2"


def test_files_make_a_context_where_they_are_used(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(ca))
    made = planned(producer__security_protocol="SSL", producer__ssl_cafile=str(ca))
    carried = pickle.loads(pickle.dumps(made))  # noqa: S301 - as Spark carries it to an executor
    assert isinstance(carried.config().client["ssl_context"], ssl.SSLContext)
    with pytest.raises(ConfigError, match="ssl options cannot be read"):
        planned(producer__security_protocol="SSL", producer__ssl_cafile=str(tmp_path / "absent"))


def test_every_column_of_kafka_is_taken_and_others_are_passed_over() -> None:
    made = planned(EVERY, without="topic")
    assert made.topic is None
    assert made.columns == ("topic", "key", "value", "partition", "timestamp", "headers", "offset")


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (columns(key=StringType()), "a record needs a column value"),
        (columns(value=LongType()), "the column value must be string or binary: cast it type=bigint"),
        (columns(value=StringType(), partition=LongType()), "the column partition must be int"),
        (columns(value=StringType(), headers=headers(StringType())), "the column headers must be array<struct<key str"),
    ],
)
def test_a_column_of_another_type_is_named(schema: StructType, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        planned(schema)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"without": "bootstrap_servers"}, "name Kafka's servers"),
        ({"without": "manifest_topic"}, "name a topic for the manifests"),
        ({"without": "topic"}, "name the topic"),
        ({"topic": "manifests"}, "manifests need a topic of their own"),
        ({"path": "orders"}, "not to a path"),
        ({"kafka__security__protocol": "SSL"}, r"give the producer's as producer\.\.\."),
        ({"timeout_ms": "10 s"}, f"timeout_ms must be a number of milliseconds from 1 to {DURATION_MAX_MS} "),
        ({"timeout_ms": "9" * 5000}, "timeout_ms must be a number"),
        ({"max_dead_letters": "10001"}, "max_dead_letters must be a number of records from 0 to 10000 "),
        ({"job_id": " "}, "job_id names the job, by a name of which there is one, and this is empty"),
        ({"wal_max_byte": "1"}, "did you mean producer.wal_max_bytes"),
        ({"xyz": "1"}, "unknown option: leave it out, there are bootstrap_servers, topic, .*, producer.... option=xyz"),
        ({"producer__linger_ms": "soon"}, "linger_ms must be an int"),
        ({"producer__linger_ms": "-1"}, "linger_ms must be from 0 to"),
        ({"producer__guarantee": "exactly_once"}, "the manifest tells which attempt counts"),
        ({"producer__slot_bytes": "65536"}, "slot_bytes"),
    ],
)
def test_a_wrong_option_is_one_sentence(told: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        planned(**told)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
