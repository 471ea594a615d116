"""The commands for a Kafka of yours: doctor looks, bench publishes."""

from __future__ import annotations

import pathlib
import tempfile
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop
from rich.table import Table

from aiorecover.cli.bench import measure
from aiorecover.cli.doctor import BAD, FINE, UNSURE, examine
from aiorecover.cli.endings import FAILED, Output, print_json
from aiorecover.cli.options import JSON, OPTION, SERVERS, options_of
from aiorecover.config import Config

if TYPE_CHECKING:
    from aiorecover.cli.doctor import Finding

__all__ = ["add_to"]

STYLES = {FINE: "green", UNSURE: "yellow", BAD: "red"}


def doctor(
    wal_dir: Annotated[pathlib.Path, typer.Argument(help="The wal_dir of the service; need not exist yet.")],
    bootstrap_servers: SERVERS = None,
    topic: Annotated[list[str] | None, typer.Option(help="A topic that it publishes to; once for each.")] = None,
    option: OPTION = None,
    json_output: JSON = False,
) -> None:
    """Examine what a producer depends on: broker, addresses, rights, topics, directories, disk, clock; with remedies.

    Changes nothing: the right to write is asked for with a batch that no broker takes, those of --option
    guarantee=exactly_once with a request of no producer, and the disk is measured with a temporary file. Options come
    as for drain.

    Exit status 0: no error was found, warnings perhaps. 1: an error was. 2: an option is wrong.
    """

    async def look() -> list[Finding]:
        findings = []
        async for finding in examine(config, topic or ()):
            findings.append(finding)
            if not json_output:
                _print(console, finding)
        return findings

    console = Output()
    given = options_of(wal_dir, bootstrap_servers, option or ())
    config = Config.from_options(given.pop("wal_dir"), given.pop("bootstrap_servers"), given)
    findings = uvloop.run(look())
    if json_output:
        print_json([finding._asdict() for finding in findings])
    raise typer.Exit(FAILED if any(finding.level == BAD for finding in findings) else 0)


def _print(console: Output, finding: Finding) -> None:
    line = f"{finding.level:7}  {finding.subject}: {finding.text}"
    console.say(line, style=STYLES[finding.level] if finding.level != FINE else None)
    if finding.remedy:
        console.say(f"         → {finding.remedy}")


def bench(
    topic: Annotated[str, typer.Option(help="A topic for this; it gets the records of each producer.")],
    bootstrap_servers: SERVERS = None,
    records: Annotated[int, typer.Option(min=1, help="Records of each producer.")] = 100_000,
    size: Annotated[int, typer.Option(min=0, help="Bytes of a value.")] = 160,
    wal_dir: Annotated[
        pathlib.Path | None, typer.Option(help="On the disk to be measured. Default: a temporary directory.")
    ] = None,
    option: OPTION = None,
    json_output: JSON = False,
) -> None:
    """Publish to your Kafka as fast as it goes, and do the same with aiokafka and, if installed, confluent-kafka.

    Exit status 0: done. 1: Kafka is not reached, or refuses. 2: an option is wrong. 130: Ctrl-C.
    """

    async def compare(directory: pathlib.Path) -> list[dict[str, Any]]:
        given = options_of(directory, bootstrap_servers, option or ())
        given.pop("wal_dir")
        return [figures async for figures in measure(given, topic, records, size, directory)]

    with tempfile.TemporaryDirectory(dir=wal_dir, prefix="aiorecover-bench-") as temporary:
        found = uvloop.run(compare(pathlib.Path(temporary)))
    if json_output:
        print_json(found)
        return
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for number, title in enumerate(("producer", "accepted/s", "delivered/s", "CPU µs/record")):
        table.add_column(title, justify="right" if number else "left")
    for one in found:
        if "skipped" in one:
            table.add_row(one["producer"], one["skipped"])
        else:
            rates = (f"{one[name]:,.0f}" for name in ("accepted_per_second", "delivered_per_second"))
            table.add_row(one["producer"], *rates, f"{one['cpu_us_per_record']:.2f}")
    Output().print(table)


def add_to(app: typer.Typer) -> None:
    """Give the application these commands."""
    for command in (doctor, bench):
        app.command()(command)
