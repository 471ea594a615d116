"""What a write says it has published."""

import json

from aiorecover.spark.sink_manifest import Attempt, Write, manifest_of, ranges_of, topics_of

QUERY = "0b8ab1a4-74fb-4f1f-8d3d-26c6cb6b4a64"
WRITE = Write(QUERY, 3)


def attempt(number: int) -> Attempt:
    letters = ((4, 6), (9, 9))
    producer_id = f"producer{number:05d}"
    told = {"refused": 2, "topics": ("a", "b"), "kept": "host:/tmp/x"}
    return Attempt(WRITE, number, 1, producer_id, 1, 1, 10, 10, letters, **told)  # type: ignore[arg-type]


def test_the_name_of_a_write_is_short_however_long_the_job_s_is() -> None:
    job, batch = Write("j" * 1000, 12).name.split("/")
    assert (len(job), batch) == (16, "12")
    assert Write(QUERY, 0).name != Write(QUERY, 1).name
    assert Write(QUERY, 0).name == Write(QUERY, 0).name != Write("x" + QUERY, 0).name


def test_a_manifest_has_all_that_the_attempts_have_told() -> None:
    ((key, value),) = manifest_of(WRITE, [attempt(0), attempt(1)])
    told = json.loads(value)
    run = told.pop("run")
    one = {"attempt": 1, "epoch": 1, "first": 1, "last": 10, "rows": 10, "refused": 2, "kept": "host:/tmp/x"}
    one |= {"dead_letters": [[4, 6], [9, 9]], "topics": ["a", "b"]}
    assert told == {
        "kind": "aiorecover-sink",
        "version": 1,
        "write": Write(QUERY, 3).name,
        "part": 0,
        "parts": 1,
        "job_id": QUERY,
        "batch_id": 3,
        "attempts": [one | {"partition": number, "producer_id": f"producer{number:05d}"} for number in (0, 1)],
    }
    assert key.decode() == f"{told['write']}/{run}/0"


def test_a_manifest_of_many_tasks_is_cut_into_parts_that_fit_a_record() -> None:
    attempts = [attempt(number) for number in range(20_000)]
    parts = manifest_of(WRITE, attempts)
    told = [json.loads(value) for _, value in parts]
    assert max(len(value) for _, value in parts) < 300_000
    assert len({key for key, _ in parts}) == len(parts) == told[0]["parts"] > 10
    assert [one["part"] for one in told] == list(range(len(parts)))
    assert len({one["run"] for one in told}) == 1
    assert [one["partition"] for part in told for one in part["attempts"]] == list(range(20_000))


def test_two_manifests_of_one_write_are_different_runs() -> None:
    assert manifest_of(WRITE, [attempt(0)])[0][0] != manifest_of(WRITE, [attempt(0)])[0][0]


def test_an_attempt_without_rows_is_told_too() -> None:
    ((_, value),) = manifest_of(WRITE, [Attempt(WRITE, 0, 0, None, 1, 1, 0, 0)])
    (told,) = json.loads(value)["attempts"]
    assert (told["producer_id"], told["rows"]) == (None, 0)


def test_sequences_become_ranges() -> None:
    assert ranges_of([5, 1, 2, 3, 9, 5]) == ((1, 3), (5, 5), (9, 9))
    assert ranges_of([]) == ()


def test_a_manifest_may_name_nobody() -> None:
    ((_, value),) = manifest_of(WRITE, [])
    assert json.loads(value)["attempts"] == []


def test_topics_are_told_as_long_as_they_are_few() -> None:
    few = {f"t{number:02d}" for number in range(20)}
    assert topics_of(few) == tuple(sorted(few))
    assert topics_of([*few, "one more"]) is None
    assert topics_of([]) == ()
