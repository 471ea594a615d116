"""The audit in this process beside plain Python: any log of records, read in any slices."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorecover.audit import ids, local
from aiorecover.errors import ConfigError
from tests.spark.by_hand import Stored, examine

P, Q = "abcdefghij234", "zyxwvutsrq765"
PAGE = ids.PAGE
Contents = list[tuple[Stored, bytes]]

sequences = st.one_of(st.integers(1, 12), st.integers(PAGE - 2, PAGE + 3), st.integers(2 * PAGE, 2 * PAGE + 2))
identities = st.none() | st.tuples(st.sampled_from([P, Q]), st.integers(1, 2), sequences)
appearances = st.tuples(st.sampled_from(["one", "two"]), st.integers(0, 1), identities, st.sampled_from([b"a", b"b"]))


class Log:
    """Records in memory, read as `aiorecover.audit.reader.Topics` reads topics."""

    held_offsets = 0

    def __init__(self, contents: Contents, seed: int = 0) -> None:
        self._contents, self._chance = contents, random.Random(seed)
        self.readings = 0

    async def committed(self) -> AsyncIterator[tuple[TopicPartition, Sequence[Any]]]:
        self.readings += 1
        queues: dict[TopicPartition, list[Any]] = {}
        for one, value in self._contents:
            headers = (("aiorecover-id", "/".join(map(str, one.identity)).encode()),) if one.identity else ()
            record = SimpleNamespace(topic=one.topic, key=None, value=value, headers=headers, timestamp=1_000)
            queues.setdefault(TopicPartition(one.topic, one.partition), []).append(record)
        while queues:
            partition = self._chance.choice(sorted(queues))
            size = self._chance.randint(1, 5)
            yield partition, queues[partition][:size]
            queues[partition] = queues[partition][size:]
            if not queues[partition]:
                del queues[partition]


def audited(log: Log, **asked: Any) -> dict[str, Any]:
    question = local.Question("kafka:9092", ["one", "two"], limit=1_000_000, **asked)
    return asyncio.run(local._Audit(question, log, None).run())  # type: ignore[arg-type]


def ranges(rows: list[dict[str, Any]], key: tuple[str, int]) -> list[tuple[int, int]]:
    return sorted((row["first"], row["last"]) for row in rows if (row["producer_id"], row["epoch"]) == key)


@settings(max_examples=150)
@given(st.lists(appearances, max_size=60), st.integers(0, 99))
def test_each_epoch_is_found_as_plain_python_finds_it(drawn: list[Any], seed: int) -> None:
    contents = [(Stored(topic, at, n, one), value) for n, (topic, at, one, value) in enumerate(drawn)]
    stored = [one for one, _ in contents]
    known = {(P, 1): 4, (Q, 9): 3}
    log = Log([*contents, (Stored("one", 0, 99, (P, 7, 1)), b"")], seed)  # without any id there is no audit
    found = audited(log, known_last=known)
    wanted = examine([*stored, Stored("one", 0, 99, (P, 7, 1))], known)
    assert {(row["producer_id"], row["epoch"]) for row in found["epochs"]} == set(wanted)
    for row in found["epochs"]:
        key = row["producer_id"], row["epoch"]
        epoch = wanted[key]
        assert (row["first"], row["last"], row["expected"], row["found"]) == epoch[:4]
        assert (row["missing"], row["repeated"], row["out_of_order"]) == (
            sum(last - first + 1 for first, last in epoch.missing),
            epoch.repeated,
            epoch.out_of_order,
        )
        assert ranges(found["missing"], key) == epoch.missing
        assert ranges(found["repeated"], key) == epoch.repeated_ranges
        assert ranges(found["out_of_order"], key) == epoch.out_of_order_ranges
    assert sum(row["repeated"] for row in found["repeated"]) == found["totals"]["repeated"]
    looks: dict[Any, set[Any]] = {}
    for one, value in contents:
        looks.setdefault(one.identity, set()).add((one.topic, value))
    differ = {identity for identity, several in looks.items() if identity and len(several) > 1}
    told = {
        (p, e, s)
        for p, e in wanted
        for first, last in ranges(found["conflicts"], (p, e))
        for s in range(first, last + 1)
    }
    assert told == differ
    assert found["totals"]["conflicts"] == len(differ)


def test_more_repeats_than_are_kept_at_a_time_are_compared_in_several_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_COMPARED_AT_A_TIME", 10)
    contents = [(Stored("one", 0, 0, (P, 1, sequence)), b"a") for sequence in range(1, 101)] * 2
    contents += [(Stored("one", 0, 0, (P, 1, sequence)), b"b") for sequence in (1, 50, 100)]
    log = Log(contents)
    found = audited(log)
    assert ranges(found["conflicts"], (P, 1)) == [(1, 1), (50, 50), (100, 100)]
    assert log.readings == 1 + 10


def test_memory_is_that_of_holes_and_not_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million ids in a row cost what one page costs; as many epochs do not fit, and the error says what to do."""
    monkeypatch.setattr(ids, "MEMORY_MOST", 60_000)
    store = ids.Ids()
    epoch = store.epoch((P, 1))
    for sequence in range(1, 1_000_001):
        store.set(epoch, sequence, ahead=True)
    assert list(epoch.missing_ranges(1, 1_000_002)) == [(1_000_001, 1_000_002)]

    def many_epochs() -> None:
        for number in range(1, 100):
            store.set(store.epoch((Q, number)), 1, ahead=True)

    with pytest.raises(ConfigError, match="audit them with --engine spark"):
        many_epochs()
