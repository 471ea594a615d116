"""``aiorecover dead-letters``: list, show and export only look; requeue and purge need a directory without an owner."""

from __future__ import annotations

import json
import pathlib
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
import uvloop
from rich.table import Table

from aiorecover import DeadLetter, RecoverableProducer
from aiorecover.cli import inspection
from aiorecover.cli.drainage import free
from aiorecover.cli.endings import EndedError, Output, errors_only, print_json, reported
from aiorecover.cli.options import JSON, OPTION, PATH, SERVERS, producer_of, stored_options
from aiorecover.cli.records import Damage, about, context_in, stored, text_of, topic_of, without_bytes, write_lines
from aiorecover.errors import ConfigError, PermanentDeliveryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiorecover.ring.directory import Instance
    from aiorecover.ring.inspect import StoredRecord

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at the records that Kafka refused for good, and deal with them.")

ID = Annotated[str | None, typer.Argument(help="The id of one letter.")]
ALL = Annotated[bool, typer.Option("--all", help="All letters.")]
NOWHERE: Final = "127.0.0.1:1"  # no Kafka is there
NONE: Final = "dead letters: 0"
LIMIT_S = Annotated[float, typer.Option(min=0, help="Seconds that Kafka has to take them.")]


@app.command("list")
def list_letters(path: PATH, json_output: JSON = False) -> None:
    """List the letters, oldest first: id, topic, partition, and why.

    Exit status 0: done. 1: something is damaged, as stderr says, or cannot be read. 2: nothing of aiorecover is there.
    """
    damage = Damage()
    found = [about(record) for record in _letters(path, damage)]
    if json_output:
        print_json([without_bytes(one) for one in found])
        raise typer.Exit(damage.reported())
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("id", "topic", "partition", "why"):
        table.add_column(title, overflow="fold", no_wrap=title in {"id", "partition"})
    for one in found:
        why = text_of(str(one.get("dead_letter") or "").encode())
        table.add_row(one["id"], inspection.Name(one["topic"]), str(one["partition"]), why)
    console = Output()
    if found:
        console.print(table)
    console.print(f"dead letters: {len(found):,}")
    raise typer.Exit(damage.reported())


@app.command()
def show(path: PATH, record_id: Annotated[str, typer.Argument(help="The id of a letter.")]) -> None:
    """Show one letter as JSON, whole; what is not UTF-8 has a name that ends in _base64.

    Exit status 0: done. 1: something is damaged, as stderr says, or cannot be read. 2: there is no such letter, or
    nothing of aiorecover is there.
    """
    damage = Damage()
    for record in _letters(path, damage):
        if record.record_id == record_id:
            plain = without_bytes(about(record))
            sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
            raise typer.Exit(damage.reported())
    if status := damage.reported():
        raise EndedError(f"there is no such letter among those that can be read record_id={record_id!r}", status)
    raise ConfigError(f"there is no such letter: 'aiorecover dead-letters list' names them record_id={record_id!r}")


@app.command()
def export(path: PATH, output: Annotated[pathlib.Path, typer.Option("--output", "-o", help="A new file.")]) -> None:
    """Write the letters as JSON lines, bytes as base64, as `producer.dead_letters.export`; they stay where they are.

    Exit status 0: done. 1: something is damaged, as stderr says, or cannot be read, or the file is there or cannot be
    written. 2: nothing of aiorecover is there.
    """
    damage = Damage()
    write_lines(output, (msgspec.json.encode(_letter_of(record)) for record in _letters(path, damage)))
    raise typer.Exit(damage.reported())


@app.command()
def requeue(
    path: PATH,
    record_id: ID = None,
    every: ALL = False,
    bootstrap_servers: SERVERS = None,
    option: OPTION = None,
    timeout: LIMIT_S = 60.0,
    json_output: JSON = False,
) -> None:
    """Publish letters again, under new ids, and deliver all that waits. A live service does that itself.

    Exit status 0: it is in Kafka. 1: it is in the ring, or became dead letters again, or a directory has an owner, or
    cannot be read. 2: an option is wrong, there is no such letter, or nothing of aiorecover is there.
    """
    which = _which(record_id, every)

    async def publish_again() -> None:
        for one in found:
            async with producer_of(one.path, bootstrap_servers, option or (), stop_timeout_ms=0) as producer:
                count = await producer.dead_letters.requeue(which)
                report(
                    {"path": str(one.path), "published_again": count},
                    f"{one.path}: dead letters published again: {count:,}",
                )
                await producer.flush(int(timeout * 1000))
                if again := producer.statistics().dead_lettered:
                    refused = f"Kafka refused records again: 'aiorecover dead-letters list' says why records={again}"
                    raise PermanentDeliveryError(refused)

    found = _holders(path, which)
    with reported(json_output, otherwise=NONE) as report:
        uvloop.run(publish_again())


@app.command()
def purge(
    path: PATH,
    record_id: ID = None,
    every: ALL = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    json_output: JSON = False,
) -> None:
    """Throw letters away for good; nothing is delivered meanwhile.

    Exit status 0: they are gone. 1: a directory has an owner, or cannot be read. 2: there is no such letter, --yes is
    missing, or nothing of aiorecover is there.
    """
    which = _which(record_id, every)
    if not yes:
        raise ConfigError("say --yes as well: what is purged is nowhere any more")

    async def throw_away() -> None:
        for one in found:
            async with _offline(one.path) as producer:
                count = await producer.dead_letters.purge(which or "all")
            report({"path": str(one.path), "purged": count}, f"{one.path}: dead letters purged: {count:,}")

    found = _holders(path, which)
    with reported(json_output, otherwise=NONE) as report:
        uvloop.run(throw_away())


@asynccontextmanager
async def _offline(path: pathlib.Path) -> AsyncIterator[RecoverableProducer]:
    """Open a directory with a producer that reaches no Kafka; its log does not warn of that, and names damage still."""
    options = {**stored_options(path), "bootstrap_servers": NOWHERE, "stop_timeout_ms": 0}
    with errors_only():
        async with RecoverableProducer(**options) as producer:
            yield producer


def _holders(path: pathlib.Path, which: str | None) -> list[Instance]:
    """Return the directories that have the letter; None: any letter.

    Raises:
        ConfigError: none has it.
        WalLockedError: a process has one of them.

    """
    holders = {where for where, record in stored(_paths(path), dead=True) if which in (None, record.record_id)}
    if which is not None and not holders:
        raise ConfigError(f"there is no such letter: 'aiorecover dead-letters list' names them record_id={which!r}")
    found = [one for one in inspection.instances_at(path) if one.path in holders]
    for one in found:
        free(one)
    return found


def _which(record_id: str | None, every: bool) -> str | None:
    if every == (record_id is not None):
        raise ConfigError("name the id of one letter, or say --all")
    return record_id


def _paths(path: pathlib.Path) -> list[pathlib.Path]:
    return [one.path for one in inspection.instances_at(path)]


def _letters(path: pathlib.Path, damage: Damage | None = None) -> Iterator[StoredRecord]:
    for _, record in stored(_paths(path), dead=True, damage=damage):
        yield record


def _letter_of(stored_record: StoredRecord) -> DeadLetter:
    record, note = stored_record.record, stored_record.note
    return DeadLetter(
        record_id=stored_record.record_id,
        topic=topic_of(stored_record),
        partition=-1 if note is None or note.partition is None else note.partition,
        key=record.key,
        value=record.value,
        timestamp_ms=stored_record.timestamp_ms,
        headers=list(record.headers),
        error="" if note is None else note.error or "",
        context=context_in(note),
    )
