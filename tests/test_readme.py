"""What the README says of trouble is what the code says, and what it advises works."""

import re
from pathlib import Path

import pytest

import aiorecover.errors
from aiorecover import RecoverableProducer
from aiorecover.testing import MemoryDisk, MockCluster

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")

QUICK = {"slot_bytes": 64 * 1024, "retry_backoff_ms": 10}


def trouble() -> list[tuple[str, str]]:
    """What is quoted in the first column of the table of trouble: with its kind, which the words before it tell."""
    _, _, section = README.partition("## When something is wrong\n")
    table = section.partition("\n## ")[0]
    first = [row.split(" | ")[0] for row in table.splitlines() if row.startswith("| ")][1:]
    return [(kind, quoted) for cell in first for kind, quoted in re.findall(r"(state )?`([^`]+)`", cell)]


def spoken() -> str:
    """All the package's text; messages that stand in several literals are put together."""
    sources = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "aiorecover").rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))


@pytest.mark.parametrize(("kind", "quoted"), trouble())
def test_what_the_readme_quotes_is_said_by_the_code(kind: str, quoted: str) -> None:
    if kind:
        assert f"``{quoted}``" in (RecoverableProducer.state.__doc__ or "")
    elif " " in quoted:
        assert quoted in spoken()
    else:
        assert quoted in aiorecover.errors.__all__


def test_every_file_that_the_readme_names_is_there() -> None:
    named = set(re.findall(r"`((?:aiorecover|examples|benchmarks|tests)/[\w./]*)`", README))
    assert {"aiorecover/producer.py", "benchmarks/README.md", "examples/"} <= named
    assert [name for name in sorted(named) if not (REPOSITORY / name).exists()] == []


@pytest.mark.asyncio
async def test_a_number_that_nobody_takes_any_more_is_delivered_by_its_name() -> None:
    disk = MemoryDisk()
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        servers = cluster.bootstrap_servers
        cluster.broker_down()
        first = RecoverableProducer(disk, bootstrap_servers=servers, **QUICK)
        second = RecoverableProducer(disk, bootstrap_servers=servers, **QUICK)
        for producer in (first, second):
            await producer.start()
            await producer.publish("orders", b"one")
        assert [await producer.stop(timeout_ms=0) for producer in (first, second)] == [1, 1]
        cluster.broker_up()
        async with RecoverableProducer(disk, bootstrap_servers=servers, instance="1", **QUICK) as third:
            await third.flush(timeout_ms=20_000)
            assert third.producer_id[:7] == second.producer_id[:7] != first.producer_id[:7]
            assert third.statistics().delivered == 1


@pytest.mark.asyncio
async def test_a_directory_that_was_moved_away_makes_room_for_a_new_one(tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    (wal / "0").mkdir(parents=True)
    for name in ("ring", "checkpoint"):
        (wal / "0" / name).write_bytes(b"junk" * 50_000)
    producer = RecoverableProducer(wal, bootstrap_servers="127.0.0.1:1", **QUICK)
    with pytest.raises(aiorecover.errors.WalCorruptError, match="move the directory away and keep it"):
        await producer.start()
    (wal / "0").rename(tmp_path / "kept")
    async with RecoverableProducer(wal, bootstrap_servers="127.0.0.1:1", stop_timeout_ms=0, **QUICK) as producer:
        await producer.publish("orders", b"one")
    assert (tmp_path / "kept" / "ring").read_bytes() == b"junk" * 50_000
