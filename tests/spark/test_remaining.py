"""What is left to land, of what Spark says after a batch."""

import json

from aiorecover.spark.remaining import offsets_to_go


def progress(*sources: tuple[object, object]) -> str:
    return json.dumps({"sources": [{"endOffset": end, "latestOffset": latest} for end, latest in sources]})


def test_each_partition_counts_what_is_behind_the_batch_also_one_that_the_batch_has_nothing_of() -> None:
    told = progress(({"a": {"0": 5, "1": 7}, "b": {"0": 1}}, {"a": {"0": 15, "1": 7, "2": 3}, "b": {"0": 2}}))
    assert offsets_to_go(told) == 10 + 3 + 1


def test_a_topic_that_was_cut_off_meanwhile_is_not_counted_below_nothing() -> None:
    assert offsets_to_go(progress(({"a": {"0": 5}}, {"a": {"0": 3}}), ({"c": {"0": 1}}, {"c": {"0": 3}}))) == 2


def test_a_source_that_tells_no_offsets_counts_nothing() -> None:
    assert offsets_to_go(progress((None, None), (3, 9))) == 0
    assert offsets_to_go('{"sources": [{}]}') == 0
