"""Rings as data frames. All but one test read without Spark: what it calls in its workers is plain Python."""

import asyncio
import errno
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import pyspark_aiorecover
from aiorecover import RecoverableProducer, record
from aiorecover.cli import inspection
from aiorecover.delivery import refusal
from aiorecover.errors import ConfigError, WalIOError
from aiorecover.spark import audit, read_topics, source
from aiorecover.spark.ring_rows import _BATCH_ROWS, ARROW_SCHEMA
from aiorecover.wal import format as fmt
from aiorecover.wal.checkpoint import COPY_BYTES, Checkpoint
from aiorecover.wal.directory import CHECKPOINT_LOST, Directory, Options
from aiorecover.wal.losses import in_words
from aiorecover.wal.moved import NO_PARTITION, pack_moved
from aiorecover.wal.moving import Move
from aiorecover.wal.opening import open_directory
from aiorecover.wal.reading import Reader
from aiorecover.wal.storage import ForeignFile
from aiorecover.wal.view import open_view
from tests.support.cluster import Cluster, TopicFactory
from tests.wal.rig import read, take

SLOT = 16 * 1024
NOBODY = "127.0.0.1:1"
Row = dict[str, Any]


def stored(wal_dir: Path, count: int, *, size: int = 100) -> Directory:
    directory = open_directory(Options(wal_dir, SLOT, 64 * SLOT, 0))
    append(directory, range(1, count + 1), size=size)
    return directory


def append(directory: Directory, numbers: range, *, size: int = 100) -> None:
    for number in numbers:
        payload = encoded(number, size)
        directory.ring.append(payload, payload)


def encoded(number: int, size: int = 100) -> bytes:
    value = b"%d/" % number + bytes(size)
    return record.encode(("orders", b"key %d" % number, value, None, 1_700_000_000_000, [("h", b"\xff")], 1, None))


def reader_of(path: Path, **options: str) -> source.RingReader:
    return source.RingReader({"path": str(path), **options}, source.SCHEMA)


def rows_of(path: Path, **options: str) -> list[Row]:
    reader = reader_of(path, **options)
    return [row for part in reader.partitions() for row in rows_in(reader, part)]


def rows_in(reader: source.RingReader, part: Any) -> list[Row]:
    carried = pickle.loads(pickle.dumps(part))  # noqa: S301 - as Spark carries it to an executor
    return [row for batch in reader.read(carried) for row in batch.to_pylist()]


def sequences(rows: list[Row], state: str = "waiting") -> list[int]:
    return [row["sequence"] for row in rows if row["state"] == state]


def slot_header(directory: Directory, index: int) -> list[tuple[Path, int]]:
    """Where both copies of a slot's header stand."""
    ring = directory.path / "ring"
    return [(ring, index * SLOT), (ring, (index + 1) * SLOT - fmt.RESERVED)]


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


# -- records -----------------------------------------------------------------------------------------------------------


def test_every_record_that_waits_is_a_row_as_it_would_stand_in_kafka(tmp_path: Path) -> None:
    directory = stored(tmp_path, 500)
    live = rows_of(tmp_path)
    assert len(reader_of(tmp_path).partitions()) > 4, "a partition for each slot, and one for the retry ring"
    assert sequences(live) == list(range(1, 501))
    first = live[0]
    assert first.pop("timestamp").timestamp() == 1_700_000_000
    identity = f"{directory.producer_id}/1/1".encode()
    assert first == {
        "directory": str(tmp_path / "0"),
        "ring": "ring",
        "state": "waiting",
        "producer_id": directory.producer_id,
        "epoch": 1,
        "sequence": 1,
        "topic": "orders",
        "partition": None,
        "key": b"key 1",
        "value": b"1/" + bytes(100),
        "headers": [{"key": "h", "value": b"\xff"}, {"key": "aiorecover-id", "value": identity}],
        "slot": 1,
        "file_offset": fmt.FIRST_FRAME,
        "error": None,
    }
    directory.close()
    assert rows_of(tmp_path / "0")[1:] == live[1:], "left behind, and one instance by its own path"


def test_settled_records_are_rows_only_if_they_are_asked_for(tmp_path: Path) -> None:
    directory = stored(tmp_path, 100)
    reader = Reader(directory.ring, bytes)
    for slot, place, _, _ in take(reader, 40):
        directory.ring.settle(slot, [place])
    reader.close()
    assert sequences(rows_of(tmp_path)) == list(range(41, 101))
    everything = rows_of(tmp_path, settled="TRUE")
    assert sequences(everything, "settled") == list(range(1, 41))
    assert sequences(everything) == list(range(41, 101))
    directory.close()


def test_the_other_rings_show_the_ids_that_their_records_were_accepted_with(tmp_path: Path) -> None:
    directory = stored(tmp_path, 3)
    why = refusal.Refusal(error="MessageSizeTooLargeError", message="too large")
    letter = refusal.encode(refusal.letter_of(encoded(7), why, owed=False))
    directory.dead.append(pack_moved(fmt.position(1, 2), 5, 4, letter), None)
    directory.dead.append(pack_moved(fmt.position(1, 3), 0, NO_PARTITION, b"nonsense"), None)
    letters = rows_of(tmp_path, rings="dead")
    assert [(row["epoch"], row["sequence"], row["partition"], row["topic"]) for row in letters] == [
        (1, 2, 4, "orders"),
        (1, 3, None, None),
    ]
    assert letters[0]["error"] == "MessageSizeTooLargeError: too large"
    accepted = fmt.producer_text(fmt.with_nonce(directory.checkpoint.producer_id, 5))  # by another opening
    assert letters[0]["producer_id"] == accepted != directory.producer_id
    assert letters[0]["headers"][-1]["value"] == f"{accepted}/1/2".encode()
    assert letters[1]["error"].startswith("the record cannot be decoded")
    assert [row["ring"] for row in rows_of(tmp_path)] == ["ring"] * 3, "a dead letter does not wait"
    directory.close()


def test_the_columns_of_arrow_are_those_of_spark() -> None:
    assert to_arrow_schema(source.SCHEMA).equals(ARROW_SCHEMA)


def test_large_backlogs_come_in_batches_of_bounded_size(tmp_path: Path) -> None:
    directory = open_directory(Options(tmp_path, 1 << 22, 8 << 22, 0))
    append(directory, range(1, 2 * _BATCH_ROWS + 2), size=1)
    reader = reader_of(tmp_path)
    batches = [batch.num_rows for part in reader.partitions() for batch in reader.read(part)]
    assert batches == [_BATCH_ROWS, _BATCH_ROWS, 1]
    directory.close()


def thin_out(directory: Directory) -> None:
    """All but each seventh record of the oldest slot are settled."""
    oldest, reader = directory.ring.live[0], Reader(directory.ring, bytes)
    for number, (slot, place, _, _) in enumerate(read(reader)):
        if slot is oldest and number % 7:
            directory.ring.settle(slot, [place])
    reader.close()


def move_oldest(directory: Directory) -> Checkpoint:
    """Move what waits in the oldest slot; the checkpoint that makes it so."""
    oldest = directory.ring.live[0]
    moving = Move(directory.ring, directory.retry, oldest, lambda _: 5)
    directory.copies_from = moving.copies_from
    while not moving.step(10):
        pass
    captured = directory.next_checkpoint(moved=oldest.last_position)
    directory.write_checkpoint(captured)
    directory.copies_from = None
    moving.finish()
    return captured


def test_what_is_moved_between_listing_and_reading_is_found_where_it_was_moved_to(tmp_path: Path) -> None:
    directory = stored(tmp_path, 300)
    listed = reader_of(tmp_path, rings="ring")
    parts = list(listed.partitions())
    oldest = directory.ring.live[0]
    thin_out(directory)
    kept = sequences(rows_of(tmp_path))
    captured = move_oldest(directory)
    assert directory.recycle(captured) == 1
    index = oldest.index
    number = 301
    while all(slot.index != index for slot in directory.ring.live):
        append(directory, range(number, number + 1))
        number += 1
    # The slot that was open has grown meanwhile.
    found = [row for part in parts for row in rows_in(listed, part) if row["sequence"] <= 300]
    assert sorted(sequences(found)) == kept
    assert {row["partition"] for row in found if row["ring"] == "retry"} == {5}
    # Listed afresh, it is there once, too.
    assert sorted(sequences(rows_of(tmp_path))) == [*kept, *range(301, number)]
    directory.close()


@pytest.mark.parametrize("left", [None, b"", b"x" * 4096], ids=["removed", "emptied", "damaged"])
def test_without_a_checkpoint_all_that_waits_is_there_and_what_was_moved_maybe_twice(
    tmp_path: Path, left: bytes | None
) -> None:
    directory = stored(tmp_path, 300)
    thin_out(directory)
    move_oldest(directory)
    kept = rows_of(tmp_path)
    directory.close()
    checkpoint = directory.path / "checkpoint"
    checkpoint.unlink()
    if left is not None:
        checkpoint.write_bytes(left)
    moved = [row["sequence"] for row in kept if row["ring"] == "retry"]
    assert moved
    assert sorted(sequences(rows_of(tmp_path))) == sorted([*sequences(kept), *moved])


# -- damage ------------------------------------------------------------------------------------------------------------


def test_damage_leaves_the_readable_rest_and_names_what_is_missing(tmp_path: Path) -> None:
    directory = stored(tmp_path, 500)
    places = {row["sequence"]: row["file_offset"] for row in rows_of(tmp_path)}
    slots = [slot.header.first_sequence for slot in directory.ring.live]
    directory.close()
    overwrite(directory.path / "ring", places[20] + 30, b"damage")
    for path, offset in slot_header(directory, 1):
        overwrite(path, offset, b"\xff" * 64)
    rows = rows_of(tmp_path)
    gone = [20, *range(slots[1], slots[2])]
    assert sequences(rows) == [number for number in range(1, 501) if number not in gone]
    assert sequences(rows, "missing") == [20, slots[1]]
    said = [row["error"] for row in rows if row["state"] == "missing"]
    known = {row["producer_id"] for row in rows if row["state"] != "unreadable"}
    assert known == {directory.producer_id}
    assert said == [
        "damage took away records epoch=1 sequences=20-20",
        f"damage took away records epoch=1 sequences={slots[1]}-{slots[2] - 1}",
    ]
    (unreadable,) = [row for row in rows if row["state"] == "unreadable"]
    assert "nothing of this slot can be read" in unreadable["error"]


def test_an_oldest_slot_that_is_gone_is_missing_from_the_beginning_of_its_epoch(tmp_path: Path) -> None:
    directory = stored(tmp_path, 300)
    second = directory.ring.live[1].header.first_sequence
    directory.close()
    for path, offset in slot_header(directory, 0):
        overwrite(path, offset, b"\xff" * 64)
    rows = rows_of(tmp_path, rings="ring")
    assert sequences(rows) == list(range(second, 301))
    assert [row["error"] for row in rows if row["state"] == "missing"] == [
        f"damage took away records epoch=1 sequences=1-{second - 1}"
    ]


def test_an_instance_of_which_nothing_can_be_read_is_a_row_beside_those_of_the_others(tmp_path: Path) -> None:
    first, second = (open_directory(Options(tmp_path, SLOT, 64 * SLOT, 0)) for _ in range(2))
    append(first, range(1, 4))
    append(second, range(1, 4))
    for directory in (first, second):
        directory.close()
    (first.path / "ring").write_bytes(b"x" * SLOT)
    (first.path / "checkpoint").write_bytes(b"x" * 4096)
    rows = rows_of(tmp_path)
    assert [(Path(row["directory"]).name, row["state"]) for row in rows] == [
        ("0", "unreadable"),
        *[("1", "waiting")] * 3,
    ]
    assert "restore the files from a copy" in rows[0]["error"]


def test_where_the_main_ring_cannot_be_read_the_other_two_are(tmp_path: Path) -> None:
    directory = filled(tmp_path / "wal")
    stranger = stored(tmp_path / "stranger", 300)
    stranger.close()
    shutil.copy(stranger.path / "ring", directory.path / "ring")
    wanted = rows_of(tmp_path / "wal", rings="retry,dead")
    assert sequences(wanted) == [1, 2, 3, 4] * 2
    unreadable, *others = rows_of(tmp_path / "wal", rings="ring,retry,dead")
    assert (unreadable["state"], unreadable["ring"]) == ("unreadable", None)
    assert "mixes files of several producers" in unreadable["error"]
    assert [(row["ring"], row["sequence"]) for row in others] == [
        *(("retry", number) for number in range(1, 5)),
        *(("dead", number) for number in range(1, 5)),
    ]
    assert [row for row in wanted if row["state"] == "waiting"] == others


# -- what is gone ------------------------------------------------------------------------------------------------------


def filled(wal_dir: Path) -> Directory:
    """Two epochs with records in the ring, and some in each of the other two; left by a process that died."""
    before = stored(wal_dir, 200)
    before.write_checkpoint(before.next_checkpoint())
    before.close()
    directory = stored(wal_dir, 300)
    for ring in (directory.retry, directory.dead):
        for number in range(1, 5):
            ring.append(pack_moved(fmt.position(1, number), 0, NO_PARTITION, encoded(number)), None)
    directory.write_checkpoint(directory.next_checkpoint())
    directory.files.close()
    return directory


def harm(path: Path, how: str) -> None:
    size = path.stat().st_size
    if how == "removed":
        path.unlink()
    elif how == "cut":
        os.truncate(path, 200)
    else:
        path.write_bytes(bytes(size if how == "zeroed" else 0))


def told_by_inspect(path: Path, *rings: str) -> list[str]:
    """What it says of records that are missing, as far as the data source says it in the same words."""
    (one,) = inspection.inspect(path, 0)
    damages = [
        (ring["ring"], dict(damage)) for ring in one["rings"] if ring["ring"] in rings for damage in ring["damage"]
    ]
    for ring, damage in damages:
        del damage["slot"], damage["file_offset"]
        if ring == "ring":
            damage["sequences"] = f"{damage.pop('first')}-{damage.pop('last')}"
    return [in_words(damage) for _, damage in damages] + ([one["error"]] if one["error"] else [])


def told_in_rows(rows: list[Row]) -> list[str]:
    return [row["error"].removeprefix("damage took away records ") for row in rows if row["state"] == "missing"]


HARMS = ["removed", "emptied", "zeroed", "cut"]


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("ring", ["ring", "retry", "dead"])
def test_of_a_file_that_is_gone_what_it_held_is_missing_as_inspect_has_it(tmp_path: Path, ring: str, how: str) -> None:
    directory = filled(tmp_path)
    everything = rows_of(tmp_path, rings="ring,retry,dead")
    harm(directory.path / ring, how)
    rows = rows_of(tmp_path, rings="ring,retry,dead")
    told = told_in_rows(rows)
    assert sorted(told) == sorted(told_by_inspect(tmp_path, "ring", "retry", "dead"))
    assert told
    left = [row for row in everything if row["ring"] != ring]
    assert [row for row in rows if row["state"] == "waiting" and row["ring"] != ring] == left
    if ring == "ring" and how != "cut":
        missing = [row for row in rows if row["sequence"] is not None and row["state"] == "missing"]
        assert [(row["epoch"], row["sequence"]) for row in missing] == [(1, 1), (2, 1)]
        accepted = {row["epoch"]: row["producer_id"] for row in everything if row["ring"] == "ring"}
        assert {row["epoch"]: row["producer_id"] for row in missing} == accepted
    others = [row for row in rows_of(tmp_path, rings="dead" if ring != "dead" else "ring") if row["state"] == "missing"]
    assert others == [], "what was not asked for is not spoken of"


@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("ring", ["ring", "retry", "dead"])
def test_what_nothing_names_is_said_to_be_in_doubt_as_inspect_has_it(tmp_path: Path, ring: str, copy: int) -> None:
    directory = filled(tmp_path)
    harm(directory.path / ring, "zeroed")
    overwrite(directory.path / "checkpoint", copy * COPY_BYTES + 40, b"damage")
    told = told_in_rows(rows_of(tmp_path, rings=ring))
    assert sorted(told) == sorted(told_by_inspect(tmp_path, ring))
    assert any(f"rings={ring}" in one for one in told)


def test_without_a_checkpoint_it_is_said_that_nothing_tells_what_is_missing(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    (directory.path / "checkpoint").unlink()
    rows = rows_of(tmp_path)
    assert [row["error"] for row in rows if row["state"] == "missing"] == [CHECKPOINT_LOST]


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_epoch_of_which_no_slot_is_left_is_missing_as_inspect_has_it(tmp_path: Path, epoch: int) -> None:
    directory = filled(tmp_path)
    with open_view(directory.path) as view:
        slots = [slot.index for slot in view.slots() if slot.epoch == epoch]
    for index in slots:
        overwrite(directory.path / "ring", index * SLOT, bytes(SLOT))
    told = told_in_rows(rows_of(tmp_path, rings="ring"))
    assert told == [f"epoch={epoch} sequences=1-{200 if epoch == 1 else 300}"] == told_by_inspect(tmp_path, "ring")


def test_slots_that_are_gone_from_the_end_of_the_last_epoch_are_missing_as_inspect_has_it(tmp_path: Path) -> None:
    directory = filled(tmp_path)
    with open_view(directory.path) as view:
        first, *others = [slot for slot in view.slots() if slot.epoch == 2]
    for slot in others:
        overwrite(directory.path / "ring", slot.index * SLOT, bytes(SLOT))
    told = told_in_rows(rows_of(tmp_path, rings="ring"))
    assert told == [f"epoch=2 sequences={(first.last_sequence or 0) + 1}-300"] == told_by_inspect(tmp_path, "ring")


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("ring", ["ring", "retry", "dead"])
def test_a_file_that_goes_between_listing_and_reading_is_missing_too(tmp_path: Path, ring: str, how: str) -> None:
    directory = filled(tmp_path)
    reader = reader_of(tmp_path, rings=ring)
    parts = list(reader.partitions())
    harm(directory.path / ring, how)
    found = [row for part in parts for row in rows_in(reader, part)]
    said = [one.removeprefix("damage took away records ") for one in told_in_rows(found)]
    if ring != "ring":
        assert said == [one for one in told_by_inspect(tmp_path, ring) if "records" in one or "letters" in one]
        return
    missing = [row for row in found if row["state"] == "missing"]
    ranges = [tuple(map(int, re.findall(r"\d+", row["error"]))) for row in missing]
    named = {(epoch, sequence) for epoch, first, last in ranges for sequence in range(first, last + 1)}
    assert named == {(epoch, sequence) for epoch, last in ((1, 200), (2, 300)) for sequence in range(1, last + 1)}
    assert sum(last - first + 1 for _, first, last in ranges) == len(named), "once each"


def test_a_slot_of_which_no_flush_tells_how_much_it_held_is_not_gone_in_silence(tmp_path: Path) -> None:
    directory = stored(tmp_path, 10)
    reader = reader_of(tmp_path, rings="ring")
    parts = list(reader.partitions())
    directory.files.close()
    (directory.path / "ring").unlink()
    (row,) = [row for part in parts for row in rows_in(reader, part)]
    assert (row["state"], row["sequence"]) == ("missing", None)
    assert row["error"].startswith("this slot is gone since the slots were listed, and nothing tells")


def test_a_directory_that_goes_between_listing_and_reading_is_one_sentence(tmp_path: Path) -> None:
    directory = filled(tmp_path / "wal")
    reader = reader_of(tmp_path / "wal", rings="ring,dead")
    parts = list(reader.partitions())
    shutil.move(directory.path, tmp_path / "away")
    for part in (parts[0], parts[-1]):
        with pytest.raises(ConfigError, match="the directory is not here: it must stand at the same place on every ex"):
            rows_in(reader, part)
    with pytest.raises(ConfigError, match="nothing of aiorecover is here: name a wal_dir"):
        reader.partitions()


def test_a_slot_that_cannot_be_read_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = filled(tmp_path)
    bad, read = directory.ring.live[1].index, ForeignFile.read_into

    def refuse(file: ForeignFile, buffer: memoryview, offset: int) -> int:
        if offset // SLOT == bad and file.path.name == "ring":
            raise WalIOError(errno.EIO, "a sector is damaged", str(file.path))
        return read(file, buffer, offset)

    reader = reader_of(tmp_path, rings="ring")
    parts = list(reader.partitions())
    monkeypatch.setattr(ForeignFile, "read_into", refuse)
    rows = [row for part in parts for row in rows_in(reader, part)]
    said = [row["error"] for row in rows if row["state"] == "unreadable"]
    assert said == [f"[Errno 5] a sector is damaged: '{directory.path / 'ring'}'"]
    assert len(sequences(rows)) > 300


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "name one wal_dir"),
        ({"path": "."}, "nothing of aiorecover is here: name a wal_dir"),
        ({"path": "not-there"}, "the directory cannot be read, name a wal_dir"),
        ({"path": ".", "rings": "ring,x"}, "rings are ring, retry and dead"),
        ({"path": ".", "settled": "yes"}, "settled is true or false"),
        ({"paths": '["/a", "/b"]'}, "name one wal_dir"),
        (
            {"path": "file:/x", "location": "file:/x", "owner": "root", "provider": "aiorecover"},
            "CREATE TEMPORARY VIEW",
        ),
        ({"path": ".", "ring": "dead"}, r"unknown option: did you mean rings\? option=ring"),
        ({"path": ".", "setled": "true"}, r"did you mean settled\?"),
        ({"wal_dir": "."}, "unknown option: leave it out, there are path, rings, settled option=wal_dir"),
    ],
)
def test_options_that_are_wrong_are_refused_with_the_remedy(
    options: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        source.check(options)


def test_columns_of_the_users_own_are_refused(tmp_path: Path) -> None:
    stored(tmp_path, 1).close()
    with pytest.raises(ConfigError, match=r"leave out .schema\(...\)"):
        pyspark_aiorecover.DefaultSource({"path": str(tmp_path)}).reader(StructType())


# -- Spark -------------------------------------------------------------------------------------------------------------


def test_spark_knows_the_format_by_itself_and_publishes_what_a_producer_has_left(
    spark: SparkSession, kafka: Cluster, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(kafka, partitions=3)

    async def publish_and_read() -> tuple[list[Any], str]:
        async with RecoverableProducer(
            tmp_path, bootstrap_servers=NOBODY, slot_bytes=1 << 16, stop_timeout_ms=0
        ) as producer:
            for number in range(2_000):
                receipt = await producer.publish("orders", {"number": number}, key=str(number), partition=number % 3)
            found = await asyncio.to_thread(collected)
        return found, receipt.record_id

    def collected() -> list[Any]:
        df = spark.read.format("aiorecover").load(str(tmp_path))
        assert df.rdd.getNumPartitions() > 2
        return df.where("state = 'waiting'").select("sequence", "partition", "value", "key", "headers").collect()

    rows, last = asyncio.run(publish_and_read())
    assert [row["sequence"] for row in rows] == list(range(1, 2_001))
    assert all(json.loads(row["value"]) == {"number": row["sequence"] - 1} for row in rows)
    assert all(row["partition"] == int(row["key"]) % 3 for row in rows)
    assert rows[-1]["headers"][-1]["value"].decode() == last
    # Its machine is gone, so to say: what it has left is published, and nothing is missing from the topic.
    left = spark.read.format("aiorecover").load(str(tmp_path)).where("state = 'waiting'")
    left = left.select("partition", "key", "value", "headers").withColumn("topic", lit(name))
    left.write.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers).save()
    with audit(read_topics(spark, [name], kafka.bootstrap_servers)) as found:
        totals = found.totals.collect()[0]
        assert (totals["found"], totals["missing"], totals["repeated"]) == (2_000, 0, 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PySparkException, match="nothing of aiorecover is here"):
        spark.read.format("aiorecover").load(str(tmp_path / "empty"))
