"""Which records of sinks count, on rows made by hand."""

import random

import pytest
from pyspark.sql import DataFrame, SparkSession

from aiorecover.errors import ConfigError
from aiorecover.spark import (
    audit,
    compare,
    counted_attempts,
    parse_record_id,
    undecided_writes,
    without_leftovers,
)
from aiorecover.spark.session import clear_errors
from aiorecover.spark.sink_manifest import WRITE_HEADER, Attempt, Write, empty_manifest_of, manifest_of

A, B, C, D, E = (letter * 13 for letter in "abcde")
FIRST, SECOND = Write("job", 1), Write("job", 2)
Part = tuple[bytes, bytes]


def attempt(
    write: Write, producer_id: str | None, partition: int = 0, topics: tuple[str, ...] | None = ("t",)
) -> Attempt:
    return Attempt(write, partition, 0, producer_id, 1, 1, 5, 6, ((3, 4),), refused=1, topics=topics, kept="host:/x")


def records(spark: SparkSession, *rows: tuple[str | None, str | None]) -> DataFrame:
    """Of each its id, and its write."""
    told = []
    for offset, (identity, write) in enumerate(rows):
        headers = [("own", b"x")]
        headers += [(WRITE_HEADER, write.encode())] if write else []
        headers += [("aiorecover-id", identity.encode())] if identity else []
        told.append(("t", 0, offset, b"value", headers))
    kinds = "topic string, partition int, offset bigint, value binary, headers array<struct<key string, value binary>>"
    return spark.createDataFrame(told, kinds)


def topic_of(spark: SparkSession, *parts: Part, partition: int = 0) -> DataFrame:
    rows = [(key, value, partition, offset) for offset, (key, value) in enumerate(parts)]
    return spark.createDataFrame(rows, "key binary, value binary, partition int, offset bigint")


def counting_in(rows: DataFrame, manifests: DataFrame) -> list[str | None]:
    found = parse_record_id(without_leftovers(rows, manifests)).select("producer_id").collect()
    return sorted((row["producer_id"] for row in found), key=str)


def test_what_the_first_whole_manifest_names_counts_and_the_rest_of_its_write_does_not(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiorecover.spark.sink_manifest.PART_BYTES", 1)
    one, other = manifest_of(FIRST, [attempt(FIRST, A), attempt(FIRST, D, 1)]), manifest_of(FIRST, [attempt(FIRST, B)])
    assert len(one) == 2
    strange = [(b"", b"no json"), (b"", b'{"kind": "other", "run": "x"}'), (b"", b"[]")]
    # No manifest would ever name these writes, so their records are somebody else's.
    names = [f"{FIRST.name}\n", f"{FIRST.job}/x", FIRST.name.upper(), None]
    others = [(f"{E}/1/{number}", name) for number, name in enumerate(names, 1)]
    ids = [(f"{A}/1/1", FIRST), (f"{B}/1/1", FIRST), (f"{C}/1/1", SECOND), (f"{D}/1/1", FIRST), (None, FIRST)]
    rows = records(spark, *((identity, write.name) for identity, write in ids), *others)
    for parts, counting, undecided in [
        ([one[1], *strange, one[0], *other], [A, D], {SECOND}),
        ([one[0], *other, one[1]], [B], {SECOND}),
        ([*one, *other, one[0], *empty_manifest_of(SECOND.name)], [A, D], set[Write]()),
    ]:
        manifests = topic_of(spark, *parts)
        assert counting_in(rows, manifests) == [None, *counting, *[E] * len(others)], parts
        waiting = {row["write"] for row in undecided_writes(rows, manifests).collect()}
        assert waiting == {write.name for write in undecided}, parts
    assert counted_attempts(topic_of(spark, *one, partition=1)).collect() == [], "only partition 0 has manifests"


def test_an_attempt_that_counts_is_shown_with_all_that_it_told(spark: SparkSession) -> None:
    (found,) = counted_attempts(topic_of(spark, *manifest_of(FIRST, [attempt(FIRST, A, 4)]))).collect()
    told = {"write": FIRST.name, "job_id": "job", "batch_id": 1, "partition": 4, "attempt": 0, "producer_id": A}
    told |= {"epoch": 1, "first": 1, "last": 5, "rows": 6, "dead_letters": [[3, 4]], "refused": 1}
    assert found.asDict() == told | {"topics": ["t"], "kept": "host:/x"}


def test_leftovers_are_not_absent_from_a_table(spark: SparkSession) -> None:
    rows = records(spark, (f"{A}/1/1", FIRST.name), (f"{B}/1/1", FIRST.name), (f"{D}/1/1", None))
    manifests = topic_of(spark, *manifest_of(FIRST, [attempt(FIRST, A)]))
    counting = without_leftovers(rows, manifests)
    with compare(rows, counting, sink_manifests=manifests) as found:
        assert found.absent.collect() == []
    with compare(rows, counting) as found:
        assert [row["producer_id"] for row in found.absent.collect()] == [B]


def lost(spark: SparkSession, attempts: list[Attempt], *identities: str) -> list[tuple[str, int, int, str]]:
    """What is said of what is missing."""
    rows = records(spark, *((identity, FIRST.name) for identity in identities))
    with audit(rows, sink_manifests=topic_of(spark, *manifest_of(FIRST, attempts))) as found:
        assert found.verdicts is not None
        told = found.verdicts.orderBy("producer_id", "first").collect()
    return [(row["producer_id"][0], row["first"], row["last"], row["verdict"]) for row in told]


def test_what_is_missing_of_topics_that_are_read_is_lost_and_of_others_it_is_an_error(spark: SparkSession) -> None:
    whole = [f"{A}/1/{number}" for number in (1, 2, 5)]
    letters, here = ("a", 3, 4, "dead_lettered"), attempt(FIRST, A)
    gone = [("b", 1, 2, "lost"), ("b", 3, 4, "dead_lettered"), ("b", 5, 5, "lost")]
    assert lost(spark, [here, attempt(FIRST, B, 1, topics=None)], *whole) == [letters, *gone]
    sentence = "the manifests name writes to topics of which nothing was read: read these, too,.* topics=other"
    with pytest.raises(ConfigError, match=sentence), clear_errors():
        lost(spark, [here, attempt(FIRST, B, 1, topics=("other",))], *whole)
    with pytest.raises(ConfigError, match="told by the column headers"):
        without_leftovers(spark.range(1), topic_of(spark))


def test_of_many_writes_in_any_order_each_record_is_judged_by_its_own(spark: SparkSession) -> None:
    chance = random.Random(3)
    writes = [Write("jobs", number) for number in range(300)]
    names = [f"{number:05d}".translate(str.maketrans("01289", "abcde")) + "producer" for number in range(600)]
    told = [part for write in writes for part in manifest_of(write, [attempt(write, names[write.batch_id])])]
    rows = [(f"{name}/1/1", writes[number % 300].name) for number, name in enumerate(names)]
    chance.shuffle(told)
    chance.shuffle(rows)
    assert counting_in(records(spark, *rows), topic_of(spark, *told)) == sorted(names[:300])
