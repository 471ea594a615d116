"""The memory of a consumer that drops repeats."""

import sys
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorecover import ConfigError, Deduplicator
from aiorecover.deduplicator import LEAST_PAGES, PAGE
from aiorecover.record_id import SEQUENCE_MAX

PRODUCERS = ("abcdefghij234", "abcdefghij235")


def record_id(producer: str, epoch: int, sequence: int) -> str:
    return f"{producer}/{epoch}/{sequence}"


ids = st.builds(
    record_id,
    st.sampled_from(PRODUCERS),
    st.integers(1, 3),
    st.one_of(
        st.integers(1, 40),
        st.integers(PAGE - 3, PAGE + 3),
        st.integers(SEQUENCE_MAX - 3, SEQUENCE_MAX),
    ),
)


def run(first: int, last: int, epoch: int = 1) -> list[str]:
    return [record_id(PRODUCERS[0], epoch, sequence) for sequence in range(first, last + 1)]


@given(st.lists(ids, max_size=200))
def test_each_record_is_new_once_in_whatever_order_they_come(records: list[str]) -> None:
    deduplicator, had = Deduplicator(), set[str]()
    for record in records:
        assert (record in deduplicator) == (record in had)
        assert deduplicator.add(record) == (record not in had)
        had.add(record)
        assert record in deduplicator


@given(st.lists(ids, max_size=100), st.lists(ids, max_size=100), st.integers(0, 3))
def test_one_made_from_what_was_stored_goes_on_as_if_nothing_had_been(
    before: list[str], after: list[str], commits: int
) -> None:
    one, table = Deduplicator(), dict[str, bytes]()
    for number, record in enumerate(before):
        one.add(record)
        if commits and number % commits == 0:
            store(table, one)
    store(table, one)
    for other in (Deduplicator.from_bytes(one.to_bytes()), Deduplicator.from_pages(table)):
        twin = Deduplicator.from_bytes(one.to_bytes())
        assert other.to_bytes() == twin.to_bytes() == one.to_bytes()
        assert [other.add(record) for record in after] == [twin.add(record) for record in after]
    assert [record for record in before if record not in one] == []


def store(table: dict[str, bytes], one: Deduplicator) -> None:
    for name, stored in one.take_changes().items():
        if stored is None:
            table.pop(name, None)
        else:
            table[name] = stored


def test_beyond_max_pages_the_oldest_page_is_forgotten_and_its_records_count_as_new() -> None:
    deduplicator = Deduplicator(max_pages=LEAST_PAGES)
    firsts = [record_id(PRODUCERS[0], epoch, 1) for epoch in range(1, LEAST_PAGES + 4)]
    for record in firsts:
        deduplicator.add(record)
    assert (len(deduplicator), deduplicator.forgotten) == (LEAST_PAGES, 3)
    assert [record in deduplicator for record in firsts] == [False] * 3 + [True] * LEAST_PAGES
    assert None not in deduplicator.take_changes().values(), "what was never told of is not to be deleted"
    assert deduplicator.add(firsts[0])
    assert [name for name, bits in deduplicator.take_changes().items() if bits is None] == [f"{PRODUCERS[0]}/4/0"]


def test_its_memory_is_bounded_by_its_pages() -> None:
    deduplicator = Deduplicator(max_pages=LEAST_PAGES)
    for number in range(3 * LEAST_PAGES):
        first = number * PAGE
        for record in run(max(1, first), first + PAGE - 1)[:: 5 if number % 2 else 70]:
            deduplicator.add(record)
    size = sum(sys.getsizeof(key) + sys.getsizeof(bits) for key, bits in deduplicator._pages.items())
    assert len(deduplicator) == LEAST_PAGES
    assert size < LEAST_PAGES * 700
    assert len(deduplicator.to_bytes()) < LEAST_PAGES * 600


def test_a_record_without_an_id_is_new_each_time() -> None:
    deduplicator = Deduplicator()
    assert deduplicator.add(None)
    assert deduplicator.add(None)
    assert len(deduplicator) == 0


TOPICS = "orders", "orders.audited", "a"


@given(st.lists(st.tuples(ids, st.sampled_from([None, *TOPICS])), max_size=200))
def test_a_copy_in_another_topic_is_new_there_also_after_the_state_was_stored(
    records: list[tuple[str, str | None]],
) -> None:
    one, had, table = Deduplicator(), set[tuple[str, str | None]](), dict[str, bytes]()
    for number, (record, topic) in enumerate(records):
        assert one.add(record, topic) == ((record, topic) not in had)
        had.add((record, topic))
        if number % 7 == 0:
            store(table, one)
            one = Deduplicator.from_pages(table) if number % 2 else Deduplicator.from_bytes(one.to_bytes())
    for record, topic in had:
        assert (record if topic is None else (record, topic)) in one


@pytest.mark.parametrize("topic", ["", "a/b", "x" * 250, b"orders", 7])
def test_a_wrong_topic_is_refused(topic: object) -> None:
    with pytest.raises(ConfigError, match=r"as record\.topic gives it"):
        Deduplicator().add(run(1, 1)[0], topic)  # type: ignore[arg-type]


def test_each_change_is_taken_once() -> None:
    deduplicator = Deduplicator()
    deduplicator.add(run(1, 1)[0])
    assert list(deduplicator.take_changes()) == [f"{PRODUCERS[0]}/1/0"]
    assert deduplicator.take_changes() == {}
    deduplicator.add(run(1, 1)[0])
    assert deduplicator.take_changes() == {}


@pytest.mark.parametrize("text", ["", "orders", f"{PRODUCERS[0]}/1/0", b"bytes", 7])
def test_a_wrong_record_id_is_refused_and_the_error_says_where_ids_come_from(text: object) -> None:
    asks: list[Callable[[Any], bool]] = [Deduplicator().add, Deduplicator().__contains__]
    for ask in asks:
        with pytest.raises(ConfigError, match=r"record_id_of\(record.headers\)"):
            ask(text)


@pytest.mark.parametrize("most", [0, LEAST_PAGES - 1, -1, True, "16", 16.0, None])
def test_a_bound_that_is_none_is_refused(most: object) -> None:
    with pytest.raises(ConfigError, match="max_pages must be a whole number of 16 or more"):
        Deduplicator(max_pages=most)  # type: ignore[arg-type]


def sealed(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (None, "not what Deduplicator.to_bytes gave"),
        ("text", "not what Deduplicator.to_bytes gave"),
        (b"", "not what Deduplicator.to_bytes gave"),
        (b"abc", "not what Deduplicator.to_bytes gave"),
        (sealed(b""), "not what Deduplicator.to_bytes gave"),
        (sealed(msgspec.msgpack.encode([1, [["x", 7]]])), "not what Deduplicator.to_bytes gave"),
        (sealed(msgspec.msgpack.encode([2, []])), "a newer aiorecover wrote this state"),
        (sealed(msgspec.msgpack.encode([1, [["x", b"\x01"]]])), "no page of a Deduplicator"),
        (sealed(msgspec.msgpack.encode([1, [[f"{PRODUCERS[0]}/1/-1", b"\x01"]]])), "no page of a Deduplicator"),
        (sealed(msgspec.msgpack.encode([1, [[f"{PRODUCERS[0]}/1/0", b"\x01" * 513]]])), "no page of a Deduplicator"),
        (sealed(msgspec.msgpack.encode([1, [[f"{PRODUCERS[0]}/1/0/", b"\x01"]]])), "no page of a Deduplicator"),
        (sealed(msgspec.msgpack.encode([1, [[f"{PRODUCERS[0]}/1/0/a/b", b"\x01"]]])), "no page of a Deduplicator"),
    ],
)
def test_a_wrong_state_is_refused(state: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Deduplicator.from_bytes(state)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_state_and_its_pages_may_be_any_bytes(kind: type[bytes]) -> None:
    one = Deduplicator()
    one.add(run(1, 1)[0])
    pages = {name: kind(bits) for name, bits in one.take_changes().items() if bits is not None}
    for other in (Deduplicator.from_bytes(kind(one.to_bytes())), Deduplicator.from_pages(pages)):
        assert other.to_bytes() == one.to_bytes()


@pytest.mark.parametrize(
    "pages",
    [
        {1: b"\x01"},
        {None: b"\x01"},
        {f"{PRODUCERS[0]}/1/0": "text"},
        {f"{PRODUCERS[0]}/1/0": None},
        {f"{PRODUCERS[0]}/1/0": 5},
        {f"{PRODUCERS[0]}/1/00": b"\x01"},
        {f"{PRODUCERS[0]}/1/{'9' * 5_000}": b"\x01"},
    ],
    ids=lambda pages: repr(pages)[:40],
)
def test_a_wrong_page_is_refused(pages: object) -> None:
    with pytest.raises(ConfigError, match="this is no page of a Deduplicator page="):
        Deduplicator.from_pages(pages)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="pages must be a mapping of names to bytes, as take_changes gave them"):
        Deduplicator.from_pages([pages])  # type: ignore[arg-type]


@given(st.data())
def test_a_state_with_one_flipped_bit_is_refused(data: st.DataObject) -> None:
    one = Deduplicator()
    for record in run(1, 50):
        one.add(record)
    state = bytearray(one.to_bytes())
    place = data.draw(st.integers(0, len(state) * 8 - 1))
    state[place // 8] ^= 1 << place % 8
    with pytest.raises(ConfigError):
        Deduplicator.from_bytes(bytes(state))
