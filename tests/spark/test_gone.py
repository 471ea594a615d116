"""What Spark's connector says of records that are gone, in one sentence each: all that it can say, in its own words."""

import json
import re
import zipfile

import pytest

from aiorecover.spark.gone import RecordsGoneError, gone_in, remade
from tests.support.jars import spark_jars

FILLED = {
    "topicPartition": "my-orders-3",
    "partitions": "Set(my-orders-3, my-orders-4)",
    "startOffset": "100",
    "endOffset": "250",
    "offset": "100",
    "fetchedOffset": "250",
    "prevOffset": "250",
    "newOffset": "100",
    "groupId": "spark-kafka-source-1",
    "groupIdConfig": "group.id",
}
NO_LIMIT = FILLED | {"endOffset": "null"}


def said(kind: str, filled: dict[str, str]) -> str:
    """As an error has it, with what stands around it there."""
    (jar,) = spark_jars().glob("spark-sql-kafka-*.jar")
    with zipfile.ZipFile(jar) as opened:
        loss = json.loads(opened.read("error/kafka-error-conditions.json"))["KAFKA_DATA_LOSS"]
    assert set(loss["subClass"]) == set(KINDS), "the connector says other things than are known"
    text = "\n".join([*loss["message"], *loss["subClass"][kind]["message"]])
    text = re.sub(r"<(\w+)>", lambda found: filled[found[1]], text)
    return f"Job aborted\n: org.apache.spark.SparkException: [KAFKA_DATA_LOSS.{kind}] {text} SQLSTATE: 22000\n\tat x"


KINDS = {
    "COULD_NOT_READ_OFFSET_RANGE": "topic=my-orders partition=3 within=100-249",
    "PARTITION_OFFSET_CHANGED": "topic=my-orders partition=3 next=250 end=100",
    "START_OFFSET_RESET": "topic=my-orders partition=3 within=100-249",
    "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO": "topic=my-orders partition=3 within=0-99",
    "PARTITIONS_DELETED": "partitions=Set(my-orders-3, my-orders-4)",
    "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT": "partitions=Set(my-orders-3, my-orders-4)",
    "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS": "partitions=Set(my-orders-3, my-orders-4)",
}


@pytest.mark.parametrize(("kind", "where"), KINDS.items())
def test_all_that_the_connector_says_of_lost_data_is_one_sentence_with_the_place(kind: str, where: str) -> None:
    gone = gone_in(said(kind, FILLED))
    assert gone is not None
    assert gone.where == where
    sentence = str(RecordsGoneError(gone))
    assert "\n" not in sentence
    for part in ("not landed", "aiorecover audit --table", "failOnDataLoss=false", where):
        assert part in sentence


def test_an_end_that_is_not_known_is_left_out() -> None:
    gone = gone_in(said("COULD_NOT_READ_OFFSET_RANGE", NO_LIMIT))
    assert gone is not None
    assert gone.where == "topic=my-orders partition=3 from=100"


def test_other_errors_say_nothing_of_it() -> None:
    assert gone_in("org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired") is None


def test_of_topics_that_were_made_anew_their_names_are_told() -> None:
    assert str(RecordsGoneError(remade(["a", "b"]))).endswith("topics=['a', 'b']")
