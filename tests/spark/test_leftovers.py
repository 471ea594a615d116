"""Which records of sinks count, on rows made by hand: the rule in words of plain Python beside it."""

import random
from collections import Counter

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from aiorecover.errors import ConfigError
from aiorecover.spark import (
    Audit,
    audit,
    compare,
    counted_attempts,
    read_manifests,
    undecided_writes,
    without_leftovers,
)
from aiorecover.spark.leftovers import judged, needed, parse_manifests, winners
from aiorecover.spark.record_id import parse_record_id
from aiorecover.spark.session import clear_errors
from aiorecover.spark.sink_manifest import WRITE_HEADER, Attempt, Write, empty_manifest_of, manifest_of
from tests.spark.settings import shuffling

A, B, C, D = "aaaaaaaaaaaaa", "bbbbbbbbbbbbb", "ccccccccccccc", "ddddddddddddd"
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


def verdicts(spark: SparkSession, *parts: Part) -> dict[str, str]:
    rows = records(
        spark,
        (f"{A}/1/1", FIRST.name),
        (f"{B}/1/1", FIRST.name),
        (f"{C}/1/1", SECOND.name),
        (f"{D}/1/1", None),
        (None, FIRST.name),
    )
    decided = winners(parse_manifests(topic_of(spark, *parts)))
    found = judged(parse_record_id(rows), decided).collect()
    return {str(row["producer_id"])[0]: row["verdict"] for row in found}


def test_what_the_manifest_names_counts_and_the_rest_of_its_write_does_not(spark: SparkSession) -> None:
    assert verdicts(spark) == {"a": "undecided", "b": "undecided", "c": "undecided", "d": "counts", "N": "counts"}
    told = manifest_of(FIRST, [attempt(FIRST, A), attempt(FIRST, None, 1)])
    assert verdicts(spark, *told) == {"a": "counts", "b": "leftover", "c": "undecided", "d": "counts", "N": "counts"}
    empty = manifest_of(FIRST, [attempt(FIRST, None)])
    assert verdicts(spark, *empty)["a"] == "leftover"
    assert verdicts(spark, *empty_manifest_of(FIRST.name))["a"] == "leftover"


def test_a_header_that_is_no_write_s_name_is_somebody_else_s(spark: SparkSession) -> None:
    """No manifest would ever name it, and nobody could give it up."""
    names = ["junk", f"{FIRST.name}\n", f"{FIRST.job}/x", f"{FIRST.job}/-1", FIRST.name.upper(), FIRST.name]
    rows = records(spark, *[(f"{A}/1/{number}", name) for number, name in enumerate(names, 1)])
    found = judged(parse_record_id(rows), winners(parse_manifests(topic_of(spark)))).orderBy("sequence").collect()
    assert [row["verdict"] for row in found] == ["counts"] * 5 + ["undecided"]


def test_the_first_manifest_that_is_whole_counts(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorecover.spark.sink_manifest.PART_BYTES", 1)
    one, other = manifest_of(FIRST, [attempt(FIRST, A), attempt(FIRST, D, 1)]), manifest_of(FIRST, [attempt(FIRST, B)])
    assert len(one) == 2
    assert verdicts(spark, one[0])["a"] == "undecided"
    assert verdicts(spark, one[1], one[0], *other)["a"] == "counts"
    assert verdicts(spark, one[0], *other, one[1])["b"] == "counts"
    # A part may stand there twice: when it came first is what counts.
    assert verdicts(spark, *one, *other, one[0])["a"] == "counts"


def test_what_was_kept_of_manifests_decides_the_same(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorecover.spark.sink_manifest.PART_BYTES", 1)
    chance = random.Random(7)
    runs = [manifest_of(FIRST, [attempt(FIRST, one), attempt(FIRST, C, 1)]) for one in (A, B, D)]
    runs.append(manifest_of(SECOND, [attempt(SECOND, C), attempt(SECOND, A, 1)]))
    for _ in range(2):
        parts = [part for run in runs for part in run]
        chance.shuffle(parts)
        whole = parse_manifests(topic_of(spark, *parts)).persist()
        cut = chance.randrange(len(parts))
        kept = needed(needed(whole.where(f"offset < {cut}")).unionByName(whole.where(f"offset >= {cut}")))
        columns = ["write", "attempts.producer_id"]
        once, twice = (
            {row["write"]: set(row["producer_id"]) for row in winners(of).select(*columns).collect()}
            for of in (whole, kept)
        )
        assert once == twice, parts
        assert kept.count() == 4, "what comes too late is forgotten"
        whole.unpersist()


def test_what_is_no_manifest_is_passed_over(spark: SparkSession) -> None:
    told = manifest_of(FIRST, [attempt(FIRST, A)])
    strange = [(b"", b"no json"), (b"", b'{"kind": "other", "run": "x"}'), (b"", b"[]")]
    assert verdicts(spark, *strange, *told)["a"] == "counts"
    elsewhere = topic_of(spark, *told, partition=1)
    assert counted_attempts(elsewhere).collect() == []


def test_of_many_tasks_each_record_is_judged_by_its_own(spark: SparkSession) -> None:
    """Also where the manifest stands twice, tasks had no rows, and another write has an attempt of the same name."""
    names = [f"{number:05d}".translate(str.maketrans("01289", "abcde")) + "producer" for number in range(200)]
    counting, others = names[::2], names[1::2]
    attempts = [attempt(FIRST, name, number) for number, name in enumerate(counting)]
    attempts += [attempt(FIRST, None, number) for number in range(len(counting), len(names))]
    told = manifest_of(FIRST, attempts)
    parts = *told, *told, *manifest_of(SECOND, [attempt(SECOND, others[0])])
    rows = records(spark, *((f"{name}/1/{sequence}", FIRST.name) for name in names for sequence in (1, 2)))
    found = judged(parse_record_id(rows), winners(parse_manifests(topic_of(spark, *parts))))
    verdict_of = Counter((row["producer_id"], row["verdict"]) for row in found.collect())
    wanted = {**{(name, "counts"): 2 for name in counting}, **{(name, "leftover"): 2 for name in others}}
    assert verdict_of == Counter(wanted)
    # Its own, and not all of the write's: a record would cost as much as the write had tasks.
    assert "array_contains" not in found._jdf.queryExecution().toString()


def test_an_attempt_that_counts_is_shown_with_all_that_it_told(spark: SparkSession) -> None:
    (found,) = counted_attempts(topic_of(spark, *manifest_of(FIRST, [attempt(FIRST, A, 4)]))).collect()
    assert found.asDict() == {
        "write": FIRST.name,
        "job_id": "job",
        "batch_id": 1,
        "partition": 4,
        "attempt": 0,
        "producer_id": A,
        "epoch": 1,
        "first": 1,
        "last": 5,
        "rows": 6,
        "dead_letters": [[3, 4]],
        "refused": 1,
        "topics": ["t"],
        "kept": "host:/x",
    }


def test_leftovers_are_not_absent_from_a_table(spark: SparkSession) -> None:
    rows = records(spark, (f"{A}/1/1", FIRST.name), (f"{B}/1/1", FIRST.name), (f"{D}/1/1", None))
    manifests = topic_of(spark, *manifest_of(FIRST, [attempt(FIRST, A)]))
    counting = without_leftovers(rows, manifests)
    assert counting.columns == rows.columns
    assert counting.count() == 2
    with compare(rows, counting, sink_manifests=manifests) as found:
        assert found.absent.collect() == []
    with compare(rows, counting) as found:
        assert [row["producer_id"] for row in found.absent.collect()] == [B]


def test_writes_without_a_manifest_are_shown_until_they_are_given_up(spark: SparkSession) -> None:
    rows = records(spark, (f"{A}/1/1", FIRST.name), (f"{B}/1/1", SECOND.name), (f"{B}/1/2", SECOND.name), (None, None))
    rows = rows.withColumn("timestamp", F.timestamp_seconds("offset"))
    decided = manifest_of(FIRST, [attempt(FIRST, A)])
    (found,) = undecided_writes(rows, topic_of(spark, *decided)).collect()
    assert (found["write"], found["records"], found["last_timestamp"].timestamp()) == (SECOND.name, 2, 2)
    given_up = topic_of(spark, *decided, *empty_manifest_of(SECOND.name))
    assert undecided_writes(rows.drop("timestamp"), given_up).collect() == []


def audited(spark: SparkSession, attempts: list[Attempt], *identities: str) -> Audit:
    """Of topic ``t``."""
    rows = records(spark, *((identity, FIRST.name) for identity in identities))
    return audit(rows, sink_manifests=topic_of(spark, *manifest_of(FIRST, attempts)))


def lost(spark: SparkSession, attempts: list[Attempt], *identities: str) -> list[tuple[str, int, int, str]]:
    """What is said of what is missing."""
    with audited(spark, attempts, *identities) as found:
        assert found.verdicts is not None
        told = found.verdicts.orderBy("producer_id", "first").collect()
    return [(row["producer_id"][0], row["first"], row["last"], row["verdict"]) for row in told]


def test_what_was_written_to_a_topic_that_is_not_read_is_not_called_lost(spark: SparkSession) -> None:
    whole = [f"{A}/1/{number}" for number in (1, 2, 5)]
    letters = ("a", 3, 4, "dead_lettered")
    here, elsewhere = attempt(FIRST, A), attempt(FIRST, B, 1, topics=("other",))
    assert lost(spark, [here], *whole) == [letters]
    sentence = "the manifests name writes to topics of which nothing was read: read these, too,.* topics=other"
    for attempts, identities in [
        ([here, elsewhere], whole),
        ([here, attempt(FIRST, B, 1, topics=("other", "t"))], [*whole, f"{B}/1/1"]),
        ([elsewhere], []),
    ]:
        told = audited(spark, attempts, *identities)
        with told as found, pytest.raises(ConfigError, match=sentence), clear_errors():
            found.totals.collect()


def test_what_is_missing_of_topics_that_are_read_is_lost(spark: SparkSession) -> None:
    whole = [f"{A}/1/{number}" for number in (1, 2, 5)]
    nothing = [("b", 1, 2, "lost"), ("b", 3, 4, "dead_lettered"), ("b", 5, 5, "lost")]
    for other in (attempt(FIRST, B, 1), attempt(FIRST, B, 1, topics=None)):
        assert lost(spark, [attempt(FIRST, A), other], *whole)[1:] == nothing
    # A topic that only dead letters were for.
    assert len(lost(spark, [attempt(FIRST, A, topics=("other", "t"))], *whole)) == 1
    # A copy of the topic under another name.
    copied = lost(spark, [attempt(FIRST, A, topics=("of another cluster",))], *whole[:2])
    assert copied == [("a", 3, 4, "dead_lettered"), ("a", 5, 5, "lost")]


def test_an_attempt_that_a_sinks_manifest_names_is_told_of_and_never_open(spark: SparkSession) -> None:
    rows = records(spark, *((f"{A}/1/{number}", FIRST.name) for number in (1, 2, 5)), (f"{D}/1/1", None))
    of_producers, of_sinks = topic_of(spark), topic_of(spark, *manifest_of(FIRST, [attempt(FIRST, A)]))
    with (
        read_manifests(of_producers) as said,
        audit(rows, manifests=said, sink_manifests=of_sinks) as found,
    ):
        (totals,) = found.totals.collect()
    assert (totals["open_epochs"], totals["untold_epochs"]) == (0, 1)


def test_no_machine_has_all_writes_or_all_records_of_no_sink(spark: SparkSession) -> None:
    """Where Spark cannot know how many they are, as of a topic: both sides are shuffled, and no task has it all."""
    rows = records(spark, (f"{A}/1/1", FIRST.name), *((f"{D}/1/{number}", None) for number in range(1, 400)))
    manifests = topic_of(spark, *manifest_of(FIRST, [attempt(FIRST, A)]))
    with shuffling(spark):
        counting = without_leftovers(rows, manifests).withColumn("task", F.spark_partition_id())
        plan = counting._jdf.queryExecution().toString()
        tasks = Counter(row["task"] for row in counting.collect())
    assert tasks.total() == 400
    assert max(tasks.values()) < 300, tasks
    assert "Broadcast" not in plan, plan


def test_columns_that_are_missing_are_named(spark: SparkSession) -> None:
    manifests = topic_of(spark)
    with pytest.raises(ConfigError, match="told by the column headers"):
        without_leftovers(spark.range(1), manifests)
    with pytest.raises(ConfigError, match="manifests are read with read_topics"):
        without_leftovers(records(spark, (None, None)), spark.range(1))
