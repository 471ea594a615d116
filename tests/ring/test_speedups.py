"""The writer in C stores what the one in Python stores, byte for byte, and fails as it does; it keeps nothing."""

import gc
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorecover.errors import EncodeError, RecoverError, WalFullError
from aiorecover.ring import writer
from aiorecover.ring.format import BatchState, Geometry
from aiorecover.ring.lane import VARINT_MOST, Cursor, note_room
from aiorecover.ring.records import NULL, TABLE, moved, timestamp_delta, varint, walk
from aiorecover.ring.ring import Limits
from aiorecover.ring.writer import Target
from tests.ring.conftest import functions_of
from tests.ring.rig import NOW_MS, SMALL, Boots, Rig

LIMITS = Limits(256 << 10, 0, 2048)
ROUNDS = 20  # between two looks at memory
WARM_UP = 60  # times so many, at the most
ERRORS = (RecoverError, ValueError, TypeError)


class Known(Boots):
    """An operating system that repeats itself."""

    number = 0
    full = False

    def random(self, size: int) -> bytes:
        self.number += 1
        return self.number.to_bytes(size, "little")

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0

    def allocate(self, fd: int, offset: int, size: int) -> None:
        if self.full:
            raise WalFullError("the disk is full")
        super().allocate(fd, offset, size)


class Publish(NamedTuple):
    topic: str
    key: Any
    value: Any  # a number: so many bytes
    shift: int
    headers: Any
    partition: int | None
    note: Any  # likewise
    times: int


class Rewrite(NamedTuple):
    partition: int
    shift: int  # ms that each record is later
    note: bytes | None
    missing: int  # bytes of room
    spoil: Callable[[bytes], bytes]


class Store(Rig):
    """A ring that one of the writers fills; the bytes in the file depend on the steps alone."""

    def __init__(self, path: Path, name: str, limits: Limits = LIMITS, geometry: Geometry = SMALL) -> None:
        self.path, self.known = path, Known()
        make, self.append_raw = functions_of(name)
        with patch.object(writer, "Writer", make):
            super().__init__(path, self.known, limits, geometry)
        assert type(self.writer) is make

    def _find(self, topic: str, key: Any, partition: int | None) -> Target:
        if isinstance(key, int):
            raise EncodeError("a key must be bytes")
        found = self.ring.lane(topic, partition or 0).published, NULL if key is None else varint(len(key)) + key
        if type(key) is not bytearray:
            self.writer.lanes.setdefault(topic, {})[key if partition is None else (key, partition)] = found
        return found

    def do(self, step: Any) -> object:
        """Take one step; what came of it, for comparison."""
        try:
            if isinstance(step, Publish):
                return self._publish(step)
            return self._rewrite(step) if isinstance(step, Rewrite) else getattr(self, f"_{step}")()
        except ERRORS as error:
            return type(error), "" if type(error) is TypeError else str(error)

    def _publish(self, step: Publish) -> list[Any]:
        outcome = []
        value, note = (bytes(one) if type(one) is int else one for one in (step.value, step.note))
        for number in range(step.times):
            timestamp = NOW_MS + step.shift + number // 4
            receipt = self.writer.append(step.topic, step.key, value, timestamp, step.headers, step.partition, note)
            outcome.append((receipt.sequence, receipt.index, repr(receipt.batch)))
        return outcome

    def _rewrite(self, step: Rewrite) -> object:
        lane = self.ring.lane("a", step.partition)
        if lane.published.index:
            lane.published.seal()
        parent = lane.head
        if parent is None:
            return None
        data = bytes(parent.read())
        records = [(data[span[0] : span[4]], timestamp_delta(data, span)) for span in walk(data)]
        need = sum(len(record) + VARINT_MOST + note_room(step.note) for record, _ in records) - step.missing
        child = lane.rewritten.open(parent.base, need, parent.first, parent.epoch, (parent.segment.ordinal, parent.at))
        try:
            for number, (record, delta) in enumerate(records):
                self.append_raw(lane.rewritten, step.spoil(record), delta + step.shift, step.note, number)
            lane.rewritten.seal()
            return child.latest
        finally:
            lane.rewritten.leave()
            if not child.done:
                self.ring.abandon(child)

    def _seal(self) -> None:
        self.seal()

    def _settle(self) -> None:
        for lane in list(self.ring.lanes.values()):
            if lane.head is not None:
                self.ring.finish(lane.head, BatchState.SETTLED)

    def _flush(self) -> None:
        self.flush()

    def _forget(self) -> None:
        self.writer.lanes.clear()

    def _full(self) -> None:
        self.known.full = not self.known.full

    def state(self) -> object:
        """Return the state that the next record depends on."""
        names = ("position", "limit", "index", "commit", "bias", "stamp", "prefix", "base", "latest", "free_from")
        cursors = [cursor for lane in self.ring.lanes.values() for cursor in (lane.published, lane.rewritten)]
        return [
            self.writer.next_sequence(),
            *([getattr(one, name) for name in names] for one in cursors),
        ]

    def bytes(self) -> bytes:
        return (self.path / "0" / "ring").read_bytes()


def compared(steps: list[Any], limits: Limits = LIMITS, geometry: Geometry = SMALL) -> None:
    """Both writers take these steps."""
    with (
        tempfile.TemporaryDirectory() as directory,
        Store(Path(directory, "python"), "Python", limits, geometry) as python,
        Store(Path(directory, "c"), "C", limits, geometry) as in_c,
    ):
        for step in steps:
            assert in_c.do(step) == python.do(step)
            assert in_c.state() == python.state()
        assert in_c.bytes() == python.bytes()


SIZES = [62, 63, 64, 65, 500, 1900, 2100, 8000, 8191, 8192, 9000, 33_000, 250_000]
VALUES = st.none() | st.binary(max_size=70) | st.sampled_from(SIZES) | st.just(0.5)
NAMES = st.text(max_size=5) | st.sampled_from(["aiorecover-id", "\ud800"])
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=5)), max_size=3)
BAD_HEADERS = st.sampled_from([{}, "text", [("name",)], [(5, b"")], [("name", 5)], 5])
KEYS = st.none() | st.binary(max_size=5) | st.binary(max_size=2).map(bytearray) | st.just(5) | st.just(bytes(70))
NOTES = st.none() | st.binary(max_size=70) | st.just(9000)
SHIFTS = st.integers(-20_000, 20_000) | st.just(1 << 40) | st.just(-NOW_MS)
PUBLISHED = st.builds(
    Publish,
    topic=st.sampled_from("ab"),
    key=KEYS,
    value=VALUES,
    shift=SHIFTS,
    headers=st.none() | HEADERS | BAD_HEADERS,
    partition=st.none() | st.integers(0, 2),
    note=NOTES,
    times=st.sampled_from([1, 2, 5, 120]),
)
# Usual records, so that what is rare meets batches and segments that are partly full.
USUAL = st.builds(
    Publish,
    topic=st.just("a"),
    key=st.sampled_from([None, b"key"]),
    value=st.integers(0, 200),
    shift=st.integers(0, 1000),
    headers=st.none(),
    partition=st.none() | st.integers(0, 1),
    note=st.none() | st.just(b"note"),
    times=st.integers(1, 60),
)
SPOILT: list[Callable[[bytes], bytes]] = [
    lambda record: record[:-1],
    lambda record: record + b"\0",
    lambda record: b"\x80" + record,
    lambda record: record[:4],
    lambda _: b"",
    lambda record: record[:2] + b"\xff" * 11 + record[2:],
    lambda record: bytes([record[0] | 128, 0]) + record[1:],  # a number that is longer than it need be
    lambda record: moved(record, 0, 1 << 62),  # whole, though not of this millennium
]
REWRITTEN = st.builds(
    Rewrite,
    partition=st.integers(0, 1),
    shift=st.sampled_from([0, 1, -5, 1 << 30]),
    note=st.none() | st.just(b"why"),
    missing=st.just(0) | st.integers(1, 200) | st.just(5000),
    spoil=st.just(bytes) | st.sampled_from(SPOILT),
)
OTHERS = st.sampled_from(["seal", "settle", "flush", "forget", "full"])


@settings(max_examples=100)
@given(st.lists(USUAL | PUBLISHED | USUAL | REWRITTEN | OTHERS, max_size=25))
def test_both_writers_store_the_same_bytes_and_fail_alike(steps: list[Any]) -> None:
    compared(steps)


def test_sequences_grow_and_a_batch_ends_with_as_many_records_as_it_may_hold() -> None:
    many = Publish("a", None, b"", 0, None, None, None, TABLE + 5000)
    compared([many, "seal"], Limits(64 << 20, 0, 16 << 20), Geometry(4 << 20, 1 << 20, 2 << 20, 1 << 20))


def test_a_record_of_every_size_meets_the_end_of_its_batch() -> None:
    for note in (None, b"n"):
        steps: list[Any] = []
        for size in range(600):
            steps += [Publish("a", b"key", size, 0, None, 0, note, 3), "settle", *["flush"] * (size % 8 == 0)]
        compared(steps)


def test_a_rewritten_batch_is_as_large_as_its_records_or_that_is_said() -> None:
    steps: list[Any] = [Publish("a", b"key", 3000, 0, None, 0, None, 1)]
    for missing in range(50):
        steps += [Rewrite(0, 7, note, missing, bytes) for note in (None, b"why")] + ["flush"]
    compared([*steps, "settle"])


def test_the_module_in_c_is_what_runs_unless_it_is_turned_off() -> None:
    """CI fails here where it was not built."""
    code = "from aiorecover.ring.writer import *; print(LANGUAGE, Writer.__module__, append_raw.__module__)"
    said = {}
    for value in ("", "1"):
        environment = {**os.environ, "AIORECOVER_PURE_PYTHON": value}
        ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        said[value] = ran.stdout.split()
    assert said == {"": ["C", *["aiorecover._speedups"] * 2], "1": ["Python", *["aiorecover.ring.writer"] * 2]}


@pytest.mark.parametrize("delivery", [[], ["--delivery"]])
def test_without_the_module_in_c_every_rule_of_the_model_holds(delivery: list[str]) -> None:
    command = [sys.executable, "-m", "tests.model", "--seed", "3", "--count", "5000", *delivery]
    environment = {**os.environ, "AIORECOVER_PURE_PYTHON": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nothing found" in ran.stdout


@pytest.mark.parametrize("name", ["Python", "C"])
def test_a_mapping_that_was_closed_is_an_error_and_nothing_is_stored(tmp_path: Path, name: str) -> None:
    with Store(tmp_path, name) as store:
        store.publish(1)
        store.publish(2)
        region = store.ring.pool.regions[0]
        assert region.mapping is not None
        region.mapping.close()
        before = store.state()
        for _ in range(2):
            with pytest.raises(ValueError, match=r"closed|released"):
                store.publish(2)
        assert store.state() == before


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        ("position", -8),
        ("position", 1 << 40),
        ("commit", -1),
        ("commit", 1 << 40),
        ("index", "none"),
        ("prefix", None),
        ("prefix", bytes(12)),
        ("bias", 1 << 70),
        ("words", memoryview(bytes(1 << 20))),
    ],
)
def test_a_cursor_that_cannot_be_is_an_error(tmp_path: Path, slot: str, value: object) -> None:
    with Store(tmp_path, "C") as store:
        cursor = store.publish(1).batch.lane.published
        store.publish(1)
        good, before = getattr(cursor, slot), store.bytes()
        cursor.limit += 1 << 50
        with pytest.raises((TypeError, ValueError, IndexError, OverflowError, BufferError)):  # noqa: PT012 - either
            setattr(cursor, slot, value)
            store.publish(1)
        cursor.limit -= 1 << 50
        setattr(cursor, slot, good)
        assert store.bytes() == before
        store.publish(1)


def test_a_wrong_cursor_is_an_error(tmp_path: Path) -> None:
    with Store(tmp_path, "C") as store:
        cursor = store.ring.lane("a", 0).published
        for found in ((Cursor.__new__(Cursor), b"\1"), (object(), b"\1"), (cursor, 5), (), None):
            made = functions_of("C")[0]("id", 1, lambda *_, found=found: found)
            with pytest.raises((AttributeError, TypeError)):
                made.append("a", b"k", b"v", 1)


def test_nothing_is_kept_whatever_fails(tmp_path: Path) -> None:
    with Store(tmp_path, "C") as store:
        key, value, note, headers = b"the key", b"the value" * 7, b"the note", [("name", b"content")]
        plain = Publish("a", key, value, 0, headers, 0, note, 3)
        steps: list[Any] = [
            plain,
            plain._replace(headers=None, note=None),
            plain._replace(headers={}),
            plain._replace(headers=[("aiorecover-id", b"")]),
            plain._replace(key=5),
            plain._replace(key=bytearray(b"x")),
            plain._replace(value=0.5),
            plain._replace(value=250_000),
            plain._replace(note=0.5),
            *(Rewrite(0, 5, note, 0, spoil) for spoil in (bytes, *SPOILT)),
            Rewrite(0, 5, note, 6000, bytes),
            *("forget", "full", plain._replace(partition=9), "full", "seal", "settle", "flush", "settle", "flush"),
        ]
        watched: list[Any] = [
            key,
            value,
            note,
            headers,
            None,
            store.writer,
            *functions_of("C"),
            writer.Receipt,
            EncodeError,
        ]
        watched += [store.ring.lane("a", 0), store.ring.lane("a", 0).published, store.ring.lane("a", 0).rewritten]
        append_raw: Any = store.append_raw
        accept = accepting(store, 1000)
        read_only = memoryview(bytes(8))

        def work() -> None:
            for step in steps:
                store.do(step)
            store._settle()
            for wrong in ((), ("a", b"k", b"v"), tuple(range(8))):
                with suppress(TypeError):
                    store.writer.append(*wrong)
                with suppress(TypeError):
                    append_raw(*wrong)
                with suppress(TypeError):
                    functions_of("C")[0](*wrong)
            with suppress(AssertionError):
                append_raw(store.ring.lane("a", 0).rewritten, b"record", 0)
            store.do(plain)
            for given in (key, {"a": 5}, None, "text", 0.5, bytes(2000)):
                for others in (("a", given, key), ("a", given, None), ("a", given, 5), (5, given, key)):
                    with suppress(*ERRORS):
                        accept(*others, None, None, None, None, None, NOW_MS * 1_000_000)
            bad: list[tuple[Any, ...]] = [(), (1,) * 9, ("a", key, key, *[None] * 5, 1 << 70)]
            for wrong in bad:
                with suppress(TypeError, OverflowError):
                    accept(*wrong)
            cursor = store.ring.lane("a", 0).published
            good, cursor.words = cursor.words, read_only
            with suppress(BufferError):
                store.writer.append("a", key, value, NOW_MS, None, 0)
            cursor.words = good

        for _ in range(WARM_UP):  # the ring's own tables grow for a while, ever more slowly
            blocks, changes = measured(work, watched)
            assert max(map(abs, changes)) < ROUNDS, "references stay, or are given up twice"
            if blocks < ROUNDS:
                return
        raise AssertionError(f"blocks of memory stay in each round: {blocks=}")


def accepting(store: Store, fits: int) -> Any:
    """The twin of `Acceptor.store` that refuses what is rare."""

    def encode(_: str, value: object, *__: object) -> bytes:
        if isinstance(value, float):
            raise EncodeError("no form")
        return repr(value).encode()

    def otherwise(*_: object) -> None:
        raise EncodeError("rare")

    return writer.accepting(store.writer, encode, otherwise, fits, True, True, 7)


def measured(work: Callable[[], None], watched: list[Any]) -> tuple[int, list[int]]:
    """Return how many blocks of memory, and references to each object, so many rounds add."""
    gc.collect()
    blocks, references = sys.getallocatedblocks(), [sys.getrefcount(one) for one in watched]
    for _ in range(ROUNDS):
        work()
    gc.collect()
    changes = [sys.getrefcount(one) - before for one, before in zip(watched, references, strict=True)]
    return sys.getallocatedblocks() - blocks, changes


def test_a_writer_without_references_is_collected() -> None:
    class Finder:
        made: Any = None
        accept: Any = None

        def __call__(self, *_: object) -> Any:
            pass

    finder = Finder()
    finder.made = functions_of("C")[0]("id", 1, finder)
    finder.accept = writer.accepting(finder.made, finder, finder, 1000, True, True, 7)
    finder.made.lanes["topic"] = {b"key": finder}
    gone = weakref.ref(finder)
    del finder
    gc.collect()
    assert gone() is None
